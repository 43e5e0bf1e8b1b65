//! Quotas: what the inodes of each user take, and what they may take.
//!
//! Limits are stored, a sector for each user who has any (`format/limits.rs`). Usage is in memory only. It is counted
//! when a store that has limits is opened, or when somebody first asks or sets a limit (`count.rs`). So no crash can
//! make it wrong, and stores without limits pay nothing.
//!
//! A user's usage is the number of inodes that it owns, and the bytes that are stored in their regions, with those of
//! their attributes outside of the inodes. Inodes without name count until they are freed.
//!
//! 1. *Exact.* A batch posts what it does to the usage of each inode's owner. That is computed from batch and map just
//!    before the ftl accepts it (`charge.rs`), with the `record`s of the inodes held, and the sectors of data: so
//!    nothing else changes these bytes in between. A batch that was refused posts nothing.
//! 2. *Counted once.* An inode is counted with its `record` held alone; from then on its changes are posted, before
//!    they are not. Counting holds `structure`, and batches that make or free inodes post before they release it: so
//!    none appears, disappears, or changes its owner meanwhile. Inodes are counted in order of their numbers.
//! 3. *Never above.* A batch of a user other than root is admitted only if the owner's usage, with what admitted
//!    batches are about to add, stays within the owner's limits. Root's batches are posted and never refused, and so is
//!    what only frees or moves something.
//! 4. *Left out.* An inode that cannot be read while it should be counted is in no usage, nor are changes of it, in case
//!    it can be read later.
//! 5. Limits in memory are those that are stored, but for damaged ones, which bind nobody and which the check reports.
//!
//! **Locks.** `asking` before all others of the file system: one thread counts or changes limits at a time. `books`
//! behind all others, for moments.
//!
//! **Failure.** A store that a failure has stopped may show a batch that was not posted; it takes no further ones.

mod charge;
mod count;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use parking_lot::Mutex;

pub(super) use self::charge::Owners;

use self::charge::Charge;
use crate::{
    error::{Refusal, Result},
    format::{Ino, Limits, Privilege},
    mutant::{Rule, is_broken},
};

/// What a user has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Stored bytes.
    pub bytes: u64,
    /// Number of inodes.
    pub inodes: u64,
}

/// What a user has and may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserQuota {
    /// The user.
    pub uid: u32,
    /// What it has.
    pub used: Usage,
    /// What it may have.
    pub limits: Limits,
}

impl Usage {
    /// Saturating, because counts follow from what a store says.
    fn plus(self, other: Usage) -> Usage {
        let Usage { bytes, inodes } = other;
        Usage { bytes: self.bytes.saturating_add(bytes), inodes: self.inodes.saturating_add(inodes) }
    }

    fn minus(self, other: Usage) -> Usage {
        let Usage { bytes, inodes } = other;
        Usage { bytes: self.bytes.saturating_sub(bytes), inodes: self.inodes.saturating_sub(inodes) }
    }

    /// Whether it is within the limits of what `added` adds to.
    fn is_within(self, limits: Limits, added: Usage) -> bool {
        let fits = |total, limit: Option<std::num::NonZeroU64>, added| {
            added == 0 || limit.is_none_or(|limit| total <= limit.get())
        };
        fits(self.bytes, limits.bytes, added.bytes) && fits(self.inodes, limits.inodes, added.inodes)
    }
}

/// Usage of all users, of the inodes that are counted.
#[derive(Debug, Default)]
struct Tally {
    of: BTreeMap<u32, Usage>,
    /// Inodes below this number are counted.
    counted_to: u64,
    /// Except these, which could not be read.
    left_out: HashSet<Ino>,
}

impl Tally {
    fn change(&mut self, uid: u32, change: impl FnOnce(Usage) -> Usage) {
        let usage = change(self.of.remove(&uid).unwrap_or_default());
        if usage != Usage::default() {
            self.of.insert(uid, usage);
        }
    }

    /// By invariants 2 and 4.
    fn post(&mut self, charge: &Charge) {
        if charge.ino.number() >= self.counted_to {
            return;
        }
        if self.left_out.contains(&charge.ino) {
            if charge.to.is_none() {
                self.left_out.remove(&charge.ino);
            }
            return;
        }
        let (before, after) = charge.usage();
        let is_given_back = match charge.to {
            None => !is_broken(Rule::FreedIsGivenBack),
            Some(to) => charge.from == Some(to) || !is_broken(Rule::UsageMovesWithOwner),
        };
        if let Some(from) = charge.from.filter(|_| is_given_back) {
            self.change(from, |usage| usage.minus(before));
        }
        if let Some(to) = charge.to {
            self.change(to, |usage| usage.plus(after));
        }
    }
}

#[derive(Default)]
struct Books {
    limits: HashMap<u32, Limits>,
    /// What each user has, once it was counted.
    usage: Option<Tally>,
    /// A count that is under way.
    count: Option<Tally>,
    /// What batches that were admitted may add.
    pending: HashMap<u32, Usage>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Quotas {
    /// Whether usage is counted, or about to be: read with the `record`s of a batch held, or `structure`.
    is_on: AtomicBool,
    asking: Mutex<()>,
    books: Mutex<Books>,
}

impl Quotas {
    fn is_on(&self) -> bool {
        self.is_on.load(SeqCst)
    }

    /// By invariant 3.
    fn admit(&self, charges: Vec<Charge>, privilege: Privilege) -> Result<Admitted<'_>> {
        let mut added = BTreeMap::<u32, Usage>::new();
        for charge in &charges {
            let (before, after) = charge.usage();
            let before = if charge.from == charge.to { before } else { Usage::default() };
            let Some(uid) = charge.to else { continue };
            let of_user = added.entry(uid).or_default();
            *of_user = of_user.plus(after.minus(before));
        }
        let mut books = self.books.lock();
        if privilege == Privilege::User
            && let Some(tally) = &books.usage
        {
            for (uid, added) in &added {
                let Some(limits) = books.limits.get(uid) else { continue };
                let used = tally.of.get(uid).copied().unwrap_or_default();
                let pending = books.pending.get(uid).copied().unwrap_or_default();
                if !used.plus(pending).plus(*added).is_within(*limits, *added) {
                    return Err(Refusal::QuotaExceeded.into());
                }
            }
        }
        for (uid, added) in &added {
            let pending = books.pending.entry(*uid).or_default();
            *pending = pending.plus(*added);
        }
        Ok(Admitted { quotas: self, charges, added })
    }
}

/// A batch that may be submitted.
pub(super) struct Admitted<'a> {
    quotas: &'a Quotas,
    charges: Vec<Charge>,
    /// The most that it adds for each user.
    added: BTreeMap<u32, Usage>,
}

impl Admitted<'_> {
    /// The ftl has accepted the batch.
    pub(super) fn post(mut self) {
        let mut books = self.quotas.books.lock();
        books.release(&std::mem::take(&mut self.added));
        let Books { usage, count, .. } = &mut *books;
        for tally in [usage, count].into_iter().flatten() {
            self.charges.iter().for_each(|charge| tally.post(charge));
        }
    }
}

impl Books {
    fn release(&mut self, added: &BTreeMap<u32, Usage>) {
        for (uid, added) in added {
            let pending = self.pending.remove(uid).unwrap_or_default().minus(*added);
            if pending != Usage::default() {
                self.pending.insert(*uid, pending);
            }
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if !self.added.is_empty() {
            self.quotas.books.lock().release(&self.added);
        }
    }
}
