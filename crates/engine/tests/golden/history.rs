//! The history of the stores whose images are in this folder. Tests repeat it to know what the images must hold; so it
//! calls only functions of version 1, and must not change with later versions.

use std::{collections::BTreeMap, num::NonZeroU64};

use lacuna_engine::{Algorithm, Store, StoreOptions, Table, TableOptions, Txn};

/// Keys are less than this; some above are of the transaction that never ends.
const KEYS: u32 = 150;
/// From here on keys are that transaction's, once it has begun.
const OPEN: u32 = 100;
/// The table that has an index, and which it is.
const INDEXED: usize = 0;
const INDEX: usize = 4;

/// The content of a store: table and key, value.
pub(crate) type Model = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

pub(crate) fn options() -> StoreOptions {
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: 256 << 10,
        flush_threads: 1,
        background: false,
        log_salt: NonZeroU64::new(7),
        ..StoreOptions::default()
    }
}

pub(crate) fn kinds() -> [(&'static str, TableOptions); 5] {
    [
        ("plain", TableOptions::default().page_bytes(4 << 10)),
        ("lz4", TableOptions::compressed(Algorithm::Lz4).page_bytes(8 << 10)),
        ("zstd", TableOptions::compressed(Algorithm::Zstd)),
        ("row", TableOptions::row_compressed(4).page_bytes(8 << 10)),
        ("index", TableOptions::default().page_bytes(4 << 10)),
    ]
}

/// A value of few bytes that are not zero; every 50th is too long for a leaf. Most keep their length.
pub(crate) fn value(table: &str, key: u32, version: u32) -> Vec<u8> {
    let mut value = format!("{version} of {key} in {table} ").into_bytes();
    let len = match key % 50 {
        9 => 9000 + 300 * version as usize,
        _ => 60 + key as usize % 3 * 8 + if version % 4 == 3 { 8 } else { 0 },
    };
    value.resize(len, 0);
    for (number, part) in value.chunks_mut(512).enumerate().skip(1) {
        part[0] = (key + version + number as u32) as u8 | 1;
    }
    value
}

/// A transaction, and its changes.
pub(crate) struct Work<'a> {
    tables: &'a [(&'static str, Table)],
    pub(crate) txn: Txn,
    model: Model,
}

impl<'a> Work<'a> {
    pub(crate) fn begin(store: &Store, tables: &'a [(&'static str, Table)], model: &Model) -> Work<'a> {
        Work { tables, txn: store.begin(), model: model.clone() }
    }

    /// Gives the key that version in all tables, or none.
    pub(crate) fn set(&mut self, key: u32, version: Option<u32>) {
        for at in 0..INDEX {
            let (name, id) = (self.tables[at].0, key.to_be_bytes());
            let before = self.model.get(&(name, id.to_vec())).cloned();
            let behind = version.map(|version| value(name, key, version));
            if at == INDEXED && before != behind {
                before.iter().for_each(|value| self.store(INDEX, &entry(value, id), None));
                behind.iter().for_each(|value| self.store(INDEX, &entry(value, id), Some(&id)));
            }
            self.store(at, &id, behind.as_deref());
        }
    }

    fn store(&mut self, at: usize, key: &[u8], value: Option<&[u8]>) {
        let (name, table) = &self.tables[at];
        match value {
            Some(value) => {
                self.txn.put(table, key, value).expect("put");
                self.model.insert((*name, key.to_vec()), value.to_vec());
            }
            None => {
                let existed = self.txn.delete(table, key).expect("delete");
                assert_eq!(existed, self.model.remove(&(*name, key.to_vec())).is_some());
            }
        }
    }

    /// Returns the store's content after it.
    pub(crate) fn commit(self) -> Model {
        self.txn.commit().expect("commit");
        self.model
    }
}

/// Key of the index for a value.
fn entry(value: &[u8], key: [u8; 4]) -> Vec<u8> {
    [&value[..8], &key].concat()
}

pub(crate) fn tables(store: &Store) -> Vec<(&'static str, Table)> {
    let open = |(name, options)| (name, store.open_table(name, options).expect("table"));
    kinds().into_iter().map(open).collect()
}

/// The transactions that [`history`] leaves running.
pub(crate) struct Left {
    /// The committed records.
    pub(crate) model: Model,
    /// Has changes before and after the last checkpoint.
    pub(crate) open: Txn,
    /// Keeps history: versions, and deleted records that are not purged.
    pub(crate) reader: Txn,
}

/// Versions and deletions of all tables after a checkpoint, with a transaction that does not end.
pub(crate) fn history(store: &Store) -> Left {
    let tables = tables(store);
    let mut model = Model::new();
    let commit = |model: &mut Model, changes: &mut dyn Iterator<Item = (u32, Option<u32>)>| {
        let mut work = Work::begin(store, &tables, model);
        changes.for_each(|(key, version)| work.set(key, version));
        *model = work.commit();
    };
    for first in (0..KEYS).step_by(25) {
        commit(&mut model, &mut (first..first + 25).map(|key| (key, Some(1))));
    }
    commit(&mut model, &mut (0..KEYS).step_by(3).map(|key| (key, Some(2))));
    commit(&mut model, &mut (3..KEYS).step_by(7).map(|key| (key, None)));
    store.checkpoint().expect("checkpoint");

    let reader = store.begin();
    // The changes that follow replace and delete long values that the reader sees.
    reader.get(&tables[0].1, b"").expect("get");
    commit(&mut model, &mut (1..KEYS).step_by(4).map(|key| (key, Some(3))));
    commit(&mut model, &mut (1..KEYS).step_by(8).map(|key| (key, Some(4))));
    commit(&mut model, &mut (5..KEYS).step_by(9).map(|key| (key, None)));

    let mut open = Work::begin(store, &tables, &model);
    (OPEN..OPEN + 30).for_each(|key| open.set(key, Some(5)));
    (OPEN + 20..OPEN + 40).for_each(|key| {
        let deleted = !open.model.contains_key(&("plain", key.to_be_bytes().to_vec()));
        open.set(key, deleted.then_some(6));
    });
    (KEYS..KEYS + 10).for_each(|key| open.set(key, Some(1)));
    store.checkpoint().expect("checkpoint");

    commit(&mut model, &mut (0..OPEN).step_by(5).map(|key| (key, Some(6))));
    (OPEN..OPEN + 15).for_each(|key| open.set(key, Some(7)));
    commit(&mut model, &mut (4..OPEN).step_by(11).map(|key| (key, None)));
    Left { model, open: open.txn, reader }
}
