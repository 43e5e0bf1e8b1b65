//! Row-compressed tables: properties that make them a fair baseline, and their crash safety.

use std::{collections::BTreeMap, sync::Arc};

use lacuna_device::{AlignedBuf, MemVfs, StreamHint, Vfs};
use lacuna_engine::{Algorithm, Error, RowStats, Store, StoreOptions, Table, TableKind, TableOptions};
use lacuna_sim::{SeededRng as Rng, for_each_seed};

const FILE: &str = "t00000016.16k.8k";

fn open(vfs: Arc<dyn Vfs>, pool_bytes: usize) -> (Store, Table) {
    let options =
        StoreOptions { pool_bytes, log_bytes: 4 << 20, background: false, ..StoreOptions::default() };
    let store = Store::open(vfs, options).expect("open");
    let table = store.open_table("t", TableOptions::row_compressed(8)).expect("table");
    (store, table)
}

fn row_stats(store: &Store) -> RowStats {
    store.stats().expect("stats").row
}

/// A value of which about `noise` percent do not compress.
fn value(rng: &mut Rng, len: usize, noise: usize) -> Vec<u8> {
    let mut value = vec![b'v'; len];
    rng.fill(&mut value[..len * noise / 100]);
    value
}

fn fill(store: &Store, table: &Table, records: u64, noise: usize) {
    let mut rng = Rng::new(1);
    for start in (0..records).step_by(50) {
        let mut txn = store.begin();
        for i in start..(start + 50).min(records) {
            // Scattered keys: pages are changed again and again.
            let key = (i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_be_bytes();
            txn.put(table, &key, &value(&mut rng, 200, noise)).expect("put");
        }
        txn.commit().expect("commit");
    }
}

#[test]
fn well_compressible_pages_take_half_the_room_and_few_compressions() {
    let vfs = MemVfs::new();
    let (store, table) = open(vfs.clone(), 64 << 20);
    fill(&store, &table, 10_000, 20);
    store.checkpoint().expect("checkpoint");
    let stats = row_stats(&store);
    assert_eq!(stats.failures, 0, "{stats:?}");
    assert!(stats.compressions > 100 && stats.compressions < 5000, "a log saves compressions: {stats:?}");
    assert_eq!((stats.splits, stats.pad_bytes), (0, 0));
    let check = store.check().expect("check").pop().expect("a table");
    // Blocks lie side by side, and no layer below can shorten them.
    let pages = check.leaves + check.inner_nodes + check.free_pages + 1;
    let file = vfs.open(FILE, StreamHint::Data).expect("named by its sizes");
    let mut last = AlignedBuf::zeroed(8 << 10);
    file.read_at((pages - 1) * (8 << 10), &mut last).expect("read");
    assert_eq!(&last[(8 << 10) - 8..], b"LcRBTail");
    file.read_at(pages * (8 << 10), &mut last).expect("read");
    assert!(last.iter().all(|byte| *byte == 0), "more than one block for each page");
}

#[test]
fn pages_that_do_not_fit_are_split_and_padded() {
    let (store, table) = open(MemVfs::new(), 64 << 20);
    fill(&store, &table, 20_000, 80);
    let stats = row_stats(&store);
    assert!(stats.failures > 50 && stats.splits > 50 && stats.pad_bytes > 0, "{stats:?}");
    assert!(stats.failures < stats.compressions / 3, "the padding holds failures down: {stats:?}");
    assert_eq!(store.check().expect("check").pop().expect("a table").records, 20_000);
}

#[test]
fn blocks_stay_in_memory_when_their_pages_leave() {
    let vfs = MemVfs::new();
    let (store, table) = open(vfs.clone(), 4 << 20);
    fill(&store, &table, 20_000, 20);
    let mut rng = Rng::new(2);
    for _ in 0..20_000 {
        let key = rng.below(20_000).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        assert!(store.begin().get(&table, &key).expect("get").is_some());
    }
    let (row, pool) = (row_stats(&store), store.stats().expect("stats").pool);
    assert!(row.decompressions_without_read > 1000, "{row:?}");
    assert!(row.decompressions_without_read < row.decompressions, "{row:?}");
    assert!(pool.bytes <= (4 << 20) * 9 / 8, "both copies count: {pool:?}");
}

#[test]
fn replay_takes_blocks_through_the_same_states() {
    for_each_seed(20, |seed| {
        let vfs = MemVfs::new();
        let mut rng = Rng::new(seed);
        let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        for round in 0..4 {
            let (store, table) = open(vfs.clone(), 2 << 20);
            for (key, value) in &model {
                assert_eq!(store.begin().get(&table, key).expect("get").as_ref(), Some(value));
            }
            store.check().expect("check");
            for _ in 0..rng.below(60) {
                let mut txn = store.begin();
                for _ in 0..rng.below(20) {
                    let key = rng.below(800).to_be_bytes().to_vec();
                    if rng.chance(30) {
                        txn.delete(&table, &key).expect("delete");
                        model.remove(&key);
                    } else {
                        let len = if rng.chance(3) { rng.below(20_000) } else { rng.below(900) };
                        let noise = [10, 60, 100][rng.below(3) as usize];
                        let value = value(&mut rng, len as usize, noise);
                        txn.put(&table, &key, &value).expect("put");
                        model.insert(key, value);
                    }
                }
                txn.commit().expect("commit");
                if rng.chance(10) {
                    store.step().expect("step");
                }
            }
            if round == 1 {
                store.checkpoint().expect("checkpoint");
            }
            // Dropped, not closed: the next opening replays.
        }
    });
}

#[test]
fn damaged_blocks_are_errors() {
    let vfs = MemVfs::new();
    let (store, table) = open(vfs.clone(), 4 << 20);
    fill(&store, &table, 300, 50);
    store.close().expect("close");
    drop(table);
    let file = vfs.open(FILE, StreamHint::Data).expect("table file");
    let mut rng = Rng::new(3);
    for _ in 0..100 {
        let (page, bit) = (rng.below(4), rng.below(8 * (8 << 10)));
        let mut block = AlignedBuf::zeroed(8 << 10);
        file.read_at(page * (8 << 10), &mut block).expect("read");
        block[bit as usize / 8] ^= 1 << (bit % 8);
        file.write_at(page * (8 << 10), &block).expect("write");
        let (store, _) = open(vfs.clone(), 4 << 20);
        assert!(matches!(store.check(), Err(Error::Corrupt { .. })), "page {page}, bit {bit}");
        drop(store);
        block[bit as usize / 8] ^= 1 << (bit % 8);
        file.write_at(page * (8 << 10), &block).expect("write");
    }
    open(vfs, 4 << 20).0.check().expect("sound again");
}

/// InnoDB's: 1 to 16 KiB, at most a page, and pages of at most 16 KiB.
#[test]
fn blocks_are_those_that_innodb_has() {
    let (store, _) = open(MemVfs::new(), 16 << 20);
    let mut made = Vec::new();
    for page in [4, 8, 16, 32, 64] {
        for block in [0, 1, 2, 3, 4, 8, 16, 32, 64] {
            let options = TableOptions::row_compressed(block).page_bytes((page as usize) << 10);
            let outcome = store.create_table(&format!("{page} {block}"), options);
            let is_innodbs = page <= 16 && block <= page && [1, 2, 4, 8, 16].contains(&block);
            match outcome {
                Ok(table) if is_innodbs => made.push((options, table)),
                Err(Error::BadOption { what: "key_block_size", .. }) if !is_innodbs => {}
                other => panic!("blocks of {block} KiB, pages of {page}: {:?}", other.map(drop)),
            }
        }
    }
    assert_eq!(made.len(), 3 + 4 + 5);
    // Records of all lengths, also such as fill a page, whether they shrink or not.
    for (options, table) in &made {
        let mut rng = Rng::new(1);
        for i in 0..400_u64 {
            let mut txn = store.begin();
            let len = [20, 150, 400, 1000, 6000][rng.below(5) as usize];
            let noise = [0, 50, 100][rng.below(3) as usize];
            let key = i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
            txn.put(table, &key, &value(&mut rng, len, noise)).unwrap_or_else(|e| panic!("{options:?}: {e}"));
            txn.commit().expect("commit");
        }
    }
    let checks = store.check().expect("check");
    let full = checks.iter().filter(|check| check.records == 400).count();
    assert_eq!(full, made.len(), "{checks:?}");
}

/// Programs that do not know the feature refuse a store that has needed such blocks, and no other.
#[test]
fn blocks_of_other_lengths_are_a_feature() {
    let features = |vfs: &Arc<MemVfs>| {
        let file = vfs.open("control", StreamHint::Data).expect("there");
        let mut slots = AlignedBuf::zeroed(8192);
        file.read_at(0, &mut slots).expect("read");
        let word = |at: usize| u64::from_le_bytes(slots[at..at + 8].try_into().unwrap());
        // The slot with the greater sequence.
        if word(24) > word(4096 + 24) { word(16) } else { word(4096 + 16) }
    };
    let vfs = MemVfs::new();
    let (store, table) = open(vfs.clone(), 4 << 20);
    fill(&store, &table, 100, 20);
    assert_eq!(features(&vfs), 0x3ff);
    store.create_table("u", TableOptions::row_compressed(16)).expect("create");
    assert_eq!(features(&vfs), 0x7ff);
    store.checkpoint().expect("checkpoint");
    store.drop_table("u").expect("drop");
    drop((store, table));
    let (store, _) = open(vfs.clone(), 4 << 20);
    store.check().expect("check");
    assert_eq!(features(&vfs), 0x7ff, "it is kept");
    // So do blocks by LZ4, whether a table is made with them, altered, or follows the defaults.
    let lz4 = TableKind::RowCompressed { key_block_size: 8, algorithm: Algorithm::Lz4, level: 0 };
    let zlib = TableOptions::row_compressed(8);
    for number in 0..3 {
        let vfs = MemVfs::new();
        let (store, _) = open(vfs.clone(), 4 << 20);
        match number {
            0 => drop(store.create_table("u", TableOptions { kind: lz4, ..zlib }).expect("create")),
            1 => store.alter_table("t", lz4).expect("alter"),
            _ => store.set_defaults(TableOptions { kind: lz4, ..zlib }).expect("defaults"),
        }
        assert_eq!(features(&vfs), 0x23ff, "way {number}");
    }
}

/// Blocks by both algorithms and of all levels mix in one table.
#[test]
fn algorithm_and_level_are_altered_without_a_copy() {
    let vfs = MemVfs::new();
    let (store, table) = open(vfs.clone(), 4 << 20);
    let kind = |algorithm, level| TableKind::RowCompressed { key_block_size: 8, algorithm, level };
    let id = |store: &Store| store.tables().expect("tables")[0].id;
    let mut count = 0;
    for (algorithm, level) in
        [(Algorithm::Lz4, 0), (Algorithm::Zlib, 9), (Algorithm::Lz4, 12), (Algorithm::Zlib, 0)]
    {
        store.alter_table("t", kind(algorithm, level)).expect("alter");
        for key in count..count + 400_u64 {
            let mut txn = store.begin();
            txn.put(&table, &key.to_be_bytes(), &key.to_le_bytes().repeat(60)).expect("put");
            txn.commit().expect("commit");
        }
        count += 400;
    }
    assert_eq!(id(&store), table.id());
    for (algorithm, level, what) in
        [(Algorithm::Zlib, 10, "level"), (Algorithm::Lz4, 13, "level"), (Algorithm::Zstd, 3, "algorithm")]
    {
        match store.alter_table("t", kind(algorithm, level)) {
            Err(Error::BadOption { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{algorithm} {level}: {other:?}"),
        }
    }
    drop((store, table));
    let (store, table) = open(vfs, 4 << 20);
    store.check().expect("check");
    let txn = store.begin();
    for key in 0..count {
        let value = txn.get(&table, &key.to_be_bytes()).expect("get");
        assert_eq!(value.as_deref(), Some(&key.to_le_bytes().repeat(60)[..]), "{key}");
    }
    drop(txn);
    store.alter_table("t", TableOptions::compressed(Algorithm::Lz4).kind).expect("by a copy");
    assert!(id(&store) > table.id());
}
