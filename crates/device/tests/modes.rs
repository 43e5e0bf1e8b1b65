//! What the crate makes belongs to its user alone, whatever the umask. A file of its own: the umask is the process's.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use lacuna_device::{DirOptions, DirVfs, RawDevice, RawOptions, StreamHint, Vfs};
use rustix::{fs::Mode, process::umask};

/// Every file below `directory`, which must not be empty, is for its owner alone.
fn assert_private(directory: &Path) {
    let mut files = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{}", entry.path().display());
        files += 1;
    }
    assert!(files > 0);
}

#[test]
fn files_are_for_their_owner_alone() {
    for mask in [0, 0o022] {
        umask(Mode::from_raw_mode(mask));
        let directory = tempfile::tempdir().unwrap();
        drop(RawDevice::create(&directory.path().join("store"), 1 << 20, RawOptions::default()).unwrap());
        assert_private(directory.path());

        let directory = tempfile::tempdir().unwrap();
        let vfs = DirVfs::open(directory.path(), DirOptions::default()).unwrap();
        vfs.create("a", StreamHint::Data).unwrap().write_at(0, &[1; 4096]).unwrap();
        vfs.rename("a", "b").unwrap();
        vfs.create("log", StreamHint::Log).unwrap();
        assert_private(directory.path());
    }
}

#[test]
fn the_lock_of_a_directory_is_no_link() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("made"), directory.path().join(".lacuna-lock")).unwrap();
    assert!(DirVfs::open(directory.path(), DirOptions::default()).is_err());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}
