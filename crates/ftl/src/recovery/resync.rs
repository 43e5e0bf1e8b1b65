//! What recovery leans on although it is not known to be durable, and making it so.
//!
//! A sync that fails may take back what was written before it, once the power goes, and no later one brings it back
//! or tells (point 4 of the contract of [`lacuna_device`]). Reads show it all the same. So after a failed sync, and
//! a reopen without a power cycle, recovery reads what a power cut may still take. It must not free anything on the
//! word of that, nor overwrite it.
//!
//! 1. In doubt is whatever recovery leans on and was written behind the last mark of what was durable: records of
//!    batches and of relocations, headers and summaries of their segments, the last retained summaries, a superblock of
//!    which the slots differ. The root and all that it leads to are not: they were synced before the superblock was
//!    written.
//! 2. All of that is written again, as it was read, and synced, before recovery writes anything else. A power cut on
//!    the way leaves of each sector what it held or what was read from it, so it is as if it came before.
//! 3. So whatever a second recovery misses of what the first one read, the first one did not lean on.

use std::{collections::BTreeMap, ops::Range};

use lacuna_device::{self as device, AlignedBuf, BlockDevice};

use crate::{
    Result,
    addr::SegNo,
    format::{Life, RECORDS_START, RecordHeader},
    media::{Volume, summaries::read_summary_bytes, superblock},
    mutant::{Rule, is_broken},
    ranges::merged,
};

/// Bytes that are read and written again at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Bytes on the device that are in doubt.
#[derive(Default)]
pub(crate) struct Resync {
    ranges: Vec<Range<u64>>,
    /// Segments in which records are.
    lives: BTreeMap<SegNo, Life>,
}

impl Resync {
    /// Takes up the bytes of the log record with this header, which starts at `at`.
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

    /// Makes it durable, and the superblock.
    pub(crate) fn settle(self, volume: &Volume) -> Result<()> {
        let (device, space) = (volume.device(), volume.space());
        if is_broken(Rule::ResyncDone) {
            return Ok(());
        }
        superblock::settle(device)?;
        let block = space.block_bytes as u64;
        let whole_blocks = |range: Range<u64>| range.start / block * block..range.end.next_multiple_of(block);
        let Resync { mut ranges, lives } = self;
        for life in lives.into_values() {
            let start = volume.offset(life.segment, 0);
            ranges.push(start..start + RECORDS_START as u64);
            // One that cannot be read was not leaned on.
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

/// Writes `bytes` as they are. What cannot be read is left: nobody leaned on it.
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
