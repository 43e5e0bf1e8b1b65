//! The parts of parking_lot that the crate uses, over shuttle. A thread that panics while it holds a lock ends the
//! test, so poisoned locks are never seen.

use std::ops::{Deref, DerefMut};

use shuttle::sync as inner;
pub(crate) use shuttle::{
    sync::{RwLockReadGuard, atomic},
    thread,
};

const ALIVE: &str = "a thread panicked with the lock held";
const HELD: &str = "a guard gives its lock up only in calls that take it back";

#[derive(Default)]
pub(crate) struct Mutex<T>(inner::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// None while `unlocked` or a condition's `wait` runs.
    held: Option<inner::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(inner::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, held: Some(self.0.lock().expect(ALIVE)) }
    }
}

impl<T> MutexGuard<'_, T> {
    pub(crate) fn unlocked<U>(guard: &mut Self, call: impl FnOnce() -> U) -> U {
        guard.held = None;
        let result = call();
        guard.held = Some(guard.mutex.0.lock().expect(ALIVE));
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect(HELD)
    }
}

pub(crate) struct TimedOut;

impl TimedOut {
    pub(crate) fn timed_out(&self) -> bool {
        true
    }
}

#[derive(Default)]
pub(crate) struct Condvar(inner::Condvar);

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect(HELD);
        guard.held = Some(self.0.wait(held).expect(ALIVE));
    }

    /// There is no clock here: the other threads run once, and the time is up.
    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _until: std::time::Instant,
    ) -> TimedOut {
        MutexGuard::unlocked(guard, thread::yield_now);
        TimedOut
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Shuttle has no upgradable readers: here upgradable readers and writers hold `turn`.
#[derive(Default)]
pub(crate) struct RwLock<T> {
    turn: inner::Mutex<()>,
    value: inner::RwLock<T>,
}

pub(crate) struct RwLockWriteGuard<'a, T> {
    value: inner::RwLockWriteGuard<'a, T>,
    _turn: inner::MutexGuard<'a, ()>,
}

pub(crate) struct RwLockUpgradableReadGuard<'a, T> {
    lock: &'a RwLock<T>,
    value: inner::RwLockReadGuard<'a, T>,
    turn: inner::MutexGuard<'a, ()>,
}

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> RwLock<T> {
        RwLock { turn: inner::Mutex::default(), value: inner::RwLock::new(value) }
    }

    pub(crate) fn read(&self) -> inner::RwLockReadGuard<'_, T> {
        self.value.read().expect(ALIVE)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        let turn = self.turn.lock().expect(ALIVE);
        RwLockWriteGuard { value: self.value.write().expect(ALIVE), _turn: turn }
    }

    pub(crate) fn upgradable_read(&self) -> RwLockUpgradableReadGuard<'_, T> {
        let turn = self.turn.lock().expect(ALIVE);
        RwLockUpgradableReadGuard { lock: self, value: self.read(), turn }
    }
}

impl<'a, T> RwLockUpgradableReadGuard<'a, T> {
    /// No thread writes between the two locks: writing takes the turn.
    pub(crate) fn upgrade(guard: Self) -> RwLockWriteGuard<'a, T> {
        let RwLockUpgradableReadGuard { lock, value, turn } = guard;
        drop(value);
        RwLockWriteGuard { value: lock.value.write().expect(ALIVE), _turn: turn }
    }
}

impl<T> Deref for RwLockUpgradableReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// A thread that sets or reads it first yields to the others.
pub(crate) struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    before: atomic::AtomicBool,
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock { value: std::sync::OnceLock::new(), before: atomic::AtomicBool::new(false) }
    }
}

impl<T> OnceLock<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        self.before.load(atomic::Ordering::SeqCst);
        self.value.get()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        self.before.load(atomic::Ordering::SeqCst);
        self.value.set(value)
    }
}
