//! Reading bytes of segments, from the device or from the memory of the log, and verifying them.

use std::ops::Range;

use lacuna_crc::crc32c;
use lacuna_device::AlignedBuf;

use super::reader::Reader;
use super::runs::{Bytes, KEPT, KEPT_BYTES, Run};
use crate::{
    Error, Result,
    addr::SegNo,
    format::Extent,
    mutant::{Rule, is_broken},
};

impl Reader {
    /// Bytes of a segment that is pinned or cannot be freed now.
    pub(crate) fn read_bytes(&self, segment: SegNo, offset: usize, len: usize) -> Result<Bytes> {
        if self.journal.is_on_device(segment, offset + len) {
            return self.read_device(segment, offset, len);
        }
        let (on_device, parts) = self.journal.read(segment, offset, len)?;
        let mut out = vec![0; len];
        let (device, mut memory) = out.split_at_mut(on_device);
        for part in parts {
            let (now, behind) = memory.split_at_mut(part.len());
            now.copy_from_slice(&part);
            memory = behind;
        }
        if on_device > 0 {
            device.copy_from_slice(&self.read_device(segment, offset, on_device)?);
        }
        Ok(Bytes::Memory(out))
    }

    /// The bytes of all `runs`, which are pinned or cannot be freed now; those on the device are read at the
    /// same time.
    pub(crate) fn read_runs(&self, runs: &[Run<'_>]) -> Result<Vec<Bytes>> {
        if let [Run { segment, offset, len, .. }] = *runs {
            return Ok(vec![self.read_bytes(segment, offset, len)?]);
        }
        let mut all = Vec::with_capacity(runs.len());
        let (mut reads, mut places) = (Vec::new(), Vec::new());
        for (index, Run { segment, offset, len, .. }) in runs.iter().enumerate() {
            if self.journal.is_on_device(*segment, offset + len) {
                let blocks = self.blocks(*offset, *len);
                let buf = AlignedBuf::reused(blocks.len());
                reads.push((self.volume.offset(*segment, blocks.start), buf));
                places.push((index, offset - blocks.start));
                all.push(Bytes::Memory(Vec::new())); // until it is read
            } else {
                all.push(self.read_bytes(*segment, *offset, *len)?);
            }
        }
        self.volume.device().read_many(&mut reads)?;
        for ((index, from), (_, data)) in places.into_iter().zip(reads) {
            all[index] = Bytes::Device { data, from, len: runs[index].len };
        }
        Ok(all)
    }

    /// The device's blocks around `len` bytes at `offset` of a segment.
    fn blocks(&self, offset: usize, len: usize) -> Range<usize> {
        let block = self.volume.space().block_bytes;
        offset / block * block..(offset + len).next_multiple_of(block)
    }

    fn read_device(&self, segment: SegNo, offset: usize, len: usize) -> Result<Bytes> {
        let blocks = self.blocks(offset, len);
        let kept = (blocks.len() <= KEPT_BYTES)
            .then(|| KEPT.take().unwrap_or_else(|| AlignedBuf::zeroed(KEPT_BYTES)));
        let mut data = kept.unwrap_or_else(|| AlignedBuf::reused(blocks.len()));
        self.volume.device().read_at(self.volume.offset(segment, blocks.start), &mut data[..blocks.len()])?;
        Ok(Bytes::Device { data, from: offset - blocks.start, len })
    }

    /// Whether `chunk`, as read, is what `extent` says was written.
    pub(crate) fn verify(&self, extent: &Extent, chunk: &[u8]) -> Result<()> {
        if crc32c(chunk) == extent.crc || is_broken(Rule::ReadVerifies) {
            return Ok(());
        }
        Err(self.corrupt(extent, "checksum does not match"))
    }

    /// The error for a chunk that is not what was written.
    pub(super) fn corrupt(&self, extent: &Extent, reason: &str) -> Error {
        let at = self.volume.offset(extent.phys.segment, extent.phys.offset());
        self.volume.corrupt(&format!("chunk written by batch {}", extent.birth.0), at, reason)
    }
}
