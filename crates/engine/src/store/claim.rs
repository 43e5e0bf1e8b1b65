//! One store of a process in a place at a time.
//!
//! The place keeps other processes out by a lock, and a directory or a device also a second object of this process. A
//! place is identified by the object that stands for it: two objects for the same directory of a file system of ours, or
//! that pass calls on to the same place, are not noticed. (Nothing that the trait tells or a store's files hold tells
//! these from a copy of the store.)

use std::{collections::BTreeSet, sync::Arc};

use lacuna_device::Place;
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Where the places lie in memory that have an open store. That store keeps its place, so no other one comes to lie
/// there meanwhile.
static CLAIMED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// An open store's hold of its place, until it is dropped.
pub(super) struct Claim {
    at: usize,
}

impl Claim {
    /// # Errors
    /// [`Error::Busy`].
    pub(super) fn new(place: &Arc<dyn Place>) -> Result<Claim> {
        let at = Arc::as_ptr(place).cast::<()>() as usize;
        if !CLAIMED.lock().insert(at) {
            return Err(Error::Busy { what: place.name().into() });
        }
        Ok(Claim { at })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.lock().remove(&self.at);
    }
}
