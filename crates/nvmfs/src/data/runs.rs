//! The data of files without the holes between: many runs in one read, many runs in one batch. Copies, within a store
//! and between stores, are made of these.
//!
//! So the cost of copying a file with a million holes depends on its bytes, not its runs: a piece is read with as many
//! concurrent requests as it takes, and written in one batch. Nothing is held while the source is read, so a copy of a
//! file that is being written does not show a single moment, but each run is whole.

use std::{borrow::Cow, ops::Range, sync::Arc};

use lacuna_device::SECTOR;
use lacuna_ftl::{Lba, Mapped, Op};

use crate::{
    data::{Data, WriteOptions, end_of, is_aligned, must_be_file, sector, sectors},
    error::{Refusal, Result},
    format::Ino,
    inodes::{Author, Node, Target},
};

/// Result of [`Posix::read_runs`](crate::posix::Posix::read_runs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Data and the bytes that it starts at, in order; between two of them lies a hole.
    pub runs: Vec<(u64, Vec<u8>)>,
    /// End of the part that was looked at; the length of the file if there is no more.
    pub end: u64,
}

/// Most bytes that [`Data::copy_range`] copies at once where it must put sectors together.
const UNALIGNED_BYTES_MAX: u64 = 1 << 20;

impl Data {
    /// The mapped data in these sectors of a file, from their start on, as much as one batch takes.
    pub(super) fn mapped_runs(&self, node: &Node, sectors: Range<u64>) -> Result<Mapped> {
        let mapped =
            self.inodes.volume().ftl().read_mapped(node.ino().range(sectors), self.piece_bytes() as usize)?;
        // Checked after the read: the number may have become another file's meanwhile.
        if node.is_removed() { Err(Refusal::Stale.into()) } else { Ok(mapped) }
    }

    /// See [`crate::posix::Posix::read_runs`].
    pub(crate) fn read_runs(&self, ino: Ino, offset: u64) -> Result<Runs> {
        let node = self.inodes.node(ino)?;
        must_be_file(&node)?;
        if !is_aligned(offset) {
            return Err(Refusal::Invalid.into());
        }
        let size = node.size();
        if offset >= size {
            return Ok(Runs { runs: Vec::new(), end: size });
        }
        let range = sectors(offset, size - offset);
        let mapped = self.mapped_runs(&node, range)?;
        let byte = |lba: Lba| (lba.0 - ino.lba(0).0) * SECTOR as u64;
        let runs = mapped.runs.into_iter().map(|(lba, mut data)| {
            data.truncate((size - byte(lba)).min(data.len() as u64) as usize);
            (byte(lba), data)
        });
        let runs = runs.collect();
        self.inodes.touch_accessed(&node);
        Ok(Runs { runs, end: byte(mapped.end).min(size) })
    }

    /// See [`crate::posix::Posix::write_runs`].
    pub(crate) fn write_runs(&self, ino: Ino, runs: &[(u64, &[u8])]) -> Result<()> {
        let node = self.inodes.node(ino)?;
        must_be_file(&node)?;
        let mut behind = 0;
        for (offset, data) in runs {
            end_of(*offset, data.len() as u64)?;
            let range = sectors(*offset, data.len() as u64);
            if range.start < behind {
                return Err(Refusal::Invalid.into());
            }
            behind = range.end;
        }
        let bytes_max = self.piece_bytes();
        let (mut batch, mut batch_bytes) = (Vec::new(), 0);
        for (offset, data) in runs.iter().flat_map(|(offset, data)| pieces(*offset, data, bytes_max)) {
            let range = sectors(offset, data.len() as u64);
            let bytes = (range.end - range.start) * SECTOR as u64;
            if batch_bytes + bytes > bytes_max {
                self.write_run_batch(&node, &batch)?;
                batch.clear();
                batch_bytes = 0;
            }
            batch.push((offset, data));
            batch_bytes += bytes;
        }
        self.write_run_batch(&node, &batch)
    }

    /// Writes `runs`, which share no sector, in one batch.
    fn write_run_batch(&self, node: &Arc<Node>, runs: &[(u64, &[u8])]) -> Result<()> {
        let (Some((first, _)), Some((last, last_data))) = (runs.first(), runs.last()) else { return Ok(()) };
        let end = last + last_data.len() as u64;
        let _held = node.lock_sectors(sectors(*first, end - first));
        let mut whole = Vec::with_capacity(runs.len());
        for (offset, data) in runs {
            let is_whole = is_aligned(*offset) && is_aligned(data.len() as u64);
            let data =
                if is_whole { Cow::from(*data) } else { self.merge(node.ino(), *offset, data)?.into() };
            whole.push((node.ino().lba(sector(*offset)), data));
        }
        let ops: Vec<_> = whole.iter().map(|(lba, data)| Op::Write { lba: *lba, data }).collect();
        self.inodes.write_data(&ops, &[Target { node: Arc::clone(node), end, by: Author::default() }])
    }

    /// See [`crate::posix::Posix::copy_range`].
    pub(crate) fn copy_range(
        &self,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
        by: Author,
    ) -> Result<u64> {
        let (source, target) = (self.inodes.node(from)?, self.inodes.node(to)?);
        must_be_file(&source)?;
        must_be_file(&target)?;
        let len = len.min(source.size().saturating_sub(from_offset));
        end_of(to_offset, len)?;
        if from == to && from_offset.abs_diff(to_offset) < len {
            return Err(Refusal::Invalid.into());
        }
        let count = sector(len);
        if count > 0 && is_aligned(from_offset) && is_aligned(to_offset) {
            self.drop_capability(&target)?;
            let first = sector(from_offset);
            let range = first..first + count;
            let copied = self.copy_sectors(&source, range, &target, sector(to_offset), by)?;
            return Ok(copied * SECTOR as u64);
        }
        let mut bytes = vec![0; len.min(UNALIGNED_BYTES_MAX) as usize];
        let read = self.read_bytes(from, from_offset, &mut bytes)?;
        let options = WriteOptions { kill_privileges: by.kill_privileges, ..WriteOptions::default() };
        let written = self.write_bytes(to, to_offset, &bytes[..read], options, by.privilege)?;
        Ok(written as u64)
    }

    /// Copies whole sectors, holes as holes: as many as one batch takes; returns how many that were.
    fn copy_sectors(
        &self,
        source: &Node,
        range: Range<u64>,
        target: &Arc<Node>,
        to: u64,
        by: Author,
    ) -> Result<u64> {
        let from = source.ino().lba(range.start);
        let mapped = self.mapped_runs(source, range)?;
        let count = mapped.end.0 - from.0;
        let start = target.ino().lba(0).0;
        // Where the data end may be where the region does.
        let moved = |lba: Lba| Lba(start + to + (lba.0 - from.0));
        let mut ops = Vec::with_capacity(2 * mapped.runs.len() + 1);
        let mut behind = moved(from);
        // No sector is changed twice: it would not be stored compressed.
        let hole = |behind: Lba, next: Lba| {
            (behind < next).then_some(Op::Trim { lba: behind, sectors: next.0 - behind.0 })
        };
        for (lba, data) in &mapped.runs {
            ops.extend(hole(behind, moved(*lba)));
            ops.push(Op::Write { lba: moved(*lba), data });
            behind = ops.last().expect("it was just put in").range().end;
        }
        ops.extend(hole(behind, moved(mapped.end)));
        let _held = target.lock_sectors(to..to + count);
        let end = (to + count) * SECTOR as u64;
        self.inodes.write_data(&ops, &[Target { node: Arc::clone(target), end, by }])?;
        Ok(count)
    }
}

/// `data` at `offset` in pieces of at most `bytes_max` bytes in whole sectors, cut between sectors.
fn pieces(offset: u64, mut data: &[u8], bytes_max: u64) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = at;
        let len = (sector(start) * SECTOR as u64 + bytes_max - start).min(data.len() as u64);
        let (piece, rest) = data.split_at(len as usize);
        (at, data) = (start + len, rest);
        (!piece.is_empty()).then_some((start, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_are_cut_between_sectors() {
        let data = [0; 2000];
        for (offset, expected) in [
            (0, &[(0, 1024), (1024, 976)][..]),
            (100, &[(100, 924), (1024, 1024), (2048, 52)]),
            (1536, &[(1536, 1024), (2560, 976)]),
        ] {
            let found: Vec<_> = pieces(offset, &data, 1024).map(|(at, data)| (at, data.len())).collect();
            assert_eq!(found, expected);
        }
        assert_eq!(pieces(7, &[], 1024).count(), 0);
    }
}
