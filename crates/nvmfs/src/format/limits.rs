//! The limits of what a user may have in a file system.

use std::num::NonZeroU64;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{Body, Header, SECTOR, is_zero};

/// What the inodes of a user may take; none by default. See [`crate::Nvmfs::quotas`] for what counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Stored bytes.
    pub bytes: Option<NonZeroU64>,
    /// Number of inodes.
    pub inodes: Option<NonZeroU64>,
}

/// The limits of a user, in the sector of its number in their region.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct LimitsSector {
    pub(super) uid: U32,
    pub(super) zero: U32,
    /// 0: no limit.
    pub(super) bytes_max: U64,
    /// 0: no limit.
    pub(super) inodes_max: U64,
    pub(super) zero2: [u8; 464],
}

const _: () = assert!(size_of::<Header>() + size_of::<LimitsSector>() == SECTOR);

/// Whether a user can have limits: root has none, and the last number means nobody.
pub(crate) fn can_have_limits(uid: u32) -> bool {
    uid != 0 && uid != u32::MAX
}

impl Body for LimitsSector {
    const KIND: u8 = 7;

    fn flaw(&self) -> Option<&'static str> {
        if self.zero.get() != 0 || !is_zero(&self.zero2) {
            return Some("reserved bytes are not zero");
        }
        if !can_have_limits(self.uid.get()) {
            return Some("limits of a user who can have none");
        }
        (self.limits() == Limits::default()).then_some("limits without a limit")
    }
}

impl LimitsSector {
    pub(crate) fn new(uid: u32, limits: Limits) -> LimitsSector {
        let max = |limit: Option<NonZeroU64>| limit.map_or(0, NonZeroU64::get).into();
        let (bytes_max, inodes_max) = (max(limits.bytes), max(limits.inodes));
        LimitsSector { uid: uid.into(), zero: 0.into(), bytes_max, inodes_max, zero2: [0; 464] }
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid.get()
    }

    pub(crate) fn limits(&self) -> Limits {
        let limit = |max: U64| NonZeroU64::new(max.get());
        Limits { bytes: limit(self.bytes_max), inodes: limit(self.inodes_max) }
    }
}
