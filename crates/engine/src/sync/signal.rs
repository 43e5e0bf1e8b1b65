//! A flag that one thread waits for.

use crate::sync::{Condvar, Mutex};
use std::time::Duration;

/// Raised by any thread, any number of times, and taken down by the thread that waits for it. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Signal {
    is_raised: Mutex<bool>,
    raised: Condvar,
}

impl Signal {
    pub(crate) fn raise(&self) {
        let was_raised = std::mem::replace(&mut *self.is_raised.lock(), true);
        if !was_raised {
            // After the lock is released, or the woken thread would wait for it.
            self.raised.notify_one();
        }
    }

    /// Waits until it is raised, and takes it down.
    pub(crate) fn wait(&self) {
        let mut is_raised = self.is_raised.lock();
        while !*is_raised {
            self.raised.wait(&mut is_raised);
        }
        *is_raised = false;
    }

    /// Waits until it is raised, or for `timeout`, and takes it down.
    pub(crate) fn wait_for(&self, timeout: Duration) {
        let mut is_raised = self.is_raised.lock();
        if !*is_raised {
            self.raised.wait_for(&mut is_raised, timeout);
        }
        *is_raised = false;
    }
}
