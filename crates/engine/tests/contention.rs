//! Writers that roll back beside readers of snapshots: undo slots change hands while their history is purged.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use lacuna_device::MemVfs;
use lacuna_engine::{Durability, Error, Store, StoreOptions, Table, TableOptions};
use lacuna_sim::{SeededRng as Rng, for_each_seed};

const WRITERS: u64 = 4;
const READERS: u64 = 3;
const RECORDS: u64 = 300;

fn options() -> StoreOptions {
    StoreOptions { pool_bytes: 32 << 20, durability: Durability::Relaxed, ..StoreOptions::default() }
}

fn key(writer: u64, record: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&writer.to_be_bytes());
    key[8..].copy_from_slice(&record.to_be_bytes());
    key
}

/// Writes its records in `rounds` transactions, of which six in ten are rolled back. Returns what each record then
/// holds.
fn write(store: &Store, table: &Table, writer: u64, rounds: u64, rng: &mut Rng) -> Result<u64, Error> {
    let mut committed = 0;
    for round in 1..=rounds {
        let mut txn = store.begin();
        for record in 0..RECORDS {
            let mut value = vec![rng.below(256) as u8; 20 + rng.below(200) as usize];
            value[..8].copy_from_slice(&round.to_le_bytes());
            txn.put(table, &key(writer, record), &value)?;
        }
        if rng.chance(60) {
            txn.rollback()?;
        } else {
            txn.commit()?;
            committed = round;
        }
    }
    Ok(committed)
}

/// Short snapshots: all records of a writer are of one transaction.
fn read(store: &Store, table: &Table, rng: &mut Rng, is_over: &AtomicBool) -> Result<(), Error> {
    while !is_over.load(Ordering::Relaxed) {
        let txn = store.begin();
        let writer = rng.below(WRITERS);
        let mut rounds = Vec::new();
        for _ in 0..1 + rng.below(8) {
            let value = txn.get(table, &key(writer, rng.below(RECORDS)))?;
            rounds.push(value.map(|value| value[..8].to_vec()));
        }
        rounds.dedup();
        assert_eq!(rounds.len(), 1, "of one transaction");
    }
    Ok(())
}

/// Without the ownership of undo pages (undo slots, invariant 3) purge frees pages that the next owner of a slot has
/// written to: the store stops, cannot be opened, or a page is neither in use nor free.
#[test]
fn purge_leaves_the_pages_of_a_slots_next_owner_alone() {
    for_each_seed(4, |seed| {
        let vfs = MemVfs::new();
        let store = Store::open(vfs.clone(), options()).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("table");
        let is_over = AtomicBool::new(false);
        let committed: Vec<u64> = thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS)
                .map(|reader| {
                    let (store, table, is_over) = (&store, &table, &is_over);
                    let mut rng = Rng::new(seed * 100 + 50 + reader);
                    scope.spawn(move || read(store, table, &mut rng, is_over))
                })
                .collect();
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (store, table) = (&store, &table);
                    let mut rng = Rng::new(seed * 100 + writer);
                    scope.spawn(move || write(store, table, writer, 60, &mut rng))
                })
                .collect();
            let committed: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().expect("thread").expect("read"));
            committed.into_iter().map(|rounds| rounds.expect("thread").expect("write")).collect()
        });
        let check = |store: &Store, table: &Table| {
            store.check().expect("check");
            for (writer, round) in committed.iter().enumerate() {
                let value = store.begin().get(table, &key(writer as u64, 7)).expect("get");
                let found =
                    value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().expect("8 bytes")));
                assert_eq!(found, *round, "writer {writer}");
            }
        };
        check(&store, &table);
        drop((store, table));
        let store = Store::open(vfs, options()).expect("open again");
        let table = store.table("t").expect("catalog").expect("table");
        check(&store, &table);
    });
}
