//! Memory as a log device: persistent memory (`/dev/dax*`, a file on a file system with DAX), or ordinary memory.
//!
//! 1. *Only what a fence of the processor makes durable is mapped*: memory of a `/dev/dax*` device, a file whose mapping
//!    the kernel grants with `MAP_SYNC` (then its blocks are allocated for good before they can be written), and a file
//!    in `tmpfs`, which is memory for trials. Any other file is used in blocks. A `/dev/pmem*` is a block device: the
//!    kernel lets nobody map it.
//! 2. *The mapping stays as long as the struct*, and no reference to its bytes is ever made: other processes that ignore
//!    the lock may change them at any time. All access is a copy under `guard`, so threads of this process never race.
//! 3. *A write never finds the file without space*, which would end the process: the whole file has space before it is
//!    written. Whoever cuts the file while it is mapped ends the process, as a power cut would.
//! 4. On x86-64 lines are written back by the processor's own instruction, the best that it has, and `sfence` waits for
//!    it. Elsewhere `msync` does both, so `/dev/dax*`, which has none, is refused there.

#![allow(unsafe_code)] // A mapping, copies into it, and instructions that no library offers.

use std::{
    ffi::c_void,
    fs,
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    ptr::{self, NonNull},
    thread,
    time::Instant,
};

use parking_lot::RwLock;
use rustix::{
    fs::{FallocateFlags, FlockOperation},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use super::{LogDevice, check_range};
use crate::{
    Error, Result,
    raw::{CLAIM_INTERVAL, CLAIM_PATIENCE},
};

/// The type of file systems in memory, as `statfs` reports it.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A [`LogDevice`] in mapped memory.
pub struct MappedMemory {
    name: String,
    start: NonNull<u8>,
    len: usize,
    is_volatile: bool,
    read_only: bool,
    /// Held to read and to write the bytes (2).
    guard: RwLock<()>,
    lines: Lines,
    /// Keeps the lock on the file.
    file: Option<fs::File>,
}

// SAFETY: the mapping belongs to the struct alone and is not bound to a thread; `guard` orders all access to it.
unsafe impl Send for MappedMemory {}
// SAFETY: as above.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Memory of this process, `len` bytes of zeros: for tests, and gone with the struct.
    ///
    /// # Errors
    /// The system's, when there is not so much.
    pub fn anonymous(len: usize) -> Result<MappedMemory> {
        let name = "memory".to_owned();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let mapped = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, flags) };
        let start = mapped.map_err(|errno| Error::io(format!("{name}: map"), errno.into()))?;
        Ok(MappedMemory::of(name, start, len, Mapping { is_volatile: true, read_only: false }, None))
    }

    /// Maps `path`, for this process alone, if it is memory; none if it has to be used in blocks.
    ///
    /// # Errors
    /// [`Error::Busy`] when another opener keeps it for a second, [`Error::Full`] when there is no space for all bytes of
    /// the file, and the system's.
    pub fn open(path: &Path, read_only: bool) -> Result<Option<MappedMemory>> {
        let name = path.display().to_string();
        let failed = |what: &str, error: std::io::Error| Error::io(format!("{name}: {what}"), error);
        let metadata = fs::metadata(path).map_err(|error| failed("open", error))?;
        let is_dax_device = metadata.file_type().is_char_device();
        if !is_dax_device && !metadata.is_file() {
            return Ok(None);
        }
        let file = fs::OpenOptions::new()
            .read(true)
            .write(!read_only)
            .open(path)
            .map_err(|error| failed("open", error))?;
        let len = match is_dax_device {
            true => dax_bytes(&metadata).ok_or_else(|| Error::Unsupported {
                what: name.clone(),
                operation: "a log device that is neither memory, a file, nor a block device",
            })?,
            false => metadata.len(),
        };
        let statfs = rustix::fs::fstatfs(&file).map_err(|errno| failed("look at", errno.into()))?;
        let is_tmpfs = metadata.is_file() && statfs.f_type as u64 == TMPFS_MAGIC;
        if len == 0 {
            return Err(Error::Unsupported { what: name, operation: "a log device without a byte" });
        }
        let len = usize::try_from(len)
            .map_err(|_| Error::Unsupported { what: name.clone(), operation: "a log device so large" })?;
        lock(&file, path, read_only)?;
        let Some(start) = map(&file, len, read_only, is_tmpfs).map_err(|error| failed("map", error))? else {
            return Ok(None);
        };
        let mapping = Mapping { is_volatile: is_tmpfs, read_only };
        let mapped = MappedMemory::of(name.clone(), start, len, mapping, Some(file));
        // Before the first write (3). A file with DAX may have holes too, and the blocks that it counts are not all data.
        if let Some(file) = mapped.file.as_ref().filter(|_| metadata.is_file() && !read_only) {
            rustix::fs::fallocate(file, FallocateFlags::empty(), 0, metadata.len())
                .map_err(|errno| failed("allocate", errno.into()))?;
        }
        if is_dax_device && matches!(mapped.lines, Lines::Msync) {
            let operation = "memory without a file on this processor";
            return Err(Error::Unsupported { what: mapped.name.clone(), operation });
        }
        Ok(Some(mapped))
    }

    fn of(
        name: String,
        start: *mut c_void,
        len: usize,
        mapping: Mapping,
        file: Option<fs::File>,
    ) -> MappedMemory {
        let start = NonNull::new(start.cast()).expect("a mapping lies somewhere");
        let Mapping { is_volatile, read_only } = mapping;
        let (guard, lines) = (RwLock::new(()), Lines::best());
        MappedMemory { name, start, len, is_volatile, read_only, guard, lines, file }
    }

    /// How lines are written back, for display.
    pub fn instruction(&self) -> &'static str {
        self.lines.name()
    }

    fn check(&self, offset: u64, len: usize) -> Result<*mut u8> {
        check_range(&self.name, (self.len as u64, 1), offset, len as u64)?;
        // SAFETY: the offset lies in the mapping, or is its end.
        Ok(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    fn check_writable(&self) -> Result<()> {
        match self.read_only {
            true => Err(Error::Unsupported { what: self.name.clone(), operation: "write, opened read-only" }),
            false => Ok(()),
        }
    }
}

/// What a mapping is.
#[derive(Clone, Copy)]
struct Mapping {
    is_volatile: bool,
    read_only: bool,
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: nobody else has the address (2). A failure would leave it mapped, which harms nothing.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl LogDevice for MappedMemory {
    fn name(&self) -> &str {
        &self.name
    }

    fn capacity_bytes(&self) -> u64 {
        self.len as u64
    }

    fn unit_bytes(&self) -> u32 {
        1
    }

    fn is_volatile(&self) -> bool {
        self.is_volatile
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let from = self.check(offset, buf.len())?;
        let _guard = self.guard.read();
        // SAFETY: as many bytes lie in the mapping, which `buf` cannot overlap (2); no thread writes there now.
        unsafe { ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        let to = self.check(offset, data.len())?;
        let _guard = self.guard.write();
        // SAFETY: as above; it is mapped to be written, and no other thread uses it now.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
        Ok(())
    }

    fn write_back(&self, offset: u64, len: u64) -> Result<()> {
        self.check_writable()?;
        let first = self.check(offset, len as usize)?;
        if len > 0 {
            self.lines
                .write_back(first, len as usize)
                .map_err(|errno| Error::io(format!("{}: write back", self.name), errno.into()))?;
        }
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        self.lines.fence();
        Ok(())
    }
}

/// Size of a `/dev/dax*` device; none for any other.
fn dax_bytes(metadata: &fs::Metadata) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let device = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
    let subsystem = fs::read_link(device.join("subsystem")).ok()?;
    let is_dax = subsystem.file_name().is_some_and(|name| name == "dax");
    let bytes: u64 = fs::read_to_string(device.join("size")).ok()?.trim().parse().ok()?;
    is_dax.then_some(bytes)
}

/// Locks the file for its one owner, or against one if it is only read.
fn lock(file: &fs::File, path: &Path, read_only: bool) -> Result<()> {
    let lock = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    let deadline = Instant::now() + CLAIM_PATIENCE;
    loop {
        match rustix::fs::flock(file, lock) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(CLAIM_INTERVAL),
            Err(Errno::WOULDBLOCK) => return Err(Error::Busy { path: path.into() }),
            Err(errno) => return Err(Error::io(format!("{}: lock", path.display()), errno.into())),
        }
    }
}

/// Maps the file if that makes memory of it (1).
fn map(file: &fs::File, len: usize, read_only: bool, is_tmpfs: bool) -> std::io::Result<Option<*mut c_void>> {
    let protection = match read_only {
        true => ProtFlags::READ,
        false => ProtFlags::READ | ProtFlags::WRITE,
    };
    let flags = match is_tmpfs {
        true => MapFlags::SHARED,
        false => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
    };
    // SAFETY: a new mapping, at a place that the kernel chooses.
    match unsafe { mmap(ptr::null_mut(), len, protection, flags, file.as_fd(), 0) } {
        Ok(start) => Ok(Some(start)),
        // Its file system has no DAX, or the kernel does not know the flag.
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NODEV) if !is_tmpfs => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// How lines are written back (4).
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "some of them on some processors")]
enum Lines {
    /// Writes back and keeps the line in the cache.
    Clwb,
    /// Writes back and evicts.
    ClflushOpt,
    /// The same, one line after the other.
    Clflush,
    Msync,
}

impl Lines {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn best() -> Lines {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const CLWB: u32 = 1 << 24;
        const CLFLUSHOPT: u32 = 1 << 23;
        let has_leaf_7 = __cpuid(0).eax >= 7;
        let features = if has_leaf_7 { __cpuid_count(7, 0).ebx } else { 0 };
        match features {
            features if features & CLWB != 0 => Lines::Clwb,
            features if features & CLFLUSHOPT != 0 => Lines::ClflushOpt,
            _ => Lines::Clflush, // as old as x86-64
        }
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn best() -> Lines {
        Lines::Msync
    }

    fn name(self) -> &'static str {
        match self {
            Lines::Clwb => "clwb",
            Lines::ClflushOpt => "clflushopt",
            Lines::Clflush => "clflush",
            Lines::Msync => "msync",
        }
    }

    /// Writes the lines of `len` bytes at `first`, at least one, back.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn write_back(self, first: *mut u8, len: usize) -> Result<(), Errno> {
        use std::arch::asm;

        use super::LINE;

        let start = first.addr() / LINE * LINE;
        for line in (start..first.addr() + len).step_by(LINE) {
            let line = first.with_addr(line);
            // SAFETY: the line lies in the mapping, which begins and ends at pages; its content does not change. The
            // processor has the instruction (`best`). The compiler moves no store past it: it may touch all memory.
            unsafe {
                match self {
                    Lines::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Lines::ClflushOpt => {
                        asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                    }
                    Lines::Clflush => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Lines::Msync => unreachable!("not on this processor"),
                }
            }
        }
        Ok(())
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn write_back(self, first: *mut u8, len: usize) -> Result<(), Errno> {
        let page = rustix::param::page_size();
        let start = first.addr() / page * page;
        let pages = first.with_addr(start).cast();
        // SAFETY: the pages lie in the mapping.
        unsafe { rustix::mm::msync(pages, first.addr() + len - start, rustix::mm::MsyncFlags::SYNC) }
    }

    fn fence(self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a fence changes nothing; all x86-64 processors have it.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst); // `msync` has waited already
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{create_log_device, open_log_device};

    /// Every instruction that this processor has leaves the bytes as they are, at any place and length.
    #[test]
    fn what_is_written_back_is_what_was_written() {
        let mut memory = MappedMemory::anonymous(1 << 16).unwrap();
        let best = memory.lines;
        for lines in [best, if matches!(best, Lines::Msync) { best } else { Lines::Clflush }] {
            memory.lines = lines;
            for (at, len) in [(0, 1), (63, 2), (64, 64), (100, 5000), ((1 << 16) - 1, 1), (7, 0)] {
                let data: Vec<u8> = (0..len).map(|byte| byte as u8 | 1).collect();
                memory.persist(at, &data).unwrap();
                let mut back = vec![0; len];
                memory.read_at(at, &mut back).unwrap();
                assert_eq!(back, data);
            }
        }
        assert!(matches!(memory.write_at(1 << 16, &[1]), Err(Error::BadRange { .. })));
        assert!(matches!(memory.read_at(u64::MAX, &mut [0; 2]), Err(Error::BadRange { .. })));
    }

    #[test]
    fn a_file_in_memory_is_mapped_and_says_that_it_is_volatile() {
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
            return eprintln!("SKIPPED: no /dev/shm");
        };
        let path = directory.path().join("log");
        let device = create_log_device(&path, 1 << 20).unwrap();
        assert_eq!((device.capacity_bytes(), device.unit_bytes(), device.is_volatile()), (1 << 20, 1, true));
        device.persist(4093, b"seven bytes"[..7].as_ref()).unwrap();
        assert!(matches!(create_log_device(&path, 1 << 20), Err(Error::Exists { .. })));
        assert!(matches!(open_log_device(&path, false), Err(Error::Busy { .. })));
        drop(device);
        let device = open_log_device(&path, true).unwrap();
        let mut back = [0; 7];
        device.read_at(4093, &mut back).unwrap();
        assert_eq!(&back, b"seven b");
        assert!(matches!(device.write_at(0, &[1]), Err(Error::Unsupported { .. })));
        // All of it has space: no write can find none.
        assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20);
    }

    #[test]
    fn any_other_file_is_used_in_blocks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let device = create_log_device(&path, 1 << 20).unwrap();
        if device.unit_bytes() == 1 {
            return eprintln!("SKIPPED: the directory for temporary files is in memory");
        }
        assert!(!device.is_volatile() && device.unit_bytes() >= 512);
        device.persist(8192, &[7; 4096]).unwrap();
        drop(device);
        let mut back = [0; 4096];
        open_log_device(&path, true).unwrap().read_at(8192, &mut back).unwrap();
        assert_eq!(back, [7; 4096]);
    }

    #[test]
    fn what_is_no_memory_is_refused_by_name() {
        for path in ["/dev/null", "/proc/no such file"] {
            let error = open_log_device(Path::new(path), false).err().unwrap().to_string();
            assert!(error.starts_with(path), "{error}");
        }
    }
}
