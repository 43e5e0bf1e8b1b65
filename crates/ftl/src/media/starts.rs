//! The first bytes of segments: headers, and the lives that records claim.

use std::ops::ControlFlow;

use lacuna_device::{self as device, AlignedBuf};
use zerocopy::FromBytes;

use crate::{
    Result,
    addr::SegNo,
    format::{Life, RECORD_HEADER_BYTES, RECORDS_START, RecordHeaderRaw, SegmentHeader, SegmentHeaderRaw},
    media::{Volume, scan::sealed_records},
};

/// Starts of segments that are read at the same time.
const STARTS_AT_ONCE: usize = 64;

/// The headers found at the starts of all segments.
pub(crate) struct Headers {
    /// The headers of this store, by segment.
    pub(crate) found: Vec<Option<SegmentHeader>>,
    /// Segments whose start cannot be read.
    pub(crate) unreadable: Vec<SegNo>,
}

/// The life that the first record of each of `segments` claims, for segments without a header; none where it cannot be
/// read.
pub(crate) fn claimed_lives(volume: &Volume, segments: &[SegNo]) -> Result<Vec<Option<Life>>> {
    let len = RECORDS_START + RECORD_HEADER_BYTES;
    let claims = read_starts(volume, segments, len, |segment, start| {
        let (raw, _) =
            RecordHeaderRaw::read_from_prefix(&start[RECORDS_START..]).expect("that much was read");
        raw.claimed_life().filter(|life| life.segment == segment)
    });
    Ok(claims?.into_iter().map(Option::flatten).collect())
}

/// Reads the headers of all segments.
pub(crate) fn read_headers(volume: &Volume) -> Result<Headers> {
    // The superblock's segment has none.
    let segments: Vec<_> = (1..volume.space().segments as u32).map(SegNo).collect();
    let starts = read_starts(volume, &segments, size_of::<SegmentHeaderRaw>(), |segment, start| {
        let (raw, _) = SegmentHeaderRaw::read_from_prefix(start).expect("that much was read");
        raw.verify(volume.salt(), segment).ok()
    })?;
    let unreadable = segments.iter().zip(&starts).filter(|(_, start)| start.is_none());
    let unreadable = unreadable.map(|(segment, _)| *segment).collect();
    let found = [None].into_iter().chain(starts.into_iter().map(Option::flatten)).collect();
    Ok(Headers { found, unreadable })
}

/// The result of `parse` on the first `len` bytes of each of `segments`; none where they cannot be read.
fn read_starts<T>(
    volume: &Volume,
    segments: &[SegNo],
    len: usize,
    parse: impl Fn(SegNo, &[u8]) -> T,
) -> Result<Vec<Option<T>>> {
    let block_bytes = volume.space().block_bytes;
    let mut parsed = Vec::with_capacity(segments.len());
    for some in segments.chunks(STARTS_AT_ONCE) {
        let read = |segment: &SegNo| {
            (volume.offset(*segment, 0), AlignedBuf::zeroed(len.next_multiple_of(block_bytes)))
        };
        let mut reads: Vec<_> = some.iter().map(read).collect();
        match volume.device().read_many(&mut reads) {
            Ok(()) => parsed
                .extend(some.iter().zip(&reads).map(|(segment, (_, start))| Some(parse(*segment, start)))),
            Err(device::Error::Io { .. }) => {
                for (segment, (at, start)) in some.iter().zip(&mut reads) {
                    parsed.push(match volume.device().read_at(*at, start) {
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

/// Whether `segment` holds, or may hold, a record of a life that is wanted behind its first block.
pub(crate) fn may_hold_records(volume: &Volume, segment: SegNo, is_wanted: impl Fn(&Life) -> bool) -> bool {
    let space = volume.space();
    let mut rest = AlignedBuf::zeroed(space.segment_bytes - space.block_bytes);
    if volume.device().read_at(volume.offset(segment, space.block_bytes), &mut rest).is_err() {
        return true;
    }
    let mut holds = false;
    sealed_records(volume, segment, space.block_bytes..space.segment_bytes, is_wanted, |_| {
        holds = true;
        ControlFlow::Break(())
    });
    holds
}
