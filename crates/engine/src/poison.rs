//! After a failed write or sync nothing is known of what the medium holds, and after a panic nothing of what memory
//! holds: the store stops, for everybody. Nothing is written any more, so opening it again recovers all that was
//! acknowledged.
//!
//! A panic stops the store before a latch that the thread holds is given up ([`Sentinel`] of its frame), so that
//! neither a reader nor a flush takes a page that is changed by half; and at the latest when the call ends. Whoever
//! waits looks at the poison from time to time, or is woken by the one who sets it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
    thread,
};

use crate::{
    error::{Error, Result},
    mutant::{Rule, is_broken},
};

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

    /// Stops the store because a thread panicked.
    pub(crate) fn panicked(&self, message: &str) {
        let _ = self.reason.set(format!("a panic: {message}"));
    }

    /// Calls `work`, and stops the store if it panics; what it returned, if it did not.
    pub(crate) fn guard<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        // What the work leaves behind is not used: the store is stopped.
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

    /// Stops the store because of `error`, which is returned.
    pub(crate) fn set(&self, error: Error) -> Error {
        let _ = self.reason.set(error.to_string());
        error
    }
}

/// Notices that its thread begins to panic. A thread that panics already may use the store while it unwinds, to
/// take a transaction back.
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

/// What is known of a panic before it is caught; the panic itself has told the rest.
pub(crate) const IN_A_CALL: &str = "a thread that used the store panicked";
