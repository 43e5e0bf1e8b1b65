//! A VFS that fills up: new records are refused, everything else goes on, and nothing is lost.

#[allow(dead_code, reason = "other tests use the rest")]
use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use crate::rigs::{Flash, Rig, recover};
use lacuna_device::{BlockDevice, MemDevice, Vfs};
use lacuna_engine::{Algorithm, Direction, Error, Store, StoreOptions, Table, TableKind, TableOptions, Txn};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
use lacuna_sim::{SeededRng, for_each_seed};

fn device() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(device.clone(), &FormatOptions::default()).expect("format");
    device
}

fn vfs(device: &Arc<dyn BlockDevice>, background: bool) -> Arc<dyn Vfs> {
    let mut options = Options::default();
    options.ftl.background = background;
    Arc::new(Nvmfs::open(device.clone(), options).expect("open"))
}

fn options(background: bool) -> StoreOptions {
    StoreOptions { pool_bytes: 4 << 20, background, ..StoreOptions::default() }
}

fn count(store: &Store, table: &Table) -> u64 {
    let mut records = 0_u64;
    let all = (Bound::Unbounded, Bound::Unbounded);
    let txn = store.begin();
    txn.scan(table, all.0, all.1, Direction::Forward, |_, _| {
        records += 1;
        ControlFlow::Continue(())
    })
    .expect("a full store is readable");
    records
}

/// Inserts until the store is full; the number of records committed.
fn fill(store: &Store, table: &Table, from: u64) -> u64 {
    fill_with(store, table, from, 800)
}

/// The same with values of that many bytes.
fn fill_with(store: &Store, table: &Table, from: u64, value_bytes: usize) -> u64 {
    let mut next = from;
    loop {
        let mut txn = store.begin();
        for i in 0..50u64 {
            // Bytes that do not compress.
            let mut state = (next + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let value: Vec<u8> = (0..value_bytes)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            match txn.put(table, &(next + i).to_be_bytes(), &value) {
                Ok(()) => {}
                Err(Error::Full { .. }) => {
                    txn.rollback().expect("a full store rolls back");
                    return next;
                }
                Err(e) => panic!("{e}"),
            }
        }
        txn.commit().expect("what was admitted can be committed");
        next += 50;
    }
}

fn fill_empty_and_fill_again(background: bool) {
    let device = device();
    let store = Store::open(vfs(&device, background), options(background)).expect("open");
    let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
    let records = fill(&store, &table, 0);
    assert!(records * 800 > 27 << 20, "full after only {records} records");
    assert_eq!(count(&store, &table), records);
    drop((store, table));

    // As after a kill: recovery needs no more space than there is.
    let store = Store::open(vfs(&device, background), options(background)).expect("a full store opens");
    let table = store.table("t").expect("table").expect("there");
    assert_eq!(count(&store, &table), records);
    store.check().expect("check");
    for first in (0..records / 2).step_by(50) {
        let mut txn = store.begin();
        for i in first..first + 50 {
            assert!(txn.delete(&table, &i.to_be_bytes()).expect("a full store deletes"));
        }
        txn.commit().expect("commit");
    }
    let kept = count(&store, &table);
    drop(table);
    // Closing purges every deleted record.
    store.close().expect("close");
    let store = Store::open(vfs(&device, background), options(background)).expect("open");
    let table = store.table("t").expect("table").expect("there");
    let more = fill(&store, &table, records);
    assert!(more > records, "deletes gave no space back");
    assert_eq!(count(&store, &table), kept + more - records);
    store.close().expect("close");
}

#[test]
fn a_full_store_refuses_and_recovers() {
    fill_empty_and_fill_again(false);
}

#[test]
fn a_full_store_refuses_and_recovers_with_threads() {
    fill_empty_and_fill_again(true);
}

/// A transaction that deletes and inserts need not know that another thread purges records.
#[test]
fn what_was_deleted_makes_space_at_once() {
    let device = device();
    let store = Store::open(vfs(&device, true), options(true)).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let (mut first, mut end) = (0u64, fill_with(&store, &table, 0, 100));
    for _ in 0..4 {
        // Purge begins when no view sees the records any more.
        let reader = store.begin();
        assert!(reader.get(&table, &first.to_be_bytes()).expect("readable").is_some());
        let deleted = (end - first) / 2;
        let mut txn = store.begin();
        for key in first..first + deleted {
            assert!(txn.delete(&table, &key.to_be_bytes()).expect("a full store deletes"));
        }
        txn.commit().expect("commit");
        drop(reader);
        let new = fill_with(&store, &table, end, 100) - end;
        assert!(new > deleted / 2, "{deleted} deleted made space for {new}");
        (first, end) = (first + deleted, end + new);
    }
    store.check().expect("sound");
}

/// Its rows say so only; the pages are written anew as far as there is space.
#[test]
fn a_full_store_is_told_to_compress_itself() {
    for background in [false, true] {
        let store = Store::open(vfs(&device(), background), options(background)).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        let insert = |first: u64| {
            let mut txn = store.begin();
            for key in first..first + 20 {
                if let Err(error) = txn.put(&table, &key.to_be_bytes(), &[7; 900]) {
                    txn.rollback().expect("a full store rolls back");
                    return Err(error);
                }
            }
            txn.commit()
        };
        let full = (0..).step_by(20).find(|first| insert(*first).is_err()).expect("it fills up");
        assert!(matches!(insert(full), Err(Error::Full { .. })));
        store.alter_table("t", TableOptions::compressed(Algorithm::Lz4).kind).expect("alter");
        store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
        let more = (full..).step_by(20).take(100).take_while(|first| insert(*first).is_ok()).count();
        assert_eq!(more, 100, "after {full} records");
        assert_eq!(count(&store, &table), full + 2000);
        store.check().expect("check");
    }
}

/// Without holes a freed page keeps its space, and only its table can have it.
#[test]
fn records_find_free_pages_that_are_no_holes() {
    for (background, pool_bytes) in [(false, 4 << 20), (true, 4 << 20), (true, 64 << 20)] {
        let options = StoreOptions { trim: false, pool_bytes, ..options(background) };
        let store = Store::open(vfs(&device(), background), options).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        let (mut first, mut end) = (0, fill(&store, &table, 0));
        for _ in 0..3 {
            let deleted = (end - first) / 20 * 19;
            for at in 0..deleted / 50 {
                let mut txn = store.begin();
                for key in first + at * 50..first + at * 50 + 50 {
                    // Spread over the whole file, whose end stays in use.
                    if key % 20 != 0 {
                        assert!(txn.delete(&table, &key.to_be_bytes()).expect("a full store deletes"));
                    }
                }
                txn.commit().expect("commit");
            }
            if !background {
                while store.step().expect("step") {}
            }
            let new = fill(&store, &table, end) - end;
            assert!(new > deleted / 2, "{deleted} deleted made space for {new}");
            (first, end) = (end, end + new);
        }
        store.check().expect("sound");
    }
}

/// The file system below grows while the store is open and full.
#[test]
fn a_full_store_goes_on_when_its_place_grows() {
    for background in [false, true] {
        let device = device();
        let mut run = Options::default();
        run.ftl.background = background;
        let fs = Arc::new(Nvmfs::open(device.clone(), run).expect("open"));
        let store = Store::open(fs.clone(), options(background)).expect("open");
        let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
        let before = fill(&store, &table, 0);
        let free = || fs.free_bytes().expect("free").expect("known");
        let free_before = free();
        assert_eq!(fs.grow(Some(128 << 20)).expect("grow"), 128 << 20);
        assert!(free() > free_before + (40 << 20));
        let after = fill(&store, &table, before);
        assert!(after > before + before * 8 / 10, "{before} records, then {after}");
        drop((store, table));
        drop(fs);
        let store = Store::open(vfs(&device, background), options(background)).expect("open again");
        let table = store.table("t").expect("table").expect("there");
        assert_eq!(count(&store, &table), after);
        store.check().expect("check");
    }
}

/// Stores that are used at their limit, one after the other.
const LIVES: u64 = 12;
/// Times that each is opened.
const USES: u64 = 6;
/// Records that a transaction writes at most.
const TXN_RECORDS: u64 = 40;

/// A store that is always near full, and its expected content.
struct Life {
    flash: Flash,
    kind: TableOptions,
    background: bool,
    trim: bool,
    /// Little is kept free, less than snapshots may keep.
    is_tight: bool,
    rng: SeededRng,
    /// Version of each acknowledged record.
    model: BTreeMap<u64, u64>,
    /// Changes of a transaction whose commit failed: `None` for a record that it deleted.
    in_doubt: BTreeMap<u64, Option<u64>>,
    next_key: u64,
    refused: u64,
    /// A snapshot is open: beside it deletes may be refused, and go on once it is closed.
    is_watched: bool,
}

/// Versions from this one on are short, or compress well.
const THIN: u64 = 1 << 20;

/// Bytes of a length that depends on both; they do not compress, but for [`THIN`] versions.
fn value_of(key: u64, version: u64) -> Vec<u8> {
    if version >= THIN {
        return vec![version as u8; if version.is_multiple_of(2) { 20 } else { 800 }];
    }
    let mut rng = SeededRng::new(key << 20 | version);
    let mut value = vec![0; 300 + rng.below(1500) as usize];
    rng.fill(&mut value);
    value
}

/// A transaction of [`Life::hold`], and the versions that it wrote.
struct Held {
    txn: Txn,
    changes: BTreeMap<u64, u64>,
}

/// A snapshot, and the version of each record that it sees.
struct Snapshot {
    txn: Txn,
    model: BTreeMap<u64, u64>,
}

impl Life {
    fn new(seed: u64) -> Life {
        let background = seed % 2 == 1;
        let kinds = [
            TableOptions::compressed(Algorithm::Lz4),
            TableOptions::default(),
            TableOptions::row_compressed(8),
        ];
        Life {
            flash: Flash::new(seed, background),
            kind: kinds[seed as usize % kinds.len()],
            background,
            trim: seed % 12 < 6,
            is_tight: seed % 4 >= 2,
            rng: SeededRng::new(seed),
            model: BTreeMap::new(),
            in_doubt: BTreeMap::new(),
            next_key: 0,
            refused: 0,
            is_watched: false,
        }
    }

    /// Opens the store after a crash, compares it with the model, and takes its content as the new model.
    fn open(&mut self) -> (Store, Table) {
        let kind = self.kind;
        let mut options = StoreOptions { trim: self.trim, ..options(self.background) };
        if self.is_tight {
            (options.pool_bytes, options.log_bytes) = (1 << 20, 512 << 10);
        }
        let (store, table) = recover(&self.flash, &mut self.rng, |vfs| {
            let store = Store::open(vfs, options.clone())?;
            let table = store.open_table("t", kind)?;
            Ok((store, table))
        });
        let mut found = BTreeMap::new();
        let txn = store.begin();
        txn.scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, value| {
            let key = u64::from_be_bytes(key.try_into().expect("eight bytes"));
            found.insert(key, value.to_vec());
            ControlFlow::Continue(())
        })
        .expect("a full store is readable");
        let mut doubted = self.model.clone();
        for (key, version) in &self.in_doubt {
            match version {
                Some(version) => doubted.insert(*key, *version),
                None => doubted.remove(key),
            };
        }
        let is = |model: &BTreeMap<u64, u64>| {
            model.len() == found.len()
                && model.iter().all(|(key, version)| found.get(key) == Some(&value_of(*key, *version)))
        };
        if !is(&self.model) {
            assert!(is(&doubted), "{} records, {} expected", found.len(), self.model.len());
            self.model = doubted;
        }
        self.in_doubt.clear();
        self.is_watched = false;
        drop(txn);
        (store, table)
    }

    /// One transaction of so many changes, of which each chooses its key and whether it deletes. `None` when the power
    /// was cut, else whether nothing was refused.
    fn change(
        &mut self,
        store: &Store,
        table: &Table,
        mut each: impl FnMut(&mut Life) -> (u64, bool),
    ) -> Option<bool> {
        let mut changes = BTreeMap::new();
        let mut txn = store.begin();
        for _ in 0..1 + self.rng.below(TXN_RECORDS) {
            let (key, deletes) = each(self);
            let version = (!deletes).then(|| self.rng.below(1 << 20));
            let outcome = match version {
                Some(version) => txn.put(table, &key.to_be_bytes(), &value_of(key, version)),
                None => txn.delete(table, &key.to_be_bytes()).map(|_| ()),
            };
            match outcome {
                Ok(()) => drop(changes.insert(key, version)),
                Err(Error::Full { .. }) if !deletes || self.is_watched => {
                    self.refused += 1;
                    txn.rollback().ok().or_else(|| self.flash.is_off().then_some(()))?;
                    return Some(false);
                }
                Err(error) => {
                    assert!(self.flash.may_fail(), "deletes {deletes}: {error}");
                    return None;
                }
            }
        }
        if let Err(error) = txn.commit() {
            assert!(self.flash.may_fail(), "{error}");
            self.in_doubt = changes;
            return None;
        }
        for (key, version) in changes {
            match version {
                Some(version) => self.model.insert(key, version),
                None => self.model.remove(&key),
            };
        }
        Some(true)
    }

    fn any_key(&mut self) -> u64 {
        let from = self.rng.below(self.next_key.max(1));
        let key = self.model.range(from..).next().or_else(|| self.model.iter().next());
        key.map_or(0, |(key, _)| *key)
    }

    /// A transaction that lets others have space, and goes on until [`Life::release`]. `None` when the power was cut.
    fn hold(&mut self, store: &Store, table: &Table) -> Option<Option<Held>> {
        if self.rng.chance(50) {
            return Some(None);
        }
        let mut held = Held { txn: store.begin(), changes: BTreeMap::new() };
        for _ in 0..self.rng.below(4000).min(self.model.len() as u64) {
            let (key, version) = (self.any_key(), THIN + self.rng.below(256));
            match held.txn.put(table, &key.to_be_bytes(), &value_of(key, version)) {
                Ok(()) => drop(held.changes.insert(key, version)),
                Err(Error::Full { .. }) => break,
                Err(error) => {
                    assert!(self.flash.may_fail(), "{error}");
                    return None;
                }
            }
        }
        Some(Some(held))
    }

    /// Rolls it back, or commits it now and then. `None` when the power was cut.
    fn release(&mut self, held: Option<Held>) -> Option<()> {
        let Some(Held { txn, changes }) = held else { return Some(()) };
        if self.rng.chance(70) {
            return txn.rollback().map_err(|error| assert!(self.flash.may_fail(), "{error}")).ok();
        }
        if let Err(error) = txn.commit() {
            assert!(self.flash.may_fail(), "{error}");
            self.in_doubt = changes.into_iter().map(|(key, version)| (key, Some(version))).collect();
            return None;
        }
        self.model.extend(changes);
        Some(())
    }

    /// Now and then a snapshot of what is there.
    fn watch(&mut self, store: &Store, table: &Table) -> Option<Snapshot> {
        if self.is_watched || self.rng.chance(60) {
            return None;
        }
        self.is_watched = true;
        let txn = store.begin();
        // It is of this moment, also where the power is cut while this reads.
        assert!(txn.get(table, b"none").is_ok() || self.flash.may_fail());
        Some(Snapshot { txn, model: self.model.clone() })
    }

    /// Closes a snapshot, which still sees what it saw, unless it was given up. `None` when the power was cut.
    fn unwatch(&mut self, snapshot: Option<Snapshot>, table: &Table) -> Option<()> {
        let Some(Snapshot { txn, model }) = snapshot else { return Some(()) };
        self.is_watched = false;
        let mut expected = model.iter();
        let outcome =
            txn.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, value| {
                let (expected, version) = expected.next().expect("no more records than there were");
                assert!(
                    key == expected.to_be_bytes() && value == value_of(*expected, *version),
                    "{expected}"
                );
                ControlFlow::Continue(())
            });
        match outcome {
            Ok(()) => assert_eq!(expected.next(), None, "a record is missing"),
            Err(Error::SnapshotTooOld) => {}
            Err(error) => {
                assert!(self.flash.may_fail(), "{error}");
                return None;
            }
        }
        Some(())
    }

    /// Fills the store, overwrites, deletes a part, and fills it again. `None` when the power was cut.
    fn work(&mut self, store: &Store, table: &Table) -> Option<()> {
        let new_key = |life: &mut Life| {
            life.next_key += 1;
            (life.next_key, false)
        };
        let mut snapshot = self.watch(store, table);
        let held = self.hold(store, table)?;
        snapshot = snapshot.or_else(|| self.watch(store, table));
        let first_new = self.next_key + 1;
        while self.change(store, table, new_key)? {}
        for _ in 0..self.rng.below(10) {
            let newest = |life: &Life| life.model.range(first_new..).next_back().map(|(key, _)| *key);
            let mut next = newest(self);
            let deletes = next.is_some();
            // What this transaction has deleted is in the model until it commits.
            let each = |life: &mut Life| {
                let key = next.unwrap_or(first_new);
                next = life.model.range(first_new..key).next_back().map(|(key, _)| *key);
                (key, true)
            };
            let is_done = !deletes || self.change(store, table, each)?;
            assert!(is_done || self.is_watched, "a delete beside a held transaction");
        }
        self.release(held)?;
        for _ in 0..self.rng.below(30) {
            // Longer values may be refused.
            self.change(store, table, |life| (life.any_key(), life.rng.chance(30)))?;
        }
        let (before, mut at) = (self.model.len(), self.any_key());
        while self.model.len() > before * 6 / 10 {
            // Side by side: single ones leave pages of a plain table that are too full to be merged.
            let next = |life: &mut Life| {
                let behind = life.model.range(at + 1..).next().map(|(key, _)| *key);
                at = behind.unwrap_or_else(|| life.any_key());
                (at, true)
            };
            if !self.change(store, table, next)? {
                assert!(self.is_watched, "a delete is refused");
                self.unwatch(snapshot.take(), table)?;
            }
        }
        self.unwatch(snapshot, table)?;
        if !self.background {
            while store.step().ok()? {}
        }
        let kept = self.model.len();
        while self.change(store, table, new_key)? {}
        let (deleted, new) = (before - kept, self.model.len() - kept);
        assert!(new > deleted / 2, "{deleted} deleted gave space for {new}");
        Some(())
    }
}

/// Fullness, age and power cuts at once: deletes always work and free space, however the previous use ended.
#[test]
fn stores_live_long_at_their_limit() {
    for_each_seed(LIVES, |seed| {
        let mut life = Life::new(seed);
        for number in 0..USES {
            let (store, table) = life.open();
            let ends_early = life.rng.chance(60);
            if ends_early {
                life.flash.set_cut_after(1 + life.rng.below(4000));
            }
            let worked = life.work(&store, &table);
            assert!(worked.is_some() || ends_early);
            drop(table);
            match worked {
                None => drop(store),
                Some(()) if number % 3 == 0 => drop(store),
                Some(()) => match store.close() {
                    Ok(()) => {}
                    Err(error) => assert!(life.flash.may_fail(), "{error}"),
                },
            }
        }
        let (store, table) = life.open();
        assert!(life.refused > 0, "never full");
        store.check().expect("sound");
        drop((store, table));
        life.flash.check();
    });
}

/// A value of which about a third is left when it is compressed.
fn compressible(n: u64) -> Vec<u8> {
    let mut rng = SeededRng::new(n);
    (0..800).map(|i| if i % 16 == 0 { rng.below(256) as u8 } else { b'a' }).collect()
}

/// A compressed table that is plain from now on, in a store of which a third is free: its pages would not fit. How
/// many records it has.
fn that_would_not_fit(store: &Store, vfs: &Arc<dyn Vfs>) -> (Table, u64) {
    let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("table");
    let mut records = 0_u64;
    while vfs.free_bytes().expect("asked").expect("known") > 20 << 20 {
        let mut txn = store.begin();
        for _ in 0..1000 {
            txn.put(&table, &records.to_be_bytes(), &compressible(records)).expect("there is space");
            records += 1;
        }
        txn.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
    }
    store.alter_table("t", TableKind::Plain).expect("alter");
    (table, records)
}

/// Deletes records until all are gone; at the end the store closes, opens and is sound.
fn delete_all(store: Store, table: Table, vfs: &Arc<dyn Vfs>, records: u64) {
    for first in (0..records).step_by(50) {
        // At the very end of the space one may have to wait for what earlier ones have freed.
        let done = (0..20).any(|_| {
            let mut txn = store.begin();
            let keys = first..records.min(first + 50);
            match keys.into_iter().try_for_each(|key| txn.delete(&table, &key.to_be_bytes()).map(drop)) {
                Ok(()) => txn.commit().map(|_| true).expect("commit"),
                Err(Error::Full { .. }) => {
                    txn.rollback().expect("rollback");
                    store.checkpoint().map(|()| false).expect("checkpoint")
                }
                Err(error) => panic!("{error}"),
            }
        });
        assert!(done, "deletes of records from {first} on are refused for ever");
    }
    assert_eq!(count(&store, &table), 0);
    store.checkpoint().expect("checkpoint");
    store.close().expect("close");
    drop(table);
    let store = Store::open(vfs.clone(), options(false)).expect("open");
    store.check().expect("sound");
    let table = store.table("t").expect("table").expect("there");
    assert!(fill(&store, &table, 0) > 1000, "its space is free again");
}

/// It took the last byte, and stopped the store for good.
#[test]
fn optimize_leaves_the_space_that_deletes_need() {
    for (background, flush_threads) in [(false, 2), (true, 8)] {
        let vfs = vfs(&device(), background);
        let given = StoreOptions { pool_bytes: 16 << 20, flush_threads, ..options(background) };
        let store = Store::open(vfs.clone(), given).expect("open");
        let (table, records) = that_would_not_fit(&store, &vfs);
        for _ in 0..2 {
            let refused = store.optimize("t", |_| ControlFlow::Continue(()));
            assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
        }
        delete_all(store, table, &vfs, records);
    }
}

/// So did deletes: each page that they change takes three times the space.
#[test]
fn deletes_go_on_where_every_image_grows() {
    for background in [false, true] {
        let vfs = vfs(&device(), background);
        let given = StoreOptions { pool_bytes: 16 << 20, ..options(background) };
        let store = Store::open(vfs.clone(), given).expect("open");
        let (table, records) = that_would_not_fit(&store, &vfs);
        // One of each page, so that no page shrinks before most of them have grown.
        let mut deleted = Vec::new();
        for key in (0..records).step_by(15) {
            let mut txn = store.begin();
            match txn.delete(&table, &key.to_be_bytes()) {
                Ok(_) => txn.commit().expect("commit"),
                Err(error) => {
                    assert!(matches!(error, Error::Full { .. }), "delete of {key}: {error}");
                    break;
                }
            }
            deleted.push(key);
        }
        assert!(deleted.len() > 100, "{}", deleted.len());
        store.close().expect("close");
        drop(table);
        let store = Store::open(vfs.clone(), StoreOptions { pool_bytes: 16 << 20, ..options(background) });
        let store = store.expect("open");
        store.check().expect("sound");
        let table = store.table("t").expect("table").expect("there");
        assert_eq!(count(&store, &table), records - deleted.len() as u64);
        store.close().expect("close");
    }
}
