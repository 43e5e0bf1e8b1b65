//! Requests that are under way at once, on mounts in this process: direct writes to one file while the device holds a
//! sync up.

use std::{
    fs::OpenOptions,
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::mounted::{mounted_of, transports};
use lacuna_device::{BlockDevice, DeviceStats, Geometry, MemDevice, Result};
use lacuna_nvmfs::{FormatOptions, Nvmfs};
use parking_lot::{Condvar, Mutex};

/// For what must happen, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: usize = 4096;

/// A device in memory whose syncs can be held up.
pub(crate) struct Gated {
    inner: MemDevice,
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gated {
    pub(crate) fn formatted() -> Arc<Gated> {
        let inner = MemDevice::new(128 << 20);
        let gated = Arc::new(Gated { inner, is_shut: Mutex::new(false), opened: Condvar::new() });
        let device: Arc<dyn BlockDevice> = gated.clone();
        Nvmfs::format(device, &FormatOptions::default()).expect("formats");
        gated
    }

    /// Holds all syncs up until the answer is dropped.
    pub(crate) fn shut(&self) -> Shut<'_> {
        *self.is_shut.lock() = true;
        Shut(self)
    }
}

pub(crate) struct Shut<'a>(&'a Gated);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        *self.0.is_shut.lock() = false;
        self.0.opened.notify_all();
    }
}

impl BlockDevice for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        "gated device"
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        let mut is_shut = self.is_shut.lock();
        self.opened.wait_while(&mut is_shut, |is_shut| *is_shut);
        drop(is_shut);
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

#[test]
fn direct_writes_to_one_file_are_under_way_at_once() {
    const WRITERS: u64 = 3;
    for transport in transports() {
        let gated = Gated::formatted();
        mounted_of(gated.clone(), transport, &|dir, service| {
            let path = dir.join("file");
            std::fs::write(&path, vec![1; WRITERS as usize * PAGE]).expect("writes");
            let flags = libc::O_DIRECT | libc::O_DSYNC;
            let file = OpenOptions::new().write(true).custom_flags(flags).open(&path).expect("opens");
            // Each has come when it begins to wait for its sync.
            let come = || service.counters().snapshot().syncs;
            let before = come();
            let shut = gated.shut();
            let are_together = thread::scope(|scope| {
                for at in 0..WRITERS {
                    let file = &file;
                    scope.spawn(move || file.write_all_at(&[2; PAGE], at * PAGE as u64).expect("writes"));
                }
                let end = Instant::now() + PATIENCE;
                while come() - before < WRITERS && Instant::now() < end {
                    thread::sleep(Duration::from_millis(1));
                }
                let are_together = come() - before == WRITERS;
                drop(shut);
                are_together
            });
            assert!(are_together, "{}: one waits for another", transport.name());
        });
    }
}
