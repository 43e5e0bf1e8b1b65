//! Converts the errors of all layers into one type, [`Error`].

use std::{path::Path, sync::Arc};

use lacuna_ftl::Error as FtlError;
use lacuna_nvmfs::Error as FsError;

use crate::Error;

/// The error of opening or closing the storage at `path`.
pub(crate) fn of_storage(path: &Path, error: FsError) -> Error {
    match error {
        FsError::Device(error) | FsError::Ftl(FtlError::Device(error)) => Error::Device(Arc::new(error)),
        FsError::Ftl(FtlError::Corrupt { what, at, reason }) => {
            Error::Corrupt { what, at: format!("byte {at}"), reason }
        }
        FsError::Corrupt { store, what, sector, reason } => Error::Corrupt {
            what: format!("{store}: {what}"),
            at: format!("sector {sector}"),
            reason: reason.into(),
        },
        FsError::Ftl(FtlError::Full { device, .. }) => Error::Full { what: device, history_bytes: 0 },
        FsError::Ftl(FtlError::ReadOnly { .. }) => Error::ReadOnly,
        FsError::Ftl(error @ FtlError::Poisoned { .. }) => Error::Poisoned { reason: error.to_string() },
        error => {
            let (what, text) = (path.display().to_string(), error.to_string());
            let reason = text.strip_prefix(&format!("{what}: ")).unwrap_or(&text).to_owned();
            Error::BadStore { what, reason }
        }
    }
}

/// An error of the engine while it opened the store at `path`, whose files it knows by their names only.
pub(crate) fn at_path(path: &Path, error: Error) -> Error {
    let path = path.display();
    match error {
        Error::Corrupt { what, at, reason } => Error::Corrupt { what: format!("{path}: {what}"), at, reason },
        Error::NotBuiltIn { what, algorithm } => {
            Error::NotBuiltIn { what: format!("{path}: {what}"), algorithm }
        }
        error => error,
    }
}
