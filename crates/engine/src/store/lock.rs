//! One store of a process in a VFS at a time.
//!
//! The VFS keeps other processes out by a lock, and a directory or a device also a second object of this process. Two
//! objects for one VFS report the same [`Vfs::identity`]: nothing in the store's files distinguishes them from a copy.

use std::{collections::BTreeSet, sync::Arc};

use lacuna_device::Vfs;
use parking_lot::Mutex;

use crate::types::{Error, Result};

/// Identities of the VFSs that have an open store. The store keeps its VFS alive, so no other VFS gets the same
/// identity meanwhile.
static LOCKED: Mutex<BTreeSet<(usize, u64)>> = Mutex::new(BTreeSet::new());

/// An open store's claim of its VFS, until it is dropped.
pub(super) struct StoreLock {
    identity: (usize, u64),
}

impl StoreLock {
    /// # Errors
    /// [`Error::Busy`].
    pub(super) fn new(vfs: &Arc<dyn Vfs>) -> Result<StoreLock> {
        let identity = vfs.identity();
        if !LOCKED.lock().insert(identity) {
            return Err(Error::Busy { what: vfs.name().into() });
        }
        Ok(StoreLock { identity })
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        LOCKED.lock().remove(&self.identity);
    }
}
