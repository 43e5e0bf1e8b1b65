//! Snapshots in a nearly full store. What they keep of deleted records takes the space that deletes need; it is there
//! again once they are closed.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{BlockDevice, MemDevice, Vfs};
use lacuna_engine::{Algorithm, Direction, Error, Result, Store, StoreOptions, Table, TableOptions, Txn};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
use lacuna_sim::SeededRng;

/// Records that a transaction writes.
const TXN_RECORDS: u64 = 20;

/// Long, because undo has the keys of deleted records, and of bytes that do not compress.
fn key(number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.resize(400, 0);
    SeededRng::new(number).fill(&mut key[8..]);
    key
}

fn value(number: u64) -> Vec<u8> {
    let mut value = vec![0; 1200];
    SeededRng::new(!number).fill(&mut value);
    value
}

/// A store that refuses new records.
struct FullStore {
    vfs: Arc<dyn Vfs>,
    options: StoreOptions,
    store: Store,
    table: Table,
    records: u64,
}

impl FullStore {
    fn new((kind, background, _, trim): Case, log_bytes: u64) -> FullStore {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(48 << 20));
        Nvmfs::format(device.clone(), &FormatOptions::default()).expect("format");
        let mut run = Options::default();
        run.ftl.background = background;
        let vfs: Arc<dyn Vfs> = Arc::new(Nvmfs::open(device, run).expect("open"));
        // Little is kept free, compared with the history that is allowed: an eighth of the device.
        let options =
            StoreOptions { pool_bytes: 1 << 20, log_bytes, background, trim, ..StoreOptions::default() };
        let store = Store::open(vfs.clone(), options.clone()).expect("open");
        let table = store.create_table("t", kind).expect("create");
        let mut full = FullStore { vfs, options, store, table, records: 0 };
        full.records = full.fill(0);
        full
    }

    /// Inserts records from that number on until the store is full; returns where they end.
    fn fill(&self, first: u64) -> u64 {
        let mut end = first;
        loop {
            let puts = |txn: &mut Txn, number| txn.put(&self.table, &key(number), &value(number));
            match self.change(end..end + TXN_RECORDS, puts) {
                Ok(()) => end += TXN_RECORDS,
                Err(Error::Full { .. }) => return end,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// One transaction, which is rolled back if something is refused.
    fn change(
        &self,
        numbers: impl IntoIterator<Item = u64>,
        mut change: impl FnMut(&mut Txn, u64) -> Result<()>,
    ) -> Result<()> {
        let mut txn = self.store.begin();
        match numbers.into_iter().try_for_each(|number| change(&mut txn, number)) {
            Ok(()) => txn.commit(),
            Err(error) => {
                txn.rollback().expect("a full store rolls back");
                Err(error)
            }
        }
    }

    fn delete(&self, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        self.change(numbers, |txn, number| {
            assert!(txn.delete(&self.table, &key(number))?, "{number} was there");
            Ok(())
        })
    }

    /// Deletes the records of `order` from `done` on, in small transactions, until one is refused.
    fn delete_until_refused(&self, order: &[u64], done: &mut usize) -> Option<Error> {
        while *done < order.len() {
            let some = &order[*done..(*done + TXN_RECORDS as usize).min(order.len())];
            match self.delete(some.iter().copied()) {
                Ok(()) => *done += some.len(),
                Err(error @ Error::Full { .. }) => return Some(error),
                Err(error) => panic!("{error}"),
            }
        }
        None
    }

    /// All records, in an order that comes back to each page seldom if it is `spread`.
    fn order(&self, spread: bool) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.records).collect();
        if spread {
            order.sort_by_key(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        order
    }

    fn count(&self) -> u64 {
        let mut records = 0;
        let txn = self.store.begin();
        txn.scan(&self.table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |found, content| {
            let number = u64::from_be_bytes(found[..8].try_into().expect("eight bytes"));
            assert!(found == key(number) && content == value(number), "record {number}");
            records += 1;
            ControlFlow::Continue(())
        })
        .expect("a full store is readable");
        records
    }

    fn reopen(self) -> FullStore {
        let FullStore { vfs, options, store, table, records } = self;
        drop((store, table));
        let store = Store::open(vfs.clone(), options.clone()).expect("a full store opens");
        let table = store.table("t").expect("look").expect("there");
        FullStore { vfs, options, store, table, records }
    }
}

/// The kind of table; with threads or without; whether changes are spread; and whether free pages become holes.
type Case = (TableOptions, bool, bool, bool);

fn cases() -> [Case; 6] {
    [
        (TableOptions::default(), false, false, true),
        (TableOptions::compressed(Algorithm::Lz4), true, true, true),
        (TableOptions::row_compressed(8), false, true, true),
        (TableOptions::default(), true, true, true),
        (TableOptions::default(), false, false, false),
        (TableOptions::compressed(Algorithm::Lz4), true, true, false),
    ]
}

#[test]
fn deletes_go_on_once_a_snapshot_is_closed() {
    for (case, chosen) in cases().into_iter().enumerate() {
        let full = FullStore::new(chosen, [512 << 10, 1 << 20][case % 2]);
        let (.., spread, trim) = chosen;
        let order = full.order(spread);
        let snapshot = full.store.begin();
        assert!(snapshot.get(&full.table, &key(0)).expect("readable").is_some());
        let mut deleted = 0;
        let refused = full.delete_until_refused(&order, &mut deleted);
        let refused = refused.expect("without end deletes would take what recovery needs");
        assert!(
            deleted > 100 && refused.to_string().contains("until they are closed"),
            "{deleted}: {refused}"
        );
        // However often one tries, nothing is the worse for it.
        assert!((0..10).all(|_| full.delete_until_refused(&order, &mut deleted).is_some()), "case {case}");
        for number in order.iter().step_by(order.len() / 50) {
            let found = snapshot.get(&full.table, &key(*number)).expect("the snapshot is not given up");
            assert!(found == Some(value(*number)), "case {case}: record {number}");
        }
        drop(snapshot);
        let refused = full.delete_until_refused(&order, &mut deleted);
        assert!(refused.is_none(), "case {case}: {refused:?} after {deleted} of {}", order.len());
        assert_eq!(full.count(), 0, "case {case}");
        full.store.check().expect("sound");
        let again = full.fill(0);
        let least = if trim { full.records / 3 * 2 } else { full.records / 2 };
        assert!(again > least, "case {case}: {} records, then {again}", full.records);
        full.store.close().expect("close");
    }
}

/// A rollback frees its undo only when it has ended.
#[test]
fn a_transaction_that_deletes_until_it_is_refused_rolls_back() {
    for (case, chosen) in cases().into_iter().enumerate() {
        let mut full = FullStore::new(chosen, [512 << 10, 1 << 20][case % 2]);
        let (.., spread, _) = chosen;
        let order = full.order(spread);
        for is_interrupted in [false, true, false] {
            let mut txn = full.store.begin();
            let mut deleted = 0;
            let refused = loop {
                match txn.delete(&full.table, &key(order[deleted])) {
                    Ok(found) => assert!(found),
                    Err(error) => break error,
                }
                deleted += 1;
            };
            assert!(matches!(refused, Error::Full { .. }), "{refused}");
            assert!(deleted > 100 && deleted < order.len(), "case {case}: {deleted} of {}", order.len());
            if is_interrupted {
                full = full.reopen();
                drop(txn);
            } else {
                txn.rollback().expect("a full store rolls back");
            }
            full.store.check().expect("sound");
            assert_eq!(full.count(), full.records, "case {case}");
        }
        let refused = full.delete_until_refused(&order, &mut 0);
        assert!(refused.is_none(), "case {case}: {refused:?}");
        full.store.close().expect("close");
    }
}
