use lacuna_device as device;
use lacuna_ftl as ftl;
use rustix::io::Errno;

/// Reasons for which POSIX lets the file system refuse an operation; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("exists already")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotADirectory,
    /// EISDIR
    #[error("is a directory")]
    IsADirectory,
    /// ENOTEMPTY
    #[error("directory is not empty")]
    NotEmpty,
    /// ENAMETOOLONG: a name of more than 255 bytes, or a link's target of more than 4,095.
    #[error("name is too long")]
    NameTooLong,
    /// EINVAL
    #[error("invalid argument")]
    Invalid,
    /// EPERM
    #[error("operation not permitted")]
    NotPermitted,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// EFBIG: beyond 32 TiB.
    #[error("file is too large")]
    FileTooLarge,
    /// ENXIO: no data, or no hole, from there on.
    #[error("no such offset")]
    NoSuchOffset,
    /// ENODATA: no extended attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// E2BIG: an extended attribute of more than 64 KiB.
    #[error("attribute is too large")]
    AttributeTooLarge,
    /// ERANGE: an extended attribute's name of more than 255 bytes, or an empty one.
    #[error("attribute name is out of range")]
    AttributeName,
    /// ENOSPC: no more space for extended attributes of this inode, or no inode numbers left.
    #[error("no space left")]
    NoSpace,
    /// EDQUOT: the owner would have more than its limits allow.
    #[error("quota exceeded")]
    QuotaExceeded,
    /// ENOTSUP
    #[error("not supported")]
    NotSupported,
    /// ESTALE: the inode is gone.
    #[error("stale inode")]
    Stale,
    /// EBUSY: the root directory cannot be removed or renamed.
    #[error("in use")]
    Busy,
}

impl Refusal {
    fn errno(self) -> Errno {
        match self {
            Refusal::NotFound => Errno::NOENT,
            Refusal::Exists => Errno::EXIST,
            Refusal::NotADirectory => Errno::NOTDIR,
            Refusal::IsADirectory => Errno::ISDIR,
            Refusal::NotEmpty => Errno::NOTEMPTY,
            Refusal::NameTooLong => Errno::NAMETOOLONG,
            Refusal::Invalid => Errno::INVAL,
            Refusal::NotPermitted => Errno::PERM,
            Refusal::TooManyLinks => Errno::MLINK,
            Refusal::FileTooLarge => Errno::FBIG,
            Refusal::NoSuchOffset => Errno::NXIO,
            Refusal::NoAttribute => Errno::NODATA,
            Refusal::AttributeTooLarge => Errno::TOOBIG,
            Refusal::AttributeName => Errno::RANGE,
            Refusal::NoSpace => Errno::NOSPC,
            Refusal::QuotaExceeded => Errno::DQUOT,
            Refusal::NotSupported => Errno::NOTSUP,
            Refusal::Stale => Errno::STALE,
            Refusal::Busy => Errno::BUSY,
        }
    }
}

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
    /// The file system refuses; see [`Refusal`].
    #[error(transparent)]
    Refused(#[from] Refusal),
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

impl Error {
    /// The error as POSIX numbers it. An error that reports a damaged or stopped store is EIO.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Error::Refused(refusal) => refusal.errno(),
            Error::Ftl(ftl::Error::Full { .. }) => Errno::NOSPC,
            Error::Ftl(ftl::Error::ReadOnly { .. }) => Errno::ROFS,
            Error::Ftl(ftl::Error::Device(error)) | Error::Device(error) => return device_errno(error),
            _ => Errno::IO,
        };
        errno.raw_os_error()
    }

    /// Whether the store accepts no change at all, for the time being or for good.
    pub(crate) fn stops_changes(&self) -> bool {
        use ftl::Error::{Forked, Full, Poisoned, ReadOnly};
        matches!(self, Error::Ftl(Forked { .. } | Full { .. } | Poisoned { .. } | ReadOnly { .. }))
    }

    /// Whether the data to be read is damaged: it is not what was written, or the device cannot read it. Any other
    /// failure says nothing about the data stored there.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Error::Corrupt { .. } | Error::Ftl(ftl::Error::Corrupt { .. }) => true,
            Error::Ftl(ftl::Error::Device(device::Error::Io { source, .. })) => {
                let errno = source.raw_os_error().map(Errno::from_raw_os_error);
                matches!(errno, Some(Errno::IO | MEDIUM_ERROR))
            }
            _ => false,
        }
    }
}

/// Whether the error means that an inode is gone.
pub(crate) fn is_stale(error: &Error) -> bool {
    matches!(error, Error::Refused(Refusal::Stale))
}

/// The errno of Linux for a sector that a disk cannot read. To programs it means that there is no such attribute.
const MEDIUM_ERROR: Errno = Errno::NODATA;

fn device_errno(error: &device::Error) -> i32 {
    let errno = match error {
        device::Error::Io { source, .. } => match source.raw_os_error() {
            Some(errno) if errno != MEDIUM_ERROR.raw_os_error() => return errno,
            _ => Errno::IO,
        },
        device::Error::Full { .. } => Errno::NOSPC,
        device::Error::NotFound { .. } => Errno::NOENT,
        device::Error::Exists { .. } => Errno::EXIST,
        device::Error::BadName { .. } | device::Error::BadRange { .. } => Errno::INVAL,
        device::Error::Unsupported { .. } => Errno::NOTSUP,
        _ => Errno::IO,
    };
    errno.raw_os_error()
}

/// Users of a VFS see its failures in the words of the device layer.
impl From<Error> for device::Error {
    fn from(error: Error) -> device::Error {
        let what = error.to_string();
        match error {
            Error::Ftl(error) => error.into(),
            Error::Device(error) => error,
            Error::Refused(Refusal::NotFound | Refusal::Stale) => device::Error::NotFound { name: what },
            Error::Refused(Refusal::Exists) => device::Error::Exists { name: what },
            Error::Refused(Refusal::NoSpace | Refusal::QuotaExceeded) => device::Error::Full { what },
            Error::Refused(_) => device::Error::Unsupported { what, operation: "this operation on it" },
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
