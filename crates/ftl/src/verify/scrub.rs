//! Reading and verifying all live data, while the store stays in use: a little at a time, so that the caller sets the
//! pace, can stop it, and no segment is pinned for longer than a few reads.
//!
//! It reads the superblock in all its places, root, index and counters of the durable checkpoint, and then the mapped data, in
//! windows (`sweep`): each leaf that is on the device, and each chunk. Data that changes meanwhile is read as it was or
//! as it became. Dead data is not read, nor are the records of the log since the checkpoint: their contents are in
//! memory too, until the next checkpoint makes them superfluous.

use std::ops::{ControlFlow, Range};

use crate::{
    Lba, Result, checkpoint,
    media::{keys, superblock},
    paging::PinnedLeaves,
    verify::{
        Verifier,
        sweep::{Sweep, Swept, everything},
    },
};

/// Bytes that are read between two calls of the caller's function, where not many extents are planned.
const PIECE_BYTES: usize = 256 << 10;

/// Data that [`crate::Ftl::scrub`] could not read, or that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The affected sectors; `None` for the store's own metadata.
    pub sectors: Option<Range<Lba>>,
    /// What is wrong, with the place on the device.
    pub message: String,
}

/// How far [`crate::Ftl::scrub`] has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// The damage found, in the end in the order of the sectors; empty if there is none.
    pub damage: Vec<Damage>,
    /// Bytes of data and map that were read and are what was written.
    pub verified_bytes: u64,
    /// About how many there are in all.
    pub expected_bytes: u64,
    /// Whether it came to the end.
    pub is_complete: bool,
}

impl Scrub {
    /// Records the outcome of reading `sectors`. Fails when the error is not about the device.
    fn note(&mut self, sectors: Option<Range<Lba>>, outcome: Result<u64>) -> Result<()> {
        match outcome {
            Ok(bytes) => self.verified_bytes += bytes,
            Err(error) if error.is_damage() => {
                self.damage.push(Damage { sectors, message: error.to_string() });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Verifier {
    /// See [`crate::Ftl::scrub`].
    pub(crate) fn scrub(&self, mut go_on: impl FnMut(&Scrub) -> ControlFlow<()>) -> Result<Scrub> {
        self.journal.must_not_be_stopped()?;
        let mut scrub = Scrub { expected_bytes: self.map.read().total().bytes, ..Scrub::default() };
        self.scrub_checkpoint(&mut scrub)?;
        let mut sweep = Sweep::new(&self.reader, &everything, PIECE_BYTES);
        while go_on(&scrub).is_continue() {
            let lost = match sweep.next_leaves() {
                Some(leaves) => self.scrub_leaves(leaves, &mut scrub)?,
                None => Vec::new(),
            };
            let mut outcome = Ok(());
            let goes_on = sweep.step(|swept| {
                let noted = match swept {
                    Swept::Extent((lba, extent), verified) => {
                        let sectors = *lba..Lba(lba.0 + u64::from(extent.sectors));
                        scrub.note(Some(sectors), verified.map(|_| extent.stored_share() as u64))
                    }
                    Swept::Unknown(leaf, _) if lost.contains(&leaf.start) => Ok(()),
                    // It was evicted meanwhile, and cannot be read back.
                    Swept::Unknown(sectors, error) => {
                        scrub.note(Some(Lba(sectors.start)..Lba(sectors.end)), Err(error))
                    }
                };
                if outcome.is_ok() {
                    outcome = noted;
                }
            })?;
            outcome?;
            if !goes_on {
                scrub.is_complete = true;
                break;
            }
        }
        scrub.damage.sort_by_key(|damage| damage.sectors.as_ref().map(|sectors| sectors.start));
        Ok(scrub)
    }

    /// The superblock in all its places, and everything that the durable root leads to except the leaves.
    fn scrub_checkpoint(&self, scrub: &mut Scrub) -> Result<()> {
        let _turn = self.journal.turn();
        let superblock = self.checkpointer.superblock();
        for at in superblock::places(&superblock) {
            // A power cut may have left older ones, which opening for writing replaces.
            let is_settled = !self.volume.is_read_only();
            let checked = superblock::check_place(self.volume.device(), &superblock, at, is_settled);
            scrub.note(None, checked.map(|()| 0))?;
            let checked = keys::check_place(self.volume.device(), &superblock, at, is_settled);
            scrub.note(None, checked.map(|()| 0))?;
        }
        let loaded = checkpoint::load(&self.volume, &superblock);
        scrub.note(None, loaded.map(|_| 0))
    }

    /// The leaves of `range` that are on the device; returns where those begin that cannot be read.
    fn scrub_leaves(&self, range: Range<u64>, scrub: &mut Scrub) -> Result<Vec<u64>> {
        let leaves = {
            let map = self.map.read();
            let leaves = map.leaves_on_device(range);
            PinnedLeaves::new(&self.pages, &map, leaves)
        };
        let (mut lost, mut outcome) = (Vec::new(), Ok(()));
        leaves.verify(|leaf, error| {
            lost.push(leaf.span.start);
            let noted = scrub.note(Some(Lba(leaf.span.start)..Lba(leaf.span.end)), Err(error));
            if outcome.is_ok() {
                outcome = noted;
            }
        });
        outcome.map(|()| lost)
    }
}
