//! Finds anomalies in a history (Adya, "Weak Consistency", MIT 1999; Kingsbury and Alvaro, "Elle", VLDB 2020).
//!
//! Each transaction is held to its own isolation:
//!
//! - Both: no G0, G1a, G1b or G1c, no record with two owners, no write of its own missed; each read is of a version
//!   that was committed and not yet overwritten at the moment of its read, which for a snapshot is that of its first
//!   operation; a write succeeds the version that was read under its lock.
//! - Snapshot: no lost update, no cycle with one anti-dependency of its own, no record read twice with different
//!   results. Cycles with more anti-dependencies are allowed (G2-item, write skew), and counted.
//!
//! A count is a read of a predicate: the records that were there by some moment of it are as many, of a snapshot at the
//! moment that its other reads and counts leave.
//!
//! Reads of transactions that rolled back count as well. A read of an absent record only shows that it is one of the
//! absences that were possible then; its dependencies are those that all of them have in common.

use std::collections::{BTreeMap, BTreeSet};

use lacuna_engine::Isolation;

use super::{
    anomalies::{Anomaly, Kind},
    effects::{Effects, Read},
    graph::{Edge, Graph},
    record::{History, Key, Seen, Stamp, WriteId},
    versions::{self, Installed, Misfit, Resolved, Versions},
};

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) anomalies: Vec<Anomaly>,
    /// Cycles that only G2-item explains.
    pub(crate) write_skews: usize,
}

/// A record whose values are lists: each is made from the one before, and locked or in a snapshot then.
pub(crate) fn is_list(key: Key) -> bool {
    key.number.is_multiple_of(2)
}

struct Checker<'a> {
    history: &'a History,
    effects: &'a [Effects],
    committed: &'a [bool],
    versions: &'a Versions,
    anomalies: Vec<Anomaly>,
}

pub(crate) fn check(history: &History) -> Report {
    let keys = versions::keys(history);
    let effects: Vec<Effects> = history.txns.iter().map(|txn| Effects::of(txn, &keys)).collect();
    let committed = versions::committed(history, &effects);
    let versions = Versions::new(history, &effects, &committed, &keys);
    let mut checker = Checker {
        history,
        effects: &effects,
        committed: &committed,
        versions: &versions,
        anomalies: Vec::new(),
    };
    checker.check_owners();
    checker.check_lists();
    let mut graph = Graph::new(history.txns.len());
    for (_, versions) in versions.all() {
        for (older, newer) in versions.iter().zip(&versions[1..]) {
            if let (Some(from), Some(to)) = (older.txn, newer.txn) {
                graph.add(from, to, Edge::Write);
            }
        }
    }
    for txn in 0..history.txns.len() {
        let reads = checker.check_txn(txn);
        checker.add_edges(&mut graph, txn, &reads);
    }
    let write_skews = checker.check_circles(&graph);
    Report { anomalies: checker.anomalies, write_skews }
}

impl Checker<'_> {
    fn report(&mut self, kind: Kind, txns: impl IntoIterator<Item = usize>, detail: String) {
        let txns = txns.into_iter().map(|txn| self.history.txns[txn].id).collect();
        self.anomalies.push(Anomaly { kind, txns, detail });
    }

    fn is_snapshot(&self, txn: usize) -> bool {
        self.history.txns[txn].isolation == Isolation::Snapshot
    }

    /// Spans in which a record is a transaction's own do not overlap.
    fn check_owners(&mut self) {
        let mut by_key: BTreeMap<Key, Vec<(Stamp, Stamp, usize)>> = BTreeMap::new();
        for (txn, effects) in self.effects.iter().enumerate() {
            for hold in &effects.holds {
                by_key.entry(hold.key).or_default().push((hold.from, hold.to, txn));
            }
        }
        for (key, mut holds) in by_key {
            holds.sort_unstable();
            for (older, newer) in holds.iter().zip(&holds[1..]) {
                if newer.0 < older.1 && newer.2 != older.2 {
                    let detail =
                        format!("{key:?} was locked from {} to {} and from {}", older.0, older.1, newer.0);
                    self.report(Kind::TwoOwners, [older.2, newer.2], detail);
                }
            }
        }
    }

    /// Each version of a list has the elements of the one before, and one more.
    fn check_lists(&mut self) {
        for (key, versions) in
            self.versions.all().filter(|(key, _)| is_list(*key) && !self.versions.is_doubtful(*key))
        {
            for (older, newer) in versions.iter().zip(&versions[1..]) {
                let Some(list) = &newer.list else { continue };
                let before = older.list.as_deref().unwrap_or_default();
                // A transaction may have appended more than once, or started anew after a deletion of its own.
                let own =
                    list.iter().rev().take_while(|w| newer.write.is_some_and(|n| n.txn() == w.txn())).count();
                let others = &list[..list.len() - own];
                if others != before && !(others.is_empty() && self.restarted(key, newer)) {
                    let detail = format!("{key:?}: the list {list:?} follows on {before:?}");
                    self.report(Kind::ListOrder, older.txn.into_iter().chain(newer.txn), detail);
                }
            }
        }
    }

    /// Whether the transaction of a version deleted the record first.
    fn restarted(&self, key: Key, version: &Installed) -> bool {
        use super::record::What;
        let ops = version.txn.map_or(&[][..], |txn| &self.history.txns[txn].ops);
        ops.iter().any(|op| matches!(op.what, What::Delete { key: deleted, .. } if deleted == key))
    }

    /// Checks what a transaction read and wrote by itself, and returns the versions that it read.
    fn check_txn(&mut self, txn: usize) -> Vec<Resolved> {
        let effects = &self.effects[txn];
        for detail in &effects.internal {
            self.report(Kind::Internal, [txn], detail.clone());
        }
        for detail in &effects.bad_scans {
            self.report(Kind::BadScan, [txn], detail.clone());
        }
        let view = effects.view.filter(|_| self.is_snapshot(txn));
        let resolved: Vec<Option<Resolved>> = effects
            .reads
            .iter()
            .map(|read| {
                let window = view.unwrap_or((read.began, read.ended));
                self.versions
                    .resolve(read, window)
                    .map_or_else(|misfit| self.report_misfit(txn, read, misfit), Some)
            })
            .collect();
        let moment = view.map(|view| self.check_snapshot(txn, view, &resolved));
        self.check_counts(txn, moment);
        self.check_updates(txn, view, &resolved);
        resolved.into_iter().flatten().collect()
    }

    /// Still returns the version, if there is one.
    fn report_misfit(&mut self, txn: usize, read: &Read, misfit: Misfit) -> Option<Resolved> {
        let (kind, other) = match misfit {
            Misfit::Unknown => (Kind::Garbage, None),
            Misfit::Overwritten(other) => (Kind::G1b, Some(other)),
            Misfit::TakenBack(other) => (Kind::G1a, Some(other)),
            Misfit::Early(other) => (Kind::Uncommitted, Some(other)),
            Misfit::Late => (Kind::Stale, None),
            Misfit::Doubtful => return None,
        };
        let versions: Vec<_> =
            self.versions.of(read.key).iter().map(|v| (v.write, v.began, v.ended)).collect();
        let detail = format!("{read:?} of {versions:?}");
        self.report(kind, [txn].into_iter().chain(other), detail);
        match (kind, &read.seen) {
            (Kind::Uncommitted | Kind::Stale, Seen::Version(write, _)) => {
                let number = self.versions.number_of(*write)?;
                Some(Resolved { key: read.key, first: number, last: number })
            }
            _ => None,
        }
    }

    /// All reads of a snapshot are of one moment. Between which stamps that is.
    fn check_snapshot(
        &mut self,
        txn: usize,
        view: (Stamp, Stamp),
        resolved: &[Option<Resolved>],
    ) -> (Stamp, Stamp) {
        let mut moment = view;
        let mut seen: BTreeMap<Key, WriteId> = BTreeMap::new();
        for (read, resolved) in self.effects[txn].reads.iter().zip(resolved) {
            if let Seen::Version(write, _) = read.seen
                && let Some(before) = seen.insert(read.key, write)
                && before != write
            {
                let detail = format!("{:?} was {before:?}, then {write:?}", read.key);
                self.report(Kind::NonRepeatable, [txn], detail);
            }
            let Some(resolved) = resolved else { continue };
            let versions = self.versions.of(resolved.key);
            moment.0 = moment.0.max(versions[resolved.first].began);
            let next = versions[resolved.last + 1..].iter().map(|version| version.ended).min();
            moment.1 = moment.1.min(next.unwrap_or(Stamp::MAX));
        }
        if moment.0 > moment.1 {
            let detail = format!("not before {}, not after {}, in {view:?}", moment.0, moment.1);
            self.report(Kind::Fractured, [txn], detail);
        }
        moment
    }

    /// Whether so many of `keys` can have been there in `window`; each for itself, as at read committed.
    fn may_count(&self, keys: &[Key], records: u64, window: (Stamp, Stamp)) -> bool {
        let presences = keys.iter().map(|key| self.versions.presence(*key, window));
        let (mut least, mut most) = (0, 0);
        for presence in presences {
            least += u64::from(!presence.may_be_absent);
            most += u64::from(presence.may_be_there);
        }
        (least..=most).contains(&records)
    }

    /// Counts of a snapshot are of one moment in `moment`, others of their own time.
    fn check_counts(&mut self, txn: usize, moment: Option<(Stamp, Stamp)>) {
        let counts = &self.effects[txn].counts;
        let Some(window) = moment else {
            let bad = counts.iter().filter(|c| !self.may_count(&c.keys, c.records, (c.began, c.ended)));
            let details: Vec<String> =
                bad.map(|c| format!("{} from {} to {}", c.records, c.began, c.ended)).collect();
            details.into_iter().for_each(|detail| self.report(Kind::Miscount, [txn], detail));
            return;
        };
        if window.0 > window.1 {
            return; // It is reported as fractured.
        }
        // Only of few keys it is open which of both they are.
        let mut moments = BTreeSet::from([window.0, window.1]);
        let mut open = Vec::new();
        for count in counts {
            let mut left = (Vec::new(), count.records as i64);
            for key in &count.keys {
                let presence = self.versions.presence(*key, window);
                if presence.may_be_there && presence.may_be_absent {
                    moments.extend(self.versions.turns(*key, window));
                    left.0.push(*key);
                } else {
                    left.1 -= i64::from(presence.may_be_there);
                }
            }
            open.push(left);
        }
        let fits = |at: Stamp| {
            open.iter().all(|(keys, records)| {
                u64::try_from(*records).is_ok_and(|records| self.may_count(keys, records, (at, at)))
            })
        };
        if !moments.into_iter().any(fits) {
            let all: Vec<_> = counts.iter().map(|c| (c.records, c.keys.len())).collect();
            self.report(Kind::Miscount, [txn], format!("{all:?} fit no moment in {window:?}"));
        }
    }

    /// A committed write succeeds the version read under its lock, and in a snapshot the version that it sees.
    fn check_updates(&mut self, txn: usize, view: Option<(Stamp, Stamp)>, resolved: &[Option<Resolved>]) {
        if !self.committed[txn] {
            return;
        }
        for (key, last) in &self.effects[txn].finals {
            let number = self.versions.number_of(last.write).expect("it is committed");
            let before = &self.versions.of(*key)[number - 1];
            let locked = last.locked_read.and_then(|read| resolved[read]);
            let in_snapshot = resolved.iter().flatten().filter(|read| view.is_some() && read.key == *key);
            for read in locked.iter().chain(in_snapshot) {
                if !(read.first..=read.last).contains(&(number - 1)) {
                    let detail =
                        format!("{key:?}: version {number} was made from {} to {}", read.first, read.last);
                    self.report(Kind::LostUpdate, [txn].into_iter().chain(before.txn), detail);
                }
            }
            if view.is_some_and(|(_, ended)| before.began > ended) {
                let detail =
                    format!("{key:?}: {:?} follows on {:?} of after {view:?}", last.write, before.write);
                self.report(Kind::LostUpdate, [txn].into_iter().chain(before.txn), detail);
            }
        }
    }

    fn add_edges(&self, graph: &mut Graph, txn: usize, reads: &[Resolved]) {
        for read in reads {
            let versions = self.versions.of(read.key);
            if let Some(writer) = versions[read.first].txn {
                graph.add(writer, txn, Edge::Read);
            }
            // At read committed a record may change that is not read again.
            let next = versions.get(read.last + 1).and_then(|version| version.txn);
            if let Some(next) = next.filter(|_| self.is_snapshot(txn)) {
                graph.add(txn, next, Edge::Anti);
            }
        }
    }

    /// Finds cycles of dependencies. Returns the number of allowed ones.
    fn check_circles(&mut self, graph: &Graph) -> usize {
        for circle in graph.circles(|edge| edge == Edge::Write) {
            self.report(Kind::G0, circle.iter().copied(), format!("{} transactions", circle.len()));
        }
        for circle in graph.circles(|edge| edge != Edge::Anti) {
            self.report(Kind::G1c, circle.iter().copied(), format!("{} transactions", circle.len()));
        }
        for txn in 0..self.history.txns.len() {
            let way = graph.antis(txn).find_map(|next| graph.way(next, txn, |edge| edge != Edge::Anti));
            if let Some(way) = way {
                let ids: Vec<u64> = way.iter().map(|at| self.history.txns[*at].id).collect();
                self.report(
                    Kind::GSingle,
                    way,
                    format!("it read what {ids:?} overwrote, and sees the rest of it"),
                );
            }
        }
        graph.circles(|_| true).len()
    }
}
