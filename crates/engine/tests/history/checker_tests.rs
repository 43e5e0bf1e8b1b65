//! The checker itself: histories made by hand with each kind of anomaly, sound ones, and sound ones of the engine
//! that are falsified at random.

use std::{collections::BTreeSet, sync::Arc};

use lacuna_device::MemVfs;
use lacuna_engine::{
    Durability,
    Isolation::{self, ReadCommitted, Snapshot},
};
use lacuna_sim::{SeededRng, for_each_seed};

use super::{
    Memory,
    anomalies::{Kind, Shown},
    boundary::{self, Found},
    checker,
    plan::Plan,
    record::{Count, History, Key, Lock, Op, Outcome, Scan, Seen, TxnRecord, What, WriteId},
    session::{self, Session},
    watch,
};

const X: Key = Key { table: 16, number: 1 };
const Y: Key = Key { table: 16, number: 3 };
/// Even numbers are lists.
const LIST: Key = Key { table: 16, number: 2 };
const MARKS: u32 = 18;

/// A history that is written down operation by operation, one at a time.
#[derive(Default)]
struct Story {
    history: History,
    now: u64,
}

impl Story {
    /// X and Y were written before.
    fn new() -> Story {
        let mut story = Story::default();
        for (key, index) in [(X, 1), (Y, 2)] {
            let write = WriteId::new(0, index);
            story.history.initial.insert(key, (write, vec![write]));
        }
        story
    }

    fn begin(&mut self, isolation: Isolation) -> usize {
        let id = self.history.txns.len() as u64 + 1;
        let outcome = Outcome::Aborted;
        self.history.txns.push(TxnRecord {
            id,
            isolation,
            ops: Vec::new(),
            outcome,
            end_began: 0,
            end_ended: 0,
        });
        id as usize - 1
    }

    fn op(&mut self, txn: usize, what: What) {
        self.now += 2;
        self.history.txns[txn].ops.push(Op { began: self.now, ended: self.now + 1, what });
    }

    fn write(&mut self, txn: usize, key: Key) -> WriteId {
        let write = WriteId::new(txn as u64 + 1, self.history.txns[txn].ops.len() as u16 + 1);
        self.op(txn, What::Write { key, write, list: vec![write] });
        write
    }

    fn append(&mut self, txn: usize, key: Key, to: &[WriteId]) -> Vec<WriteId> {
        let write = WriteId::new(txn as u64 + 1, self.history.txns[txn].ops.len() as u16 + 1);
        let list = [to, &[write]].concat();
        self.op(txn, What::Write { key, write, list: list.clone() });
        list
    }

    fn delete(&mut self, txn: usize, key: Key) {
        self.op(txn, What::Read { key, seen: Seen::Present, lock: Lock::Write });
        self.op(txn, What::Delete { key, write: WriteId::new(txn as u64 + 1, 500) });
    }

    fn read(&mut self, txn: usize, key: Key, write: WriteId) {
        self.see(txn, key, Seen::Version(write, vec![write]), Lock::No);
    }

    fn see(&mut self, txn: usize, key: Key, seen: Seen, lock: Lock) {
        self.op(txn, What::Read { key, seen, lock });
    }

    fn count(&mut self, txn: usize, records: u64) {
        self.op(txn, What::Count(Count { table: 16, lower: 0, upper: 9, records }));
    }

    fn end(&mut self, txn: usize, outcome: Outcome) {
        self.now += 2;
        let record = &mut self.history.txns[txn];
        (record.outcome, record.end_began, record.end_ended) = (outcome, self.now, self.now + 1);
    }

    fn commit(&mut self, txn: usize) {
        self.end(txn, Outcome::Committed);
    }

    fn abort(&mut self, txn: usize) {
        self.end(txn, Outcome::Aborted);
    }

    fn kinds(&self) -> BTreeSet<Kind> {
        checker::check(&self.history).anomalies.iter().map(|anomaly| anomaly.kind).collect()
    }
}

const X0: WriteId = WriteId(1);
const Y0: WriteId = WriteId(2);

/// Writes down a history with an anomaly.
type Tale = fn(&mut Story, Isolation);

/// Two transactions write both records, in different orders.
fn g0(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    story.write(one, X);
    story.write(two, X);
    story.write(two, Y);
    story.write(one, Y);
    story.commit(one);
    story.commit(two);
}

fn g1a(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    let write = story.write(one, X);
    story.read(two, X, write);
    story.commit(two);
    story.abort(one);
}

/// Reads a write that was undone by going back to a savepoint.
fn g1a_of_a_savepoint(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    story.op(one, What::Savepoint);
    let write = story.write(one, X);
    story.op(one, What::RollbackTo { savepoint: 0 });
    story.commit(one);
    story.read(two, X, write);
    story.commit(two);
}

fn g1b(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    let write = story.write(one, X);
    story.read(two, X, write);
    story.write(one, X);
    story.commit(one);
    story.commit(two);
}

/// Each reads what the other one wrote.
fn g1c(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    let writes = [story.write(one, X), story.write(two, Y)];
    story.read(one, Y, writes[1]);
    story.read(two, X, writes[0]);
    story.commit(one);
    story.commit(two);
}

fn two_owners(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    story.see(one, X, Seen::Version(X0, vec![X0]), Lock::Explicit);
    story.see(two, X, Seen::Version(X0, vec![X0]), Lock::Explicit);
    story.abort(two);
    story.commit(one);
}

/// The record read, locked or not, was changed before it was replaced.
fn lost_update(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    let lock = if isolation == Snapshot { Lock::No } else { Lock::Explicit };
    story.see(one, X, Seen::Version(X0, vec![X0]), lock);
    story.write(two, X);
    story.commit(two);
    story.write(one, X);
    story.commit(one);
}

/// A snapshot writes blindly over what it does not see.
fn blind_update(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    story.read(one, Y, Y0);
    story.write(two, X);
    story.commit(two);
    story.write(one, X);
    story.commit(one);
}

/// Sees one write of a transaction and not the other one. Not even the stamps give an order: all of it overlaps.
fn g_single(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    story.write(two, X);
    let write = story.write(two, Y);
    story.commit(two);
    story.read(one, X, X0);
    story.read(one, Y, write);
    story.commit(one);
    let until = story.now + 10;
    story.history.txns[1].end_ended = until;
    story.history.txns[0].ops[0].began = 0;
}

fn internal(story: &mut Story, isolation: Isolation) {
    let one = story.begin(isolation);
    story.write(one, X);
    story.read(one, X, X0);
    story.commit(one);
}

fn deleted_and_still_there(story: &mut Story, isolation: Isolation) {
    let one = story.begin(isolation);
    story.delete(one, X);
    let (found, is_broken_off) = (vec![(1, Seen::Version(X0, vec![X0]))], false);
    story
        .op(one, What::Scan(Scan { table: 16, lower: 0, upper: 2, is_backward: true, found, is_broken_off }));
    story.commit(one);
}

fn non_repeatable(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    story.read(one, X, X0);
    let write = story.write(two, X);
    story.commit(two);
    story.read(one, X, write);
    story.commit(one);
}

/// A record is missing from a scan that must have seen it inserted, and another one's deletion is seen.
fn fractured(story: &mut Story, isolation: Isolation) {
    let [one, two, three] = [Snapshot; 3].map(|_| story.begin(isolation));
    story.read(one, Y, Y0);
    story.op(two, What::Read { key: LIST, seen: Seen::Absent, lock: Lock::Write });
    story.append(two, LIST, &[]);
    story.commit(two);
    story.delete(three, X);
    story.commit(three);
    let (found, is_broken_off) = (vec![(3, Seen::Version(Y0, vec![Y0]))], false);
    story.op(
        one,
        What::Scan(Scan { table: 16, lower: 0, upper: 9, is_backward: false, found, is_broken_off }),
    );
    story.commit(one);
    story.history.txns[0].ops[0].ended = story.now;
}

fn uncommitted(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    let write = story.write(one, X);
    story.read(two, X, write);
    story.commit(two);
    story.commit(one);
}

fn stale(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    story.write(one, X);
    story.commit(one);
    story.read(two, X, X0);
    story.commit(two);
}

fn vanished(story: &mut Story, isolation: Isolation) {
    let one = story.begin(isolation);
    story.see(one, X, Seen::Absent, Lock::No);
    story.commit(one);
}

fn garbage(story: &mut Story, isolation: Isolation) {
    let one = story.begin(isolation);
    story.read(one, X, Y0);
    story.see(one, Y, Seen::Garbage("?".into()), Lock::No);
    story.commit(one);
}

fn bad_scan(story: &mut Story, isolation: Isolation) {
    let one = story.begin(isolation);
    let found = vec![(3, Seen::Version(Y0, vec![Y0])), (1, Seen::Version(X0, vec![X0]))];
    let is_broken_off = false;
    story.op(
        one,
        What::Scan(Scan { table: 16, lower: 0, upper: 9, is_backward: false, found, is_broken_off }),
    );
    story.commit(one);
}

fn list_order(story: &mut Story, isolation: Isolation) {
    let mut list = Vec::new();
    for from in [0, 1, 0] {
        let txn = story.begin(isolation);
        list = story.append(txn, LIST, &list[from.min(list.len())..]);
        story.commit(txn);
    }
}

/// Counts a record whose insertion was over before, and one of its own, as none.
fn miscount(story: &mut Story, isolation: Isolation) {
    let [one, two] = [story.begin(isolation), story.begin(isolation)];
    story.delete(one, X);
    story.commit(one);
    story.append(two, LIST, &[]);
    story.count(two, 1);
    story.commit(two);
}

/// Two counts of which each fits a moment of the snapshot, but not the same one.
fn counts_of_two_moments(story: &mut Story, isolation: Isolation) {
    let [one, two, three] = [isolation; 3].map(|isolation| story.begin(isolation));
    story.count(one, 2);
    story.append(two, LIST, &[]);
    story.commit(two);
    story.write(three, Key { table: 16, number: 5 });
    story.commit(three);
    story.count(one, 4);
    story.commit(one);
    story.history.txns[0].ops[0].ended = story.now;
}

/// Each kind by itself: the name of a history, the function that builds it, and the anomalies that must be found under
/// both isolations.
const TALES: &[(Tale, &[Kind], &[Kind])] = &[
    (g0, &[Kind::G0, Kind::TwoOwners], &[Kind::G0, Kind::TwoOwners]),
    (g1a, &[Kind::G1a], &[Kind::G1a]),
    (g1a_of_a_savepoint, &[Kind::G1a], &[Kind::G1a]),
    (g1b, &[Kind::G1b], &[Kind::G1b]),
    (g1c, &[Kind::G1c, Kind::Uncommitted], &[Kind::G1c, Kind::Uncommitted]),
    (two_owners, &[Kind::TwoOwners], &[Kind::TwoOwners]),
    (lost_update, &[Kind::LostUpdate, Kind::GSingle], &[Kind::TwoOwners]),
    (blind_update, &[Kind::LostUpdate], &[]),
    (g_single, &[Kind::GSingle], &[]),
    (internal, &[Kind::Internal], &[Kind::Internal]),
    (deleted_and_still_there, &[Kind::Internal], &[Kind::Internal]),
    (non_repeatable, &[Kind::NonRepeatable, Kind::Uncommitted], &[]),
    (fractured, &[Kind::Fractured], &[Kind::Stale]),
    (uncommitted, &[Kind::Uncommitted], &[Kind::Uncommitted]),
    (stale, &[Kind::Stale], &[Kind::Stale]),
    (vanished, &[Kind::Stale], &[Kind::Stale]),
    (garbage, &[Kind::Garbage], &[Kind::Garbage]),
    (bad_scan, &[Kind::BadScan], &[Kind::BadScan]),
    (miscount, &[Kind::Miscount], &[Kind::Miscount]),
    (counts_of_two_moments, &[Kind::Miscount], &[]),
    (list_order, &[Kind::ListOrder], &[Kind::ListOrder]),
];

#[test]
fn each_anomaly_is_found_where_it_is_forbidden() {
    for (number, (tale, in_snapshot, in_read_committed)) in TALES.iter().enumerate() {
        for (isolation, wants) in [(Snapshot, in_snapshot), (ReadCommitted, in_read_committed)] {
            let mut story = Story::new();
            tale(&mut story, isolation);
            let found = story.kinds();
            assert!(wants.iter().all(|kind| found.contains(kind)), "tale {number}, {isolation:?}: {found:?}");
            assert_eq!(wants.is_empty(), found.is_empty(), "tale {number}, {isolation:?}: {found:?}");
        }
    }
}

/// Two snapshots each read what the other one writes: that is allowed, and counted.
#[test]
fn write_skew_is_no_anomaly() {
    let mut story = Story::new();
    let [one, two] = [story.begin(Snapshot), story.begin(Snapshot)];
    story.read(one, X, X0);
    story.read(two, Y, Y0);
    story.write(one, Y);
    story.write(two, X);
    story.commit(one);
    story.commit(two);
    let report = checker::check(&story.history);
    assert!(report.anomalies.is_empty() && report.write_skews == 1);
}

/// Histories that read committed allows, and correct uses of savepoints, deletions, lists and locks.
#[test]
fn sound_histories_are_sound() {
    let mut story = Story::new();
    let [one, two] = [story.begin(ReadCommitted), story.begin(Snapshot)];
    story.read(one, X, X0);
    story.op(two, What::Savepoint);
    story.delete(two, X);
    story.op(two, What::RollbackTo { savepoint: 0 });
    let mine = story.write(one, X);
    story.read(one, X, mine);
    story.commit(one);
    story.read(two, X, X0);
    story.read(two, Y, Y0);
    story.delete(two, Y);
    story.commit(two);
    let three = story.begin(Snapshot);
    story.see(three, Y, Seen::Absent, Lock::Write);
    story.append(three, LIST, &[]);
    story.delete(three, LIST);
    let list = story.append(three, LIST, &[]);
    story.commit(three);
    let four = story.begin(ReadCommitted);
    story.count(four, 2);
    story.see(four, LIST, Seen::Version(list[0], list.clone()), Lock::Explicit);
    story.append(four, LIST, &list);
    story.commit(four);
    assert_eq!(story.kinds(), BTreeSet::new());
}

/// One transaction is acknowledged, one rolled back, two are cut off; each left X, Y and its mark.
fn cut_off() -> (History, Vec<WriteId>) {
    let mut story = Story::new();
    let outcomes = [Outcome::Committed, Outcome::Aborted, Outcome::Unknown];
    let writes = outcomes.map(|outcome| {
        let txn = story.begin(Snapshot);
        let write = story.write(txn, X);
        story.write(txn, Key { table: MARKS, number: txn as u32 + 1 });
        story.end(txn, outcome);
        write
    });
    (story.history, writes.to_vec())
}

fn found_after(x: WriteId, y: Option<WriteId>, marks: &[u64]) -> Found {
    let mark = |txn: &u64| (Key { table: MARKS, number: *txn as u32 }, WriteId::new(*txn, 2));
    let all = marks.iter().map(mark).chain([(X, x)]).chain(y.map(|y| (Y, y)));
    let state = all.map(|(key, write)| (key, (write, vec![write]))).collect();
    Found { state, tables: BTreeSet::from([16, MARKS]), marks: MARKS }
}

#[test]
fn what_a_crash_may_not_do_is_found() {
    let kinds = |x: usize, y, marks: &[u64], durability| -> BTreeSet<Kind> {
        let (mut history, writes) = cut_off();
        let found = found_after(writes[x], y, marks);
        boundary::check(&mut history, &found, durability).iter().map(|anomaly| anomaly.kind).collect()
    };
    let sync = Durability::Sync;
    assert_eq!(kinds(0, Some(Y0), &[1], sync), BTreeSet::new());
    assert_eq!(kinds(2, Some(Y0), &[1, 3], sync), BTreeSet::new(), "what is not known may be there");
    assert_eq!(kinds(2, Some(Y0), &[1], sync), BTreeSet::from([Kind::PartOfTransaction]));
    assert_eq!(
        kinds(0, Some(Y0), &[1, 3], sync),
        BTreeSet::from([Kind::LostCommit]),
        "its mark is not all of it"
    );
    assert_eq!(kinds(1, Some(Y0), &[1], sync), BTreeSet::from([Kind::PartOfTransaction]));
    assert_eq!(kinds(0, None, &[1], sync), BTreeSet::from([Kind::LostCommit]));
    assert_eq!(kinds(2, Some(Y0), &[3], sync), BTreeSet::from([Kind::LostCommit]));
    assert_eq!(kinds(2, Some(Y0), &[3], Durability::Relaxed), BTreeSet::from([Kind::LostBefore]));
    let (mut history, writes) = cut_off();
    let mut found = found_after(writes[0], Some(Y0), &[1]);
    found.tables.remove(&16);
    let lost = boundary::check(&mut history, &found, sync);
    assert!(lost.iter().all(|anomaly| anomaly.kind == Kind::LostTable) && !lost.is_empty());
    history.dropped.insert(16);
    assert!(boundary::check(&mut history, &found, sync).is_empty());
}

/// A history of the engine, which is sound.
fn recorded(seed: u64) -> History {
    let rig: session::SharedRig = Arc::new(Memory(MemVfs::new()));
    let plan = Arc::new(Plan::new(seed, 1));
    let store = session::open(&*rig, &plan, &mut SeededRng::new(seed));
    let session = Arc::new(Session::new(rig, plan, store, 0));
    let txns = watch::run(&session);
    watch::history(&session, Default::default(), txns)
}

/// Changes what one read of a committed transaction's version saw, or its writer's end. Returns the anomaly that must
/// be found then, if there is a read that can be changed so.
fn falsify(history: &mut History, rng: &mut SeededRng) -> Option<&'static [Kind]> {
    let mut reads = Vec::new();
    for (t, txn) in history.txns.iter().enumerate() {
        for (o, op) in txn.ops.iter().enumerate() {
            if let What::Read { key, seen: Seen::Version(write, _), .. } = &op.what {
                let is_foreign = write.txn() != txn.id;
                reads.extend(is_foreign.then_some((t, o, *key, *write)));
            }
        }
    }
    if reads.is_empty() {
        return None;
    }
    let (t, o, key, write) = reads[rng.below(reads.len() as u64) as usize];
    let writer = history.txns.iter().position(|txn| txn.id == write.txn()).expect("recorded");
    let What::Read { seen, .. } = &mut history.txns[t].ops[o].what else { unreachable!("it is a read") };
    match rng.below(5) {
        0 => {
            history.txns[writer].outcome = Outcome::Aborted;
            Some(&[Kind::G1a])
        }
        1 => {
            *seen = Seen::Garbage("made up".into());
            Some(&[Kind::Garbage])
        }
        2 => {
            let Seen::Version(_, list) = seen else { unreachable!("it is a version") };
            list.insert(0, WriteId(0));
            Some(&[Kind::Garbage])
        }
        3 => {
            // Its commit was asked for only when all was over.
            (history.txns[writer].end_began, history.txns[writer].end_ended) = (u64::MAX - 1, u64::MAX);
            Some(&[Kind::Uncommitted])
        }
        _ => {
            // It wrote the record once more.
            let again = WriteId::new(write.txn(), u16::MAX);
            let writer = &mut history.txns[writer];
            let at = writer.end_began;
            let what = What::Write { key, write: again, list: vec![again] };
            writer.ops.push(Op { began: at, ended: at, what });
            Some(&[Kind::G1b])
        }
    }
}

#[test]
fn falsified_histories_are_noticed() {
    let mut falsified = 0;
    for_each_seed(30, |seed| {
        let sound = recorded(seed);
        let report = checker::check(&sound);
        assert!(report.anomalies.is_empty(), "{}", Shown(&report.anomalies, &sound));
        let mut rng = SeededRng::new(seed);
        for _ in 0..10 {
            let mut history = sound.clone();
            let Some(wants) = falsify(&mut history, &mut rng) else { continue };
            let found: BTreeSet<Kind> = checker::check(&history).anomalies.iter().map(|a| a.kind).collect();
            assert!(wants.iter().all(|kind| found.contains(kind)), "{wants:?}, found {found:?}");
            falsified += 1;
        }
    });
    assert!(falsified > 0);
}
