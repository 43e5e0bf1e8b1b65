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

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{AlignedBuf, BlockDevice, DeviceStats, Error, Filled, Geometry, Result, WriteDone};

/// How long to wait before a write is tried again.
const PAUSE: Duration = Duration::from_millis(100);

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
}

impl Waiting {
    /// Tries `write`, after a pause, until it ends otherwise than for want of space.
    fn until_there_is_space(&self, mut write: impl FnMut() -> Result<()>) -> Result<()> {
        loop {
            let is_last = self.is_over.load(Ordering::Acquire);
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
    /// Writes to `device` wait for space.
    ///
    /// # Errors
    /// When the thread that tries again cannot be started.
    pub fn new(device: Arc<dyn BlockDevice>) -> Result<Patient> {
        let (retries, begun) = channel();
        let waiting = Arc::<Waiting>::default();
        let (below, counter) = (Arc::clone(&device), Arc::clone(&waiting));
        let thread = thread::Builder::new()
            .name("patient".into())
            .spawn(move || try_again(&*below, &counter, &begun))
            .map_err(|error| Error::io(format!("{}: thread for retries", device.name()), error))?;
        Ok(Patient { device, waiting, retries: Some(retries), thread: Some(thread) })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    /// A device in memory that has no space while `is_full`.
    struct Host {
        below: MemDevice,
        is_full: AtomicBool,
        attempts: AtomicUsize,
    }

    impl Host {
        fn set_full(&self, is_full: bool) {
            self.is_full.store(is_full, Ordering::SeqCst);
        }
    }

    impl BlockDevice for Host {
        fn geometry(&self) -> Geometry {
            self.below.geometry()
        }

        fn name(&self) -> &str {
            "host"
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.below.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
            self.attempts.fetch_add(1, Ordering::SeqCst);
            match self.is_full.load(Ordering::SeqCst) {
                // Torn, as a file system may leave it.
                true => {
                    self.below.write_at(offset, &data[..512])?;
                    Err(Error::Full { what: "host".into() })
                }
                false => self.below.write_at(offset, data),
            }
        }

        fn sync(&self) -> Result<()> {
            self.below.sync()
        }

        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.below.discard(offset, len)
        }

        fn stats(&self) -> DeviceStats {
            self.below.stats()
        }
    }

    fn full() -> (Arc<Host>, Patient) {
        let host = Host {
            below: MemDevice::new(1 << 20),
            is_full: AtomicBool::new(true),
            attempts: AtomicUsize::new(0),
        };
        let host = Arc::new(host);
        let patient = Patient::new(Arc::clone(&host) as Arc<dyn BlockDevice>).unwrap();
        (host, patient)
    }

    fn filled(byte: u8) -> Filled {
        let mut buf = AlignedBuf::zeroed(4096);
        buf.fill(byte);
        Filled::from(buf)
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_write_waits_until_its_host_has_space() {
        let (host, patient) = full();
        assert!(matches!(patient.write_if_space(0, &filled(9)), Err(Error::Full { .. })));
        assert!(!patient.waits_for_space());
        thread::scope(|scope| {
            let one = scope.spawn(|| patient.write_at(0, &filled(1)));
            let many = scope.spawn(|| patient.write_many(&[(4096, filled(2)), (8192, filled(3))]));
            wait_until(|| host.attempts.load(Ordering::SeqCst) >= 6);
            assert!(patient.waits_for_space() && !one.is_finished() && !many.is_finished());
            host.set_full(false);
            one.join().unwrap().unwrap();
            many.join().unwrap().unwrap();
        });
        assert!(!patient.waits_for_space());
        for (offset, byte) in [(0, 1), (4096, 2), (8192, 3)] {
            let mut back = vec![0; 4096];
            patient.read_at(offset, &mut back).unwrap();
            assert!(back.iter().all(|found| *found == byte), "{byte}");
        }
    }

    #[test]
    fn a_write_that_nobody_waits_for_is_tried_again_elsewhere() {
        let (host, patient) = full();
        let (sender, ended) = channel();
        for byte in 0..4 {
            let sender = sender.clone();
            let done: WriteDone = Box::new(move |outcome, data| sender.send((outcome, data[0])).unwrap());
            patient.submit_write(u64::from(byte) * 4096, filled(byte), done);
        }
        wait_until(|| host.attempts.load(Ordering::SeqCst) >= 6);
        assert!(patient.waits_for_space());
        assert!(ended.try_recv().is_err(), "none has ended");
        host.set_full(false);
        for _ in 0..4 {
            let (outcome, byte) = ended.recv().unwrap();
            outcome.unwrap();
            let mut back = vec![0; 4096];
            patient.read_at(u64::from(byte) * 4096, &mut back).unwrap();
            assert!(back.iter().all(|found| *found == byte), "{byte}");
        }
        assert!(!patient.waits_for_space());
    }

    #[test]
    fn the_device_ends_with_its_last_write() {
        let (host, patient) = full();
        let (sender, ended) = channel();
        patient.submit_write(0, filled(1), Box::new(move |outcome, _| sender.send(outcome).unwrap()));
        wait_until(|| patient.waits_for_space());
        let later = Arc::clone(&host);
        let space = thread::spawn(move || {
            thread::sleep(2 * PAUSE);
            later.set_full(false);
        });
        drop(patient);
        ended.try_recv().expect("it has ended").unwrap();
        space.join().unwrap();
    }

    #[test]
    fn waiting_ends_when_it_is_stopped() {
        let (host, patient) = full();
        let (sender, ended) = channel();
        patient.submit_write(0, filled(1), Box::new(move |outcome, _| sender.send(outcome).unwrap()));
        thread::scope(|scope| {
            let one = scope.spawn(|| patient.write_at(4096, &filled(2)));
            let many = scope.spawn(|| patient.write_many(&[(8192, filled(3))]));
            wait_until(|| patient.waiting.writes.load(Ordering::Relaxed) == 3);
            patient.stop_waiting();
            for outcome in [one.join().unwrap(), many.join().unwrap(), ended.recv().unwrap()] {
                assert!(matches!(outcome, Err(Error::Full { .. })), "{outcome:?}");
            }
        });
        assert!(!patient.waits_for_space());
        assert!(matches!(patient.write_at(0, &filled(1)), Err(Error::Full { .. })));
        host.set_full(false);
        patient.write_at(0, &filled(1)).unwrap();
    }

    #[test]
    fn other_failures_are_reported_at_once() {
        let (host, patient) = full();
        host.set_full(false);
        assert!(matches!(patient.write_at(1 << 20, &filled(1)), Err(Error::BadRange { .. })));
        assert!(!patient.waits_for_space());
    }
}
