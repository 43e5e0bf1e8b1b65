//! Remounts by the kernel alone, such as `mount -i -o remount,ro` and `umount -r`.
//!
//! It neither tells a FUSE file system that it has become read-only nor asks it for a sync, as it asks others. But whoever
//! polls the table of mounts is woken when a mount changes; a program may change its file system before or after that. What
//! was changed before is synced then, and from then on reads leave no times of access.

use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use lacuna_nvmfs::Nvmfs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::mounts;

/// Between two looks at the table, where others mount all the time.
const PAUSE: Duration = Duration::from_millis(200);

/// How often the table is looked at again after a change while mount and file system differ: one may only be about to
/// follow the other, or a bind mount may stay read-only.
const LOOKS: u32 = 10;

/// The mount of a store on a directory.
pub(super) struct Remounts {
    pub(super) store: PathBuf,
    pub(super) dir: PathBuf,
    /// Taken away before the store is closed.
    pub(super) fs: Arc<Mutex<Option<Arc<Nvmfs>>>>,
}

impl Remounts {
    /// Does what a remount calls for. Returns whether mount and file system agree; none once the store is taken away.
    pub(super) fn look(&self) -> Option<bool> {
        let fs = self.fs.lock().expect("nobody panics and goes on");
        let posix = fs.as_ref()?.posix();
        let found = mounts::read_only(&self.dir, &self.store).ok().flatten();
        // It may have been moved, and is served on.
        let (is_mount_read_only, is_read_only) = found.unwrap_or_default();
        posix.note_access(!is_read_only);
        if is_read_only {
            // It may have been writable since the last look. The flusher tells of failures.
            let _ = posix.sync();
        }
        Some(is_mount_read_only == is_read_only)
    }

    /// Looks whenever something is mounted, unmounted or remounted, in a thread that does not outlive the mount.
    pub(super) fn watch(self: Arc<Remounts>) -> io::Result<()> {
        let table = File::open(mounts::PATH)?;
        thread::Builder::new().name("remounts".into()).spawn(move || {
            let mut looks_left = LOOKS;
            while let Some(agree) = self.look() {
                thread::sleep(PAUSE);
                let soon = Timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
                let timeout = (!agree && looks_left > 0).then_some(&soon);
                let woken = poll(&mut [PollFd::new(&table, PollFlags::PRI)], timeout);
                looks_left = if woken == Ok(0) { looks_left - 1 } else { LOOKS };
            }
        })?;
        Ok(())
    }
}
