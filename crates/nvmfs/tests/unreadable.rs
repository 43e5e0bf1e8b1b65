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
use lacuna_sim::{BeforeReads, unreadable};

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

/// A store with files of one sector, a file `large` of many extents, and one of many extents that has no name any more and
/// was open.
fn store() -> (Arc<dyn BlockDevice>, Ino, Ino) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(32 << 20));
    let mut format = FormatOptions::default();
    format.ftl.segment_bytes = Some(64 << 10);
    Nvmfs::format(Arc::clone(&device), &format).unwrap();
    let vfs = open(&device).unwrap();
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
    (device, large, nameless)
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
    let lost = std::iter::once(block * BLOCK..(block + 1) * BLOCK).collect();
    (Arc::clone(&copy), unreadable(copy, lost))
}

fn findings(vfs: &Nvmfs) -> Vec<String> {
    let report = vfs.check(CheckDepth::Payload).unwrap();
    report.findings.into_iter().map(|finding| finding.message).collect()
}

/// The file could never be removed, nor replaced.
#[test]
fn a_file_whose_map_cannot_be_read_loses_its_name() {
    let (device, large, _) = store();
    let blocks = leaf_blocks(&device, (0..EXTENTS).map(|extent| lba(large, 2 * extent)));
    assert!(blocks.len() > 3, "{blocks:?}");
    let mut damaged = 0;
    for block in blocks.into_iter().step_by(3) {
        for replaced_by in [None, Some("rename"), Some("link")] {
            let (whole, device) = without(&device, block);
            let vfs = open(&device).unwrap();
            let fs = vfs.posix();
            let mut extents = (0..EXTENTS).map(|extent| lba(large, 2 * extent));
            damaged += u64::from(extents.any(|lba| vfs.ftl().is_mapped(lba).is_err()));
            let other = fs.lookup(Ino::ROOT, b"file 7").unwrap().ino;
            match replaced_by {
                None => drop(fs.unlink(Ino::ROOT, b"large").unwrap()),
                Some("link") => drop(fs.link_over(other, Ino::ROOT, b"large").unwrap()),
                _ => drop(fs.rename(Ino::ROOT, b"file 7", Ino::ROOT, b"large", Rename::Replace).unwrap()),
            }
            assert_eq!(fs.lookup(Ino::ROOT, b"large").is_ok(), replaced_by.is_some());
            vfs.close().unwrap();
            drop(vfs);
            drop(open(&device).unwrap());
            // Once all can be read, what has no name is freed.
            let vfs = open(&whole).unwrap();
            assert_eq!(findings(&vfs), [""; 0], "block {block}");
            assert_eq!(
                vfs.ftl().allocated(lba(large, 0)..lba(Ino::new(large.number() + 1).unwrap(), 0)).unwrap(),
                0
            );
        }
    }
    assert!(damaged > 3, "{damaged}");
}

/// One bad block kept the whole file system from being opened for writing.
#[test]
fn orphans_and_limits_whose_map_cannot_be_read_keep_no_file_system_shut() {
    let (device, _, nameless) = store();
    let orphan = Lba(ORPHANS + nameless.number());
    let blocks = leaf_blocks(&device, std::iter::once(orphan));
    let mut damaged = 0;
    for block in blocks {
        let (whole, device) = without(&device, block);
        // Other parts of the checkpoint may lie there, or the leaf of the root.
        let options = lacuna_ftl::Options { read_only: true, ..Default::default() };
        let Ok(ftl) = lacuna_ftl::Ftl::open(Arc::clone(&device), options) else { continue };
        if ftl.is_mapped(inode_lba(Ino::ROOT)).is_err() {
            continue;
        }
        let vfs = open(&device).unwrap();
        damaged += u64::from(vfs.ftl().is_mapped(orphan).is_err());
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
    assert!(damaged > 0);
}
