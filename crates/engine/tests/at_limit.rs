//! Transactions that give space back by what they change, others that take it, and a rollback that needs it again.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{BlockDevice, MemDevice, MemVfs, Vfs};
use lacuna_engine::{Algorithm, Direction, Error, Store, StoreOptions, Table, TableKind, TableOptions, Txn};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
use lacuna_sim::SeededRng;

const VALUE_BYTES: usize = 800;

/// What the transaction that will be rolled back does to each record.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Shorter,
    Compressible,
    /// The same, and the table, whose pages were plain, is compressed from then on.
    Packed,
    /// The table, whose pages were compressed, is written in this way from then on.
    Touched(TableKind),
}

/// Keys of all records, spread over the whole table.
fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn value(number: u64, change: Change) -> Vec<u8> {
    let mut rng = SeededRng::new(number);
    let mut value = vec![b'a'; VALUE_BYTES];
    match change {
        Change::Touched(TableKind::Plain) => value.chunks_mut(16).for_each(|some| rng.fill(&mut some[..1])),
        Change::Touched(_) => {
            rng.fill(&mut value);
            value.iter_mut().for_each(|byte| *byte = b'a' + *byte % 8);
        }
        _ => rng.fill(&mut value),
    }
    value
}

fn changed(number: u64, change: Change) -> Vec<u8> {
    match change {
        Change::Shorter => vec![b's'; 20],
        Change::Compressible | Change::Packed => vec![b'c'; VALUE_BYTES],
        Change::Touched(_) => {
            let mut value = value(number, change);
            value[..8].copy_from_slice(&[b't'; 8]);
            value
        }
    }
}

fn put_all(
    store: &Store,
    table: &Table,
    numbers: impl Iterator<Item = u64>,
    value: impl Fn(u64) -> Vec<u8>,
) -> Result<Txn, Error> {
    let mut txn = store.begin();
    for number in numbers {
        if let Err(error) = txn.put(table, &key(number), &value(number)) {
            txn.rollback().expect("what was refused is rolled back");
            return Err(error);
        }
    }
    Ok(txn)
}

fn content(store: &Store, table: &Table) -> u64 {
    let mut sum = 0_u64;
    let txn = store.begin();
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, value| {
        let [first, last] = [key, value].map(|bytes| {
            bytes.iter().fold(7, |sum: u64, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
        });
        sum = sum.wrapping_add(first.wrapping_mul(last | 1));
        ControlFlow::Continue(())
    })
    .expect("scan");
    sum
}

fn rolls_back_when_full(kind: TableOptions, change: Change, background: bool) {
    let (device_bytes, records) =
        if matches!(change, Change::Touched(_)) { (64 << 20, 45_000) } else { (112 << 20, 16_000) };
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(device_bytes));
    Nvmfs::format(device.clone(), &FormatOptions::default()).expect("format");
    let mut run = Options::default();
    run.ftl.background = background;
    let vfs: Arc<dyn Vfs> = Arc::new(Nvmfs::open(device, run).expect("open"));
    let options =
        || StoreOptions { pool_bytes: 4 << 20, log_bytes: 2 << 20, background, ..StoreOptions::default() };
    let store = Store::open(vfs.clone(), options()).expect("open");
    let table = store.create_table("t", kind).expect("create");
    for first in (0..records).step_by(100) {
        let txn = put_all(&store, &table, first..first + 100, |number| value(number, change));
        txn.expect("there is space").commit().expect("commit");
    }
    let others = |first: u64| {
        let txn = put_all(&store, &table, first..first + 20, |number| value(number, change))?;
        txn.commit()
    };
    let running = put_all(&store, &table, 0..records, |number| changed(number, change)).expect("space");
    store.checkpoint().expect("checkpoint");
    match change {
        Change::Touched(kind) => store.alter_table("t", kind).expect("alter"),
        Change::Packed => {
            store.alter_table("t", TableOptions::compressed(Algorithm::Lz4).kind).expect("alter");
            store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
        }
        _ => {}
    }
    let mut end = records;
    loop {
        match others(end) {
            Ok(()) => end += 20,
            Err(Error::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(end > records + 1000, "{change:?}: others were refused after {} records", end - records);
    store.checkpoint().expect("checkpoint");
    running.rollback().expect("there is space for a rollback");
    store.checkpoint().expect("checkpoint");
    if !matches!(change, Change::Touched(_)) {
        others(end).expect("what was reserved for the rollback is not any more");
        end += 20;
    }
    store.check().expect("sound");
    let found = content(&store, &table);
    drop(table);
    store.close().expect("close");
    let store = Store::open(vfs, options()).expect("a full store opens");
    let table = store.table("t").expect("table").expect("there");
    assert_eq!(content(&store, &table), found);
    let txn = store.begin();
    for number in 0..end {
        let found = txn.get(&table, &key(number)).expect("get").expect("there");
        assert!(found == value(number, change), "record {number}");
    }
}

/// However they end.
#[test]
fn nothing_is_reserved_once_no_transaction_runs() {
    let options = || StoreOptions { background: false, ..StoreOptions::default() };
    let store = Store::open(MemVfs::new(), options()).expect("open");
    let table = store.create_table("t", TableOptions::default()).expect("create");
    let all = |change| put_all(&store, &table, 0..100, |number| changed(number, change)).expect("space");
    all(Change::Compressible).commit().expect("commit");
    drop(all(Change::Shorter));
    store.check().expect("sound");
    all(Change::Shorter).rollback().expect("rollback");
    store.check().expect("sound");
    let mut txn = all(Change::Compressible);
    let savepoint = txn.savepoint().expect("savepoint");
    (0..100).for_each(|number| txn.put(&table, &key(number), b"short").expect("put"));
    store.check().expect("sound, with one that runs");
    txn.rollback_to(savepoint).expect("rollback");
    txn.commit().expect("commit");
    store.check().expect("sound");
    all(Change::Shorter).commit().expect("commit");
    store.close().expect("close");
}

#[test]
fn a_rollback_makes_records_as_long_as_they_were() {
    rolls_back_when_full(TableOptions::default(), Change::Shorter, false);
    rolls_back_when_full(TableOptions::compressed(Algorithm::Lz4), Change::Shorter, true);
    rolls_back_when_full(TableOptions::row_compressed(8), Change::Shorter, false);
}

#[test]
fn a_rollback_brings_back_what_does_not_compress() {
    rolls_back_when_full(TableOptions::compressed(Algorithm::Lz4), Change::Compressible, false);
    rolls_back_when_full(TableOptions::row_compressed(8), Change::Compressible, true);
}

#[test]
fn a_rollback_brings_back_what_was_compressed_meanwhile() {
    rolls_back_when_full(TableOptions::default(), Change::Packed, false);
    rolls_back_when_full(TableOptions::default(), Change::Packed, true);
}

#[test]
fn a_rollback_writes_no_page_longer_than_before_while_space_is_short() {
    rolls_back_when_full(TableOptions::compressed(Algorithm::Lz4), Change::Touched(TableKind::Plain), false);
    rolls_back_when_full(TableOptions::compressed(Algorithm::Lz4), Change::Touched(TableKind::Plain), true);
}

/// By a level at which zstd codes no single bytes.
#[test]
fn a_rollback_writes_no_page_by_a_lower_level_while_space_is_short() {
    let zstd = |level| TableKind::PageCompressed { algorithm: Algorithm::Zstd, level };
    let kind = TableOptions { kind: zstd(3), ..TableOptions::default() };
    rolls_back_when_full(kind, Change::Touched(zstd(-7)), false);
}
