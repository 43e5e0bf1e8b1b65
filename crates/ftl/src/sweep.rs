//! Reading and verifying all that is mapped, about as it lies on the device.
//!
//! In the order of addresses, extents lie anywhere, and each would take a read of its own. So the space is gone
//! over in *windows* of very many extents, in order; each is planned, put into the order of the device, and
//! then read in pieces.
//!
//! **Invariants.**
//! 1. A plan is where extents lay at one moment, and it is only an order: it pins nothing, and nothing is read
//!    by it. A piece of it is looked up anew and pinned: what moved meanwhile is read where it is now, what was
//!    overwritten is read as it became, what is gone is not missed.
//! 2. So each sector that is mapped all the time is verified once, at a place where it was while that was read.
//! 3. No segment is pinned for longer than it takes to read a piece.
//!
//! Memory: 24 bytes for each extent of a window, 27 MiB at most; the window's leaves of the map, about as much,
//! which are kept from eviction; and what a piece takes.
//!
//! What is wrong comes in the order of the device, which differs from time to time: callers sort.

use std::{ops::Range, slice};

use crate::{
    Error, Lba, Result,
    addr::PhysAddr,
    format::Extent,
    map::Leaf,
    read::{NEAR_BYTES, Pinned},
    store::Store,
};

/// Extents of a window.
const WINDOW_EXTENTS: usize = 1 << 20;
/// Extents of a piece, however short they are.
const PIECE_EXTENTS: usize = 1 << 14;
/// Leaves that are brought in at the same time.
const LEAVES_AT_ONCE: usize = 1 << 10;
/// Leaves that are planned under one hold of the map's lock.
const LEAVES_AT_A_LOOK: usize = 64;

/// An extent as it lay when its window was planned. They are ordered by their places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Planned {
    phys: PhysAddr,
    lba: u64,
    stored: u16,
    sectors: u8,
}

const _: () = assert!(size_of::<Planned>() == 24);

impl Planned {
    fn new(lba: Lba, extent: &Extent) -> Planned {
        Planned { phys: extent.phys, lba: lba.0, stored: extent.stored, sectors: extent.sectors }
    }

    fn range(&self) -> Range<u64> {
        self.lba..self.lba + u64::from(self.sectors)
    }
}

/// What a sweep comes upon.
pub(crate) enum Swept<'a> {
    /// An extent, and whether its chunk is what was written.
    Extent(&'a (Lba, Extent), Result<()>),
    /// What is mapped there is not known: a leaf of the map cannot be read.
    Unknown(Range<u64>, Error),
}

/// See the module.
pub(crate) struct Sweep<'a> {
    store: &'a Store,
    /// About how much a piece reads.
    piece_bytes: usize,
    /// Where the next window begins.
    cursor: u64,
    plan: Vec<Planned>,
    /// Leaves that the plan is made of, if others may be evicted.
    kept: Vec<Leaf>,
    /// How much of the plan was read.
    read: usize,
}

impl<'a> Sweep<'a> {
    /// Begins one that reads about `piece_bytes` with each step.
    pub(crate) fn new(store: &'a Store, piece_bytes: usize) -> Sweep<'a> {
        Sweep { store, piece_bytes, cursor: 0, plan: Vec::new(), kept: Vec::new(), read: 0 }
    }

    /// The leaves that the next step is going to plan, if it does: the caller may look at these before.
    pub(crate) fn next_leaves(&self) -> Option<Range<u64>> {
        self.is_planning().then(|| self.cursor..self.store.map.read().leaves_end(self.cursor, LEAVES_AT_ONCE))
    }

    fn is_planning(&self) -> bool {
        self.read == 0 && self.plan.len() < WINDOW_EXTENTS && self.cursor < u64::MAX
    }

    /// Plans or reads some more, and passes what it comes upon to `found`; false at the end.
    pub(crate) fn step(&mut self, mut found: impl FnMut(Swept<'_>)) -> Result<bool> {
        if self.is_planning() {
            self.plan_leaves(&mut found)?;
            if !self.is_planning() {
                self.plan.sort_unstable();
            }
        } else {
            self.read_piece(&mut found)?;
            if self.read == self.plan.len() {
                self.plan.clear();
                self.kept.clear();
                self.read = 0;
            }
        }
        Ok(self.cursor < u64::MAX || !self.plan.is_empty())
    }

    /// Plans what the next leaves map.
    fn plan_leaves(&mut self, found: &mut impl FnMut(Swept<'_>)) -> Result<()> {
        let (store, start) = (self.store, self.cursor);
        let end = store.map.read().leaves_end(start, LEAVES_AT_ONCE);
        // What cannot be read is found one by one below.
        let _kept = store.fault_ahead(|map| map.absent_ahead(start..end, LEAVES_AT_ONCE)).ok();
        if store.options.map_memory.is_some() {
            self.kept.extend(store.map.read().share(slice::from_ref(&(start..end))));
        }
        while self.cursor < end {
            let some = store.map.read().leaves_end(self.cursor, LEAVES_AT_A_LOOK).min(end);
            if self.plan_range(self.cursor..some).is_ok() {
                self.cursor = some;
                continue;
            }
            while self.cursor < some {
                let leaf = self.cursor..store.map.read().leaf_end(self.cursor).min(some);
                self.cursor = leaf.end;
                match self.plan_range(leaf.clone()) {
                    Err(error) if is_damage(&error) => found(Swept::Unknown(leaf, error)),
                    planned => planned?,
                }
            }
        }
        Ok(())
    }

    /// Plans what `range` maps, or nothing of it.
    fn plan_range(&mut self, range: Range<u64>) -> Result<()> {
        let before = self.plan.len();
        let plan = &mut self.plan;
        let visited = self.store.visit_extents(range, |lba, extent| {
            plan.push(Planned::new(lba, &extent));
            true
        });
        if visited.is_err() {
            self.plan.truncate(before);
        }
        visited
    }

    /// Reads what follows of the plan.
    fn read_piece(&mut self, found: &mut impl FnMut(Swept<'_>)) -> Result<()> {
        let (mut bytes, piece_bytes) = (0, self.piece_bytes);
        let fits = |planned: &&Planned| {
            bytes += usize::from(planned.stored);
            bytes <= piece_bytes
        };
        let piece = &self.plan[self.read..];
        let len = piece.iter().take(PIECE_EXTENTS).take_while(fits).count().max(1).min(piece.len());
        let piece = &piece[..len];
        self.read += len;
        match self.store.pin_each(piece.iter().map(Planned::range).collect()) {
            Ok(pinned) => self.verify(&pinned, found),
            // A leaf was evicted meanwhile, and cannot be read back.
            Err(error) if is_damage(&error) => {
                for planned in piece {
                    match self.store.pin_some(planned.range(), usize::MAX) {
                        Ok(pinned) => self.verify(&pinned, found),
                        Err(error) if is_damage(&error) => found(Swept::Unknown(planned.range(), error)),
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn verify(&self, pinned: &Pinned<'_>, found: &mut impl FnMut(Swept<'_>)) {
        self.store.read_each(pinned.extents(), NEAR_BYTES, |extent, stored| {
            found(Swept::Extent(extent, stored.map(drop)));
        });
    }
}

/// Whether it tells of the device, and not of the store's state.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Device(_))
}
