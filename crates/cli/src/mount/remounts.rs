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

use super::table;

/// Between two looks at the table, where others mount all the time.
const PAUSE: Duration = Duration::from_millis(200);

/// The mount of a store on a directory.
pub(super) struct Remounts {
    pub(super) store: PathBuf,
    pub(super) dir: PathBuf,
    /// Taken away before the store is closed.
    pub(super) fs: Arc<Mutex<Option<Arc<Nvmfs>>>>,
}

impl Remounts {
    /// Does what a remount calls for. Returns whether mount and file system agree; none where there is no such mount.
    pub(super) fn look(&self) -> Option<bool> {
        let fs = self.fs.lock().expect("nobody panics and goes on");
        let posix = fs.as_ref()?.posix();
        let (is_mount_read_only, is_read_only) = table::read_only(&self.dir, &self.store).ok()??;
        posix.note_access(!is_read_only);
        if is_read_only {
            // It may have been writable since the last look. The flusher tells of failures.
            let _ = posix.sync();
        }
        Some(is_mount_read_only == is_read_only)
    }

    /// Looks whenever something is mounted, unmounted or remounted, in a thread that does not outlive the mount.
    pub(super) fn watch(self: Arc<Remounts>) -> io::Result<()> {
        let table = File::open(table::PATH)?;
        thread::Builder::new().name("remounts".into()).spawn(move || {
            while let Some(agree) = self.look() {
                thread::sleep(PAUSE);
                let soon = Timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
                let _ = poll(&mut [PollFd::new(&table, PollFlags::PRI)], (!agree).then_some(&soon));
            }
        })?;
        Ok(())
    }
}
