//! Raw space on a store file or a block device.

mod discard;
mod engine;
mod new_file;
mod read_time;
mod request;
mod ring;
mod together;

use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FallocateFlags, FlockOperation, OFlags, SeekFrom},
    io::Errno,
};

pub use self::{engine::BlockIo, new_file::NewFile, read_time::read_time};
use self::{
    engine::Engine,
    request::{Done, Memory, Request},
    together::Transfer,
};
use crate::{
    AlignedBuf, BlockDevice, DeviceStats, Error, Filled, Geometry, GrowingGeometry, Result, WriteDone,
    mutant::{Rule, is_broken},
    positional::PositionalFile,
};

/// Sizes of new store files are multiples of this, in bytes, so that they suit any device.
const SIZE_UNIT: u64 = 4096;

/// How to open a [`RawDevice`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawOptions {
    /// Refuse writes, syncs and discards.
    pub read_only: bool,
    /// The I/O engine for [`BlockDevice::submit_write`] and [`BlockDevice::read_many`].
    pub io: BlockIo,
}

/// A [`BlockDevice`] on a store file or a block device, opened for this process alone.
///
/// It bypasses the page cache unless the file system below has no direct I/O (see
/// [`RawDevice::is_direct`]).
pub struct RawDevice {
    /// Started by the first request in flight.
    engine: OnceLock<Engine>,
    file: Arc<PositionalFile>,
    /// The file behind a loop device, locked as well.
    _behind: Option<fs::File>,
    geometry: GrowingGeometry,
    options: RawOptions,
    is_block_device: bool,
    /// Whether the file may have holes: see [`RawDevice::preallocate`].
    has_holes: AtomicBool,
    /// Set once the system refused a discard: they are advice, so that is no error.
    discards_refused: AtomicBool,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    syncs: AtomicU64,
    discarded_bytes: AtomicU64,
}

impl Counters {
    fn note_read(&self, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    fn note_write(&self, bytes: usize) {
        self.writes.fetch_add(1, Relaxed);
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl RawDevice {
    /// Creates a store file of `size_bytes` zeros that take no space yet, for its owner alone, and opens it.
    ///
    /// # Errors
    /// [`Error::Exists`] when there is anything of that name, [`Error::Unsupported`] for a size that is
    /// zero or not a multiple of 4096. On any error nothing is left behind, unless another process has opened the file
    /// since it has its name: then that is [`Error::Busy`].
    pub fn create(path: &Path, size_bytes: u64, options: RawOptions) -> Result<RawDevice> {
        NewFile::make(path, size_bytes, options)?.publish()?;
        RawDevice::open(path, options)
    }

    /// Opens an existing store file or block device.
    ///
    /// # Errors
    /// [`Error::Busy`] when another opener keeps it for a second, [`Error::Unsupported`] when it is neither or
    /// `LACUNA_IO` is nonsense, and the system's error when an io_uring is asked for by name and refused.
    pub fn open(path: &Path, options: RawOptions) -> Result<RawDevice> {
        let name = path.display().to_string();
        let metadata = fs::metadata(path).map_err(|error| Error::io(format!("{name}: open"), error))?;
        let is_block_device = metadata.file_type().is_block_device();
        if !is_block_device && !metadata.is_file() {
            let operation = "a store that is neither a regular file nor a block device";
            return Err(Error::Unsupported { what: name, operation });
        }
        let mut flags = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        if is_block_device {
            if !options.read_only && is_write_protected(&metadata) {
                return Err(Error::io(format!("{name}: open"), Errno::ROFS.into()));
            }
            flags |= OFlags::EXCL; // refused while it is mounted or held by another
        }
        let Claimed { file, behind } = claim(path, flags)?;
        RawDevice::of_file(file, behind, options, is_block_device)
    }

    fn of_file(
        file: PositionalFile,
        behind: Option<fs::File>,
        mut options: RawOptions,
        is_block_device: bool,
    ) -> Result<RawDevice> {
        options.io = engine::wanted(options.io, env::var("LACUNA_IO").ok().as_deref())?;
        let size_bytes = measure(&file)?;
        let has_holes = has_holes(&file)?;
        let block = u64::from(file.io_align);
        let device = RawDevice {
            geometry: GrowingGeometry::new(Geometry {
                capacity_bytes: size_bytes / block * block,
                block_bytes: file.io_align,
                erase_bytes: 0,
            }),
            engine: OnceLock::new(),
            file: Arc::new(file),
            _behind: behind,
            options,
            is_block_device,
            has_holes: AtomicBool::new(has_holes),
            discards_refused: AtomicBool::new(false),
            counters: Arc::default(),
        };
        if options.io == BlockIo::Uring {
            device.engine()?;
        }
        Ok(device)
    }

    /// Replaces the content of a store file by `size_bytes` zeros that take no space yet.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a block device, and for sizes as in [`RawDevice::create`].
    pub fn recreate(&mut self, size_bytes: u64) -> Result<()> {
        self.check_writable("change of a store opened read-only")?;
        check_size(&self.file.name, size_bytes)?;
        if self.is_block_device {
            let operation = "another size for a block device";
            return Err(Error::Unsupported { what: self.file.name.clone(), operation });
        }
        let file = &self.file.file;
        file.set_len(0)
            .and_then(|()| file.set_len(size_bytes))
            .and_then(|()| sync_length(file))
            .map_err(|error| self.file.error(&format!("set length to {size_bytes}"), error))?;
        self.geometry.replace(size_bytes);
        self.has_holes.store(true, Relaxed);
        Ok(())
    }

    /// Sets space aside for all of a store file, so that its file system cannot run out of it later. That is a property
    /// of the file, not of the store: a file without holes is given none when it is discarded, and grows without any.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a block device and where the file system sets no space aside, [`Error::Full`] where it
    /// has too little. The content is as before.
    pub fn preallocate(&self) -> Result<()> {
        self.check_writable("change of a store opened read-only")?;
        if self.is_block_device {
            return Err(self.unsupported("preallocation of a block device, which has all of its space"));
        }
        self.allocate(measure(&self.file)?)?;
        self.has_holes.store(false, Relaxed);
        Ok(())
    }

    /// Makes the file `size_bytes` long, if it is shorter, and without holes.
    fn allocate(&self, size_bytes: u64) -> Result<()> {
        const NONE_SET_ASIDE: &str = "preallocation: the file system sets no space aside";
        let before = measure(&self.file)?;
        let file = &self.file.file;
        let allocated = match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size_bytes) {
            Ok(()) => sync_length(file).map_err(|error| self.file.error("sync", error)),
            Err(Errno::NOTSUP | Errno::NOSYS) => Err(self.unsupported(NONE_SET_ASIDE)),
            Err(errno) => Err(self.file.error(&format!("preallocate {size_bytes} bytes"), errno.into())),
        };
        // Some file systems only look whether there is space now.
        let allocated = allocated.and_then(|()| match has_holes(&self.file)? {
            true => Err(self.unsupported(NONE_SET_ASIDE)),
            false => Ok(()),
        });
        // The error says more than a failure to tidy up would.
        allocated.inspect_err(|_| drop(file.set_len(before)))
    }

    fn unsupported(&self, operation: &'static str) -> Error {
        Error::Unsupported { what: self.file.name.clone(), operation }
    }

    /// Whether it is a block device, not a file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Size of the file or device in bytes; its capacity is this, rounded down to whole blocks.
    pub fn size_bytes(&self) -> Result<u64> {
        measure(&self.file)
    }

    /// Whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.file.direct
    }

    fn check_writable(&self, operation: &'static str) -> Result<()> {
        if self.options.read_only {
            return Err(Error::Unsupported { what: self.file.name.clone(), operation });
        }
        Ok(())
    }

    fn engine(&self) -> Result<&Engine> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let started = Engine::start(self.options.io, &self.file)?;
        // Of two engines started at once, one ends again unused.
        Ok(self.engine.get_or_init(|| started))
    }

    /// Carries out all `transfers` and waits for them; `None` if the engine has to do it instead.
    fn carry_out<'a>(&self, transfers: impl Iterator<Item = Transfer<'a>>) -> Option<Result<()>> {
        if self.options.io == BlockIo::Threads {
            return None;
        }
        together::carry_out(&self.file, transfers.collect())
    }

    fn try_discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.is_block_device {
            return discard::discard_block_range(&self.file.file, offset, len);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file.file, flags, offset, len)?)
    }
}

/// How long an opener waits for another owner to release the store. A killed process holds its store until the kernel
/// has ended its requests in flight, which could otherwise still be written after the next opener has read.
pub(crate) const CLAIM_PATIENCE: Duration = Duration::from_secs(1);
pub(crate) const CLAIM_INTERVAL: Duration = Duration::from_millis(10);

/// What an owner has locked.
struct Claimed {
    file: PositionalFile,
    behind: Option<fs::File>,
}

/// Opens and locks `path`, which has one owner at a time.
fn claim(path: &Path, flags: OFlags) -> Result<Claimed> {
    let deadline = Instant::now() + CLAIM_PATIENCE;
    loop {
        if let Some(claimed) = try_claim(path, flags)? {
            return Ok(claimed);
        }
        if Instant::now() >= deadline {
            return Err(Error::Busy { path: PathBuf::from(path) });
        }
        thread::sleep(CLAIM_INTERVAL);
    }
}

/// `None` while another owner holds it.
fn try_claim(path: &Path, flags: OFlags) -> Result<Option<Claimed>> {
    let file = match PositionalFile::open(path, flags) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(None),
        Err(error) => return Err(Error::io(format!("{}: open", path.display()), error)),
    };
    // Readers keep writers away, and not each other.
    let lock = match flags.contains(OFlags::RDWR) {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    let behind = file_behind(&file);
    for locked in [Some(&file.file), behind.as_ref()].into_iter().flatten() {
        match rustix::fs::flock(locked, lock) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(file.error("lock", errno.into())),
        }
    }
    Ok(Some(Claimed { file, behind }))
}

/// The file that a loop device, or a partition of one, is made of: it may be opened as a store too. None where it cannot
/// be found by the name that it had.
fn file_behind(device: &PositionalFile) -> Option<fs::File> {
    let metadata = device.file.metadata().ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let name = ["loop", "../loop"]
        .iter()
        .find_map(|at| fs::read(format!("/sys/dev/block/{major}:{minor}/{at}/backing_file")).ok())?;
    let name = Path::new(OsStr::from_bytes(name.strip_suffix(b"\n")?));
    // Anything could have its name by now; opening a pipe would wait.
    fs::metadata(name).ok().filter(fs::Metadata::is_file)?;
    fs::File::open(name).ok()
}

/// Whether the system refuses writes to a block device. It would refuse them one by one, and open it all the same.
fn is_write_protected(device: &fs::Metadata) -> bool {
    let (major, minor) = (rustix::fs::major(device.rdev()), rustix::fs::minor(device.rdev()));
    fs::read(format!("/sys/dev/block/{major}:{minor}/ro")).is_ok_and(|flag| flag.starts_with(b"1"))
}

/// Size in bytes. Block devices have none in their metadata; the end of either is where seeking ends.
fn measure(file: &PositionalFile) -> Result<u64> {
    rustix::fs::seek(&file.file, SeekFrom::End(0)).map_err(|errno| file.error("measure", errno.into()))
}

/// Whether a file lacks space for some of its bytes. A store's last MiB is never written whole, so a store file that was
/// not preallocated keeps a hole however full it gets.
fn has_holes(file: &PositionalFile) -> Result<bool> {
    let metadata = file.file.metadata().map_err(|error| file.error("measure", error))?;
    Ok(metadata.is_file() && metadata.blocks() * 512 < metadata.len())
}

fn check_size(name: &str, size_bytes: u64) -> Result<()> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(SIZE_UNIT) || size_bytes > i64::MAX as u64 {
        let operation = "a store size that is zero, not a multiple of 4096 bytes, or beyond 2^63";
        return Err(Error::Unsupported { what: name.to_owned(), operation });
    }
    Ok(())
}

/// Makes the length of a file durable.
fn sync_length(file: &fs::File) -> io::Result<()> {
    if is_broken(Rule::LengthsSynced) { Ok(()) } else { file.sync_all() }
}

impl BlockDevice for RawDevice {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn name(&self) -> &str {
        &self.file.name
    }

    /// Makes a store file longer: by a hole, unless it has none. A block device is as large as it is.
    fn grow(&self, capacity_bytes: u64) -> Result<Geometry> {
        let is_longer = capacity_bytes > measure(&self.file)?;
        if self.is_block_device || capacity_bytes == 0 {
            return Ok(self.geometry.grow(measure(&self.file)?));
        }
        if is_longer {
            self.check_writable("change of a store opened read-only")?;
            check_size(&self.file.name, capacity_bytes)?;
        }
        if !self.is_sparse() {
            // Others may have made it longer by a hole.
            self.allocate(capacity_bytes)?;
        } else if is_longer {
            let file = &self.file.file;
            file.set_len(capacity_bytes)
                .and_then(|()| sync_length(file))
                .map_err(|error| self.file.error(&format!("set length to {capacity_bytes}"), error))?;
        }
        Ok(self.geometry.grow(measure(&self.file)?))
    }

    fn is_sparse(&self) -> bool {
        self.has_holes.load(Relaxed)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry().check_range(&self.file.name, offset, buf.len() as u64)?;
        self.file.read_exact_at(offset, buf)?;
        self.counters.note_read(buf.len());
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable("write to a store opened read-only")?;
        self.geometry().check_range(&self.file.name, offset, data.len() as u64)?;
        self.file.write_at(offset, data)?;
        self.counters.note_write(data.len());
        Ok(())
    }

    fn read_many(&self, reads: &mut [(u64, AlignedBuf)]) -> Result<()> {
        if let [(offset, buf)] = reads {
            return self.read_at(*offset, buf);
        }
        for (offset, buf) in reads.iter() {
            self.geometry().check_range(&self.file.name, *offset, buf.len() as u64)?;
        }
        let transfers = reads.iter_mut().map(|(offset, buf)| Transfer::read(*offset, buf));
        if let Some(outcome) = self.carry_out(transfers) {
            outcome?;
            reads.iter().for_each(|(_, buf)| self.counters.note_read(buf.len()));
            return Ok(());
        }
        let (sender, ended) = mpsc::channel();
        let begin = |(number, (offset, buf)): (usize, &mut (u64, AlignedBuf))| {
            let (sender, counters) = (sender.clone(), Arc::clone(&self.counters));
            let done: Done = Box::new(move |outcome, memory| {
                let buf = memory.into_read();
                if outcome.is_ok() {
                    counters.note_read(buf.len());
                }
                let _ = sender.send((number, outcome, buf)); // who asked waits for it
            });
            let buf = std::mem::replace(buf, AlignedBuf::zeroed(0));
            Request { offset: *offset, memory: Memory::Read(buf), done }
        };
        let engine = self.engine()?;
        engine.submit(reads.iter_mut().enumerate().map(begin).collect());
        drop(sender);
        let mut all = Ok(());
        for (number, outcome, buf) in ended {
            reads[number].1 = buf;
            all = all.and(outcome);
        }
        all
    }

    fn write_many(&self, writes: &[(u64, Filled)]) -> Result<()> {
        let is_direct = |(_, data): &(u64, Filled)| !self.file.needs_bounce(data.as_ptr());
        if writes.len() > 1 && writes.iter().all(is_direct) {
            self.check_writable("write to a store opened read-only")?;
            for (offset, data) in writes {
                self.geometry().check_range(&self.file.name, *offset, data.len() as u64)?;
            }
            let transfers = writes.iter().map(|(offset, data)| Transfer::write(*offset, data));
            if let Some(outcome) = self.carry_out(transfers) {
                outcome?;
                writes.iter().for_each(|(_, data)| self.counters.note_write(data.len()));
                return Ok(());
            }
        }
        writes.iter().try_for_each(|(offset, data)| self.write_at(*offset, data))
    }

    fn submit_write(&self, offset: u64, data: Filled, done: WriteDone) {
        let len = data.len();
        let begun = self
            .check_writable("write to a store opened read-only")
            .and_then(|()| self.geometry().check_range(&self.file.name, offset, len as u64))
            .and_then(|()| self.engine());
        let engine = match begun {
            Ok(_) if self.file.needs_bounce(data.as_ptr()) => {
                return done(self.write_at(offset, &data), data);
            }
            Ok(engine) => engine,
            Err(error) => return done(Err(error), data),
        };
        let counters = Arc::clone(&self.counters);
        let counted: Done = Box::new(move |outcome, memory| {
            if outcome.is_ok() {
                counters.note_write(len);
            }
            done(outcome, memory.into_write());
        });
        engine.submit(vec![Request { offset, memory: Memory::Write(data), done: counted }]);
    }

    fn io_engine(&self) -> Result<&'static str> {
        Ok(self.engine()?.name())
    }

    fn sync(&self) -> Result<()> {
        self.check_writable("sync of a store opened read-only")?;
        self.file.sync()?;
        self.counters.syncs.fetch_add(1, Relaxed);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_writable("discard in a store opened read-only")?;
        self.geometry().check_range(&self.file.name, offset, len)?;
        // A file without holes keeps its space.
        let is_kept = !self.is_block_device && !self.is_sparse();
        if len == 0 || is_kept || self.discards_refused.load(Relaxed) {
            return Ok(());
        }
        match self.try_discard(offset, len) {
            Ok(()) => {
                self.counters.discarded_bytes.fetch_add(len, Relaxed);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.discards_refused.store(true, Relaxed);
                Ok(())
            }
            Err(error) => Err(self.file.error(&format!("discard at byte {offset}"), error)),
        }
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats {
            reads: self.counters.reads.load(Relaxed),
            read_bytes: self.counters.read_bytes.load(Relaxed),
            writes: self.counters.writes.load(Relaxed),
            written_bytes: self.counters.written_bytes.load(Relaxed),
            syncs: self.counters.syncs.load(Relaxed),
            discarded_bytes: self.counters.discarded_bytes.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    const SIZE: u64 = 1 << 20;

    fn store() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        (directory, path)
    }

    fn create(path: &Path) -> RawDevice {
        RawDevice::create(path, SIZE, RawOptions::default()).unwrap()
    }

    #[test]
    fn reads_back_from_any_memory_and_counts() {
        let (_directory, path) = store();
        let device = create(&path);
        let block = device.geometry().block_bytes as usize;
        assert_eq!(device.geometry().capacity_bytes, SIZE);
        let mut data = vec![0; 2 * block + 1];
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = i as u8;
        }
        device.write_at(8192, &data[1..]).unwrap();
        device.sync().unwrap();
        let mut aligned = AlignedBuf::zeroed(2 * block);
        device.read_at(8192, &mut aligned).unwrap();
        assert_eq!(aligned[..], data[1..]);
        let mut unaligned = vec![0; 2 * block + 1];
        device.read_at(8192, &mut unaligned[1..]).unwrap();
        assert_eq!(unaligned[1..], data[1..]);
        let stats = device.stats();
        assert_eq!((stats.reads, stats.writes, stats.syncs), (2, 1, 1));
        assert_eq!(stats.written_bytes, 2 * block as u64);
        drop(device);
        let reopened = RawDevice::open(&path, RawOptions { read_only: true, ..Default::default() }).unwrap();
        reopened.read_at(8192, &mut aligned).unwrap();
        assert_eq!(aligned[..], data[1..]);
        assert!(matches!(reopened.write_at(0, &aligned), Err(Error::Unsupported { .. })));
    }

    #[test]
    fn a_second_opener_is_told_who_is_busy() {
        let (_directory, path) = store();
        let _device = create(&path);
        for read_only in [false, true] {
            let error = RawDevice::open(&path, RawOptions { read_only, ..Default::default() }).err().unwrap();
            assert_eq!(error.to_string(), format!("{}: in use by another process", path.display()));
        }
    }

    #[test]
    fn nothing_that_exists_is_created_over() {
        let (_directory, path) = store();
        fs::write(&path, "precious").unwrap();
        let error = RawDevice::create(&path, SIZE, RawOptions::default()).err().unwrap();
        assert!(matches!(error, Error::Exists { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_file_gets_its_name_last_and_only_if_that_is_free() {
        let (directory, path) = store();
        let names = || fs::read_dir(directory.path()).unwrap().count();
        let new = NewFile::make(&path, SIZE, RawOptions::default()).unwrap();
        new.device().write_at(0, &[7; 4096]).unwrap();
        assert!(!path.exists());
        drop(new);
        assert_eq!(names(), 0);
        let (first, second) = ["first", "second"]
            .map(|_| {
                let new = NewFile::make(&path, SIZE, RawOptions::default()).unwrap();
                new.device().write_at(0, &[8; 4096]).unwrap();
                new
            })
            .into();
        first.publish().unwrap();
        assert!(matches!(second.publish(), Err(Error::Exists { .. })));
        assert_eq!(names(), 1);
        assert!(fs::read(&path).unwrap()[..4096] == [8; 4096]);
        // One that leads nowhere is there all the same.
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(matches!(NewFile::make(&link, SIZE, RawOptions::default()), Err(Error::Exists { .. })));
        for nameless in ["", "/", ".."] {
            let error = NewFile::make(Path::new(nameless), SIZE, RawOptions::default()).err().unwrap();
            assert!(error.to_string().contains("not a name of a file"), "{error}");
        }
    }

    #[test]
    fn nonsense_is_refused_and_leaves_nothing() {
        let (directory, path) = store();
        for size in [0, 1000, u64::MAX / 4096 * 4096] {
            assert!(RawDevice::create(&path, size, RawOptions::default()).is_err());
            assert!(!path.exists());
        }
        let error = RawDevice::open(directory.path(), RawOptions::default()).err().unwrap();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let error = RawDevice::open(&path, RawOptions::default()).err().unwrap();
        assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
        let error = RawDevice::create(&directory.path().join("no/such"), SIZE, RawOptions::default());
        assert!(matches!(error, Err(Error::Io { .. })));
    }

    #[test]
    fn a_store_that_shrank_is_an_error_with_its_place() {
        let (_directory, path) = store();
        let device = create(&path);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
        let error = device.read_at(4096, &mut AlignedBuf::zeroed(8192)).err().unwrap();
        let Error::Corrupt { what, at, .. } = error else { panic!("{error}") };
        assert_eq!((what, at), (path.display().to_string(), 8192));
    }

    #[test]
    fn a_store_file_is_made_anew() {
        let (_directory, path) = store();
        let mut device = create(&path);
        device.write_at(0, &[1; 4096]).unwrap();
        assert!(device.recreate(1000).is_err());
        device.recreate(2 * SIZE).unwrap();
        let mut back = [9; 4096];
        device.read_at(0, &mut back).unwrap();
        assert_eq!((back, device.geometry().capacity_bytes), ([0; 4096], 2 * SIZE));
    }

    #[test]
    fn a_store_file_grows_while_it_is_open() {
        let (_directory, path) = store();
        let device = create(&path);
        device.write_at(0, &[1; 4096]).unwrap();
        assert_eq!(device.grow(2 * SIZE).unwrap().capacity_bytes, 2 * SIZE);
        device.write_at(2 * SIZE - 4096, &[2; 4096]).unwrap();
        assert!(device.grow(3 * SIZE + 1).is_err());
        assert_eq!(device.grow(SIZE).unwrap().capacity_bytes, 2 * SIZE, "it does not become smaller");
        // Another program may have enlarged it.
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * SIZE + 511).unwrap();
        assert_eq!(device.grow(0).unwrap().capacity_bytes / 4096, 3 * SIZE / 4096);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2 * SIZE).unwrap();
        drop(device);
        let device = RawDevice::open(&path, RawOptions::default()).unwrap();
        let mut back = [9; 4096];
        for (at, byte) in [(0, 1), (SIZE, 0), (2 * SIZE - 4096, 2)] {
            device.read_at(at, &mut back).unwrap();
            assert_eq!(back, [byte; 4096]);
        }
    }

    #[test]
    fn a_file_without_holes_gets_none() {
        let (_directory, path) = store();
        let blocks = || fs::metadata(&path).unwrap().blocks() * 512;
        let device = create(&path);
        assert!(device.is_sparse());
        device.write_at(0, &AlignedBuf::zeroed(1 << 16)).unwrap();
        match device.preallocate() {
            Err(Error::Unsupported { .. }) => {
                return eprintln!("SKIPPED: no preallocation on this file system");
            }
            allocated => allocated.unwrap(),
        }
        let keeps_its_space = |device: &RawDevice, bytes: u64| {
            assert!(!device.is_sparse());
            device.discard(0, bytes).unwrap();
            assert_eq!(device.stats().discarded_bytes, 0);
            assert!(blocks() >= bytes, "{} of {bytes}", blocks());
        };
        keeps_its_space(&device, SIZE);
        drop(device);
        let device = RawDevice::open(&path, RawOptions::default()).unwrap();
        keeps_its_space(&device, SIZE);
        assert_eq!(device.grow(2 * SIZE).unwrap().capacity_bytes, 2 * SIZE);
        keeps_its_space(&device, 2 * SIZE);
        // Another program makes it longer, by a hole.
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * SIZE).unwrap();
        assert_eq!(device.grow(0).unwrap().capacity_bytes, 3 * SIZE);
        assert!(blocks() < 3 * SIZE, "measuring allocates nothing");
        device.grow(3 * SIZE).unwrap();
        keeps_its_space(&device, 3 * SIZE);
        // What cannot be had leaves nothing behind.
        let too_much = device.grow(1 << 60).err().unwrap();
        assert!(matches!(too_much, Error::Full { .. } | Error::Io { .. }), "{too_much}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 3 * SIZE);
        keeps_its_space(&device, 3 * SIZE);
        drop(device);
        // A hole from outside, as a copy makes them.
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4 * SIZE).unwrap();
        let mut device = RawDevice::open(&path, RawOptions::default()).unwrap();
        assert!(device.is_sparse());
        device.preallocate().unwrap();
        device.recreate(SIZE).unwrap();
        assert!(device.is_sparse() && blocks() < SIZE);
    }

    #[test]
    fn what_is_discarded_of_a_file_goes_back_to_the_file_system() {
        let (_directory, path) = store();
        let device = create(&path);
        let used = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).unwrap());
        device.write_at(0, &AlignedBuf::zeroed(1 << 16)).unwrap();
        device.sync().unwrap();
        let before = used();
        device.discard(0, 1 << 16).unwrap();
        assert_eq!(device.stats().discarded_bytes, 1 << 16);
        assert!(used() < before || before == 0, "{before} blocks, then {}", used());
    }
}
