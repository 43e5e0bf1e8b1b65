//! Devices with silent faults: lost and misdirected writes, stale reads, discards that take effect late or in part.
//!
//! While a store is open, every fault is harmless or reported with its place: never wrong data, never a panic. Across a
//! reopen the same holds, with one exception: recovery cannot distinguish a lost write of the very last flush from a
//! power cut before that flush, so it may end at an earlier batch, but with everything that the flush before covered.

use std::sync::Arc;

use crate::harness::{
    changes, format,
    history::{History, assert_names_the_place, first_wrong, has_errors, read_all},
    open, ops,
};
use lacuna_device::BlockDevice;
use lacuna_ftl::{CheckDepth, Error, Ftl, Options, Stream, Work};
use lacuna_sim::{FaultRates, SeededRng, SimDevice, for_each_seed};

const BYTES: u64 = 4 << 20;
const SECTORS: u64 = 2048;

/// The kinds of silent faults, and their names.
fn kinds() -> [(&'static str, FaultRates); 6] {
    let honest = FaultRates::default();
    [
        ("lost writes", FaultRates { lost_writes: 100, ..honest }),
        ("misdirected writes", FaultRates { misdirected_writes: 100, ..honest }),
        ("stale reads", FaultRates { stale_reads: 100, ..honest }),
        ("late discards", FaultRates { late_discards: 500, ..honest }),
        ("overtaking discards", FaultRates { late_discards: 500, discards_overtake: true, ..honest }),
        ("partial discards", FaultRates { partial_discards: 500, ..honest }),
    ]
}

/// A store under test, and its expected content.
struct Run {
    rng: SeededRng,
    history: History,
}

impl Run {
    /// One step of work; false when it was refused because of damage.
    fn step(&mut self, ftl: &Ftl) -> bool {
        let rng = &mut self.rng;
        let outcome = match rng.below(10) {
            0 => self.flush(ftl),
            1 => ftl.step(Work::Gc).map(drop),
            2 if rng.chance(20) => ftl.checkpoint(),
            _ => {
                let batch = changes(rng, SECTORS);
                let stream = if rng.chance(80) { Stream::Data } else { Stream::Log };
                let accepted = ftl.write_batch(&ops(&batch), stream).map(drop);
                if accepted.is_ok() {
                    self.history.accepted(batch);
                }
                accepted
            }
        };
        outcome.inspect_err(|error| assert_names_the_place(error, BYTES)).is_ok()
    }

    fn flush(&mut self, ftl: &Ftl) -> Result<(), Error> {
        ftl.flush()?;
        self.history.flushed();
        Ok(())
    }
}

/// Outcomes of the silent faults.
#[derive(Default, Debug)]
struct Tally {
    lies: usize,
    /// Runs in which damage was reported, by reads, work or open.
    reported: usize,
    /// Runs in which the last flush was lost.
    last_flush_lost: usize,
}

/// Works on a device with silent faults, then on the same device without faults, then after a reopen. `strict`: there
/// is at most one fault.
fn run(seed: u64, rates: FaultRates, strict: bool, tally: &mut Tally) {
    let device = SimDevice::new(BYTES, seed);
    let shared: Arc<dyn BlockDevice> = device.clone();
    format(&shared);
    let ftl = open(&shared);
    let rng = SeededRng::new(seed);
    let mut run = Run { rng, history: History::new(SECTORS) };
    let steps = 50 + run.rng.below(250);
    assert!((0..steps).all(|_| run.step(&ftl)), "nothing is wrong yet");
    run.flush(&ftl).unwrap();

    // Half of the stale reads strike at the reopen.
    let at_open = rates.stale_reads > 0 && run.rng.chance(50);
    device.start_silent_faults(
        if at_open { FaultRates { stale_reads: 1, limit: 1, ..rates } } else { rates },
        seed,
    );
    let steps = 20 + run.rng.below(400);
    let mut reported = !(0..steps).all(|_| run.step(&ftl));
    reported |= run.flush(&ftl).inspect_err(|error| assert_names_the_place(error, BYTES)).is_err();
    let live = read_all(&ftl, SECTORS, BYTES);
    assert_eq!(first_wrong(&live, &run.history.model), None, "wrong data while the device lies");
    reported |= has_errors(&live);
    let closed =
        run.rng.chance(50) && ftl.close().inspect_err(|error| assert_names_the_place(error, BYTES)).is_ok();
    tally.lies += device.silent_faults().len();
    device.start_silent_faults(
        if at_open && device.silent_faults().is_empty() { rates } else { FaultRates::default() },
        seed,
    );
    if !at_open {
        let found = read_all(&ftl, SECTORS, BYTES);
        assert_eq!(first_wrong(&found, &run.history.model), None, "wrong data");
        let sound = ftl.check(CheckDepth::Payload).unwrap().is_clean();
        assert!(!(sound && has_errors(&found)), "check finds what reads find");
        reported |= !sound;
    }
    drop(ftl);

    device.power_cycle();
    match Ftl::open(shared, Options::default()) {
        Ok(ftl) => {
            let found = read_all(&ftl, SECTORS, BYTES);
            reported |= has_errors(&found);
            assert_eq!(run.history.first_foreign(&found), None, "a sector reads as it never was");
            if let (true, Some(sector)) = (strict, first_wrong(&found, &run.history.model)) {
                assert!(!closed, "sector {sector}: wrong data after close");
                assert!(run.history.is_late_prefix(&found), "sector {sector}: no late prefix");
                tally.last_flush_lost += 1;
            }
        }
        Err(error) => {
            assert_names_the_place(&error, BYTES);
            reported = true;
        }
    }
    tally.lies += device.stop_silent_faults().len();
    tally.reported += usize::from(reported);
}

#[test]
fn one_lie_is_harmless_or_reported() {
    let mut tallies = [(); 6].map(|()| Tally::default());
    for_each_seed(300, |seed| {
        let kind = (seed % 6) as usize;
        run(seed, FaultRates { limit: 1, ..kinds()[kind].1 }, true, &mut tallies[kind]);
    });
    for ((name, _), tally) in kinds().iter().zip(&tallies) {
        eprintln!("{name}: {tally:?}");
    }
}

#[test]
fn many_lies_never_make_up_data() {
    for_each_seed(60, |seed| run(seed, kinds()[(seed % 6) as usize].1, false, &mut Tally::default()));
}
