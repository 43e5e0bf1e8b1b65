//! A process that forks while a store is open. A program of its own with one test: no other thread may run.

use std::{ops::ControlFlow, path::Path};

use lacuna_device::{DirOptions, DirVfs, Error as DeviceError};
use lacuna_engine::{Error, Store, StoreOptions, Table, TableOptions, Txn};
use lacuna_sim::forked;

fn open(path: &Path) -> Result<Store, Error> {
    Store::open(DirVfs::open(path, DirOptions::default())?, StoreOptions::default())
}

/// What the child has a copy of.
struct Opened {
    store: Store,
    table: Table,
    /// It has changed something.
    writer: Option<Txn>,
    /// It has read something.
    reader: Option<Txn>,
}

impl Opened {
    fn writer(&mut self) -> &mut Txn {
        self.writer.as_mut().expect("only the child takes it")
    }
}

#[test]
fn a_forked_process_neither_changes_the_store_nor_waits_for_threads_that_it_has_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let is_busy = || matches!(DirVfs::open(path, DirOptions::default()), Err(DeviceError::Busy { .. }));
    let mut vfs = DirVfs::open(path, DirOptions::default()).ok();
    assert!(forked(|| vfs.take().is_some()), "drop of the directory");
    assert!(is_busy(), "the child has unlocked it");
    drop(vfs);

    let store = open(path).unwrap();
    let table = store.create_table("t", TableOptions::default()).unwrap();
    store.create_table("other", TableOptions::default()).unwrap();
    let (mut writer, reader) = (store.begin(), store.begin());
    assert_eq!(reader.get(&table, b"a").unwrap(), None);
    writer.put(&table, b"a", b"of the parent").unwrap();
    let mut opened = Opened { store, table, writer: Some(writer), reader: Some(reader) };

    type Entry = (&'static str, fn(&mut Opened) -> Result<(), Error>);
    let entries: [Entry; 17] = [
        ("get", |it| it.store.begin().get(&it.table, b"a").map(drop)),
        ("get of a reader", |it| it.reader.as_ref().expect("open").get(&it.table, b"a").map(drop)),
        ("put", |it| it.store.begin().put(&it.table, b"b", b"of the child")),
        ("put of a writer", |it| {
            let table = it.table.clone();
            it.writer().put(&table, b"a", b"of the child")
        }),
        ("commit", |it| it.writer.take().expect("open").commit()),
        ("commit of a reader", |it| it.reader.take().expect("open").commit()),
        ("rollback", |it| it.writer.take().expect("open").rollback()),
        ("savepoint", |it| it.writer().savepoint().map(drop)),
        ("estimated_count", |it| it.table.estimated_count().map(drop)),
        ("create_table", |it| it.store.create_table("of the child", TableOptions::default()).map(drop)),
        ("drop_table", |it| it.store.drop_table("other")),
        ("optimize", |it| it.store.optimize("other", |_| ControlFlow::Continue(())).map(drop)),
        ("check", |it| it.store.check().map(drop)),
        ("checkpoint", |it| it.store.checkpoint()),
        ("step", |it| it.store.step().map(drop)),
        ("stats", |it| it.store.stats().map(drop)),
        ("close", |it| it.store.clone().close()),
    ];
    for (what, entry) in entries {
        assert!(forked(|| matches!(entry(&mut opened), Err(Error::Forked))), "{what}");
    }
    let mut owned = Some(opened);
    assert!(forked(|| owned.take().is_some()), "drop");
    // The child shares the lock of the directory, and may open it only when the parent has closed the store.
    assert!(forked(is_busy), "open");

    let Opened { store, table, writer, reader } = owned.expect("this process still has it");
    writer.expect("the child took its copy").commit().unwrap();
    drop(reader);
    let mut txn = store.begin();
    txn.put(&table, b"b", b"of the parent").unwrap();
    txn.commit().unwrap();
    store.close().unwrap();
    drop(table);
    let store = open(path).unwrap();
    store.check().unwrap();
    let table = store.table("t").unwrap().unwrap();
    let txn = store.begin();
    for key in [b"a", b"b"] {
        assert_eq!(txn.get(&table, key).unwrap().as_deref(), Some(&b"of the parent"[..]));
    }
}
