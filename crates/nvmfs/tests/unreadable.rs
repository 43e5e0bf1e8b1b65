//! A device that cannot be read for a while: what does not need it goes on.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use lacuna_device::{
    AlignedBuf, BlockDevice, DeviceStats, Error as DeviceError, Geometry, MemDevice, Result as DeviceResult,
};
use lacuna_nvmfs::{
    FormatOptions, Ino, Nvmfs, Options,
    posix::{Caller, Posix, WriteOptions},
};

#[derive(Clone)]
struct Unreadable {
    inner: Arc<MemDevice>,
    fails: Arc<AtomicBool>,
}

impl Unreadable {
    fn may_be_read(&self) -> DeviceResult<()> {
        match self.fails.load(SeqCst) {
            true => Err(DeviceError::io(self.name(), std::io::Error::other("unreadable for now"))),
            false => Ok(()),
        }
    }
}

impl BlockDevice for Unreadable {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> DeviceResult<()> {
        self.may_be_read()?;
        self.inner.read_at(offset, buf)
    }

    fn read_many(&self, reads: &mut [(u64, AlignedBuf)]) -> DeviceResult<()> {
        self.may_be_read()?;
        self.inner.read_many(reads)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        self.inner.write_at(offset, data)
    }

    fn sync(&self) -> DeviceResult<()> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

const FILES: u64 = 6000;

fn file(fs: &Posix, number: u64) -> Ino {
    fs.lookup(Ino::ROOT, format!("file {number}").as_bytes()).unwrap().ino
}

/// Times of two files wait to be stored, and the leaf of the map that one's inode is in is not in memory any
/// more, when the device cannot be read.
#[test]
fn data_are_synced_though_times_cannot_be_stored() {
    let inner = Arc::new(MemDevice::new(128 << 20));
    let device = Unreadable { inner, fails: Arc::default() };
    Nvmfs::format(Arc::new(device.clone()), &FormatOptions::default()).unwrap();
    let mut options = Options { access_times: false, ..Options::default() };
    options.ftl.background = false;
    options.ftl.map_memory = Some(64 << 10);
    let place = Nvmfs::open(Arc::new(device.clone()), options).unwrap();
    let fs = place.posix();
    for number in 0..FILES {
        let name = format!("file {number}");
        let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Caller::default()).unwrap().ino;
        fs.write(ino, 0, &[1; 512], WriteOptions::default()).unwrap();
        fs.release(ino).unwrap();
    }
    fs.sync().unwrap();
    place.ftl().checkpoint().unwrap(); // what is not changed any more may leave the memory
    let [first, last] = [file(&fs, 0), file(&fs, FILES - 1)];
    fs.write(first, 0, &[2; 512], WriteOptions::default()).unwrap();
    (1000..FILES).for_each(|number| assert_ne!(file(&fs, number), first));

    type Sync = fn(&Posix, Ino) -> lacuna_nvmfs::Result<()>;
    let syncs: [(&str, Sync); 2] = [("fsync", |fs, ino| fs.fsync(ino, false)), ("sync", |fs, _| fs.sync())];
    for (what, sync) in syncs {
        fs.write(last, 0, &[2; 512], WriteOptions::default()).unwrap();
        device.fails.store(true, SeqCst);
        let flushes = place.ftl().stats().flushes;
        assert!(sync(&fs, first).is_err(), "{what}: nothing had to be read");
        assert!(place.ftl().stats().flushes > flushes, "{what} left the data where they were");
        device.fails.store(false, SeqCst);
    }
    fs.sync().unwrap();
}
