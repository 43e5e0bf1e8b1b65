//! Ways to carry requests of the kernel to a [`Service`].

pub mod fuser;
mod invalidator;
mod kernel_mount;
pub mod uring;

use std::{io, path::Path, sync::Arc, time::Duration};

use lacuna_nvmfs::posix::{Attr, FileKind};

use crate::{
    PageCache, Service, ServiceOptions,
    mutant::{Rule, is_broken},
};

/// Longest write, and read, in one request: the unit of atomicity through the mount.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Space for a request: the data of a write, and beside that as much as any known request needs. The kernel reads
/// nothing into less.
const READ_BYTES: usize = REQUEST_BYTES_MAX as usize + 4096;
/// Asynchronous requests that the kernel has under way at once.
const BACKGROUND_MAX: u16 = 256;
/// How long names and attributes stay in the kernel. Nothing changes them but the kernel itself.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// How long attributes of files stay there while the kernel writes back: it does not know how much space a file takes
/// when that has happened, and asks by itself only after a close.
const WRITTEN_BACK_TTL: Duration = Duration::from_secs(1);
/// Bits of a mode that unprivileged writes and `fallocate` remove: set-user-id and set-group-id.
const PRIVILEGES: u16 = 0o6000;
/// Unit of the space that statfs reports.
const STATFS_BLOCK_BYTES: u32 = 4096;
/// Longest copy in one request: its answer has 32 bits for the length.
const COPY_BYTES_MAX: u64 = 1 << 30;
/// Longest value of an extended attribute, and longest list of their names (`XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 65536;

/// How long the kernel may cache an inode and its name. A write that removes set-user-id or set-group-id does so
/// here, without notice to the kernel, which must know before it runs the file again: while a file has these bits, the
/// kernel asks each time.
fn ttl(attr: &Attr) -> Duration {
    let may_lose = attr.kind != FileKind::Directory && attr.perm & PRIVILEGES != 0;
    if may_lose && !is_broken(Rule::SetIdsUncached) { Duration::ZERO } else { TTL }
}

/// How long the kernel may cache the attributes of an inode, as against its name.
fn ttl_of_attr(attr: &Attr, options: &ServiceOptions) -> Duration {
    let is_file = attr.kind == FileKind::File;
    let grows_unseen = options.cache == PageCache::WriteBack && !is_broken(Rule::SpaceAskedAgain);
    match () {
        () if is_file && options.claims && !is_broken(Rule::ClaimedAskedAgain) => Duration::ZERO,
        () if is_file && grows_unseen => ttl(attr).min(WRITTEN_BACK_TTL),
        () => ttl(attr),
    }
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source in the table of mounts.
    pub source: String,
    /// Refuse every change.
    pub read_only: bool,
    /// Give other users access.
    pub allow_other: bool,
    /// Allow device nodes.
    pub dev: bool,
    /// Honour set-user-id bits.
    pub suid: bool,
    /// Allow programs to be run.
    pub exec: bool,
    /// Threads that serve requests, at least 1; over io_uring those that serve one processor's requests, and fewer where
    /// that would make more than 256 in all.
    pub threads: usize,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: "lacuna".into(),
            read_only: false,
            allow_other: false,
            dev: false,
            suid: false,
            exec: true,
            threads: 16,
        }
    }
}

/// A way to talk to the kernel.
pub trait Transport {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Mounts `service` on `dir`. On return the mount is established, or unmounted already; requests may wait for
    /// [`Session::serve`].
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] where it was unmounted before anybody could be served.
    fn mount(
        &self,
        service: Arc<Service>,
        dir: &Path,
        options: &MountOptions,
    ) -> io::Result<Box<dyn Session>>;
}

/// An established mount.
pub trait Session: Send {
    /// A function that unmounts it from another thread.
    fn unmounter(&mut self) -> Unmounter;

    /// Serves requests until the file system is unmounted and the last one is answered.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionAborted`] when root ended the connection through `/sys/fs/fuse/connections`: waiting
    /// programs got an error, and a dead mount stays on the directory.
    fn serve(self: Box<Self>) -> io::Result<()>;
}

/// Unmounts, unless another mount is on the directory by now; an error when the file system is in use.
pub type Unmounter = Box<dyn FnMut() -> io::Result<()> + Send>;
