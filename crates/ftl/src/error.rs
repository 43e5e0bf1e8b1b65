use lacuna_codec::Algorithm;
use lacuna_device as device;

use crate::addr::{Lba, SECTOR};

/// What can go wrong in the flash translation layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed; it names itself.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// The caller ended the work when it was told of its progress.
    #[error("ended before it was complete")]
    Interrupted,
    /// The device holds no store.
    #[error("{device}: not a Lacuna store: {reason}")]
    NotAStore {
        /// The device.
        device: String,
        /// What was found instead.
        reason: &'static str,
    },
    /// `format` was asked to overwrite something.
    #[error("{device}: not empty: it holds {holds}; force is needed to overwrite it")]
    NotEmpty {
        /// The device.
        device: String,
        /// What it holds.
        holds: String,
    },
    /// The store was written by a newer version of the format.
    #[error("{device}: format version {found} is newer than {supported}, the newest known here")]
    Version {
        /// The device.
        device: String,
        /// Version of the store.
        found: u32,
        /// Newest version that this program reads.
        supported: u32,
    },
    /// The store uses features that this version does not know.
    #[error("{device}: unknown features {flags:#x}")]
    Features {
        /// The device.
        device: String,
        /// The unknown bits.
        flags: u64,
    },
    /// Device and store, or device and options, do not fit each other.
    #[error("{device}: {reason}")]
    Geometry {
        /// The device.
        device: String,
        /// What does not fit.
        reason: String,
    },
    /// A log device that the store has is missing, or one was given that is not the store's.
    #[error("{device}: log device: {reason}")]
    LogDevice {
        /// The store, or the log device.
        device: String,
        /// What is wrong.
        reason: String,
    },
    /// Bytes on the device are not what was written there.
    #[error("{what} at byte {at}: corrupt: {reason}")]
    Corrupt {
        /// The device, and the kind of thing that is damaged.
        what: String,
        /// Byte offset on the device.
        at: u64,
        /// How it was noticed.
        reason: String,
    },
    /// Data was encoded by an algorithm that this program was built without.
    #[error("{device}: compressed by {algorithm}, which is not built in (cargo feature `{algorithm}`)")]
    NotBuiltIn {
        /// The device.
        device: String,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// The batch does not fit beside the live data. Nothing of it was applied.
    #[error("{device}: no space left: {live_bytes} of {limit_bytes} bytes are live")]
    Full {
        /// The device.
        device: String,
        /// Live bytes now, bookkeeping included.
        live_bytes: u64,
        /// What may be live at most.
        limit_bytes: u64,
    },
    /// The batch is larger than this store applies at once. Nothing of it was applied.
    #[error("batch of {bytes} bytes is larger than {bytes_max}")]
    BatchTooLarge {
        /// Size of the batch, bookkeeping included.
        bytes: u64,
        /// What the store takes at most.
        bytes_max: u64,
    },
    /// A length that is not whole sectors, or an address beyond the space.
    #[error("bad range: sector {}, {len} bytes", lba.0)]
    BadRange {
        /// First sector.
        lba: Lba,
        /// Length in bytes.
        len: u64,
    },
    /// An earlier write or sync failed. Reads go on; for the rest the store must be opened anew.
    #[error("{device}: stopped after an earlier failure: {reason}")]
    Poisoned {
        /// The device.
        device: String,
        /// The failure that stopped it.
        reason: String,
    },
    /// The process was forked from the one that opened the store, and only that one may use it.
    #[error("{device}: it was opened before this process was forked, and is not its to use")]
    Forked {
        /// The device.
        device: String,
    },
    /// The store's keys cannot be used or changed as asked.
    #[error("{device}: {reason}")]
    Key {
        /// The device.
        device: String,
        /// Why not.
        #[source]
        reason: lacuna_crypt::Error,
    },
    /// The store is encrypted, and no key was given.
    #[error("{device}: the store is encrypted: a key is needed")]
    Encrypted {
        /// The device.
        device: String,
    },
    /// A key was given for a store that is not encrypted.
    #[error("{device}: a key was given, but the store is not encrypted")]
    NotEncrypted {
        /// The device.
        device: String,
    },
    /// Data was to be read or written in a store that was opened without its key.
    #[error("{device}: opened without its key, so data can be neither read nor written")]
    Locked {
        /// The device.
        device: String,
    },
    /// A change was asked of a store that was opened read-only.
    #[error("{device}: opened read-only")]
    ReadOnly {
        /// The device.
        device: String,
    },
}

impl Error {
    /// Whether it is about the device, and not about the state of the store.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Error::Corrupt { .. } | Error::Device(_))
    }

    /// Whether long work goes on, by what it was told.
    pub(crate) fn unless_ended(told: std::ops::ControlFlow<()>) -> Result<()> {
        if told.is_continue() { Ok(()) } else { Err(Error::Interrupted) }
    }
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Files on the ftl report its failures in the words of the device layer.
impl From<Error> for device::Error {
    fn from(error: Error) -> device::Error {
        let what = error.to_string();
        match error {
            Error::Device(error) => error,
            Error::Corrupt { what, at, reason } => device::Error::Corrupt { what, at, reason },
            Error::Full { device, .. } => device::Error::Full { what: device },
            Error::BatchTooLarge { bytes, bytes_max } => device::Error::BatchTooLarge { bytes, bytes_max },
            Error::Poisoned { device, reason } => device::Error::Poisoned { what: device, reason },
            Error::BadRange { lba, len } => device::Error::BadRange {
                what: "ftl".into(),
                offset: lba.0.saturating_mul(SECTOR as u64),
                len,
            },
            Error::ReadOnly { device } => {
                device::Error::Unsupported { what: device, operation: "write, opened read-only" }
            }
            Error::Forked { device } => {
                device::Error::Unsupported { what: device, operation: "this in a forked process" }
            }
            Error::Locked { device } => {
                device::Error::Unsupported { what: device, operation: "data, opened without its key" }
            }
            Error::Interrupted => {
                device::Error::Unsupported { what: "ftl".into(), operation: "check, ended" }
            }
            Error::NotAStore { .. }
            | Error::Key { .. }
            | Error::Encrypted { .. }
            | Error::NotEncrypted { .. }
            | Error::NotEmpty { .. }
            | Error::Version { .. }
            | Error::Features { .. }
            | Error::LogDevice { .. }
            | Error::NotBuiltIn { .. }
            | Error::Geometry { .. } => device::Error::Unsupported { what, operation: "open" },
        }
    }
}
