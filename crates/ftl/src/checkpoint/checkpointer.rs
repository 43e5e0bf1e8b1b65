//! Writing a checkpoint, from its beginning to the switch of the root.

use std::sync::Arc;

use zerocopy::IntoBytes;

use super::writer::Writer;
use crate::{
    Result, Seq,
    addr::SegNo,
    format::{IndexEntry, Live, MAP_INDEX_BYTES, RecordKind, Root, RootRef, SEGMENT_LIVE_BYTES, Superblock},
    log::{Claim, Coverage, Journal, Log, State},
    map::{LeafRef, Map, SharedMap},
    media::{Volume, superblock},
    mutant::{Rule, is_broken},
    paging::{Base, PagedMap},
    reuse::Reuse,
    sync::Mutex,
};

/// Which leaves a checkpoint writes beside those that have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// Those in sparse segments, as many as invariant 3 takes.
    Sparse,
    /// All leaves, into segments of their own, so that the map occupies as few segments as possible.
    All,
}

/// The state that is noted when a checkpoint begins.
struct Beginning {
    start_seq: Seq,
    start_move: Seq,
    coverage: Coverage,
    log_bytes: u64,
    leaves: Vec<LeafRef>,
    /// By segment, whether leaves in it are to be written anew.
    sparse: Vec<bool>,
    segments: Vec<Live>,
    /// Segments of leaves that were to be written anew and cannot be read.
    left: Vec<SegNo>,
}

/// Writes checkpoints, and leaves of the map between them.
pub(crate) struct Checkpointer {
    pub(super) volume: Arc<Volume>,
    pub(super) map: Arc<SharedMap>,
    pub(super) journal: Arc<Journal>,
    pub(super) pages: Arc<PagedMap>,
    pub(super) reuse: Arc<Reuse>,
    /// As last written; only the holder of the maintenance lock changes it.
    pub(super) superblock: Mutex<Superblock>,
}

impl Checkpointer {
    pub(crate) fn new(base: Base, reuse: Arc<Reuse>, superblock: Superblock) -> Checkpointer {
        let Base { volume, map, journal, pages } = base;
        Checkpointer { volume, map, journal, pages, reuse, superblock: Mutex::new(superblock) }
    }

    /// The superblock as last written.
    pub(crate) fn superblock(&self) -> Superblock {
        self.superblock.lock().clone()
    }

    /// Makes `next` the superblock, durably. The maintenance lock is held.
    pub(crate) fn put_superblock(&self, next: Superblock) -> Result<()> {
        let written = superblock::write(self.volume.device(), &next);
        {
            let mut log = self.journal.lock();
            match written {
                Ok(bytes) => log.counters_mut().checkpoint_bytes += bytes,
                Err(error) => return Err(self.journal.poison(&mut log, error)),
            }
        }
        *self.superblock.lock() = next;
        Ok(())
    }

    /// Makes the superblock say, durably, that there may be encoded chunks: programs that do not know them refuse the
    /// store from then on.
    pub(crate) fn name_encodings(&self) -> Result<()> {
        let _turn = self.journal.turn();
        let now = self.superblock();
        if now.has_encodings || is_broken(Rule::EncodingsNamed) {
            return Ok(());
        }
        self.journal.check_poison(&self.journal.lock())?;
        let sequence = now.sequence + 1;
        self.put_superblock(Superblock { sequence, has_encodings: true, ..now })
    }

    /// See [`crate::Ftl::checkpoint`].
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.volume.must_write()?;
        let _turn = self.journal.turn();
        self.checkpoint_in_turn(Rewrite::Sparse)
    }

    /// A checkpoint, with the maintenance lock held.
    pub(crate) fn checkpoint_in_turn(&self, rewrite: Rewrite) -> Result<()> {
        if rewrite == Rewrite::All {
            self.journal.lock().checkpoints_mut().set_position(None);
        }
        self.reclaim_map();
        let mut beginning = self.begin_checkpoint(rewrite)?;
        let written = self.write_checkpoint(&mut beginning);
        let (root, refers_to) = match written {
            Ok(written) => written,
            Err(error) => {
                self.journal.lock().checkpoints_mut().abandon();
                return Err(error);
            }
        };
        self.journal.flush_all()?;
        self.switch_root(root)?;
        self.finish_checkpoint(refers_to, beginning);
        Ok(())
    }

    fn begin_checkpoint(&self, rewrite: Rewrite) -> Result<Beginning> {
        let (snapshot, beginning) = {
            let log = self.journal.lock();
            self.journal.check_poison(&log)?;
            let map = self.map.read();
            let beginning = Beginning {
                start_seq: log.last_seq(),
                start_move: log.last().moves,
                coverage: Coverage { generation_next: log.generation_next(), positions: log.positions() },
                log_bytes: log.checkpoints().log_bytes(),
                leaves: Vec::new(),
                sparse: match rewrite {
                    Rewrite::Sparse => self.sparse_map_segments(&log, &map),
                    Rewrite::All => vec![true; self.volume.space().segments],
                },
                segments: map.segments().to_vec(),
                left: Vec::new(),
            };
            (map.snapshot(), beginning)
        };
        let leaves = snapshot.leaves(|place| beginning.sparse[place.segment.0 as usize]);
        Ok(Beginning { leaves, ..beginning })
    }

    /// Segments whose leaves a checkpoint rewrites, sparsest first: as many as invariant 3 requires, and some that are
    /// mostly garbage.
    fn sparse_map_segments(&self, log: &Log, map: &Map) -> Vec<bool> {
        let residence = map.residence();
        let open = log.checkpoints().position().map(|position| position.segment);
        let held = log.in_state(State::Checkpoint).filter(|segment| Some(*segment) != open);
        let mut held: Vec<_> = held.map(|segment| (map.leaf_bytes(segment), segment)).collect();
        held.retain(|(bytes, _)| *bytes > 0);
        held.sort_unstable();

        let segments_max = self.volume.space().map_segments_max(map.weight(0));
        let dirty_bytes = residence.dirty_bytes + 16 * residence.dirty;
        let cheap_bytes_max = (dirty_bytes / 4).max(self.volume.space().segment_bytes as u64 / 4);
        let (mut kept, mut moved_bytes) = (held.len() + usize::from(open.is_some()), 0);
        let mut sparse = vec![false; self.volume.space().segments];
        for (bytes, segment) in held {
            let needed = self.volume.space().map_segments(dirty_bytes + moved_bytes, residence.leaves);
            let is_cheap = bytes < self.volume.space().segment_bytes as u64 / 4
                && moved_bytes + bytes <= cheap_bytes_max;
            if kept + needed <= segments_max && !is_cheap {
                break;
            }
            // Where leaves cannot be read, fewer may be free than the reserve keeps.
            let needed =
                self.volume.space().map_segments(dirty_bytes + moved_bytes + bytes, residence.leaves);
            if needed > log.free().len() {
                break;
            }
            sparse[segment.0 as usize] = true;
            moved_bytes += bytes;
            kept -= 1;
        }
        sparse
    }

    /// Writes leaves, index, counters and root; returns where the root is, and the segments that it
    /// refers to.
    fn write_checkpoint(&self, beginning: &mut Beginning) -> Result<(RootRef, Vec<SegNo>)> {
        let mut writer = Writer::new(self, beginning.start_seq, Claim::Checkpoint);
        let sparse = std::mem::take(&mut beginning.sparse);
        let is_due = |leaf: &LeafRef| leaf.place.is_none_or(|place| sparse[place.segment.0 as usize]);
        beginning.left = self.write_leaves(&mut writer, &mut beginning.leaves, is_due)?;

        let (mut index, mut extents, mut refers_to) = (Vec::new(), 0, Vec::new());
        for LeafRef { span, live, place, .. } in &beginning.leaves {
            let place = place.expect("all leaves were written");
            index.extend_from_slice(IndexEntry { start: span.start, live: *live, place }.to_raw().as_bytes());
            extents += live.extents;
            refers_to.push(place.segment);
        }
        let counters = beginning.segments.iter().zip(0..).flat_map(|(live, no)| {
            let is_out_of_use = self.reuse.has_lost_header(SegNo(no));
            live.to_raw(is_out_of_use).as_bytes().to_vec()
        });
        let counters: Vec<u8> = counters.collect();
        let mut records = writer.put_rows(RecordKind::Index, &index, MAP_INDEX_BYTES)?;
        records.extend(writer.put_rows(RecordKind::Segments, &counters, SEGMENT_LIVE_BYTES)?);
        refers_to.extend(records.iter().map(|place| place.segment));
        let root = Root {
            start_seq: beginning.start_seq,
            start_move: beginning.start_move,
            generation_next: beginning.coverage.generation_next,
            extents,
            leaves: u32::try_from(beginning.leaves.len()).expect("a map of less than 2^32 leaves"),
            positions: beginning.coverage.positions,
            records,
        };
        let root = writer.put_root(&root.to_bytes())?;
        refers_to.push(root.segment);
        refers_to.sort_unstable();
        refers_to.dedup();
        Ok((root, refers_to))
    }

    /// Puts the root in force; everything it needs is durable.
    fn switch_root(&self, root: RootRef) -> Result<()> {
        let (flushed_seq, epoch) = {
            let log = self.journal.lock();
            (log.durable().batches, log.epoch())
        };
        let now = self.superblock();
        let sequence = now.sequence + 1;
        self.put_superblock(Superblock { sequence, epoch, flushed_seq, root: Some(root), ..now })
    }

    fn finish_checkpoint(&self, refers_to: Vec<SegNo>, beginning: Beginning) {
        {
            let mut log = self.journal.lock();
            log.checkpoints_mut().finish(beginning.coverage, refers_to, beginning.log_bytes, beginning.left);
            log.counters_mut().checkpoints += 1;
        }
        self.reclaim_map();
        self.reuse.free_reusable();
        self.pages.evict_excess();
    }

    /// Whether a segment of leaves and checkpoints may be used anew (invariant 2).
    pub(crate) fn is_map_reusable(&self, log: &Log, map: &Map, segment: SegNo) -> bool {
        log.segment(segment).state == State::Checkpoint
            && map.leaf_bytes(segment) == 0
            && (!log.checkpoints().refers_to(segment) || is_broken(Rule::MapReuseWaits))
            && log.checkpoints().position().is_none_or(|position| position.segment != segment)
            && self.map.is_unpinned(segment)
    }

    /// Segments that a check keeps from being used anew, and nothing else does.
    pub(crate) fn map_segments_pinned(&self, log: &Log, map: &Map) -> usize {
        let open = log.checkpoints().position().map(|position| position.segment);
        let is_left = |segment: &SegNo| {
            map.leaf_bytes(*segment) == 0
                && !log.checkpoints().refers_to(*segment)
                && Some(*segment) != open
                && !self.map.is_unpinned(*segment)
        };
        log.in_state(State::Checkpoint).filter(is_left).count()
    }

    /// Frees the segments of leaves and checkpoints that nothing refers to, with the maintenance lock held.
    pub(super) fn reclaim_map(&self) {
        let reusable: Vec<_> = {
            let log = self.journal.lock();
            let map = self.map.read();
            let held = log.in_state(State::Checkpoint);
            held.filter(|segment| self.is_map_reusable(&log, &map, *segment)).collect()
        };
        // Leaves get places only under the maintenance lock, and a leaf without a place is never read from the device.
        for segment in reusable {
            self.reuse.free_segment(segment);
        }
    }
}
