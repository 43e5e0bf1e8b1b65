//! A mount that root makes by mount(2), and its end.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{getgid, getuid},
};

use super::MountOptions;

const DEVICE: &str = "/dev/fuse";

/// A mount, which does not end with this ([`AbortOnDrop`]): where the device is closed it is dead.
#[derive(Clone, Debug)]
pub(super) struct KernelMount {
    dir: PathBuf,
    /// Number of the mount, and of the kernel's connection with us.
    id: u64,
    connection: u32,
}

impl KernelMount {
    /// Mounts on `dir`, which only root may; returns the device through which the kernel talks about it. Programs that
    /// access the directory wait until somebody does.
    pub(super) fn new(dir: &Path, options: &MountOptions) -> io::Result<(File, KernelMount)> {
        let dir = dir.canonicalize()?;
        let device = File::options().read(true).write(true).open(DEVICE)?;
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
        let (id, connection) = mounted_on(&dir)?;
        Ok((device, KernelMount { dir, id, connection }))
    }

    /// Unmounts, unless that has been done. An error where the file system is in use.
    pub(super) fn unmount(&self) -> io::Result<()> {
        if self.is_on_dir()? { Ok(unmount(&self.dir, UnmountFlags::empty())?) } else { Ok(()) }
    }

    /// Ends the mount at once: current and later requests fail, as if this process had died.
    pub(super) fn abort(&self) {
        let ended = match self.is_on_dir() {
            Ok(true) => {
                unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH).map_err(io::Error::from)
            }
            Ok(false) => self.abort_connection(),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            log::error!("{}: cannot be unmounted: {error}", self.dir.display());
        }
    }

    /// Where it was detached, programs may still have files open.
    fn abort_connection(&self) -> io::Result<()> {
        match std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", self.connection), "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // They have none.
            written => written,
        }
    }

    /// Whether it is the one that the directory shows: once it is gone or detached, another may be mounted there.
    fn is_on_dir(&self) -> io::Result<bool> {
        Ok(mounted_on(&self.dir)?.0 == self.id)
    }
}

/// Ends the mount when dropped, if there still is one.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) KernelMount);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Number of the mount on a directory, and of the kernel's connection with who serves it. Whoever that is need not answer.
fn mounted_on(dir: &Path) -> io::Result<(u64, u32)> {
    let found = statx(CWD, dir, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID)?;
    Ok((found.stx_mnt_id, found.stx_dev_minor))
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
