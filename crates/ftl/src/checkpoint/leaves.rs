//! Writing leaves of the map: all that a checkpoint needs, or some to make space in memory.

use std::collections::HashMap;

use super::checkpointer::{Checkpointer, Rewrite};
use super::writer::Writer;
use crate::{
    Error, Result,
    addr::SegNo,
    format::LeafAddr,
    log::Claim,
    map::{Absent, Leaf, LeafRef},
};

/// Leaves that are read together to be written elsewhere.
const LEAVES_AT_ONCE: usize = 1024;

/// Dirty leaves that are written out at once to make space in memory.
const WRITE_BACK_LEAVES: usize = 128;

impl Checkpointer {
    /// Writes those of `leaves` that are due, and notes their places there and in the map. Returns the segments of those
    /// that cannot be read, and stay where they are.
    pub(super) fn write_leaves(
        &self,
        writer: &mut Writer<'_>,
        leaves: &mut [LeafRef],
        is_due: impl Fn(&LeafRef) -> bool,
    ) -> Result<Vec<SegNo>> {
        let mut left = Vec::new();
        let due: Vec<_> = (0..leaves.len()).filter(|number| is_due(&leaves[*number])).collect();
        for numbers in due.chunks(LEAVES_AT_ONCE) {
            let mut moved = self.leaves_to_move(numbers.iter().map(|number| &leaves[*number]))?;
            for number in numbers {
                let LeafRef { span, leaf, place, .. } = &leaves[*number];
                let Some(leaf) = leaf.clone().or_else(|| moved.remove(&span.start)) else {
                    left.extend(place.map(|place| place.segment));
                    continue;
                };
                let written = writer.push_leaf(*number, &leaf)?;
                self.note_places(leaves, written);
            }
        }
        let written = writer.finish_leaves()?;
        self.note_places(leaves, written);
        left.sort_unstable();
        left.dedup();
        Ok(left)
    }

    fn note_places(&self, leaves: &mut [LeafRef], written: Vec<(usize, LeafAddr)>) {
        if written.is_empty() {
            return;
        }
        let mut map = self.map.write();
        for (number, place) in written {
            let leaf = &mut leaves[number];
            map.put_at(leaf.span.start, leaf, place);
            leaf.place = Some(place);
            leaf.leaf = None;
        }
    }

    /// Reads those of `leaves` that are on the device only; keyed by start. A leaf that is damaged or unreadable is
    /// omitted: it stays where it is, and callers that need what it maps get the error.
    fn leaves_to_move<'l>(&self, leaves: impl Iterator<Item = &'l LeafRef>) -> Result<HashMap<u64, Leaf>> {
        // Their segments cannot be reused now: that requires the maintenance lock.
        let absent: Vec<_> = leaves
            .filter(|leaf| leaf.leaf.is_none())
            .map(|LeafRef { span, live, place, .. }| {
                let place = place.expect("a leaf is in memory or has a place");
                Absent { span: span.clone(), live: *live, place }
            })
            .collect();
        let (mut found, mut outcome) = (HashMap::with_capacity(absent.len()), Ok(()));
        self.pages.leaf_reader().read_each(&absent, |absent, leaf| match leaf {
            Ok(leaf) => drop(found.insert(absent.span.start, leaf)),
            Err(error) if error.is_damage() => {}
            Err(error) => outcome = Err(error),
        });
        outcome.map(|()| found)
    }

    /// Writes some dirty leaves out, so that they can be evicted, with the maintenance lock held. Where
    /// there is no space for that, a checkpoint makes it.
    pub(crate) fn write_back(&self) -> Result<()> {
        match self.write_back_into_spare() {
            Err(Error::Full { .. }) => self.checkpoint_in_turn(Rewrite::Sparse),
            result => result,
        }
    }

    /// As [`Checkpointer::write_back`], but where there is no space it is an error.
    pub(crate) fn write_back_into_spare(&self) -> Result<()> {
        let mut leaves = self.map.write().dirty_leaves(WRITE_BACK_LEAVES);
        let seq = {
            let log = self.journal.lock();
            self.journal.check_poison(&log)?;
            log.last_seq()
        };
        let mut writer = Writer::new(self, seq, Claim::WriteBack);
        let result = self.write_leaves(&mut writer, &mut leaves, |_| true);
        drop(leaves);
        self.pages.evict_excess();
        self.reclaim_map();
        result.map(drop)
    }
}
