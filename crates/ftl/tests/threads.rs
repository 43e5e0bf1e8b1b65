//! Many threads on one store, with the background thread.

mod harness;

use std::sync::Arc;

use harness::{Change, SEGMENT_BYTES, assert_sound, payload};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, SECTOR, Stream};
use lacuna_sim::{SeededRng, for_each_seed};

const THREADS: u64 = 4;
/// Sectors of each thread's own region.
const REGION: u64 = 1000;

/// Writes, reads, flushes and takes checkpoints in the region of `thread`; returns its expected content.
fn work(ftl: &Ftl, thread: u64, seed: u64) -> Vec<u8> {
    let mut rng = SeededRng::new(seed * 100 + thread);
    let base = thread * REGION;
    let mut model = vec![0; REGION as usize * SECTOR];
    for _ in 0..400 {
        let len = 1 + rng.below(64);
        let lba = rng.below(REGION - len);
        let place = lba as usize * SECTOR..(lba + len) as usize * SECTOR;
        match rng.below(10) {
            0..6 => {
                let data = payload(&mut rng, len);
                let stream = if thread.is_multiple_of(2) { Stream::Data } else { Stream::Log };
                ftl.write_batch(&[Change::Write(base + lba, data.clone()).op()], stream).unwrap();
                model[place].copy_from_slice(&data);
            }
            6 => {
                ftl.write_batch(&[Op::Trim { lba: Lba(base + lba), sectors: len }], Stream::Data).unwrap();
                model[place].fill(0);
            }
            7 if rng.chance(10) => ftl.checkpoint().unwrap(),
            7 => ftl.flush().unwrap(),
            _ => {
                let mut buf = vec![0; place.len()];
                ftl.read(Lba(base + lba), &mut buf).unwrap();
                assert!(buf == model[place], "thread {thread}: sectors {lba} + {len} differ");
            }
        }
    }
    ftl.flush().unwrap();
    model
}

#[test]
fn threads_see_their_own_writes_while_segments_are_collected() {
    for_each_seed(6, |seed| {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(9 << 19));
        let options = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
        Ftl::format(device.clone(), &options).unwrap();
        let map_memory = (seed % 3 > 0).then_some(seed % 3 * 2000);
        let options = Options { background: seed % 2 == 0, map_memory, ..Options::default() };
        let ftl = Ftl::open(device.clone(), options).unwrap();
        let models: Vec<_> = std::thread::scope(|scope| {
            let ftl = &ftl;
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || work(ftl, thread, seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let assert_same = |ftl: &Ftl| {
            for (thread, model) in models.iter().enumerate() {
                let mut buf = vec![0; model.len()];
                ftl.read(Lba(thread as u64 * REGION), &mut buf).unwrap();
                assert!(buf == *model, "region {thread} differs");
            }
        };
        let stats = ftl.stats();
        assert!(stats.gc_segments > 0 && stats.checkpoints > 1, "{stats:?}");
        assert_same(&ftl);
        assert_sound(&ftl);
        drop(ftl);
        let ftl = harness::open(&device);
        assert_same(&ftl);
        assert_sound(&ftl);
    });
}

#[test]
fn concurrent_flushes_share_syncs() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Ftl::format(device.clone(), &FormatOptions::default()).unwrap();
    let ftl = harness::open(&device);
    let before = ftl.stats().flushes;
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let ftl = &ftl;
            scope.spawn(move || {
                for round in 0..50 {
                    let lba = Lba((thread * 50 + round) * 8);
                    ftl.write_batch(&[Op::Write { lba, data: &[1; 4096] }], Stream::Log).unwrap();
                    ftl.flush().unwrap();
                }
            });
        }
    });
    assert!(ftl.stats().flushes - before <= 400);
    // A flush with nothing new costs nothing.
    let syncs = device.stats().syncs;
    ftl.flush().unwrap();
    assert_eq!(device.stats().syncs, syncs);
}
