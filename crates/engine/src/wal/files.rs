//! The files of the log: one for each segment of log offsets, so that no file exceeds the size that a file system
//! allows.
//!
//! Segment `n` covers offsets from `n * segment_bytes` on and is the file `wal.n`. A group lies whole in
//! the file of its first byte, at its offset within the segment; the last one of a file may reach past
//! the segment's end, and the next group then starts in the next file, after a gap of the same length.

use std::{collections::BTreeMap, sync::Arc};

use lacuna_device::{File, StreamHint, Vfs};

use super::{control::COUNTER_MAX, format::Salt};
use crate::{
    keys::DataCipher,
    mutant::{Rule, is_broken},
    sync::Mutex,
    types::{Lsn, Result},
};

/// Bytes of log in a file.
pub(crate) const SEGMENT_BYTES: u64 = 1 << 40;
/// The same where files have no holes: log is given back by whole files there.
pub(crate) const SHORT_SEGMENT_BYTES: u64 = 64 << 20;
/// Files of a log, so that each of its offsets is a number.
const SEGMENTS_MAX: u64 = COUNTER_MAX / SHORT_SEGMENT_BYTES;
/// Step by which a file is extended, so that few writes change its length.
const EXTEND_BYTES: u64 = 64 << 20;
/// The same where files have no holes, and a file's length is the space that it takes.
const SHORT_EXTEND_BYTES: u64 = 1 << 20;

/// Name of the file that holds a segment.
fn file_name(segment: u64) -> String {
    format!("wal.{segment:06}")
}

fn parse_file_name(name: &str) -> Option<u64> {
    let segment = name.strip_prefix("wal.")?.parse().ok()?;
    (file_name(segment) == name && segment < SEGMENTS_MAX).then_some(segment)
}

/// Whether a file of that name belongs to a log.
pub(crate) fn is_log_file(name: &str) -> bool {
    parse_file_name(name).is_some()
}

/// The log's files, opened as they are needed.
pub(crate) struct LogFiles {
    vfs: Arc<dyn Vfs>,
    segment_bytes: u64,
    /// The salt that the groups in them carry.
    pub(super) salt: Salt,
    /// What groups are encrypted with.
    pub(super) cipher: Option<Arc<DataCipher>>,
    open: Mutex<BTreeMap<u64, Open>>,
}

#[derive(Clone)]
struct Open {
    file: Arc<dyn File>,
    /// Its length as far as it is known.
    bytes: u64,
}

impl LogFiles {
    /// Opens the existing files.
    pub(crate) fn open(vfs: Arc<dyn Vfs>, segment_bytes: u64, salt: Salt) -> Result<LogFiles> {
        let mut open = BTreeMap::new();
        for name in vfs.list()? {
            // No log comes so far.
            let is_possible = |segment: &u64| *segment < COUNTER_MAX / segment_bytes;
            if let Some(segment) = parse_file_name(&name).filter(is_possible) {
                let file = vfs.open(&name, StreamHint::Log)?;
                let bytes = file.len()?;
                open.insert(segment, Open { file, bytes });
            }
        }
        Ok(LogFiles { vfs, segment_bytes, salt, cipher: None, open: Mutex::new(open) })
    }

    /// The same log, whose groups are encrypted from now on if there is a cipher.
    pub(crate) fn with_cipher(self, cipher: Option<Arc<DataCipher>>) -> LogFiles {
        LogFiles { cipher, ..self }
    }

    /// Refuses a log that cannot be written at `end`, as something else has the name of its file.
    pub(crate) fn must_be_writable(&self, end: Lsn) -> Result<()> {
        let (segment, _) = self.segment(end);
        if self.open.lock().contains_key(&segment) {
            return Ok(());
        }
        match self.vfs.open(&file_name(segment), StreamHint::Log) {
            Ok(_) | Err(lacuna_device::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.vfs.props().ordered
    }

    fn segment(&self, at: Lsn) -> (u64, u64) {
        (at.0 / self.segment_bytes, at.0 % self.segment_bytes)
    }

    /// Where the file after that of `at` starts.
    pub(crate) fn next_file(&self, at: Lsn) -> Lsn {
        Lsn((self.segment(at).0 + 1) * self.segment_bytes)
    }

    /// No group starts at or after this offset.
    pub(crate) fn end(&self) -> Lsn {
        let open = self.open.lock();
        Lsn(open
            .last_key_value()
            .map_or(0, |(segment, open)| segment * self.segment_bytes + open.bytes.min(self.segment_bytes)))
    }

    /// Bytes from `at` on in which the file of `at` holds nothing, up to its end: all but less than `unit`. It looks at
    /// longer and longer pieces, so a file that is one long hole with a byte at its end takes few looks.
    pub(crate) fn hole_bytes(&self, at: Lsn, unit: u64) -> Result<u64> {
        let (segment, offset) = self.segment(at);
        let Some(open) = self.open.lock().get(&segment).cloned() else { return Ok(0) };
        let rest = open.bytes.saturating_sub(offset);
        let (mut hole, mut len) = (0, unit);
        while hole < rest {
            let piece = len.min(rest - hole);
            if open.file.allocated(offset + hole, piece)? == 0 {
                (hole, len) = (hole + piece, len.saturating_mul(2));
            } else if len > unit {
                len = unit;
            } else {
                break;
            }
        }
        Ok(hole)
    }

    /// Whether groups that start there lie in one file.
    pub(crate) fn in_same_file(&self, a: Lsn, b: Lsn) -> bool {
        self.segment(a).0 == self.segment(b).0
    }

    /// Bytes that can be read of a group that starts at `at`.
    pub(crate) fn readable_bytes(&self, at: Lsn) -> u64 {
        let (segment, offset) = self.segment(at);
        self.open.lock().get(&segment).map_or(0, |open| open.bytes.saturating_sub(offset))
    }

    /// Fills `buf` from the file of the group that starts at `at`, from `skip` bytes into the group.
    pub(crate) fn read(&self, at: Lsn, skip: u64, buf: &mut [u8]) -> Result<()> {
        let (segment, offset) = self.segment(at);
        let open = self.open.lock().get(&segment).cloned();
        match open {
            Some(open) => Ok(open.file.read_at(offset + skip, buf)?),
            None => {
                buf.fill(0);
                Ok(())
            }
        }
    }

    /// Writes a group. One caller at a time.
    pub(crate) fn write(&self, at: Lsn, group: &[u8]) -> Result<()> {
        let (segment, offset) = self.segment(at);
        let end = offset + group.len() as u64;
        let known = self.open.lock().get(&segment).cloned();
        let mut open = match known {
            Some(open) => open,
            None => {
                let file = self.vfs.create(&file_name(segment), StreamHint::Log)?;
                if !self.is_ordered() {
                    self.vfs.sync()?;
                }
                Open { file, bytes: 0 }
            }
        };
        if end > open.bytes {
            let step =
                if self.segment_bytes > SHORT_SEGMENT_BYTES { EXTEND_BYTES } else { SHORT_EXTEND_BYTES };
            open.bytes = end.next_multiple_of(step).min(self.segment_bytes).max(end);
            open.file.set_len(open.bytes)?;
        }
        open.file.write_at(offset, group)?;
        self.open.lock().insert(segment, open);
        Ok(())
    }

    /// Makes all groups written so far durable. Groups before the last file's were synced before its
    /// first one was written, or lie in an `ordered` VFS.
    pub(crate) fn sync(&self) -> Result<()> {
        let last = self.open.lock().last_key_value().map(|(_, open)| open.file.clone());
        if let Some(file) = last {
            file.sync()?;
        }
        Ok(())
    }

    /// Frees the log from `from` to `to`, a start of a group. A block that has bytes behind `to` as well goes with the next
    /// part, which therefore begins with it.
    pub(crate) fn give_back(&self, from: Lsn, to: Lsn) -> Result<()> {
        let (first, mut offset) = self.segment(from);
        let (last, end) = self.segment(to);
        for segment in first..last {
            if self.open.lock().remove(&segment).is_some() {
                self.vfs.remove(&file_name(segment))?;
            }
            offset = 0;
        }
        let open = self.open.lock().get(&last).cloned();
        match open {
            Some(open) if open.file.props().hole_unit > 0 && offset < end => {
                offset -= offset % u64::from(open.file.props().hole_unit);
                // On a log device it writes the header, and fences what others wrote: it must not fail.
                let is_needed = self.vfs.log_bytes_max().is_some();
                match open.file.punch(offset, end - offset) {
                    // The space is freed with the file.
                    Err(
                        lacuna_device::Error::Unsupported { .. }
                        | lacuna_device::Error::Full { .. }
                        | lacuna_device::Error::Io { .. },
                    ) if !is_needed => Ok(()),
                    punched => Ok(punched?),
                }
            }
            _ => Ok(()),
        }
    }

    /// Frees all log before `at`: a crash may have come between the checkpoint and that, or brought files back.
    pub(crate) fn give_all_back(&self, at: Lsn) -> Result<()> {
        let first = self.segment(at).0;
        loop {
            let Some(segment) = self.open.lock().range(..first).next().map(|(segment, _)| *segment) else {
                return self.give_back(Lsn(first * self.segment_bytes), at);
            };
            self.vfs.remove(&file_name(segment))?;
            self.open.lock().remove(&segment);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Wipes all bytes from `end` on, durably: remains of groups that a crash tore, in this file or in a later one.
    pub(crate) fn wipe_behind(&self, end: Lsn) -> Result<()> {
        let (segment, offset) = self.segment(end);
        let later: Vec<u64> = self.open.lock().range(segment + 1..).map(|(later, _)| *later).collect();
        for later in later {
            self.open.lock().remove(&later);
            self.vfs.remove(&file_name(later))?;
        }
        let open = self.open.lock().get(&segment).cloned();
        if let Some(open) = open
            && open.bytes > offset
        {
            // Cutting the file and extending it again leaves zeros on every kind of VFS.
            open.file.set_len(offset)?;
            open.file.set_len(open.bytes)?;
        }
        // A group at `end` may follow one that reaches over from the file before.
        let files = self.open.lock().clone();
        for open in files.values().filter(|_| !is_broken(Rule::SurveySynced)) {
            open.file.sync()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_read_back() {
        for segment in [0, 7, 1_000_000] {
            assert_eq!(parse_file_name(&file_name(segment)), Some(segment));
        }
        for other in ["wal", "wal.7", "wal.x", "control"] {
            assert!(!is_log_file(other), "{other}");
        }
    }
}
