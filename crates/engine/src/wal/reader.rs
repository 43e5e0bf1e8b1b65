//! Reading the log back, group by group, for recovery.

use std::sync::Arc;

use lacuna_device::AlignedBuf;

use super::{
    LogFiles,
    format::{self, GroupRecords, SECTOR, Salt},
};
use crate::types::{Lsn, Result};

/// Bytes that are read at a time, at least.
const READ_BYTES: usize = 1 << 20;
/// Longer groups are taken for damage.
const GROUP_BYTES_MAX: usize = 1 << 30;

/// Reads groups until the log's end.
pub(crate) struct LogReader {
    files: Arc<LogFiles>,
    at: Lsn,
    epoch: u64,
    buffer: AlignedBuf,
    /// The part of the buffer that is filled, and from which offset on; always of one file.
    filled: usize,
    buffer_at: Lsn,
}

/// A whole group.
pub(crate) struct Group<'a> {
    bytes: &'a [u8],
    start: Lsn,
    salt: Salt,
}

impl Group<'_> {
    pub(crate) fn records(&self) -> GroupRecords<'_> {
        format::open_group(self.bytes, self.start, self.salt).expect("verified when read").1
    }
}

impl LogReader {
    /// Reads from `at`, where a group starts.
    pub(crate) fn new(files: Arc<LogFiles>, at: Lsn) -> LogReader {
        LogReader { files, at, epoch: 0, buffer: AlignedBuf::zeroed(0), filled: 0, buffer_at: Lsn(0) }
    }

    /// Writes the group just read again. Where a sync once failed, what is read may be in a cache only.
    pub(crate) fn rewrite(&self, at: Lsn) -> Result<()> {
        let offset = (at.0 - self.buffer_at.0) as usize;
        let bytes = (self.at.0 - at.0) as usize;
        let mut group = AlignedBuf::zeroed(bytes);
        group.copy_from_slice(&self.buffer[offset..offset + bytes]);
        self.files.write(at, &group)
    }

    /// Where the next group would start.
    pub(crate) fn position(&self) -> Lsn {
        self.at
    }

    /// The next group, or `None` at the end of the log: the first offset without a whole group of this or a later
    /// epoch.
    pub(crate) fn next_group(&mut self) -> Result<Option<Group<'_>>> {
        let (at, salt) = (self.at, self.files.salt);
        let Some(first) = self.load(at, SECTOR)? else { return Ok(None) };
        let Some(bytes) = format::claimed_bytes(first, at, salt) else { return Ok(None) };
        if bytes > GROUP_BYTES_MAX {
            return Ok(None);
        }
        let epoch_before = self.epoch;
        let Some(group) = self.load(at, bytes.next_multiple_of(SECTOR))? else { return Ok(None) };
        let Some((epoch, _)) = format::open_group(group, at, salt) else { return Ok(None) };
        if epoch < epoch_before {
            return Ok(None);
        }
        self.epoch = epoch;
        let end = Lsn(at.0 + bytes as u64);
        self.at = format::next_group(end);
        let offset = (at.0 - self.buffer_at.0) as usize;
        Ok(Some(Group { bytes: &self.buffer[offset..offset + bytes], start: at, salt }))
    }

    /// A whole group after the offset where [`LogReader::next_group`] found none. A crash leaves no such group, because
    /// each is on the medium before the next is written, nor does a value (invariant 5); so the log is damaged in
    /// between.
    pub(crate) fn group_behind_end(&mut self) -> Result<Option<Lsn>> {
        let (mut at, epoch_before, end, salt) = (self.at, self.epoch, self.files.end(), self.files.salt);
        while at < end {
            // Mostly there is nothing but a hole, and reading it would take long.
            let is_first = at == self.at || at.0.is_multiple_of(READ_BYTES as u64);
            let hole = if is_first { self.files.hole_bytes(at, READ_BYTES as u64)? } else { 0 };
            if hole > 0 {
                at = Lsn(at.0 + hole);
                continue;
            }
            let Some(first) = self.load(at, SECTOR)? else {
                at = self.files.next_file(at);
                continue;
            };
            let claimed = format::claimed_bytes(first, at, salt).filter(|bytes| *bytes <= GROUP_BYTES_MAX);
            if let Some(bytes) = claimed
                && let Some(group) = self.load(at, bytes.next_multiple_of(SECTOR))?
                && format::open_group(group, at, salt).is_some_and(|(epoch, _)| epoch >= epoch_before)
            {
                return Ok(Some(at));
            }
            at = Lsn(at.0 + SECTOR as u64);
        }
        Ok(None)
    }

    /// The first `len` bytes of a group at `at`, read in large pieces; `None` past its file's end.
    fn load(&mut self, at: Lsn, len: usize) -> Result<Option<&[u8]>> {
        let readable = self.files.readable_bytes(at);
        if len as u64 > readable {
            return Ok(None);
        }
        let is_here = at >= self.buffer_at
            && self.files.in_same_file(at, self.buffer_at)
            && at.0 + len as u64 <= self.buffer_at.0 + self.filled as u64;
        if !is_here {
            if self.buffer.len() < len.max(READ_BYTES) {
                self.buffer = AlignedBuf::zeroed(len.max(READ_BYTES));
            }
            self.filled = (self.buffer.len() as u64).min(readable) as usize / SECTOR * SECTOR;
            self.buffer_at = at;
            self.files.read(at, 0, &mut self.buffer[..self.filled])?;
        }
        let offset = (at.0 - self.buffer_at.0) as usize;
        Ok(Some(&self.buffer[offset..offset + len]))
    }
}
