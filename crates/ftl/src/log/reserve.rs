//! The reserve: which free segments each kind of work may take, and why a store never gets stuck.
//!
//! Let `W` be the largest weight of a map that a recovery could bring back (`peak`), `F` the segments that
//! a whole checkpoint of `W` takes at most ([`Space::checkpoint_segments`](crate::space::Space::checkpoint_segments)),
//! and `M` the segments that hold leaves and checkpoints now. The free segments have three owners:
//!
//! | part | size | taken by | given back by |
//! |---|---|---|---|
//! | checkpoints' | `F`, and `2F + 1 - M` if that is more | [`Claim::Checkpoint`] | the end of that checkpoint |
//! | collection's | [`GC_SEGMENTS`] | [`Claim::Collection`] | the victim, once its death is durable; opening |
//! | writers' | the rest | [`Claim::Fresh`], [`Claim::WriteBack`] | collection, trims, overwrites |
//!
//! Invariants:
//! 1. *Checkpoints.* Free segments, with those that a checkpoint under way has taken, are at least `F`; free segments
//!    and `M` together are at least `2F + 1`. A checkpoint leaves at most `F + 1` segments of the map behind, because
//!    it writes the leaves of as many sparse ones anew as that takes; so `F` are free afterwards. This holds across
//!    every power cut: segments of the map that the cut voids, and segments that were free, are free for recovery, and
//!    `W` is at least the weight of the map that recovery builds.
//! 2. *Collection.* After a batch that takes a segment, or that makes `F` grow, at least [`GC_SEGMENTS`] are free
//!    beyond the checkpoints' part. A batch that does neither takes none of those segments, so it is admitted however
//!    few are free. Writing back leaves must leave as many free.
//! 3. *Collection takes what it returns.* It opens a segment only while one is left beyond the checkpoints' part, and
//!    makes `F` no larger: the fragments that it moves, which a recovery may find, were charged to the batches that cut
//!    them, and it cuts no extent where that makes `F` grow. The live data of a victim fits into one segment. So with
//!    one segment of its own, or space in an open one, a collection that has begun ends, and its victim gives back what
//!    it took.
//! 4. *Opening restores collection's part.* A power cut, a kill or a close within a collection leaves victim and
//!    target both in use, and no append point has space. So opening ends only when collection has at least
//!    [`GC_SEGMENTS_MIN`](crate::space::GC_SEGMENTS_MIN) segments (`gc::restore`), and to get there it needs nothing
//!    but invariant 1.
//! 5. *Flushes.* Only unflushed changes keep `W` above the weight of the map in memory. Planning starts with a flush
//!    when segments are short for that reason, so no caller has to ask for one.
//! 6. *Live data* is limited (`Space::limits`) so that all segments that hold it cannot be full at the same time: as
//!    long as a batch misses segments, some victim yields more than it costs, or a dead segment waits only for a
//!    flush, a retained summary or a checkpoint.
//!
//! Never stuck: take any state with the store open. By 6 something can be collected, by 4 and 2 collection has a
//! segment to begin with, by 3 it keeps it, by 1 the checkpoint that it waits for has space. So free segments grow
//! until a batch has what it needs; and one that adds nothing to what is live is refused for no other reason. A chunk
//! that cannot be read keeps its segment out of use, and what collection took for it is gone until the store is opened
//! anew. A leaf of the map that cannot be read keeps its segment too: `M` does not count those. Until a checkpoint has
//! met them, it does; so a checkpoint then may have fewer than `F` segments, and empties only as many as it can.
//!
//! [`Log::take_free`](crate::log::Log::take_free) asserts after every segment taken that as many are left as the claim
//! must leave.

use crate::{
    log::Log,
    mutant::{Rule, is_broken},
    space::GC_SEGMENTS,
};

/// The purpose for which a free segment is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A batch.
    Fresh,
    /// Leaves of the map, between checkpoints; and retained summaries.
    WriteBack,
    /// Moved extents.
    Collection,
    /// Moved extents, at opening.
    Regain,
    /// A checkpoint, for which the other claims leave segments.
    Checkpoint,
}

impl Log {
    /// Free segments that belong to checkpoints, should `W` be `weight`.
    pub(crate) fn checkpoint_reserve(&self, weight: u64) -> usize {
        self.space.checkpoint_reserve(weight, self.map_segments_emptied(), self.checkpoints.taken())
    }

    /// Segments of the map that checkpoints give back: not those with leaves that cannot be read.
    fn map_segments_emptied(&self) -> usize {
        self.map_segments().saturating_sub(self.checkpoints.left().len())
    }

    /// Weight of the map that checkpoints must have space for.
    pub(crate) fn peak_weight(&self) -> u64 {
        self.peak.weight()
    }

    /// Free segments that `claim` must leave.
    pub(crate) fn left_by(&self, claim: Claim) -> usize {
        let checkpoint = self.checkpoint_reserve(self.peak.weight());
        match claim {
            Claim::Fresh | Claim::WriteBack => checkpoint + GC_SEGMENTS,
            Claim::Collection => checkpoint,
            Claim::Regain => self.space.checkpoint_segments(self.peak.weight()),
            Claim::Checkpoint => 0,
        }
    }

    /// Whether a segment may be taken for leaves between checkpoints, or for retained summaries; it is then one of the
    /// map's.
    pub(crate) fn may_write_back(&self) -> bool {
        let (weight, in_use) = (self.peak.weight(), self.map_segments_emptied() + 1);
        let kept = self.space.checkpoint_reserve(weight, in_use, self.checkpoints.taken()) + GC_SEGMENTS;
        self.free().len() > kept
    }

    /// Free segments that collection may take.
    pub(crate) fn spare_for_gc(&self) -> usize {
        self.free().len().saturating_sub(self.left_by(Claim::Collection))
    }

    /// Whether invariant 1 holds.
    pub(crate) fn keeps_checkpoints(&self) -> bool {
        self.free().len() >= self.left_by(Claim::Collection)
    }

    /// How many fewer segments checkpoints would need if everything up to the current map, of `weight`, were flushed
    /// (invariant 5).
    pub(crate) fn freed_by_a_flush(&self, weight: u64) -> usize {
        if is_broken(Rule::FlushPlanned) {
            return 0;
        }
        let now = self.checkpoint_reserve(self.peak.weight());
        now.saturating_sub(self.checkpoint_reserve(weight))
    }
}
