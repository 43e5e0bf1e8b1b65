//! The crash matrix: seeded work, a power cut in any write, sync or discard, more cuts during recovery, then the
//! comparison with the accepted and flushed batches; the same store then continues.
//!
//! `LACUNA_CASES=10000 cargo test -p lacuna-ftl --test ftl crash::any_cut -- --nocapture` runs 20,000 cases
//! and shows where their cuts fell.

use std::sync::Arc;

use crate::harness::{
    self, assert_sound, format,
    matrix::{self, Load, Run, assert_cut},
    watch::{Place, Tally},
};
use lacuna_device::BlockDevice;
use lacuna_ftl::{Error, Ftl, Lba, Op, Options, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

/// Cases of each load in an ordinary run.
const CASES: u64 = 1000;
/// Cuts that must then have fallen in each place.
const CUTS_MIN: u64 = 50;

fn matrix(load: Load, all: u64, places: &[Place]) {
    let (mut tally, mut cases) = (Tally::default(), 0);
    for_each_seed(all, |seed| {
        tally.add(&matrix::case(seed, load));
        cases += 1;
    });
    eprintln!("{load:?} batches, {cases} cases:\n{tally}");
    if cases >= all {
        tally.assert_each(CUTS_MIN, places);
    }
}

#[test]
fn any_cut_leaves_a_prefix_that_holds_all_flushed_batches() {
    use Place::*;
    matrix(
        Load::Mixed,
        CASES,
        &[
            Batch,
            Collection,
            Checkpoint,
            WriteBack,
            RetainedSummary,
            Reuse,
            Discard,
            Sync,
            Recovery,
            Open,
            Growth,
        ],
    );
}

#[test]
fn any_cut_among_batches_of_one_size_does() {
    use Place::*;
    matrix(
        Load::Uniform,
        CASES,
        &[Batch, Collection, Checkpoint, WriteBack, Reuse, Sync, Recovery, Open, Growth],
    );
}

/// Stores of the others have one class of lifetime.
#[test]
fn any_cut_among_batches_of_several_lifetimes_does() {
    use Place::*;
    matrix(Load::Grouped, 200, &[Batch, Collection, Reuse, Sync, Recovery]);
}

/// The same short run, cut in each of its operations in turn.
#[test]
fn every_operation_of_a_run_may_be_the_last() {
    for (seed, load) in [(1, Load::Uniform), (2, Load::Mixed)] {
        for cut in 1.. {
            let mut run = Run::new(seed, load);
            let ftl = run.open().unwrap();
            run.device.sim().set_cut_after(cut);
            let result = run.work(&ftl, 60);
            let finished = result.is_ok();
            assert_cut(result);
            drop(ftl);
            let ftl = run.recover();
            run.compare(&ftl);
            if finished {
                break;
            }
        }
    }
}

/// Recovery itself, cut in each of its operations in turn, on many outcomes of the same crash.
#[test]
fn every_operation_of_recovery_may_be_the_last() {
    for_each_seed(6, |seed| {
        let mut run = Run::new(seed, if seed % 2 == 0 { Load::Mixed } else { Load::Uniform });
        let ftl = run.open().unwrap();
        run.work(&ftl, 80).unwrap();
        drop(ftl);
        run.device.sim().set_cut_after(0);
        for cut in 1.. {
            let mut fork = run.fork(seed * 1000 + cut);
            fork.device.sim().power_cycle();
            fork.device.sim().set_cut_after(cut);
            let finished = fork.open().is_ok();
            fork.device.sim().power_cycle();
            let ftl = fork.open().unwrap();
            fork.compare(&ftl);
            if finished {
                break;
            }
        }
    });
}

/// Crash after crash with hardly any work between: no space may leak.
#[test]
fn crash_loops_do_not_eat_the_store() {
    for_each_seed(4, |seed| {
        let mut run = Run::new(seed, if seed % 2 == 0 { Load::Mixed } else { Load::Uniform });
        for _ in 0..150 {
            let ftl = run.open().unwrap();
            run.work(&ftl, 1 + seed % 4).unwrap();
            let ops = 1 + run.rng.below(6);
            run.device.sim().set_cut_after(ops);
            let cut = ftl.step(Work::Gc).map(drop);
            assert_cut(cut);
            drop(ftl);
            let ftl = run.recover();
            run.compare(&ftl);
        }
    });
}

/// A process that is killed leaves bytes in the device's cache, which a recovery then reads. While a power cut can
/// still take them, recovery must not reuse segments that only those bytes made garbage.
#[test]
fn recovery_does_not_lean_on_what_is_not_durable() {
    const PAGES: u64 = 36;
    let fill = |ftl: &Ftl, pages, value| {
        for lba in (0..pages).map(|page| Lba(page * 32)) {
            ftl.write_batch(&[Op::Write { lba, data: &[value; 16384] }], Stream::Data).unwrap();
        }
    };
    // The data overwritten in the last round lies anywhere, including the segments that recovery takes first.
    for before in 0..40 {
        for cut in 1.. {
            let device = SimDevice::new(5 << 19, before * 100 + cut);
            let shared: Arc<dyn BlockDevice> = device.clone();
            format(&shared);
            let ftl = harness::open(&shared);
            (0..before / 4 + 1).for_each(|_| fill(&ftl, PAGES, 1));
            fill(&ftl, before, 1);
            ftl.checkpoint().unwrap();
            fill(&ftl, PAGES, 2);
            drop(ftl);
            device.set_cut_after(cut);
            let finished = Ftl::open(shared.clone(), Options::default()).is_ok();
            device.power_cycle();
            let ftl = harness::open(&shared);
            let mut page = [0; 16384];
            for lba in (0..PAGES).map(|page| Lba(page * 32)) {
                ftl.read(lba, &mut page).unwrap();
                assert!([[1; 16384], [2; 16384]].contains(&page));
            }
            if finished {
                break;
            }
        }
    }
}

/// Stores full of tiny extents, whose checkpoints are large, and an unflushed trim of all of them that the cut may
/// undo: recovery must still find space for its checkpoint.
#[test]
fn recovery_has_room_for_the_largest_map() {
    for_each_seed(20, |seed| {
        let device = SimDevice::new(3 << 20, seed);
        let shared: Arc<dyn BlockDevice> = device.clone();
        format(&shared);
        let mut rng = SeededRng::new(seed);
        let map_memory = [None, Some(10 << 10)][seed as usize % 2];
        let open = || Ftl::open(shared.clone(), Options { map_memory, ..Options::default() }).unwrap();
        let mut ftl = open();
        for round in 0..6 {
            let mut sector = [0; 512];
            let mut next = 0;
            loop {
                sector[..16].fill(1 + round);
                let writes = (0..200).map(|index| Op::Write { lba: Lba((next + index) * 2), data: &sector });
                match ftl.write_batch(&writes.collect::<Vec<_>>(), Stream::Data) {
                    Ok(_) => next += 200,
                    Err(Error::Full { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            ftl.flush().unwrap();
            ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: 1 << 40 }], Stream::Log).unwrap();
            device.set_cut_after(1 + rng.below(60));
            let data = [7; 16384];
            let cut = loop {
                let write = [Op::Write { lba: Lba(rng.below(20) * 32), data: &data }];
                if let Err(error) = ftl.write_batch(&write, Stream::Data) {
                    break error;
                }
            };
            assert_cut(Err(cut));
            drop(ftl);
            device.power_cycle();
            ftl = open();
            assert_sound(&ftl);
            ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: 1 << 40 }], Stream::Log).unwrap();
        }
    });
}

#[cfg(feature = "mutants")]
#[test]
#[ignore = "run by mutants.rs"]
fn mixed() {
    for_each_seed(60, |seed| {
        matrix::case(seed, Load::Mixed);
    });
}

/// The cases of the matrix in which a retained summary is read after a cut are few.
#[cfg(feature = "mutants")]
#[test]
#[ignore = "run by mutants.rs"]
fn mixed_long() {
    for_each_seed(400, |seed| {
        matrix::case(seed, Load::Mixed);
    });
}
