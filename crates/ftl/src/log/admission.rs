//! Whether a batch may be accepted, and accepting it: no I/O, no failure.

use std::borrow::Cow;

use crate::{
    Seq,
    format::{EntryKind, RecordKind},
    log::{
        Log,
        batch::{Batch, Item, cut_to_fit},
        fill::Appended,
        points::AppendPoint,
        reserve::Claim,
    },
    map::{MISCOUNTED, Map},
    space::{EXTENT_BYTES, Limits, Space},
};

impl Log {
    /// Whether live data stays within `limits` after the batch. While the device waits for space, it may not grow.
    pub(crate) fn admits(
        &self,
        map: &Map,
        batch: &Batch<'_>,
        limits: Limits,
        device_has_space: bool,
    ) -> bool {
        let before = map.total();
        let mut after = before;
        after.bytes += batch.payload_bytes;
        after.extents += batch.writes;
        if device_has_space && Space::cost(after) <= limits.grow {
            return true;
        }
        let (bytes, extents) = map.freed_by(&batch.touched()).expect("invariant 4 of the map: all is there");
        after.bytes -= bytes;
        after.extents = after.extents.saturating_add_signed(-extents);
        let cost = Space::cost(after);
        if !device_has_space {
            return cost <= Space::cost(before);
        }
        let same_size = after.bytes <= before.bytes && cost <= limits.hard;
        cost <= limits.grow || cost <= Space::cost(before) || same_size
    }

    /// `items` that go to `point`, one of them perhaps cut in two, so that the segment open there is filled. The cut
    /// costs one more extent, which is worth it only where that takes no space that others rely on: the limit of live
    /// data is not exceeded, and checkpoints need no additional segment.
    pub(crate) fn cut<'i, 'a>(
        &self,
        map: &Map,
        point: AppendPoint,
        items: &'i [Item<'a>],
    ) -> Cow<'i, [Item<'a>]> {
        let left = match self.space_left(point) {
            Some(left) if self.segments_needed(point, items) > 0 => left,
            _ => return Cow::Borrowed(items),
        };
        let fresh = items.iter().filter(|item| item.kind == EntryKind::Write);
        let fresh_cost: u64 = fresh.map(|item| item.payload.len() as u64 + EXTENT_BYTES).sum();
        let cost = Space::cost(map.total()) + fresh_cost + EXTENT_BYTES;
        let weight = self.peak.weight();
        let more = weight + 1 + map.weight(1) - map.weight(0);
        let takes_a_segment = self.checkpoint_reserve(more) > self.checkpoint_reserve(weight);
        match cost > self.limits().grow || takes_a_segment {
            true => Cow::Borrowed(items),
            false => cut_to_fit(items, left),
        }
    }

    /// How many more segments must be free before a batch of `items` may be applied (invariant 2 of
    /// [`crate::log::reserve`]).
    pub(crate) fn missing_segments(&self, map: &Map, point: AppendPoint, items: &[Item<'_>]) -> usize {
        let fresh = self.segments_needed(point, items);
        let count = items.len() as u64;
        let before = self.checkpoint_reserve(self.peak.weight());
        let after = self.checkpoint_reserve(self.peak.weight_after(count, map.weight(count)));
        Space::missing(fresh, self.free().len(), before, after)
    }

    /// Numbers the batch and puts it, as `items`, into log and map, where its space is to be filled next. No I/O,
    /// no failure.
    pub(crate) fn accept(
        &mut self,
        map: &mut Map,
        point: AppendPoint,
        batch: &Batch<'_>,
        items: &[Item<'_>],
    ) -> (Seq, Appended) {
        if items.is_empty() {
            return (self.last.batches, Appended::new(self.salt, 0));
        }
        let seq = self.last.batches.next();
        self.last.batches = seq;
        let (free, kept) = (self.free().len(), self.left_by(Claim::Fresh));
        self.peak.charge(items.len() as u64);
        let appended = self.append(point, RecordKind::Batch, items);
        self.counters.note_batch(point, batch.host_bytes);
        self.mean_batch.note(if point == AppendPoint::Log { 0 } else { batch.payload_bytes });
        for (item, phys) in items.iter().zip(&appended.placed) {
            match item.kind {
                EntryKind::Trim => map.trim(item.range()),
                _ => map.write_part(item.lba, item.range(), item.entry(*phys).extent(seq)),
            }
        }
        self.peak.note(map.weight(0));
        let (left, keeps) = (self.free().len(), self.left_by(Claim::Fresh));
        assert!(
            (left == free && keeps <= kept) || left >= keeps,
            "invariant 2 of the reserve: {left} of {keeps}"
        );
        self.live_cost = Space::cost(map.total());
        self.stop_if_miscounted(map);
        (seq, appended)
    }

    /// Appends `items`, which were moved, as relocations; the caller points the map to them
    /// ([`Log::note_relocated`]).
    pub(crate) fn append_relocations(&mut self, point: AppendPoint, items: &[Item<'_>]) -> Appended {
        self.append(point, RecordKind::Relocation, items)
    }

    /// The map leads to the new places of the moved extents, of which `cuts` were cut in two.
    pub(crate) fn note_relocated(&mut self, map: &Map, cuts: usize) {
        let kept = self.checkpoint_reserve(self.peak.weight());
        (0..cuts).for_each(|_| self.peak.note_cut());
        self.peak.note(map.weight(0));
        self.stop_if_miscounted(map);
        let grown = self.checkpoint_reserve(self.peak.weight()).saturating_sub(kept);
        assert_eq!(grown, 0, "invariant 3 of the reserve: collection grew what checkpoints need");
    }

    /// Nothing becomes durable any more, and no segment is used again, once a segment is known to hold more than is
    /// counted there.
    pub(crate) fn stop_if_miscounted(&mut self, map: &Map) {
        if let Some(segment) = map.miscounted() {
            self.stop(&format!("segment {} {MISCOUNTED}; `check` finds where", segment.0));
        }
    }
}
