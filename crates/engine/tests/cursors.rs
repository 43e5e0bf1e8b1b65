//! Iterators and cursors against a sorted map: in both directions, from both ends, among writes of their own
//! transaction and of others.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use lacuna_device::MemVfs;
use lacuna_engine::{
    Algorithm, Cursor, Error, Record, Store, StoreOptions, Swap, Table, TableOptions, TransactionOptions, Txn,
};
use lacuna_sim::{SeededRng, for_each_seed};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Pair = (Vec<u8>, Vec<u8>);

fn options(background: bool) -> StoreOptions {
    StoreOptions { pool_bytes: 1 << 20, log_bytes: 1 << 20, background, ..StoreOptions::default() }
}

fn kinds() -> [TableOptions; 3] {
    [
        TableOptions::default().page_bytes(4096),
        TableOptions::compressed(Algorithm::Lz4),
        TableOptions::row_compressed(4).page_bytes(8 << 10),
    ]
}

fn random_key(rng: &mut SeededRng) -> Vec<u8> {
    let number = rng.below(2000) as u16;
    let mut key = number.to_be_bytes().to_vec();
    key.resize(2 + (number % 5) as usize, 0xff);
    key
}

fn random_value(rng: &mut SeededRng) -> Vec<u8> {
    let bytes = if rng.chance(2) { rng.below(30_000) } else { rng.below(150) };
    vec![rng.below(256) as u8; bytes as usize]
}

fn pair(record: Record) -> Pair {
    record.to_pair()
}

fn owned<'m>(record: Option<(&'m Vec<u8>, &'m Vec<u8>)>) -> Option<Pair> {
    record.map(|(key, value)| (key.clone(), value.clone()))
}

fn change(txn: &mut Txn, table: &Table, model: &mut Model, rng: &mut SeededRng) {
    // Often near to each other, so that leaves empty and fill up.
    let key = random_key(rng);
    if rng.chance(45) {
        let existed = txn.delete(table, &key).expect("delete");
        assert_eq!(existed, model.remove(&key).is_some());
    } else {
        let value = random_value(rng);
        txn.put(table, &key, &value).expect("put");
        model.insert(key, value);
    }
}

/// Ranges of all kinds, taken from both ends by turns.
fn compare_ranges(txn: &Txn, table: &Table, model: &Model, rng: &mut SeededRng) {
    for _ in 0..6 {
        let mut bound = || match rng.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(random_key(rng)),
            _ => Bound::Excluded(random_key(rng)),
        };
        let bounds = (bound(), bound());
        let is_empty = match (&bounds.0, &bounds.1) {
            (Bound::Included(l), Bound::Included(u)) => l > u,
            (Bound::Included(l) | Bound::Excluded(l), Bound::Included(u) | Bound::Excluded(u)) => l >= u,
            _ => false,
        };
        let want: Vec<Pair> = match is_empty {
            true => Vec::new(),
            false => model.range(bounds.clone()).map(|(k, v)| (k.clone(), v.clone())).collect(),
        };
        let mut want_left = want.iter();
        let mut found = txn.range(table, bounds.clone()).expect("range");
        let share = rng.below(101);
        // Often all, then twice more at the end.
        let steps = if rng.chance(50) { want.len() + 2 } else { rng.below(300) as usize };
        for _ in 0..steps {
            let (found, want) = match rng.chance(share) {
                true => (found.next(), want_left.next()),
                false => (found.next_back(), want_left.next_back()),
            };
            assert_eq!(found.transpose().expect("step").map(pair).as_ref(), want);
        }
        assert_eq!(txn.count(table, bounds).expect("count"), want.len() as u64);
    }
    let prefix = &random_key(rng)[..1];
    let found: Result<Vec<_>, _> = txn.prefix(table, prefix).expect("prefix").collect();
    let want = model.iter().filter(|(key, _)| key.starts_with(prefix));
    assert!(
        found
            .expect("steps")
            .iter()
            .map(|record| (record.key(), record.value()))
            .eq(want.map(|(k, v)| (&k[..], &v[..])))
    );
    let ends = [txn.first(table), txn.last(table)].map(|record| record.expect("end").map(pair));
    assert_eq!(ends, [owned(model.first_key_value()), owned(model.last_key_value())]);
}

/// The expected behaviour of a cursor.
#[derive(Clone, Debug)]
enum Stand {
    Start,
    End,
    On(Vec<u8>),
    Before(Vec<u8>),
    Behind(Vec<u8>),
}

struct Expected(Stand);

impl Expected {
    fn next(&mut self, model: &Model) -> Option<Pair> {
        let lower = match &self.0 {
            Stand::Start => Bound::Unbounded,
            Stand::End => return None,
            Stand::On(key) | Stand::Behind(key) => Bound::Excluded(key.clone()),
            Stand::Before(key) => Bound::Included(key.clone()),
        };
        let found = owned(model.range((lower, Bound::Unbounded)).next());
        self.0 = match (&found, self.0.clone()) {
            (Some((key, _)), _) => Stand::On(key.clone()),
            (None, Stand::On(key)) => Stand::Behind(key),
            (None, same) => same,
        };
        found
    }

    fn prev(&mut self, model: &Model) -> Option<Pair> {
        let upper = match &self.0 {
            Stand::End => Bound::Unbounded,
            Stand::Start => return None,
            Stand::On(key) | Stand::Before(key) => Bound::Excluded(key.clone()),
            Stand::Behind(key) => Bound::Included(key.clone()),
        };
        let found = owned(model.range((Bound::Unbounded, upper)).next_back());
        self.0 = match (&found, self.0.clone()) {
            (Some((key, _)), _) => Stand::On(key.clone()),
            (None, Stand::On(key)) => Stand::Before(key),
            (None, same) => same,
        };
        found
    }

    fn step(&mut self, cursor: &mut Cursor, txn: &Txn, model: &Model, rng: &mut SeededRng, forward: bool) {
        let key = random_key(rng);
        let (found, want) = match rng.below(60) {
            0 => {
                self.0 = Stand::Start;
                (cursor.first(txn), self.next(model))
            }
            1 => {
                self.0 = Stand::End;
                (cursor.last(txn), self.prev(model))
            }
            2 => {
                self.0 = Stand::Before(key.clone());
                (cursor.seek(txn, &key), self.next(model))
            }
            3 => {
                self.0 = Stand::Behind(key.clone());
                (cursor.seek_back(txn, &key), self.prev(model))
            }
            n if forward == (n > 6) => (cursor.next(txn), self.next(model)),
            _ => (cursor.prev(txn), self.prev(model)),
        };
        assert_eq!(found.expect("step").map(pair), want);
    }
}

/// Cursors that live through transactions, writes, savepoints and rollbacks.
fn play(seed: u64, table_options: TableOptions) {
    let mut rng = SeededRng::new(seed);
    let store = Store::open(MemVfs::new(), options(seed.is_multiple_of(2))).expect("open");
    let table = store.create_table("t", table_options).expect("create");
    let mut committed = Model::new();
    let mut cursors: Vec<_> = (0..3).map(|_| (table.cursor(), Expected(Stand::Start))).collect();
    for _ in 0..6 {
        let isolation = [TransactionOptions::default(), TransactionOptions::READ_COMMITTED];
        let mut txn = store.begin_with(isolation[rng.below(2) as usize]);
        let mut model = committed.clone();
        for _ in 0..rng.below(300) {
            change(&mut txn, &table, &mut model, &mut rng);
        }
        let mut savepoint = None;
        for round in 0..40 {
            match rng.below(10) {
                0..4 => change(&mut txn, &table, &mut model, &mut rng),
                4 => savepoint = Some((txn.savepoint().expect("savepoint"), model.clone())),
                5 => {
                    if let Some((point, then)) = savepoint.take() {
                        txn.rollback_to(point).expect("rollback_to");
                        model = then;
                    }
                }
                6 if round % 4 == 0 => compare_ranges(&txn, &table, &model, &mut rng),
                _ => {}
            }
            let (cursor, expected) = &mut cursors[rng.below(3) as usize];
            let forward = rng.chance(50);
            for _ in 0..rng.below(40) {
                expected.step(cursor, &txn, &model, &mut rng, forward);
            }
        }
        if rng.chance(25) {
            txn.rollback().expect("rollback");
        } else {
            txn.commit().expect("commit");
            committed = model;
        }
    }
    let estimated = table.estimated_count().expect("estimate");
    assert!(estimated <= 4000, "{estimated} of {}", committed.len());
    store.check().expect("check");
}

#[test]
fn cursors_and_ranges_agree_with_a_map_on_plain_tables() {
    for_each_seed(12, |seed| play(seed, kinds()[0]));
}

#[test]
fn cursors_and_ranges_agree_with_a_map_on_compressed_tables() {
    for_each_seed(12, |seed| play(seed, kinds()[1]));
}

#[test]
fn cursors_and_ranges_agree_with_a_map_on_row_compressed_tables() {
    for_each_seed(6, |seed| play(seed, kinds()[2]));
}

/// Others insert and delete all around, so leaves split and merge under the cursors of snapshots, which see none of it.
#[test]
fn cursors_of_a_snapshot_see_one_state_among_splits_and_merges() {
    let store = Store::open(MemVfs::new(), options(true)).expect("open");
    let table = store.create_table("t", kinds()[0]).expect("create");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // All records of a state have the same value, the number of the transaction that wrote them.
        let writer = scope.spawn(|| {
            let mut rng = SeededRng::new(5);
            for number in 0..150u32 {
                let (step, first) = (1 + rng.below(40), rng.below(2000));
                let mut txn = store.begin();
                let old: Result<Vec<_>, _> = txn.range(&table, ..).expect("range").collect();
                for record in old.expect("steps") {
                    txn.delete(&table, record.key()).expect("delete");
                }
                for key in (first..first + 60 * step).step_by(step as usize) {
                    txn.put(&table, &key.to_be_bytes(), &number.to_be_bytes()).expect("put");
                }
                txn.commit().expect("commit");
            }
            is_over.store(true, Ordering::Release);
        });
        for reader in 0..2 {
            let (store, table, is_over) = (&store, &table, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    let txn = store.begin();
                    let mut cursor = table.cursor();
                    let is_forward = reader == 0;
                    let mut step = if is_forward { cursor.first(&txn) } else { cursor.last(&txn) };
                    let mut seen = Vec::new();
                    while let Some(record) = step.expect("step") {
                        seen.push(pair(record));
                        step = if is_forward { cursor.next(&txn) } else { cursor.prev(&txn) };
                    }
                    let mut again: Vec<_> =
                        txn.range(table, ..).expect("range").rev().map(|r| pair(r.expect("step"))).collect();
                    if is_forward {
                        again.reverse();
                    }
                    assert_eq!(seen, again);
                    assert!(seen.is_empty() || seen.len() == 60, "{} records", seen.len());
                    assert!(seen.iter().all(|(_, value)| *value == seen[0].1), "two states");
                }
            });
        }
        writer.join().expect("writer");
    });
    store.check().expect("check");
}

#[test]
fn a_table_with_cursors_is_dropped_behind_their_transactions() {
    let store = Store::open(MemVfs::new(), options(false)).expect("open");
    let other = Store::open(MemVfs::new(), options(false)).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let mut txn = store.begin();
    (0..100u8).for_each(|key| txn.put(&table, &[key], b"v").expect("put"));
    txn.commit().expect("commit");
    let mut cursor = table.cursor();
    assert!(matches!(cursor.next(&other.begin()), Err(Error::WrongStore)));
    let txn = store.begin();
    let record = cursor.next(&txn).expect("step").expect("a record");
    assert!(matches!(store.drop_table("t"), Err(Error::TableInUse { .. })));
    drop(txn);
    store.drop_table("t").expect("nobody uses it");
    assert_eq!(record.key(), [0], "what was read stays");
    let txn = store.begin();
    assert!(matches!(cursor.next(&txn), Err(Error::TableDropped { .. })));
    assert!(matches!(txn.range(&table, ..).map(drop), Err(Error::TableDropped { .. })));
    assert!(matches!(txn.count(&table, ..), Err(Error::TableDropped { .. })));
    assert!(matches!(table.estimated_count(), Err(Error::TableDropped { .. })));
    drop(txn);
    store.close().expect("close");
    let txn = other.begin();
    assert!(matches!(cursor.next(&txn), Err(Error::WrongStore)));
    other.clone().close().expect("close");
    assert!(matches!(cursor.next(&txn), Err(Error::Closed)));
}

#[test]
fn estimates_are_near() {
    let store = Store::open(MemVfs::new(), StoreOptions::default()).expect("open");
    for (records, name) in [(0u64, "none"), (3, "few"), (1000, "some"), (60_000, "many")] {
        let table = store.create_table(name, TableOptions::default().page_bytes(4096)).expect("create");
        let mut txn = store.begin();
        for number in 0..records {
            // In no order.
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            txn.put(&table, &key, &[7; 40]).expect("put");
        }
        txn.commit().expect("commit");
        let estimated = table.estimated_count().expect("estimate") as f64;
        let share = (estimated - records as f64).abs() / (records as f64).max(1.0);
        assert!(share <= 0.2, "{estimated} of {records}");
        assert_eq!(store.begin().count(&table, ..).expect("count"), records);
    }
}

/// The records that its snapshot saw were deleted and purged: an empty leaf must not be taken for the end of the table.
#[test]
fn walks_of_a_snapshot_that_was_given_up_are_told() {
    let store = Store::open(MemVfs::new(), StoreOptions { history_bytes: 1024, ..options(false) });
    let store = store.expect("open");
    let table = store.create_table("t", kinds()[0]).expect("create");
    let write = |deletes: bool, first: u8| {
        let mut txn = store.begin();
        for n in first..first + 50 {
            match deletes {
                true => assert!(txn.delete(&table, &[n]).expect("delete")),
                false => txn.put(&table, &[n], &[n; 40]).expect("put"),
            }
        }
        txn.commit().expect("commit");
    };
    write(false, 0);
    let old = store.begin();
    let mut cursor = table.cursor();
    assert_eq!(cursor.seek(&old, &[7]).expect("seek").expect("there").key(), [7]);
    write(true, 0);
    for _ in 0..20 {
        write(false, 100);
        store.step().expect("step");
    }
    let is_told = |outcome: Result<u64, Error>| assert!(matches!(outcome, Err(Error::SnapshotTooOld)));
    is_told(old.count(&table, ..[60]));
    is_told(old.range(&table, ..[60]).expect("range").map(|record| record.map(|_| 1)).sum());
    is_told(old.range(&table, ..[60]).expect("range").rev().map(|record| record.map(|_| 1)).sum());
    is_told(cursor.prev(&old).map(|_| 1));
    is_told(cursor.first(&old).map(|_| 1));
    let new = store.begin();
    assert_eq!(cursor.first(&new).expect("first").expect("there").key(), [100]);
    assert_eq!(new.count(&table, ..[60]).expect("count"), 0);
}

/// A load beginning at `key` that fails at its last record, which is there or comes the wrong way round.
fn refuse_load(txn: &mut Txn, table: &Table, model: &Model, key: &[u8], rng: &mut SeededRng) {
    let mut load: Vec<_> = (0..40u8).map(|n| [key, &[1, n]].concat()).collect();
    load.retain(|key| !model.contains_key(key));
    let last = match rng.chance(50) {
        true => model.range::<Vec<u8>, _>((Bound::Excluded(&load[0]), Bound::Unbounded)).next(),
        false => None,
    };
    let last = last.map_or(Vec::new(), |(key, _)| key.clone());
    load.retain(|key| last.is_empty() || *key < last);
    load.push(last);
    let load = load.iter().map(|key| (key, [9; 300]));
    let refused = txn.bulk_load(table, load);
    assert!(matches!(refused, Err(Error::KeyExists | Error::OutOfOrder { .. })), "{refused:?}");
}

/// Everything that a transaction may do to itself while it walks: to the record where the cursor stands and to those
/// ahead, savepoints that are rolled back to, loads that fail in the middle, swaps of long values.
fn disturb(seed: u64, table_options: TableOptions) {
    let mut rng = SeededRng::new(seed);
    let store = Store::open(MemVfs::new(), options(false)).expect("open");
    let table = store.create_table("t", table_options).expect("create");
    let mut model = Model::new();
    let mut txn = store.begin();
    for _ in 0..150 {
        change(&mut txn, &table, &mut model, &mut rng);
    }
    let mut cursor = table.cursor();
    let mut at: Option<Vec<u8>> = None;
    let mut kept = None;
    for _ in 0..400 {
        let is_backward = rng.chance(30);
        let (found, want) = match (&at, is_backward) {
            (None, _) => (cursor.first(&txn), model.iter().next()),
            (Some(at), false) => {
                let behind = (Bound::Excluded(at), Bound::Unbounded);
                (cursor.next(&txn), model.range::<Vec<u8>, _>(behind).next())
            }
            (Some(at), true) => (cursor.prev(&txn), model.range::<Vec<u8>, _>(..at).next_back()),
        };
        let found = found.expect("step").map(pair);
        assert_eq!(found, owned(want), "seed {seed}");
        at = found.as_ref().map(|(key, _)| key.clone());
        let Some((key, value)) = found else { continue };
        match rng.below(12) {
            0..3 => {
                assert!(txn.delete(&table, &key).expect("delete"));
                model.remove(&key);
            }
            3 => {
                // Just before it, or just after.
                let near = [&key[..], &[rng.below(2) as u8 * 0xff]].concat();
                let long = vec![7; rng.below(40_000) as usize];
                txn.put(&table, &near, &long).expect("put");
                model.insert(near, long);
            }
            4..6 => {
                let new = rng.chance(80).then(|| random_value(&mut rng));
                let other = [&value[..], b"!"].concat();
                let swap = txn.compare_and_swap(&table, &key, Some(&other), new.as_deref());
                assert_eq!(swap.expect("swap"), Swap::Other(Some(value.clone())));
                let swap = txn.compare_and_swap(&table, &key, Some(&value), new.as_deref());
                assert_eq!(swap.expect("swap"), Swap::Done);
                match new {
                    Some(new) => drop(model.insert(key, new)),
                    None => drop(model.remove(&key)),
                }
            }
            6 => {
                refuse_load(&mut txn, &table, &model, &key, &mut rng);
            }
            7 => kept = Some((txn.savepoint().expect("savepoint"), model.clone())),
            8 => {
                if let Some((savepoint, before)) = kept.take() {
                    txn.rollback_to(savepoint).expect("rollback");
                    model = before;
                }
            }
            _ => {}
        }
    }
    assert_eq!(txn.count(&table, ..).expect("count"), model.len() as u64);
    txn.commit().expect("commit");
    store.step().expect("step");
    store.check().expect("check");
    let all: Vec<Pair> =
        store.begin().range(&table, ..).expect("range").map(|r| pair(r.expect("record"))).collect();
    assert_eq!(all, model.into_iter().collect::<Vec<_>>());
}

#[test]
fn cursors_go_on_whatever_their_transaction_does_around_them() {
    for (number, table_options) in (0..).zip(kinds()) {
        for_each_seed(8, |seed| disturb(10 * number + seed, table_options));
    }
}
