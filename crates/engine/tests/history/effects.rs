//! The effects of one transaction, by its own record: its writes that count, the versions of others that it saw, and
//! the time spans in which it owned records.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::record::{self, Key, Lock, Op, Scan, Seen, Stamp, TxnRecord, What, WriteId};

/// A transaction's last write of a record.
#[derive(Clone, Debug)]
pub(crate) struct Final {
    pub(crate) write: WriteId,
    /// Of a deletion none.
    pub(crate) list: Option<Vec<WriteId>>,
    /// When the record was the transaction's own at the latest.
    pub(crate) acquired: Stamp,
    /// The read that was made under the lock, by its number in `reads`.
    pub(crate) locked_read: Option<usize>,
}

/// A record was the transaction's own at least from `from` to `to`.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) key: Key,
    pub(crate) from: Stamp,
    pub(crate) to: Stamp,
}

/// The versions read of others' writes.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) key: Key,
    pub(crate) seen: Seen,
    pub(crate) began: Stamp,
    pub(crate) ended: Stamp,
}

/// How many of others' records were there.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    /// All keys of the range but the transaction's own.
    pub(crate) keys: Vec<Key>,
    pub(crate) records: u64,
    pub(crate) began: Stamp,
    pub(crate) ended: Stamp,
}

#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) finals: BTreeMap<Key, Final>,
    /// Writes that the transaction itself replaced.
    pub(crate) overwritten: Vec<WriteId>,
    /// Writes that it rolled back.
    pub(crate) undone: Vec<WriteId>,
    pub(crate) holds: Vec<Hold>,
    pub(crate) reads: Vec<Read>,
    pub(crate) counts: Vec<Count>,
    /// Reads of its own writes that it should not have seen.
    pub(crate) internal: Vec<String>,
    pub(crate) bad_scans: Vec<String>,
    /// A snapshot is of a moment between these.
    pub(crate) view: Option<(Stamp, Stamp)>,
}

struct Held {
    from: Stamp,
    is_explicit: bool,
    read: Option<usize>,
}

/// A write, and its elements if it is no deletion.
type Change = (WriteId, Option<Vec<WriteId>>);

/// Goes through the operations.
struct Replay<'a> {
    keys: &'a BTreeSet<Key>,
    journal: Vec<(Key, Change)>,
    /// Length of the journal at each savepoint, by the number of its operation.
    savepoints: HashMap<usize, usize>,
    held: BTreeMap<Key, Held>,
    effects: Effects,
}

impl Effects {
    /// `keys` are all that occur in the history.
    pub(crate) fn of(txn: &TxnRecord, keys: &BTreeSet<Key>) -> Effects {
        let mut replay = Replay {
            keys,
            journal: Vec::new(),
            savepoints: HashMap::new(),
            held: BTreeMap::new(),
            effects: Effects { view: view(&txn.ops), ..Effects::default() },
        };
        for (number, op) in txn.ops.iter().enumerate() {
            replay.play(number, op);
        }
        replay.end(txn.end_began)
    }
}

/// The snapshot is taken by the first operation that reads or writes.
fn view(ops: &[Op]) -> Option<(Stamp, Stamp)> {
    let reaches_store = |op: &&Op| !matches!(op.what, What::Savepoint | What::RollbackTo { .. });
    let took_it = |op: &&Op| reaches_store(op) && !matches!(op.what, What::Failed(_));
    let first = ops.iter().find(reaches_store)?;
    Some((first.began, ops.iter().find(took_it)?.ended))
}

impl Replay<'_> {
    fn play(&mut self, number: usize, op: &Op) {
        match &op.what {
            What::Read { key, seen, lock } => {
                let read = self.see(*key, seen.clone(), op);
                if *lock != Lock::No {
                    let held = self.hold(*key, op.ended);
                    held.is_explicit |= *lock == Lock::Explicit;
                    held.read = held.read.or(read);
                }
            }
            What::Scan(scan) => self.scan(scan, op),
            What::Count(count) => self.count(count, op),
            What::Write { key, write, list } => self.write(*key, (*write, Some(list.clone())), op),
            What::Delete { key, write } => self.write(*key, (*write, None), op),
            What::Savepoint => drop(self.savepoints.insert(number, self.journal.len())),
            What::RollbackTo { savepoint } => self.roll_back(self.savepoints[savepoint], op.began),
            What::Failed(_) => {}
        }
    }

    fn hold(&mut self, key: Key, from: Stamp) -> &mut Held {
        self.held.entry(key).or_insert(Held { from, is_explicit: false, read: None })
    }

    fn write(&mut self, key: Key, change: Change, op: &Op) {
        self.hold(key, op.ended);
        self.journal.push((key, change));
    }

    fn own(&self, key: Key) -> Option<&Change> {
        self.journal.iter().rev().find(|(of, _)| *of == key).map(|(_, change)| change)
    }

    /// Notes what was seen of a record. If it was another's, the number of the read.
    fn see(&mut self, key: Key, seen: Seen, op: &Op) -> Option<usize> {
        let Some((write, list)) = self.own(key) else {
            self.effects.reads.push(Read { key, seen, began: op.began, ended: op.ended });
            return Some(self.effects.reads.len() - 1);
        };
        let is_own = match (list, &seen) {
            (None, Seen::Absent) | (Some(_), Seen::Present) => true,
            (Some(list), Seen::Version(found, elements)) => found == write && elements == list,
            _ => false,
        };
        if !is_own {
            let detail =
                format!("{key:?} is {seen:?} to who made it {write:?} (elements {list:?}), at {}", op.began);
            self.effects.internal.push(detail);
        }
        None
    }

    fn scan(&mut self, scan: &Scan, op: &Op) {
        let numbers: Vec<u32> = scan.found.iter().map(|(number, _)| *number).collect();
        let is_sorted = numbers.is_sorted_by(|a, b| if scan.is_backward { a > b } else { a < b });
        if !is_sorted || numbers.iter().any(|number| !(scan.lower..=scan.upper).contains(number)) {
            self.effects.bad_scans.push(format!("{scan:?}"));
            return;
        }
        if scan.lower > scan.upper {
            return;
        }
        let (mut lower, mut upper) = (scan.lower, scan.upper);
        if let (true, Some(last)) = (scan.is_broken_off, numbers.last()) {
            if scan.is_backward { lower = *last } else { upper = *last }
        }
        let key = |number| Key { table: scan.table, number };
        let found: BTreeMap<u32, &Seen> = scan.found.iter().map(|(number, seen)| (*number, seen)).collect();
        let known = self.keys.range(key(lower)..=key(upper)).map(|key| key.number);
        let all: BTreeSet<u32> = known.chain(numbers.iter().copied()).collect();
        for number in all {
            let seen = found.get(&number).map_or(Seen::Absent, |seen| (*seen).clone());
            self.see(key(number), seen, op);
        }
    }

    fn count(&mut self, count: &record::Count, op: &Op) {
        let key = |number| Key { table: count.table, number };
        let all = self.keys.range(key(count.lower)..=key(count.upper));
        let (own, others): (Vec<Key>, Vec<Key>) = all.partition(|key| self.own(**key).is_some());
        let is_there = |key: &&Key| self.own(**key).is_some_and(|(_, list)| list.is_some());
        let own_records = own.iter().filter(is_there).count() as u64;
        match count.records.checked_sub(own_records) {
            Some(records) => {
                let (began, ended) = (op.began, op.ended);
                self.effects.counts.push(Count { keys: others, records, began, ended });
            }
            None => self.effects.internal.push(format!("{count:?} of {own_records} of its own")),
        }
    }

    fn roll_back(&mut self, keep: usize, began: Stamp) {
        let undone = self.journal.split_off(keep);
        for (key, (write, _)) in undone {
            self.effects.undone.push(write);
            let is_own = self.own(key).is_some() || self.held.get(&key).is_none_or(|held| held.is_explicit);
            if !is_own && let Some(held) = self.held.remove(&key) {
                self.effects.holds.push(Hold { key, from: held.from, to: began });
            }
        }
    }

    fn end(mut self, end_began: Stamp) -> Effects {
        for (key, (write, list)) in self.journal {
            let held = &self.held[&key];
            let last = Final { write, list, acquired: held.from, locked_read: held.read };
            if let Some(before) = self.effects.finals.insert(key, last) {
                self.effects.overwritten.push(before.write);
            }
        }
        let holds = self.held.into_iter().map(|(key, held)| Hold { key, from: held.from, to: end_began });
        self.effects.holds.extend(holds);
        self.effects
    }
}
