//! A mount that root makes by mount(2), and its end.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, CWD, StatxFlags, statx},
    io::Errno as Os,
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{getgid, getuid},
};

use super::{MountOptions, READ_BYTES};

const DEVICE: &str = "/dev/fuse";

/// How long the kernel may take to end a connection, once it has begun to.
const ENDING: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How long after a read that failed the end of the connection may still be the reason.
pub(super) const A_MOMENT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A mount, which does not end with this ([`AbortOnDrop`]): where the device is closed it is dead.
#[derive(Clone, Debug)]
pub(super) struct KernelMount {
    dir: PathBuf,
    /// Number of the mount, where the kernel tells it (5.8). The kernel gives it to another mount later.
    id: Option<u64>,
    /// Says whether the kernel still has its connection with us.
    device: Arc<File>,
    /// Ends the connection, and no later one that has its number.
    aborts: Option<Arc<File>>,
}

impl KernelMount {
    /// Mounts on `dir`, which only root may; returns the device through which the kernel talks about it. Programs that
    /// access the directory wait until somebody does.
    pub(super) fn new(dir: &Path, options: &MountOptions) -> io::Result<(File, KernelMount)> {
        let dir = dir.canonicalize()?;
        let device = open_device()?;
        let data = format!(
            "fd={},rootmode={:o},user_id={},group_id={},default_permissions{}",
            device.as_raw_fd(),
            dir.metadata()?.mode(),
            getuid(),
            getgid(),
            if options.allow_other { ",allow_other" } else { "" },
        );
        let data = CString::new(data).expect("no NUL in it");
        mount(options.source.as_str(), &dir, "fuse.lacuna", flags(options), Some(data.as_c_str()))?;
        match device.try_clone().and_then(|clone| Ok((clone, mounted_on(&dir)?))) {
            Ok((clone, (id, connection))) => {
                let aborts = aborts(connection).map(Arc::new);
                Ok((device, KernelMount { dir, id, device: Arc::new(clone), aborts }))
            }
            Err(error) => {
                let _ = unmount(&dir, UnmountFlags::DETACH);
                Err(error)
            }
        }
    }

    /// Unmounts, unless that has been done. An error where the file system is in use.
    pub(super) fn unmount(&self) -> io::Result<()> {
        if !self.is_gone()? && self.is_on_dir() {
            unmount(&self.dir, UnmountFlags::empty())?;
        }
        Ok(())
    }

    /// Ends the mount at once: current and later requests fail, as if this process had died.
    pub(super) fn abort(&self) {
        let ended = self.is_gone().and_then(|is_gone| match is_gone {
            true => Ok(()),
            false if self.is_on_dir() => Ok(unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH)?),
            // It was detached, and programs still have files open.
            false => match self.aborts.as_deref() {
                Some(mut aborts) => aborts.write_all(b"1"),
                None => Err(io::Error::other("it was detached, and /sys/fs/fuse/connections is not there")),
            },
        });
        if let Err(error) = ended {
            log::error!("{}: cannot be unmounted: {error}", self.dir.display());
        }
    }

    /// Whether the mount has ended, and all that was open there.
    fn is_gone(&self) -> io::Result<bool> {
        Ok(has_ended(self.device.as_fd(), AT_ONCE)?)
    }

    /// Whether it is the one that the directory shows: if it is detached, another may be mounted there.
    fn is_on_dir(&self) -> bool {
        mounted_on(&self.dir).is_ok_and(|(id, _)| id == self.id)
    }
}

/// # Errors
/// Those of the device say so: they are not about the directory of the mount.
pub(super) fn open_device() -> io::Result<File> {
    let opened = File::options().read(true).write(true).open(DEVICE);
    opened.map_err(|error| io::Error::new(error.kind(), format!("{DEVICE}: {error}")))
}

/// Ends the mount when dropped, if there still is one.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) KernelMount);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What ends a connection; none without the file system of these files.
pub(super) fn aborts(connection: u32) -> Option<File> {
    File::options().write(true).open(format!("/sys/fs/fuse/connections/{connection}/abort")).ok()
}

/// Number of the mount on a directory, and of the kernel's connection with who serves it. Whoever that is need not answer.
pub(super) fn mounted_on(dir: &Path) -> io::Result<(Option<u64>, u32)> {
    let found = statx(CWD, dir, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID)?;
    let is_told = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    Ok((is_told.then_some(found.stx_mnt_id), found.stx_dev_minor))
}

/// Whether the connection of a device ends within this time.
pub(super) fn has_ended(device: BorrowedFd<'_>, within: Timespec) -> Result<bool, Os> {
    let mut device = [PollFd::from_borrowed_fd(device, PollFlags::empty())];
    poll(&mut device, Some(&within))?;
    Ok(device[0].revents().contains(PollFlags::ERR))
}

/// The error of a handshake: one that says so where the mount was unmounted before it.
pub(super) fn shaking_hands(error: io::Error) -> io::Error {
    match Os::from_io_error(&error) {
        Some(Os::NODEV) => io::Error::new(io::ErrorKind::NotConnected, "unmounted before it was served"),
        _ => error,
    }
}

/// The end of a mount, of whose device a read has failed: an error unless it was unmounted. A request that the kernel
/// was handing over when the connection ended fails the read with ECONNABORTED, whatever ended it; and after a read that
/// failed for a reason of its own, others may have read on. Only a read after the end tells.
pub(super) fn ending(device: BorrowedFd<'_>, error: Os) -> Result<(), Os> {
    let within = if error == Os::CONNABORTED { ENDING } else { A_MOMENT };
    ending_by(error, || match has_ended(device, within) {
        Ok(true) => rustix::io::read(device, &mut vec![0; READ_BYTES][..]).map(drop),
        _ => Err(error),
    })
}

/// See [`ending`].
fn ending_by(error: Os, read_again: impl FnOnce() -> Result<(), Os>) -> Result<(), Os> {
    let error = if error == Os::NODEV { error } else { read_again().err().unwrap_or(error) };
    if error == Os::NODEV { Ok(()) } else { Err(error) }
}

fn flags(options: &MountOptions) -> MountFlags {
    let MountOptions { read_only, dev, suid, exec, .. } = *options;
    [
        (read_only, MountFlags::RDONLY),
        (!dev, MountFlags::NODEV),
        (!suid, MountFlags::NOSUID),
        (!exec, MountFlags::NOEXEC),
    ]
    .into_iter()
    .filter_map(|(is_set, flag)| is_set.then_some(flag))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_mount_ended_is_what_the_next_read_says() {
        const NEVER: Result<(), Os> = Err(Os::PERM);
        for (error, again, expected) in [
            (Os::NODEV, NEVER, Ok(())),
            (Os::CONNABORTED, Err(Os::NODEV), Ok(())),
            (Os::CONNABORTED, Err(Os::CONNABORTED), Err(Os::CONNABORTED)),
            (Os::CONNABORTED, Ok(()), Err(Os::CONNABORTED)),
            (Os::NOMEM, Err(Os::NODEV), Ok(())),
            (Os::NOMEM, Err(Os::NOMEM), Err(Os::NOMEM)),
        ] {
            assert_eq!(ending_by(error, || again), expected, "{error} {again:?}");
        }
    }
}
