//! A device that cannot be read for a while: operations that do not need it continue.

use std::{
    collections::BTreeSet,
    num::NonZeroU64,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
    },
};

use lacuna_device::{BlockDevice, Error as DeviceError, MemDevice};
use lacuna_ftl::Lba;
use lacuna_nvmfs::{
    CheckDepth, FormatOptions, Ino, Limits, Nvmfs, Options,
    posix::{AccessTimes, Caller, Posix, Rename, WriteOptions},
};
use lacuna_sim::{BeforeReads, SimDevice, unreadable};

use crate::logged::logged;

const FILES: u64 = 6000;

fn file(fs: &Posix, number: u64) -> Ino {
    fs.lookup(Ino::ROOT, format!("file {number}").as_bytes()).unwrap().ino
}

/// A device that can be read unless the switch is on.
fn device(bytes: u64) -> (Arc<dyn BlockDevice>, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let may_be_read = {
        let fails = Arc::clone(&fails);
        move |_: &[Range<u64>]| match fails.load(SeqCst) {
            true => Err(DeviceError::io("device", std::io::Error::other("unreadable for now"))),
            false => Ok(()),
        }
    };
    (BeforeReads::new(Arc::new(MemDevice::new(bytes)), may_be_read), fails)
}

/// Times of two files wait to be stored when the device becomes unreadable, and the leaf of the map for one of the
/// inodes is no longer in memory.
#[test]
fn data_are_synced_though_times_cannot_be_stored() {
    let (device, fails) = device(128 << 20);
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).unwrap();
    let mut options = Options { access_times: AccessTimes::Never, ..Options::default() };
    options.ftl.background = false;
    options.ftl.map_memory = Some(64 << 10);
    let vfs = Nvmfs::open(device, options).unwrap();
    let fs = vfs.posix();
    for number in 0..FILES {
        let name = format!("file {number}");
        let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Caller::default()).unwrap().ino;
        fs.write(ino, 0, &[1; 512], WriteOptions::default()).unwrap();
        fs.release(ino).unwrap();
    }
    fs.sync().unwrap();
    vfs.ftl().checkpoint().unwrap(); // leaves that are no longer changed may be evicted

    type Sync = fn(&Nvmfs, &Posix, Ino) -> lacuna_nvmfs::Result<()>;
    let syncs: [(&str, Sync); 3] = [
        ("fsync", |_, fs, ino| fs.fsync(ino, false)),
        ("sync", |_, fs, _| fs.sync()),
        ("close", |vfs, _, _| vfs.close()),
    ];
    let last = file(&fs, FILES - 1);
    for (what, sync) in syncs {
        // Which leaves look-ups bring back, and so which leave, depends on the directory's random keys.
        let had_to_be_read = (0..10).any(|number| {
            let first = file(&fs, number * 100);
            fs.write(first, 0, &[2; 512], WriteOptions::default()).unwrap();
            (1000..FILES).for_each(|number| assert_ne!(file(&fs, number), first));
            fs.write(last, 0, &[2; 512], WriteOptions::default()).unwrap();
            fails.store(true, SeqCst);
            let flushes = vfs.ftl().stats().flushes;
            let result = sync(&vfs, &fs, first);
            fails.store(false, SeqCst);
            assert!(vfs.ftl().stats().flushes > flushes, "{what} left the data where they were");
            result.is_err()
        });
        assert!(had_to_be_read, "{what} never had to read anything");
    }
    fs.sync().unwrap();
}

/// A sync must not treat an inode that could not be read as one that did not change.
#[test]
fn a_sync_covers_what_was_done_to_an_inode_that_could_not_be_read() {
    let (device, fails) = device(64 << 20);
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).unwrap();
    let mut options = Options { access_times: AccessTimes::Never, inodes_kept: 0, ..Options::default() };
    options.ftl.background = false;
    let vfs = Nvmfs::open(device, options).unwrap();
    let fs = vfs.posix();
    let make = |name: &[u8], bytes| {
        let ino = fs.create(Ino::ROOT, name, 0o644, Caller::default()).unwrap().ino;
        fs.write(ino, 0, &vec![1; bytes], WriteOptions::default()).unwrap();
        fs.release(ino).unwrap();
        ino
    };
    let ino = make(b"file", 512);
    make(b"other", 4 << 20); // so that nothing of the first one is in memory
    fails.store(true, SeqCst);
    assert!(fs.getattr(ino).is_err(), "this test tests nothing");
    fails.store(false, SeqCst);
    let flushes = vfs.ftl().stats().flushes;
    fs.fsync(ino, true).unwrap();
    assert!(vfs.ftl().stats().flushes > flushes, "the file is not on the device");
}

/// A file is made, and then the device cannot be read to find its allocation: `create` returns the file all the same.
#[test]
fn a_file_that_was_made_is_told_of() {
    const GAP: u64 = FILES / 2;
    let reads_left = Arc::new(AtomicI64::new(i64::MAX));
    let may_be_read = {
        let reads_left = Arc::clone(&reads_left);
        move |_: &[Range<u64>]| match reads_left.fetch_sub(1, SeqCst) > 0 {
            true => Ok(()),
            false => Err(DeviceError::io("device", std::io::Error::other("unreadable for now"))),
        }
    };
    let device: Arc<dyn BlockDevice> = BeforeReads::new(Arc::new(MemDevice::new(128 << 20)), may_be_read);
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).unwrap();
    let open = || {
        let mut options = Options { access_times: AccessTimes::Never, ..Options::default() };
        options.ftl.background = false;
        Nvmfs::open(Arc::clone(&device), options).unwrap()
    };
    let vfs = open();
    for number in 0..FILES {
        let name = format!("file {number}");
        let ino = vfs.posix().create(Ino::ROOT, name.as_bytes(), 0o644, Caller::default()).unwrap().ino;
        vfs.posix().write(ino, 0, &[1; 512], WriteOptions::default()).unwrap();
        vfs.posix().release(ino).unwrap();
    }
    // Its number is the first free one, and in the map its data would lie between that of other files.
    vfs.posix().unlink(Ino::ROOT, format!("file {GAP}").as_bytes()).unwrap();
    vfs.close().unwrap();
    drop(vfs);
    let mut failed = 0;
    for reads in 0.. {
        let vfs = open();
        let fs = vfs.posix();
        reads_left.store(reads, SeqCst);
        let created = fs.create(Ino::ROOT, b"new", 0o644, Caller::default());
        reads_left.store(i64::MAX, SeqCst);
        if created.is_ok() {
            break;
        }
        failed += 1;
        assert!(fs.lookup(Ino::ROOT, b"new").is_err(), "it was made");
        vfs.close().unwrap();
    }
    assert!(failed > 0, "this test tests nothing");
}

const BLOCK: u64 = 512;
/// Of a large file.
const EXTENTS: u64 = 3000;
/// Region of the orphans.
const ORPHANS: u64 = 3 << 36;
/// Region of the limits of users.
const LIMITS: u64 = 5 << 36;

fn open(device: &Arc<dyn BlockDevice>) -> lacuna_nvmfs::Result<Nvmfs> {
    let mut options = Options { access_times: AccessTimes::Never, ..Options::default() };
    options.ftl.background = false;
    options.ftl.map_memory = Some(0);
    Nvmfs::open(Arc::clone(device), options)
}

fn lba(ino: Ino, sector: u64) -> Lba {
    Lba((ino.number() << 36) + sector)
}

fn inode_lba(ino: Ino) -> Lba {
    Lba((1 << 36) + ino.number())
}

fn store() -> (Arc<dyn BlockDevice>, Ino, Ino) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(32 << 20));
    let (large, nameless) = store_on(&device);
    (device, large, nameless)
}

/// A store with files of one sector, a file `large` of many extents, and one of many extents that has no name any more and
/// was open.
fn store_on(device: &Arc<dyn BlockDevice>) -> (Ino, Ino) {
    let mut format = FormatOptions::default();
    format.ftl.segment_bytes = Some(64 << 10);
    Nvmfs::format(Arc::clone(device), &format).unwrap();
    let vfs = open(device).unwrap();
    let fs = vfs.posix();
    let make = |name: &str, extents: u64| {
        let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Caller::default()).unwrap().ino;
        for extent in 0..extents {
            fs.write(ino, extent * 1024, &[1; 512], WriteOptions::default()).unwrap();
        }
        ino
    };
    (0..1000).for_each(|number| fs.release(make(&format!("file {number}"), 1)).unwrap());
    let [large, nameless] = ["large", "nameless"].map(|name| make(name, EXTENTS));
    fs.release(large).unwrap();
    fs.unlink(Ino::ROOT, b"nameless").unwrap();
    // Each opening counts what users have.
    let limits = Limits { bytes: NonZeroU64::new(1 << 40), inodes: None };
    vfs.set_limits(1000, limits).unwrap();
    fs.sync().unwrap();
    vfs.ftl().checkpoint().unwrap();
    (large, nameless)
}

/// The blocks of the device in which the leaves of the map for these sectors lie.
fn leaf_blocks(device: &Arc<dyn BlockDevice>, lbas: impl Iterator<Item = Lba>) -> BTreeSet<u64> {
    let reads = Arc::new(Mutex::new(BTreeSet::new()));
    let note = {
        let reads = Arc::clone(&reads);
        move |ranges: &[Range<u64>]| {
            let blocks = ranges.iter().flat_map(|range| range.start / BLOCK..range.end.div_ceil(BLOCK));
            reads.lock().unwrap().extend(blocks);
            Ok(())
        }
    };
    let options = lacuna_ftl::Options { map_memory: Some(0), read_only: true, ..Default::default() };
    let ftl = lacuna_ftl::Ftl::open(BeforeReads::new(Arc::clone(device), note), options).unwrap();
    reads.lock().unwrap().clear();
    lbas.for_each(|lba| assert!(ftl.is_mapped(lba).unwrap()));
    std::mem::take(&mut *reads.lock().unwrap())
}

/// A copy of the device, and the same without a block.
fn without(device: &Arc<dyn BlockDevice>, block: u64) -> (Arc<dyn BlockDevice>, Arc<dyn BlockDevice>) {
    let mut image = vec![0; device.geometry().capacity_bytes as usize];
    device.read_at(0, &mut image).unwrap();
    let copy: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(image.len() as u64));
    copy.write_at(0, &image).unwrap();
    (Arc::clone(&copy), lacking(copy, block))
}

fn lacking(device: Arc<dyn BlockDevice>, block: u64) -> Arc<dyn BlockDevice> {
    unreadable(device, std::iter::once(block * BLOCK..(block + 1) * BLOCK).collect())
}

/// Where the first sector of each extent of the large file lies.
fn extents(large: Ino) -> impl Iterator<Item = Lba> {
    (0..EXTENTS).map(move |extent| lba(large, 2 * extent))
}

/// How `large` loses its name: for nothing, or for `file 7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Unlink,
    Rename,
    LinkOver,
}

const REMOVALS: [Removal; 3] = [Removal::Unlink, Removal::Rename, Removal::LinkOver];

impl Removal {
    fn apply(self, fs: &Posix) -> lacuna_nvmfs::Result<()> {
        match self {
            Removal::Unlink => fs.unlink(Ino::ROOT, b"large").map(drop),
            Removal::Rename => {
                fs.rename(Ino::ROOT, b"file 7", Ino::ROOT, b"large", Rename::Replace).map(drop)
            }
            Removal::LinkOver => fs.link_over(file(fs, 7), Ino::ROOT, b"large").map(drop),
        }
    }
}

fn findings(vfs: &Nvmfs) -> Vec<String> {
    let report = vfs.check(CheckDepth::Payload).unwrap();
    report.findings.into_iter().map(|finding| finding.message).collect()
}

/// The file could never be removed, nor replaced.
#[test]
fn a_file_whose_map_cannot_be_read_loses_its_name() {
    let (device, large, _) = store();
    let blocks = leaf_blocks(&device, extents(large));
    assert!(blocks.len() > 3, "{blocks:?}");
    let mut damaged = 0;
    for block in blocks.into_iter().step_by(3) {
        for removal in REMOVALS {
            let (whole, device) = without(&device, block);
            let vfs = open(&device).unwrap();
            let fs = vfs.posix();
            damaged += u64::from(extents(large).any(|lba| vfs.ftl().is_mapped(lba).is_err()));
            removal.apply(&fs).unwrap();
            assert_eq!(fs.lookup(Ino::ROOT, b"large").is_ok(), removal != Removal::Unlink);
            vfs.close().unwrap();
            drop(vfs);
            drop(open(&device).unwrap());
            // Once all can be read, what has no name is freed.
            let vfs = open(&whole).unwrap();
            assert_eq!(findings(&vfs), [""; 0], "block {block}");
            assert_eq!(allocated(&vfs, large), 0);
        }
    }
    assert!(damaged > 3, "{damaged}");
}

fn allocated(vfs: &Nvmfs, ino: Ino) -> u64 {
    vfs.ftl().allocated(lba(ino, 0)..lba(Ino::new(ino.number() + 1).unwrap(), 0)).unwrap()
}

/// Whether the removal is done; otherwise all must be as before it.
fn is_removed(vfs: &Nvmfs, large: Ino, removal: Removal) -> bool {
    let fs = vfs.posix();
    let [found, seventh] = [&b"large"[..], b"file 7"]
        .map(|name| fs.lookup(Ino::ROOT, name).ok().map(|attr| (attr.ino, attr.nlink)));
    let is_removed = found.is_none_or(|(ino, _)| ino != large);
    match (is_removed, removal) {
        (false, _) => assert!(found == Some((large, 1)) && seventh.is_some_and(|(_, nlink)| nlink == 1)),
        (true, Removal::Unlink) => assert!(found.is_none() && seventh.is_some_and(|(_, nlink)| nlink == 1)),
        (true, Removal::Rename) => assert!(seventh.is_none() && found.is_some_and(|(_, nlink)| nlink == 1)),
        (true, Removal::LinkOver) => assert!(seventh == found && found.is_some_and(|(_, nlink)| nlink == 2)),
    }
    for number in (0..1000).filter(|number| *number != 7) {
        let mut content = [0; 512];
        fs.read(file(&fs, number), 0, &mut content).unwrap();
        assert_eq!(content, [1; 512], "file {number}");
    }
    is_removed
}

/// A power cut in any request of a removal over damage, and another one in the recovery: all of it or nothing, and the
/// damage stays what it was.
#[test]
fn a_cut_leaves_the_name_of_a_file_whose_map_cannot_be_read_or_takes_it() {
    let base = SimDevice::new(32 << 20, 1);
    let shared: Arc<dyn BlockDevice> = base.clone();
    let (large, _) = store_on(&shared);
    let blocks = Vec::from_iter(leaf_blocks(&shared, extents(large)));
    // By the directory's random keys a leaf may have names as well, at the ends above all.
    let spares_names = |block: &&u64| {
        let fs = open(&lacking(base.fork(0), **block)).unwrap().posix();
        let files = (0..1000).map(|number| format!("file {number}"));
        files.chain(["large".to_owned()]).all(|name| fs.lookup(Ino::ROOT, name.as_bytes()).is_ok())
    };
    let middle = *blocks[blocks.len() / 2..].iter().find(spares_names).expect("such a leaf");
    let (mut removed, mut left) = (0, 0);
    // What a cut leaves of unflushed writes is another each time: of one run alone now and then nothing.
    for (removal, run) in REMOVALS.into_iter().flat_map(|removal| (0..6).map(move |run| (removal, run))) {
        for cut in 1.. {
            let what = format!("{removal:?}, run {run}, cut {cut}");
            let device = base.fork(100 * run + cut);
            let damaged = lacking(device.clone(), middle);
            let vfs = open(&damaged).unwrap();
            let known = findings(&vfs);
            assert!(!known.is_empty(), "this test tests nothing");
            device.set_cut_after(cut);
            let done = removal.apply(&vfs.posix()).and_then(|()| vfs.posix().sync());
            let was_cut = device.is_off();
            drop(vfs);
            device.power_cycle();
            device.set_cut_after(1 + cut % 8);
            drop(open(&damaged));
            device.power_cycle();

            let vfs = open(&damaged).unwrap();
            let is_gone = is_removed(&vfs, large, removal);
            assert!(is_gone || done.is_err(), "{what}: a synced removal is lost");
            assert_eq!(findings(&vfs), known, "{what}");
            drop(vfs);
            // Once all can be read, what has no name is freed, and what has one is whole.
            let vfs = open(&(device as Arc<dyn BlockDevice>)).unwrap();
            assert_eq!(findings(&vfs), [""; 0], "{what}");
            assert_eq!(allocated(&vfs, large), if is_gone { 0 } else { EXTENTS * 512 }, "{what}");
            (removed, left) = (removed + u64::from(is_gone), left + u64::from(!is_gone));
            if !was_cut {
                assert!(done.is_ok(), "{what}: {done:?}");
                break;
            }
        }
    }
    // Of each run's last case the power is not cut.
    assert!(removed > 18 && left > 18, "{removed} removed, {left} left");
}

/// Threads that remove the names of such a file at a time: the last one leaves it for the next opening to free.
#[test]
fn threads_remove_the_names_of_a_file_whose_map_cannot_be_read() {
    const NAMES: [&[u8]; 4] = [b"large", b"second", b"third", b"fourth"];
    let (device, large, _) = store();
    let blocks = leaf_blocks(&device, extents(large));
    let mut damaged = 0;
    for block in blocks.into_iter().step_by(4) {
        let (whole, device) = without(&device, block);
        let vfs = open(&device).unwrap();
        damaged += u64::from(extents(large).any(|lba| vfs.ftl().is_mapped(lba).is_err()));
        let fs = vfs.posix();
        NAMES[1..].iter().for_each(|name| assert!(fs.link(large, Ino::ROOT, name).is_ok()));
        std::thread::scope(|scope| {
            for name in NAMES {
                scope.spawn(|| vfs.posix().unlink(Ino::ROOT, name).unwrap());
            }
        });
        assert!(NAMES.iter().all(|name| fs.lookup(Ino::ROOT, name).is_err()));
        vfs.close().unwrap();
        drop((fs, vfs));
        let vfs = open(&whole).unwrap();
        assert_eq!(findings(&vfs), [""; 0], "block {block}");
        assert_eq!(allocated(&vfs, large), 0);
    }
    assert!(damaged > 0, "this test tests nothing");
}

/// One bad block kept the whole file system from being opened for writing.
#[test]
fn orphans_and_limits_whose_map_cannot_be_read_keep_no_file_system_shut() {
    let (device, _, nameless) = store();
    let (orphan, limit) = (Lba(ORPHANS + nameless.number()), Lba(LIMITS + 1000));
    let blocks = leaf_blocks(&device, [orphan, limit].into_iter());
    let (mut damaged, mut unread) = (0, 0);
    for block in blocks {
        let (whole, device) = without(&device, block);
        // Other parts of the checkpoint may lie there, or the leaf of the root.
        let options = lacuna_ftl::Options { read_only: true, ..Default::default() };
        let Ok(ftl) = lacuna_ftl::Ftl::open(Arc::clone(&device), options) else { continue };
        if ftl.is_mapped(inode_lba(Ino::ROOT)).is_err() {
            continue;
        }
        let (vfs, lines) = logged(|| open(&device).unwrap());
        damaged += u64::from(vfs.ftl().is_mapped(orphan).is_err());
        let is_limit_lost = vfs.ftl().is_mapped(limit).is_err();
        let is_reported = lines.iter().any(|line| line.contains("cannot be read and bind nobody"));
        assert_eq!(is_reported, is_limit_lost, "{lines:?}");
        unread += u64::from(is_limit_lost);
        // Names of others, in the root directory before it, may be lost with it.
        let fs = vfs.posix();
        let found = (0..1000).find_map(|n| fs.lookup(Ino::ROOT, format!("file {n}").as_bytes()).ok());
        fs.write(found.unwrap().ino, 0, &[2; 512], WriteOptions::default()).unwrap();
        assert!(!findings(&vfs).is_empty());
        vfs.close().unwrap();
        drop(vfs);
        let vfs = open(&whole).unwrap();
        assert_eq!(findings(&vfs), [""; 0]);
        assert!(!vfs.ftl().is_mapped(orphan).unwrap() && !vfs.ftl().is_mapped(lba(nameless, 0)).unwrap());
    }
    assert!(damaged > 0 && unread > 0, "{damaged} and {unread}");
}
