//! Whether the store works: open, for reading only, closing, closed, or stopped by a failure.
//!
//! After a failed write or sync the contents of the medium are unknown, and after a panic those of memory: the store
//! stops for all threads. Nothing is written any more, so opening it again recovers every acknowledged commit. Reads go
//! on until the store is closed: then the VFS may have another owner.
//!
//! A panic stops the store before a latch that the thread holds is released ([`Sentinel`] of its frame), so that
//! neither a reader nor a flush uses a half-changed page; and at the latest when the call ends. A waiting thread checks
//! the poison from time to time, or is woken by the thread that sets it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    // These need not go through the scheduler of the tests.
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use lacuna_device::Process;

use crate::{
    mutant::{Rule, is_broken},
    types::{Error, PageId, Result},
};

/// Public calls are refused, while the store writes its dirty pages.
const CLOSING: u8 = 1;
/// Nothing reaches the VFS any more.
const CLOSED: u8 = 2;

/// How often a waiter checks whether the store has been stopped.
pub(crate) const POISON_CHECK: Duration = Duration::from_millis(100);
/// Set once, by the first failure after which the medium's contents are unknown.
#[derive(Default)]
pub(crate) struct Poison {
    stop: OnceLock<Stop>,
    /// 0, [`CLOSING`] or [`CLOSED`]; only grows.
    closed: AtomicU8,
    /// Threads that write to the VFS, see [`Poison::begin_to_write`].
    writers: AtomicUsize,
    /// The process that opened the store.
    process: Process,
}

/// A thread that writes to the VFS, until it is dropped.
pub(crate) struct Writing<'a>(&'a Poison);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Why nothing is written.
enum Stop {
    Failed(String),
    ReadOnly,
}

impl Poison {
    /// Of a store that is opened for reading only.
    pub(crate) fn read_only() -> Poison {
        Poison {
            stop: OnceLock::from(Stop::ReadOnly),
            closed: AtomicU8::new(0),
            writers: AtomicUsize::new(0),
            process: Process::current(),
        }
    }

    /// Whether this process was forked from the one that opened the store. It takes no lock, which a thread of that one
    /// may have held, writes nothing, and waits for nobody.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Fails in a forked process ([`Poison::is_forked`]).
    pub(crate) fn must_not_be_forked(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Whether the store was opened for reading only.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self.stop.get(), Some(Stop::ReadOnly))
    }

    /// Fails when nothing may be written: the store is stopped, closed or for reading only.
    pub(crate) fn check(&self) -> Result<()> {
        self.must_not_be_forked()?;
        if self.closed.load(Ordering::Acquire) == CLOSED {
            return Err(Error::Closed);
        }
        match self.stop.get() {
            Some(Stop::Failed(reason)) => Err(Error::Poisoned { reason: reason.clone() }),
            Some(Stop::ReadOnly) => Err(Error::ReadOnly),
            None => Ok(()),
        }
    }

    /// Fails when the store is closed, or about to be. Every public call checks it.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.must_not_be_forked()?;
        if self.closed.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Error::Closed) }
    }

    /// Refuses public calls from now on.
    ///
    /// # Errors
    /// [`Error::Closed`] when that has been done before; [`Error::Forked`].
    pub(crate) fn begin_to_close(&self) -> Result<()> {
        self.must_not_be_forked()?;
        let before = self.closed.compare_exchange(0, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        before.map(drop).map_err(|_| Error::Closed)
    }

    /// Nobody begins to write to the VFS any more, nor to read. Those that write still do ([`Poison::is_writing`]).
    pub(crate) fn close(&self) {
        self.closed.store(CLOSED, Ordering::SeqCst);
    }

    /// Whether a thread writes to the VFS.
    pub(crate) fn is_writing(&self) -> bool {
        self.writers.load(Ordering::SeqCst) != 0
    }

    /// Called before the VFS is written to, for as long as that takes: until then a store that is closed meanwhile
    /// leaves the VFS to nobody.
    ///
    /// # Errors
    /// Those of [`Poison::check`].
    pub(crate) fn begin_to_write(&self) -> Result<Writing<'_>> {
        // In one order for all: either this finds the store closed, or who closes it finds this writer.
        self.writers.fetch_add(1, Ordering::SeqCst);
        let writing = Writing(self);
        if self.closed.load(Ordering::SeqCst) == CLOSED {
            return Err(Error::Closed);
        }
        self.check().map(|()| writing)
    }

    /// Whether a failure has stopped the store.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.stop.get(), Some(Stop::Failed(_)))
    }

    /// Stops the store because a thread panicked.
    pub(crate) fn panicked(&self, message: &str) {
        let _ = self.stop.set(Stop::Failed(format!("a panic: {message}")));
    }

    /// Stops the store because an operation failed after it had changed `page`, and before that was logged.
    /// One that is closed has nothing more to lose.
    pub(crate) fn left_unlogged(&self, page: PageId) {
        if self.closed.load(Ordering::SeqCst) == CLOSED {
            return;
        }
        let _ = self.stop.set(Stop::Failed(format!("an operation failed when it had changed {page}")));
    }

    /// Calls `work`, and stops the store if it panics; what it returned, if it did not.
    pub(crate) fn guard<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        // No state that the work leaves behind is used: the store is stopped.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        outcome
            .map_err(|payload| {
                let text = payload.downcast_ref::<String>().map(String::as_str);
                self.panicked(
                    text.or_else(|| payload.downcast_ref().copied()).unwrap_or("without a message"),
                );
            })
            .ok()
    }

    /// Stops the store because of `error`, which is returned, unless that only says that it is closed.
    pub(crate) fn set(&self, error: Error) -> Error {
        if !matches!(error, Error::Closed) {
            let _ = self.stop.set(Stop::Failed(error.to_string()));
        }
        error
    }
}

/// Notices that its thread begins to panic. A thread that panics already may use the store while it unwinds, to roll a
/// transaction back.
pub(crate) struct Sentinel {
    was_panicking: bool,
}

impl Sentinel {
    pub(crate) fn new() -> Sentinel {
        Sentinel { was_panicking: thread::panicking() }
    }

    /// Whether the thread has begun to panic since.
    pub(crate) fn sees_panic(&self) -> bool {
        thread::panicking() && !self.was_panicking && !is_broken(Rule::PanicsStop)
    }
}

/// A call into the store: if it panics, the store stops.
pub(crate) struct Call<'a> {
    poison: &'a Poison,
    sentinel: Sentinel,
}

impl Poison {
    /// Begins a call; it ends when this is dropped.
    pub(crate) fn call(&self) -> Call<'_> {
        Call { poison: self, sentinel: Sentinel::new() }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.sentinel.sees_panic() {
            self.poison.panicked(IN_A_CALL);
        }
    }
}

/// The reason before the panic is caught; the panic itself has reported the rest.
pub(crate) const IN_A_CALL: &str = "a thread that used the store panicked";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_closes_once_and_keeps_the_reason_of_its_stop() {
        let poison = Poison::default();
        poison.set(Error::LockTimeout);
        assert!(matches!(poison.check(), Err(Error::Poisoned { .. })) && poison.check_open().is_ok());
        poison.begin_to_close().expect("open");
        assert!(matches!(poison.begin_to_close(), Err(Error::Closed)));
        assert!(matches!(poison.check_open(), Err(Error::Closed)));
        assert!(
            matches!(poison.check(), Err(Error::Poisoned { .. })),
            "what is left is still refused for this"
        );
        poison.close();
        assert!(matches!(poison.check(), Err(Error::Closed)));
        let reading = Poison::read_only();
        assert!(matches!(reading.check(), Err(Error::ReadOnly)) && reading.check_open().is_ok());
    }
}
