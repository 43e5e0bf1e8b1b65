//! Retained summaries: the records of segments that are used again before a checkpoint covers them.
//!
//! Data that is overwritten soon dies within segments that are younger than the checkpoint. Their payload is garbage,
//! but recovery replays their records: it needs every batch number without a gap, and the relocations that lead on to
//! later places. A retained summary is the summary of such a segment, byte for byte, in a segment of the map: a few
//! thousandths of it, where a checkpoint under scattered overwrites is most of the map. Without them Zipf 0.99 at 80%
//! live writes 2.2% more (`cargo run --release -p lacuna-ftl --example amplification -- 80 4096 0.99`).
//!
//! Invariants:
//! 1. A retained summary is written only after the death of its segment is durable. It carries the marks of that flush,
//!    so recovery knows that everything it lists was durable and that nothing up to those marks may be missing.
//! 2. A segment is reused because of its retained summary only after that summary was synced.
//! 3. A segment that holds retained summaries is not reused before the root changes (`log::checkpoints`).
//! 4. Valid retained summaries lie behind the root, in its segment, and in segments of the map opened later. Both are
//!    in the order in which they were written, under the maintenance lock.
//!
//! Crash argument: if a power cut loses or tears a retained summary, its segment is still intact, by invariant 2, and
//! is replayed itself. With a retained summary, replay sees the same records that the segment held, so it builds the
//! same map. That map refers to none of their places, because whatever overwrote or moved them is durable too
//! (`reuse`).

use crate::{
    Error, Result,
    checkpoint::{Checkpointer, Rewrite, writer::Writer},
    format::Life,
    log::Claim,
    media::summaries::{read_summary_bytes, records_of},
    mutant::{Rule, is_broken},
    space::MAP_RECORD_BYTES,
};

/// Share of a segment that its summary may take to get a retained summary: with more, its writes are so small that a
/// checkpoint is cheaper.
const SEGMENT_SHARE: usize = 8;

impl Checkpointer {
    /// Frees dead segments that no checkpoint covers, with the maintenance lock held: by retained summaries, or by a
    /// checkpoint where they cannot have any.
    pub(crate) fn retain_and_free(&self) -> Result<()> {
        self.journal.flush_all()?;
        match self.retain_summaries()? {
            0 => self.checkpoint_in_turn(Rewrite::Sparse),
            _ => {
                self.reuse.free_reusable();
                Ok(())
            }
        }
    }

    /// Writes retained summaries for as many segments as there is space for; returns how many, durable.
    fn retain_summaries(&self) -> Result<usize> {
        let (lives, seq, durable) = {
            let log = self.journal.lock();
            self.journal.check_poison(&log)?;
            let waiting = self.reuse.to_retain(&log, &self.map.read());
            let lives: Vec<Life> = waiting.into_iter().map(|segment| log.life(segment)).collect();
            (lives, log.last_seq(), log.durable())
        };
        // Without a summary that can be read, a segment waits for a checkpoint.
        let summaries = read_summary_bytes(&self.volume, &lives).unwrap_or_default();
        let (mut writer, mut kept) = (Writer::new(self, seq, Claim::WriteBack), Vec::new());
        for (life, summary) in lives.iter().zip(summaries) {
            let Some(summary) = summary.filter(|summary| self.may_be_retained(*life, summary)) else {
                continue;
            };
            match writer.put_retained(&summary, durable) {
                Ok(lies_in) => kept.push((life.segment, lies_in, summary.len() as u64)),
                Err(Error::Full { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        if kept.is_empty() {
            return Ok(0);
        }
        if !is_broken(Rule::SummariesRetained) {
            let synced = self.volume.device().sync();
            synced.map_err(|error| self.journal.poison(&mut self.journal.lock(), error))?;
        }
        let mut log = self.journal.lock();
        for (segment, lies_in, bytes) in &kept {
            log.note_retained(*segment, *lies_in, *bytes);
        }
        Ok(kept.len())
    }

    fn may_be_retained(&self, life: Life, summary: &[u8]) -> bool {
        let bytes_max = (self.volume.space().segment_bytes / SEGMENT_SHARE).min(MAP_RECORD_BYTES);
        summary.len() <= bytes_max && records_of(&self.volume, summary, life).is_ok()
    }
}
