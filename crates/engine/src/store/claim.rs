//! One store of a process in a place at a time.
//!
//! The place keeps other processes out by a lock, and a directory or a device also a second object of this process. Two
//! objects for one place say so themselves ([`Place::identity`]): nothing in the store's files tells them from a copy.

use std::{collections::BTreeSet, sync::Arc};

use lacuna_device::Place;
use parking_lot::Mutex;

use crate::types::error::{Error, Result};

/// Identities of the places that have an open store. That store keeps its place, so no other one comes to have the
/// same meanwhile.
static CLAIMED: Mutex<BTreeSet<(usize, u64)>> = Mutex::new(BTreeSet::new());

/// An open store's hold of its place, until it is dropped.
pub(super) struct Claim {
    identity: (usize, u64),
}

impl Claim {
    /// # Errors
    /// [`Error::Busy`].
    pub(super) fn new(place: &Arc<dyn Place>) -> Result<Claim> {
        let identity = place.identity();
        if !CLAIMED.lock().insert(identity) {
            return Err(Error::Busy { what: place.name().into() });
        }
        Ok(Claim { identity })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.lock().remove(&self.identity);
    }
}
