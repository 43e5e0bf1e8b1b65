//! Opening and closing: for reading only, twice, and the errors of handles that outlive their store.

use std::{
    ops::{Bound, ControlFlow},
    os::unix::fs::PermissionsExt,
    sync::Arc,
};

use lacuna_device::{DirOptions, DirVfs, Error as DeviceError, MemDevice, MemVfs, Vfs};
use lacuna_engine::{Algorithm, Direction, Error, Store, StoreOptions, Table, TableKind, TableOptions, Txn};
use lacuna_nvmfs::{self as nvmfs, Nvmfs};
use lacuna_sim::{HookedVfs, Hooks, SimVfs};

struct NoHooks;

impl Hooks for NoHooks {}

fn options(background: bool) -> StoreOptions {
    StoreOptions { pool_bytes: 1 << 20, log_bytes: 512 << 10, background, ..StoreOptions::default() }
}

fn fill(store: &Store, name: &str) -> Table {
    let table = store.open_table(name, TableOptions::compressed(Algorithm::Lz4)).expect("table");
    let mut txn = store.begin();
    for key in 0..2000u32 {
        txn.put(&table, &key.to_be_bytes(), &[7; 300]).expect("put");
    }
    txn.put(&table, b"long", &[8; 100_000]).expect("put");
    txn.commit().expect("commit");
    table
}

fn count(txn: &Txn, table: &Table) -> Result<usize, Error> {
    let mut records = 0;
    txn.scan(table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |_, _| {
        records += 1;
        ControlFlow::Continue(())
    })?;
    Ok(records)
}

fn is_closed<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Closed))
}

/// Every call on every kind of handle.
fn assert_closed(store: &Store, table: &Table, txn: &mut Txn) {
    assert!(is_closed(txn.get(table, b"k")) && is_closed(count(txn, table)));
    assert!(is_closed(txn.get_for_update(table, b"k")) && is_closed(txn.delete(table, b"k")));
    assert!(is_closed(txn.put(table, b"k", b"v")) && is_closed(txn.insert(table, b"k", b"v")));
    let mut new = store.begin();
    assert!(is_closed(new.get(table, b"k")) && is_closed(new.put(table, b"k", b"v")));
    assert!(is_closed(store.table("t")) && is_closed(store.tables()) && is_closed(store.stats()));
    assert!(is_closed(store.create_table("u", TableOptions::default())) && is_closed(store.drop_table("t")));
    assert!(is_closed(store.open_table("t", TableOptions::compressed(Algorithm::Lz4))));
    assert!(is_closed(store.alter_table("t", TableKind::Plain)) && is_closed(store.inherit_defaults("t")));
    assert!(is_closed(store.defaults()) && is_closed(store.set_defaults(TableOptions::default())));
    assert!(is_closed(store.checkpoint()) && is_closed(store.step()) && is_closed(store.check()));
    assert!(is_closed(store.images("t")));
    assert!(is_closed(store.optimize("t", |_| ControlFlow::Continue(()))));
}

#[test]
fn handles_of_a_closed_store_say_so_and_touch_nothing() {
    for background in [false, true] {
        let vfs = SimVfs::new(1);
        let store = Store::open(vfs.clone(), options(background)).expect("open");
        let table = fill(&store, "t");
        let mut reader = store.begin();
        assert_eq!(count(&reader, &table).expect("open"), 2001);
        let mut writer = store.begin();
        writer.put(&table, b"k", b"unfinished").expect("put");
        store.clone().close().expect("close");
        let ops = vfs.ops();
        assert_closed(&store, &table, &mut reader);
        assert!(is_closed(writer.put(&table, b"k", b"v")) && is_closed(writer.commit()));
        assert!(is_closed(store.clone().close()), "closed twice");
        drop((reader, store));
        assert_eq!(vfs.ops(), ops, "somebody else may own the place by now");
        let store = Store::open(vfs, options(background)).expect("open again");
        assert!(matches!(store.begin().get(&table, b"k"), Err(Error::WrongStore)), "a handle of the old one");
        let table = store.table("t").expect("catalog").expect("there");
        assert_eq!(count(&store.begin(), &table).expect("scan"), 2001);
        store.check().expect("check");
    }
}

#[test]
fn what_outlives_a_dropped_store_says_so_and_touches_nothing() {
    let vfs = SimVfs::new(2);
    let store = Store::open(vfs.clone(), options(true)).expect("open");
    let table = fill(&store, "t");
    let mut txn = store.begin();
    txn.put(&table, b"k", b"v").expect("put");
    drop(store);
    let again = Store::open(vfs.clone(), options(false)).expect("the place is free");
    let ops = vfs.ops();
    assert!(is_closed(txn.get(&table, b"k")) && is_closed(txn.put(&table, b"k", b"w")));
    drop(txn);
    assert_eq!(vfs.ops(), ops);
    assert_eq!(
        again.begin().get(&again.table("t").expect("catalog").expect("there"), b"k").expect("get"),
        None
    );
    again.check().expect("check");
}

#[test]
fn a_place_has_one_store_at_a_time() {
    let vfs = MemVfs::new();
    let store = Store::open(vfs.clone(), options(true)).expect("open");
    let second: Arc<dyn Vfs> = vfs.clone();
    for _ in 0..2 {
        assert!(matches!(Store::open(second.clone(), options(true)), Err(Error::Busy { .. })));
        assert!(matches!(Store::open_read_only(second.clone(), options(true)), Err(Error::Busy { .. })));
    }
    let clone = store.clone();
    drop(store);
    assert!(matches!(Store::open(second.clone(), options(true)), Err(Error::Busy { .. })), "a clone is open");
    clone.close().expect("close");
    let store = Store::open(second.clone(), options(true)).expect("free");
    drop(store);
    // A failed opening also releases the VFS.
    let bad = StoreOptions { pool_bytes: 0, ..options(true) };
    assert!(matches!(Store::open(second.clone(), bad), Err(Error::BadOption { what: "pool_bytes", .. })));
    Store::open(second, options(true)).expect("free").close().expect("close");
}

/// Two objects for one directory, and one that passes calls on.
#[test]
fn a_place_is_known_by_whichever_object_stands_for_it() {
    let device = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(device.clone(), &nvmfs::FormatOptions::default()).expect("format");
    let fs = Arc::new(Nvmfs::open(device, nvmfs::Options::default()).expect("open"));
    let directory = |path: &str| -> Arc<dyn Vfs> { fs.directory(path, true).expect("directory") };
    let (first, other) = (directory("people"), directory("pages"));
    let store = Store::open(first.clone(), options(true)).expect("open");
    assert!(matches!(Store::open(directory("/people/"), options(true)), Err(Error::Busy { .. })));
    let hooked = HookedVfs::new(first, Arc::new(NoHooks));
    assert!(matches!(Store::open(hooked, options(true)), Err(Error::Busy { .. })));
    let beside = Store::open(other, options(true)).expect("another directory");
    let root: Arc<dyn Vfs> = fs.clone();
    Store::open(root.clone(), options(true)).expect("the root").close().expect("close");
    let above = Store::open(directory("/"), options(true)).expect("free");
    assert!(matches!(Store::open(root, options(true)), Err(Error::Busy { .. })));
    for store in [store, beside, above] {
        store.close().expect("close");
    }
}

#[test]
fn a_closed_store_opens_for_reading_without_a_write() {
    let vfs = SimVfs::new(3);
    let nothing = Store::open_read_only(vfs.clone(), options(true));
    assert!(matches!(nothing, Err(Error::BadStore { .. })) && vfs.ops() == 0, "no store is made");
    let store = Store::open(vfs.clone(), options(true)).expect("open");
    fill(&store, "t");
    let table = store.create_table("plain", TableOptions::default()).expect("create");
    let mut unfinished = store.begin();
    unfinished.put(&table, b"never", b"committed").expect("put");
    drop(unfinished);
    store.close().expect("close");
    let ops = vfs.ops();
    for _ in 0..2 {
        let store = Store::open_read_only(vfs.clone(), options(true)).expect("open for reading");
        let table = store.table("t").expect("catalog").expect("there");
        let mut txn = store.begin();
        assert_eq!(count(&txn, &table).expect("scan"), 2001);
        assert_eq!(txn.get(&table, b"long").expect("get"), Some(vec![8; 100_000]));
        let refused = |outcome: Result<(), Error>| matches!(outcome, Err(Error::ReadOnly));
        assert!(refused(txn.put(&table, b"k", b"v")) && refused(txn.delete(&table, b"long").map(drop)));
        assert!(refused(txn.get_for_update(&table, b"long").map(drop)));
        assert!(refused(store.create_table("u", TableOptions::default()).map(drop)));
        assert!(
            refused(store.drop_table("t")) && refused(store.checkpoint()) && refused(store.step().map(drop))
        );
        assert!(refused(store.alter_table("t", TableKind::Plain)));
        assert!(refused(store.set_defaults(TableOptions::default())));
        assert!(refused(store.optimize("t", |_| ControlFlow::Continue(())).map(drop)));
        txn.commit().expect("it changed nothing");
        assert_eq!(store.check().expect("check").len(), 3);
        store.close().expect("close");
    }
    drop(Store::open_read_only(vfs.clone(), options(true)).expect("open for reading"));
    assert_eq!(vfs.ops(), ops, "something was written");
    Store::open(vfs, options(true)).expect("open").check().expect("check");
}

#[test]
fn a_store_that_was_not_closed_does_not_open_for_reading() {
    let vfs = SimVfs::new(4);
    let store = Store::open(vfs.clone(), options(false)).expect("open");
    let table = fill(&store, "t");
    drop(store);
    let ops = vfs.ops();
    let opened = Store::open_read_only(vfs.clone(), options(false));
    assert!(matches!(opened, Err(Error::NotClosed { .. })) && vfs.ops() == ops);
    // Nor one that was closed under a transaction.
    let store = Store::open(vfs.clone(), options(false)).expect("open");
    drop(table);
    let table = store.table("t").expect("catalog").expect("there");
    let mut txn = store.begin();
    txn.put(&table, b"k", b"v").expect("put");
    store.close().expect("close");
    drop(txn);
    let opened = Store::open_read_only(vfs.clone(), options(false));
    assert!(matches!(opened, Err(Error::NotClosed { reason: "a transaction was running", .. })));
    Store::open(vfs.clone(), options(false)).expect("open").close().expect("close");
    Store::open_read_only(vfs, options(false)).expect("in order again");
}

#[test]
fn options_are_checked_when_they_are_given() {
    let refuses = |what, options: StoreOptions| {
        let opened = Store::open(MemVfs::new(), options);
        assert!(matches!(opened, Err(Error::BadOption { what: found, .. }) if found == what), "{what}");
    };
    refuses("pool_bytes", StoreOptions { pool_bytes: (1 << 20) - 1, ..options(false) });
    refuses("log_bytes", StoreOptions { log_bytes: 0, ..options(false) });
    refuses("history_bytes", StoreOptions { history_bytes: 0, ..options(false) });
    refuses("flush_threads", StoreOptions { flush_threads: 0, ..options(false) });
    refuses("flush_threads", StoreOptions { flush_threads: 257, ..options(false) });
    let store = Store::open(MemVfs::new(), options(false)).expect("open");
    let page = |algorithm, level| TableKind::PageCompressed { algorithm, level };
    store.create_table("t", TableOptions::default()).expect("create");
    for (algorithm, bad, good) in [
        (Algorithm::None, &[-1, 1][..], &[0][..]),
        (Algorithm::Lz4, &[13, i32::MIN], &[-65_537, 12]),
        (Algorithm::Zstd, &[99, 23, -8], &[-7, 22]),
        (Algorithm::Zlib, &[-1, 10], &[9]),
        (Algorithm::Lzma, &[-1, 10], &[9]),
        (Algorithm::Snappy, &[1], &[0]),
    ] {
        for level in bad {
            let kind = page(algorithm, *level);
            let options = TableOptions { kind, ..TableOptions::default() };
            for outcome in [
                store.create_table("bad", options).map(drop),
                store.open_table("t", options).map(drop),
                store.alter_table("t", kind),
                store.set_defaults(options),
            ] {
                let error = outcome.expect_err("refused");
                let names_both = error.to_string().contains(&level.to_string())
                    && error.to_string().contains(algorithm.name());
                assert!(matches!(error, Error::BadOption { what: "level", .. }) && names_both, "{error}");
            }
        }
        good.iter().for_each(|level| store.alter_table("t", page(algorithm, *level)).expect("in range"));
    }
    let sizes = [0, 2048, 5000, 128 << 10].map(|bytes| TableOptions::default().page_bytes(bytes));
    for options in sizes {
        let refused = store.create_table("bad", options).map(drop);
        assert!(matches!(refused, Err(Error::BadOption { what: "page_bytes", .. })));
    }
    assert!(store.table("bad").expect("catalog").is_none());
}

#[test]
fn a_table_is_not_opened_with_other_options_than_it_has() {
    let store = Store::open(MemVfs::new(), options(false)).expect("open");
    let lz4 = TableOptions::compressed(Algorithm::Lz4);
    let id = store.open_table("t", lz4).expect("made").id();
    assert_eq!(store.open_table("t", lz4).expect("the same").id(), id);
    for other in [
        TableOptions::default(),
        lz4.page_bytes(4096),
        TableOptions::row_compressed(8),
        TableOptions { kind: TableKind::PageCompressed { algorithm: Algorithm::Lz4, level: 9 }, ..lz4 },
    ] {
        match store.open_table("t", other) {
            Err(Error::OtherOptions { name, found, asked }) => {
                assert_eq!((name.as_str(), found, asked), ("t", lz4, other));
            }
            outcome => panic!("{:?}", outcome.map(|table| table.id())),
        }
    }
    assert_eq!(store.table("t").expect("catalog").expect("as it is").id(), id);
    store.alter_table("t", TableKind::Plain).expect("alter");
    assert_eq!(store.open_table("t", TableOptions::default()).expect("as it is now").id(), id);
}

/// Somebody put a directory in the log's place: what was opened could not be changed.
#[test]
fn a_log_that_cannot_be_written_is_refused_at_once() {
    let device = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(device.clone(), &nvmfs::FormatOptions::default()).expect("format");
    let fs = Arc::new(Nvmfs::open(device, nvmfs::Options::default()).expect("open"));
    let vfs: Arc<dyn Vfs> = fs.directory("/", true).expect("directory");
    let store = Store::open(vfs.clone(), options(false)).expect("open");
    fill(&store, "t");
    store.close().expect("close");
    vfs.remove("wal.000000").expect("remove");
    drop(Store::open_read_only(vfs.clone(), options(false)).expect("its log is empty"));
    fs.posix().mkdir(nvmfs::Ino::ROOT, b"wal.000000", 0o755, nvmfs::posix::Caller::default()).expect("mkdir");
    for open in [Store::open, Store::open_read_only] {
        let error = open(vfs.clone(), options(false)).err().expect("it cannot be changed").to_string();
        assert!(error.contains("wal.000000") && error.contains("not a regular file"), "{error}");
    }
}

/// A copy of a directory is restored over it while a store is open there: whole, or its lock file alone. The next opener
/// finds its own lock file, and the first store does nothing more to the files, which both know by name.
#[test]
fn a_store_stops_when_another_is_restored_over_it() {
    for (everything, background) in [(true, false), (true, true), (false, false), (false, true)] {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path();
        // Else the lock of the directory itself keeps the second one out.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        let open = || Store::open(DirVfs::open(path, DirOptions::default())?, options(background));
        let first = open().expect("open");
        let table = fill(&first, "t");
        fill(&first, "u");
        first.checkpoint().expect("checkpoint");
        for entry in std::fs::read_dir(path).expect("list") {
            let name = entry.expect("entry").file_name();
            if everything || name == ".lacuna-lock" {
                let new = path.join("new");
                std::fs::copy(path.join(&name), &new).expect("copy");
                std::fs::rename(&new, path.join(&name)).expect("rename");
            }
        }
        let second = open().expect("the lock file is another one");
        let mut txn = second.begin();
        txn.put(&second.table("t").expect("table").expect("some"), b"k", b"of the second").expect("put");
        txn.commit().expect("commit");

        let assert_stopped = |outcome: Result<(), Error>| match outcome.expect_err("the files are another's")
        {
            Error::Device(error) => assert!(matches!(*error, DeviceError::Replaced { .. }), "{error}"),
            error => assert!(error.to_string().contains("replaced while the store was open"), "{error}"),
        };
        assert_stopped(first.drop_table("u"));
        assert_stopped((0..20_000u32).try_for_each(|key| {
            let mut txn = first.begin();
            txn.put(&table, &key.to_be_bytes(), &[9; 300])?;
            txn.commit()
        }));
        assert_stopped(first.create_table("v", TableOptions::default()).map(drop));
        assert_stopped(first.checkpoint());
        drop((table, first));

        let mut second = Some(second);
        for _ in 0..2 {
            let store = second.take().unwrap_or_else(|| open().expect("open"));
            store.check().expect("check");
            let names = Vec::from_iter(store.tables().expect("tables").into_iter().map(|table| table.name));
            assert_eq!(names, ["t", "u"]);
            let table = store.table("t").expect("table").expect("some");
            let txn = store.begin();
            assert_eq!(txn.get(&table, b"k").expect("get").as_deref(), Some(&b"of the second"[..]));
            assert_eq!(txn.get(&table, &5u32.to_be_bytes()).expect("get").as_deref(), Some(&[7; 300][..]));
            drop((txn, table));
            store.close().expect("close");
        }
    }
}
