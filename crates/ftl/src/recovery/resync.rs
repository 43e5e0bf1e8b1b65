//! Replayed records that may never have been synced, and making them durable.
//!
//! After a failed sync, writes before it may be lost when the power fails, and no later sync restores or reports them
//! (point 4 of the contract of [`lacuna_device`]). Reads still return them. So after a failed sync and a reopen without
//! a power cycle, recovery reads bytes that a power cut may still take. It must neither free anything because of them
//! nor overwrite them.
//!
//! 1. A resync covers all bytes that recovery relies on and that were written after the last durable mark: records of
//!    batches and of relocations, headers and summaries of their segments, the last retained summaries, a superblock
//!    whose slots differ, key blocks that do. It need not cover the root and all that it leads to: they were synced before the superblock
//!    was written.
//! 2. All of these bytes are rewritten as they were read, and synced, before recovery writes anything else. A power cut
//!    in between leaves each sector with what it held or with what was read from it, which is the same as a power cut
//!    before the resync.
//! 3. So if a second recovery misses bytes that the first one read, the first one did not rely on them.

use std::{collections::BTreeMap, ops::Range};

use lacuna_device::{self as device, AlignedBuf, BlockDevice};

use crate::{
    Result,
    addr::SegNo,
    format::{Life, RECORDS_START, RecordHeader, Superblock},
    media::{Volume, keys, summaries::read_summary_bytes, superblock},
    mutant::{Rule, is_broken},
    ranges::merged,
};

/// Bytes that are read and written again at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Bytes on the device that may never have been synced.
#[derive(Default)]
pub(crate) struct Resync {
    ranges: Vec<Range<u64>>,
    /// Segments that hold such records.
    lives: BTreeMap<SegNo, Life>,
}

impl Resync {
    /// Adds the bytes of the log record with this header, which starts at `at`.
    pub(crate) fn add_record(&mut self, header: &RecordHeader, at: u64) {
        self.ranges.push(at..at + u64::from(header.total_bytes));
        self.lives.insert(header.life.segment, header.life);
    }

    pub(crate) fn add(&mut self, range: Range<u64>) {
        self.ranges.push(range);
    }

    /// Forgets all that was added.
    pub(crate) fn clear(&mut self) {
        *self = Resync::default();
    }

    pub(crate) fn join(&mut self, other: Resync) {
        self.ranges.extend(other.ranges);
        self.lives.extend(other.lives);
    }

    /// Makes these bytes, and the superblock, durable.
    pub(crate) fn settle(self, volume: &Volume, superblock: &Superblock) -> Result<()> {
        let (device, space) = (volume.device(), volume.space());
        if is_broken(Rule::ResyncDone) {
            return Ok(());
        }
        keys::settle(device, superblock)?;
        superblock::settle(device, superblock)?;
        let block = space.block_bytes as u64;
        let whole_blocks = |range: Range<u64>| range.start / block * block..range.end.next_multiple_of(block);
        let Resync { mut ranges, lives } = self;
        for life in lives.into_values() {
            let start = volume.offset(life.segment, 0);
            ranges.push(start..start + RECORDS_START as u64);
            // Recovery did not rely on a summary that cannot be read.
            if let Ok([Some(summary)]) = read_summary_bytes(volume, &[life]).as_deref() {
                let end = start + space.segment_bytes as u64;
                ranges.push(end - summary.len() as u64..end);
            }
        }
        if ranges.is_empty() {
            return Ok(());
        }
        for range in merged(ranges.into_iter().map(whole_blocks).collect()) {
            for at in range.clone().step_by(PIECE_BYTES as usize) {
                write_again(device, block, at..range.end.min(at + PIECE_BYTES))?;
            }
        }
        Ok(device.sync()?)
    }
}

/// Rewrites `bytes` as they are. Unreadable blocks are skipped: recovery did not rely on them.
fn write_again(device: &dyn BlockDevice, block: u64, bytes: Range<u64>) -> Result<()> {
    let len = bytes.end - bytes.start;
    let mut buf = AlignedBuf::zeroed(len as usize);
    match device.read_at(bytes.start, &mut buf) {
        Ok(()) => Ok(device.write_at(bytes.start, &buf)?),
        Err(device::Error::Io { .. }) if len > block => {
            let middle = bytes.start + (len / block / 2) * block;
            write_again(device, block, bytes.start..middle)?;
            write_again(device, block, middle..bytes.end)
        }
        Err(device::Error::Io { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
