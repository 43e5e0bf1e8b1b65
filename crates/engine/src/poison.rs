//! After a failed write or sync nothing is known of what the medium holds: the store stops.

use std::sync::OnceLock;

use crate::error::{Error, Result};

/// Set once, by the first failure that leaves the medium in doubt.
#[derive(Default)]
pub(crate) struct Poison {
    reason: OnceLock<String>,
}

impl Poison {
    /// Fails when the store is stopped.
    pub(crate) fn check(&self) -> Result<()> {
        match self.reason.get() {
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Stops the store for good because it was closed.
    pub(crate) fn close(&self) {
        let _ = self.reason.set("it was closed".into());
    }

    /// Stops the store because of `error`, which is returned.
    pub(crate) fn set(&self, error: Error) -> Error {
        let _ = self.reason.set(error.to_string());
        error
    }
}
