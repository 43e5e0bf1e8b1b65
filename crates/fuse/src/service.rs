//! Answers to the kernel's requests, whatever carries them.
//!
//! It owns the set of files that answered the DirectFS ioctl, what is told of the removed, counters, and the
//! transport's name; all else is the file system's.
//!
//! **Invariants.**
//! 1. A number is in the set only while the file that was asked about has it: whoever gets a number anew
//!    starts outside. A file that is gone leaves the set when it is closed or forgotten by the kernel, whichever
//!    comes last.
//! 2. A trim is inferred only for files in the set, and only where the kernel holds no pages of the file
//!    that it would not see change.
//! 3. What lost its last name is remembered until the kernel forgets it: it may be somebody's working directory, or
//!    held by a handle of `O_PATH`, which is not open here. Of those, Linux tells and changes what they are, though
//!    nothing is in there any more.
//!
//! **Locks.** The set's, held for a look-up or a change, that of the removed and that of the complaints;
//! none of them across a call of the file system, nor one inside the other.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
    time::Instant,
};

use lacuna_nvmfs::{
    Ino, Nvmfs, Refusal, Timestamp,
    posix::{
        Allocate, Attr, Caller, DirEntry, FileKind, Posix, Rename, SetAttr, SetTime, StatFs, WriteOptions,
        XattrMode,
    },
};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno as Os;

use crate::{complaints::Complaints, counters::Counters, innodb};

/// The ioctl by which Fusion-io's DirectFS was asked for atomic writes: `_IOW(0x95, 2, uint)`. Stock
/// MariaDB and MySQL ask it of every data file and turn their doublewrite buffer off where it is answered.
const DFS_IOCTL_ATOMIC_WRITE_SET: u32 = 0x4004_9502;

/// The number of the root directory in FUSE.
const FUSE_ROOT: u64 = 1;

const FALLOC_FL_KEEP_SIZE: i32 = 0x01;
const FALLOC_FL_PUNCH_HOLE: i32 = 0x02;
const FALLOC_FL_ZERO_RANGE: i32 = 0x10;

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Extended attributes that only privileged programs know of.
const TRUSTED: &[u8] = b"trusted.";

/// Entries of a directory looked at in one go.
const ENTRIES_PER_STEP: usize = 64;

/// A number of `errno`, as the kernel takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<Os> for Errno {
    fn from(errno: Os) -> Errno {
        Errno(errno.raw_os_error())
    }
}

type Result<T> = std::result::Result<T, Errno>;

/// How to serve.
#[derive(Clone, Copy, Debug)]
pub struct ServiceOptions {
    /// `st_blksize` of every file in bytes.
    pub block_bytes: u32,
    /// Let the kernel cache files that are opened without `O_DIRECT`.
    pub cache: bool,
    /// Infer trims behind InnoDB pages that shrank.
    pub infer_trim: bool,
}

impl Default for ServiceOptions {
    fn default() -> ServiceOptions {
        ServiceOptions { block_bytes: 65536, cache: false, infer_trim: true }
    }
}

/// A write as the kernel asks for it.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// Where in the file.
    pub offset: u64,
    /// What.
    pub data: &'a [u8],
    /// Flags of `open` that are in force for this write.
    pub open_flags: i32,
    /// Take set-user-id and set-group-id away.
    pub kill_privileges: bool,
    /// It comes from the kernel's page cache, or from a mapping.
    pub from_cache: bool,
}

/// What a name stands for.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// What it names.
    pub attr: Attr,
    /// Only number and type in `attr` are known: the rest cannot be read. Whoever asks is told why.
    pub is_damaged: bool,
}

/// One entry of a directory, with what it names.
#[derive(Debug)]
pub struct NamedAttr {
    /// The name.
    pub name: Vec<u8>,
    /// What it names.
    pub found: Found,
    /// Cursor of the next entry.
    pub next: u64,
}

/// A file system in service. Numbers of inodes are those of FUSE, which has its own for the root.
pub struct Service {
    fs: Arc<Nvmfs>,
    posix: Posix,
    options: ServiceOptions,
    counters: Counters,
    atomic_files: RwLock<HashSet<Ino>>,
    removed: Mutex<HashMap<Ino, Attr>>,
    transport: OnceLock<&'static str>,
    complaints: Mutex<Complaints>,
}

impl Drop for Service {
    fn drop(&mut self) {
        tell_left_out(self.complaints.get_mut().take_left_out());
    }
}

impl Service {
    /// Serves `fs`.
    pub fn new(fs: Arc<Nvmfs>, options: ServiceOptions) -> Service {
        let posix = fs.posix();
        let (atomic_files, removed) = (RwLock::default(), Mutex::default());
        let counters = Counters::default();
        let (transport, complaints) = (OnceLock::new(), Mutex::default());
        Service { fs, posix, options, counters, atomic_files, removed, transport, complaints }
    }

    /// The file system served.
    pub fn fs(&self) -> &Arc<Nvmfs> {
        &self.fs
    }

    /// How it is served.
    pub fn options(&self) -> &ServiceOptions {
        &self.options
    }

    /// What carries the requests: a [`Transport`](crate::Transport)'s name, once it has mounted.
    pub fn transport(&self) -> Option<&'static str> {
        self.transport.get().copied()
    }

    pub(crate) fn carried_by(&self, transport: &'static str) {
        self.transport.set(transport).expect("a service is mounted once");
    }

    /// What was done so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The number that FUSE knows an inode by.
    pub fn number(ino: Ino) -> u64 {
        if ino == Ino::ROOT { FUSE_ROOT } else { ino.number() }
    }

    fn ino(number: u64) -> Result<Ino> {
        match number {
            FUSE_ROOT => Ok(Ino::ROOT),
            _ => Ino::new(number).filter(|ino| *ino != Ino::ROOT).ok_or(Os::STALE.into()),
        }
    }

    /// Counts a failure, logs it if it is not one of many, and gives it its number.
    fn checked<T>(&self, what: &str, number: u64, result: lacuna_nvmfs::Result<T>) -> Result<T> {
        result.map_err(|error| {
            let errno = Errno(error.errno());
            if errno == Os::IO.into() {
                self.counters.io_error();
                let admitted = self.complaints.lock().admit(Instant::now());
                if let Some(left_out) = admitted {
                    tell_left_out(left_out);
                    log::error!("{what} of inode {number}: {error}");
                }
            } else if errno == Os::NOSPC.into() {
                self.counters.no_space_error();
            }
            errno
        })
    }
}

/// Names.
impl Service {
    /// What `name` is in a directory. A damaged file is found too: the kernel asks before it has it removed.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Found> {
        let directory = Self::ino(parent)?;
        let looked_up = self.checked("lookup", parent, self.posix.lookup(directory, name));
        match looked_up {
            Err(errno) if errno == Os::IO.into() => match self.posix.entry(directory, name) {
                Ok((_, FileKind::Directory)) | Err(_) => Err(errno),
                Ok((ino, kind)) => Ok(Found { attr: unknown(ino, kind), is_damaged: true }),
            },
            other => other.map(|attr| Found { attr, is_damaged: false }),
        }
    }

    /// Attributes of an inode.
    pub fn getattr(&self, number: u64) -> Result<Attr> {
        let ino = Self::ino(number)?;
        let known = self.checked("stat", number, self.posix.getattr(ino));
        known.or_else(|errno| self.of_removed(errno, ino, |_| ()))
    }

    /// By invariant 3: changes what is told of what is gone, if that is why there is an error.
    fn of_removed(&self, errno: Errno, ino: Ino, change: impl Fn(&mut Attr)) -> Result<Attr> {
        let mut removed = self.removed.lock();
        let attr = removed.get_mut(&ino).filter(|_| errno == Os::STALE.into()).ok_or(errno)?;
        change(attr);
        Ok(*attr)
    }

    /// By invariant 3.
    fn remember(&self, gone: Option<Attr>) {
        self.removed.lock().extend(gone.map(|attr| (attr.ino, attr)));
    }

    /// The kernel has less of an inode in memory than before, as a rule nothing any more.
    pub fn forget(&self, number: u64) {
        let Ok(ino) = Self::ino(number) else { return };
        self.removed.lock().remove(&ino);
        self.forget_handshake(ino);
    }

    /// Changes attributes of an inode.
    pub fn setattr(&self, number: u64, changes: &SetAttr) -> Result<Attr> {
        let ino = Self::ino(number)?;
        let changed = self.checked("change", number, self.posix.setattr(ino, changes));
        match changed {
            Err(errno) if changes.size.is_none() => self.of_removed(errno, ino, |attr| change(attr, changes)),
            changed => changed,
        }
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, number: u64) -> Result<Vec<u8>> {
        self.checked("readlink", number, self.posix.readlink(Self::ino(number)?))
    }

    /// Makes a file, fifo, socket or device file.
    pub fn mknod(&self, parent: u64, name: &[u8], mode: u32, rdev: u32, caller: Caller) -> Result<Attr> {
        let made = self.posix.mknod(Self::ino(parent)?, name, mode, rdev.into(), caller);
        self.checked("mknod", parent, made).inspect(|attr| self.drop_handshake(attr.ino))
    }

    /// Makes a directory.
    pub fn mkdir(&self, parent: u64, name: &[u8], mode: u32, caller: Caller) -> Result<Attr> {
        self.checked("mkdir", parent, self.posix.mkdir(Self::ino(parent)?, name, mode, caller))
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, parent: u64, name: &[u8], target: &[u8], caller: Caller) -> Result<Attr> {
        self.checked("symlink", parent, self.posix.symlink(Self::ino(parent)?, name, target, caller))
    }

    /// Makes a regular file and opens it.
    pub fn create(&self, parent: u64, name: &[u8], mode: u32, caller: Caller) -> Result<Attr> {
        let made = self.posix.create(Self::ino(parent)?, name, mode, caller);
        self.checked("create", parent, made).inspect(|attr| self.drop_handshake(attr.ino))
    }

    /// Gives an inode one more name.
    pub fn link(&self, number: u64, parent: u64, name: &[u8]) -> Result<Attr> {
        self.checked("link", number, self.posix.link(Self::ino(number)?, Self::ino(parent)?, name))
    }

    /// Takes a name away.
    pub fn unlink(&self, parent: u64, name: &[u8]) -> Result<()> {
        let gone = self.posix.unlink(Self::ino(parent)?, name);
        self.checked("unlink", parent, gone).map(|gone| self.remember(gone))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &[u8]) -> Result<()> {
        let gone = self.posix.rmdir(Self::ino(parent)?, name);
        self.checked("rmdir", parent, gone).map(|gone| self.remember(gone))
    }

    /// Moves a name.
    pub fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: Rename) -> Result<()> {
        let gone = self.posix.rename(Self::ino(from.0)?, from.1, Self::ino(to.0)?, to.1, mode);
        self.checked("rename", from.0, gone).map(|gone| self.remember(gone))
    }

    /// Calls `entry` with numbers and names from `cursor` on until it returns false.
    ///
    /// What comes before damage is listed, and that is no error yet: the next call, from there on, is.
    pub fn readdir(
        &self,
        number: u64,
        cursor: u64,
        mut entry: impl FnMut(u64, FileKind, &[u8], u64) -> bool,
    ) -> Result<()> {
        let mut found_any = false;
        let mut each = |found: DirEntry<'_>| {
            found_any = true;
            entry(Self::number(found.ino), found.kind, found.name, found.next)
        };
        match self.posix.readdir(Self::ino(number)?, cursor, &mut each) {
            Err(_) if found_any => Ok(()),
            listed => self.checked("readdir", number, listed),
        }
    }

    /// As [`Service::readdir`], with the attributes of what is named. A damaged inode keeps nobody from the
    /// others.
    pub fn readdir_with_attributes(
        &self,
        number: u64,
        mut cursor: u64,
        mut entry: impl FnMut(NamedAttr) -> bool,
    ) -> Result<()> {
        let mut gave_any = false;
        loop {
            let mut names = Vec::with_capacity(ENTRIES_PER_STEP);
            // Attributes are read after the listing: a directory's walk calls nothing else.
            let listed = self.readdir(number, cursor, |ino, kind, name, next| {
                if names.len() == ENTRIES_PER_STEP {
                    return false;
                }
                names.push((ino, kind, name.to_vec(), next));
                true
            });
            match listed {
                Err(_) if gave_any => return Ok(()),
                listed => listed?,
            }
            if names.is_empty() {
                return Ok(());
            }
            let inos: Vec<_> = names.iter().filter_map(|(number, ..)| Self::ino(*number).ok()).collect();
            self.posix.preload(&inos);
            for (number, kind, name, next) in names {
                cursor = next;
                let found = match self.getattr(number) {
                    Ok(attr) => Found { attr, is_damaged: false },
                    // Removed since.
                    Err(errno) if errno == Os::STALE.into() => continue,
                    Err(_) => Found { attr: unknown(Self::ino(number)?, kind), is_damaged: true },
                };
                gave_any = true;
                if !entry(NamedAttr { name, found, next }) {
                    return Ok(());
                }
            }
        }
    }
}

/// Open files and their data.
impl Service {
    /// Keeps an inode until [`Service::release`]. A removed directory can be opened; the kernel itself says that
    /// nothing is in there.
    pub fn open(&self, number: u64) -> Result<()> {
        let ino = Self::ino(number)?;
        let opened = self.checked("open", number, self.posix.open(ino));
        opened.or_else(|errno| match self.of_removed(errno, ino, |_| ())?.kind {
            FileKind::Directory => Ok(()),
            _ => Err(errno),
        })
    }

    /// Whether a file opened with these flags bypasses the kernel's page cache.
    pub fn is_direct(&self, open_flags: i32) -> bool {
        !self.options.cache || has(open_flags, rustix::fs::OFlags::DIRECT)
    }

    /// Ends what [`Service::open`] or [`Service::create`] began.
    pub fn release(&self, number: u64) -> Result<()> {
        let ino = Self::ino(number)?;
        let released = self.posix.release(ino);
        self.forget_handshake(ino);
        self.checked("close", number, released)
    }

    /// Reads; fewer bytes than asked for only at the end of the file.
    pub fn read(&self, number: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.posix.read(Self::ino(number)?, offset, buf);
        self.checked("read", number, read).inspect(|bytes| self.counters.read(*bytes))
    }

    /// Writes, and makes it durable if the file was opened so.
    pub fn write(&self, number: u64, request: WriteRequest<'_>) -> Result<usize> {
        let ino = Self::ino(number)?;
        let trim_to = self.implied_trim(ino, &request);
        let WriteRequest { kill_privileges, from_cache, .. } = request;
        let options = WriteOptions { trim_to, kill_privileges, from_cache };
        let written = self.posix.write(ino, request.offset, request.data, options);
        let bytes = self.checked("write", number, written)?;
        self.counters.write(bytes);
        if has(request.open_flags, rustix::fs::OFlags::DSYNC) {
            self.fsync(number, !has(request.open_flags, rustix::fs::OFlags::SYNC))?;
        }
        Ok(bytes)
    }

    /// By invariant 2; a write from the page cache, or into a file that is in it, is no database's.
    fn implied_trim(&self, ino: Ino, request: &WriteRequest<'_>) -> Option<u64> {
        let applies = self.options.infer_trim
            && !request.from_cache
            && self.is_direct(request.open_flags)
            && self.atomic_files.read().contains(&ino);
        if !applies {
            return None;
        }
        match innodb::implied_trim(request.offset, request.data) {
            Ok(trim_to) => {
                self.counters.trim(trim_to - request.offset - request.data.len() as u64);
                Some(trim_to)
            }
            Err(reason) => {
                self.counters.no_trim(reason);
                None
            }
        }
    }

    /// Makes a file durable.
    pub fn fsync(&self, number: u64, data_only: bool) -> Result<()> {
        self.counters.sync();
        self.checked("fsync", number, self.posix.fsync(Self::ino(number)?, data_only))
    }

    /// Changes what a range takes; `mode` as in fallocate(2). The request says nothing of privileges, so that all
    /// but root's take them away.
    pub fn fallocate(&self, number: u64, offset: u64, len: u64, mode: i32, caller: Caller) -> Result<()> {
        let keep_size = mode & FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !FALLOC_FL_KEEP_SIZE {
            0 if keep_size => Allocate::KeepSize,
            0 => Allocate::Extend,
            FALLOC_FL_PUNCH_HOLE if keep_size => Allocate::PunchHole,
            FALLOC_FL_ZERO_RANGE => Allocate::ZeroRange { keep_size },
            _ => return Err(Os::OPNOTSUPP.into()),
        };
        let allocated = self.posix.fallocate(Self::ino(number)?, offset, len, what, caller.uid != 0);
        self.checked("fallocate", number, allocated)
    }

    /// Finds data or holes; `whence` as in lseek(2). The kernel answers the rest by itself.
    pub fn seek(&self, number: u64, offset: i64, whence: i32) -> Result<u64> {
        let ino = Self::ino(number)?;
        let offset = u64::try_from(offset).map_err(|_| Os::NXIO)?;
        let found = match whence {
            SEEK_DATA => self.posix.seek_data(ino, offset),
            SEEK_HOLE => self.posix.seek_hole(ino, offset),
            _ => return Err(Os::INVAL.into()),
        };
        self.checked("seek", number, found)
    }

    /// Copies within the store and returns how much. As to privileges, as [`Service::fallocate`].
    pub fn copy_range(&self, from: (u64, u64), to: (u64, u64), len: u64, caller: Caller) -> Result<u64> {
        let (from, to_ino) = ((Self::ino(from.0)?, from.1), Self::ino(to.0)?);
        let copied = self.posix.copy_range(from, (to_ino, to.1), len, caller.uid != 0);
        self.checked("copy", to.0, copied)
    }

    /// The DirectFS handshake; every other ioctl is not for us.
    pub fn ioctl(&self, number: u64, command: u32) -> Result<()> {
        if command != DFS_IOCTL_ATOMIC_WRITE_SET {
            return Err(Os::NOTTY.into());
        }
        if self.atomic_files.write().insert(Self::ino(number)?) {
            self.counters.atomic_handshake();
        }
        Ok(())
    }

    /// Invariant 1: a new file has not been asked about.
    fn drop_handshake(&self, ino: Ino) {
        if self.atomic_files.read().contains(&ino) {
            self.atomic_files.write().remove(&ino);
        }
    }

    /// Invariant 1: nobody writes to a file that is gone.
    fn forget_handshake(&self, ino: Ino) {
        let was_asked_about = self.atomic_files.read().contains(&ino);
        if was_asked_about && self.posix.getattr(ino).is_err_and(|error| is_stale(&error)) {
            self.atomic_files.write().remove(&ino);
        }
    }
}

/// The rest.
impl Service {
    /// Room and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        self.checked("statfs", FUSE_ROOT, self.posix.statfs())
    }

    /// An extended attribute.
    pub fn getxattr(&self, number: u64, name: &[u8]) -> Result<Vec<u8>> {
        no_label(name)?;
        self.checked("getxattr", number, self.posix.getxattr(Self::ino(number)?, name))
    }

    /// Names of extended attributes, each with a NUL behind it. The kernel itself keeps those in `trusted.` from all
    /// but privileged callers, but lists what it is given. The request says nothing of privileges, so root is who has
    /// them.
    pub fn listxattr(&self, number: u64, caller: Caller) -> Result<Vec<u8>> {
        let mut names = self.checked("listxattr", number, self.posix.listxattr(Self::ino(number)?))?;
        if caller.uid != 0 {
            let others = names.split_inclusive(|byte| *byte == 0).filter(|name| !name.starts_with(TRUSTED));
            names = others.flatten().copied().collect();
        }
        Ok(names)
    }

    /// Sets an extended attribute.
    pub fn setxattr(&self, number: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        no_label(name)?;
        self.checked("setxattr", number, self.posix.setxattr(Self::ino(number)?, name, value, mode))
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, number: u64, name: &[u8]) -> Result<()> {
        self.checked("removexattr", number, self.posix.removexattr(Self::ino(number)?, name))
    }
}

/// Refuses the label of SELinux, which the kernel has for a FUSE mount as a whole and for none of its files.
/// `ls -l` asks about each until it hears that none has one.
fn no_label(name: &[u8]) -> Result<()> {
    if name == b"security.selinux" { Err(Os::OPNOTSUPP.into()) } else { Ok(()) }
}

/// Of what has no inode any more. Nobody can run it, so what a change of owner takes away is of no use to anybody.
fn change(attr: &mut Attr, changes: &SetAttr) {
    let now = lacuna_nvmfs::system_time();
    let choose = |time: Option<SetTime>, old| time.map_or(old, |time| time.at(now));
    attr.perm = changes.mode.map_or(attr.perm, |mode| (mode & 0o7777) as u16);
    (attr.uid, attr.gid) = (changes.uid.unwrap_or(attr.uid), changes.gid.unwrap_or(attr.gid));
    attr.accessed = choose(changes.accessed, attr.accessed);
    attr.modified = choose(changes.modified, attr.modified);
    attr.changed = changes.changed.unwrap_or(now);
}

fn is_stale(error: &lacuna_nvmfs::Error) -> bool {
    matches!(error, lacuna_nvmfs::Error::Refused(Refusal::Stale))
}

/// What a name tells of an inode that cannot be read.
fn unknown(ino: Ino, kind: FileKind) -> Attr {
    let never = Timestamp::default();
    Attr {
        ino,
        generation: 0,
        kind,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated_bytes: 0,
        accessed: never,
        modified: never,
        changed: never,
        created: never,
    }
}

fn tell_left_out(errors: u64) {
    if errors > 0 {
        log::error!("{errors} more errors like those before are not in this log");
    }
}

fn has(open_flags: i32, flag: rustix::fs::OFlags) -> bool {
    rustix::fs::OFlags::from_bits_retain(open_flags as u32).contains(flag)
}

#[cfg(test)]
mod tests {
    use lacuna_device::{BlockDevice, MemDevice};
    use lacuna_nvmfs::{FormatOptions, Options};

    use super::*;

    fn service() -> Service {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
        Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
        let fs = Nvmfs::open(device, Options::default()).expect("opens");
        Service::new(Arc::new(fs), ServiceOptions::default())
    }

    const MODE: u32 = 0o100_644;

    #[test]
    fn a_number_used_again_has_not_been_asked_about() {
        let service = service();
        // Numbers come back after 2^28 others: so the next ones are taken for such that did.
        let first = service.create(FUSE_ROOT, b"first", MODE, Caller::default()).expect("creates");
        let next = |at: u64| Ino::new(first.ino.number() + at).expect("a number");
        service.atomic_files.write().extend([next(1), next(2)]);
        let second = service.create(FUSE_ROOT, b"second", MODE, Caller::default()).expect("creates");
        let third = service.mknod(FUSE_ROOT, b"third", MODE, 0, Caller::default()).expect("creates");
        assert_eq!((second.ino, third.ino), (next(1), next(2)), "this test tests nothing");
        assert!(service.atomic_files.read().is_empty());
    }

    #[test]
    fn a_file_was_asked_about_until_it_is_gone() {
        let service = service();
        let names: [&[u8]; 3] = [b"kept", b"removed while open", b"removed later"];
        let numbers = names.map(|name| {
            let made = service.create(FUSE_ROOT, name, MODE, Caller::default()).expect("creates");
            service.ioctl(made.ino.number(), DFS_IOCTL_ATOMIC_WRITE_SET).expect("answers");
            made.ino.number()
        });
        let asked = || service.atomic_files.read().len();
        service.unlink(FUSE_ROOT, names[1]).expect("removes");
        // The kernel does not say which of the two comes first.
        service.forget(numbers[1]);
        assert_eq!(asked(), 3, "it is open");
        numbers.iter().for_each(|number| service.release(*number).expect("closes"));
        assert_eq!(asked(), 2);
        service.unlink(FUSE_ROOT, names[2]).expect("removes");
        numbers.iter().for_each(|number| service.forget(*number));
        // Who opens a file again need not ask again.
        assert!(service.atomic_files.read().iter().eq([&Ino::new(numbers[0]).expect("a number")]));
    }

    #[test]
    fn what_was_removed_is_told_of_until_it_is_forgotten() {
        let service = service();
        let made = service.mkdir(FUSE_ROOT, b"d", 0o750, Caller { uid: 5, gid: 6 }).expect("makes");
        let number = made.ino.number();
        service.rmdir(FUSE_ROOT, b"d").expect("removes");
        let Ok(Attr { nlink: 0, uid: 5, perm: 0o750, kind: FileKind::Directory, .. }) =
            service.getattr(number)
        else {
            panic!("{:?}", service.getattr(number));
        };
        service.open(number).expect("opens");
        service.fsync(number, false).expect("has nothing to sync");
        service.forget(number);
        assert_eq!(service.getattr(number), Err(Os::STALE.into()));
        assert_eq!(service.open(number), Err(Os::STALE.into()));
        assert!(service.removed.lock().is_empty());
        // So is what a rename replaced, and a file; both can be changed, as long as that is about no data.
        service.mkdir(FUSE_ROOT, b"from", 0o755, Caller::default()).expect("makes");
        let replaced = service.mkdir(FUSE_ROOT, b"to", 0o700, Caller::default()).expect("makes");
        service.rename((FUSE_ROOT, b"from"), (FUSE_ROOT, b"to"), Rename::Replace).expect("moves");
        let file = service.mknod(FUSE_ROOT, b"file", MODE, 0, Caller::default()).expect("makes");
        service.link(file.ino.number(), FUSE_ROOT, b"another").expect("links");
        service.unlink(FUSE_ROOT, b"file").expect("removes");
        assert!(service.removed.lock().keys().eq([&replaced.ino]), "the file has a name");
        service.unlink(FUSE_ROOT, b"another").expect("removes");
        for gone in [replaced, file] {
            let number = gone.ino.number();
            assert_eq!(service.getattr(number).map(|attr| (attr.nlink, attr.perm)), Ok((0, gone.perm)));
            let time = Timestamp { seconds: 5, nanoseconds: 6 };
            let modified = Some(SetTime::At(time));
            let changes = SetAttr { mode: Some(0o123), uid: Some(7), modified, ..SetAttr::default() };
            let changed = service.setattr(number, &changes).expect("changes");
            assert_eq!((changed.perm, changed.uid, changed.gid, changed.modified), (0o123, 7, 0, time));
            assert_eq!(service.getattr(number), Ok(changed));
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            assert_eq!(service.setattr(number, &cut), Err(Os::STALE.into()));
            let opened = service.open(number);
            assert_eq!(opened.is_ok(), gone.kind == FileKind::Directory, "{opened:?}");
            service.forget(number);
            assert_eq!(service.getattr(number), Err(Os::STALE.into()));
        }
        assert!(service.removed.lock().is_empty());
        // What was not removed is not remembered.
        service.mkdir(FUSE_ROOT, b"d", 0o750, Caller::default()).expect("makes");
        assert_eq!(service.rmdir(FUSE_ROOT, b"e"), Err(Os::NOENT.into()));
        assert!(service.removed.lock().is_empty());
    }
}
