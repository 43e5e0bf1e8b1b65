//! Summaries of sealed segments, as they lie on the device.
//!
//! A valid summary lists all records of the life that was sealed. It may have survived a power cut that lost some of
//! them. A segment that was open at a power cut, or at the end of a process, has none. An unreadable summary is treated
//! as absent: it is a copy, and a scan finds the records (`scan`).

use lacuna_device::AlignedBuf;
use zerocopy::FromBytes;

use crate::{
    Result,
    addr::SegNo,
    format::{Flaw, Life, SUMMARY_BYTES, SummaryRaw},
    media::{Volume, scan::Record},
};

/// Bytes at the end of a segment that are read before the length of its summary is known.
const SUMMARY_READ_BYTES: usize = 8192;

/// All records of `life` in order, from its summary, or why there is no valid one.
pub(crate) fn read_summary(volume: &Volume, life: Life) -> Result<Result<Vec<Record>, Flaw>> {
    let summaries = read_summaries(volume, &[life])?;
    Ok(summaries.into_iter().next().expect("one for each life"))
}

/// The same of each of `lives`, all read at the same time.
pub(crate) fn read_summaries(volume: &Volume, lives: &[Life]) -> Result<Vec<Result<Vec<Record>, Flaw>>> {
    let summaries = read_summary_bytes(volume, lives)?;
    let verified = lives
        .iter()
        .zip(summaries)
        .map(|(life, bytes)| records_of(volume, &bytes.ok_or("no summary of this life")?, *life));
    Ok(verified.collect())
}

/// Verifies the summary `bytes`, copies included, and returns the records that it lists.
pub(crate) fn records_of(volume: &Volume, bytes: &[u8], life: Life) -> Result<Vec<Record>, Flaw> {
    let (_, raw) = SummaryRaw::read_from_suffix(bytes).expect("as long as a summary");
    let records = raw.verify(volume.salt(), life, volume.space().segment_bytes, bytes)?;
    Ok(records.into_iter().map(|(header, body)| Record { header, body }).collect())
}

/// What looks like the summary of each of `lives`, copies included, not verified; all read at the same time.
pub(crate) fn read_summary_bytes(volume: &Volume, lives: &[Life]) -> Result<Vec<Option<Vec<u8>>>> {
    let space = volume.space();
    let before_end = |life: &Life, len: usize| {
        let last = AlignedBuf::zeroed(len.next_multiple_of(space.block_bytes));
        ((u64::from(life.segment.0) + 1) * space.segment_bytes as u64 - last.len() as u64, last)
    };
    let mut ends: Vec<_> = lives.iter().map(|life| before_end(life, SUMMARY_READ_BYTES)).collect();
    volume.device().read_many(&mut ends)?;
    let (mut longer, mut places, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (life, (_, last))) in lives.iter().zip(&ends).enumerate() {
        let (_, raw) = SummaryRaw::read_from_suffix(last).expect("longer than a summary");
        let size = raw.body_bytes(*life, space.segment_bytes).map(|body| body + SUMMARY_BYTES);
        sizes.push(size);
        if let Some(size) = size.filter(|size| *size > last.len()) {
            longer.push(before_end(life, size));
            places.push(index);
        }
    }
    if !longer.is_empty() {
        volume.device().read_many(&mut longer)?;
    }
    places.into_iter().zip(longer).for_each(|(index, last)| ends[index] = last);
    let bytes = ends.iter().zip(sizes).map(|((_, last), size)| Some(last[last.len() - size?..].to_vec()));
    Ok(bytes.collect())
}

/// The life and the records that the summary of `segment` lists, whatever life it is.
pub(crate) fn read_any_summary(volume: &Volume, segment: SegNo) -> Option<(Life, Vec<Record>)> {
    let space = volume.space();
    let mut last = AlignedBuf::zeroed(SUMMARY_BYTES.next_multiple_of(space.block_bytes));
    let end = (u64::from(segment.0) + 1) * space.segment_bytes as u64;
    volume.device().read_at(end - last.len() as u64, &mut last).ok()?;
    let (_, raw) = SummaryRaw::read_from_suffix(&last).expect("longer than a summary");
    let life = raw.claimed_life().filter(|life| life.segment == segment)?;
    let records = read_summary(volume, life).ok()?.ok()?;
    Some((life, records))
}
