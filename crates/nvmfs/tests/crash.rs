//! The crash matrix: power cuts at random operations of the device, and again during recovery.
//!
//! After each cut the file system must hold the result of a prefix of the operations, with at least all
//! that a sync covered; the operation under way counts as one that may have been accepted.

use std::sync::Arc;

use crate::history::{BALLAST, Change, Data, Model, Part, apply, ballast_change, random_change};
use crate::power::{
    CAPACITY, History, Load, Rig, SEGMENT_BYTES, matrix, open,
    watch::{Place, Tally},
};
use lacuna_device::{BlockDevice, Error, StreamHint, Vfs};
use lacuna_ftl::Work;
use lacuna_nvmfs::{CheckDepth, FormatOptions, Nvmfs};
use lacuna_sim::{CutTally, SeededRng, SimDevice, for_each_seed};

const ROUNDS: u64 = 4;
const CASES: u64 = 200;
/// The same of stores with several classes of lifetime.
const GROUPED_CASES: u64 = 24;
/// Cuts that must then have fallen in each call: half of what they are.
const CUTS_MIN: &[(&str, u64)] = &[("change", 132), ("Checkpoint", 106), ("sync", 126), ("Gc", 31)];

fn is_power_cut(error: &Error) -> bool {
    matches!(error, Error::PowerCut | Error::Poisoned { .. })
}

/// Puts a file into the VFS that fills a part of it, so that collection has something to move and
/// `Full` is near. In a grouped store it is overwritten until its parts have lifetimes.
fn add_ballast(rig: &Rig, vfs: &Nvmfs, rng: &mut SeededRng, history: &mut History<Model>) {
    let stats = vfs.ftl().stats();
    let free_bytes = stats.live_limit_bytes.saturating_sub(stats.live_bytes);
    let mut data = vec![0; (free_bytes * rig.fill_percent(rng, 95) / 100) as usize / 512 * 512];
    rng.fill(&mut data);
    let name = BALLAST.to_owned();
    let create = Change::Create(name.clone(), StreamHint::Data);
    let pieces = data.chunks(32 << 10).enumerate().map(|(index, piece)| {
        let part =
            Part { name: name.clone(), offset: index as u64 * (32 << 10), data: Data::Write(piece.to_vec()) };
        Change::Batch(vec![part])
    });
    let mut model = history.now().clone();
    history.states.clear();
    for change in std::iter::once(create).chain(pieces) {
        apply(vfs, &change).unwrap();
        model.apply(&change).unwrap();
    }
    while rig.is_fresh() {
        let part = rig.part_of(rng, data.len() as u64);
        let change = ballast_change(rng, part);
        apply(vfs, &change).unwrap();
        model.apply(&change).unwrap();
    }
    history.states.push(model);
    vfs.sync().unwrap();
}

/// Changes the VFS until the power is cut; `upkeep_percent` of the steps do background work. Returns what the
/// cut fell in.
fn run_until_cut(
    rig: &Rig,
    vfs: &Nvmfs,
    rng: &mut SeededRng,
    history: &mut History<Model>,
    upkeep_percent: u64,
) -> String {
    let device = rig.device();
    for _ in 0..10_000 {
        if rng.chance(10) {
            match vfs.sync() {
                Ok(()) => history.synced(),
                Err(error) => {
                    assert!(device.is_off() && is_power_cut(&error), "{error}");
                    return "sync".into();
                }
            }
        }
        if rng.chance(upkeep_percent) {
            let work = [Work::Due, Work::Gc, Work::Checkpoint][rng.below(3) as usize];
            if vfs.ftl().step(work).is_err() {
                assert!(device.is_off());
                return format!("{work:?}");
            }
        }
        let ballast_len = history.now().0[BALLAST].len() as u64;
        let change = if ballast_len > 0 && rng.chance(40) {
            let part = rig.part_of(rng, ballast_len);
            ballast_change(rng, part)
        } else {
            random_change(rng, history.now())
        };
        let expected = history.now().after(&change);
        match (apply(vfs, &change), expected) {
            (Ok(()), Ok(after)) => history.states.push(after),
            (Ok(()), Err(error)) => panic!("{change:?} was done, not refused: {error}"),
            (Err(Error::Full { .. }), Ok(_)) => {}
            (Err(error), Ok(after)) => {
                assert!(device.is_off() && is_power_cut(&error), "{change:?}: {error}");
                history.states.push(after);
                return "change".into();
            }
            (Err(_), Err(_)) => {}
        }
        if device.is_off() {
            return "change".into(); // cut in work that the last change did not wait for
        }
    }
    panic!("the power was never cut");
}

fn crash_case(seed: u64, load: Load, calls: &mut CutTally) -> Tally {
    let mut rng = SeededRng::new(seed);
    let rig = Rig::new(seed, load);
    let mut history = History { states: vec![Model::default()] };
    let mut vfs = rig.open().unwrap();
    add_ballast(&rig, &vfs, &mut rng, &mut history);
    let upkeep_percent = [0, 5, 20][rng.below(3) as usize];
    for round in 0..ROUNDS {
        calls.note(
            rig.cut_in(&vfs, &mut rng, |rng| run_until_cut(&rig, &vfs, rng, &mut history, upkeep_percent)),
        );
        drop(vfs);
        vfs = rig.recover(&mut rng);

        let found = Model::read(&vfs).unwrap();
        let Some(survived) = history.states.iter().position(|state| *state == found) else {
            let states = history.states.iter().map(Model::summary);
            panic!(
                "round {round}: no state of the history survived: {}\nhistory:\n{}",
                found.summary(),
                states.collect::<Vec<_>>().join("\n")
            );
        };
        let report = vfs.check(CheckDepth::Payload).unwrap();
        assert!(report.is_clean(), "round {round}: {:#?}", report.findings);
        // Recovery makes what it found durable.
        history.states = vec![history.states.swap_remove(survived)];
    }
    rig.assert_grouped();
    rig.watch.tally()
}

#[test]
fn power_cuts_leave_a_prefix_of_the_operations() {
    use Place::*;
    matrix(
        crash_case,
        Load::Small,
        CASES,
        CUTS_MIN,
        15,
        &[Batch, Collection, Checkpoint, WriteBack, Reuse, Discard, Sync, Recovery],
    );
}

/// Stores of the others have one class of lifetime, and no log device.
#[test]
fn power_cuts_do_among_data_of_several_lifetimes() {
    use Place::*;
    matrix(
        crash_case,
        Load::Grouped,
        GROUPED_CASES,
        &[],
        2,
        &[Batch, Collection, Checkpoint, WriteBack, Reuse, Discard, Sync, Recovery, LogDevice],
    );
}

#[test]
fn a_cut_while_formatting_leaves_nothing_or_a_file_system() {
    /// More than formatting does to a device.
    const OPERATIONS: u64 = 60;
    for_each_seed(2 * OPERATIONS, |seed| {
        let block_bytes = if seed <= OPERATIONS { 512 } else { 4096 };
        let device = SimDevice::with_block_bytes(CAPACITY, block_bytes, seed);
        let raw: Arc<dyn BlockDevice> = device.clone();
        let mut format = FormatOptions::default();
        format.ftl.segment_bytes = Some(SEGMENT_BYTES);
        device.set_cut_after(1 + seed % OPERATIONS);
        let formatted = Nvmfs::format(Arc::clone(&raw), &format);
        let was_cut = device.is_off();
        assert!(formatted.is_ok() || was_cut);
        device.power_cycle();
        match open(&device) {
            Ok(vfs) => {
                assert!(vfs.list().unwrap().is_empty());
                assert!(vfs.check(CheckDepth::Payload).unwrap().is_clean());
            }
            Err(_) => assert!(was_cut, "a finished format does not open"),
        }
        format.ftl.force = true;
        Nvmfs::format(raw, &format).unwrap();
        open(&device).unwrap();
    });
}
