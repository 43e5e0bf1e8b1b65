//! The device of an open store, and how large the store is on it.

use std::sync::Arc;

use lacuna_device::BlockDevice;

use crate::{
    Error, Options, Result,
    addr::SegNo,
    format::{Salt, Superblock},
    media::{cipher::Cipher, superblock},
    space::Space,
    sync::atomic::{AtomicUsize, Ordering},
};

/// See the module documentation.
pub(crate) struct Volume {
    device: Arc<dyn BlockDevice>,
    salt: Salt,
    /// Sizes at the time when it was opened; see [`Volume::space`].
    opened: Space,
    /// Segments of the store; the number grows (`maintenance::grow`).
    segments: AtomicUsize,
    is_read_only: bool,
    /// Others may use the capacity of the device that the store does not use.
    is_sparse: bool,
    cipher: Cipher,
}

impl Volume {
    /// The store of `superblock`, on `device`.
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        superblock: &Superblock,
        options: &Options,
        cipher: Cipher,
    ) -> Volume {
        let opened = superblock::space(&*device, superblock);
        Volume {
            salt: Salt::of(&superblock.uuid),
            opened,
            segments: AtomicUsize::new(opened.segments),
            is_read_only: options.read_only,
            is_sparse: device.is_sparse(),
            device,
            cipher,
        }
    }

    pub(crate) fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }

    /// The device, for messages.
    pub(crate) fn name(&self) -> String {
        self.device.name().to_owned()
    }

    /// First value of all checksums of the store.
    pub(crate) fn salt(&self) -> Salt {
        self.salt
    }

    /// Sizes of the store. They may grow: a caller that needs the same ones twice asks once.
    pub(crate) fn space(&self) -> Space {
        Space { segments: self.segments.load(Ordering::Acquire), ..self.opened }
    }

    /// The store has `segments` segments now.
    pub(crate) fn grow(&self, segments: usize) {
        self.segments.store(segments, Ordering::Release);
    }

    /// Byte on the device of `offset` in `segment`.
    pub(crate) fn offset(&self, segment: SegNo, offset: usize) -> u64 {
        u64::from(segment.0) * self.opened.segment_bytes as u64 + offset as u64
    }

    pub(crate) fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// What data is encrypted with.
    pub(crate) fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    /// `Locked` for a store whose data can be neither read nor written, for want of a key.
    pub(crate) fn must_have_key(&self) -> Result<()> {
        match self.cipher {
            Cipher::Locked => Err(Error::Locked { device: self.name() }),
            Cipher::None | Cipher::Sectors(_) => Ok(()),
        }
    }

    /// `ReadOnly` for a store that must not be changed.
    pub(crate) fn must_write(&self) -> Result<()> {
        match self.is_read_only {
            true => Err(Error::ReadOnly { device: self.name() }),
            false => Ok(()),
        }
    }

    /// The error for a `what` that is not what was written at byte `at`.
    pub(crate) fn corrupt(&self, what: &str, at: u64, reason: impl Into<String>) -> Error {
        Error::Corrupt { what: format!("{}, {what}", self.device.name()), at, reason: reason.into() }
    }
}
