use std::{fs, path::Path, sync::Arc};

use lacuna_device::{BatchOp, BlockDevice, Error, MemDevice, MemVfs, Result, StreamHint, Vfs};
use lacuna_sim::SeededRng;

use super::*;
use crate::flash::{FlashModel, FlashOptions};

fn read(path: &Path) -> Result<Vec<TraceOp>> {
    TraceReader::open(path)?.collect()
}

/// A trace of `ops` sectors written, one by one, every tenth synced.
fn trace(path: &Path, ops: u64) -> Vec<TraceOp> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    let writer = TraceWriter::create(path, TraceDevice::source(&*device)).unwrap();
    let traced = TraceDevice::new(device, Arc::clone(&writer));
    let mut expected = Vec::new();
    for op in 0..ops {
        let offset = op % 1000 * 512;
        traced.write_at(offset, &[1; 512]).unwrap();
        expected.push(TraceOp::Write { offset, len: 512 });
        if op % 10 == 9 {
            traced.sync().unwrap();
            traced.discard(offset, 512).unwrap();
            expected.extend([TraceOp::Sync, TraceOp::Discard { offset, len: 512 }]);
        }
    }
    assert!(traced.write_at(100, &[1; 512]).is_err(), "what fails is not recorded");
    assert_eq!(writer.finish().unwrap(), expected.len() as u64);
    expected
}

#[test]
fn what_was_recorded_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    for ops in [0, 1, 4095, 4096, 10_000] {
        let path = directory.path().join(ops.to_string());
        let expected = trace(&path, ops);
        assert_eq!(read(&path).unwrap(), expected);
        let source = TraceReader::open(&path).unwrap().source();
        assert_eq!(source, TraceSource::Device { capacity_bytes: 64 << 20 });
    }
}

#[test]
fn foreign_newer_truncated_and_longer_files_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    trace(&path, 5000);
    let sound = fs::read(&path).unwrap();
    let refused = |bytes: &[u8], word: &str| {
        fs::write(&path, bytes).unwrap();
        let error = read(&path).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Corrupt { .. }), "{text}");
        assert!(text.starts_with(&path.display().to_string()) && text.contains(word), "{text}");
    };
    refused(b"dear diary", "not a Lacuna trace");
    refused(&[b"dear diary\n".repeat(1000)].concat(), "not a Lacuna trace");
    refused(b"", "not a Lacuna trace");
    let mut newer = sound.clone();
    newer[8] = 2;
    refused(&newer, "version 2");
    for kept in [63, 64, 65, 100, 4096, sound.len() - 32, sound.len() - 1] {
        refused(&sound[..kept], "truncated");
    }
    refused(&[&sound[..], b"x"].concat(), "behind the end");
    let frame = 32 + 4096 * 16;
    refused(&[&sound[..64], &sound[64 + frame..]].concat(), "frame 1 where frame 0");
    let error = TraceWriter::create(&path, TraceSource::Files).err().unwrap();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    assert!(matches!(read(&directory.path().join("none")), Err(Error::Io { .. })));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    trace(&path, 5);
    let sound = fs::read(&path).unwrap();
    for bit in 0..sound.len() * 8 {
        let mut flipped = sound.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &flipped).unwrap();
        assert!(matches!(read(&path), Err(Error::Corrupt { .. })), "bit {bit}");
    }
}

#[test]
fn files_have_addresses_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let writer = TraceWriter::create(&path, TraceSource::Files).unwrap();
    let vfs = TraceVfs::new(MemVfs::new(), Arc::clone(&writer));
    let a = vfs.create("a", StreamHint::Data).unwrap();
    let b = vfs.create("b", StreamHint::Log).unwrap();
    a.write_at(4096, &[1; 4096]).unwrap();
    b.write_at(0, &[2; 8192]).unwrap();
    vfs.write_batch(&[
        BatchOp::Write { file: b.id(), offset: 8192, data: &[3; 512] },
        BatchOp::Punch { file: a.id(), offset: 4096, len: 512 },
    ])
    .unwrap();
    b.sync().unwrap();
    b.set_len(4096).unwrap();
    vfs.rename("b", "a").unwrap();
    let renamed = vfs.open("a", StreamHint::Data).unwrap();
    renamed.write_at(512, &[4; 512]).unwrap();
    drop(renamed);
    vfs.remove("a").unwrap();
    vfs.create("b", StreamHint::Data).unwrap().write_at(0, &[5; 512]).unwrap();
    vfs.sync().unwrap();
    writer.finish().unwrap();
    let at = |file: u64, offset: u64| file * FILE_SPAN_BYTES + offset;
    let write = |file, offset, len| TraceOp::Write { offset: at(file, offset), len };
    let discard = |file, offset, len| TraceOp::Discard { offset: at(file, offset), len };
    assert_eq!(
        read(&path).unwrap(),
        [
            write(0, 4096, 4096),
            write(1, 0, 8192),
            write(1, 8192, 512),
            discard(0, 4096, 512),
            TraceOp::Sync,
            discard(1, 4096, 4608),
            discard(0, 0, 8192),
            write(1, 512, 512),
            discard(1, 0, 4096),
            write(2, 0, 512),
            TraceOp::Sync,
        ]
    );
    assert_eq!(TraceReader::open(&path).unwrap().source(), TraceSource::Files);
}

/// The same overwrites, in place and as a log that is discarded block by block, as the drive sees them.
#[test]
fn a_log_wears_less_than_overwriting_in_place() {
    let directory = tempfile::tempdir().unwrap();
    let (unit, pages, rounds) = (4096, 2048, 16_384);
    let options = FlashOptions {
        page_bytes: unit,
        erase_block_bytes: 64 * unit,
        buffer_bytes: 16 * unit,
        ..FlashOptions::default()
    };
    let amplification = |name: &str, run: &dyn Fn(&dyn BlockDevice)| {
        let path = directory.path().join(name);
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(pages * unit));
        let writer = TraceWriter::create(&path, TraceDevice::source(&*device)).unwrap();
        run(&TraceDevice::new(device, Arc::clone(&writer)));
        writer.finish().unwrap();
        let mut model = FlashModel::new(pages * unit, options).unwrap();
        for op in TraceReader::open(&path).unwrap() {
            model.apply(op.unwrap()).unwrap();
        }
        model.report().unwrap().write_amplification()
    };
    let page = vec![1; unit as usize];
    let in_place = amplification("in-place", &|device| {
        let mut rng = SeededRng::new(1);
        (0..rounds).for_each(|_| device.write_at(rng.below(pages) * unit, &page).unwrap());
    });
    let log = amplification("log", &|device| {
        for round in 0..rounds {
            let at = round % pages;
            if at % 64 == 0 {
                device.discard(at * unit, 64 * unit).unwrap();
            }
            device.write_at(at * unit, &page).unwrap();
        }
    });
    assert!(log == 1.0 && in_place > 2.0, "log {log}, in place {in_place}");
}
