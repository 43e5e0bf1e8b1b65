//! Finding the records of a segment by a forward scan.
//!
//! A record starts where the one before it ended, or, when a flush padded in between, at the next block of the device
//! that the store was on then, of whichever size. Each names its own segment, generation, epoch and offset under a checksum that is
//! salted with the store's identity, so neither stale bytes of an earlier life nor data that looks
//! like a record pass for one. The scan ends where no such place holds a record of this life.
//!
//! Blocks that cannot be read are an error as long as records follow each other. Behind the end of the scan they are
//! passed over: nothing there is replayed, and to lose anything durable that way the device would have to have lost two
//! blocks.

use lacuna_device::AlignedBuf;
use zerocopy::FromBytes;

use crate::{
    Result, SECTOR,
    addr::{GRAIN, SegNo},
    format::{
        BLOCK_BYTES_MAX, Entry, Flaw, Life, Marks, RECORD_HEADER_BYTES, RECORDS_START, RecordHeader,
        RecordHeaderRaw,
    },
    media::Volume,
    space::Space,
};

/// Bytes that are read from the device at once.
const WINDOW_BYTES: usize = 1 << 20;

/// Reads a segment front to back through a window.
pub(crate) struct SegmentReader<'a> {
    volume: &'a Volume,
    space: Space,
    segment: SegNo,
    window: AlignedBuf,
    /// Offset of the window in the segment.
    start: usize,
    /// Least length of a window.
    ahead_bytes: usize,
}

impl<'a> SegmentReader<'a> {
    pub(crate) fn new(volume: &'a Volume, segment: SegNo) -> SegmentReader<'a> {
        let (space, window) = (volume.space(), AlignedBuf::zeroed(0));
        SegmentReader { volume, space, segment, window, start: 0, ahead_bytes: WINDOW_BYTES }
    }

    /// Byte on the device of `offset` in the segment.
    pub(crate) fn device_offset(&self, offset: usize) -> u64 {
        self.volume.offset(self.segment, offset)
    }

    /// `len` bytes at `offset`; both must lie in the segment.
    pub(crate) fn bytes(&mut self, offset: usize, len: usize) -> Result<&[u8]> {
        assert!(offset + len <= self.space.segment_bytes, "read beyond the segment");
        if offset < self.start || offset + len > self.start + self.window.len() {
            let read = self.read_window(offset, len, self.ahead_bytes);
            if read.is_err() && self.ahead_bytes > 0 {
                // The unreadable bytes may lie outside those asked for.
                self.ahead_bytes = 0;
                self.read_window(offset, len, 0)?;
            } else {
                read?;
            }
        }
        Ok(&self.window[offset - self.start..][..len])
    }

    fn read_window(&mut self, offset: usize, len: usize, ahead_bytes: usize) -> Result<()> {
        let block = self.space.block_bytes;
        let start = offset / block * block;
        let end = (offset + len).next_multiple_of(block).max(start + ahead_bytes);
        let mut window = std::mem::replace(&mut self.window, AlignedBuf::zeroed(0));
        let len = end.min(self.space.segment_bytes) - start;
        if window.len() != len {
            window = AlignedBuf::zeroed(len);
        }
        self.volume.device().read_at(self.device_offset(start), &mut window)?;
        (self.window, self.start) = (window, start);
        Ok(())
    }

    /// The first grain from `offset`, itself on a grain, to `limit`, that begins like a record. Passes over what
    /// cannot be read.
    fn find_magic(&mut self, mut offset: usize, limit: usize) -> Option<usize> {
        let block = self.space.block_bytes;
        let mut step = self.ahead_bytes.max(block);
        while offset < limit {
            let end = (offset + 1).next_multiple_of(step).min(self.space.segment_bytes);
            let grains = self.bytes(offset, end - offset).map(|bytes| bytes.chunks_exact(GRAIN));
            match grains.map(|mut grains| grains.position(RecordHeaderRaw::begins)) {
                Ok(Some(index)) => return Some(offset + index * GRAIN),
                Ok(None) => (offset, step) = (end, (step * 2).min(WINDOW_BYTES)),
                Err(_) if step > block => step /= 2,
                Err(_) => offset = end,
            }
        }
        None
    }

    /// The record of `life` at `offset`, if there is one.
    pub(crate) fn record(&mut self, offset: usize, life: Life) -> Result<Option<Record>> {
        if offset + RECORD_HEADER_BYTES > self.space.segment_bytes {
            return Ok(None);
        }
        let (segment_bytes, salt) = (self.space.segment_bytes, self.volume.salt());
        let head = self.bytes(offset, RECORD_HEADER_BYTES)?;
        let raw = RecordHeaderRaw::read_from_bytes(head).expect("bytes of that length");
        let Some(sealed) = raw.sealed_bytes(life, offset, segment_bytes) else { return Ok(None) };
        let bytes = self.bytes(offset, sealed)?;
        match raw.verify(salt, life, bytes) {
            Ok(header) => Ok(Some(Record { header, body: bytes[RECORD_HEADER_BYTES..].to_vec() })),
            Err(_) => Ok(None),
        }
    }
}

/// Passes `take` every record of `life`, a segment of the map, that can be read, past all that cannot. They start on
/// blocks, so what begins like one elsewhere costs nothing.
pub(crate) fn for_each_of_map(volume: &Volume, life: Life, mut take: impl FnMut(Record)) {
    let mut reader = SegmentReader::new(volume, life.segment);
    let mut at = RECORDS_START;
    while let Some(offset) = reader.find_magic(at, reader.space.segment_bytes) {
        let is_on_block = offset.is_multiple_of(SECTOR);
        let record = is_on_block.then(|| reader.record(offset, life).ok().flatten()).flatten();
        let end = record.as_ref().map_or(offset + 1, |record| offset + record.header.total_bytes as usize);
        record.into_iter().for_each(&mut take);
        at = end.next_multiple_of(SECTOR);
    }
}

/// A verified record without its payload.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) header: RecordHeader,
    pub(crate) body: Vec<u8>,
}

impl Record {
    /// The entries of a batch or relocation record.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, Flaw> {
        self.header.entries(&self.body)
    }
}

/// The records of one life of a segment, in order.
pub(crate) struct Scan<'a> {
    pub(crate) reader: SegmentReader<'a>,
    life: Life,
    next: usize,
}

impl<'a> Scan<'a> {
    /// Scans from `offset`, which is where a record ended or the first one starts.
    pub(crate) fn new(volume: &'a Volume, life: Life, offset: usize) -> Scan<'a> {
        Scan { reader: SegmentReader::new(volume, life.segment), life, next: offset }
    }

    /// The next record.
    pub(crate) fn next_record(&mut self) -> Result<Option<Record>> {
        let blocks = (SECTOR.ilog2()..=BLOCK_BYTES_MAX.ilog2()).map(|log2| 1 << log2);
        let padded = blocks.map(|block| self.next.next_multiple_of(block));
        for offset in std::iter::once(self.next).chain(padded) {
            if let Some(record) = self.reader.record(offset, self.life)? {
                self.next = offset + record.header.total_bytes as usize;
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// The newest flush marks of any record behind the end of the scan, up to `bytes_max` behind it. After a power cut
    /// there may be records there that were written out of order; after damage to a record the rest of the segment is
    /// there. The marks distinguish the two. Records start on any grain.
    pub(crate) fn marks_beyond(&mut self, bytes_max: usize) -> Result<Marks> {
        let (mut marks, mut at) = (Marks::default(), self.next.next_multiple_of(GRAIN));
        let end = self.reader.space.segment_bytes.min(self.next + bytes_max);
        while let Some(offset) = self.reader.find_magic(at, end) {
            if let Some(record) = self.reader.record(offset, self.life)? {
                marks = marks.max(record.header.durable());
            }
            at = offset + GRAIN;
        }
        Ok(marks)
    }

    /// Byte on the device at which the scan goes on, or ended.
    pub(crate) fn device_offset(&self) -> u64 {
        self.reader.device_offset(self.next)
    }
}
