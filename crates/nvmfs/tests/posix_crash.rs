//! The crash matrix of the inode interface: power cuts at random operations of the device, and again
//! during recovery, which frees orphans.
//!
//! After each cut the file system must hold the result of a prefix of the operations, with at least all
//! that a sync covered, of everything or of one inode; the operation under way counts as one that may have
//! been accepted.

use std::{ops::ControlFlow, sync::Arc};

use crate::fight;
use crate::power::{
    History, Load, Rig, formatted, matrix, open, recover,
    watch::{Place, Tally},
};
use crate::world::{Change, Driver, World, random_change, summary};
use lacuna_device::{BlockDevice, Error as DeviceError};
use lacuna_ftl::{self as ftl, Work};
use lacuna_nvmfs::{
    CheckDepth, Error, Ino, Nvmfs, Options, Seq,
    posix::{Caller, Posix, Rename, WriteOptions, XattrMode},
};
use lacuna_sim::{CutTally, SeededRng, for_each_seed};

const ROUNDS: u64 = 4;
const CASES: u64 = 120;
/// The same of stores with several classes of lifetime.
const GROUPED_CASES: u64 = 24;
/// Cuts that must then have fallen in each call: half of what they are.
const CUTS_MIN: &[(&str, u64)] =
    &[("change", 26), ("cold data", 3), ("Checkpoint", 81), ("fsync", 66), ("sync", 55), ("Gc", 5)];
/// A file that most changes leave alone.
const BALLAST: &[u8] = b"ballast";

fn is_power_cut(error: &Error) -> bool {
    match error {
        Error::Ftl(ftl::Error::Device(error)) | Error::Device(error) => {
            matches!(error, DeviceError::PowerCut | DeviceError::Poisoned { .. })
        }
        Error::Ftl(ftl::Error::Poisoned { .. }) => true,
        _ => false,
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Ftl(ftl::Error::Full { .. }))
}

/// Overwrites a part of the ballast, `len` bytes long.
fn ballast_change(rig: &Rig, rng: &mut SeededRng, len: u64) -> Change {
    let part = rig.part_of(rng, len);
    let offset = rng.below(part) / 512 * 512;
    let mut data = vec![0; (1 + rng.below(16 << 10).min(part - offset - 1)) as usize];
    rng.fill(&mut data);
    Change::Write { path: vec![BALLAST.to_vec()], offset, data: Arc::new(data), trim_to: None }
}

/// Fills a part of the store, so that collection has something to move and `Full` is near. In a grouped store that is
/// overwritten until its parts have lifetimes.
fn add_ballast(rig: &Rig, vfs: &Nvmfs, rng: &mut SeededRng, history: &mut History<World>) {
    let mut driver = Driver::new(vfs.posix());
    let stats = vfs.ftl().stats();
    let free_bytes = stats.live_limit_bytes.saturating_sub(stats.live_bytes);
    let mut data = vec![0; (free_bytes * rig.fill_percent(rng, 80) / 100) as usize];
    rng.fill(&mut data);
    let path = vec![BALLAST.to_vec()];
    let make = Change::Make { path: path.clone(), mode: 0o100_600, caller: Caller::default() };
    let mut changes = vec![make];
    for (index, piece) in data.chunks(20 << 10).enumerate() {
        let offset = index as u64 * (20 << 10);
        let data = Arc::new(piece.to_vec());
        changes.push(Change::Write { path: path.clone(), offset, data, trim_to: None });
    }
    let mut world = history.now().clone();
    for change in changes {
        driver.apply(&change).unwrap();
        world.apply(&change).unwrap();
    }
    while rig.is_fresh() {
        let change = ballast_change(rig, rng, data.len() as u64);
        driver.apply(&change).unwrap();
        world.apply(&change).unwrap();
    }
    history.states = vec![world];
    driver.fs.sync().unwrap();
}

/// Changes the file system until the power is cut; `upkeep_percent` of the steps do background work. Returns what the
/// cut fell in.
fn run_until_cut(
    rig: &Rig,
    vfs: &Nvmfs,
    rng: &mut SeededRng,
    history: &mut History<World>,
    upkeep_percent: u64,
) -> String {
    let device = rig.device();
    let mut driver = Driver::new(vfs.posix());
    for _ in 0..10_000 {
        if rng.chance(8) {
            match driver.fs.sync() {
                Ok(()) => history.synced(),
                Err(error) => {
                    assert!(device.is_off() && is_power_cut(&error), "{error}");
                    return "sync".into();
                }
            }
        }
        if rng.chance(15)
            && let Some(path) = history.now().random_path(rng)
        {
            match driver.fsync(&path, rng.chance(50)) {
                Ok(()) => history.lost(history.now().lost_to_sync(&path, &history.states)),
                Err(error) => {
                    assert!(device.is_off() && is_power_cut(&error), "{error}");
                    return "fsync".into();
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
        if rng.chance(upkeep_percent / 2) {
            let compression = "zstd:1".parse().unwrap();
            let walked =
                vfs.compress_cold(compression, &(Seq(0)..Seq(u64::MAX)), |_| ControlFlow::Continue(()));
            match walked {
                Err(error) if !is_full(&error) => {
                    assert!(device.is_off() && is_power_cut(&error), "{error}");
                    return "cold data".into();
                }
                _ => {}
            }
        }
        let mut after = history.now().clone();
        let ballast_len = if rng.chance(30) { after.len_of(BALLAST) } else { None };
        let change = match ballast_len {
            Some(len) => ballast_change(rig, rng, len),
            None => random_change(rng, &after),
        };
        let expected = after.apply(&change);
        match (driver.apply(&change), expected) {
            (Ok(_), Ok(())) => history.states.push(after),
            (Ok(_), Err(error)) => panic!("{change:?} was done, not refused: {error}"),
            (Err(error), Ok(())) if is_full(&error) => {
                let frees = matches!(change, Change::Release(_) | Change::Rmdir(_) | Change::Unlink(_));
                assert!(!frees, "{change:?} needs space: {error}");
            }
            (Err(error), Ok(())) => {
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
    let mut history = History { states: vec![World::default()] };
    let mut vfs = rig.open().unwrap();
    add_ballast(&rig, &vfs, &mut rng, &mut history);
    let upkeep_percent = [0, 5, 20][rng.below(3) as usize];
    for round in 0..ROUNDS {
        calls.note(
            rig.cut_in(&vfs, &mut rng, |rng| run_until_cut(&rig, &vfs, rng, &mut history, upkeep_percent)),
        );
        drop(vfs);
        vfs = rig.recover(&mut rng);

        let found = Driver::new(vfs.posix()).snapshot().unwrap();
        let Some(survived) = history.states.iter().rposition(|state| state.snapshot() == found) else {
            let states = history.states.iter().map(|state| summary(&state.snapshot()));
            panic!(
                "round {round}: no state of the history survived: {}\nhistory:\n{}",
                summary(&found),
                states.collect::<Vec<_>>().join("\n")
            );
        };
        let report = vfs.check(CheckDepth::Payload).unwrap();
        assert!(report.is_clean(), "round {round}: {:#?}", report.findings);
        // Recovery makes what it found durable, and nothing is open any more.
        let mut state = history.states.swap_remove(survived);
        state.close_all();
        history.states = vec![state];
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
        3,
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
        3,
        &[Batch, Collection, Checkpoint, WriteBack, Reuse, Discard, Sync, Recovery, LogDevice],
    );
}

/// An open file without name, a directory without name, a link's long target and attributes outside their inode: after
/// a crash the space of everything without a name is free again.
#[test]
fn a_crash_gives_the_room_of_orphans_back() {
    for_each_seed(40, |seed| {
        let device = formatted(seed);
        let mut rng = SeededRng::new(seed);
        let vfs = open(&device).unwrap();
        let fs = vfs.posix();
        let caller = Caller::default();
        let before = vfs.ftl().stats().allocated_bytes;
        let file = fs.create(Ino::ROOT, b"file", 0o600, caller).unwrap().ino;
        fs.write(file, 100, &[7; 100_000], WriteOptions::default()).unwrap();
        fs.setxattr(file, b"user.large", &[8; 10_000], XattrMode::Set).unwrap();
        let directory = fs.mkdir(Ino::ROOT, b"directory", 0o700, caller).unwrap().ino;
        fs.open(directory).unwrap();
        let link = fs.symlink(Ino::ROOT, b"link", &[b'x'; 4000], caller).unwrap().ino;
        fs.open(link).unwrap();
        let unnamed = fs.create_unnamed(Ino::ROOT, 0o600, false, caller).unwrap().ino;
        fs.write(unnamed, 0, &[6; 50_000], WriteOptions::default()).unwrap();
        fs.unlink(Ino::ROOT, b"file").unwrap();
        fs.unlink(Ino::ROOT, b"link").unwrap();
        fs.rmdir(Ino::ROOT, b"directory").unwrap();
        assert_eq!(fs.getattr(file).unwrap().nlink, 0);
        assert_eq!(fs.readlink(link).unwrap(), [b'x'; 4000]);
        assert!(fs.mknod(directory, b"late", 0o100_600, 0, caller).is_err());
        fs.write(file, 200_000, &[9; 1000], WriteOptions::default()).unwrap();
        assert_eq!(fs.getattr(file).unwrap().size, 201_000);
        assert!(vfs.check(CheckDepth::Payload).unwrap().is_clean());
        fs.sync().unwrap();
        device.set_cut_after(1);
        assert!(fs.mkdir(Ino::ROOT, b"cut", 0o700, caller).and_then(|_| fs.sync()).is_err());
        drop((fs, vfs));
        let vfs = recover(&device, &mut rng);
        assert!(vfs.check(CheckDepth::Payload).unwrap().is_clean());
        assert!(vfs.posix().getattr(file).is_err() && vfs.posix().getattr(unnamed).is_err());
        let _ = vfs.posix().rmdir(Ino::ROOT, b"cut");
        assert_eq!(vfs.ftl().stats().allocated_bytes, before);
    });
}

/// Threads that conflict, until the power is cut: at whichever batch that was, names, links and orphans are consistent.
#[test]
fn a_cut_among_many_threads_leaves_order() {
    for_each_seed(120, |seed| {
        if seed % 10 != 0 {
            return; // a case takes ten times as long as one of the matrix
        }
        let device = formatted(seed);
        let mut rng = SeededRng::new(seed);
        let mut vfs = open(&device).unwrap();
        for round in 0..3 {
            device.set_cut_after(1 + rng.below(300));
            std::thread::scope(|scope| {
                for worker in 0..3 {
                    let fs = vfs.posix();
                    scope.spawn(move || {
                        for attempt in 0..1000 {
                            let seed = seed << 20 | attempt << 4 | round << 2 | worker;
                            let ended = match fight::fight(&fs, seed, 100) {
                                Some(error) if is_full(&error) => fight::clear(&fs, Ino::ROOT).err(),
                                Some(error) => Some(error),
                                None => fs.sync().err(),
                            };
                            if let Some(error) = ended.filter(|error| !matches!(error, Error::Refused(_))) {
                                return assert!(is_power_cut(&error), "{error}");
                            }
                        }
                    });
                }
            });
            assert!(device.is_off(), "the power was never cut");
            drop(vfs);
            vfs = recover(&device, &mut rng);
            let report = vfs.check(CheckDepth::Payload).unwrap();
            assert!(report.is_clean(), "round {round}: {:#?}", report.findings);
            Driver::new(vfs.posix()).snapshot().unwrap();
        }
    });
}

/// The map has a batch that the device refused, and the inodes in memory do not: what they say of each other is no damage.
#[test]
fn a_batch_that_fails_is_not_reported_as_damage() {
    type Change = fn(&Posix, Ino, u8) -> lacuna_nvmfs::Result<()>;
    type See = fn(&Posix, Ino) -> lacuna_nvmfs::Result<()>;
    /// Has inodes read again.
    fn use_others(fs: &Posix) {
        for number in (0..8).cycle().take(80) {
            let _ = fs.lookup(Ino::ROOT, &[b'0' + number]);
        }
    }
    fn make_and_remove(fs: &Posix) -> lacuna_nvmfs::Result<()> {
        fs.mknod(Ino::ROOT, b"new", 0o100_600, 0, Caller::default())?;
        fs.unlink(Ino::ROOT, b"new").map(drop)
    }
    let cases: [(&str, Change, See); 3] = [
        (
            "setxattr",
            |fs, file, round| {
                fs.setxattr(file, b"user.x", &vec![round; 400 * usize::from(1 + round % 4)], XattrMode::Set)
            },
            |fs, file| fs.getxattr(file, b"user.x").map(drop),
        ),
        ("lookup", |fs, _, _| make_and_remove(fs), |fs, _| fs.lookup(Ino::ROOT, b"new").map(drop)),
        (
            "rename",
            |fs, _, _| make_and_remove(fs),
            |fs, _| fs.rename(Ino::ROOT, b"new", Ino::ROOT, b"newer", Rename::Replace).map(drop),
        ),
    ];
    for (what, change, see) in cases {
        for seed in 1..=40 {
            let device = formatted(seed);
            let vfs = open(&device).unwrap();
            let fs = vfs.posix();
            for number in 0..8 {
                fs.mknod(Ino::ROOT, &[b'0' + number], 0o100_600, 0, Caller::default()).unwrap();
            }
            let file = fs.lookup(Ino::ROOT, b"0").unwrap().ino;
            device.fail_writes_after(seed);
            let failed = (0..=u8::MAX).cycle().find_map(|round| change(&fs, file, round).err());
            assert!(device.is_failing(), "{what} {seed}: {failed:?}");
            use_others(&fs);
            if let Err(error) = see(&fs, file) {
                let is_expected = is_power_cut(&error) || matches!(error, Error::Refused(_));
                assert!(is_expected, "{what} {seed}: {error}, after {failed:?}");
            }
        }
    }
}

/// A write reads the clock when the ftl has accepted its batch but the batch's number is not noted yet.
mod clock {
    use std::{cell::Cell, sync::Barrier};

    use lacuna_nvmfs::{Timestamp, system_time};

    thread_local! {
        /// The thread must stop when it next reads the clock.
        pub(super) static STOPS: Cell<bool> = const { Cell::new(false) };
    }
    pub(super) static STOPPED: Barrier = Barrier::new(2);
    pub(super) static GOES_ON: Barrier = Barrier::new(2);

    pub(super) fn look() -> Timestamp {
        if STOPS.take() {
            STOPPED.wait();
            GOES_ON.wait();
        }
        system_time()
    }
}

/// Data that a program could read before it called sync survives, even if the write has not returned yet.
#[test]
fn a_sync_covers_what_another_is_still_writing() {
    for_each_seed(40, |seed| {
        let device = formatted(seed);
        let mut rng = SeededRng::new(seed);
        let raw: Arc<dyn BlockDevice> = device.clone();
        let ftl = ftl::Options { background: false, ..ftl::Options::default() };
        let vfs = Nvmfs::open(raw, Options { ftl, clock: clock::look, ..Options::default() }).unwrap();
        let fs = vfs.posix();
        let file = fs.create(Ino::ROOT, b"file", 0o600, Caller::default()).unwrap().ino;
        let write = |byte| fs.write(file, 0, &[byte; 4096], WriteOptions::default()).unwrap();
        write(1);
        fs.sync().unwrap(); // every number that is noted is on the device
        std::thread::scope(|scope| {
            scope.spawn(|| {
                clock::STOPS.set(true);
                write(2);
            });
            clock::STOPPED.wait();
            let mut seen = [0; 4096];
            fs.read(file, 0, &mut seen).unwrap();
            assert_eq!(seen, [2; 4096], "this test tests nothing");
            fs.fsync(file, true).unwrap();
            device.set_cut_after(0);
            clock::GOES_ON.wait();
        });
        drop((fs, vfs));
        let vfs = recover(&device, &mut rng);
        let mut found = [0; 4096];
        vfs.posix().read(file, 0, &mut found).unwrap();
        assert!(found == [2; 4096], "what was synced is lost");
    });
}
