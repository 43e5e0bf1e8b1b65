//! Reading and verifying everything live, beside whatever else goes on: a little at a time, so that the
//! caller sets the pace, can stop it, and no segment is pinned for longer than a few reads.
//!
//! It reads the superblock's slots, root, index and counters of the durable checkpoint, and then the map
//! leaf by leaf: each leaf that is on the device, and each chunk that it maps. What changes meanwhile is
//! read as it was or as it became. What is not live is not read, nor is the log since the checkpoint:
//! what that holds is in memory too, until the next checkpoint makes it superfluous.

use std::ops::{ControlFlow, Range};

use lacuna_device::AlignedBuf;
use zerocopy::FromBytes;

use crate::{
    Error, Lba, Result, SECTOR, checkpoint,
    format::{SUPERBLOCK_SLOTS, Salt, Slot, SuperblockRaw},
    map::Absent,
    store::Store,
};

/// Extents that are verified between two calls of the caller's function.
const EXTENTS_AT_ONCE: usize = 64;

/// Something that [`crate::Ftl::scrub`] could not read, or that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Sectors that it concerns; none for what the store itself needs.
    pub sectors: Option<Range<Lba>>,
    /// What is wrong, with the place on the device.
    pub message: String,
}

/// How far [`crate::Ftl::scrub`] has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// What was found; empty if all is well.
    pub damage: Vec<Damage>,
    /// Bytes of data and map that were read and are what was written.
    pub verified_bytes: u64,
    /// About how many there are in all.
    pub expected_bytes: u64,
    /// Whether it came to the end.
    pub is_complete: bool,
}

impl Scrub {
    /// Takes the outcome of reading `sectors` into account. Fails when that says nothing of the device.
    fn note(&mut self, sectors: Option<Range<Lba>>, outcome: Result<u64>) -> Result<()> {
        match outcome {
            Ok(bytes) => self.verified_bytes += bytes,
            Err(error @ (Error::Corrupt { .. } | Error::Device(_))) => {
                self.damage.push(Damage { sectors, message: error.to_string() });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Store {
    /// See [`crate::Ftl::scrub`].
    pub(crate) fn scrub(&self, mut go_on: impl FnMut(&Scrub) -> ControlFlow<()>) -> Result<Scrub> {
        let mut scrub = Scrub { expected_bytes: self.map.read().total().bytes, ..Scrub::default() };
        self.scrub_checkpoint(&mut scrub)?;
        let mut cursor = 0;
        while cursor < u64::MAX {
            if go_on(&scrub).is_break() {
                return Ok(scrub);
            }
            cursor = self.scrub_some(cursor, &mut scrub)?;
        }
        scrub.is_complete = true;
        Ok(scrub)
    }

    /// Both slots of the superblock, and what the durable root leads to short of the leaves.
    fn scrub_checkpoint(&self, scrub: &mut Scrub) -> Result<()> {
        let _turn = self.maintenance.lock();
        for at in SUPERBLOCK_SLOTS {
            scrub.note(None, self.read_slot(at))?;
        }
        let superblock = self.superblock.lock().clone();
        let salt = Salt::of(&superblock.uuid);
        let loaded = checkpoint::load(&*self.device, self.space, salt, &superblock);
        scrub.note(None, loaded.map(|_| 0))
    }

    fn read_slot(&self, at: u64) -> Result<u64> {
        let mut block = AlignedBuf::zeroed(SECTOR.next_multiple_of(self.space.block_bytes));
        self.device.read_at(at, &mut block)?;
        let (raw, _) = SuperblockRaw::read_from_prefix(&block).expect("a sector is longer than a superblock");
        match raw.verify() {
            Slot::Valid(_) => Ok(0),
            Slot::Invalid(reason) => Err(Error::Corrupt {
                what: format!("{}, superblock", self.device.name()),
                at,
                reason: reason.into(),
            }),
            Slot::Newer(_) | Slot::UnknownFeatures(_) => Err(Error::Corrupt {
                what: format!("{}, superblock", self.device.name()),
                at,
                reason: "not the version that was opened".into(),
            }),
        }
    }

    /// Some of what the leaf that `cursor` belongs to maps, and at its beginning the leaf itself; returns
    /// where to go on.
    fn scrub_some(&self, cursor: u64, scrub: &mut Scrub) -> Result<u64> {
        let (end, on_device) = {
            let map = self.map.read();
            let on_device = map.leaf_on_device(cursor).filter(|leaf| leaf.span.start == cursor);
            on_device.iter().for_each(|leaf| self.pin(leaf.place.segment));
            (map.leaf_end(cursor), on_device)
        };
        let rest = || Some(Lba(cursor)..Lba(end));
        if let Some(leaf) = on_device {
            let read = self.read_leaf(leaf);
            let is_lost = read.is_err();
            scrub.note(rest(), read)?;
            if is_lost {
                return Ok(end);
            }
        }
        let pinned = match self.pin_some(cursor..end, EXTENTS_AT_ONCE) {
            Ok(pinned) => pinned,
            // The leaf was evicted meanwhile, and cannot be read back.
            Err(error) => {
                scrub.note(rest(), Err(error))?;
                return Ok(end);
            }
        };
        for (lba, extent) in pinned.extents() {
            let len = usize::from(extent.stored);
            let chunk = self.read_bytes(extent.phys.segment, extent.phys.offset(), len);
            let verified = chunk.and_then(|chunk| self.verify(extent, &chunk));
            let sectors = *lba..Lba(lba.0 + u64::from(extent.sectors));
            scrub.note(Some(sectors), verified.map(|()| extent.bytes() as u64))?;
        }
        let is_full = pinned.extents().len() == EXTENTS_AT_ONCE;
        let last = pinned.extents().last().filter(|_| is_full);
        Ok(last.map_or(end, |(lba, extent)| lba.0 + u64::from(extent.sectors)))
    }

    /// Reads a leaf whose segment is pinned, and unpins it.
    fn read_leaf(&self, leaf: Absent) -> Result<u64> {
        let segment = leaf.place.segment;
        let read = self.leaf_reader().read(vec![leaf], |_, _| {});
        self.unpin(segment);
        read.map(|()| 0)
    }
}
