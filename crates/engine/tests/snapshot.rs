//! Isolation: the classic anomalies, random schedules against a map of all versions, and the history kept for
//! snapshots.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, ControlFlow},
    sync::Arc,
    thread,
    time::Duration,
};

use crate::rigs::edited::edited;
use lacuna_device::{MemVfs, StreamHint, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Error, Isolation, Savepoint, Store, StoreOptions, Table, TableOptions,
    TransactionOptions, Txn,
};
use lacuna_sim::{SeededRng as Rng, for_each_seed};

const SNAPSHOT: TransactionOptions = TransactionOptions { isolation: Isolation::Snapshot };
const READ_COMMITTED: TransactionOptions = TransactionOptions::READ_COMMITTED;

type Key = Vec<u8>;
type Value = Vec<u8>;

fn options(background: bool) -> StoreOptions {
    StoreOptions {
        pool_bytes: 2 << 20,
        log_bytes: 1 << 20,
        background,
        // One thread plays all transactions: one that would have to wait gets an error at once.
        lock_timeout: Duration::ZERO,
        ..StoreOptions::default()
    }
}

fn open(vfs: Arc<dyn Vfs>, background: bool) -> (Store, Table) {
    let store = Store::open(vfs, options(background)).expect("open");
    let table = store.open_table("t", TableOptions::default().page_bytes(4096)).expect("table");
    (store, table)
}

fn put(store: &Store, table: &Table, key: &[u8], value: &[u8]) {
    let mut txn = store.begin();
    txn.put(table, key, value).expect("put");
    txn.commit().expect("commit");
}

fn scan(txn: &Txn, table: &Table, direction: Direction) -> Result<Vec<(Key, Value)>, Error> {
    let mut found = Vec::new();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Whether each anomaly happens; `a` and `b` start out as "0".
type Anomaly = fn(&Store, &Table, TransactionOptions) -> bool;

fn get(txn: &Txn, table: &Table, key: &[u8]) -> Option<Vec<u8>> {
    txn.get(table, key).expect("get")
}

fn is(txn: &Txn, table: &Table, key: &[u8], value: &[u8]) -> bool {
    get(txn, table, key).as_deref() == Some(value)
}

fn dirty_read(store: &Store, table: &Table, options: TransactionOptions) -> bool {
    let mut writer = store.begin_with(options);
    writer.put(table, b"a", b"1").expect("put");
    let saw = is(&store.begin_with(options), table, b"a", b"1");
    writer.rollback().expect("rollback");
    saw
}

fn lost_update(store: &Store, table: &Table, options: TransactionOptions) -> bool {
    let mut first = store.begin_with(options);
    assert!(is(&first, table, b"a", b"0"));
    put(store, table, b"a", b"1");
    match first.put(table, b"a", b"2") {
        Ok(()) => first.commit().is_ok(),
        Err(e) => !matches!(e, Error::Conflict),
    }
}

fn non_repeatable_read(store: &Store, table: &Table, options: TransactionOptions) -> bool {
    let reader = store.begin_with(options);
    let before = get(&reader, table, b"a");
    put(store, table, b"a", b"1");
    get(&reader, table, b"a") != before
}

fn phantom(store: &Store, table: &Table, options: TransactionOptions) -> bool {
    let reader = store.begin_with(options);
    let before = scan(&reader, table, Direction::Forward).expect("scan");
    let mut other = store.begin();
    other.insert(table, b"ab", b"new").expect("insert");
    assert!(other.delete(table, b"b").expect("delete"));
    other.commit().expect("commit");
    let again = [Direction::Forward, Direction::Backward].map(|d| scan(&reader, table, d).expect("scan"));
    again[0] != before || again[1].iter().rev().ne(before.iter())
}

fn read_skew(store: &Store, table: &Table, options: TransactionOptions) -> bool {
    let reader = store.begin_with(options);
    assert!(is(&reader, table, b"a", b"0"));
    let mut other = store.begin();
    other.put(table, b"a", b"1").expect("put");
    other.put(table, b"b", b"1").expect("put");
    other.commit().expect("commit");
    !is(&reader, table, b"b", b"0")
}

fn write_skew(store: &Store, table: &Table, options: TransactionOptions) -> bool {
    let [mut one, mut two] = [store.begin_with(options), store.begin_with(options)];
    assert!(is(&one, table, b"b", b"0") && is(&two, table, b"a", b"0"));
    one.put(table, b"a", b"1").expect("put");
    two.put(table, b"b", b"1").expect("put");
    one.commit().is_ok() && two.commit().is_ok()
}

#[test]
fn anomalies_are_prevented_as_the_isolation_says() {
    let table: [(&str, Anomaly, bool, bool); 6] = [
        // Name, under a snapshot, at read committed.
        ("dirty read", dirty_read, false, false),
        ("lost update", lost_update, false, true),
        ("non-repeatable read", non_repeatable_read, false, true),
        ("phantom", phantom, false, true),
        ("read skew", read_skew, false, true),
        ("write skew", write_skew, true, true),
    ];
    for (name, anomaly, in_snapshot, in_read_committed) in table {
        for (isolation, expected) in [(SNAPSHOT, in_snapshot), (READ_COMMITTED, in_read_committed)] {
            let (store, table) = open(MemVfs::new(), false);
            put(&store, &table, b"a", b"0");
            put(&store, &table, b"b", b"0");
            assert_eq!(anomaly(&store, &table, isolation), expected, "{name}, {isolation:?}");
            store.check().expect("check");
        }
    }
}

/// A wait that ends in a commit is a conflict, one that ends in a rollback is not.
#[test]
fn waits_end_as_the_owner_does() {
    for commits in [true, false] {
        for locks_only in [true, false] {
            let vfs = MemVfs::new();
            let store = Store::open(vfs, StoreOptions::default()).expect("open");
            let table = store.create_table("t", TableOptions::default()).expect("create");
            put(&store, &table, b"k", b"0");
            let mut owner = store.begin();
            owner.put(&table, b"k", b"1").expect("put");
            let mut waiter = store.begin();
            assert!(is(&waiter, &table, b"k", b"0"));
            let outcome = thread::scope(|scope| {
                let waiting = scope.spawn(|| match locks_only {
                    true => waiter.get_for_update(&table, b"k").map(drop),
                    false => waiter.put(&table, b"k", b"2"),
                });
                thread::yield_now();
                if commits { owner.commit() } else { owner.rollback() }.expect("end");
                waiting.join().expect("waiter")
            });
            match (commits, outcome) {
                (true, Err(Error::Conflict)) => waiter.rollback().expect("rollback"),
                (false, Ok(())) => waiter.commit().expect("commit"),
                (_, outcome) => panic!("commits {commits}: {outcome:?}"),
            }
        }
    }
}

/// All versions ever committed, and the moment.
#[derive(Default)]
struct Model {
    moment: u64,
    versions: BTreeMap<Key, Vec<(u64, Option<Value>)>>,
}

impl Model {
    fn at(&self, key: &[u8], moment: u64) -> Option<&Value> {
        let versions = self.versions.get(key)?;
        versions.iter().rev().find(|(written, _)| *written <= moment)?.1.as_ref()
    }

    fn changed_since(&self, key: &[u8], moment: u64) -> bool {
        self.versions.get(key).is_some_and(|v| v.last().expect("one").0 > moment)
    }

    fn all_at(&self, moment: u64) -> BTreeMap<Key, Value> {
        let keys = self.versions.keys();
        keys.filter_map(|key| Some((key.clone(), self.at(key, moment)?.clone()))).collect()
    }
}

/// A transaction, and its state in the model.
struct Player {
    txn: Txn,
    is_snapshot: bool,
    view: Option<u64>,
    written: BTreeMap<Key, Option<Value>>,
    locked: BTreeSet<Key>,
    savepoint: Option<(Savepoint, BTreeMap<Key, Option<Value>>)>,
}

impl Player {
    fn new(store: &Store, rng: &mut Rng) -> Player {
        let is_snapshot = rng.chance(75);
        let txn = store.begin_with(if is_snapshot { SNAPSHOT } else { READ_COMMITTED });
        let (written, locked) = Default::default();
        Player { txn, is_snapshot, view: None, written, locked, savepoint: None }
    }

    /// The moment as of which it reads now.
    fn moment(&mut self, model: &Model) -> u64 {
        if self.is_snapshot { *self.view.get_or_insert(model.moment) } else { model.moment }
    }

    fn sees(&mut self, model: &Model, key: &[u8]) -> Option<Value> {
        let moment = self.moment(model);
        self.written.get(key).cloned().unwrap_or_else(|| model.at(key, moment).cloned())
    }

    fn sees_all(&mut self, model: &Model) -> Vec<(Key, Value)> {
        let mut all = model.all_at(self.moment(model));
        for (key, value) in &self.written {
            match value {
                Some(value) => drop(all.insert(key.clone(), value.clone())),
                None => drop(all.remove(key)),
            }
        }
        all.into_iter().collect()
    }

    fn holds(&self, key: &[u8]) -> bool {
        self.written.contains_key(key) || self.locked.contains(key)
    }
}

fn random_value(rng: &mut Rng) -> Value {
    let len = match rng.below(20) {
        0 => rng.below(12_000),
        1..6 => rng.below(900),
        _ => rng.below(60),
    };
    vec![rng.below(256) as u8; len as usize]
}

/// One random operation of player `i`, whose outcome must be the model's.
fn play(players: &mut [Player], i: usize, table: &Table, model: &Model, rng: &mut Rng) {
    let key = vec![b'k', rng.below(40) as u8];
    let is_held = players.iter().enumerate().any(|(j, other)| j != i && other.holds(&key));
    let player = &mut players[i];
    let seen = player.sees(model, &key);
    // The model's view is taken by now, as the transaction's is with the operation.
    let is_conflict = player.view.is_some_and(|view| model.changed_since(&key, view));
    let expected = match (is_held, is_conflict) {
        (true, _) => Err(Error::LockTimeout),
        (false, true) if !player.written.contains_key(&key) => Err(Error::Conflict),
        _ => Ok(()),
    };
    let value = match &seen {
        Some(old) if !old.is_empty() && rng.chance(50) => edited(old, rng),
        _ => random_value(rng),
    };
    let outcome = match rng.below(10) {
        0..3 => {
            assert!(player.txn.get(table, &key).expect("get") == seen, "get of {key:?}");
            return;
        }
        3..5 => player.txn.put(table, &key, &value).map(|()| Some(Some(value))),
        5 => match player.txn.insert(table, &key, &value) {
            Err(Error::KeyExists) if seen.is_some() => Ok(None),
            Ok(()) if seen.is_some() => panic!("inserted {key:?}, which was there"),
            other => other.map(|()| Some(Some(value))),
        },
        6..8 => player.txn.delete(table, &key).map(|existed| {
            assert_eq!(existed, seen.is_some(), "delete of {key:?}");
            existed.then_some(None)
        }),
        _ => player.txn.get_for_update(table, &key).map(|value| {
            assert!(value == seen, "get_for_update of {key:?}");
            player.locked.insert(key.clone());
            None
        }),
    };
    match (outcome, expected) {
        (Ok(Some(change)), Ok(())) => drop(player.written.insert(key, change)),
        (Ok(None), Ok(())) | (Err(Error::Conflict), Err(Error::Conflict)) => {}
        (Err(Error::LockTimeout), Err(Error::LockTimeout)) => {}
        (outcome, expected) => panic!("{key:?}: {outcome:?}, not {expected:?}"),
    }
}

/// Ends player `i`.
fn end(players: &mut Vec<Player>, i: usize, model: &mut Model, rng: &mut Rng) {
    let player = players.swap_remove(i);
    match rng.below(5) {
        0 => drop(player.txn),
        1 => player.txn.rollback().expect("rollback"),
        _ => {
            player.txn.commit().expect("commit");
            if !player.written.is_empty() {
                model.moment += 1;
            }
            for (key, value) in player.written {
                model.versions.entry(key).or_default().push((model.moment, value));
            }
        }
    }
}

fn compare_all(player: &mut Player, table: &Table, model: &Model) {
    let want = player.sees_all(model);
    assert!(scan(&player.txn, table, Direction::Forward).expect("scan") == want, "forward");
    let mut backward = scan(&player.txn, table, Direction::Backward).expect("scan");
    backward.reverse();
    assert!(backward == want, "backward");
}

fn schedule(store: &Store, table: &Table, model: &mut Model, rng: &mut Rng) {
    let mut players: Vec<Player> = Vec::new();
    for _ in 0..700 {
        if players.is_empty() || (players.len() < 8 && rng.chance(20)) {
            players.push(Player::new(store, rng));
        }
        // Some run long: the first ones are seldom chosen to end.
        let i = rng.below(players.len() as u64) as usize;
        match rng.below(100) {
            0..14 if i > 1 || rng.chance(10) => end(&mut players, i, model, rng),
            14..18 => compare_all(&mut players[i], table, model),
            18..21 => {
                let player = &mut players[i];
                player.savepoint = Some((player.txn.savepoint().expect("savepoint"), player.written.clone()));
            }
            21..24 => {
                let player = &mut players[i];
                if let Some((point, written)) = player.savepoint.take() {
                    player.txn.rollback_to(point).expect("rollback_to");
                    player.written = written;
                }
            }
            24 => drop(store.step().expect("step")),
            25 => drop(store.check().expect("check")),
            _ => play(&mut players, i, table, model, rng),
        }
    }
    for player in &mut players {
        compare_all(player, table, model);
    }
    while !players.is_empty() {
        end(&mut players, 0, model, rng);
    }
}

fn long_pages(store: &Store) -> u64 {
    store.check().expect("check").pop().expect("a table").overflow_pages
}

fn random_schedules(table_options: TableOptions, background: bool) {
    for_each_seed(25, |seed| {
        let mut rng = Rng::new(seed);
        let vfs = MemVfs::new();
        let mut model = Model::default();
        for _ in 0..3 {
            let store = Store::open(vfs.clone(), options(background)).expect("open");
            let table = store.open_table("t", table_options).expect("table");
            compare_all(&mut Player::new(&store, &mut rng), &table, &model);
            schedule(&store, &table, &mut model, &mut rng);
            let pages = long_pages(&store);
            let history = store.stats().expect("stats").history;
            assert_eq!((history.snapshots, history.transactions, history.bytes), (0, 0, 0));
            if rng.chance(50) {
                // A snapshot that the end of the store takes away, and a history that recovery drops.
                let reader = store.begin();
                let _ = get(&reader, &table, b"k");
                let mut txn = store.begin();
                for key in model.all_at(model.moment).keys() {
                    assert!(txn.delete(&table, key).expect("delete"));
                }
                txn.commit().expect("commit");
                model.moment += 1;
                for versions in model.versions.values_mut() {
                    versions.push((model.moment, None));
                }
                assert_eq!(long_pages(&store), pages, "the reader needs them");
                drop(store);
                let store = Store::open(vfs.clone(), options(background)).expect("recover");
                assert_eq!(long_pages(&store), 0);
                let check = store.check().expect("check").pop().expect("a table");
                assert_eq!((check.records, check.leaves), (0, 1));
                drop(reader);
            } else {
                store.close().expect("close");
            }
        }
    });
}

#[test]
fn random_schedules_on_plain_pages() {
    random_schedules(TableOptions::default().page_bytes(4096), false);
}

#[test]
fn random_schedules_on_compressed_pages() {
    random_schedules(TableOptions::compressed(Algorithm::Lz4), true);
}

#[test]
fn random_schedules_on_row_compressed_pages() {
    random_schedules(TableOptions::row_compressed(4).page_bytes(8 << 10), false);
}

/// More transactions than there are undo slots, under one snapshot: no transaction waits for it, its reads stay the
/// same, and the history kept for it is freed, again and again.
#[test]
fn history_grows_beyond_the_slots_and_is_given_back() {
    for background in [false, true] {
        let vfs = MemVfs::new();
        let (store, table) = open(vfs.clone(), background);
        for key in 0..50u8 {
            put(&store, &table, &[key], &[key; 300]);
        }
        let mut file_bytes = Vec::new();
        for round in 0..4u32 {
            let reader = store.begin();
            let before = scan(&reader, &table, Direction::Forward).expect("scan");
            for i in 0..3000u32 {
                // Other than before in all its bytes.
                put(&store, &table, &[(i % 50) as u8], &[(round * 60 + i / 50) as u8; 300]);
            }
            let history = store.stats().expect("stats").history;
            assert_eq!((history.snapshots, history.transactions), (1, 3000));
            // What each log takes in memory counts.
            assert!(history.bytes > 3000 * 430 && history.bytes < 3000 * 530, "{history:?}");
            assert!(scan(&reader, &table, Direction::Forward).expect("scan") == before);
            drop(reader);
            store.check().expect("check");
            assert_eq!(store.stats().expect("stats").history.transactions, 0);
            let undo = vfs.open("t00000001.32k", StreamHint::Data).expect("undo file");
            store.checkpoint().expect("checkpoint");
            file_bytes.push(undo.len().expect("len"));
        }
        // A page or two lists the free ones; where they lie at the end the file is cut.
        let bytes_max = file_bytes[0] + 2 * (32 << 10);
        assert!(
            file_bytes.iter().all(|bytes| *bytes <= bytes_max),
            "{file_bytes:?}, background {background}"
        );
    }
}

/// With a snapshot always open, each on its own, the pages before the oldest one's history are used again.
#[test]
fn overlapping_snapshots_do_not_keep_everything() {
    let vfs = MemVfs::new();
    let (store, table) = open(vfs.clone(), false);
    let mut readers = Vec::new();
    for i in 0..20_000u32 {
        put(&store, &table, &[(i % 50) as u8], &[i as u8; 300]);
        if i % 100 == 0 {
            let reader = store.begin();
            let _ = get(&reader, &table, b"k");
            readers.push(reader);
            if readers.len() > 5 {
                readers.remove(0);
            }
        }
        assert!(store.stats().expect("stats").history.transactions <= 700);
    }
    store.checkpoint().expect("checkpoint");
    let undo = vfs.open("t00000001.32k", StreamHint::Data).expect("undo file");
    // The slots' pages and one step by which a file is extended; all history would take more than 200 pages.
    assert!(undo.len().expect("len") < (1025 + 150) * (32 << 10), "{} bytes", undo.len().expect("len"));
}

#[test]
fn too_much_history_costs_the_oldest_snapshot() {
    for background in [false, true] {
        let options = StoreOptions { history_bytes: 100_000, ..options(background) };
        let store = Store::open(MemVfs::new(), options).expect("open");
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
        put(&store, &table, b"k", &[0; 50]);
        put(&store, &table, b"long", &[0; 30_000]);
        let mut old = store.begin();
        assert!(is(&old, &table, b"k", &[0; 50]));
        old.put(&table, b"mine", b"before").expect("put");
        for i in 0..4000u32 {
            put(&store, &table, b"k", &[i as u8; 50]);
            let bytes = store.stats().expect("stats").history.bytes;
            assert!(bytes < 250_000, "{bytes} bytes of history");
        }
        put(&store, &table, b"long", b"short");
        store.check().expect("check");
        let history = store.stats().expect("stats").history;
        assert_eq!((history.snapshots, history.revoked), (0, 1));
        let too_old = |outcome: Result<(), Error>| matches!(outcome, Err(Error::SnapshotTooOld));
        assert!(too_old(old.get(&table, b"k").map(drop)));
        assert!(too_old(old.get(&table, b"nothing").map(drop)));
        assert!(too_old(old.put(&table, b"other", b"late")));
        assert!(too_old(old.get_for_update(&table, b"k").map(drop)));
        assert!(too_old(scan(&old, &table, Direction::Forward).map(drop)));
        // Its earlier writes were valid, and can still be committed.
        old.commit().expect("commit");
        assert!(is(&store.begin(), &table, b"mine", b"before"));
    }
}

/// The undo records of its history are overwritten by then, so that one leads back to itself.
#[test]
fn a_snapshot_that_was_given_up_fails_also_where_its_history_is_overwritten() {
    for updates in 1..6 {
        let options = StoreOptions { history_bytes: 100_000, ..options(false) };
        let store = Store::open(MemVfs::new(), options).expect("open");
        let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
        put(&store, &table, b"k", &[0; 50]);
        let old = store.begin();
        assert!(is(&old, &table, b"k", &[0; 50]));
        for i in 0..4000u32 {
            put(&store, &table, b"other", &[i as u8; 50]);
        }
        assert_eq!(store.stats().expect("stats").history.revoked, 1);
        for i in 1..=updates {
            put(&store, &table, b"k", &[i; 50]);
        }
        assert!(matches!(old.get(&table, b"k"), Err(Error::SnapshotTooOld)));
    }
}

#[test]
fn snapshots_under_many_writers_are_consistent() {
    let waiting = StoreOptions { lock_timeout: Duration::from_secs(50), ..options(true) };
    let store = Store::open(MemVfs::new(), waiting).expect("open");
    let table = store.create_table("t", TableOptions::default().page_bytes(4096)).expect("create");
    // An account has a balance, and bytes that make some of them long.
    let account = |balance: i64, len: u64| [&balance.to_le_bytes()[..], &vec![7; len as usize]].concat();
    let balance = |value: &[u8]| i64::from_le_bytes(value[..8].try_into().expect("eight bytes"));
    let mut setup = store.begin();
    for key in 0..20u8 {
        setup.put(&table, &[key], &account(100, 0)).expect("put");
    }
    setup.commit().expect("commit");
    let transfer = |rng: &mut Rng| -> Result<(), Error> {
        let (from, to) = (rng.below(20) as u8, rng.below(20) as u8);
        let mut txn = store.begin();
        let mut sums = [(from, -1), (to, 1)];
        if from == to {
            sums[1].1 = 1;
        }
        for (key, change) in sums {
            let before = balance(&txn.get(&table, &[key])?.expect("account"));
            let len = if rng.chance(10) { 5000 } else { rng.below(50) };
            if rng.chance(20) {
                assert!(txn.delete(&table, &[key])?);
            }
            txn.put(&table, &[key], &account(before + change, len))?;
        }
        txn.commit()
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|seed| {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    let mut done = 0;
                    while done < 400 {
                        match transfer(&mut rng) {
                            Ok(()) => done += 1,
                            Err(e) => assert!(e.is_retryable(), "{e}"),
                        }
                    }
                })
            })
            .collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            let reader = store.begin();
            let first = scan(&reader, &table, Direction::Forward).expect("scan");
            assert_eq!(first.iter().map(|(_, v)| balance(v)).sum::<i64>(), 2000);
            let mut second = scan(&reader, &table, Direction::Backward).expect("scan");
            second.reverse();
            assert!(first == second, "a snapshot changed");
        }
    });
    store.check().expect("check");
    assert_eq!(store.stats().expect("stats").history.transactions, 0);
}
