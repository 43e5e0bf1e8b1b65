//! Every peer against a map, against lost updates, and under the whole benchmark with its acknowledgement log.

use std::{collections::BTreeMap, fs, ops::ControlFlow, path::Path, thread, time::Duration};

use lacuna_bench::{
    Plan,
    linkbench::{self, AckLog, Config, Db, DbError, DbResult, Table, Txn, verify_acks},
};

use crate::{
    peer::{Compression, Peer, PeerDb, Settings},
    peers::{Fjall, Lmdb, Redb, Sqlite},
};

const SETTINGS: Settings =
    Settings { pool_bytes: 64 << 20, size_bytes: 4 << 30, clients: 16, compression: None };

type Maps = [BTreeMap<Vec<u8>, Vec<u8>>; 4];

/// xorshift64* (Vigna): enough to choose operations by.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    fn key(&mut self) -> Vec<u8> {
        self.below(300).to_be_bytes().to_vec()
    }

    fn value(&mut self) -> Vec<u8> {
        vec![self.below(256) as u8; self.below(300) as usize]
    }
}

fn done<T>(result: DbResult<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error:?}"))
}

fn entries(txn: &mut impl Txn, table: Table, from: &[u8], to: &[u8], most: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    done(txn.scan(table, from, to, &mut |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }));
    found
}

fn same<P: Peer>(db: &PeerDb<P>, maps: &Maps) {
    let mut txn = done(db.begin());
    for table in Table::ALL {
        let found = entries(&mut txn, table, &[], &[0xFF; 64], usize::MAX);
        let expected: Vec<_> = maps[table as usize].clone().into_iter().collect();
        assert!(found == expected, "table {} differs", table.name());
    }
}

/// One random call on both.
fn step<P: Peer>(dice: &mut Dice, txn: &mut impl Txn, maps: &mut Maps) {
    let table = Table::ALL[dice.below(4) as usize];
    let map = &mut maps[table as usize];
    let key = dice.key();
    // What is written blind is only asked for what the schema allows.
    let is_blind = P::WRITES_INDEX_BLIND && table == Table::LinkByTime;
    match dice.below(8) {
        4 | 5 if is_blind && map.contains_key(&key) => {}
        6 if is_blind && !map.contains_key(&key) => {}
        0 => assert_eq!(done(txn.get(table, &key)), map.get(&key).cloned()),
        1 => assert_eq!(done(txn.get_for_update(table, &key)), map.get(&key).cloned()),
        2 | 3 => {
            let value = dice.value();
            done(txn.put(table, &key, &value));
            map.insert(key, value);
        }
        4 | 5 => {
            let value = dice.value();
            assert_eq!(done(txn.insert(table, &key, &value)), !map.contains_key(&key));
            map.entry(key).or_insert(value);
        }
        6 => assert_eq!(done(txn.delete(table, &key)), map.remove(&key).is_some()),
        _ => {
            let (to, most) = (dice.key(), 1 + dice.below(40) as usize);
            if key <= to {
                let expected: Vec<_> = map
                    .range(key.clone()..to.clone())
                    .take(most)
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                assert!(
                    entries(txn, table, &key, &to, most) == expected,
                    "scan {key:?} to {to:?}, at most {most}"
                );
            }
        }
    }
}

fn is_like_a_map<P: Peer>(settings: &Settings) {
    let directory = tempfile::tempdir().unwrap();
    let mut dice = Dice(0xC0FFEE);
    let mut maps = Maps::default();
    for _ in 0..3 {
        let db = PeerDb::<P>::open(directory.path(), settings).unwrap();
        same(&db, &maps);
        for _ in 0..60 {
            let mut changed = maps.clone();
            let mut txn = done(db.begin());
            for _ in 0..dice.below(30) {
                step::<P>(&mut dice, &mut txn, &mut changed);
            }
            if dice.below(4) > 0 {
                done(txn.commit());
                maps = changed;
            } else {
                drop(txn);
            }
        }
        same(&db, &maps);
    }
}

/// Two threads read a number under its lock and increment it; each must see the other's increments.
fn loses_no_update<P: Peer>(settings: &Settings) {
    const EACH: u64 = 100;
    let directory = tempfile::tempdir().unwrap();
    let db = PeerDb::<P>::open(directory.path(), settings).unwrap();
    let number =
        |value: Option<Vec<u8>>| value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
    let count_up = || {
        let mut txn = db.begin()?;
        let old = number(txn.get_for_update(Table::Count, b"key")?);
        // The others get their chance to come between.
        thread::yield_now();
        txn.put(Table::Count, b"key", &(old + 1).to_le_bytes())?;
        txn.commit()
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    while let Err(error) = count_up() {
                        assert!(matches!(error, DbError::Retry(_)), "{error:?}");
                    }
                }
            });
        }
    });
    assert_eq!(number(done(done(db.begin()).get(Table::Count, b"key"))), 2 * EACH);
}

fn linkbench_config(directory: &Path) -> Config {
    let distribution = directory.join("distribution");
    fs::write(&distribution, "nlinks\n0 45\n1 77\n3 93\n10 99\n60 99.9\n2000 100\n").unwrap();
    Config {
        ids: 2000,
        distribution: Some(distribution),
        plan: Plan {
            loaders: 3,
            requesters: 4,
            warmup: Duration::ZERO,
            seconds: Duration::ZERO,
            requests_min: 500,
            rate: None,
            window: None,
            seed: 1,
            epoch_ms: 1_700_000_000_000,
            quiet: true,
        },
    }
}

/// The graph is sound after a run, and every acknowledged commit is there, also after reopening.
fn keeps_what_it_acknowledged<P: Peer>(settings: &Settings) {
    let directory = tempfile::tempdir().unwrap();
    let (acks, tables) = (directory.path().join("acks"), directory.path().join("tables"));
    fs::create_dir(&tables).unwrap();
    let db = PeerDb::<P>::open(&tables, settings).unwrap();
    db.begin_load();
    let log = AckLog::create(&acks).unwrap();
    let report =
        linkbench::run(&db, &linkbench_config(directory.path()), "peer", "default", Some(&log)).unwrap();
    assert_eq!(report.figures.violation, None);
    assert!(report.nodes == 2000 && report.requests > 0);
    let verified = verify_acks(&db, &acks).unwrap();
    assert!(verified.acks > 0 && report.figures.store_bytes > 0);
    drop(db);
    assert_eq!(verify_acks(&PeerDb::<P>::open(&tables, settings).unwrap(), &acks).unwrap(), verified);
}

macro_rules! of_every_peer {
    ($($(#[$attribute:meta])* $name:ident: $peer:ty, $compression:expr;)*) => { $(
        $(#[$attribute])*
        mod $name {
            use super::*;

            const SETTINGS: Settings = Settings { compression: $compression, ..super::SETTINGS };

            #[test]
            fn is_like_a_map() {
                super::is_like_a_map::<$peer>(&SETTINGS);
            }

            #[test]
            fn loses_no_update() {
                super::loses_no_update::<$peer>(&SETTINGS);
            }

            #[test]
            fn keeps_what_it_acknowledged() {
                super::keeps_what_it_acknowledged::<$peer>(&SETTINGS);
            }
        }
    )* };
}

of_every_peer! {
    fjall: Fjall, None;
    fjall_lz4: Fjall, Some(Compression::Lz4);
    lmdb: Lmdb, None;
    redb: Redb, None;
    #[cfg(feature = "rocksdb")]
    rocksdb: crate::peers::RocksDb, None;
    #[cfg(feature = "rocksdb")]
    rocksdb_zstd: crate::peers::RocksDb, Some(Compression::Zstd);
    #[cfg(feature = "rocksdb")]
    rocksdb_blobs: crate::peers::RocksDb, Some(Compression::Lz4Blobs);
    sqlite: Sqlite, None;
}
