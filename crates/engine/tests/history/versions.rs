//! The order of each record's versions, and which of them each read can have seen.
//!
//! A writer has its record locked from before its write returns until after its commit is asked for. So these spans
//! do not overlap, and their order is that of the versions. Where they do overlap, or the elements of lists contradict
//! them, that is reported separately.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    effects::{Effects, Read},
    record::{History, Key, Outcome, Seen, Stamp, What, WriteId},
};

/// A committed version of a record, or its absence.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    /// Its index among the history's transactions; none for the initial version.
    pub(crate) txn: Option<usize>,
    pub(crate) write: Option<WriteId>,
    /// Of an absent record none.
    pub(crate) list: Option<Vec<WriteId>>,
    acquired: Stamp,
    /// It was committed between these.
    pub(crate) began: Stamp,
    pub(crate) ended: Stamp,
}

/// The fate of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The version of this number of its record.
    Installed(usize),
    /// Its transaction, which committed, wrote the record again.
    Overwritten(usize),
    /// Its transaction rolled it back.
    TakenBack(usize),
}

/// The versions that a read can have seen: `first` to `last`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved {
    pub(crate) key: Key,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// A record's possible states at some moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Presence {
    pub(crate) may_be_absent: bool,
    pub(crate) may_be_there: bool,
}

impl Presence {
    fn add(&mut self, is_there: bool) {
        self.may_be_there |= is_there;
        self.may_be_absent |= !is_there;
    }
}

/// Why a read fits no version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    Unknown,
    Overwritten(usize),
    TakenBack(usize),
    /// It was committed later.
    Early(usize),
    /// It was overwritten before, or never existed.
    Late,
    /// It may be of a transaction of unknown outcome whose writes no other transaction saw: no anomaly.
    Doubtful,
}

/// A last write of a transaction of unknown outcome that does not count as committed.
struct Doubt {
    is_there: bool,
    began: Stamp,
}

pub(crate) struct Versions {
    by_key: BTreeMap<Key, Vec<Installed>>,
    fates: HashMap<WriteId, (Key, Fate)>,
    lists: HashMap<WriteId, Vec<WriteId>>,
    doubts: HashMap<Key, Vec<Doubt>>,
}

/// All keys of a history.
pub(crate) fn keys(history: &History) -> BTreeSet<Key> {
    let mut keys: BTreeSet<Key> = history.initial.keys().copied().collect();
    for op in history.txns.iter().flat_map(|txn| &txn.ops) {
        match &op.what {
            What::Read { key, .. } | What::Write { key, .. } | What::Delete { key, .. } => {
                keys.insert(*key);
            }
            What::Scan(scan) => {
                keys.extend(scan.found.iter().map(|(number, _)| Key { table: scan.table, number: *number }));
            }
            What::Count(_) | What::Savepoint | What::RollbackTo { .. } | What::Failed(_) => {}
        }
    }
    keys
}

/// Which transactions count as committed: of the unknown ones those whose writes another transaction saw, then or
/// later.
pub(crate) fn committed(history: &History, effects: &[Effects]) -> Vec<bool> {
    let seen = effects.iter().flat_map(|e| &e.reads).filter_map(|read| match read.seen {
        Seen::Version(write, _) => Some(write.txn()),
        _ => None,
    });
    let seen: BTreeSet<u64> = seen.collect();
    let counts = history.txns.iter().map(|txn| match txn.outcome {
        Outcome::Committed => true,
        Outcome::Aborted => false,
        Outcome::Unknown => seen.contains(&txn.id) || history.survived.contains(&txn.id),
    });
    counts.collect()
}

impl Versions {
    pub(crate) fn new(
        history: &History,
        effects: &[Effects],
        committed: &[bool],
        keys: &BTreeSet<Key>,
    ) -> Versions {
        let before = |key: &Key| {
            let (write, list) = history.initial.get(key).cloned().unzip();
            vec![Installed { txn: None, write, list, acquired: 0, began: 0, ended: 0 }]
        };
        let mut by_key: BTreeMap<Key, Vec<Installed>> = keys.iter().map(|key| (*key, before(key))).collect();
        let mut fates = HashMap::new();
        let mut lists: HashMap<_, _> = history.initial.values().cloned().collect();
        let mut doubts: HashMap<Key, Vec<Doubt>> = HashMap::new();
        for (i, (txn, effects)) in history.txns.iter().zip(effects).enumerate() {
            for op in &txn.ops {
                if let What::Write { key, write, list } = &op.what {
                    let fate = if committed[i] { Fate::Overwritten(i) } else { Fate::TakenBack(i) };
                    fates.insert(*write, (*key, fate));
                    lists.insert(*write, list.clone());
                }
            }
            for write in &effects.undone {
                fates.entry(*write).and_modify(|(_, fate)| *fate = Fate::TakenBack(i));
            }
            for (key, last) in &effects.finals {
                if !committed[i] {
                    let doubt = Doubt { is_there: last.list.is_some(), began: txn.end_began };
                    doubts
                        .entry(*key)
                        .or_default()
                        .extend((txn.outcome == Outcome::Unknown).then_some(doubt));
                    continue;
                }
                by_key.get_mut(key).expect("all keys are there").push(Installed {
                    txn: Some(i),
                    write: Some(last.write),
                    list: last.list.clone(),
                    acquired: last.acquired,
                    began: txn.end_began,
                    ended: if txn.outcome == Outcome::Committed { txn.end_ended } else { Stamp::MAX },
                });
            }
        }
        for (key, versions) in &mut by_key {
            versions.sort_by_key(|version| version.acquired);
            for (number, version) in versions.iter().enumerate() {
                fates.extend(version.write.map(|write| (write, (*key, Fate::Installed(number)))));
            }
        }
        Versions { by_key, fates, lists, doubts }
    }

    pub(crate) fn of(&self, key: Key) -> &[Installed] {
        &self.by_key[&key]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Key, &[Installed])> {
        self.by_key.iter().map(|(key, versions)| (*key, &versions[..]))
    }

    /// Whether one of unknown outcome, which does not count, may have written the record.
    pub(crate) fn is_doubtful(&self, key: Key) -> bool {
        self.doubts.get(&key).is_some_and(|doubts| !doubts.is_empty())
    }

    /// The number of a transaction's version of a record.
    pub(crate) fn number_of(&self, write: WriteId) -> Option<usize> {
        match self.fates.get(&write)?.1 {
            Fate::Installed(number) => Some(number),
            _ => None,
        }
    }

    /// Whether a record may be absent at some moment of `window`, and whether it may be there.
    pub(crate) fn presence(&self, key: Key, window: (Stamp, Stamp)) -> Presence {
        let mut presence = Presence::default();
        let versions = self.of(key);
        for (number, version) in versions.iter().enumerate() {
            let ended = versions.get(number + 1).map_or(Stamp::MAX, |next| next.ended);
            if version.began <= window.1 && ended >= window.0 {
                presence.add(version.list.is_some());
            }
        }
        let doubts = self.doubts.get(&key).into_iter().flatten();
        doubts.filter(|doubt| doubt.began <= window.1).for_each(|doubt| presence.add(doubt.is_there));
        presence
    }

    /// The moments of `window` at which the presence of a record may change.
    pub(crate) fn turns(&self, key: Key, window: (Stamp, Stamp)) -> impl Iterator<Item = Stamp> {
        let stamps = self.of(key).iter().flat_map(|version| [version.began, version.ended]);
        let both_sides = stamps.flat_map(|stamp| [stamp.saturating_sub(1), stamp, stamp.saturating_add(1)]);
        both_sides.filter(move |stamp| (window.0..=window.1).contains(stamp))
    }

    /// The versions that `read`, which is of a moment in `window`, can have seen.
    pub(crate) fn resolve(&self, read: &Read, window: (Stamp, Stamp)) -> Result<Resolved, Misfit> {
        let versions = self.of(read.key);
        let is_early = |number: usize| versions[number].began > window.1;
        let is_late = |number: usize| versions.get(number + 1).is_some_and(|next| next.ended < window.0);
        let wants = match &read.seen {
            Seen::Version(write, list) => {
                if self.lists.get(write) != Some(list) || self.fates[write].0 != read.key {
                    return Err(Misfit::Unknown);
                }
                let number = match self.fates[write].1 {
                    Fate::Installed(number) => number,
                    Fate::Overwritten(txn) => return Err(Misfit::Overwritten(txn)),
                    Fate::TakenBack(txn) => return Err(Misfit::TakenBack(txn)),
                };
                return match () {
                    () if is_early(number) => {
                        Err(Misfit::Early(versions[number].txn.expect("what was there before is not early")))
                    }
                    () if is_late(number) => Err(Misfit::Late),
                    () => Ok(Resolved { key: read.key, first: number, last: number }),
                };
            }
            Seen::Absent => false,
            Seen::Present => true,
            Seen::Garbage(_) => return Err(Misfit::Unknown),
        };
        let mut doubts = self.doubts.get(&read.key).into_iter().flatten();
        if doubts.any(|doubt| doubt.is_there == wants && doubt.began <= window.1) {
            return Err(Misfit::Doubtful);
        }
        let fits = |number: &usize| {
            versions[*number].list.is_some() == wants && !is_early(*number) && !is_late(*number)
        };
        let first = (0..versions.len()).find(fits).ok_or(Misfit::Late)?;
        let last = (0..versions.len()).rfind(fits).ok_or(Misfit::Late)?;
        Ok(Resolved { key: read.key, first, last })
    }
}
