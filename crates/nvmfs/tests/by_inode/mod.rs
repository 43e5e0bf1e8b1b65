//! File systems under a clock that tests set, and short names for the inode operations of tests.

use std::{cell::Cell, sync::Arc};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_nvmfs::{
    CheckDepth, Error, FormatOptions, Ino, Nvmfs, Options, Refusal, Timestamp,
    posix::{Attr, Caller, Posix, WriteOptions},
};

pub(crate) const ROOT: Ino = Ino::ROOT;
pub(crate) const NOBODY: Caller = Caller { uid: 65534, gid: 65534, umask: 0 };
pub(crate) const PLAIN: WriteOptions =
    WriteOptions { trim_to: None, kill_privileges: None, from_cache: false, keeps_times: false };

thread_local! {
    pub(crate) static SECONDS: Cell<i64> = const { Cell::new(1000) };
}

/// A clock that stands still until it is set.
pub(crate) fn clock() -> Timestamp {
    Timestamp { seconds: SECONDS.get(), nanoseconds: 5 }
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 5 }
}

pub(crate) fn formatted(capacity_bytes: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(capacity_bytes));
    let options = FormatOptions { uuid: Some([7; 16]), clock, ..FormatOptions::default() };
    Nvmfs::format(Arc::clone(&device), &options).unwrap();
    device
}

pub(crate) fn open(device: &Arc<dyn BlockDevice>) -> Nvmfs {
    Nvmfs::open(Arc::clone(device), Options { clock, ..Options::default() }).unwrap()
}

pub(crate) fn new() -> Nvmfs {
    open(&formatted(64 << 20))
}

pub(crate) fn file(fs: &Posix, name: &str) -> Ino {
    fs.mknod(ROOT, name.as_bytes(), 0o100_644, 0, Caller::default()).unwrap().ino
}

pub(crate) fn dir(fs: &Posix, parent: Ino, name: &str) -> Ino {
    fs.mkdir(parent, name.as_bytes(), 0o755, Caller::default()).unwrap().ino
}

#[track_caller]
pub(crate) fn refused<T>(result: Result<T, Error>, expected: Refusal) {
    match result {
        Err(Error::Refused(refusal)) => assert_eq!(refusal, expected),
        Err(error) => panic!("{error}, not {expected}"),
        Ok(_) => panic!("done, not refused: {expected}"),
    }
}

#[track_caller]
pub(crate) fn assert_clean(vfs: &Nvmfs) {
    let report = vfs.check(CheckDepth::Payload).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

pub(crate) fn times(attr: &Attr) -> (i64, i64, i64) {
    (attr.accessed.seconds, attr.modified.seconds, attr.changed.seconds)
}
