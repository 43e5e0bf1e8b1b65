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

use std::ops::{ControlFlow, Range};

use lacuna_device::AlignedBuf;
use zerocopy::FromBytes;

use crate::{
    Result, SECTOR, Seq,
    addr::{GRAIN, SegNo},
    format::{
        BLOCK_BYTES_MAX, Entry, Flaw, Life, Marks, RECORD_CRC_END, RECORD_HEADER_BYTES, RECORDS_START,
        RecordHeader, RecordHeaderRaw,
    },
    media::{Volume, heads::Heads},
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

    /// Appends the `len` bytes at `offset`, which begins a block, to `to`; zeros for blocks that cannot be read.
    fn append_readable(&mut self, offset: usize, len: usize, to: &mut Vec<u8>) {
        if let Ok(bytes) = self.bytes(offset, len) {
            to.extend_from_slice(bytes);
            return;
        }
        let block = self.space.block_bytes;
        for start in (offset..offset + len).step_by(block) {
            match self.bytes(start, block.min(offset + len - start)) {
                Ok(bytes) => to.extend_from_slice(bytes),
                Err(_) => to.resize(to.len() + block.min(offset + len - start), 0),
            }
        }
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

/// What is known of a record without its body.
#[derive(Clone, Copy)]
pub(crate) struct Sealed {
    pub(crate) offset: usize,
    pub(crate) marks: Marks,
}

/// Passes `found` what lies in `segment` as a record of a life that `is_wanted` does and begins in `range`, past all that
/// cannot be read, until it breaks. Records start on any grain, and may lie in one another. One pass, whatever is there.
pub(crate) fn sealed_records(
    volume: &Volume,
    segment: SegNo,
    range: Range<usize>,
    is_wanted: impl Fn(&Life) -> bool,
    mut found: impl FnMut(Sealed) -> ControlFlow<()>,
) {
    let (space, salt) = (volume.space(), volume.salt());
    let mut reader = SegmentReader::new(volume, segment);
    let mut start = range.start / space.block_bytes * space.block_bytes;
    let (mut at, mut window, mut heads) = (start, Vec::new(), Heads::from(start as u64));
    while at < space.segment_bytes && (at < range.end || heads.is_any_open()) {
        let len = WINDOW_BYTES.min(space.segment_bytes - at);
        reader.append_readable(at, len, &mut window);
        at += len;
        // The last bytes may begin a header that ends in the next window.
        let (mut passed, whole) =
            (0, if at < space.segment_bytes { window.len() - RECORD_HEADER_BYTES } else { window.len() });
        let ends = range.end.saturating_sub(start).min(whole);
        for head in (range.start.saturating_sub(start).next_multiple_of(GRAIN)..ends).step_by(GRAIN) {
            if !RecordHeaderRaw::begins(&window[head..]) {
                continue;
            }
            let Ok((raw, _)) = RecordHeaderRaw::read_from_prefix(&window[head..]) else { continue };
            let Some(life) = raw.claimed_life().filter(|life| life.segment == segment && is_wanted(life))
            else {
                continue;
            };
            let Some(sealed) = raw.sealed_bytes(life, start + head, space.segment_bytes) else { continue };
            let Ok(header) = raw.parse(life) else { continue };
            let crc_end = head + RECORD_CRC_END;
            if heads
                .pass(&window[passed..crc_end])
                .try_for_each(|known: Known| found(known.into()))
                .is_break()
            {
                return;
            }
            passed = crc_end;
            let marks = header.durable();
            let known = Known { offset: start + head, batches: marks.batches.0, moves: marks.moves.0 };
            let offset = (start + head) as u64;
            heads.meet(offset + sealed as u64, raw.crc_at_end(salt, heads.crc(), sealed), known);
        }
        let whole = whole.max(passed);
        if heads.pass(&window[passed..whole]).try_for_each(|known| found(known.into())).is_break() {
            return;
        }
        window.drain(..whole);
        start += whole;
    }
}

/// A head, by where it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    offset: usize,
    batches: u64,
    moves: u64,
}

impl From<Known> for Sealed {
    fn from(known: Known) -> Sealed {
        let marks = Marks { batches: Seq(known.batches), moves: Seq(known.moves) };
        Sealed { offset: known.offset, marks }
    }
}

/// Passes `take` every record of `life` that can be read, past all that cannot, but for those within another one.
pub(crate) fn for_each_readable(volume: &Volume, life: Life, mut take: impl FnMut(Record)) {
    let mut places = Vec::new();
    let range = RECORDS_START..volume.space().segment_bytes;
    sealed_records(
        volume,
        life.segment,
        range,
        |found| *found == life,
        |sealed| {
            places.push(sealed.offset);
            ControlFlow::Continue(())
        },
    );
    places.sort_unstable();
    let (mut reader, mut end) = (SegmentReader::new(volume, life.segment), 0);
    for offset in places {
        if offset >= end
            && let Ok(Some(record)) = reader.record(offset, life)
        {
            end = offset + record.header.total_bytes as usize;
            take(record);
        }
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
    /// there. The marks distinguish the two.
    pub(crate) fn marks_beyond(&self, bytes_max: usize) -> Marks {
        let (mut marks, life) = (Marks::default(), self.life);
        let space = self.reader.space;
        let range = self.next..space.segment_bytes.min(self.next + bytes_max);
        sealed_records(
            self.reader.volume,
            life.segment,
            range,
            |found| *found == life,
            |sealed| {
                marks = marks.max(sealed.marks);
                ControlFlow::Continue(())
            },
        );
        marks
    }

    /// Byte on the device at which the scan goes on, or ended.
    pub(crate) fn device_offset(&self) -> u64 {
        self.reader.device_offset(self.next)
    }
}
