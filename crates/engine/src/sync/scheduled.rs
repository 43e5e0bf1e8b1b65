//! The interfaces of parking_lot that the crate uses, over shuttle. As there, a lock that a panicking thread releases
//! is like any other.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, LockResult, PoisonError},
    time::{Duration, Instant},
};

use parking_lot::{
    RawRwLock,
    lock_api::{ArcRwLockReadGuard, ArcRwLockWriteGuard},
};
use shuttle::sync as inner;
pub(crate) use shuttle::{
    sync::{atomic, mpsc},
    thread,
};

const HELD: &str = "a guard gives its lock up only while a condition's wait runs";

/// The locked value, even if a thread panicked with the lock held.
fn locked<G>(outcome: LockResult<G>) -> G {
    outcome.unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
pub(crate) struct Mutex<T>(inner::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// None while a condition's `wait` runs.
    held: Option<inner::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(inner::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, held: Some(locked(self.0.lock())) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        locked(self.0.get_mut())
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
        guard.held = Some(locked(self.0.wait(held)));
    }

    /// There is no clock here: the other threads get a turn, then the wait times out.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _until: Instant) -> TimedOut {
        guard.held = None;
        thread::yield_now();
        guard.held = Some(locked(guard.mutex.0.lock()));
        TimedOut
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) -> TimedOut {
        self.wait_until(guard, Instant::now())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[derive(Default)]
pub(crate) struct RwLock<T>(inner::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn read(&self) -> inner::RwLockReadGuard<'_, T> {
        locked(self.0.read())
    }

    pub(crate) fn write(&self) -> inner::RwLockWriteGuard<'_, T> {
        locked(self.0.write())
    }
}

/// Shuttle's guards do not keep their lock alive. Here the scheduler sees the gate, behind which the real lock is
/// always free.
pub(crate) struct Latch<T> {
    value: Arc<parking_lot::RwLock<T>>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    users: inner::Mutex<Users>,
    changed: inner::Condvar,
}

#[derive(Default)]
struct Users {
    readers: usize,
    is_written: bool,
}

impl Gate {
    fn enter(&self, is_free: impl Fn(&Users) -> bool, enter: impl FnOnce(&mut Users)) {
        let mut users = locked(self.users.lock());
        while !is_free(&users) {
            users = locked(self.changed.wait(users));
        }
        enter(&mut users);
    }

    fn leave(&self, leave: impl FnOnce(&mut Users)) {
        let mut users = locked(self.users.lock());
        leave(&mut users);
        drop(users);
        self.changed.notify_all();
    }
}

pub(crate) struct LatchRead<T> {
    /// Until it is dropped.
    value: Option<ArcRwLockReadGuard<RawRwLock, T>>,
    gate: Arc<Gate>,
}

pub(crate) struct LatchWrite<T> {
    /// Until it is dropped, or downgraded.
    value: Option<ArcRwLockWriteGuard<RawRwLock, T>>,
    gate: Arc<Gate>,
}

impl<T> Latch<T> {
    pub(crate) fn new(value: T) -> Latch<T> {
        Latch { value: Arc::new(parking_lot::RwLock::new(value)), gate: Arc::default() }
    }

    pub(crate) fn read(&self) -> LatchRead<T> {
        self.gate.enter(|users| !users.is_written, |users| users.readers += 1);
        LatchRead { value: self.value.try_read_arc(), gate: self.gate.clone() }
    }

    pub(crate) fn try_read(&self) -> Option<LatchRead<T>> {
        let mut users = locked(self.gate.users.lock());
        if users.is_written {
            return None;
        }
        users.readers += 1;
        drop(users);
        Some(LatchRead { value: self.value.try_read_arc(), gate: self.gate.clone() })
    }

    pub(crate) fn write(&self) -> LatchWrite<T> {
        self.gate.enter(|users| !users.is_written && users.readers == 0, |users| users.is_written = true);
        LatchWrite { value: self.value.try_write_arc(), gate: self.gate.clone() }
    }

    /// Here is no time, and no thread waits for ever that should not: that would be a deadlock.
    pub(crate) fn write_within(&self, _: Duration) -> Option<LatchWrite<T>> {
        Some(self.write())
    }

    pub(crate) fn downgrade(mut guard: LatchWrite<T>) -> LatchRead<T> {
        let value = guard.value.take().map(ArcRwLockWriteGuard::downgrade);
        let gate = guard.gate.clone();
        gate.leave(|users| *users = Users { readers: 1, is_written: false });
        LatchRead { value, gate }
    }

    /// The value, where no guard is left.
    pub(crate) fn into_inner(self) -> Option<T> {
        Arc::try_unwrap(self.value).ok().map(parking_lot::RwLock::into_inner)
    }
}

impl<T> Deref for LatchRead<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect(HELD)
    }
}

impl<T> Deref for LatchWrite<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for LatchWrite<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect(HELD)
    }
}

impl<T> Drop for LatchRead<T> {
    fn drop(&mut self) {
        drop(self.value.take());
        self.gate.leave(|users| users.readers -= 1);
    }
}

impl<T> Drop for LatchWrite<T> {
    fn drop(&mut self) {
        // Not of one that was downgraded.
        if self.value.take().is_some() {
            self.gate.leave(|users| users.is_written = false);
        }
    }
}
