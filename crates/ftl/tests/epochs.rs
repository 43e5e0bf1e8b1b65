//! Why records carry the epoch beside their segment's generation: a generation can be given out twice when the power
//! cut lost the header of the segment that had it first, and left records of it.

use std::sync::Arc;

use crate::harness::{SEGMENT_BYTES, format};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{Ftl, Lba, Op, Options, SECTOR, Stream};

const BYTES: usize = 4 << 20;
/// Payload that fills a sector together with its record's header and entry.
const STORED: usize = SECTOR - 80;

/// Discards are off, so stale bytes stay where they are.
fn open(device: &Arc<dyn BlockDevice>) -> Ftl {
    Ftl::open(device.clone(), Options { discard: false, ..Options::default() }).unwrap()
}

fn image(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// A batch whose record takes exactly one sector of the log.
fn write(ftl: &Ftl, lba: u64, stream: Stream) {
    let mut data = [lba as u8; SECTOR];
    data[STORED..].fill(0);
    ftl.write_batch(&[Op::Write { lba: Lba(lba), data: &data }], stream).unwrap();
}

/// The segment that holds the only copy of what [`write`] wrote at `lba`, and the sector in it.
fn find(image: &[u8], lba: u64) -> (usize, usize) {
    let at = image.chunks(SECTOR).position(|sector| {
        sector.starts_with(b"LREC") && sector[SECTOR - STORED..].iter().all(|byte| *byte == lba as u8)
    });
    let at = at.expect("a record of one sector") * SECTOR;
    (at / SEGMENT_BYTES as usize, at % SEGMENT_BYTES as usize / SECTOR)
}

/// Generation and epoch in the header of `segment`.
fn life(image: &[u8], segment: usize) -> (u64, u64) {
    let header = &image[segment * SEGMENT_BYTES as usize..];
    assert!(header.starts_with(b"LSEG"));
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    (number(16), number(24))
}

#[test]
fn a_generation_given_out_twice_brings_nothing_back() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES as u64));
    format(&device);
    // The first segments were used before, but for one all are free, and the checkpoint lies behind them: so they are
    // taken in order.
    let (data, stays) = ([0xaa; 400 << 10], [0xaa; SECTOR]);
    let write_all = Op::Write { lba: Lba(64), data: &data };
    let trim_all = Op::Trim { lba: Lba(64), sectors: 800 };
    for ops in [&[write_all][..], &[trim_all, Op::Write { lba: Lba(5000), data: &stays }]] {
        let ftl = open(&device);
        ftl.write_batch(ops, Stream::Data).unwrap();
        ftl.close().unwrap();
    }
    let ftl = open(&device);
    let before = image(&*device);

    // One segment for data, one for the log; all of it is in flight to the device when the power is cut.
    write(&ftl, 1, Stream::Data);
    write(&ftl, 2, Stream::Log);
    write(&ftl, 3, Stream::Log);
    ftl.flush().unwrap();
    drop(ftl);
    let flushing = image(&*device);
    let (data, _) = find(&flushing, 1);
    let (log, sector) = find(&flushing, 3);
    assert_eq!(sector, 2, "behind the header and the other batch");
    // The cut loses the whole data segment, and the header of the other one.
    for (segment, len) in [(data, SEGMENT_BYTES as usize), (log, SECTOR)] {
        let at = segment * SEGMENT_BYTES as usize;
        device.write_at(at as u64, &before[at..at + len]).unwrap();
    }

    // The checkpoint of recovery gets the generation of the lost data segment, and so on.
    let ftl = open(&device);
    write(&ftl, 4, Stream::Log);
    ftl.flush().unwrap();
    write(&ftl, 5, Stream::Data);
    ftl.flush().unwrap();
    drop(ftl);
    let now = image(&*device);
    assert_eq!(find(&now, 4), (log, 1), "the segment is used again");
    assert_eq!(find(&now, 3), (log, 2), "and the stale batch lies where the next would");
    let (old, new) = (life(&flushing, log), life(&now, log));
    assert!(old.0 == new.0 && old.1 < new.1, "same generation, later epoch: {old:?} {new:?}");

    let ftl = open(&device);
    for (lba, expected) in [(1, 0), (2, 0), (3, 0), (4, 4), (5, 5)] {
        let mut found = [0xee; SECTOR];
        ftl.read(Lba(lba), &mut found).unwrap();
        assert_eq!(found[0], expected, "sector {lba}");
    }
}
