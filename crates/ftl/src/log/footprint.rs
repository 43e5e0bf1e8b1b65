//! How many segments a store uses, where others can use the rest of its device.
//!
//! A store file takes space of the file system that it lies in, segment by segment, and the first use of each costs
//! that file system a commit of its journal, which a flush waits for unless zeros were written there ahead
//! (`examples/untouched`: half as many flushes without). So segments that were used before are used again before
//! untouched ones, and collection begins when as many are in use as [`Footprint`] says, though others are free.
//! Invariants:
//!
//! 1. *It is a wish.* `reserve` alone, which counts all segments, decides what is refused and what each kind of work
//!    may take. So nothing gets stuck because of the footprint, and no batch waits for space because of it.
//! 2. *Writers pay* what they add: the fewer of the segments up to the *limit* are free, the more collection must have
//!    moved before a write returns (`maintenance::throttle`). When much live data is deleted at once, the wish shrinks
//!    at once, but the limit comes down only as fast as segments become free: a large deletion does not make the next
//!    writer pay for all of it.
//! 3. *A segment that is being made ready, or given back, is free and on no list meanwhile*, so no thread takes it. As
//!    many segments stay on the lists as all kinds of work may need at that moment.

use crate::{
    Footprint,
    log::{Log, reserve::Claim},
    space::Space,
};

impl Log {
    /// The wished number of segments: those that may be in use, and those that must be free beside them.
    pub(crate) fn target_segments(&self) -> usize {
        let wished = self.space.wished(self.footprint, self.live_cost);
        (wished + self.left_by(Claim::Fresh)).min(self.space.segments)
    }

    /// The same as `space`, as if the device had only the wished segments.
    pub(crate) fn target_space(&self) -> Space {
        Space { segments: self.target_segments(), ..self.space }
    }

    /// Segments beyond which writers pay for what they add (invariant 2).
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Lowers the limit as far as invariant 2 allows.
    pub(crate) fn move_limit(&mut self) {
        let wished = self.target_space();
        let in_use = self.space.segments - self.free().len();
        let kept = self.left_by(Claim::Fresh) + wished.ahead(self.live_cost);
        self.limit = wished.segments.max(self.limit.min(in_use + kept));
    }

    /// Free segments, as if the store had no more than `segments`.
    pub(crate) fn free_within(&self, segments: usize) -> usize {
        self.free().len().saturating_sub(self.space.segments - segments)
    }

    /// Segments by which the wish fluctuates as logs are written and trimmed. Segments given back within that range
    /// would have to be made ready again.
    pub(crate) fn swing(&self) -> usize {
        match self.footprint {
            Footprint::Live { plus_bytes, .. } => 6 * plus_bytes as usize / self.space.segment_bytes,
            _ => 0,
        }
    }

    /// Segments for which the host has space.
    pub(crate) fn touched(&self) -> usize {
        self.space.segments - self.free().untouched()
    }
}
