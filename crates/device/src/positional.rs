//! Direct positional I/O on one open file or block device.

use std::{
    fs,
    io::{self, IoSlice},
    os::unix::fs::FileExt,
    path::Path,
};

use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags},
    io::{Errno, ReadWriteFlags},
};

use crate::{
    AlignedBuf, AtomicWrites, Error, Result, SECTOR,
    mutant::{Rule, is_broken},
    vfs::ATOMIC_WRITE,
};

/// `RWF_ATOMIC` and `STATX_WRITE_ATOMIC` of Linux 6.11, which rustix has no names for.
const ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x40);
const WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x1_0000);

/// Alignment that satisfies direct I/O everywhere, in bytes: assumed where the system does not report one.
const SAFE_ALIGN: u32 = 4096;

/// Largest copy through a bounce buffer in one call, in bytes.
const BOUNCE_BYTES: usize = 1 << 20;

/// Permissions of every file that is made: whoever reads a store, or a table in a directory, reads all data in it, past
/// the permissions of its files; and whoever can open it can hold its lock.
pub(crate) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// An open file and the alignment that its file system demands for direct I/O.
pub(crate) struct PositionalFile {
    pub(crate) file: fs::File,
    /// The path, for errors.
    pub(crate) name: String,
    /// Alignment of offsets and lengths in bytes.
    pub(crate) io_align: u32,
    /// Alignment of memory in bytes.
    memory_align: usize,
    /// Whether the page cache is bypassed.
    pub(crate) direct: bool,
    cache_syncs: CacheSyncs,
}

/// Syncs of files that go through the page cache.
///
/// When the kernel could not write some of it, it reports that to one caller of fsync on the open file, and takes the
/// data for written from then on. So syncs run one at a time, and none succeeds once one has failed: that failure
/// concerned the other callers' data as well.
#[derive(Default)]
struct CacheSyncs {
    has_failed: Mutex<bool>,
}

impl CacheSyncs {
    fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut has_failed = self.has_failed.lock();
        if *has_failed {
            return Err(Errno::IO.into());
        }
        let outcome = sync();
        *has_failed = outcome.is_err();
        outcome
    }
}

/// Opens `path` relative to `directory`, bypassing the page cache where the file system allows it.
fn open_direct(
    directory: impl std::os::fd::AsFd,
    path: &Path,
    flags: OFlags,
) -> io::Result<(fs::File, bool)> {
    let flags = flags | OFlags::CLOEXEC;
    match rustix::fs::openat(&directory, path, flags | OFlags::DIRECT, PRIVATE) {
        Ok(fd) => Ok((fd.into(), true)),
        // File systems without direct I/O refuse the flag so. Linux has created the file by then.
        Err(Errno::INVAL) => {
            let flags = if flags.contains(OFlags::CREATE) { flags - OFlags::EXCL } else { flags };
            let fd = rustix::fs::openat(&directory, path, flags, PRIVATE)?;
            Ok((fd.into(), false))
        }
        Err(errno) => Err(errno.into()),
    }
}

impl PositionalFile {
    /// Opens or creates a regular file or block device.
    pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<PositionalFile> {
        PositionalFile::open_in(CWD, path, path.display().to_string(), flags)
    }

    /// Opens or creates `path` in `directory`; errors call it `name`.
    pub(crate) fn open_in(
        directory: impl std::os::fd::AsFd,
        path: &Path,
        name: String,
        flags: OFlags,
    ) -> io::Result<PositionalFile> {
        let (file, direct) = open_direct(directory, path, flags)?;
        let (io_align, memory_align) = if direct { direct_io_align(&file)? } else { (SECTOR as u32, 1) };
        Ok(PositionalFile { file, name, io_align, memory_align, direct, cache_syncs: CacheSyncs::default() })
    }

    /// The same file through the page cache, if direct I/O demands a larger unit than a sector: on disks with larger
    /// sectors, and on FUSE, which reports none.
    pub(crate) fn in_sectors(mut self) -> io::Result<PositionalFile> {
        if self.io_align as usize > SECTOR {
            let flags = rustix::fs::fcntl_getfl(&self.file)?;
            rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
            (self.io_align, self.memory_align, self.direct) = (SECTOR as u32, 1, false);
        }
        Ok(self)
    }

    pub(crate) fn error(&self, operation: &str, source: io::Error) -> Error {
        Error::io(format!("{}: {operation}", self.name), source)
    }

    pub(crate) fn read_error(&self, offset: u64, source: io::Error) -> Error {
        self.error(&format!("read at byte {offset}"), source)
    }

    pub(crate) fn write_error(&self, offset: u64, source: io::Error) -> Error {
        self.error(&format!("write at byte {offset}"), source)
    }

    /// Whether direct I/O refuses memory at this address, which is then copied.
    pub(crate) fn needs_bounce(&self, memory: *const u8) -> bool {
        !memory.addr().is_multiple_of(self.memory_align)
    }

    /// Fills `buf` from `offset`; the file is known to be long enough.
    pub(crate) fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let read = self.read_at(offset, buf)?;
        if read < buf.len() {
            // It was long enough when it was opened.
            let reason = format!("the store ends here, {} bytes short of a read", buf.len() - read);
            return Err(Error::Corrupt { what: self.name.clone(), at: offset + read as u64, reason });
        }
        Ok(())
    }

    /// Reads at `offset` until `buf` is full or the file ends; returns the bytes read.
    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if !self.needs_bounce(buf.as_ptr()) {
            return self.read_aligned(offset, buf);
        }
        let mut bounce = AlignedBuf::zeroed(buf.len().min(BOUNCE_BYTES));
        let mut done = 0;
        for piece in buf.chunks_mut(BOUNCE_BYTES) {
            let read = self.read_aligned(offset + done as u64, &mut bounce[..piece.len()])?;
            piece[..read].copy_from_slice(&bounce[..read]);
            done += read;
            if read < piece.len() {
                break;
            }
        }
        Ok(done)
    }

    fn read_aligned(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => {
                    done += read;
                    // Only the end of the file makes a direct read end off the grid.
                    if !read.is_multiple_of(self.io_align as usize) {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.read_error(offset, error)),
            }
        }
        Ok(done)
    }

    /// Writes all of `data` at `offset`.
    pub(crate) fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        if !self.needs_bounce(data.as_ptr()) {
            return self.write_aligned(offset, data);
        }
        let mut bounce = AlignedBuf::zeroed(data.len().min(BOUNCE_BYTES));
        for (piece, at) in data.chunks(BOUNCE_BYTES).zip((offset..).step_by(BOUNCE_BYTES)) {
            bounce[..piece.len()].copy_from_slice(piece);
            self.write_aligned(at, &bounce[..piece.len()])?;
        }
        Ok(())
    }

    /// Writes all of `data` at `offset` in one request that the system applies whole or not at all.
    pub(crate) fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()> {
        let bounce;
        let mut data = data;
        if self.needs_bounce(data.as_ptr()) {
            bounce = copied(data);
            data = &bounce;
        }
        let flags = if is_broken(Rule::AtomicAsked) { ReadWriteFlags::empty() } else { ATOMIC };
        loop {
            let error = match rustix::io::pwritev2(&self.file, &[IoSlice::new(data)], offset, flags) {
                Ok(written) if written == data.len() => return Ok(()),
                Ok(_) => io::ErrorKind::WriteZero.into(),
                Err(Errno::INTR) => continue,
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    return Err(Error::Unsupported { what: self.name.clone(), operation: ATOMIC_WRITE });
                }
                Err(errno) => errno.into(),
            };
            return Err(self.write_error(offset, error));
        }
    }

    /// What [`PositionalFile::write_atomic`] takes.
    pub(crate) fn atomic_writes(&self) -> io::Result<Option<AtomicWrites>> {
        if !self.direct {
            return Ok(None);
        }
        let statx = rustix::fs::statx(&self.file, "", AtFlags::EMPTY_PATH, WRITE_ATOMIC)?;
        let (bytes_min, bytes_max) = (statx.stx_atomic_write_unit_min, statx.stx_atomic_write_unit_max);
        let is_offered = statx.stx_mask & WRITE_ATOMIC.bits() != 0
            && bytes_min.is_power_of_two()
            && bytes_max.is_power_of_two()
            && bytes_min <= bytes_max;
        Ok(is_offered.then_some(AtomicWrites { bytes_min, bytes_max }))
    }

    fn write_aligned(&self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(data, offset);
        written.map_err(|error| self.write_error(offset, error))
    }

    /// Makes all writes so far durable, with the length, without the times.
    pub(crate) fn sync(&self) -> Result<()> {
        let sync = || match is_broken(Rule::FilesSynced) {
            true => Ok(()),
            false => Ok(rustix::fs::fdatasync(&self.file)?),
        };
        let synced = if self.direct { sync() } else { self.cache_syncs.sync(sync) };
        synced.map_err(|error| self.error("sync", error))
    }
}

/// A copy in aligned memory.
fn copied(data: &[u8]) -> AlignedBuf {
    let mut copy = AlignedBuf::zeroed(data.len());
    copy.copy_from_slice(data);
    copy
}

/// Alignment of offsets and of memory for direct I/O on `file`, in bytes.
fn direct_io_align(file: &fs::File) -> io::Result<(u32, usize)> {
    let statx = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    let is_reported = statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && statx.stx_dio_offset_align != 0;
    let (io_align, memory_align) = if is_reported {
        (statx.stx_dio_offset_align, statx.stx_dio_mem_align)
    } else {
        match rustix::fs::ioctl_blksszget(file) {
            Ok(logical_block_bytes) => (logical_block_bytes, logical_block_bytes),
            Err(_) => (SAFE_ALIGN, SAFE_ALIGN), // not a block device
        }
    };
    if !io_align.is_power_of_two() || io_align > SAFE_ALIGN || memory_align > SAFE_ALIGN {
        return Err(io::Error::other(format!("direct I/O needs an alignment of {io_align} bytes")));
    }
    Ok((io_align.max(SECTOR as u32), memory_align.next_power_of_two() as usize))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    /// As the system does it: a lost write is reported once, to the next caller of sync.
    #[test]
    fn what_the_cache_lost_is_nobodys_success() {
        let (syncs, is_lost) = (CacheSyncs::default(), AtomicBool::new(false));
        let sync = || {
            syncs.sync(|| match is_lost.swap(false, SeqCst) {
                true => Err(Errno::IO.into()),
                false => Ok(()),
            })
        };
        assert!(sync().is_ok());
        is_lost.store(true, SeqCst);
        std::thread::scope(|scope| {
            for one in [scope.spawn(sync), scope.spawn(sync)] {
                assert!(one.join().unwrap().is_err());
            }
        });
        assert!(sync().is_err(), "nor later: what was lost is gone");
    }
}
