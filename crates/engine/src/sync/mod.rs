//! Locks, atomics and threads of an open store: parking_lot's and the standard library's, or under the
//! feature `shuttle` the same interfaces over shuttle, whose scheduler decides at each of them which
//! thread goes on. tests/shuttle drives it; the rest of the crate uses one interface only.

#[cfg(not(feature = "shuttle"))]
mod real {
    pub(crate) use std::{
        sync::{atomic, mpsc},
        thread,
    };

    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

    use std::{sync::Arc, time::Duration};

    use parking_lot::{
        RawRwLock,
        lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard},
    };

    /// A lock whose guards keep it alive.
    pub(crate) struct Latch<T>(Arc<RwLock<T>>);

    pub(crate) type LatchRead<T> = ArcRwLockReadGuard<RawRwLock, T>;
    pub(crate) type LatchWrite<T> = ArcRwLockWriteGuard<RawRwLock, T>;

    impl<T> Latch<T> {
        pub(crate) fn new(value: T) -> Latch<T> {
            Latch(Arc::new(RwLock::new(value)))
        }

        pub(crate) fn read(&self) -> LatchRead<T> {
            self.0.read_arc()
        }

        pub(crate) fn try_read(&self) -> Option<LatchRead<T>> {
            self.0.try_read_arc()
        }

        pub(crate) fn write(&self) -> LatchWrite<T> {
            self.0.write_arc()
        }

        /// `None` if others keep it for so long.
        pub(crate) fn write_within(&self, patience: Duration) -> Option<LatchWrite<T>> {
            self.0.try_write_arc_for(patience)
        }

        pub(crate) fn downgrade(guard: LatchWrite<T>) -> LatchRead<T> {
            ArcRwLockWriteGuard::downgrade(guard)
        }

        /// The value, where no guard is left.
        pub(crate) fn into_inner(self) -> Option<T> {
            Arc::try_unwrap(self.0).ok().map(RwLock::into_inner)
        }
    }
}

#[cfg(not(feature = "shuttle"))]
pub(crate) use real::*;

mod deadline;
pub(crate) mod signal;

pub(crate) use deadline::deadline;

#[cfg(feature = "shuttle")]
mod scheduled;

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::*;
