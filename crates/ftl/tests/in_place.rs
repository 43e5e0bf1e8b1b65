//! Reads that need no memory but the caller's.

use std::{iter, sync::Arc};

use crate::harness::{assert_sound, open};
use lacuna_device::{AlignedBuf, BlockDevice, DeviceStats, Geometry, Result};
use lacuna_ftl::{Error, FormatOptions, Ftl, Lba, Op, SECTOR, Stream};
use lacuna_sim::{SeededRng, SimDevice, unreadable};
use parking_lot::Mutex;

const CHUNK: usize = 16 << 10;
const CHUNK_SECTORS: u64 = (CHUNK / SECTOR) as u64;
const DEVICE_BYTES: usize = 32 << 20;
/// Enough chunks for their payload to be aligned.
const CHUNKS: usize = 8;

/// Notes where in memory reads went, and how long they were.
struct Noted {
    inner: Arc<SimDevice>,
    reads: Mutex<Vec<(usize, usize)>>,
}

impl BlockDevice for Noted {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        "noted device"
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reads.lock().push((buf.as_ptr().addr(), buf.len()));
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

/// A device, and on it a store with [`CHUNKS`] of noise.
fn store() -> (Arc<Noted>, Ftl, Vec<u8>) {
    let device = Arc::new(Noted { inner: SimDevice::new(DEVICE_BYTES as u64, 1), reads: Mutex::default() });
    let shared: Arc<dyn BlockDevice> = device.clone();
    let options = FormatOptions { segment_bytes: Some(1 << 20), ..FormatOptions::default() };
    Ftl::format(shared.clone(), &options).unwrap();
    let ftl = open(&shared);
    let mut data = vec![0; CHUNKS * CHUNK];
    SeededRng::new(1).fill(&mut data);
    write(&ftl, 0, &data);
    (device, ftl, data)
}

fn write(ftl: &Ftl, lba: u64, data: &[u8]) {
    ftl.write_batch(&[Op::Write { lba: Lba(lba), data }], Stream::Data).unwrap();
    ftl.flush().unwrap();
}

/// Reads into `buf`; returns whether the device filled only that memory, in one request.
fn is_in_place(device: &Noted, ftl: &Ftl, lba: u64, buf: &mut [u8]) -> bool {
    device.reads.lock().clear();
    ftl.read(Lba(lba), buf).unwrap();
    *device.reads.lock() == [(buf.as_ptr().addr(), buf.len())]
}

#[test]
fn what_lies_as_asked_is_read_to_where_it_is_wanted() {
    let (device, ftl, mut data) = store();
    for (first, chunks) in [(0, CHUNKS), (0, 1), (3, 1), (5, 3)] {
        let mut buf = AlignedBuf::zeroed(chunks * CHUNK);
        assert!(is_in_place(&device, &ftl, first as u64 * CHUNK_SECTORS, &mut buf));
        assert!(buf[..] == data[first * CHUNK..][..chunks * CHUNK]);
    }
    // Memory, length or place that does not fit.
    let mut buf = AlignedBuf::zeroed(CHUNKS * CHUNK);
    assert!(!is_in_place(&device, &ftl, 0, &mut buf[SECTOR..][..CHUNK]));
    assert!(buf[SECTOR..][..CHUNK] == data[..CHUNK]);
    for (lba, bytes) in [(0, CHUNK - SECTOR), (1, CHUNK)] {
        assert!(!is_in_place(&device, &ftl, lba, &mut buf[..bytes]));
        assert!(buf[..bytes] == data[lba as usize * SECTOR..][..bytes]);
    }
    // In the middle, a sector of another write and zeros that are not stored; then a chunk that lost its second half.
    data[2 * CHUNK..][..SECTOR].fill(7);
    write(&ftl, 2 * CHUNK_SECTORS, &data[2 * CHUNK..][..SECTOR]);
    data[6 * CHUNK..7 * CHUNK].fill(0);
    write(&ftl, 6 * CHUNK_SECTORS, &data[6 * CHUNK..7 * CHUNK]);
    data[4 * CHUNK + CHUNK / 2..5 * CHUNK].fill(0);
    let half = CHUNK_SECTORS / 2;
    let trim = Op::Trim { lba: Lba(4 * CHUNK_SECTORS + half), sectors: half };
    ftl.write_batch(&[trim], Stream::Data).unwrap();
    for (first, chunks) in [(0, CHUNKS), (0, 3), (2, 1), (4, 1), (5, 2), (6, 2)] {
        let buf = &mut buf[..chunks * CHUNK];
        assert!(!is_in_place(&device, &ftl, first as u64 * CHUNK_SECTORS, buf));
        assert!(*buf == data[first * CHUNK..][..chunks * CHUNK]);
    }
    assert_sound(&ftl);
}

#[test]
fn bytes_that_were_not_verified_are_not_seen() {
    let (device, ftl, data) = store();
    let mut all = vec![0; DEVICE_BYTES];
    device.inner.read_at(0, &mut all).unwrap();
    let found = all.windows(SECTOR).position(|window| *window == data[5 * CHUNK..][..SECTOR]);
    let chunk = found.expect("it is on the device") as u64;
    ftl.close().unwrap();
    drop(ftl);
    let unreadable = unreadable(device.inner.clone(), iter::once(chunk..chunk + 1).collect());
    let mut buf = AlignedBuf::zeroed(CHUNKS * CHUNK);
    let mut read = |device: &Arc<dyn BlockDevice>| {
        buf.fill(0xee);
        let error = open(device).read(Lba(0), &mut buf).unwrap_err();
        assert!(buf.iter().all(|byte| *byte == 0));
        error
    };
    assert!(matches!(read(&unreadable), Error::Device(_)));
    drop(unreadable);
    device.inner.flip_bit(chunk + 5000, 3);
    match read(&(device as Arc<dyn BlockDevice>)) {
        Error::Corrupt { at, .. } => assert_eq!(at, chunk),
        other => panic!("{other}"),
    }
}
