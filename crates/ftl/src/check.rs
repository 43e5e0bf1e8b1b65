//! Proving the invariants of an open store.

use crate::{
    CheckDepth, Error, Finding, Report, Result,
    addr::SegNo,
    format::{Extent, RECORDS_START},
    log::{Log, State},
    map::Map,
    store::Store,
};

/// Extents that are verified under one pin.
const EXTENTS_AT_ONCE: usize = 256;

impl Store {
    /// See [`crate::Ftl::check`].
    pub(crate) fn check(&self, depth: CheckDepth) -> Result<Report> {
        let mut report = Report::default();
        {
            let log = self.log.lock();
            let map = self.map.read();
            report.extents = map.total().extents;
            let mut found = |message: String| report.findings.push(Finding { message });
            map.check(&mut found);
            self.check_segments(&log, &map, &mut found);
            for (lba, extent) in map.extents(0..u64::MAX) {
                self.check_extent(&log, lba.0, &extent, &mut found);
            }
        }
        if depth == CheckDepth::Payload {
            self.check_payload(&mut report)?;
        }
        Ok(report)
    }

    fn check_segments(&self, log: &Log, map: &Map, found: &mut impl FnMut(String)) {
        for no in (0..self.space.segments as u32).map(SegNo) {
            let state = log.segment(no).state;
            let listed = log.free.iter().filter(|free| **free == no).count();
            if listed != usize::from(state == State::Free) {
                found(format!("segment {}: {state:?}, but {listed} times on the free list", no.0));
            }
            let holds_data = matches!(state, State::Open | State::Sealed | State::Damaged);
            if !holds_data && map.live(no).extents > 0 {
                found(format!("segment {}: {state:?}, but it has {:?}", no.0, map.live(no)));
            }
            if log.checkpoint_segments.contains(&no) && state != State::Checkpoint {
                found(format!("segment {}: {state:?}, but it holds the checkpoint", no.0));
            }
            if state == State::Damaged {
                let at = self.device_offset(no, 0);
                found(format!("segment {} at byte {at}: holds chunks that cannot be read", no.0));
            }
        }
        if log.flushed_seq > log.last_seq {
            found(format!("batch {} is flushed, but {} is the last", log.flushed_seq.0, log.last_seq.0));
        }
    }

    fn check_extent(&self, log: &Log, lba: u64, extent: &Extent, found: &mut impl FnMut(String)) {
        let end = extent.phys.offset() + usize::from(extent.stored);
        if end > self.space.segment_bytes || extent.phys.offset() < RECORDS_START {
            found(format!("sector {lba}: chunk lies outside its segment's records: {extent:?}"));
        }
        if extent.birth > log.last_seq || extent.birth.0 == 0 {
            found(format!("sector {lba}: written by batch {}, which never was", extent.birth.0));
        }
    }

    /// Reads and verifies every mapped chunk.
    fn check_payload(&self, report: &mut Report) -> Result<()> {
        let mut cursor = 0;
        loop {
            let pinned = self.pin_some(cursor, EXTENTS_AT_ONCE);
            let Some((lba, last)) = pinned.extents().last() else { return Ok(()) };
            cursor = lba.0 + u64::from(last.sectors);
            for (lba, extent) in pinned.extents() {
                let len = usize::from(extent.stored);
                let chunk = self.read_bytes(extent.phys.segment, extent.phys.offset(), len);
                match chunk.and_then(|chunk| self.verify(extent, &chunk)) {
                    Ok(()) => report.verified_bytes += len as u64,
                    Err(error @ (Error::Corrupt { .. } | Error::Device(_))) => {
                        report.findings.push(Finding { message: format!("sector {}: {error}", lba.0) });
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
}
