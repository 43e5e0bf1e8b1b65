//! What a batch does to the usage of users.

use std::{collections::BTreeMap, ops::Range};

use lacuna_ftl::{Effect, Lba, Op};

use super::{Admitted, Usage};
use crate::{
    error::Result,
    format::{Ino, Privilege, XATTR_SECTORS},
    inodes::{Attempt, Inodes},
};

/// The owners of an inode before and after a batch: none before the batch that makes it, and after that which frees it.
pub(crate) type Owners = (Option<u32>, Option<u32>);

/// What a batch does to one inode.
pub(super) struct Charge {
    pub(super) ino: Ino,
    pub(super) from: Option<u32>,
    pub(super) to: Option<u32>,
    /// On the sectors that the batch changes.
    effect: Effect,
    /// Bytes of all other sectors, where the owner changes.
    rest_bytes: u64,
}

impl Charge {
    /// What the old owner loses, and what the new one gets.
    pub(super) fn usage(&self) -> (Usage, Usage) {
        let inodes = u64::from(self.from != self.to);
        let usage = |bytes: u64| Usage { bytes: self.rest_bytes.saturating_add(bytes), inodes };
        (usage(self.effect.before_bytes), usage(self.effect.after_bytes))
    }
}

/// A sector at either end of a range: sums over it take no other leaf of the map.
fn ends(range: &Range<Lba>) -> [Range<Lba>; 2] {
    [range.start..Lba(range.start.0 + 1), Lba(range.end.0 - 1)..range.end]
}

/// The sectors of an inode that count: its region, and its attributes outside of it.
fn counted(ino: Ino) -> [Range<Lba>; 2] {
    [ino.region(), ino.xattr_lba()..Lba(ino.xattr_lba().0 + XATTR_SECTORS)]
}

impl Inodes {
    /// Bytes that count for an inode, or where leaves of the map are missing.
    pub(super) fn counted_bytes(&self, ino: Ino) -> Result<u64, Vec<Range<Lba>>> {
        let bytes =
            counted(ino).iter().map(|range| self.volume.ftl().allocated_in_memory(range.clone())).sum();
        Option::ok_or_else(bytes, || counted(ino).iter().flat_map(ends).collect())
    }

    /// What these changes of data do to the bytes that are stored.
    pub(crate) fn effect(&self, ops: &[Op<'_>]) -> Result<Effect> {
        let mut leaves = Vec::new(); // they stay in memory until it is known
        loop {
            match self.volume.ftl().effect_in_memory(ops) {
                Some(effect) => return Ok(effect),
                None => {
                    let ends: Vec<_> = ops.iter().flat_map(|op| ends(&op.range())).collect();
                    leaves.push(self.volume.ftl().load_leaves(&ends)?);
                }
            }
        }
    }

    /// Admits a batch whose inodes, by `owners_of`, are held; nothing if usage is not counted.
    pub(in crate::inodes) fn admit(
        &self,
        ops: &[Op<'_>],
        privilege: Privilege,
        owners_of: impl FnMut(Ino) -> Owners,
    ) -> Result<Attempt<Option<Admitted<'_>>>> {
        if !self.quotas.is_on() {
            return Ok(Attempt::Done(None));
        }
        match self.charges(ops, owners_of) {
            Ok(charges) => Ok(Attempt::Done(Some(self.quotas.admit(charges, privilege)?))),
            Err(absent) => Ok(Attempt::Absent(absent)),
        }
    }

    fn charges(
        &self,
        ops: &[Op<'_>],
        mut owners_of: impl FnMut(Ino) -> Owners,
    ) -> Result<Vec<Charge>, Vec<Range<Lba>>> {
        let mut by_ino = BTreeMap::<Ino, Vec<Op<'_>>>::new();
        for op in ops {
            let (region, sector) = Ino::of(op.range().start);
            let (number, counts) = match region {
                Ino::TABLE => (sector, false),
                Ino::XATTRS => (sector / XATTR_SECTORS, true),
                file => (file.number(), true),
            };
            let Some(ino) = Ino::new(number) else { continue }; // a table of the file system's own
            by_ino.entry(ino).or_default().extend(counts.then_some(*op));
        }
        let (mut charges, mut absent) = (Vec::with_capacity(by_ino.len()), Vec::new());
        for (ino, ops) in by_ino {
            let (from, to) = owners_of(ino);
            if from == to && ops.is_empty() {
                continue;
            }
            let effect = self.volume.ftl().effect_in_memory(&ops);
            let whole = if from == to || from.is_none() { Ok(0) } else { self.counted_bytes(ino) };
            match (effect, whole) {
                (Some(effect), Ok(whole)) => {
                    let rest_bytes = whole.saturating_sub(effect.before_bytes);
                    charges.push(Charge { ino, from, to, effect, rest_bytes });
                }
                (_, whole) => {
                    absent.extend(ops.iter().flat_map(|op| ends(&op.range())));
                    absent.extend(whole.err().into_iter().flatten());
                }
            }
        }
        if absent.is_empty() { Ok(charges) } else { Err(absent) }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::{
        super::{Quotas, Tally},
        *,
    };
    use crate::{error::Error, error::Refusal, format::Limits};

    const UID: u32 = 1000;

    fn quotas() -> Quotas {
        let quotas = Quotas::default();
        {
            let mut books = quotas.books.lock();
            books.usage = Some(Tally { counted_to: 100, ..Tally::default() });
            books.limits.insert(UID, Limits { bytes: NonZeroU64::new(1000), inodes: NonZeroU64::new(2) });
        }
        quotas
    }

    fn charge(number: u32, owners: Owners, [before_bytes, after_bytes, rest_bytes]: [u64; 3]) -> Charge {
        let effect = Effect { before_bytes, after_bytes };
        Charge { ino: Ino(number), from: owners.0, to: owners.1, effect, rest_bytes }
    }

    fn write(before: u64, after: u64) -> Vec<Charge> {
        vec![charge(20, (Some(UID), Some(UID)), [before, after, 0])]
    }

    fn used(quotas: &Quotas) -> (u64, u64) {
        let books = quotas.books.lock();
        assert!(books.pending.values().all(|pending| *pending != Usage::default()));
        let usage = books.usage.as_ref().and_then(|tally| tally.of.get(&UID).copied()).unwrap_or_default();
        (usage.bytes, usage.inodes)
    }

    #[test]
    fn what_is_under_way_counts_until_it_is_posted_or_given_up() {
        let quotas = quotas();
        let made = |number| vec![charge(number, (None, Some(UID)), [0, 100, 0])];
        let admit = |charges| quotas.admit(charges, Privilege::User);
        let refused = |charges| matches!(admit(charges), Err(Error::Refused(Refusal::QuotaExceeded)));
        admit(made(20)).unwrap().post();
        assert_eq!(used(&quotas), (100, 1));
        let under_way = admit(write(100, 900)).unwrap();
        assert!(refused(write(0, 101)) && !refused(write(0, 100)), "900 are taken");
        assert!(!refused(write(500, 500)), "it adds nothing");
        let by_root = quotas.admit(write(0, 500), Privilege::Root).unwrap();
        assert!(refused(write(0, 1)), "root's counts too");
        drop((under_way, by_root));
        let second = admit(made(21)).unwrap();
        assert!(refused(made(22)), "a third inode");
        second.post();
        assert_eq!(used(&quotas), (200, 2));
        admit(write(100, 900)).unwrap().post();
        assert_eq!(used(&quotas), (1000, 2));
        // Given away with what is not changed, freed, and one that is not counted yet.
        admit(vec![charge(20, (Some(UID), Some(7)), [0, 0, 900])]).unwrap().post();
        admit(vec![charge(21, (Some(UID), None), [100, 0, 0])]).unwrap().post();
        admit(vec![charge(100, (None, Some(UID)), [0, 5, 0])]).unwrap().post();
        assert_eq!(used(&quotas), (0, 0));
    }
}
