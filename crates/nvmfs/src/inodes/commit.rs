//! From an update to one batch: the single protocol for every operation that changes an inode, and for its waits.
//!
//! An operation may *plan* without a lock, which may read the device. An *attempt* then takes the locks, checks that
//! the plan still holds, and submits one batch. Under locks nothing waits for the device: look-ups in the ftl's map,
//! and the batch, use only the leaves of the map that are in memory. Where those do not suffice, nothing is done, and
//! the attempt releases its locks and returns the reason ([`Attempt`]). [`Inodes::retry`] waits for what was missing
//! with no lock held, and makes the next attempt. Names, inodes and data all change this way.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use lacuna_ftl::{Lba, Op, Seq, Spare, Stream};

use super::{
    node::Record,
    quota::{Admitted, Owners},
};
use crate::{
    error::Result,
    format::{Ino, Privilege},
    inodes::{Inodes, Locked, Node, Update},
    mutant::{Rule, is_broken},
};

/// The outcome of an attempt.
#[must_use]
pub(crate) enum Attempt<T> {
    Done(T),
    /// Nothing was done: the state on which it was planned has changed.
    Changed,
    /// Nothing was done: leaves of the ftl's map that these sectors need are not in memory.
    Absent(Vec<Range<Lba>>),
    /// Nothing was done: a check, which may take long, reads names and inodes.
    Checking,
}

impl<T> Attempt<T> {
    /// The same, with `change` applied to the result.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Attempt::Done(done) => Attempt::Done(change(done)),
            Attempt::Changed => Attempt::Changed,
            Attempt::Absent(sectors) => Attempt::Absent(sectors),
            Attempt::Checking => Attempt::Checking,
        }
    }
}

impl Inodes {
    /// Makes attempts until one is done. Called with no lock held but sectors of files and `moves`; an attempt has
    /// released its own locks when it returns.
    pub(crate) fn retry<T>(&self, mut attempt: impl FnMut() -> Result<Attempt<T>>) -> Result<T> {
        let mut leaves = Vec::new(); // they stay in memory until an attempt is done
        loop {
            match attempt()? {
                Attempt::Done(done) => return Ok(done),
                Attempt::Changed => {}
                Attempt::Absent(sectors) => leaves.push(self.volume.ftl().load_leaves(&sectors)?),
                Attempt::Checking => drop(self.structure.read()),
            }
        }
    }

    /// Submits a batch to the ftl, unless it has to wait. `owners_of` returns the owners of its inodes, which are held.
    /// Only a batch of times may be submitted while a check reads.
    pub(super) fn submit(
        &self,
        ops: &[Op<'_>],
        stream: Stream,
        privilege: Privilege,
        changes_structure: bool,
        owners_of: impl FnMut(Ino) -> Owners,
    ) -> Result<Attempt<Seq>> {
        let structure = if changes_structure { self.structure.try_read() } else { None };
        if changes_structure && structure.is_none() {
            return Ok(Attempt::Checking);
        }
        let admitted = match self.admit(ops, privilege, owners_of)? {
            Attempt::Done(admitted) => admitted,
            other => return Ok(other.map(|_| unreachable!("it is not done"))),
        };
        let spare = match privilege {
            Privilege::User if !is_broken(Rule::ReserveIsRoots) => self.root_reserve,
            _ => Spare::Nothing,
        };
        Ok(match self.volume.ftl().try_write_batch(ops, stream, spare)? {
            Some(seq) => {
                admitted.into_iter().for_each(Admitted::post);
                Attempt::Done(seq)
            }
            None => Attempt::Absent(ops.iter().map(Op::range).collect()),
        })
    }

    /// Locks `nodes` and makes the update that `make` calls for, if any.
    pub(crate) fn change_nodes(
        &self,
        nodes: &[Arc<Node>],
        mut make: impl FnMut(&mut Locked<'_>) -> Result<Option<Update>>,
    ) -> Result<()> {
        self.retry(|| {
            let mut locked = Locked::new(nodes);
            match make(&mut locked)? {
                Some(update) => self.apply(&update, &mut locked),
                None => Ok(Attempt::Done(())),
            }
        })
    }

    /// Makes an update, on nodes that are locked, if the leaves of the map that it needs are in memory.
    pub(crate) fn apply(&self, update: &Update, locked: &mut Locked<'_>) -> Result<Attempt<()>> {
        if !update.absent.is_empty() {
            return Ok(Attempt::Absent(update.absent.clone()));
        }
        if update.is_empty() {
            return Ok(Attempt::Done(()));
        }
        for ino in &update.freed {
            let opens = locked.guard(*ino).0.opens.load(SeqCst);
            assert!(
                opens == 0 && !self.lookups.knows(*ino),
                "an inode in use is not freed (`inodes/lookups.rs`)"
            );
        }
        let ops = update.ops();
        let under_way: Vec<_> = locked.nodes().map(|node| node.last_change.begin()).collect();
        let seq = match self.submit(&ops, Stream::Data, update.privilege, !update.is_of_times, |ino| {
            let from = match locked.guard(ino).1 {
                Record::Live(inode) => Some(inode.owner().0),
                Record::Unloaded | Record::Removed => None,
            };
            (from, update.owner_after(ino, from))
        })? {
            Attempt::Done(seq) => seq,
            Attempt::Absent(sectors) => return Ok(Attempt::Absent(sectors)),
            Attempt::Changed | Attempt::Checking => return Ok(Attempt::Checking),
        };
        for inode in &update.inodes {
            let (node, record) = locked.guard(inode.ino());
            if matches!(record, Record::Unloaded) {
                node.load(record, *inode, seq);
            } else {
                self.nodes.store(node, record, *inode);
            }
        }
        for ino in &update.opened {
            locked.guard(*ino).0.opens.store(1, SeqCst); // no other thread can see it yet
        }
        update.looked_up.iter().for_each(|ino| self.lookups.add(*ino));
        for (ino, may_be_named) in &update.nameable {
            locked.guard(*ino).0.may_be_named.store(*may_be_named, SeqCst);
        }
        for ino in &update.freed {
            let (node, record) = locked.guard(*ino);
            self.nodes.remove(node, record);
        }
        for (ino, what) in &update.touched {
            self.nodes.touch(locked.guard(*ino).0, *what, update.now);
        }
        under_way.into_iter().for_each(|change| change.end(seq));
        Ok(Attempt::Done(()))
    }
}
