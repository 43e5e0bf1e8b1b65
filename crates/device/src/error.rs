use std::{io, path::PathBuf};

/// The errors of devices and files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on the named thing.
    #[error("{what}: {source}")]
    Io {
        /// The file or device, and where in it.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another process holds the store.
    #[error("{}: in use by another process", path.display())]
    Busy {
        /// The store.
        path: PathBuf,
    },
    /// Another file has the name of the lock of an open directory, so another process may use what is there.
    #[error("{}: was replaced while the store was open; nothing is changed there any more", path.display())]
    Replaced {
        /// The lock.
        path: PathBuf,
    },
    /// No space is left for the request.
    #[error("{what}: no space left")]
    Full {
        /// The store or file system.
        what: String,
    },
    /// A file of that name does not exist.
    #[error("{name}: no such file")]
    NotFound {
        /// The name asked for.
        name: String,
    },
    /// A file of that name exists already.
    #[error("{name}: exists already")]
    Exists {
        /// The name asked for.
        name: String,
    },
    /// An offset or length is out of range or not aligned as the call demands.
    #[error("{what}: bad range: offset {offset}, length {len}")]
    BadRange {
        /// The file or device.
        what: String,
        /// Byte offset of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
    },
    /// A name that the VFS cannot hold.
    #[error("{name:?}: bad file name: {reason}")]
    BadName {
        /// The name asked for.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// A batch larger than the VFS can apply at once.
    #[error("batch of {bytes} bytes is larger than {bytes_max}")]
    BatchTooLarge {
        /// Size of the batch.
        bytes: u64,
        /// The most that the VFS takes.
        bytes_max: u64,
    },
    /// Bytes on the medium are not those that were written.
    #[error("{what} at byte {at}: corrupt: {reason}")]
    Corrupt {
        /// The file or store.
        what: String,
        /// Byte offset of the damage.
        at: u64,
        /// The check that failed.
        reason: String,
    },
    /// An earlier write or sync failed; nothing is written until the store is reopened.
    #[error("{what}: stopped after an earlier failure: {reason}")]
    Poisoned {
        /// The store.
        what: String,
        /// The failure that stopped it.
        reason: String,
    },
    /// The operation is not supported here.
    #[error("{what}: not supported: {operation}")]
    Unsupported {
        /// The VFS or device.
        what: String,
        /// The requested operation.
        operation: &'static str,
    },
    /// The simulated power is off. Only simulators return it.
    #[error("power cut")]
    PowerCut,
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps an operating system error with the thing it befell. `ENOSPC` becomes [`Error::Full`].
    pub fn io(what: impl Into<String>, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full { what: what.into() },
            _ => Error::Io { what: what.into(), source },
        }
    }
}
