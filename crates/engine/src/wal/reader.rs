//! Reading the log back, group by group, for recovery.

use std::sync::Arc;

use lacuna_device::AlignedBuf;

use super::{
    LogFiles,
    format::{self, GroupRecords, HEADER_BYTES, SECTOR},
};
use crate::types::{Error, Lsn, Result};

/// Bytes that are read at a time, at least.
const READ_BYTES: usize = 1 << 20;

/// Reads groups until the log's end.
pub(crate) struct LogReader {
    files: Arc<LogFiles>,
    at: Lsn,
    epoch: u64,
    buffer: AlignedBuf,
    /// The part of the buffer that is filled, and from which offset on; always of one file.
    filled: usize,
    buffer_at: Lsn,
    /// What the last encrypted group holds.
    plain: Vec<u8>,
}

/// A whole group.
pub(crate) struct Group<'a> {
    body: &'a [u8],
    start: Lsn,
}

impl Group<'_> {
    pub(crate) fn records(&self) -> GroupRecords<'_> {
        GroupRecords::new(self.body, self.start)
    }
}

impl LogReader {
    /// Reads from `at`, where a group starts.
    pub(crate) fn new(files: Arc<LogFiles>, at: Lsn) -> LogReader {
        let buffer = AlignedBuf::zeroed(0);
        LogReader { files, at, epoch: 0, buffer, filled: 0, buffer_at: Lsn(0), plain: Vec::new() }
    }

    /// Writes the group just read again. Where a sync once failed, what is read may be in a cache only.
    pub(crate) fn rewrite(&self, at: Lsn) -> Result<()> {
        let offset = (at.0 - self.buffer_at.0) as usize;
        let bytes = (self.at.0 - at.0) as usize;
        let mut group = AlignedBuf::zeroed(bytes);
        group.copy_from_slice(&self.buffer[offset..offset + bytes]);
        self.files.write(at, &group)
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The opening that wrote the last group read; 0 before the first.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
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
        let Some((bytes, epoch)) = format::claim(first, at, salt) else { return Ok(None) };
        if epoch < self.epoch {
            return Ok(None);
        }
        let Some(group) = self.load(at, bytes.next_multiple_of(SECTOR))? else { return Ok(None) };
        if format::open_group(group, at, salt).is_none() {
            return Ok(None);
        }
        self.epoch = epoch;
        let end = Lsn(at.0 + bytes as u64);
        self.at = format::next_group(end);
        let offset = (at.0 - self.buffer_at.0) as usize;
        let group = &self.buffer[offset..offset + bytes.next_multiple_of(SECTOR)];
        let body = if format::is_encrypted(group) {
            let unreadable = || Error::NoKey { what: "log".into() };
            let cipher = self.files.cipher.as_deref().ok_or_else(unreadable)?;
            format::decrypt_group(group, at, cipher, &mut self.plain);
            &self.plain[..]
        } else {
            &group[HEADER_BYTES..bytes]
        };
        Ok(Some(Group { body, start: at }))
    }

    /// A beginning of a group after the offset where [`LogReader::next_group`] found none. A crash leaves none, because
    /// each group is on the medium before the next is written, nor does a value (invariant 5); so the log is damaged in
    /// between. Whether the rest of that group is there does not matter: forged beginnings that claim long groups would
    /// take for ever to look at.
    pub(crate) fn group_behind_end(&mut self) -> Result<Option<Lsn>> {
        let (mut at, end, salt) = (self.at, self.files.end(), self.files.salt);
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
            let claim = format::claim(first, at, salt);
            // The one that was torn, or is of an earlier epoch, may begin where the log ends.
            if at > self.at && claim.is_some_and(|(_, epoch)| epoch >= self.epoch) {
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
