use lacuna_device as device;
use lacuna_ftl as ftl;

/// What can go wrong in the file system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The flash translation layer failed; it names the store.
    #[error(transparent)]
    Ftl(#[from] ftl::Error),
    /// The device or directory failed, or refused a name or range; it names itself.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// The store holds no file system.
    #[error("{store}: not a Lacuna file system: {reason}")]
    NotAFileSystem {
        /// The store.
        store: String,
        /// What was found instead.
        reason: &'static str,
    },
    /// The file system was written by a newer version of the format.
    #[error("{store}: file system version {found} is newer than {supported}, the newest known here")]
    Version {
        /// The store.
        store: String,
        /// Version of the file system.
        found: u32,
        /// Newest version that this program reads.
        supported: u32,
    },
    /// The file system uses features that this version does not know.
    #[error("{store}: unknown file system features {flags:#x}")]
    Features {
        /// The store.
        store: String,
        /// The unknown bits.
        flags: u64,
    },
    /// A sector of the file system's own is not what was written there.
    #[error("{store}: {what} at sector {sector}: corrupt: {reason}")]
    Corrupt {
        /// The store.
        store: String,
        /// The table or file.
        what: String,
        /// Sector within it.
        sector: u64,
        /// How it was noticed.
        reason: &'static str,
    },
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Users of a place see its failures in the words of the device layer.
impl From<Error> for device::Error {
    fn from(error: Error) -> device::Error {
        let what = error.to_string();
        match error {
            Error::Ftl(error) => error.into(),
            Error::Device(error) => error,
            Error::Corrupt { store, what, sector, reason } => device::Error::Corrupt {
                what: format!("{store}: {what}"),
                at: sector.saturating_mul(device::SECTOR as u64),
                reason: reason.to_owned(),
            },
            Error::NotAFileSystem { .. } | Error::Version { .. } | Error::Features { .. } => {
                device::Error::Unsupported { what, operation: "open" }
            }
        }
    }
}
