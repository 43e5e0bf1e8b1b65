//! How many segments a store makes use of, where the rest of its device is of use to others.
//!
//! A store file takes space of the file system that it lies in, segment by segment, and the first use of each costs
//! that file system a commit of its journal, which a flush waits for unless zeros were written there ahead
//! (`examples/untouched`: half as many flushes without). So segments that were used before are used again before
//! untouched ones, and collection begins when as many are in use as [`Footprint`] says, though others are free.
//! Invariants:
//!
//! 1. *It is a wish.* What is refused, and what each kind of work may take, is for `reserve` alone to say, which
//!    counts all segments. So nothing gets stuck for the sake of the footprint, and no batch waits for space for it.
//! 2. *Writers pay* what they add: the fewer of the segments up to the *limit* are free, the more collection must have
//!    moved before a write returns (`maintenance::throttle`). When what is live shrinks at once, so does the wish, but
//!    the limit comes down only as fast as segments become free: who deletes much does not make the next writer pay for
//!    all of it.
//! 3. *What is made ready, or given back, is free and on no list meanwhile*, so nobody takes it. As many are left as
//!    all kinds of work may want at that moment.

use crate::{
    Footprint,
    log::{Log, reserve::Claim},
    space::Space,
};

impl Log {
    /// Segments of which use is made: those in use as wished, and those that must be free then.
    pub(crate) fn wished_segments(&self) -> usize {
        let wished = self.space.wished(self.footprint, self.live_cost);
        (wished + self.left_by(Claim::Fresh)).min(self.space.segments)
    }

    /// The same as `space`, were the device no larger than what is made use of.
    pub(crate) fn wished_space(&self) -> Space {
        Space { segments: self.wished_segments(), ..self.space }
    }

    /// Segments beyond which writers pay for what they add (invariant 2).
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Brings the limit down as far as invariant 2 has it.
    pub(crate) fn move_limit(&mut self) {
        let wished = self.wished_space();
        let in_use = self.space.segments - self.free().len();
        let kept = self.left_by(Claim::Fresh) + wished.ahead(self.live_cost);
        self.limit = wished.segments.max(self.limit.min(in_use + kept));
    }

    /// Free segments, were there no more than `segments`.
    pub(crate) fn free_within(&self, segments: usize) -> usize {
        self.free().len().saturating_sub(self.space.segments - segments)
    }

    /// Segments by which the wish goes up and down by itself, as logs are written and trimmed. What is given back
    /// meanwhile would have to be made ready again.
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
