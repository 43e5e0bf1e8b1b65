use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::*},
};

use parking_lot::Mutex;
use rustix::{
    fs::{FallocateFlags, SeekFrom},
    io::Errno,
};

use super::{Counters, Held, STAT_BLOCK_BYTES};
use crate::{Error, File, FileId, FileProps, Result, positional::PositionalFile, vfs::ATOMIC_WRITE};

/// A file of a directory.
pub(super) struct DirFile {
    id: FileId,
    file: PositionalFile,
    props: FileProps,
    read_only: bool,
    /// Changes that have returned, and how many of them the newest good sync covers.
    changes: AtomicU64,
    synced_changes: AtomicU64,
    /// One atomic write at a time: of two in one file XFS takes up to four times the blocks of one, and returns them
    /// minutes later.
    atomic_write: Mutex<()>,
    held: Arc<Held>,
    counters: Arc<Counters>,
}

impl DirFile {
    pub(super) fn new(
        id: FileId,
        file: PositionalFile,
        props: FileProps,
        read_only: bool,
        held: Arc<Held>,
        counters: Arc<Counters>,
    ) -> Arc<DirFile> {
        let (changes, synced_changes) = (AtomicU64::new(0), AtomicU64::new(0));
        let atomic_write = Mutex::new(());
        Arc::new(DirFile {
            id,
            file,
            props,
            read_only,
            changes,
            synced_changes,
            atomic_write,
            held,
            counters,
        })
    }

    /// Whether there may be changes that were not synced.
    pub(super) fn is_dirty(&self) -> bool {
        self.synced_changes.load(SeqCst) < self.changes.load(SeqCst)
    }

    /// Checks a change, which counts when the result is dropped: once it was made, or failed in part. A sync that began
    /// before may have missed it, and must not count it as synced; it owes nothing to a change that has not returned.
    fn start_change(&self, offset: u64, len: u64) -> Result<Changing<'_>> {
        if self.read_only {
            let operation = "change in a directory opened read-only";
            return Err(Error::Unsupported { what: self.file.name.clone(), operation });
        }
        self.props.check_range(&self.file.name, offset, len)?;
        self.held.must_be_ours()?;
        Ok(Changing(&self.changes))
    }

    /// The next offset where data or a hole begins, or the end of the file.
    fn seek(&self, to: SeekFrom, end: u64) -> Result<u64> {
        match rustix::fs::seek(&self.file.file, to) {
            Ok(at) => Ok(at),
            Err(Errno::NXIO) => Ok(end),
            Err(errno) => Err(self.file.error("seek", errno.into())),
        }
    }
}

/// A change that is being made.
struct Changing<'a>(&'a AtomicU64);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl File for DirFile {
    fn id(&self) -> FileId {
        self.id
    }

    fn props(&self) -> FileProps {
        self.props
    }

    fn len(&self) -> Result<u64> {
        let metadata = self.file.file.metadata().map_err(|error| self.file.error("stat", error))?;
        Ok(metadata.len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let _changing = self.start_change(0, len)?;
        self.file.file.set_len(len).map_err(|error| self.file.error("set length", error))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.props.check_range(&self.file.name, offset, buf.len() as u64)?;
        let read = self.file.read_at(offset, buf)?;
        buf[read..].fill(0);
        self.counters.read_bytes.fetch_add(read as u64, Relaxed);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _changing = self.start_change(offset, data.len() as u64)?;
        self.file.write_at(offset, data)?;
        self.counters.written_bytes.fetch_add(data.len() as u64, Relaxed);
        Ok(())
    }

    fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        if !self.props.atomic_writes.is_some_and(|writes| writes.can_write(offset, len)) {
            return Err(Error::Unsupported { what: self.file.name.clone(), operation: ATOMIC_WRITE });
        }
        let _changing = self.start_change(offset, len)?;
        let turn = self.atomic_write.lock();
        self.file.write_atomic(offset, data)?;
        drop(turn);
        self.counters.written_bytes.fetch_add(len, Relaxed);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let _changing = self.start_change(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file.file, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                Err(Error::Unsupported { what: self.file.name.clone(), operation: "punch a hole" })
            }
            Err(errno) => Err(self.file.error("punch a hole", errno.into())),
        }
    }

    fn allocated(&self, offset: u64, len: u64) -> Result<u64> {
        let stat =
            rustix::fs::fstat(&self.file.file).map_err(|errno| self.file.error("stat", errno.into()))?;
        let file_end = u64::try_from(stat.st_size).unwrap_or(0);
        let end = offset.saturating_add(len).min(file_end);
        if offset == 0 && end == file_end {
            return Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES);
        }
        let mut bytes = 0;
        let mut at = offset;
        while at < end {
            let data_start = self.seek(SeekFrom::Data(at), end)?.min(end);
            if data_start == end {
                break;
            }
            at = self.seek(SeekFrom::Hole(data_start), end)?.min(end);
            bytes += at - data_start;
        }
        Ok(bytes)
    }

    fn sync(&self) -> Result<()> {
        let changes = self.changes.load(SeqCst);
        self.file.sync()?;
        self.synced_changes.fetch_max(changes, SeqCst);
        self.counters.syncs.fetch_add(1, Relaxed);
        Ok(())
    }
}
