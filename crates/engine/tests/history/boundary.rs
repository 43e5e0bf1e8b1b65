//! The state that a reopened store must have: every durable commit, every other one whole or not at all, and none
//! without those before it.
//!
//! Every transaction that writes also inserts a record of its own, its *mark*, so that afterwards it is known of each
//! whether it is there.

use std::collections::{BTreeMap, BTreeSet};

use lacuna_engine::{Durability, Isolation};

use super::{
    anomalies::{Anomaly, Kind},
    effects::Effects,
    record::{History, Key, Outcome, Seen, Stamp, State, TxnRecord, WriteId},
    versions,
};

/// The content of a store that was just opened.
pub(crate) struct Found {
    pub(crate) state: State,
    pub(crate) tables: BTreeSet<u32>,
    /// The table of the marks.
    pub(crate) marks: u32,
}

impl Found {
    fn has_mark(&self, txn: u64) -> bool {
        self.state.contains_key(&Key { table: self.marks, number: txn as u32 })
    }
}

/// Whether the commit promised durability.
fn is_durable(history: &History, txn: &TxnRecord, durability: Durability) -> bool {
    txn.outcome == Outcome::Committed
        && (durability == Durability::Sync || txn.end_ended < history.durable_until)
}

/// Compares the records found with the history before it, and notes there which transactions survived.
pub(crate) fn check(history: &mut History, found: &Found, durability: Durability) -> Vec<Anomaly> {
    let keys = versions::keys(history);
    let effects: Vec<Effects> = history.txns.iter().map(|txn| Effects::of(txn, &keys)).collect();
    let writes = |i: usize| !effects[i].finals.is_empty();
    let survives: Vec<bool> = (history.txns.iter().enumerate())
        .map(|(i, txn)| match txn.outcome {
            Outcome::Aborted => false,
            _ if !writes(i) || is_durable(history, txn, durability) => true,
            _ => found.has_mark(txn.id),
        })
        .collect();
    let mut anomalies = compare(history, found, &effects, &survives);
    for (i, txn) in history.txns.iter().enumerate().filter(|(i, _)| survives[*i] && writes(*i)) {
        let read = effects[i].reads.iter().filter_map(|read| match read.seen {
            Seen::Version(write, _) => Some(write.txn()),
            _ => None,
        });
        let read: BTreeSet<u64> = read.collect();
        for (j, other) in history.txns.iter().enumerate().filter(|(j, _)| !survives[*j] && writes(*j)) {
            let is_before = other.outcome == Outcome::Committed && other.end_ended < txn.end_began;
            if is_before || (other.outcome != Outcome::Aborted && read.contains(&other.id)) {
                let detail = format!("{} is there, {} is not", txn.id, history.txns[j].id);
                anomalies.push(Anomaly { kind: Kind::LostBefore, txns: vec![txn.id, other.id], detail });
            }
        }
    }
    let survived = history.txns.iter().zip(&survives).filter(|(_, survives)| **survives);
    history.survived = survived.map(|(txn, _)| txn.id).collect();
    anomalies
}

/// When a record was last acquired, what it then became, and by whom.
type Expected = (Stamp, Option<(WriteId, Vec<WriteId>)>, u64);

/// Every record is as the last surviving transaction left it.
fn compare(history: &History, found: &Found, effects: &[Effects], survives: &[bool]) -> Vec<Anomaly> {
    let mut expected: BTreeMap<Key, Expected> = BTreeMap::new();
    expected.extend(history.initial.iter().map(|(key, value)| (*key, (0, Some(value.clone()), 0))));
    for ((txn, effects), _) in
        history.txns.iter().zip(effects).zip(survives).filter(|(_, survives)| **survives)
    {
        for (key, last) in &effects.finals {
            let value = last.list.clone().map(|list| (last.write, list));
            match expected.get(key) {
                Some((acquired, ..)) if *acquired > last.acquired => {}
                _ => drop(expected.insert(*key, (last.acquired, value, txn.id))),
            }
        }
    }
    let is_gone = |key: &Key| !found.tables.contains(&key.table);
    let keys: BTreeSet<Key> = expected.keys().chain(found.state.keys()).copied().collect();
    let mut anomalies = Vec::new();
    for key in keys {
        let want = expected.get(&key).and_then(|(_, value, _)| value.as_ref());
        if is_gone(&key) {
            if !history.dropped.contains(&key.table) {
                let detail = format!("of {key:?}");
                anomalies.push(Anomaly { kind: Kind::LostTable, txns: Vec::new(), detail });
            }
            continue;
        }
        let have = found.state.get(&key);
        if have == want {
            continue;
        }
        let writer = expected.get(&key).map_or(0, |(.., txn)| *txn);
        let other = have.map(|(write, _)| write.txn());
        let is_foreign =
            |txn: u64| history.txns.iter().zip(survives).any(|(t, survives)| t.id == txn && !survives);
        let kind = if other.is_some_and(is_foreign) { Kind::PartOfTransaction } else { Kind::LostCommit };
        let detail = format!("{key:?} is {have:?}, not {want:?} of transaction {writer}");
        anomalies.push(Anomaly { kind, txns: [writer].into_iter().chain(other).collect(), detail });
    }
    anomalies
}

/// For reads outside of any history, which must be the same at both isolations.
pub(crate) const LEVELS: [Isolation; 2] = [Isolation::Snapshot, Isolation::ReadCommitted];
