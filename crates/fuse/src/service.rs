//! Answers to the kernel's requests, over any transport.
//!
//! It owns what it knows of open files (`open_files.rs`), counters, and the transport; the file system owns
//! everything else.
//!
//! **Invariants.**
//! 1. A trim is inferred only for files for which the DirectFS ioctl was answered, and only where the kernel holds no
//!    pages of the file that it would not see change.
//! 2. Each answer that names an inode to the kernel counts as a look-up of it, and the kernel forgets as many: an inode
//!    that it knows stays, with or without a name, as if it were open. It may be about to be opened, a process's
//!    working directory, or held by a handle of `O_PATH`, and Linux requires that all of these stay usable. Not counted
//!    are `.` and `..` in a listing, which the kernel does not count either.
//! 3. The kernel forgets a removed inode after it has answered the removal. So a request that finds no space waits a
//!    moment for recently removed inodes to be freed, then tries once more.
//! 4. Where the kernel writes back, it alone knows how long files are, when they were changed, and where they have data
//!    that is not written yet. So what it writes back leaves times alone, which it sets itself; no hole is
//!    reported; and writes are called atomic only where a file is open directly, because only there a write of a program
//!    is one request.
//!
//! **Locks.** Those of the open files and of the complaints. Neither is held across a call of the file system or
//! together with the other.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use lacuna_nvmfs::{
    Ino, Nvmfs, Refusal, Timestamp,
    posix::{AccessTimes, Allocate, Attr, Caller, FileKind, Posix, StatFs, WriteOptions, XattrMode},
};
use parking_lot::Mutex;
use rustix::{fs::OFlags, io::Errno as Os};

use crate::{
    complaints::Complaints,
    counters::Counters,
    innodb,
    latencies::{Kind, Latencies},
    mutant::{Rule, is_broken},
    open_files::{OpenFiles, Opening},
};

/// The ioctl that requests atomic writes from Fusion-io's DirectFS: `_IOW(0x95, 2, uint)`. Stock MariaDB and MySQL send
/// it for every data file and turn their doublewrite buffer off where it succeeds.
const DFS_IOCTL_ATOMIC_WRITE_SET: u32 = 0x4004_9502;

/// The number of the root directory in FUSE.
const FUSE_ROOT: u64 = 1;

const FALLOC_FL_KEEP_SIZE: i32 = 0x01;
const FALLOC_FL_PUNCH_HOLE: i32 = 0x02;
const FALLOC_FL_ZERO_RANGE: i32 = 0x10;

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Extended attributes that only privileged programs see.
const TRUSTED: &[u8] = b"trusted.";

/// The extended attribute that is an access control list, part of whose entries are the mode's.
const ACL: &[u8] = b"system.posix_acl_access";

/// How long a request that finds no space waits for removed inodes to be forgotten (invariant 3). The kernel has queued
/// the forgets by then.
const FORGET_WAIT: Duration = Duration::from_millis(200);

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

/// What the kernel keeps of files that are opened without `O_DIRECT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// Nothing: each read and write is a request, whoever makes it.
    Off,
    /// What was read and written; a write is a request before it returns.
    WriteThrough,
    /// What was read and written. The kernel writes it back when it likes to, at the latest when the file is synced or
    /// closed, in requests that have nothing to do with the writes of programs (invariant 4).
    WriteBack,
}

/// How to serve.
#[derive(Clone, Copy, Debug)]
pub struct ServiceOptions {
    /// `st_blksize` of every file in bytes.
    pub block_bytes: u32,
    /// What the kernel keeps.
    pub cache: PageCache,
    /// Infer trims behind InnoDB pages that shrank.
    pub infer_trim: bool,
    /// Make every change durable before it is answered.
    pub sync: bool,
    /// Programs in this process may claim files ([`Service::claim`]). The kernel then asks for the attributes of a file
    /// each time.
    pub claims: bool,
}

impl Default for ServiceOptions {
    fn default() -> ServiceOptions {
        ServiceOptions {
            block_bytes: 65536,
            cache: PageCache::WriteThrough,
            infer_trim: true,
            sync: false,
            claims: false,
        }
    }
}

/// A write as the kernel asks for it.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// Offset in the file.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Flags of `open` that are in force for this write.
    pub open_flags: i32,
    /// Remove set-user-id and set-group-id, on behalf of this caller.
    pub kill_privileges: Option<Caller>,
    /// It comes through a direct [`Opening`].
    pub is_direct: bool,
    /// It comes from the kernel's page cache, or from a mapping. Then the caller is unknown.
    pub from_cache: bool,
    /// The user and group that write.
    pub caller: Caller,
}

/// What becomes of set-group-id when an access control list is set: on Linux it goes when somebody sets it who has no
/// privileges and is not in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetGroupId {
    /// The kernel says that it stays.
    Stays,
    /// The kernel says that it goes.
    Goes,
    /// The kernel says nothing, and of the caller's groups only the first is known. By that group alone a team's
    /// directory would lose the bit to the team's members, so directories keep it.
    ByFirstGroup,
}

/// The inode that a name stands for.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// What it names.
    pub attr: Attr,
    /// Only number and type in `attr` are known: the rest cannot be read. A request for the attributes returns the
    /// error.
    pub is_damaged: bool,
}

/// One entry of a directory, with the inode that it names.
#[derive(Debug)]
pub struct NamedAttr {
    /// The name.
    pub name: Vec<u8>,
    /// What it names.
    pub found: Found,
    /// Cursor of the next entry.
    pub next: u64,
}

/// A served file system. Numbers of inodes are those of FUSE, which has its own for the root.
pub struct Service {
    fs: Arc<Nvmfs>,
    posix: Posix,
    /// For callers other than root, of operations that may add data.
    for_users: Posix,
    options: ServiceOptions,
    counters: Counters,
    latencies: Latencies,
    pub(crate) open_files: OpenFiles,
    carrier: OnceLock<Carrier>,
    complaints: Mutex<Complaints>,
}

/// What carries the requests of a mounted service.
struct Carrier {
    name: &'static str,
    drop_attributes: Box<dyn Fn(u64) + Send + Sync>,
}

impl Drop for Service {
    fn drop(&mut self) {
        tell_left_out(self.complaints.get_mut().take_left_out());
    }
}

impl Service {
    /// Serves `fs`.
    pub fn new(fs: Arc<Nvmfs>, mut options: ServiceOptions) -> Service {
        let posix = fs.posix();
        if options.cache == PageCache::WriteBack && posix.access_times() == AccessTimes::Always {
            // All files are open directly then. A kernel that writes back would keep their times all the same, and
            // moves them for no write that passes its cache.
            options.cache = PageCache::Off;
        }
        let posix = if is_broken(Rule::LookUpsCount) { posix } else { posix.counting_lookups() };
        Service {
            fs,
            for_users: posix.clone().for_users(),
            posix,
            options,
            counters: Counters::default(),
            latencies: Latencies::default(),
            open_files: OpenFiles::default(),
            carrier: OnceLock::new(),
            complaints: Mutex::default(),
        }
    }

    /// The file system served.
    pub fn fs(&self) -> &Arc<Nvmfs> {
        &self.fs
    }

    /// How it is served.
    pub fn options(&self) -> &ServiceOptions {
        &self.options
    }

    /// Whether the kernel writes back (invariant 4).
    pub(crate) fn is_written_back(&self) -> bool {
        self.options.cache == PageCache::WriteBack
    }

    /// The transport of the requests: a [`Transport`](crate::Transport)'s name, once it has mounted.
    pub fn transport(&self) -> Option<&'static str> {
        self.carrier.get().map(|carrier| carrier.name)
    }

    /// Called once it is mounted; `drop_attributes` has the kernel ask anew for the attributes of the inode with that
    /// number.
    pub(crate) fn carried_by(
        &self,
        name: &'static str,
        drop_attributes: impl Fn(u64) + Send + Sync + 'static,
    ) {
        let carrier = Carrier { name, drop_attributes: Box::new(drop_attributes) };
        assert!(self.carrier.set(carrier).is_ok(), "a service is mounted once");
    }

    /// Must be called when an inode takes another amount of space, though the kernel asked for no change of its data: it
    /// would go on showing the old one.
    pub fn space_changed(&self, ino: Ino) {
        if let Some(carrier) = self.carrier.get() {
            (carrier.drop_attributes)(Self::number(ino));
        }
    }

    /// The activity so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How long requests took so far.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// The number that FUSE knows an inode by.
    pub fn number(ino: Ino) -> u64 {
        if ino == Ino::ROOT { FUSE_ROOT } else { ino.number() }
    }

    /// Must be called when the file system was unmounted: the kernel then knows none of its inodes any more.
    pub(crate) fn unmounted(&self) {
        let freed = self.posix.forget_all();
        // The next open frees the remaining orphans.
        let _ = self.checked("forget", FUSE_ROOT, freed);
    }

    /// The file system for this caller. What only frees or moves something is not bounded, whoever asks for it.
    fn posix_for(&self, caller: Caller) -> &Posix {
        if caller.uid == 0 { &self.posix } else { &self.for_users }
    }

    /// Changes something, by invariant 3, and makes it durable if every change must be.
    fn with_space<T>(&self, change: impl Fn() -> lacuna_nvmfs::Result<T>) -> lacuna_nvmfs::Result<T> {
        let changed = match change() {
            Err(error) if is_full(&error) && self.awaits_forgotten() => change(),
            changed => changed,
        }?;
        if self.options.sync && !is_broken(Rule::ChangesSynced) {
            self.posix.sync()?;
        }
        Ok(changed)
    }

    /// Waits until an inode is freed, if one may be soon.
    fn awaits_forgotten(&self) -> bool {
        !is_broken(Rule::ForgottenAwaited) && self.posix.wait_for_forgotten(FORGET_WAIT)
    }

    pub(crate) fn ino(number: u64) -> Result<Ino> {
        match number {
            FUSE_ROOT => Ok(Ino::ROOT),
            _ => Ino::new(number).filter(|ino| *ino != Ino::ROOT).ok_or(Os::STALE.into()),
        }
    }

    /// Counts a failure, logs it unless there are too many, and converts it to an errno.
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

/// Open files and their data.
impl Service {
    /// Keeps an inode until [`Service::release`].
    pub fn open(&self, number: u64) -> Result<()> {
        let _timer = self.latencies.time(Kind::Look);
        self.checked("open", number, self.posix.open(Self::ino(number)?))
    }

    /// Keeps a directory until [`Service::release`].
    ///
    /// # Errors
    /// ENOSYS where that is not needed: the kernel then asks for no directory any more, and keeps what a listing showed
    /// until it changes the directory itself. It knows the directory, so that stays (invariant 2). A listing out of the
    /// cache leaves no time of access; one after a change is a request again, so `relatime` misses only one that is due
    /// because a day is over. With `strictatime` every listing must be seen.
    pub fn open_directory(&self, number: u64) -> Result<()> {
        if self.posix.access_times() == AccessTimes::Always && !is_broken(Rule::StrictIsDirect) {
            return self.open(number);
        }
        Err(Os::NOSYS.into())
    }

    /// How a file is open that [`Service::open`] or [`Service::create`] has opened with these flags, until
    /// [`Service::close`].
    ///
    /// A read that the kernel's cache answers does not reach us. So the kernel drops the file's pages when somebody
    /// opens it for reading only whose read is going to update the time of access, which then is known to have
    /// happened. With `strictatime` there can be no cache.
    pub fn opening(&self, number: u64, open_flags: i32) -> Opening {
        let Ok(ino) = Self::ino(number) else { return Opening::Direct };
        let is_strict = self.posix.access_times() == AccessTimes::Always && !is_broken(Rule::StrictIsDirect);
        let is_cached = self.options.cache != PageCache::Off && !is_strict;
        let must_be_direct = !is_cached || has(open_flags, OFlags::DIRECT);
        let is_reader = !has(open_flags, OFlags::WRONLY) && !has(open_flags, OFlags::RDWR);
        let is_seen = is_reader && self.posix.is_access_due(ino) && !is_broken(Rule::AccessSeen);
        self.open_files.open(ino, must_be_direct, is_seen, !is_reader)
    }

    /// Ends the opening of a file with this handle.
    pub fn close(&self, number: u64, handle: u64) -> Result<()> {
        self.open_files.close(Self::ino(number)?, handle);
        self.release(number)
    }

    /// Ends what [`Service::open`] or [`Service::create`] began.
    pub fn release(&self, number: u64) -> Result<()> {
        let _timer = self.latencies.time(Kind::Look);
        let ino = Self::ino(number)?;
        let released = self.posix.release(ino);
        self.forget_gone(ino);
        self.checked("close", number, released)
    }

    /// Reads; fewer bytes than asked for only at the end of the file.
    pub fn read(&self, number: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _timer = self.latencies.time(Kind::Read);
        let read = self.posix.read(Self::ino(number)?, offset, buf);
        self.checked("read", number, read).inspect(|bytes| self.counters.read(*bytes))
    }

    /// Writes, and makes the data durable if the file was opened for that.
    pub fn write(&self, number: u64, request: WriteRequest<'_>) -> Result<usize> {
        let _timer = self.latencies.time(Kind::Write);
        let ino = Self::ino(number)?;
        let trim_to = self.implied_trim(ino, &request);
        let WriteRequest { kill_privileges, from_cache, caller, .. } = request;
        let posix = if from_cache { &self.for_users } else { self.posix_for(caller) };
        let keeps_times = from_cache && self.is_written_back() && !is_broken(Rule::KernelKeepsTimes);
        let options = WriteOptions { trim_to, kill_privileges, from_cache, keeps_times };
        let written = self.with_space(|| posix.write(ino, request.offset, request.data, options));
        let bytes = self.checked("write", number, written)?;
        self.counters.write(bytes);
        // By libc's numbers: rustix 1.1 has that of O_SYNC for both, and O_SYNC is O_DSYNC and one bit more.
        if request.open_flags & libc::O_DSYNC != 0 && !is_broken(Rule::WritesSynced) {
            let with_times = request.open_flags & libc::O_SYNC == libc::O_SYNC;
            self.fsync(number, !with_times || is_broken(Rule::SyncTimes))?;
        }
        Ok(bytes)
    }

    /// The bytes that the kernel must drop from its cache after a write, and before its caller hears of it. A write
    /// from the page cache is in there already.
    pub fn made_stale(&self, number: u64, request: &WriteRequest<'_>) -> Option<Range<u64>> {
        let is_direct = request.is_direct && !request.from_cache;
        let is_stale = is_direct
            && Self::ino(number).is_ok_and(|ino| self.open_files.is_cached(ino))
            && !is_broken(Rule::DirectWriteDropsPages);
        is_stale.then(|| request.offset..request.offset + request.data.len() as u64)
    }

    /// By invariant 1; a write from the page cache, or into a file that is in it, does not come from a database.
    fn implied_trim(&self, ino: Ino, request: &WriteRequest<'_>) -> Option<u64> {
        let applies = self.options.infer_trim
            && (is_broken(Rule::TrimsDirect) || (!request.from_cache && request.is_direct))
            && (is_broken(Rule::TrimsAskedFor) || self.open_files.takes_trims(ino));
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
        let _timer = self.latencies.time(Kind::Sync);
        self.counters.sync();
        self.checked("fsync", number, self.posix.fsync(Self::ino(number)?, data_only))
    }

    /// Changes the allocation of a range; `mode` as in fallocate(2). The request does not carry privileges, so every
    /// request except root's removes them from the file.
    pub fn fallocate(&self, number: u64, offset: u64, len: u64, mode: i32, caller: Caller) -> Result<()> {
        let _timer = self.latencies.time(Kind::Change);
        let keep_size = mode & FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !FALLOC_FL_KEEP_SIZE {
            0 if keep_size => Allocate::KeepSize,
            0 => Allocate::Extend,
            FALLOC_FL_PUNCH_HOLE if keep_size => Allocate::PunchHole,
            FALLOC_FL_ZERO_RANGE => Allocate::ZeroRange { keep_size },
            _ => return Err(Os::OPNOTSUPP.into()),
        };
        let ino = Self::ino(number)?;
        let kill = unprivileged(caller);
        let posix = self.posix_for(caller);
        let allocated = self.with_space(|| posix.fallocate(ino, offset, len, what, kill));
        self.checked("fallocate", number, allocated)
    }

    /// Finds data or holes through the opening with that handle; `whence` as in lseek(2). The kernel answers the rest by
    /// itself.
    ///
    /// It does not write back before it asks. So a file that others have open for writing is data from its start to its
    /// end: they may have mapped it, and changed it there.
    ///
    /// # Errors
    /// ENOSYS where the kernel writes back (invariant 4). After that answer it takes each file for data, as Linux does
    /// for file systems that know of no holes.
    pub fn seek(&self, number: u64, handle: u64, offset: i64, whence: i32) -> Result<u64> {
        let _timer = self.latencies.time(Kind::Look);
        if self.is_written_back() && !is_broken(Rule::UnwrittenIsNoHole) {
            return Err(Os::NOSYS.into());
        }
        let ino = Self::ino(number)?;
        let offset = u64::try_from(offset).map_err(|_| Os::NXIO)?;
        if self.open_files.may_be_mapped(ino, handle) {
            let size = self.getattr(number)?.size;
            return match whence {
                SEEK_DATA | SEEK_HOLE if offset >= size => Err(Os::NXIO.into()),
                SEEK_DATA => Ok(offset),
                SEEK_HOLE => Ok(size),
                _ => Err(Os::INVAL.into()),
            };
        }
        let found = match whence {
            SEEK_DATA => self.posix.seek_data(ino, offset),
            SEEK_HOLE => self.posix.seek_hole(ino, offset),
            _ => return Err(Os::INVAL.into()),
        };
        self.checked("seek", number, found)
    }

    /// Copies within the store and returns how much. Treats privileges as [`Service::fallocate`] does.
    pub fn copy_range(&self, from: (u64, u64), to: (u64, u64), len: u64, caller: Caller) -> Result<u64> {
        let _timer = self.latencies.time(Kind::Change);
        let (from, to_ino) = ((Self::ino(from.0)?, from.1), Self::ino(to.0)?);
        let kill = unprivileged(caller);
        let posix = self.posix_for(caller);
        let copied = self.with_space(|| posix.copy_range(from, (to_ino, to.1), len, kill));
        self.checked("copy", to.0, copied)
    }

    /// The DirectFS handshake, for files that are open for writing, since it changes what writes do, and whose writes
    /// are requests; and the flags of lsattr(1) and chattr(1). Every other ioctl is refused. `data` came with the
    /// command; returns what goes back.
    pub fn ioctl(
        &self,
        number: u64,
        handle: u64,
        command: u32,
        data: &[u8],
        caller: Caller,
    ) -> Result<Vec<u8>> {
        if let Some(answer) = self.flags_ioctl(number, command, data, caller) {
            let _timer = self.latencies.time(Kind::Change);
            return answer;
        }
        let may_tear =
            self.is_written_back() && !Opening::is_direct(handle) && !is_broken(Rule::AtomicIsDirect);
        if command != DFS_IOCTL_ATOMIC_WRITE_SET || may_tear {
            return Err(Os::NOTTY.into());
        }
        if !Opening::is_writable(handle) && !is_broken(Rule::WritersAsk) {
            return Err(Os::BADF.into());
        }
        if self.open_files.ask(Self::ino(number)?) {
            self.counters.atomic_handshake();
        }
        Ok(Vec::new())
    }

    /// No program reads or writes a file that is gone.
    fn forget_gone(&self, ino: Ino) {
        if self.open_files.knows(ino) && self.posix.getattr(ino).is_err_and(|error| is_stale(&error)) {
            self.open_files.remove(ino);
        }
    }
}

/// The rest.
impl Service {
    /// Space and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        let _timer = self.latencies.time(Kind::Look);
        self.checked("statfs", FUSE_ROOT, self.posix.statfs())
    }

    /// An extended attribute.
    pub fn getxattr(&self, number: u64, name: &[u8]) -> Result<Vec<u8>> {
        let _timer = self.latencies.time(Kind::Look);
        no_label(name)?;
        if compression::is_own(name) {
            return self.own_xattr(number, name);
        }
        self.checked("getxattr", number, self.posix.getxattr(Self::ino(number)?, name))
    }

    /// Names of extended attributes, each with a NUL behind it. The kernel itself denies unprivileged callers the
    /// attributes in `trusted.`, but lists every name that it gets. The request does not carry privileges, so only root
    /// counts as privileged.
    pub fn listxattr(&self, number: u64, caller: Caller) -> Result<Vec<u8>> {
        let _timer = self.latencies.time(Kind::Look);
        let mut names = self.checked("listxattr", number, self.posix.listxattr(Self::ino(number)?))?;
        if caller.uid != 0 && !is_broken(Rule::TrustedHidden) {
            let others = names.split_inclusive(|byte| *byte == 0).filter(|name| !name.starts_with(TRUSTED));
            names = others.flatten().copied().collect();
        }
        Ok(names)
    }

    /// Sets an extended attribute; of an access control list, `set_group_id` says what becomes of that bit.
    pub fn setxattr(
        &self,
        number: u64,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        caller: Caller,
        set_group_id: SetGroupId,
    ) -> Result<()> {
        let _timer = self.latencies.time(Kind::Change);
        no_label(name)?;
        if compression::is_own(name) {
            return self.set_own_xattr(number, name, value, caller);
        }
        let ino = Self::ino(number)?;
        let goes = match name == ACL {
            true => self.checked("setxattr", number, self.takes_set_group_id(ino, caller, set_group_id))?,
            false => false,
        };
        let posix = self.posix_for(caller);
        let set = self.with_space(|| match goes {
            true => posix.setxattr_without_set_group_id(ino, name, value, mode),
            false => posix.setxattr(ino, name, value, mode),
        });
        self.checked("setxattr", number, set)
    }

    /// Whether setting an access control list takes set-group-id away: the kernel leaves that to the file system.
    fn takes_set_group_id(
        &self,
        ino: Ino,
        caller: Caller,
        set_group_id: SetGroupId,
    ) -> lacuna_nvmfs::Result<bool> {
        let attr = self.posix.getattr(ino)?;
        let goes = match set_group_id {
            SetGroupId::Stays => false,
            SetGroupId::Goes => true,
            SetGroupId::ByFirstGroup => {
                caller.uid != 0 && attr.kind != FileKind::Directory && attr.gid != caller.gid
            }
        };
        Ok(goes && !is_broken(Rule::ListsTakeSetGroupId))
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, number: u64, name: &[u8]) -> Result<()> {
        let _timer = self.latencies.time(Kind::Change);
        let ino = Self::ino(number)?;
        if compression::is_own(name) {
            return Err(Os::OPNOTSUPP.into());
        }
        self.checked("removexattr", number, self.with_space(|| self.posix.removexattr(ino, name)))
    }
}

/// Refuses the label of SELinux, which the kernel has for a FUSE mount as a whole and not for its files. `ls -l` asks
/// for each file's label until it gets the answer that labels are not supported.
fn no_label(name: &[u8]) -> Result<()> {
    if name == b"security.selinux" { Err(Os::OPNOTSUPP.into()) } else { Ok(()) }
}

fn is_stale(error: &lacuna_nvmfs::Error) -> bool {
    matches!(error, lacuna_nvmfs::Error::Refused(Refusal::Stale))
}

/// Whether the store is full, or what its owner may have.
fn is_full(error: &lacuna_nvmfs::Error) -> bool {
    [Os::NOSPC, Os::DQUOT].map(Os::raw_os_error).contains(&error.errno())
}

/// The attributes of an unreadable inode that its name provides.
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

/// The caller of a request that removes privileges, unless it is root's.
fn unprivileged(caller: Caller) -> Option<Caller> {
    (caller.uid != 0 && !is_broken(Rule::ChangesTakePrivileges)).then_some(caller)
}

fn has(open_flags: i32, flag: OFlags) -> bool {
    OFlags::from_bits_retain(open_flags as u32).contains(flag)
}

mod compression;
mod names;
#[cfg(test)]
mod tests;
