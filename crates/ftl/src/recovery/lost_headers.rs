//! Segments whose first block cannot be read.
//!
//! A header decides whether its segment is replayed. Without it, a segment may hold flushed batches of which there is
//! no other evidence; then open refuses and names the place. It need not refuse where the segment is *known*:
//!
//! 1. The checkpoint says that it is out of use: so it was when that began, and so it stays.
//! 2. The checkpoint leads to it for its map. It is not used again before the root changes (`checkpoint`).
//! 3. Its summary is of a life that is replayed, and has no retained summary: so it was not used again since (`reuse`),
//!    and the summary lists all its records.
//! 4. After replay the map still leads to it: so it was never dead, and not used again since the checkpoint. It was
//!    not open when that began, or its place would have been asked for. So none of its records is replayed.
//! 5. It *seems free*: all behind its first block can be read, and no record begins there that is replayed. So it is
//!    free; or it was opened since the checkpoint, and all its records begin in that block, so that one flush at most
//!    covers them. If a batch is there that was accepted after that flush had ended, its marks miss what the flush
//!    covered, and open refuses. Otherwise it was the very last flush, or one that ran beside it; losing batches that
//!    only these flushes covered goes undetected under other kinds of damage too. Of relocations only later ones and
//!    headers of segments have marks: without any, nothing was written over what they moved, and if that was discarded,
//!    reading it is an error.
//!
//! Without this, one bad block at the start of any segment keeps the store from being opened: `cargo test -p lacuna-ftl
//! unreadable::`.
//!
//! A known segment is out of use from then on: its data is read as far as possible, but it is neither collected nor
//! used again, and each checkpoint records that (case 1). `check` reports it.

use crate::{
    Error, Result, Seq,
    addr::SegNo,
    format::{Life, Marks, RecordKind, Root, SegmentHeader, SegmentKind},
    log::COLDEST,
    map::Map,
    media::{
        Volume,
        scan::Record,
        starts::{Headers, may_hold_records},
        summaries::read_any_summary,
    },
    recovery::{Losses, retained::RetainedSummaries},
};

/// A segment that is not known before replay.
pub(crate) struct Unknown {
    segment: SegNo,
    /// Case 5.
    seems_free: bool,
}

/// The segments in `headers` whose start is lost and that are not known before replay. Headers of case 3 are rebuilt
/// from their summaries.
pub(crate) fn unknown_headers(
    volume: &Volume,
    (root, epoch): (&Root, u64),
    retained: &RetainedSummaries,
    known: impl Fn(SegNo) -> bool,
    headers: &mut Headers,
) -> Vec<Unknown> {
    let is_open = |life: &Life| {
        let places = root.positions.iter().flatten();
        places.clone().any(|place| (place.segment, place.generation) == (life.segment, life.generation))
    };
    let is_replayed =
        |life: &Life| life.epoch == epoch && (life.generation >= root.generation_next || is_open(life));
    let mut unknown = Vec::new();
    for segment in headers.unreadable.iter().copied().filter(|segment| !known(*segment)) {
        match read_any_summary(volume, segment) {
            Some((life, records)) if is_replayed(&life) && !retained.has(life) => {
                headers.found[segment.0 as usize] = Some(header_of(life, &records));
            }
            _ => unknown.push(segment),
        }
    }
    let is_own = |life: &Life| is_replayed(life) && !retained.has(*life);
    let seems_free = |segment| !may_hold_records(volume, segment, is_own);
    unknown.into_iter().map(|segment| Unknown { segment, seems_free: seems_free(segment) }).collect()
}

/// The header, as far as the records of a summary determine it.
fn header_of(life: Life, records: &[Record]) -> SegmentHeader {
    let batches = records.iter().filter(|record| record.header.kind == RecordKind::Batch);
    let first = batches.map(|record| record.header.seq.0).min();
    SegmentHeader {
        kind: if first.is_some() { SegmentKind::Data } else { SegmentKind::Gc },
        segment: life.segment,
        generation: life.generation,
        epoch: life.epoch,
        class: COLDEST,
        opened_seq: Seq(first.unwrap_or(0).saturating_sub(1)),
        durable: Marks::default(),
    }
}

/// Judges the result of a replay without the segments in `unknown`: an error if one of them stays unknown (cases 4 and
/// 5).
pub(crate) fn judge<T>(
    volume: &Volume,
    unknown: &[Unknown],
    map: &Map,
    replayed: Result<T>,
    losses: &Losses,
) -> Result<T> {
    let is_lost = |unknown: &&Unknown| match replayed {
        Ok(_) => map.live(unknown.segment).extents == 0 && !unknown.seems_free,
        // The missing record may be in there, even a retained summary.
        Err(Error::Corrupt { .. }) => true,
        Err(_) => false,
    };
    for Unknown { segment, .. } in unknown.iter().filter(is_lost) {
        let at = volume.offset(*segment, 0);
        let reason = "it cannot be read, and nothing else tells what the segment holds";
        losses.pass(Err(volume.corrupt("segment header", at, reason)), ())?;
    }
    replayed
}
