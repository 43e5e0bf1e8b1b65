//! A store file that waits where its file system has no space.
//!
//! A store file has holes, so a write may need space that the file system below has not got any more. That is no failure
//! of the device: nothing is lost as long as the bytes are in memory, and space may come back. So such a write waits and
//! is tried again, as on a thin pool that queues, and the layer above takes on nothing more meanwhile.
//! So a store whose host stays full cannot be closed, because closing waits for its last writes, until somebody calls
//! [`BlockDevice::stop_waiting`]. Then the writes fail, and the store stops as by a power cut: what was acknowledged as
//! durable survives.
//!
//! 1. *A write that waits has not returned*, and its end has not been reported: a sync owes it nothing, and what a power
//!    cut does to it is covered by the contract of every write in flight.
//! 2. *It is tried again as a whole.* What an attempt has written in part is written again with the same bytes.
//! 3. *Whoever begins a write without waiting for it waits for nothing here*: a thread of its own tries again. All writes
//!    have ended when the device is dropped.
//! 4. Only [`Error::Full`] is waited for, and only by writes.
//! 5. *Waiting is over for good once it was stopped.* A write is tried once more after that before it fails.
//! 6. *While a store is being opened, waiting has a bound.* Nothing was acknowledged yet, and whoever opens it shall be told
//!    instead of waiting without a word. A write that is waiting when opening ends goes on waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{AlignedBuf, BlockDevice, DeviceStats, Error, Filled, Geometry, Result, WriteDone};

/// How long to wait before a write is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a write waits while a store is being opened.
const PATIENCE_AT_OPEN: Duration = Duration::from_secs(3);

/// See the module.
pub struct Patient {
    device: Arc<dyn BlockDevice>,
    waiting: Arc<Waiting>,
    retries: Option<Sender<Retry>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Waiting {
    /// How many writes wait.
    writes: AtomicUsize,
    /// By invariant 5.
    is_over: AtomicBool,
    /// By invariant 6.
    is_opening: AtomicBool,
}

impl Waiting {
    /// Tries `write`, after a pause, until it ends otherwise than for want of space.
    fn until_there_is_space(&self, mut write: impl FnMut() -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        loop {
            let is_late = self.is_opening.load(Ordering::Acquire) && begun.elapsed() >= PATIENCE_AT_OPEN;
            let is_last = is_late || self.is_over.load(Ordering::Acquire);
            if !is_last {
                thread::sleep(PAUSE);
            }
            match write() {
                Err(Error::Full { .. }) if !is_last => {}
                outcome => return outcome,
            }
        }
    }
}

/// A write that nobody waits for, and that found no space.
struct Retry {
    offset: u64,
    data: Filled,
    done: WriteDone,
}

impl Patient {
    /// Writes to `device` wait for space; for a few seconds only until [`Patient::has_opened`].
    ///
    /// # Errors
    /// When the thread that tries again cannot be started.
    pub fn new(device: Arc<dyn BlockDevice>) -> Result<Patient> {
        let (retries, begun) = channel();
        let waiting = Arc::new(Waiting { is_opening: true.into(), ..Waiting::default() });
        let (below, counter) = (Arc::clone(&device), Arc::clone(&waiting));
        let thread = thread::Builder::new()
            .name("patient".into())
            .spawn(move || try_again(&*below, &counter, &begun))
            .map_err(|error| Error::io(format!("{}: thread for retries", device.name()), error))?;
        Ok(Patient { device, waiting, retries: Some(retries), thread: Some(thread) })
    }

    /// The store is open: from now on writes wait as long as it takes.
    pub fn has_opened(&self) {
        self.waiting.is_opening.store(false, Ordering::Release);
    }

    fn wait_for_space(&self, mut write: impl FnMut() -> Result<()>) -> Result<()> {
        match write() {
            Err(Error::Full { .. }) => {}
            outcome => return outcome,
        }
        self.waiting.writes.fetch_add(1, Ordering::Relaxed);
        let outcome = self.waiting.until_there_is_space(write);
        self.waiting.writes.fetch_sub(1, Ordering::Relaxed);
        outcome
    }
}

/// Invariant 3. The writes are counted in `waiting` already.
fn try_again(device: &dyn BlockDevice, waiting: &Waiting, begun: &Receiver<Retry>) {
    for Retry { offset, data, done } in begun {
        let outcome = waiting.until_there_is_space(|| device.write_at(offset, &data));
        waiting.writes.fetch_sub(1, Ordering::Relaxed);
        done(outcome, data);
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        // The thread ends with the last write in flight, which holds the other senders.
        self.retries = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl BlockDevice for Patient {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn grow(&self, capacity_bytes: u64) -> Result<Geometry> {
        self.device.grow(capacity_bytes)
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn is_sparse(&self) -> bool {
        self.device.is_sparse()
    }

    fn waits_for_space(&self) -> bool {
        self.waiting.writes.load(Ordering::Relaxed) > 0
    }

    fn stop_waiting(&self) {
        self.waiting.is_over.store(true, Ordering::Release);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.wait_for_space(|| self.device.write_at(offset, data))
    }

    fn write_if_space(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.device.write_at(offset, data)
    }

    fn read_many(&self, reads: &mut [(u64, AlignedBuf)]) -> Result<()> {
        self.device.read_many(reads)
    }

    fn write_many(&self, writes: &[(u64, Filled)]) -> Result<()> {
        self.wait_for_space(|| self.device.write_many(writes))
    }

    fn submit_write(&self, offset: u64, data: Filled, done: WriteDone) {
        let retries = self.retries.clone().expect("it is there until the device is dropped");
        let waiting = Arc::clone(&self.waiting);
        let ended: WriteDone = Box::new(move |outcome, data| match outcome {
            Err(Error::Full { .. }) => {
                waiting.writes.fetch_add(1, Ordering::Relaxed);
                retries.send(Retry { offset, data, done }).expect("the thread lives as long as a sender");
            }
            outcome => done(outcome, data),
        });
        self.device.submit_write(offset, data, ended);
    }

    fn io_engine(&self) -> Result<&'static str> {
        self.device.io_engine()
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }
}
