//! Reading the log back, group by group, for recovery.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, File};

use super::format::{self, Records, SECTOR};
use crate::{error::Result, ids::Lsn};

/// Groups longer than this are not believed.
const GROUP_BYTES_MAX: usize = 1 << 30;

/// Reads groups until the log's end.
pub(crate) struct Reader {
    file: Arc<dyn File>,
    at: Lsn,
    file_bytes: u64,
    epoch: u64,
    buffer: AlignedBuf,
    /// File offset of the buffer's first byte.
    buffer_at: u64,
}

/// A whole group.
pub(crate) struct Group<'a> {
    bytes: &'a [u8],
    start: Lsn,
}

impl Group<'_> {
    pub(crate) fn records(&self) -> Records<'_> {
        format::open_group(self.bytes, self.start).expect("verified when read").1
    }
}

impl Reader {
    /// Reads from `at`, where a group starts.
    pub(crate) fn new(file: Arc<dyn File>, at: Lsn) -> Reader {
        Reader { file, at, file_bytes: 0, epoch: 0, buffer: AlignedBuf::zeroed(0), buffer_at: 0 }
    }

    /// Where the next group would start.
    pub(crate) fn position(&self) -> Lsn {
        self.at
    }

    /// The next group, or `None` at the end of the log: the first place where no whole group of
    /// this or a later epoch lies.
    pub(crate) fn next_group(&mut self) -> Result<Option<Group<'_>>> {
        self.file_bytes = self.file.len()?;
        let at = self.at;
        let Some(first) = self.load(at.0, SECTOR)? else { return Ok(None) };
        let Some(bytes) = format::claimed_bytes(first, at) else { return Ok(None) };
        if bytes > GROUP_BYTES_MAX {
            return Ok(None);
        }
        let epoch_before = self.epoch;
        let Some(group) = self.load(at.0, bytes.next_multiple_of(SECTOR))? else { return Ok(None) };
        let Some((epoch, _)) = format::open_group(group, at) else { return Ok(None) };
        if epoch < epoch_before {
            return Ok(None);
        }
        self.epoch = epoch;
        let end = Lsn(at.0 + bytes as u64);
        self.at = format::next_group(end);
        let offset = (at.0 - self.buffer_at) as usize;
        Ok(Some(Group { bytes: &self.buffer[offset..offset + bytes], start: at }))
    }

    /// A whole group behind the place where [`Reader::next_group`] found none. A crash leaves no such group,
    /// because each is on the medium before the next is written; so the log is damaged in between.
    pub(crate) fn group_behind_end(&mut self) -> Result<Option<Lsn>> {
        let (mut at, epoch_before) = (self.at.0, self.epoch);
        while let Some(first) = self.load(at, SECTOR)? {
            let claimed = format::claimed_bytes(first, Lsn(at)).filter(|bytes| *bytes <= GROUP_BYTES_MAX);
            if let Some(bytes) = claimed
                && let Some(group) = self.load(at, bytes.next_multiple_of(SECTOR))?
                && format::open_group(group, Lsn(at)).is_some_and(|(epoch, _)| epoch >= epoch_before)
            {
                return Ok(Some(Lsn(at)));
            }
            at += SECTOR as u64;
        }
        Ok(None)
    }

    /// Bytes `at .. at + len` of the file, read in large pieces; `None` past its end.
    fn load(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>> {
        let end = at + len as u64;
        if end > self.file_bytes.next_multiple_of(SECTOR as u64) {
            return Ok(None);
        }
        let buffer_end = self.buffer_at + self.buffer.len() as u64;
        if at < self.buffer_at || end > buffer_end {
            let want = len.max(1 << 20);
            if self.buffer.len() < want {
                self.buffer = AlignedBuf::zeroed(want);
            }
            self.buffer_at = at;
            self.file.read_at(at, &mut self.buffer)?;
        }
        let offset = (at - self.buffer_at) as usize;
        Ok(Some(&self.buffer[offset..offset + len]))
    }
}
