//! Epitaphs: what segments told that were used again before a checkpoint covers them.
//!
//! Data that is overwritten soon dies within segments that are younger than the checkpoint. Their payload is
//! garbage, but recovery replays their records: numbers without a gap, and what leads on to later places. An epitaph
//! is the footer of such a segment, byte for byte, in a segment of the map: a few thousandths of it, where
//! a checkpoint under scattered overwrites is most of the map.
//!
//! Invariants:
//! 1. An epitaph is written only after the death of its segment is durable. It carries the marks of that
//!    flush, so recovery knows that all it tells of was durable, and that what came after is not to be missed.
//! 2. A segment is reused on the word of its epitaph only after that was synced.
//! 3. A segment that holds epitaphs is not reused before the root changes (`log.root_segments`).
//! 4. Epitaphs that count lie behind the root, in its segment, and in segments of the map opened later. Both are in the
//!    order in which they were written, under `maintenance`.
//!
//! Crash argument: an epitaph that a cut took or tore leaves its segment as it was, by invariant 2, and that is
//! replayed. With one, replay sees the very records that the segment held, so it comes to the same map; that leads to
//! none of their places, because what overwrote or moved them is durable too (`reuse`).

use std::collections::HashMap;

use crate::{
    Error, Result,
    addr::SegNo,
    checkpoint::{Rewrite, Writer},
    format::{Life, Marks, RecordKind, SegmentHeader, SegmentKind, Superblock, epitaph_life},
    log::reserve::Claim,
    media::{
        Volume,
        scan::{Record, Scan},
        summaries::{read_footer_bytes, records_of},
    },
    mutant::{Rule, is_broken},
    recovery::resync::Doubt,
    recovery::salvage::Losses,
    space::MAP_RECORD_BYTES,
    store::Store,
};

/// Share of a segment that its footer may take to get an epitaph: with more, its writes are so small that a
/// checkpoint is cheaper.
const SEGMENT_SHARE: usize = 8;

impl Store {
    /// Makes dead segments free that no checkpoint covers, with `maintenance` held: by epitaphs, or if they cannot have
    /// any, by a checkpoint.
    pub(crate) fn tell_and_free(&self) -> Result<()> {
        self.journal.flush_all()?;
        match self.write_epitaphs()? {
            0 => self.checkpoint_in_turn(Rewrite::Sparse),
            _ => {
                self.free_reusable();
                Ok(())
            }
        }
    }

    /// Writes epitaphs for as many segments as there is room for; returns how many, durable.
    fn write_epitaphs(&self) -> Result<usize> {
        let (lives, seq, durable) = {
            let log = self.journal.lock();
            self.journal.check_poison(&log)?;
            let waiting = self.without_epitaph(&log, &self.map.read());
            let lives: Vec<Life> = waiting.into_iter().map(|segment| log.life(segment)).collect();
            (lives, log.last_seq(), log.durable())
        };
        // Without a footer that can be read, a segment waits for a checkpoint.
        let footers = read_footer_bytes(&self.volume, &lives).unwrap_or_default();
        let (mut writer, mut told) = (Writer::new(self, seq, Claim::WriteBack), Vec::new());
        for (life, footer) in lives.iter().zip(footers) {
            let Some(footer) = footer.filter(|footer| self.fits_epitaph(*life, footer)) else {
                continue;
            };
            match writer.put_epitaph(&footer, durable) {
                Ok(lies_in) => told.push((life.segment, lies_in, footer.len() as u64)),
                Err(Error::Full { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        if told.is_empty() {
            return Ok(0);
        }
        if !is_broken(Rule::EpitaphsSynced) {
            let synced = self.volume.device().sync();
            synced.map_err(|error| self.journal.poison(&mut self.journal.lock(), error))?;
        }
        let mut log = self.journal.lock();
        for (segment, lies_in, bytes) in &told {
            log.note_epitaph(*segment, *lies_in, *bytes);
        }
        Ok(told.len())
    }

    fn fits_epitaph(&self, life: Life, footer: &[u8]) -> bool {
        let bytes_max = (self.volume.space().segment_bytes / SEGMENT_SHARE).min(MAP_RECORD_BYTES);
        footer.len() <= bytes_max && records_of(footer, self.volume.salt(), life).is_ok()
    }
}

/// The epitaphs behind the root.
#[derive(Default)]
pub(crate) struct Epitaphs {
    /// By segment and generation, all of the root's epoch.
    records: HashMap<(SegNo, u64), Vec<Record>>,
    epoch: u64,
    /// What they say to have been durable.
    pub(crate) durable: Marks,
    /// Where they lie.
    pub(crate) segments: Vec<SegNo>,
    /// Those that were written together last, and what recovery must read to find them: those before them were
    /// synced before these were begun.
    pub(crate) doubt: Doubt,
    /// What was durable when these were written.
    last_round: Marks,
}

impl Epitaphs {
    pub(crate) fn read(
        volume: &Volume,
        superblock: &Superblock,
        headers: &[Option<SegmentHeader>],
        losses: &Losses,
    ) -> Result<Epitaphs> {
        let epoch = superblock.epoch;
        let mut epitaphs = Epitaphs { epoch, ..Epitaphs::default() };
        let Some(root) = superblock.root else { return Ok(epitaphs) };
        let own = Life { segment: root.segment, generation: root.generation, epoch };
        let is_later = |header: &&SegmentHeader| {
            header.kind == SegmentKind::Checkpoint
                && header.epoch == epoch
                && header.generation > root.generation
        };
        let later = headers.iter().flatten().filter(is_later).map(SegmentHeader::life);
        let later = later.map(|life| (life, volume.space().checkpoint_start(), 0));
        let behind_root = (root.offset + root.bytes) as usize;
        for (life, offset, from) in [(own, behind_root, behind_root)].into_iter().chain(later) {
            let from = volume.offset(life.segment, from);
            losses.pass(epitaphs.scan(volume, Scan::new(volume, life, offset), from), ())?;
        }
        Ok(epitaphs)
    }

    /// `scan`s a segment, or the rest of it, which starts at byte `from` of the device.
    fn scan(&mut self, volume: &Volume, mut scan: Scan<'_>, mut from: u64) -> Result<()> {
        let space = volume.space();
        while let Some(Record { header, body }) = scan.next_record()? {
            if header.kind != RecordKind::Epitaph {
                continue;
            }
            let at = scan.reader.device_offset(header.offset as usize);
            let flawed = |flaw| volume.corrupt("epitaph", at, flaw);
            let life =
                epitaph_life(&body, self.epoch, space.segments, space.segment_bytes).map_err(flawed)?;
            let records = records_of(&body, volume.salt(), life).map_err(flawed)?;
            self.records.insert((life.segment, life.generation), records);
            let round = header.durable();
            self.durable = self.durable.max(round);
            // Of one process: both marks only grow.
            if round != self.last_round && round.max(self.last_round) == round {
                self.doubt.clear();
                self.last_round = round;
            }
            let behind = scan.device_offset();
            if round == self.last_round {
                self.doubt.add(from..behind);
            }
            from = behind;
            if self.segments.last() != Some(&header.life.segment) {
                self.segments.push(header.life.segment);
            }
        }
        // One that is damaged hides those behind it: what the next one says to have been durable will be missed.
        let beyond = scan.marks_beyond(2 * MAP_RECORD_BYTES)?;
        self.durable = self.durable.max(beyond);
        Ok(())
    }

    /// Whether there is one of `life`.
    pub(crate) fn tell_of(&self, life: Life) -> bool {
        life.epoch == self.epoch && self.records.contains_key(&(life.segment, life.generation))
    }

    /// Takes out the records of `life`, if there is an epitaph of it.
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
