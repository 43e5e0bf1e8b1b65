//! Footers of sealed segments, as they lie on the device.
//!
//! A footer that counts tells of all records of the life that was sealed. It may have survived a power
//! cut that took some of them. A segment that was open at a cut, or at the end of a process, has none. One
//! that cannot be read is as good as none: it is a copy, and a scan finds the records (`scan`).

use lacuna_device::AlignedBuf;
use zerocopy::FromBytes;

use crate::{
    Result,
    addr::SegNo,
    format::{FOOTER_BYTES, Flaw, FooterRaw, Life, Salt},
    media::{Volume, scan::Record},
};

/// Bytes at the end of a segment that are read before the length of its footer is known.
const FOOTER_READ_BYTES: usize = 8192;

/// All records of `life` in order, from its footer, or why there is none that counts.
pub(crate) fn read_footer(volume: &Volume, life: Life) -> Result<Result<Vec<Record>, Flaw>> {
    let footers = read_footers(volume, &[life])?;
    Ok(footers.into_iter().next().expect("one for each life"))
}

/// The same of each of `lives`, all read at the same time.
pub(crate) fn read_footers(volume: &Volume, lives: &[Life]) -> Result<Vec<Result<Vec<Record>, Flaw>>> {
    let footers = read_footer_bytes(volume, lives)?;
    let verified = lives
        .iter()
        .zip(footers)
        .map(|(life, bytes)| records_of(&bytes.ok_or("no footer of this life")?, volume.salt(), *life));
    Ok(verified.collect())
}

/// The records that the footer `bytes`, copies included, tells of, once it is verified.
pub(crate) fn records_of(bytes: &[u8], salt: Salt, life: Life) -> Result<Vec<Record>, Flaw> {
    let (_, raw) = FooterRaw::read_from_suffix(bytes).expect("as long as a footer");
    let records = raw.verify(salt, life, bytes)?;
    Ok(records.into_iter().map(|(header, body)| Record { header, body }).collect())
}

/// What looks like the footer of each of `lives`, copies included, not verified; all read at the same time.
pub(crate) fn read_footer_bytes(volume: &Volume, lives: &[Life]) -> Result<Vec<Option<Vec<u8>>>> {
    let space = volume.space();
    let before_end = |life: &Life, len: usize| {
        let last = AlignedBuf::zeroed(len.next_multiple_of(space.block_bytes));
        ((u64::from(life.segment.0) + 1) * space.segment_bytes as u64 - last.len() as u64, last)
    };
    let mut ends: Vec<_> = lives.iter().map(|life| before_end(life, FOOTER_READ_BYTES)).collect();
    volume.device().read_many(&mut ends)?;
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
        volume.device().read_many(&mut longer)?;
    }
    places.into_iter().zip(longer).for_each(|(index, last)| ends[index] = last);
    let bytes = ends.iter().zip(sizes).map(|((_, last), size)| Some(last[last.len() - size?..].to_vec()));
    Ok(bytes.collect())
}

/// The life and the records of which the footer of `segment` tells, whatever life it is.
pub(crate) fn read_any_footer(volume: &Volume, segment: SegNo) -> Option<(Life, Vec<Record>)> {
    let space = volume.space();
    let mut last = AlignedBuf::zeroed(FOOTER_BYTES.next_multiple_of(space.block_bytes));
    let end = (u64::from(segment.0) + 1) * space.segment_bytes as u64;
    volume.device().read_at(end - last.len() as u64, &mut last).ok()?;
    let (_, raw) = FooterRaw::read_from_suffix(&last).expect("longer than a footer");
    let life = raw.claimed_life().filter(|life| life.segment == segment)?;
    let records = read_footer(volume, life).ok()?.ok()?;
    Some((life, records))
}
