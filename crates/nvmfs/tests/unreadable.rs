//! A device that cannot be read for a while: operations that do not need it continue.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
    },
};

use lacuna_device::{BlockDevice, Error as DeviceError, MemDevice};
use lacuna_nvmfs::{
    FormatOptions, Ino, Nvmfs, Options,
    posix::{AccessTimes, Caller, Posix, WriteOptions},
};
use lacuna_sim::BeforeReads;

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
