//! Append points: records appended at the same point lie together.

use crate::{
    format::{POSITIONS, SegmentKind},
    log::lifetime::COLDEST,
    space::CLASSES_MAX,
};

/// Where records are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendPoint {
    /// Batches of one class.
    Data(u8),
    Log,
    /// Moved extents of one class.
    Gc(u8),
}

pub(super) const APPEND_POINTS: usize = 1 + 2 * CLASSES_MAX;
const _: () = assert!(APPEND_POINTS <= POSITIONS);

impl AppendPoint {
    pub(super) fn kind(self) -> SegmentKind {
        match self {
            AppendPoint::Data(_) => SegmentKind::Data,
            AppendPoint::Log => SegmentKind::Log,
            AppendPoint::Gc(_) => SegmentKind::Gc,
        }
    }

    pub(super) fn index(self) -> usize {
        match self {
            AppendPoint::Log => 0,
            AppendPoint::Data(class) => 1 + usize::from(class),
            AppendPoint::Gc(class) => 1 + CLASSES_MAX + usize::from(class),
        }
    }

    pub(crate) fn class(self) -> u8 {
        match self {
            AppendPoint::Data(class) | AppendPoint::Gc(class) => class,
            AppendPoint::Log => COLDEST,
        }
    }

    /// Whether batches go there.
    pub(crate) fn is_fresh(self) -> bool {
        !matches!(self, AppendPoint::Gc(_))
    }

    pub(crate) fn all() -> impl Iterator<Item = AppendPoint> {
        [AppendPoint::Log].into_iter().chain(AppendPoint::data()).chain(AppendPoint::gc())
    }

    /// All append points for batches of data.
    pub(crate) fn data() -> impl Iterator<Item = AppendPoint> {
        (0..CLASSES_MAX as u8).map(AppendPoint::Data)
    }

    /// All append points for moved extents.
    pub(crate) fn gc() -> impl Iterator<Item = AppendPoint> {
        (0..CLASSES_MAX as u8).map(AppendPoint::Gc)
    }
}
