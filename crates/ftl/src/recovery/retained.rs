//! The retained summaries that recovery finds behind the root: see `checkpoint::retained`.

use std::collections::HashMap;

use crate::{
    Result,
    addr::SegNo,
    format::{Life, Marks, RECORDS_START, RecordKind, SegmentHeader, SegmentKind, Superblock, retained_life},
    media::{
        Volume,
        scan::{Record, Scan},
        summaries::records_of,
    },
    recovery::{Losses, resync::Resync},
    space::MAP_RECORD_BYTES,
};

/// The retained summaries behind the root.
#[derive(Default)]
pub(crate) struct RetainedSummaries {
    /// By segment and generation, all of the root's epoch.
    records: HashMap<(SegNo, u64), Vec<Record>>,
    epoch: u64,
    /// The newest marks in them: what was durable.
    pub(crate) durable: Marks,
    /// Where they lie.
    pub(crate) segments: Vec<SegNo>,
    /// The retained summaries that were written together last, and the bytes that recovery must read to find them: all
    /// earlier ones were synced before these were begun.
    pub(crate) resync: Resync,
    /// What was durable when these were written.
    last_round: Marks,
}

impl RetainedSummaries {
    pub(crate) fn read(
        volume: &Volume,
        superblock: &Superblock,
        headers: &[Option<SegmentHeader>],
        losses: &Losses,
    ) -> Result<RetainedSummaries> {
        let epoch = superblock.epoch;
        let mut retained = RetainedSummaries { epoch, ..RetainedSummaries::default() };
        let Some(root) = superblock.root else { return Ok(retained) };
        let own = Life { segment: root.segment, generation: root.generation, epoch };
        let is_later = |header: &&SegmentHeader| {
            header.kind == SegmentKind::Checkpoint
                && header.epoch == epoch
                && header.generation > root.generation
        };
        let later = headers.iter().flatten().filter(is_later).map(SegmentHeader::life);
        let later = later.map(|life| (life, RECORDS_START, 0));
        let behind_root = (root.offset + root.bytes) as usize;
        for (life, offset, from) in [(own, behind_root, behind_root)].into_iter().chain(later) {
            let from = volume.offset(life.segment, from);
            losses.pass(retained.scan(volume, Scan::new(volume, life, offset), from), ())?;
        }
        Ok(retained)
    }

    /// `scan`s a segment, or the rest of it, which starts at byte `from` of the device.
    fn scan(&mut self, volume: &Volume, mut scan: Scan<'_>, mut from: u64) -> Result<()> {
        let space = volume.space();
        while let Some(Record { header, body }) = scan.next_record()? {
            if header.kind != RecordKind::RetainedSummary {
                continue;
            }
            let at = scan.reader.device_offset(header.offset as usize);
            let flawed = |flaw| volume.corrupt("retained summary", at, flaw);
            let life =
                retained_life(&body, self.epoch, space.segments, space.segment_bytes).map_err(flawed)?;
            let records = records_of(volume, &body, life).map_err(flawed)?;
            self.records.insert((life.segment, life.generation), records);
            let round = header.durable();
            self.durable = self.durable.max(round);
            // Written by one process, so both marks only grow.
            if round != self.last_round && round.max(self.last_round) == round {
                self.resync.clear();
                self.last_round = round;
            }
            let behind = scan.device_offset();
            if round == self.last_round {
                self.resync.add(from..behind);
            }
            from = behind;
            if self.segments.last() != Some(&header.life.segment) {
                self.segments.push(header.life.segment);
            }
        }
        // A damaged one hides those behind it: the marks of the next one make recovery detect that.
        self.durable = self.durable.max(scan.marks_beyond(2 * MAP_RECORD_BYTES));
        Ok(())
    }

    /// Whether there is one of `life`.
    pub(crate) fn has(&self, life: Life) -> bool {
        life.epoch == self.epoch && self.records.contains_key(&(life.segment, life.generation))
    }

    /// Takes out the records of `life`, if there is a retained summary of it.
    pub(crate) fn take(&mut self, life: Life) -> Option<Vec<Record>> {
        self.records.remove(&(life.segment, life.generation))
    }

    /// Takes out all.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (Life, Vec<Record>)> {
        let epoch = self.epoch;
        let lives = std::mem::take(&mut self.records).into_iter();
        lives.map(move |((segment, generation), records)| (Life { segment, generation, epoch }, records))
    }
}
