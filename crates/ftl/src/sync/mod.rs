//! Locks, atomics and threads of an open store: parking_lot's and the standard library's, or under the feature
//! `shuttle` the same interfaces over shuttle, whose scheduler decides at each of them which thread goes on.
//! tests/shuttle drives it; the rest of the crate uses one interface only.

#[cfg(not(feature = "shuttle"))]
mod real {
    pub(crate) use std::{
        sync::{OnceLock, atomic},
        thread,
    };

    pub(crate) use parking_lot::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
    };
}

#[cfg(not(feature = "shuttle"))]
pub(crate) use real::*;

#[cfg(feature = "shuttle")]
mod scheduled;

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::*;

/// A number for each segment, which all threads reach without a lock.
pub(crate) type PerSegment = boxcar::Vec<atomic::AtomicU32>;
