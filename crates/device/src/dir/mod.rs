//! Files in a directory of the operating system's file system.
//!
//! A [`DirVfs`] owns locks of the file [`LOCK_NAME`] in the directory and of the directory itself, and a table of the files
//! that are open or written and not yet synced. Anybody who may write there can remove the file. The directory's lock is
//! for that case: without it no new file is made. Not every file system has it, and whoever may read the directory can
//! take it; so where the file is there, it counts only if the directory is for its owner alone.
//!
//! 1. A file leaves the table only when no handle of it is left and it was synced since its last
//!    write, so a sync of the VFS reaches every write.
//! 2. What is opened is a regular file of the directory: no link is followed, and whatever else has the name of a file is
//!    refused before it is read or written. Directories may come from strangers.
//! 3. Names are durable when `create`, `remove` and `rename` return, and when the VFS is opened: each syncs the
//!    directory.
//! 4. Nothing is changed once another file has the lock's name, as after a restore over a VFS in use: what is there may
//!    be another process's, which holds that lock.
//!
//! Nothing here is ordered, and no batch is atomic. Single writes are where the system says so ([`File::props`]): XFS and
//! ext4 write a power of two atomically (`RWF_ATOMIC`).

mod cow;
mod file;

use std::{
    collections::HashMap,
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, StatVfsMountFlags},
    io::Errno,
};

use self::file::DirFile;
use crate::{
    AtomicWrites, BatchOp, Error, File, FileId, FileProps, Result, SECTOR, StreamHint, Vfs, VfsStats,
    check_file_name,
    mutant::{Rule, is_broken},
    positional::PositionalFile,
    process::Process,
};

/// Held locked while the VFS is open. It is empty, and no file of the VFS. It stays behind, except in a directory in which
/// nothing was made: who only looks leaves nothing there.
const LOCK_NAME: &str = ".lacuna-lock";

/// Unit of `st_blocks` in bytes, whatever the file system.
const STAT_BLOCK_BYTES: u64 = 512;

/// Opening follows no link, and waits for nobody at the other end of a FIFO.
const NO_OTHER_KINDS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);

/// How to open a [`DirVfs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirOptions {
    /// Refuse every change.
    pub read_only: bool,
}

/// A [`Vfs`] on an existing directory, opened for this process alone. Its files bypass the page cache where the file
/// system has direct I/O, and those that it makes are for their owner alone.
pub struct DirVfs {
    name: String,
    props: FileProps,
    options: DirOptions,
    files: Mutex<Files>,
    counters: Arc<Counters>,
    held: Arc<Held>,
    /// The lock was not there before, and no file was made since.
    is_untouched: AtomicBool,
    process: Process,
}

/// The directory and its lock file.
struct Held {
    directory: OwnedFd,
    /// Locked until the VFS is closed; none where nobody can write, and none can be made.
    lock: Option<PositionalFile>,
}

impl Held {
    /// Before each change: the lock's name is still this lock, or nobody's (invariant 4). There may be none where
    /// somebody removed it; who comes next makes one before anything else.
    fn must_be_ours(&self) -> Result<()> {
        let Some(lock) = &self.lock else { return Ok(()) };
        let path = || PathBuf::from(&lock.name).join(LOCK_NAME);
        let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let found = match rustix::fs::statat(&self.directory, LOCK_NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            found => found.map(identity),
        };
        let ours = rustix::fs::fstat(&lock.file).map(identity);
        match (found, ours) {
            (Ok(found), Ok(ours)) if found == ours => Ok(()),
            (Ok(_), Ok(_)) => Err(Error::Replaced { path: path() }),
            (Err(errno), _) | (_, Err(errno)) => Err(Error::io(path().display().to_string(), errno.into())),
        }
    }
}

#[derive(Default)]
struct Files {
    by_id: HashMap<FileId, Arc<DirFile>>,
    next_id: u64,
}

#[derive(Default)]
struct Counters {
    written_bytes: AtomicU64,
    read_bytes: AtomicU64,
    syncs: AtomicU64,
}

impl DirVfs {
    /// Opens the directory `path`.
    ///
    /// # Errors
    /// [`Error::Busy`] when another process has it open; an I/O error naming the directory when it does
    /// not exist or gives no right to write.
    pub fn open(path: &Path, options: DirOptions) -> Result<Arc<DirVfs>> {
        let name = path.display().to_string();
        let error = |what: &str, source: io::Error| Error::io(format!("{name}: {what}"), source);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| error("open the directory", errno.into()))?;
        let Locked { file: lock, was_there, can_probe } = lock(path, &directory, options)?;
        let mut props = FileProps {
            atomic_bytes_max: 0,
            atomic_align: 0,
            atomic_writes: None,
            hole_unit: 0,
            io_align: SECTOR as u32,
            ordered: false,
        };
        if let Some(lock) = lock.as_ref().filter(|_| can_probe) {
            props.atomic_writes =
                lock.atomic_writes().map_err(|source| error("probe for atomic writes", source))?;
            props.hole_unit = hole_unit(&lock.file).map_err(|source| error("probe for holes", source))?;
            props.io_align = lock.io_align;
        }
        let vfs = DirVfs {
            name,
            props,
            options,
            files: Mutex::default(),
            counters: Arc::default(),
            held: Arc::new(Held { directory, lock }),
            is_untouched: AtomicBool::new(!was_there),
            process: Process::current(),
        };
        if !options.read_only {
            vfs.sync_names()?; // a process may have ended between a change and its sync
        }
        Ok(Arc::new(vfs))
    }

    /// What a file made in the directory `path` would write atomically, as far as a file without a name tells: the
    /// directory and its times stay as they are, and it may be in use. `None` where no such file can be made.
    ///
    /// # Errors
    /// When the file cannot be asked.
    pub fn probe_atomic_writes(path: &Path) -> Result<Option<Option<AtomicWrites>>> {
        let name = path.display().to_string();
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let Ok(file) = PositionalFile::open_in(CWD, path, name.clone(), flags) else { return Ok(None) };
        let writes = file.in_sectors().and_then(|file| file.atomic_writes());
        writes.map(Some).map_err(|source| Error::io(format!("{name}: probe for atomic writes"), source))
    }

    fn check_writable(&self, operation: &'static str) -> Result<()> {
        if self.options.read_only {
            return Err(Error::Unsupported { what: self.name.clone(), operation });
        }
        self.held.must_be_ours()
    }

    /// The error of a failed operation on the file `name`.
    fn error(&self, name: &str, operation: &str, errno: Errno) -> Error {
        match errno {
            Errno::NOENT => Error::NotFound { name: name.to_owned() },
            Errno::EXIST => Error::Exists { name: name.to_owned() },
            _ => Error::io(format!("{}/{name}: {operation}", self.name), errno.into()),
        }
    }

    /// Names have changed: makes that durable.
    fn sync_changed_names(&self) -> Result<()> {
        self.is_untouched.store(false, Relaxed);
        self.sync_names()
    }

    fn sync_names(&self) -> Result<()> {
        self.counters.syncs.fetch_add(1, Relaxed);
        if is_broken(Rule::NamesSynced) {
            return Ok(());
        }
        rustix::fs::fsync(&self.held.directory)
            .map_err(|errno| Error::io(format!("{}: sync the directory", self.name), errno.into()))
    }

    fn open_file(&self, name: &str, flags: OFlags) -> Result<Arc<DirFile>> {
        let access = if self.options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = access | NO_OTHER_KINDS | flags;
        let full_name = format!("{}/{name}", self.name);
        let opened = PositionalFile::open_in(&self.held.directory, Path::new(name), full_name.clone(), flags);
        let file = opened.and_then(PositionalFile::in_sectors).map_err(|source| {
            let errno = Errno::from_io_error(&source);
            errno.map_or_else(|| Error::io(name, source), |errno| self.error(name, "open", errno))
        })?;
        must_be_regular(&file.file, None).map_err(|source| Error::io(full_name.clone(), source))?;
        let atomic_writes = file.atomic_writes().map_err(|source| Error::io(full_name, source))?;
        let props = FileProps { atomic_writes, ..self.props };
        if let Some(writes) = atomic_writes.filter(|_| !self.options.read_only) {
            // Where this is refused, as by ext4, nothing is copied.
            let _ = cow::copy_in_units_of(&file.file, writes.bytes_min);
        }
        let mut files = self.files.lock();
        let is_kept = |file: &Arc<DirFile>| file.is_dirty() && !is_broken(Rule::ClosedFilesKept);
        files.by_id.retain(|_, file| Arc::strong_count(file) > 1 || is_kept(file)); // invariant 1
        let id = FileId(files.next_id);
        files.next_id += 1;
        let (held, counters) = (Arc::clone(&self.held), Arc::clone(&self.counters));
        let file = DirFile::new(id, file, props, self.options.read_only, held, counters);
        files.by_id.insert(id, Arc::clone(&file));
        Ok(file)
    }

    fn file(&self, id: FileId) -> Result<Arc<DirFile>> {
        let missing = || Error::NotFound { name: format!("file number {}", id.0) };
        self.files.lock().by_id.get(&id).cloned().ok_or_else(missing)
    }

    /// Space taken by all files, in bytes.
    fn allocated_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for name in self.list()? {
            match rustix::fs::statat(&self.held.directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES,
                Err(Errno::NOENT) => {} // removed since it was listed
                Err(errno) => return Err(self.error(&name, "stat", errno)),
            }
        }
        Ok(bytes)
    }
}

impl Drop for DirVfs {
    fn drop(&mut self) {
        // A child shares the locks, and would take them from its parent.
        if !self.process.is_current() {
            return;
        }
        // First: who gets the file's lock shall not find this one taken, and go on without it.
        let _ = rustix::fs::flock(&self.held.directory, FlockOperation::Unlock);
        if let Some(lock) = &self.held.lock {
            // Before it is unlocked, so that nobody holds it.
            if *self.is_untouched.get_mut() && self.held.must_be_ours().is_ok() {
                let _ = rustix::fs::unlinkat(&self.held.directory, LOCK_NAME, AtFlags::empty());
            }
            let _ = rustix::fs::flock(&lock.file, FlockOperation::Unlock);
        }
    }
}

/// The locks of a directory, which is locked as well.
struct Locked {
    /// None where nobody can write, and none can be made.
    file: Option<PositionalFile>,
    was_there: bool,
    /// Whether the file is open for writing.
    can_probe: bool,
}

/// Locks the directory `path`, for this process alone.
fn lock(path: &Path, directory: &OwnedFd, options: DirOptions) -> Result<Locked> {
    let name = path.display().to_string();
    let error = |what: &str, source: io::Error| Error::io(format!("{name}: {what}"), source);
    let busy = || Error::Busy { path: PathBuf::from(path) };
    // Where a directory has no locks, as on NFS, the file's has to do.
    let is_taken = |lock| rustix::fs::flock(directory, lock) == Err(Errno::WOULDBLOCK);
    let open = |flags| {
        let opened =
            PositionalFile::open_in(directory, Path::new(LOCK_NAME), name.clone(), flags | NO_OTHER_KINDS);
        opened.and_then(PositionalFile::in_sectors)
    };
    let mut nobody_writes = options.read_only
        && rustix::fs::fstatvfs(directory).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY));
    loop {
        let mut opened = open(if nobody_writes { OFlags::RDONLY } else { OFlags::RDWR });
        let was_there = !opened.as_ref().is_err_and(|source| source.kind() == io::ErrorKind::NotFound);
        if !was_there && nobody_writes {
            // Others may write there by another mount, and otherwise read.
            return match is_taken(FlockOperation::NonBlockingLockShared) {
                true => Err(busy()),
                false => Ok(Locked { file: None, was_there, can_probe: false }),
            };
        }
        if !was_there {
            // It may have been removed while somebody has the directory open.
            if is_taken(FlockOperation::NonBlockingLockExclusive) {
                return Err(busy());
            }
            opened = open(OFlags::RDWR | OFlags::CREATE);
        }
        let is_refused =
            opened.as_ref().is_err_and(|source| source.kind() == io::ErrorKind::ReadOnlyFilesystem);
        if is_refused && options.read_only && !nobody_writes {
            // Not all of the file system: a snapshot of btrfs, say.
            nobody_writes = true;
            continue;
        }
        let lock = opened.map_err(|source| error(&format!("create {LOCK_NAME} in the directory"), source))?;
        // It is probed for holes, which must not cost anybody's data.
        must_be_regular(&lock.file, Some(0)).map_err(|source| error(LOCK_NAME, source))?;
        match rustix::fs::flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(busy()),
            Err(errno) => return Err(error("lock", errno.into())),
        }
        // Its last owner may have removed it since it was opened, and others may have made a new one.
        if lock.file.metadata().is_ok_and(|lock| lock.nlink() == 0) {
            continue;
        }
        if is_taken(FlockOperation::NonBlockingLockExclusive) && is_private(directory) {
            return Err(busy());
        }
        return Ok(Locked { file: Some(lock), was_there, can_probe: !nobody_writes });
    }
}

/// Whether only its owner, and root, can open the directory, and so lock it.
fn is_private(directory: &OwnedFd) -> bool {
    let others = Mode::RGRP | Mode::ROTH;
    rustix::fs::fstat(directory).is_ok_and(|stat| !Mode::from_raw_mode(stat.st_mode).intersects(others))
}

/// Refuses what is no regular file (invariant 2), or has another length.
fn must_be_regular(file: &fs::File, len: Option<u64>) -> io::Result<()> {
    let metadata = file.metadata()?;
    match metadata.is_file() && len.is_none_or(|len| metadata.len() == len) {
        true => Ok(()),
        false => {
            let what = if len == Some(0) { "not an empty regular file" } else { "not a regular file" };
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
    }
}

/// Granularity of holes in the file system of `probe`, an empty file; 0 when it refuses one, for whatever reason. The
/// length that it likes requests to have (`st_blksize`) may be far more: 64 KiB on a mounted store.
fn hole_unit(probe: &fs::File) -> io::Result<u32> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(probe, flags, 0, 4096) {
        Ok(()) => {
            let unit = u32::try_from(rustix::fs::fstatvfs(probe)?.f_frsize).unwrap_or(0);
            Ok(unit.max(1).next_multiple_of(SECTOR as u32))
        }
        Err(_) => Ok(0),
    }
}

/// Checks the name of a file of the VFS.
fn check_name(name: &str) -> Result<()> {
    check_file_name(name)?;
    if name == LOCK_NAME {
        return Err(Error::BadName { name: name.to_owned(), reason: "reserved for the lock" });
    }
    Ok(())
}

impl Vfs for DirVfs {
    fn name(&self) -> &str {
        &self.name
    }

    fn props(&self) -> FileProps {
        self.props
    }

    fn open(&self, name: &str, _hint: StreamHint) -> Result<Arc<dyn File>> {
        check_name(name)?;
        Ok(self.open_file(name, OFlags::empty())?)
    }

    fn create(&self, name: &str, _hint: StreamHint) -> Result<Arc<dyn File>> {
        check_name(name)?;
        self.check_writable("create in a directory opened read-only")?;
        let file = self.open_file(name, OFlags::CREATE | OFlags::EXCL)?;
        self.sync_changed_names()?;
        Ok(file)
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.check_writable("remove from a directory opened read-only")?;
        rustix::fs::unlinkat(&self.held.directory, name, AtFlags::empty())
            .map_err(|errno| self.error(name, "remove", errno))?;
        self.sync_changed_names()
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.check_writable("rename in a directory opened read-only")?;
        rustix::fs::renameat(&self.held.directory, from, &self.held.directory, to)
            .map_err(|errno| self.error(from, "rename", errno))?;
        self.sync_changed_names()
    }

    fn list(&self) -> Result<Vec<String>> {
        let error = |errno: Errno| Error::io(format!("{}: list", self.name), errno.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.held.directory).map_err(error)? {
            let entry = entry.map_err(error)?;
            // A name that is not UTF-8 was not made through a VFS.
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == LOCK_NAME {
                continue;
            }
            let is_file = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&self.held.directory, name, AtFlags::SYMLINK_NOFOLLOW);
                    let stat = stat.map_err(|errno| self.error(name, "stat", errno))?;
                    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                }
                file_type => file_type == FileType::RegularFile,
            };
            if is_file {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> Result<()> {
        for op in ops {
            let (offset, len) = op.range();
            self.props.check_range(&self.name, offset, len)?;
        }
        for op in ops {
            let file = self.file(op.file())?;
            match *op {
                BatchOp::Write { offset, data, .. } => file.write_at(offset, data)?,
                BatchOp::Punch { offset, len, .. } => file.punch(offset, len)?,
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let files: Vec<_> = self.files.lock().by_id.values().cloned().collect();
        files.iter().filter(|file| file.is_dirty()).try_for_each(|file| file.sync())
    }

    fn stats(&self) -> Result<VfsStats> {
        let allocated_bytes = self.allocated_bytes()?;
        Ok(VfsStats {
            device_written_bytes: self.counters.written_bytes.load(Relaxed),
            device_read_bytes: self.counters.read_bytes.load(Relaxed),
            device_syncs: self.counters.syncs.load(Relaxed),
            allocated_bytes,
            store_bytes: allocated_bytes,
        })
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        let stat = rustix::fs::fstatvfs(&self.held.directory)
            .map_err(|errno| Error::io(&self.name, io::Error::from(errno)))?;
        Ok(Some(stat.f_bavail.saturating_mul(stat.f_frsize)))
    }
}

#[cfg(test)]
mod tests;
