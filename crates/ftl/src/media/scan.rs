//! Finding the records of a segment: from its footer, or by a forward scan.
//!
//! A footer that counts tells of all records of the life that was sealed. It may have survived a power
//! cut that took some of them. A segment that was open at a cut, or at the end of a process, has none. One
//! that cannot be read is as good as none: it is a copy.
//!
//! A record starts where the one before it ended, or, when a flush padded in between, at the next
//! device block. Each names its own segment, generation, epoch and offset under a checksum that is
//! salted with the store's identity, so neither stale bytes of an earlier life nor data that looks
//! like a record pass for one. The scan ends where neither place holds a record of this life.
//!
//! Blocks that cannot be read are an error as long as records follow each other. Behind the end of the
//! scan they are passed over: nothing there is replayed, and of what was durable the device would have to
//! have lost two blocks.

use lacuna_device::{self as device, AlignedBuf, BlockDevice};
use zerocopy::FromBytes;

use crate::{
    Error, Result,
    addr::{GRAIN, SegNo},
    format::{
        Entry, FOOTER_BYTES, Flaw, FooterRaw, Life, Marks, RECORD_HEADER_BYTES, RECORDS_START, RecordHeader,
        RecordHeaderRaw, Salt, SegmentHeader, SegmentHeaderRaw,
    },
    space::Space,
};

/// Bytes that are read from the device at once.
const WINDOW_BYTES: usize = 1 << 20;
/// Starts of segments that are read at the same time.
const STARTS_AT_ONCE: usize = 64;
/// Bytes at the end of a segment that are read before the length of its footer is known.
const FOOTER_READ_BYTES: usize = 8192;

/// Reads a segment front to back through a window.
pub(crate) struct SegmentReader<'a> {
    device: &'a dyn BlockDevice,
    space: Space,
    segment: SegNo,
    window: AlignedBuf,
    /// Offset of the window in the segment.
    start: usize,
    /// Least length of a window.
    ahead_bytes: usize,
}

impl<'a> SegmentReader<'a> {
    pub(crate) fn new(device: &'a dyn BlockDevice, space: Space, segment: SegNo) -> SegmentReader<'a> {
        let window = AlignedBuf::zeroed(0);
        SegmentReader { device, space, segment, window, start: 0, ahead_bytes: WINDOW_BYTES }
    }

    /// Byte on the device of `offset` in the segment.
    pub(crate) fn device_offset(&self, offset: usize) -> u64 {
        u64::from(self.segment.0) * self.space.segment_bytes as u64 + offset as u64
    }

    /// `len` bytes at `offset`; both must lie in the segment.
    pub(crate) fn bytes(&mut self, offset: usize, len: usize) -> Result<&[u8]> {
        assert!(offset + len <= self.space.segment_bytes, "read beyond the segment");
        if offset < self.start || offset + len > self.start + self.window.len() {
            let read = self.read_window(offset, len, self.ahead_bytes);
            if read.is_err() && self.ahead_bytes > 0 {
                // What cannot be read may not be what is asked for.
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
        self.device.read_at(self.device_offset(start), &mut window)?;
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
    pub(crate) fn record(&mut self, offset: usize, salt: Salt, life: Life) -> Result<Option<Record>> {
        if offset + RECORD_HEADER_BYTES > self.space.segment_bytes {
            return Ok(None);
        }
        let segment_bytes = self.space.segment_bytes;
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
    salt: Salt,
    life: Life,
    next: usize,
}

impl<'a> Scan<'a> {
    /// Scans from `offset`, which is where a record ended or the first one starts.
    pub(crate) fn new(reader: SegmentReader<'a>, salt: Salt, life: Life, offset: usize) -> Scan<'a> {
        Scan { reader, salt, life, next: offset }
    }

    /// The next record.
    pub(crate) fn next_record(&mut self) -> Result<Option<Record>> {
        let padded = self.next.next_multiple_of(self.reader.space.block_bytes);
        for offset in [self.next, padded] {
            if let Some(record) = self.reader.record(offset, self.salt, self.life)? {
                self.next = offset + record.header.total_bytes as usize;
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// The newest flush marks of any record behind the end of the scan, up to `bytes_max` behind it. A power cut
    /// leaves records there that it did not reach in order; damage to a record leaves the rest of the segment. The
    /// marks tell them apart. Records start on any grain.
    pub(crate) fn marks_beyond(&mut self, bytes_max: usize) -> Result<Marks> {
        let (mut marks, mut at) = (Marks::default(), self.next.next_multiple_of(GRAIN));
        let end = self.reader.space.segment_bytes.min(self.next + bytes_max);
        while let Some(offset) = self.reader.find_magic(at, end) {
            if let Some(record) = self.reader.record(offset, self.salt, self.life)? {
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

/// All records of `life` in order, from its footer, or why there is none that counts.
pub(crate) fn read_footer(
    device: &dyn BlockDevice,
    space: Space,
    salt: Salt,
    life: Life,
) -> Result<Result<Vec<Record>, Flaw>> {
    let footers = read_footers(device, space, salt, &[life])?;
    Ok(footers.into_iter().next().expect("one for each life"))
}

/// The same of each of `lives`, all read at the same time.
pub(crate) fn read_footers(
    device: &dyn BlockDevice,
    space: Space,
    salt: Salt,
    lives: &[Life],
) -> Result<Vec<Result<Vec<Record>, Flaw>>> {
    let footers = read_footer_bytes(device, space, lives)?;
    let verified = lives
        .iter()
        .zip(footers)
        .map(|(life, bytes)| records_of(&bytes.ok_or("no footer of this life")?, salt, *life));
    Ok(verified.collect())
}

/// The records that the footer `bytes`, copies included, tells of, once it is verified.
pub(crate) fn records_of(bytes: &[u8], salt: Salt, life: Life) -> Result<Vec<Record>, Flaw> {
    let (_, raw) = FooterRaw::read_from_suffix(bytes).expect("as long as a footer");
    let records = raw.verify(salt, life, bytes)?;
    Ok(records.into_iter().map(|(header, body)| Record { header, body }).collect())
}

/// What looks like the footer of each of `lives`, copies included, not verified; all read at the same time.
pub(crate) fn read_footer_bytes(
    device: &dyn BlockDevice,
    space: Space,
    lives: &[Life],
) -> Result<Vec<Option<Vec<u8>>>> {
    let before_end = |life: &Life, len: usize| {
        let last = AlignedBuf::zeroed(len.next_multiple_of(space.block_bytes));
        ((u64::from(life.segment.0) + 1) * space.segment_bytes as u64 - last.len() as u64, last)
    };
    let mut ends: Vec<_> = lives.iter().map(|life| before_end(life, FOOTER_READ_BYTES)).collect();
    device.read_many(&mut ends)?;
    let (mut longer, mut places, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (life, (_, last))) in lives.iter().zip(&ends).enumerate() {
        let (_, raw) = FooterRaw::read_from_suffix(last).expect("longer than a footer");
        let size = raw.body_bytes(*life, space.segment_bytes).map(|body| body + FOOTER_BYTES);
        sizes.push(size);
        if let Some(size) = size.filter(|size| *size > last.len()) {
            longer.push(before_end(life, size));
            places.push(index);
        }
    }
    if !longer.is_empty() {
        device.read_many(&mut longer)?;
    }
    places.into_iter().zip(longer).for_each(|(index, last)| ends[index] = last);
    let bytes = ends.iter().zip(sizes).map(|((_, last), size)| Some(last[last.len() - size?..].to_vec()));
    Ok(bytes.collect())
}

/// What the starts of all segments say.
pub(crate) struct Headers {
    /// The headers of this store, by segment.
    pub(crate) found: Vec<Option<SegmentHeader>>,
    /// Segments whose start the device does not give back.
    pub(crate) unreadable: Vec<SegNo>,
}

/// The life that the first record of each of `segments` says it belongs to, for those without a header. What
/// cannot be read says nothing.
pub(crate) fn claimed_lives(
    device: &dyn BlockDevice,
    space: Space,
    segments: &[SegNo],
) -> Result<Vec<Option<Life>>> {
    let len = RECORDS_START + RECORD_HEADER_BYTES;
    let claims = read_starts(device, space, segments, len, |segment, start| {
        let (raw, _) =
            RecordHeaderRaw::read_from_prefix(&start[RECORDS_START..]).expect("that much was read");
        raw.claimed_life().filter(|life| life.segment == segment)
    });
    Ok(claims?.into_iter().map(Option::flatten).collect())
}

/// Reads the headers of all segments.
pub(crate) fn read_headers(device: &dyn BlockDevice, space: Space, salt: Salt) -> Result<Headers> {
    // The superblock's segment has none.
    let segments: Vec<_> = (1..space.segments as u32).map(SegNo).collect();
    let starts = read_starts(device, space, &segments, size_of::<SegmentHeaderRaw>(), |segment, start| {
        let (raw, _) = SegmentHeaderRaw::read_from_prefix(start).expect("that much was read");
        raw.verify(salt, segment).ok()
    })?;
    let unreadable = segments.iter().zip(&starts).filter(|(_, start)| start.is_none());
    let unreadable = unreadable.map(|(segment, _)| *segment).collect();
    let found = [None].into_iter().chain(starts.into_iter().map(Option::flatten)).collect();
    Ok(Headers { found, unreadable })
}

/// What `parse` makes of the first `len` bytes of each of `segments`; none where the device does not give them back.
fn read_starts<T>(
    device: &dyn BlockDevice,
    space: Space,
    segments: &[SegNo],
    len: usize,
    parse: impl Fn(SegNo, &[u8]) -> T,
) -> Result<Vec<Option<T>>> {
    let mut parsed = Vec::with_capacity(segments.len());
    for some in segments.chunks(STARTS_AT_ONCE) {
        let read = |segment: &SegNo| {
            let at = u64::from(segment.0) * space.segment_bytes as u64;
            (at, AlignedBuf::zeroed(len.next_multiple_of(space.block_bytes)))
        };
        let mut reads: Vec<_> = some.iter().map(read).collect();
        match device.read_many(&mut reads) {
            Ok(()) => parsed
                .extend(some.iter().zip(&reads).map(|(segment, (_, start))| Some(parse(*segment, start)))),
            Err(device::Error::Io { .. }) => {
                for (segment, (at, start)) in some.iter().zip(&mut reads) {
                    parsed.push(match device.read_at(*at, start) {
                        Ok(()) => Some(parse(*segment, start)),
                        Err(device::Error::Io { .. }) => None,
                        Err(error) => return Err(error.into()),
                    });
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(parsed)
}

/// The life and the records of which the footer of `segment` tells, whatever life it is.
pub(crate) fn read_any_footer(
    device: &dyn BlockDevice,
    space: Space,
    salt: Salt,
    segment: SegNo,
) -> Option<(Life, Vec<Record>)> {
    let mut last = AlignedBuf::zeroed(FOOTER_BYTES.next_multiple_of(space.block_bytes));
    let end = (u64::from(segment.0) + 1) * space.segment_bytes as u64;
    device.read_at(end - last.len() as u64, &mut last).ok()?;
    let (_, raw) = FooterRaw::read_from_suffix(&last).expect("longer than a footer");
    let life = raw.claimed_life().filter(|life| life.segment == segment)?;
    let records = read_footer(device, space, salt, life).ok()?.ok()?;
    Some((life, records))
}

/// Whether `segment` holds, or may hold, a record of a life that is wanted behind its first block.
pub(crate) fn may_hold_records(
    device: &dyn BlockDevice,
    space: Space,
    salt: Salt,
    segment: SegNo,
    is_wanted: impl Fn(&Life) -> bool,
) -> bool {
    let mut rest = AlignedBuf::zeroed(space.segment_bytes - space.block_bytes);
    let start = u64::from(segment.0) * space.segment_bytes as u64;
    if device.read_at(start + space.block_bytes as u64, &mut rest).is_err() {
        return true;
    }
    let mut reader = SegmentReader::new(device, space, segment);
    (0..rest.len() - RECORD_HEADER_BYTES).step_by(GRAIN).any(|at| {
        let (raw, _) = RecordHeaderRaw::read_from_prefix(&rest[at..]).expect("that much is left");
        let life = raw.claimed_life().filter(|life| life.segment == segment && is_wanted(life));
        life.is_some_and(|life| !matches!(reader.record(space.block_bytes + at, salt, life), Ok(None)))
    })
}

/// The error for damage on `device`.
pub(crate) fn corrupt(device: &dyn BlockDevice, what: &str, at: u64, reason: impl Into<String>) -> Error {
    Error::Corrupt { what: format!("{}, {what}", device.name()), at, reason: reason.into() }
}
