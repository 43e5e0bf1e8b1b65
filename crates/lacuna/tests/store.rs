//! Stores as an embedder opens them: by path, with one dependency.

use std::{fs, path::Path};

use lacuna::{Algorithm, DeviceError, Durability, Error, Secret, Store, Table, TableOptions};
use tempfile::TempDir;

fn put(store: &Store, table: &Table, key: &[u8], value: &[u8]) -> lacuna::Result<()> {
    let mut txn = store.begin();
    txn.put(table, key, value)?;
    txn.commit()
}

/// Opens the store at `path`, small, so that tests are fast.
fn open(path: &Path) -> lacuna::Result<Store> {
    Store::builder().size(64 << 20).pool_bytes(4 << 20).open(path)
}

fn table(store: &Store) -> Table {
    store.open_table("t", TableOptions::default()).expect("table")
}

/// Makes a store at `path` with one record.
fn make(path: &Path) {
    let store = open(path).expect("made");
    put(&store, &table(&store), b"key", b"value").expect("put");
    store.close().expect("closed");
}

fn holds_the_record(store: &Store) -> bool {
    let table = store.table("t").expect("catalog").expect("a table");
    store.begin().get(&table, b"key").expect("get").as_deref() == Some(b"value")
}

/// Expects an error whose message is one line and names the path; returns it.
fn refusal(path: &Path, opened: lacuna::Result<Store>) -> Error {
    let error = opened.expect_err("it opened");
    let message = error.to_string();
    assert!(message.contains(path.to_str().expect("UTF-8")), "{message} does not name {}", path.display());
    assert!(!message.contains('\n'), "{message}");
    error
}

fn scratch() -> (TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("people.lacuna");
    (directory, path)
}

#[test]
fn a_store_file_is_made_sparse_and_found_again() {
    let (_directory, path) = scratch();
    let store = Store::open(&path).expect("made");
    put(&store, &table(&store), b"key", b"value").expect("put");
    store.check().expect("sound");
    store.close().expect("closed");
    assert_eq!(fs::metadata(&path).expect("a file").len(), 8 << 30);
    assert!(std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).expect("a file")) * 512 < 1 << 30);
    let store = Store::open(&path).expect("opened");
    assert!(holds_the_record(&store));
    assert!(!store.writes_twice());
}

#[test]
fn a_directory_holds_a_store_as_well() {
    let (directory, _) = scratch();
    make(directory.path());
    let store = open(directory.path()).expect("opened");
    assert!(holds_the_record(&store));
    assert!(matches!(store.grow(1 << 30), Err(Error::BadOption { .. })));
}

#[test]
fn a_store_in_memory_needs_no_path() {
    let store = Store::in_memory().expect("made");
    put(&store, &table(&store), b"key", b"value").expect("put");
    assert!(holds_the_record(&store));
    assert!(matches!(store.grow(1 << 30), Err(Error::BadOption { .. })));
    let other = Store::in_memory().expect("made");
    assert!(other.tables().expect("catalog").is_empty(), "each is its own");
    store.close().expect("closed");
}

#[test]
fn a_store_that_was_dropped_is_recovered() {
    let (_directory, path) = scratch();
    make(&path);
    let store = open(&path).expect("opened");
    put(&store, &table(&store), b"key", b"other").expect("put");
    let mut unfinished = store.begin();
    unfinished.put(&table(&store), b"key", b"never").expect("put");
    drop((unfinished, store));
    let store = open(&path).expect("opened");
    let value = store.begin().get(&table(&store), b"key").expect("get");
    assert_eq!(value.as_deref(), Some(&b"other"[..]));
    store.check().expect("sound");
}

#[test]
fn options_reach_the_store() {
    let (_directory, path) = scratch();
    let builder = Store::builder().size(64 << 20).pool_bytes(4 << 20).durability(Durability::Relaxed);
    let store = builder.clone().open(&path).expect("made");
    assert_eq!(fs::metadata(&path).expect("a file").len(), 64 << 20);
    assert_eq!(store.grow(128 << 20).expect("grown"), 128 << 20);
    assert_eq!(fs::metadata(&path).expect("a file").len(), 128 << 20);
    store.close().expect("closed");
    // The size is that of a store that is made.
    builder.open(&path).expect("opened").close().expect("closed");
    assert_eq!(fs::metadata(&path).expect("a file").len(), 128 << 20);
    let tiny = Store::builder().pool_bytes(1);
    assert!(matches!(tiny.clone().in_memory(), Err(Error::BadOption { what: "pool_bytes", .. })));
    assert!(matches!(tiny.open(&path), Err(Error::BadOption { what: "pool_bytes", .. })));
    let (_directory, path) = scratch();
    refusal(&path, Store::builder().size(1000).open(&path));
    assert!(!path.exists(), "nothing is left behind");
}

#[test]
fn the_second_to_close_is_told() {
    let (_directory, path) = scratch();
    let store = open(&path).expect("made");
    let other = store.clone();
    store.close().expect("closed");
    assert!(matches!(other.close(), Err(Error::Closed)));
    open(&path).expect("opened");
}

#[test]
fn handles_of_a_closed_store_fail_and_keep_it_until_they_are_dropped() {
    let (_directory, path) = scratch();
    let store = open(&path).expect("made");
    let (other, table) = (store.clone(), table(&store));
    let mut running = store.begin();
    running.put(&table, b"key", b"value").expect("put");
    store.close().expect("closed");
    assert!(matches!(running.get(&table, b"key"), Err(Error::Closed)));
    assert!(matches!(running.commit(), Err(Error::Closed)));
    assert!(matches!(other.begin().get(&table, b"key"), Err(Error::Closed)));
    assert!(matches!(other.open_table("t", TableOptions::default()), Err(Error::Closed)));
    assert!(matches!(other.check(), Err(Error::Closed)));
    drop(other);
    assert!(matches!(refusal(&path, open(&path)), Error::Busy { .. }), "the table is left");
    drop(table);
    let store = open(&path).expect("opened");
    let table = store.table("t").expect("catalog").expect("a table");
    assert_eq!(store.begin().get(&table, b"key").expect("get"), None);
}

#[test]
fn a_store_is_opened_once_in_a_process() {
    let (directory, path) = scratch();
    let inner = directory.path().join("directory");
    fs::create_dir(&inner).expect("a directory");
    for path in [path, inner] {
        let store = open(&path).expect("made");
        assert!(matches!(refusal(&path, open(&path)), Error::Busy { .. }));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(matches!(refusal(&link, open(&link)), Error::Busy { .. }), "by another name");
        fs::remove_file(&link).expect("removed");
        drop(store);
        open(&path).expect("opened");
    }
}

#[test]
fn another_holder_of_the_lock_is_an_error_of_the_device() {
    let (_directory, path) = scratch();
    make(&path);
    // Not by this library: it treats that like another process.
    let other = fs::File::open(&path).expect("a file");
    other.lock().expect("locked");
    let Error::Device(error) = refusal(&path, open(&path)) else { panic!("another error") };
    assert!(matches!(*error, DeviceError::Busy { .. }));
    drop(other);
    open(&path).expect("opened");
}

#[test]
fn reading_only_changes_nothing() {
    let (directory, path) = scratch();
    let inner = directory.path().join("directory");
    fs::create_dir(&inner).expect("a directory");
    let read_only = || Store::builder().pool_bytes(4 << 20).read_only();
    refusal(&path, read_only().open(&path));
    assert!(!path.exists(), "nothing is made");
    for path in [path, inner] {
        make(&path);
        let bytes = |path: &Path| path.is_file().then(|| fs::read(path).expect("a file"));
        let before = bytes(&path);
        let store = read_only().open(&path).expect("opened");
        assert!(holds_the_record(&store));
        let table = table(&store);
        assert!(matches!(put(&store, &table, b"key", b"other"), Err(Error::ReadOnly)));
        assert!(matches!(store.create_table("u", TableOptions::default()), Err(Error::ReadOnly)));
        drop(table);
        store.close().expect("closed");
        assert!(bytes(&path) == before, "the file changed");
        // One that was not closed has to be recovered first.
        let store = open(&path).expect("opened");
        put(&store, &self::table(&store), b"key", b"value").expect("put");
        drop(store);
        assert!(matches!(refusal(&path, read_only().open(&path)), Error::NotClosed { .. }));
        open(&path).expect("recovered").close().expect("closed");
        assert!(holds_the_record(&read_only().open(&path).expect("opened")));
    }
}

#[test]
fn what_is_no_store_is_named_and_left_alone() {
    let (directory, path) = scratch();
    let text = "a letter, not a store\n".repeat(100_000);
    for content in ["", "short", &text] {
        fs::write(&path, content).expect("written");
        let error = refusal(&path, open(&path));
        let message = error.to_string();
        assert!(matches!(error, Error::BadStore { .. }), "{message}");
        assert_eq!(message.matches("people.lacuna").count(), 1, "{message}");
        assert_eq!(fs::read_to_string(&path).expect("read"), *content);
    }
    let missing = directory.path().join("missing").join("people.lacuna");
    assert!(matches!(refusal(&missing, open(&missing)), Error::Device(_)));
    refusal(Path::new("/dev/null"), open(Path::new("/dev/null")));
}

#[test]
fn damage_names_the_path() {
    let (_directory, path) = scratch();
    make(&path);
    let mut bytes = fs::read(&path).expect("read");
    // After the first blocks, where the superblock is.
    bytes[64 << 10..].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(&path, bytes).expect("written");
    assert!(matches!(refusal(&path, open(&path)), Error::Corrupt { .. }));
}

#[test]
fn threads_share_a_store() {
    let store = Store::in_memory().expect("made");
    let table = table(&store);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (store, table) = (&store, &table);
            scope
                .spawn(move || (0..50).for_each(|i| put(store, table, &[thread, i], b"value").expect("put")));
        }
    });
    assert_eq!(store.check().expect("sound").iter().find(|t| t.name == "t").expect("t").records, 200);
}

#[test]
fn tables_are_compressed_by_what_is_built_in() {
    let (_directory, path) = scratch();
    let store = open(&path).expect("made");
    for algorithm in Algorithm::ALL {
        let options = TableOptions::compressed(algorithm);
        let Ok(table) = store.open_table(algorithm.name(), options) else {
            assert!(!algorithm.is_built_in(), "{algorithm}");
            continue;
        };
        assert!(algorithm.is_built_in(), "{algorithm}");
        (0..100_u8).for_each(|key| put(&store, &table, &[key], &[7; 1000]).expect("put"));
        store.checkpoint().expect("checkpoint");
        assert!(store.images(algorithm.name()).expect("images").pages.contains_key(&algorithm));
    }
    store.close().expect("closed");
    open(&path).expect("opened").check().expect("sound");
}

#[test]
fn an_encrypted_store_hides_its_records_and_opens_with_its_key() {
    const VALUE: &[u8] = b"a value that nobody may read";
    let open = |path: &Path, key: Option<&str>| {
        let builder = Store::builder().size(64 << 20).pool_bytes(4 << 20);
        match key {
            Some(key) => builder.key(Secret::new(key).expect("a key")).open(path),
            None => builder.open(path),
        }
    };
    let (directory, path) = scratch();
    let found = |path: &Path| {
        fs::read(path).expect("the file").windows(VALUE.len()).filter(|bytes| *bytes == VALUE).count()
    };
    let plain = directory.path().join("plain");
    for (path, key) in [(&plain, None), (&path, Some("one"))] {
        let store = open(path, key).expect("made");
        for number in 0..100_u8 {
            put(&store, &table(&store), &[number], VALUE).expect("put");
        }
        drop(store); // the log is left to be replayed
        let store = open(path, key).expect("recovered");
        store.close().expect("closed");
    }
    assert!(found(&plain) > 100 && found(&path) == 0, "{} {}", found(&plain), found(&path));
    let missing = refusal(&path, open(&path, None)).to_string();
    assert!(missing.ends_with("the store is encrypted: a key is needed"), "{missing}");
    assert!(refusal(&path, open(&path, Some("two"))).to_string().contains("wrong key"));
    assert!(refusal(&plain, open(&plain, Some("one"))).to_string().contains("not encrypted"));
    let refused = open(directory.path(), Some("one")).expect_err("a directory");
    assert!(matches!(refused, Error::BadOption { what: "key", .. }), "{refused}");
    let store = open(&path, Some("one")).expect("opened");
    let table = store.table("t").expect("catalog").expect("a table");
    assert_eq!(store.begin().get(&table, &[7]).expect("get").as_deref(), Some(VALUE));
}
