//! One store of a process in a place at a time.
//!
//! The place keeps other processes out by a lock, and a directory or a device also a second object of this process. Two
//! objects for one place say so themselves ([`Place::identity`]): nothing in the store's files distinguishes them from
//! a copy.

use std::{collections::BTreeSet, sync::Arc};

use lacuna_device::Place;
use parking_lot::Mutex;

use crate::types::{Error, Result};

/// Identities of the places that have an open store. The store keeps its place alive, so no other place gets the same
/// identity meanwhile.
static LOCKED: Mutex<BTreeSet<(usize, u64)>> = Mutex::new(BTreeSet::new());

/// An open store's hold of its place, until it is dropped.
pub(super) struct StoreLock {
    identity: (usize, u64),
}

impl StoreLock {
    /// # Errors
    /// [`Error::Busy`].
    pub(super) fn new(place: &Arc<dyn Place>) -> Result<StoreLock> {
        let identity = place.identity();
        if !LOCKED.lock().insert(identity) {
            return Err(Error::Busy { what: place.name().into() });
        }
        Ok(StoreLock { identity })
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        LOCKED.lock().remove(&self.identity);
    }
}
