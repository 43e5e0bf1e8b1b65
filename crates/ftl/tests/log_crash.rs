//! The crash matrix of a store with a log device: one power cut hits both, in any write, sync or fence of either.
//!
//! `LACUNA_CASES=10000 cargo test -p lacuna-ftl --test ftl log_crash::any_cut -- --nocapture` runs 10,000 cases.

use std::sync::Arc;

use crate::harness::{
    self,
    log_device::TestLog,
    matrix::{self, Load, Run, assert_cut},
    watch::{Place, Tally},
};
use lacuna_device::BlockDevice;
use lacuna_ftl::{Ftl, Lba, LogDeviceUse, Op, Options, Stream};
use lacuna_sim::{SimDevice, SimMemory, for_each_seed};

/// Cases in an ordinary run.
const CASES: u64 = 600;
/// Cuts that must then have fallen in each place.
const CUTS_MIN: u64 = 30;

/// Memory or blocks; some so small that the ring wraps within a few flushes, and a few flushes find no space.
fn log(seed: u64) -> impl Fn(&SimDevice) -> TestLog {
    move |device| {
        let bytes = [128 << 10, 192 << 10, 1 << 20][(seed / 2 % 3) as usize];
        match seed % 3 {
            0 => TestLog::blocks(device, bytes, [512, 4096][(seed % 2) as usize], seed),
            _ => TestLog::memory(device, bytes, seed),
        }
    }
}

fn run(seed: u64, load: Load) -> Run {
    let log = log(seed);
    Run::on(seed, load, |device| Some(log(device)))
}

#[test]
fn any_cut_of_both_devices_leaves_a_prefix_that_holds_all_flushed_batches() {
    use Place::*;
    let (mut tally, mut cases) = (Tally::default(), 0);
    for_each_seed(CASES, |seed| {
        let load = [Load::Mixed, Load::Uniform][(seed % 2) as usize];
        tally.add(&matrix::run_case(run(seed, load), load));
        cases += 1;
    });
    eprintln!("{cases} cases:\n{tally}");
    if cases >= CASES {
        tally.assert_each(CUTS_MIN, &[Batch, Collection, Checkpoint, Reuse, Sync, Recovery, Open, LogDevice]);
    }
}

/// A lost log device costs what only it holds and nothing else, after any cut; the one that comes back is refused.
#[test]
fn without_its_log_device_a_store_opens_as_it_was_before() {
    for_each_seed(200, |seed| {
        let mut run = run(seed, [Load::Mixed, Load::Uniform][(seed % 2) as usize]);
        let mut ftl = run.open().unwrap();
        for round in 0..3 {
            let steps = run.rng.below(150);
            run.device.sim().set_cut_after(1 + run.rng.below(150));
            assert_cut(run.work(&ftl, steps));
            drop(ftl);
            ftl = match round {
                1 => run.lose_log_after_a_cut(log(seed + 1)),
                _ => run.recover(),
            };
            run.compare(&ftl);
        }
    });
}

/// The same short run, cut in each of the operations of both devices in turn.
#[test]
fn every_operation_of_a_run_may_be_the_last() {
    for seed in 0..6 {
        for cut in 1.. {
            let mut run = run(seed, Load::Mixed);
            let ftl = run.open().unwrap();
            run.device.sim().set_cut_after(cut);
            let result = run.work(&ftl, 40);
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

/// Recovery, cut in each of its operations in turn.
#[test]
fn every_operation_of_recovery_may_be_the_last() {
    for_each_seed(6, |seed| {
        let mut run = run(seed, Load::Mixed);
        let ftl = run.open().unwrap();
        run.work(&ftl, 80).unwrap();
        drop(ftl);
        run.device.sim().set_cut_after(0);
        for cut in 1.. {
            let mut fork = run.fork(seed * 1000 + cut);
            fork.power_cycle();
            fork.device.sim().set_cut_after(cut);
            let finished = fork.open().is_ok();
            fork.power_cycle();
            let ftl = fork.open().unwrap();
            fork.compare(&ftl);
            if finished {
                break;
            }
        }
    });
}

/// A process that is killed in a flush leaves frames that a power cut can still take, and that recovery reads. So it must
/// not write over what only those frames made garbage, until they are durable on the flash.
#[test]
fn recovery_does_not_lean_on_frames_that_are_not_durable() {
    const PAGES: u64 = 36;
    const BYTES: u64 = 5 << 19;
    let fill = |ftl: &Ftl, pages, value| {
        for lba in (0..pages).map(|page| Lba(page * 32)) {
            ftl.write_batch(&[Op::Write { lba, data: &[value; 16384] }], Stream::Data).unwrap();
        }
    };
    for before in (0..40).step_by(5) {
        for cut in 1.. {
            let device = SimDevice::new(BYTES, before * 100 + cut);
            let memory = SimMemory::beside(&device, 4 << 20, before * 100 + cut);
            let shared: Arc<dyn BlockDevice> = device.clone();
            harness::format_with(&shared, Some(memory.clone()));
            let open = || {
                let log_device = LogDeviceUse::Device(memory.clone());
                Ftl::open(shared.clone(), Options { log_device, ..Options::default() })
            };
            let ftl = open().unwrap();
            (0..before / 4 + 1).for_each(|_| fill(&ftl, PAGES, 1));
            fill(&ftl, before, 1);
            ftl.checkpoint().unwrap();
            fill(&ftl, PAGES, 2);
            memory.fail_sync();
            assert!(ftl.flush().is_err());
            memory.heal();
            drop(ftl);
            device.set_cut_after(cut);
            let finished = open().is_ok();
            device.power_cycle();
            memory.power_cycle();
            let ftl = open().unwrap();
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

/// An opening that ends while it writes a header leaves one that a power cut can still take. The next one must not write
/// over the older one before that is durable.
#[test]
fn a_header_that_is_not_durable_yet_is_not_leaned_on() {
    let devices: [fn(&SimDevice, u64) -> TestLog; 2] = [
        |device, seed| TestLog::memory(device, 128 << 10, seed),
        |device, seed| TestLog::blocks(device, 128 << 10, 4096, seed),
    ];
    for (log, seed) in devices.iter().flat_map(|log| (0..8).map(move |seed| (log, seed))) {
        let mut run = Run::on(seed, Load::Mixed, |device| Some(log(device, seed)));
        let ftl = run.open().unwrap();
        run.work(&ftl, 20).unwrap();
        drop(ftl);
        for syncs in 1.. {
            let run = run.fork(seed * 100 + syncs);
            run.log.as_ref().expect("it has one").fail_after(1000, syncs);
            let opened = run.open();
            run.log.as_ref().expect("it has one").heal();
            if opened.is_ok() {
                break;
            }
            run.device.sim().kill();
            for cut in 1.. {
                let mut run = run.fork(seed * 1000 + cut);
                run.device.sim().set_cut_after(cut);
                let finished = run.open().is_ok();
                run.power_cycle();
                let ftl = run.open().unwrap();
                run.compare(&ftl);
                if finished {
                    break;
                }
            }
        }
    }
}

#[test]
#[ignore = "run by the mutation tests"]
fn some_cuts() {
    for_each_seed(120, |seed| {
        let load = [Load::Mixed, Load::Uniform][(seed % 2) as usize];
        matrix::run_case(run(seed, load), load);
    });
}
