//! Hermitage (Martin Kleppmann, <https://github.com/ept/hermitage>): the classic interleavings of two or three
//! transactions, step by step, with the outcome of each under both isolations.
//!
//! Each transaction has a thread of its own, which does its steps in the order of the script. A step that has to wait
//! for another transaction is marked by `waits`: the script goes on without it, and its answer comes when the other
//! one ends. Whether a step waited is part of the expected outcome.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use lacuna_device::MemVfs;
use lacuna_engine::{
    Direction, Error,
    Isolation::{self, ReadCommitted, Snapshot},
    Store, StoreOptions, Table, TableOptions, TransactionOptions, Txn,
};

/// The operation of a transaction in one step. Records are 1, 2, ... with the values 10, 20, ... at the start.
#[derive(Clone, Copy, Debug)]
enum Do {
    Get(u8),
    Lock(u8),
    Put(u8, u8),
    Insert(u8, u8),
    /// Records with values that are multiples of this.
    Where(u8),
    /// Sets all such records, which it finds by scanning.
    UpdateWhere(u8, u8),
    /// Deletes them.
    DeleteWhere(u8),
    Commit,
    Rollback,
}
use Do::*;

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Value(Option<u8>),
    Records(Vec<(u8, u8)>),
    Conflict,
    Deadlock,
}
use Answer::*;

fn value(value: u8) -> Answer {
    Value(Some(value))
}

/// One step: the transaction, its operation and the answer; `waits` for it until a later step.
struct Line {
    txn: usize,
    step: Do,
    answer: Answer,
    waits: bool,
}

fn line(txn: usize, step: Do, answer: Answer) -> Line {
    Line { txn, step, answer, waits: false }
}

/// The answer comes only when another transaction has ended.
fn wait(txn: usize, step: Do, answer: Answer) -> Line {
    Line { txn, step, answer, waits: true }
}

/// Records that match a predicate.
fn matching(txn: &Txn, table: &Table, multiple: u8) -> Result<Vec<(u8, u8)>, Error> {
    let mut found = Vec::new();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, value| {
        if value[0] % multiple == 0 {
            found.push((key[0], value[0]));
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn carry_out(txn: &mut Txn, table: &Table, step: Do) -> Result<Answer, Error> {
    let one = |value: Option<Vec<u8>>| Value(value.map(|value| value[0]));
    match step {
        Get(key) => Ok(one(txn.get(table, &[key])?)),
        Lock(key) => Ok(one(txn.get_for_update(table, &[key])?)),
        Put(key, value) => txn.put(table, &[key], &[value]).map(|()| Done),
        Insert(key, value) => txn.insert(table, &[key], &[value]).map(|()| Done),
        Where(multiple) => Ok(Records(matching(txn, table, multiple)?)),
        UpdateWhere(multiple, value) => {
            let found = matching(txn, table, multiple)?;
            found.iter().try_for_each(|(key, _)| txn.put(table, &[*key], &[value])).map(|()| Done)
        }
        DeleteWhere(multiple) => {
            let found = matching(txn, table, multiple)?;
            found.iter().try_for_each(|(key, _)| txn.delete(table, &[*key]).map(drop)).map(|()| Done)
        }
        Commit | Rollback => unreachable!("the player ends with it"),
    }
}

/// The thread of one transaction. It takes its snapshot with its first read or write.
fn player(
    store: &Store,
    table: &Table,
    isolation: Isolation,
    steps: &Receiver<Do>,
    answers: &Sender<Answer>,
) {
    let mut txn = Some(store.begin_with(TransactionOptions { isolation }));
    while let Ok(step) = steps.recv() {
        let outcome = match step {
            Commit => txn.take().expect("open").commit().map(|()| Done),
            Rollback => txn.take().expect("open").rollback().map(|()| Done),
            _ => carry_out(txn.as_mut().expect("open"), table, step),
        };
        let answer = match outcome {
            Ok(answer) => answer,
            Err(Error::Conflict) => Conflict,
            Err(Error::Deadlock) => Deadlock,
            Err(e) => panic!("{step:?}: {e}"),
        };
        answers.send(answer).expect("the script is still there");
    }
}

/// A step that must wait is given so long to begin waiting, one that must not so long to return.
const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(20);

fn play(name: &str, isolation: Isolation, script: &[Line], outcome: &[(u8, u8)]) {
    let store = Store::open(MemVfs::new(), StoreOptions::default()).expect("open");
    let table = store.create_table("test", TableOptions::default()).expect("create");
    let mut setup = store.begin();
    for key in [1, 2] {
        setup.insert(&table, &[key], &[key * 10]).expect("insert");
    }
    setup.commit().expect("commit");
    let txns = script.iter().map(|line| line.txn).max().expect("a step");
    thread::scope(|scope| {
        let players: BTreeMap<usize, (Sender<Do>, Receiver<Answer>)> = (1..=txns)
            .map(|txn| {
                let ((steps, to_do), (told, answers)) = (channel(), channel());
                let (store, table) = (&store, &table);
                scope.spawn(move || player(store, table, isolation, &to_do, &told));
                (txn, (steps, answers))
            })
            .collect();
        let mut waiting: Vec<(usize, &Line)> = Vec::new();
        for (at, line) in script.iter().enumerate() {
            let said = || format!("{name}, {isolation:?}, step {at}: T{} {:?}", line.txn, line.step);
            // One that waited has to answer before it goes on.
            if let Some(i) = waiting.iter().position(|(_, other)| other.txn == line.txn) {
                let (was_at, waited) = waiting.remove(i);
                let answer = players[&line.txn].1.recv_timeout(LONG).expect("it need not wait any more");
                assert_eq!(answer, waited.answer, "{name}, {isolation:?}, step {was_at}, which waited");
            }
            let (steps, answers) = &players[&line.txn];
            steps.send(line.step).expect("the player is there");
            if line.waits {
                let answer = answers.recv_timeout(SHORT);
                assert_eq!(answer, Err(RecvTimeoutError::Timeout), "{} must wait", said());
                waiting.push((at, line));
            } else {
                let answer =
                    answers.recv_timeout(LONG).unwrap_or_else(|_| panic!("{} must not wait", said()));
                assert_eq!(answer, line.answer, "{}", said());
            }
        }
        assert!(waiting.is_empty(), "{name}: a step still waits");
    });
    let found = matching(&store.begin(), &table, 1).expect("scan");
    assert_eq!(found, outcome, "{name}, {isolation:?}: in the end");
    store.check().expect("check");
}

/// G0, write cycles: the second writer waits, and then overwrites or fails.
#[test]
fn g0_write_cycles_do_not_happen() {
    let committed = [
        line(1, Put(1, 11), Done),
        wait(2, Put(1, 12), Done),
        line(1, Put(2, 21), Done),
        line(1, Commit, Done),
        line(2, Put(2, 22), Done),
        line(2, Commit, Done),
    ];
    play("G0", ReadCommitted, &committed, &[(1, 12), (2, 22)]);
    let snapshot = [
        line(1, Put(1, 11), Done),
        wait(2, Put(1, 12), Conflict),
        line(1, Put(2, 21), Done),
        line(1, Commit, Done),
        line(2, Rollback, Done),
    ];
    play("G0", Snapshot, &snapshot, &[(1, 11), (2, 21)]);
}

#[test]
fn g1a_aborted_reads_do_not_happen() {
    for isolation in [ReadCommitted, Snapshot] {
        let script = [
            line(1, Put(1, 101), Done),
            line(2, Where(1), Records(vec![(1, 10), (2, 20)])),
            line(1, Rollback, Done),
            line(2, Where(1), Records(vec![(1, 10), (2, 20)])),
            line(2, Commit, Done),
        ];
        play("G1a", isolation, &script, &[(1, 10), (2, 20)]);
    }
}

#[test]
fn g1b_intermediate_reads_do_not_happen() {
    for (isolation, then) in [(ReadCommitted, 11), (Snapshot, 10)] {
        let script = [
            line(1, Put(1, 101), Done),
            line(2, Get(1), value(10)),
            line(1, Put(1, 11), Done),
            line(1, Commit, Done),
            line(2, Get(1), value(then)),
            line(2, Commit, Done),
        ];
        play("G1b", isolation, &script, &[(1, 11), (2, 20)]);
    }
}

#[test]
fn g1c_circular_information_flow_does_not_happen() {
    for isolation in [ReadCommitted, Snapshot] {
        let script = [
            line(1, Put(1, 11), Done),
            line(2, Put(2, 22), Done),
            line(1, Get(2), value(20)),
            line(2, Get(1), value(10)),
            line(1, Commit, Done),
            line(2, Commit, Done),
        ];
        play("G1c", isolation, &script, &[(1, 11), (2, 22)]);
    }
}

/// OTV, observed transaction vanishes: a reader sees part of a transaction, and later the values that overwrote it.
#[test]
fn otv_observed_transactions_do_not_vanish() {
    let committed = [
        line(1, Put(1, 11), Done),
        line(1, Put(2, 19), Done),
        wait(2, Put(1, 12), Done),
        line(1, Commit, Done),
        line(3, Get(1), value(11)),
        line(2, Put(2, 18), Done),
        line(3, Get(2), value(19)),
        line(2, Commit, Done),
        line(3, Get(2), value(18)),
        line(3, Get(1), value(12)),
        line(3, Commit, Done),
    ];
    play("OTV", ReadCommitted, &committed, &[(1, 12), (2, 18)]);
    let snapshot = [
        line(1, Put(1, 11), Done),
        line(1, Put(2, 19), Done),
        wait(2, Put(1, 12), Conflict),
        line(1, Commit, Done),
        line(3, Get(1), value(11)),
        line(2, Rollback, Done),
        line(3, Get(2), value(19)),
        line(3, Get(1), value(11)),
        line(3, Commit, Done),
    ];
    play("OTV", Snapshot, &snapshot, &[(1, 11), (2, 19)]);
}

/// PMP, predicate-many-preceders: a repeated scan finds records inserted meanwhile.
#[test]
fn pmp_phantoms_are_seen_at_read_committed_only() {
    for (isolation, then) in [(ReadCommitted, vec![(3, 30)]), (Snapshot, vec![])] {
        let script = [
            line(1, Where(30), Records(vec![])),
            line(2, Insert(3, 30), Done),
            line(2, Commit, Done),
            line(1, Where(3), Records(then)),
            line(1, Commit, Done),
        ];
        play("PMP", isolation, &script, &[(1, 10), (2, 20), (3, 30)]);
    }
}

/// The same with a predicate that is written by: the record that the first one makes matching is or is not deleted.
#[test]
fn pmp_writes_by_a_predicate_go_by_what_is_seen() {
    // The scan at read committed does not wait: it sees the state committed by then.
    for isolation in [ReadCommitted, Snapshot] {
        let script = [
            line(1, UpdateWhere(20, 30), Done),
            line(1, Put(1, 20), Done),
            line(2, Get(2), value(20)),
            wait(2, DeleteWhere(20), if isolation == Snapshot { Conflict } else { Done }),
            line(1, Commit, Done),
            if isolation == Snapshot { line(2, Rollback, Done) } else { line(2, Commit, Done) },
        ];
        let left: &[_] = if isolation == Snapshot { &[(1, 20), (2, 30)] } else { &[(1, 20)] };
        play("PMP write", isolation, &script, left);
    }
}

/// P4, lost update: read committed loses it, unless the record is locked when it is read.
#[test]
fn p4_lost_updates_do_not_happen_in_snapshots() {
    let unlocked = [
        line(1, Get(1), value(10)),
        line(2, Get(1), value(10)),
        line(1, Put(1, 11), Done),
        wait(2, Put(1, 12), Done),
        line(1, Commit, Done),
        line(2, Commit, Done),
    ];
    play("P4", ReadCommitted, &unlocked, &[(1, 12), (2, 20)]);
    let locked = [
        line(1, Lock(1), value(10)),
        wait(2, Lock(1), value(11)),
        line(1, Put(1, 11), Done),
        line(1, Commit, Done),
        line(2, Put(1, 12), Done),
        line(2, Commit, Done),
    ];
    play("P4 locked", ReadCommitted, &locked, &[(1, 12), (2, 20)]);
    let snapshot = [
        line(1, Get(1), value(10)),
        line(2, Get(1), value(10)),
        line(1, Put(1, 11), Done),
        wait(2, Put(1, 12), Conflict),
        line(1, Commit, Done),
        line(2, Rollback, Done),
    ];
    play("P4", Snapshot, &snapshot, &[(1, 11), (2, 20)]);
}

/// G-single, read skew.
#[test]
fn g_single_read_skew_is_seen_at_read_committed_only() {
    for (isolation, then) in [(ReadCommitted, 18), (Snapshot, 20)] {
        let script = [
            line(1, Get(1), value(10)),
            line(2, Get(1), value(10)),
            line(2, Get(2), value(20)),
            line(2, Put(1, 12), Done),
            line(2, Put(2, 18), Done),
            line(2, Commit, Done),
            line(1, Get(2), value(then)),
            line(1, Commit, Done),
        ];
        play("G-single", isolation, &script, &[(1, 12), (2, 18)]);
    }
}

/// G-single by predicates: the second scan depends on another predicate than the first.
#[test]
fn g_single_predicate_dependencies_are_seen_at_read_committed_only() {
    for (isolation, then) in [(ReadCommitted, vec![(1, 12)]), (Snapshot, vec![])] {
        let script = [
            line(1, Where(5), Records(vec![(1, 10), (2, 20)])),
            line(2, Put(1, 12), Done),
            line(2, Commit, Done),
            line(1, Where(3), Records(then)),
            line(1, Commit, Done),
        ];
        play("G-single dependencies", isolation, &script, &[(1, 12), (2, 20)]);
    }
}

/// G-single with a write by a predicate: it must not use a newer state than the one read.
#[test]
fn g_single_writes_by_a_predicate_conflict_in_snapshots() {
    let deletes = |then: Answer, end: Do| {
        [
            line(1, Get(1), value(10)),
            line(2, Where(1), Records(vec![(1, 10), (2, 20)])),
            line(2, Put(1, 12), Done),
            line(2, Put(2, 18), Done),
            line(2, Commit, Done),
            line(1, DeleteWhere(20), then),
            line(1, end, Done),
        ]
    };
    play("G-single write", ReadCommitted, &deletes(Done, Commit), &[(1, 12), (2, 18)]);
    play("G-single write", Snapshot, &deletes(Conflict, Rollback), &[(1, 12), (2, 18)]);
}

/// The same with the deletion between the two writes of the other one, which waits for it; after its rollback nothing
/// is left.
#[test]
fn g_single_interleaved_writes_wait_for_each_other() {
    let script = [
        line(1, Get(1), value(10)),
        line(2, Where(1), Records(vec![(1, 10), (2, 20)])),
        line(2, Put(1, 12), Done),
        line(1, DeleteWhere(20), Done),
        wait(2, Put(2, 18), Done),
        line(1, Rollback, Done),
        line(2, Commit, Done),
    ];
    play("G-single interleaved", ReadCommitted, &script, &[(1, 12), (2, 18)]);
    play("G-single interleaved", Snapshot, &script, &[(1, 12), (2, 18)]);
}

/// Both wait for one another, and the one that closes the cycle is the victim.
#[test]
fn write_cycles_are_broken() {
    for isolation in [ReadCommitted, Snapshot] {
        let script = [
            line(1, Put(1, 11), Done),
            line(2, Put(2, 22), Done),
            wait(1, Put(2, 21), Done),
            line(2, Put(1, 12), Deadlock),
            line(2, Rollback, Done),
            line(1, Commit, Done),
        ];
        play("deadlock", isolation, &script, &[(1, 11), (2, 21)]);
    }
}

/// G2-item, write skew: each reads what the other one writes. Allowed at both; locks prevent it.
#[test]
fn g2_item_write_skew_happens_unless_reads_lock() {
    for isolation in [ReadCommitted, Snapshot] {
        let script = [
            line(1, Get(1), value(10)),
            line(1, Get(2), value(20)),
            line(2, Get(1), value(10)),
            line(2, Get(2), value(20)),
            line(1, Put(1, 11), Done),
            line(2, Put(2, 21), Done),
            line(1, Commit, Done),
            line(2, Commit, Done),
        ];
        play("G2-item", isolation, &script, &[(1, 11), (2, 21)]);
    }
    let locked = |then: Answer| {
        let mut script = vec![
            line(1, Lock(1), value(10)),
            line(1, Lock(2), value(20)),
            wait(2, Lock(1), then.clone()),
            line(1, Put(1, 11), Done),
            line(1, Commit, Done),
        ];
        script.push(if then == Conflict { line(2, Rollback, Done) } else { line(2, Commit, Done) });
        script
    };
    play("G2-item locked", ReadCommitted, &locked(value(11)), &[(1, 11), (2, 20)]);
    play("G2-item locked", Snapshot, &locked(Conflict), &[(1, 11), (2, 20)]);
}

/// G2, anti-dependency cycles by predicates: each inserts a record that the other one's scan would have found.
#[test]
fn g2_anti_dependency_cycles_happen() {
    for isolation in [ReadCommitted, Snapshot] {
        let script = [
            line(1, Where(3), Records(vec![])),
            line(2, Where(3), Records(vec![])),
            line(1, Insert(3, 30), Done),
            line(2, Insert(4, 42), Done),
            line(1, Commit, Done),
            line(2, Commit, Done),
            line(3, Where(3), Records(vec![(3, 30), (4, 42)])),
            line(3, Commit, Done),
        ];
        play("G2", isolation, &script, &[(1, 10), (2, 20), (3, 30), (4, 42)]);
    }
}

/// G2 with two anti-dependencies and a reader (Fekete, O'Neil and O'Neil 2004): a snapshot that only reads sees a
/// state that no serial order has.
#[test]
fn g2_two_edges_with_a_reader_happen() {
    for (isolation, seen) in [(ReadCommitted, 25), (Snapshot, 25)] {
        let script = [
            line(1, Where(1), Records(vec![(1, 10), (2, 20)])),
            line(2, Put(2, 25), Done),
            line(2, Commit, Done),
            line(3, Get(1), value(10)),
            line(3, Get(2), value(seen)),
            line(3, Commit, Done),
            line(1, Put(1, 0), Done),
            line(1, Commit, Done),
        ];
        play("G2 two edges", isolation, &script, &[(1, 0), (2, 25)]);
    }
}
