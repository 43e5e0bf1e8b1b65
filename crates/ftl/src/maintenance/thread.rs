//! The maintenance thread.

use std::sync::Arc;

use super::parts::{Activity, Maintenance};
use crate::{
    Work,
    sync::thread::{self, JoinHandle},
};

impl Maintenance {
    /// Sets the current activity. Wakes the writers that wait for collection when it is no longer collection.
    pub(super) fn set_activity(&self, activity: Activity) {
        let before = std::mem::replace(&mut *self.activity.lock(), activity);
        if before == Activity::Collecting && activity != before {
            self.journal.notify_moved();
        }
    }
}

impl Maintenance {
    /// Starts the thread; [`Maintenance::stop`] ends it.
    pub(crate) fn spawn(self: &Arc<Self>) -> JoinHandle<()> {
        let maintenance = Arc::clone(self);
        thread::Builder::new()
            .name("ftl-background".into())
            .spawn(move || run(&maintenance))
            .expect("the system has no thread left")
    }

    /// Work may be due.
    pub(crate) fn kick(&self) {
        self.signal.lock().kicked = true;
        self.changed.notify_one();
    }

    /// Ends the thread after its current piece of work.
    pub(crate) fn stop(&self) {
        self.signal.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Waits for a kick; false when it is time to end.
    fn wait(&self) -> bool {
        let mut signal = self.signal.lock();
        while !signal.kicked && !signal.stopped {
            self.changed.wait(&mut signal);
        }
        signal.kicked = false;
        !signal.stopped
    }

    pub(super) fn is_collecting(&self) -> bool {
        *self.activity.lock() == Activity::Collecting
    }

    fn is_stopped(&self) -> bool {
        self.signal.lock().stopped
    }
}

fn run(maintenance: &Maintenance) {
    while maintenance.wait() {
        let result = loop {
            match maintenance.step(Work::Due) {
                Ok(true) if !maintenance.is_stopped() => {}
                result => break result,
            }
        };
        // No writer may wait for a thread that has nothing to do, or cannot do it.
        maintenance.set_activity(Activity::Other);
        // A poisoned store reports it to every later call. The next call that needs the space meets and reports any
        // other error.
        if result.is_err() && maintenance.journal.lock().is_poisoned() {
            return;
        }
    }
}
