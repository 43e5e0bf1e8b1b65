//! Whether this is still the process that opened something.
//!
//! The child of fork(2) has a copy of all memory: locks as the parent's threads held them at that moment, and none of
//! these threads; descriptors and advisory locks it shares. If it used a store, it would write beside the parent what
//! that does not know of, and it would wait for threads and locks for ever.
//!
//! A child counts itself as it begins (`pthread_atfork`), so asking costs a load of memory. Not noticed is who forks by
//! a bare system call: what the C library may do in such a child is undefined anyway.

#![allow(unsafe_code)] // One call that no library wraps.

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Forks that lead from the process that asked first to this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A process, as seen by itself and by those that were forked from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// The calling one.
    pub fn current() -> Process {
        static COUNTED: Once = Once::new();
        COUNTED.call_once(|| {
            // SAFETY: all that the handler does is to add to an atomic number.
            let failure = unsafe { libc::pthread_atfork(None, None, Some(count)) };
            assert_eq!(failure, 0, "no memory for a handler of forks");
        });
        Process(FORKS.load(Relaxed))
    }

    /// Whether it is the calling one; false in processes that were forked from it.
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Relaxed)
    }
}

impl Default for Process {
    fn default() -> Process {
        Process::current()
    }
}

extern "C" fn count() {
    FORKS.fetch_add(1, Relaxed);
}
