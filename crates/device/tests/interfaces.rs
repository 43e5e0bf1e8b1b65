//! What the interfaces do by themselves, and the arithmetic of their ranges.

use std::sync::mpsc::channel;

use lacuna_device::{
    AlignedBuf, AtomicWrites, BatchOp, BlockDevice, DeviceStats, Error, FileId, FileProps, Filled, Geometry,
    GrowingGeometry, MemDevice, MemVfs, Result, StreamHint, Vfs,
};

/// A device that has only what it must have.
struct Plain(MemDevice);

impl BlockDevice for Plain {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn name(&self) -> &str {
        "plain"
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write_at(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.0.stats()
    }
}

fn filled(byte: u8) -> Filled {
    let mut buf = AlignedBuf::zeroed(512);
    buf.fill(byte);
    Filled::from(buf)
}

#[test]
fn a_device_does_one_by_one_what_it_has_no_better_way_for() {
    let device = Plain(MemDevice::new(8192));
    assert_eq!(device.grow(16384).unwrap(), device.geometry());
    assert!(!device.is_sparse() && !device.waits_for_space());
    assert_eq!(device.io_engine().unwrap(), "one by one");
    device.write_if_space(0, &filled(1)).unwrap();
    device.write_many(&[(512, filled(2)), (1024, filled(3))]).unwrap();
    assert!(device.write_many(&[(1536, filled(9)), (8192, filled(9))]).is_err());
    let (sender, ended) = channel();
    device.submit_write(
        1536,
        filled(4),
        Box::new(move |outcome, data| sender.send((outcome, data[0])).unwrap()),
    );
    let (outcome, byte) = ended.try_recv().expect("it has ended");
    outcome.unwrap();
    assert_eq!(byte, 4);
    let mut reads = [0, 512, 1024, 1536].map(|offset| (offset, AlignedBuf::zeroed(512)));
    device.read_many(&mut reads).unwrap();
    assert_eq!(reads.map(|(_, buf)| buf[511]), [1, 2, 3, 4]);
    assert!(device.read_many(&mut [(8192, AlignedBuf::zeroed(512))]).is_err());
}

#[test]
fn requests_are_whole_blocks_within_the_device() {
    let geometry = Geometry { capacity_bytes: 1 << 20, block_bytes: 4096, erase_bytes: 0 };
    for (offset, len, is_good) in [
        (0, 0, true),
        (0, 1 << 20, true),
        (1 << 20, 0, true),
        (4096, 8192, true),
        (512, 4096, false),
        (4096, 512, false),
        (1 << 20, 4096, false),
        (4096, 1 << 20, false),
        (u64::MAX - 4095, 4096, false),
    ] {
        let checked = geometry.check_range("it", offset, len);
        assert_eq!(checked.is_ok(), is_good, "{offset}+{len}");
        let is_named = |error| error == format!("it: bad range: offset {offset}, length {len}");
        assert!(checked.err().is_none_or(|error| is_named(error.to_string())));
    }
}

#[test]
fn a_capacity_grows_by_whole_blocks_and_never_shrinks() {
    let first = Geometry { capacity_bytes: 8192, block_bytes: 4096, erase_bytes: 1 << 20 };
    let growing = GrowingGeometry::new(first);
    for (bytes, capacity_bytes) in [(0, 8192), (12287, 8192), (12288, 12288), (20000, 16384), (4096, 16384)] {
        assert_eq!(growing.grow(bytes), Geometry { capacity_bytes, ..first }, "{bytes}");
        assert_eq!(growing.get().capacity_bytes, capacity_bytes);
    }
}

#[test]
fn ranges_of_files_end_at_the_largest_offset() {
    let props = MemVfs::new().props();
    let end = i64::MAX as u64 / 512 * 512;
    for (offset, len, is_good) in [
        (0, 0, true),
        (512, 1024, true),
        (end, 0, true),
        (end - 512, 512, true),
        (end, 512, false),
        (100, 512, false),
        (512, 100, false),
        (u64::MAX - 511, 512, false),
    ] {
        assert_eq!(props.check_range("it", offset, len).is_ok(), is_good, "{offset}+{len}");
    }
}

#[test]
fn atomic_writes_are_powers_of_two_at_multiples_of_their_length() {
    let writes = AtomicWrites { bytes_min: 1024, bytes_max: 8192 };
    for (offset, len, is_possible) in [
        (0, 1024, true),
        (1024, 1024, true),
        (8192, 8192, true),
        (512, 1024, false),
        (4096, 8192, false),
        (0, 512, false),
        (0, 16384, false),
        (0, 3072, false),
        (0, 0, false),
    ] {
        assert_eq!(writes.can_write(offset, len), is_possible, "{len} at {offset}");
    }
}

#[test]
fn operations_of_a_batch_tell_what_they_change() {
    let write = BatchOp::Write { file: FileId(3), offset: 512, data: &[0; 1024] };
    let punch = BatchOp::Punch { file: FileId(4), offset: 1024, len: 4096 };
    assert_eq!((write.file(), write.range(), write.data_bytes()), (FileId(3), (512, 1024), 1024));
    assert_eq!((punch.file(), punch.range(), punch.data_bytes()), (FileId(4), (1024, 4096), 0));
}

#[test]
fn files_and_vfs_promise_no_more_than_they_say() {
    let (one, other) = (MemVfs::new(), MemVfs::new());
    assert_eq!(one.identity(), one.identity());
    assert_ne!(one.identity(), other.identity());
    assert_eq!((one.free_bytes().unwrap(), one.log_bytes_max()), (None, None));
    let file = one.create("a", StreamHint::Data).unwrap();
    assert!(file.is_empty().unwrap());
    let refused = file.write_atomic(512, &[0; 1024]).unwrap_err();
    assert_eq!(refused.to_string(), "write of 1024 bytes at byte 512: not supported: atomic write");
    file.set_len(512).unwrap();
    assert!(!file.is_empty().unwrap());
    let FileProps { atomic_bytes_max, .. } = one.props();
    let data = vec![1; atomic_bytes_max as usize + 512];
    let write =
        |len: usize| one.write_batch(&[BatchOp::Write { file: file.id(), offset: 0, data: &data[..len] }]);
    let refused = write(data.len()).unwrap_err();
    assert!(matches!(refused, Error::BatchTooLarge { bytes, .. } if bytes == data.len() as u64), "{refused}");
    assert_eq!(file.len().unwrap(), 512);
    write(data.len() - 512).unwrap();
    assert_eq!(file.len().unwrap(), atomic_bytes_max);
}

#[test]
fn files_in_memory_count_their_traffic() {
    let vfs = MemVfs::new();
    let file = vfs.create("a", StreamHint::Data).unwrap();
    file.write_at(0, &[1; 1024]).unwrap();
    file.write_at(4096, &[1; 512]).unwrap();
    file.read_at(0, &mut [0; 2048]).unwrap();
    file.read_at(0, &mut [0; 512]).unwrap();
    file.sync().unwrap();
    vfs.sync().unwrap();
    vfs.sync().unwrap();
    let stats = vfs.stats().unwrap();
    assert_eq!((stats.device_written_bytes, stats.device_read_bytes, stats.device_syncs), (1536, 2560, 3));
    assert_eq!((stats.allocated_bytes, stats.store_bytes), (1536, 1536));
    let other = vfs.create("b", StreamHint::Data).unwrap();
    assert_ne!(other.id(), file.id());
    assert_eq!((file.props(), vfs.name()), (vfs.props(), "memory"));
    // What is cut off is gone.
    file.set_len(512).unwrap();
    file.set_len(8192).unwrap();
    let mut back = [9; 1024];
    file.read_at(0, &mut back).unwrap();
    assert_eq!((back[511], back[512], vfs.stats().unwrap().allocated_bytes), (1, 0, 512));
    vfs.rename("b", "a").unwrap();
    let gone = vfs.write_batch(&[BatchOp::Punch { file: file.id(), offset: 0, len: 512 }]);
    assert!(matches!(gone, Err(Error::NotFound { .. })), "it was replaced");
}
