//! Encrypted tables: what lies in files and on a log device, which keys open what, and what is lost with a key. Power
//! cuts are in `crash`, but for those that hit the keys.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use lacuna_device::{
    AlignedBuf, AtomicWrites, BatchOp, Error as DeviceError, FileProps, LogDevice, MemVfs, SECTOR,
    StreamHint, Vfs, log_device::MappedMemory,
};
use lacuna_engine::{
    Algorithm, Direction, Doublewrite, EngineKey, Error, KeyChange, KeyCost, KeyOptions, LogDeviceVfs,
    Result, Secret, Store, StoreOptions, Table, TableKind, TableOptions,
};
use lacuna_sim::{HookedVfs, Hooks, SeededRng, SimVfs, for_each_seed};

/// No compression or packing takes it apart: it is in plain tables, and keys.
const MARK: &[u8] = b"marked plaintext";
const KEYS: [&str; 2] = ["keys", "keys-copy"];
/// Bytes of the key block.
const BLOCK_BYTES: usize = 4096;

fn key(secret: &str) -> EngineKey {
    let slot = KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() };
    EngineKey { secret: Secret::new(secret).expect("a secret"), slot }
}

fn options(secret: Option<&str>) -> StoreOptions {
    StoreOptions { pool_bytes: 1 << 20, background: false, key: secret.map(key), ..StoreOptions::default() }
}

fn plain() -> TableOptions {
    TableOptions::default().page_bytes(4096)
}

fn lz4() -> TableOptions {
    TableOptions::compressed(Algorithm::Lz4).page_bytes(8192)
}

fn marked(number: u64) -> Vec<u8> {
    [MARK, &number.to_be_bytes()].concat()
}

fn put(store: &Store, table: &Table, keys: std::ops::Range<u64>, bytes: usize) -> Result<()> {
    for number in keys {
        let mut txn = store.begin();
        let value = MARK.iter().copied().cycle().skip(number as usize % 16).take(bytes).collect::<Vec<_>>();
        txn.put(table, &marked(number), &value)?;
        txn.commit()?;
    }
    Ok(())
}

fn count(store: &Store, name: &str) -> Result<u64> {
    let table = store.table(name)?.expect("made before");
    let mut records = 0;
    store.begin().scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |key, _| {
        assert!(key.starts_with(MARK));
        records += 1;
        ControlFlow::Continue(())
    })?;
    Ok(records)
}

fn bytes_of(vfs: &dyn Vfs, name: &str) -> AlignedBuf {
    let file = vfs.open(name, StreamHint::Data).expect("open");
    let mut bytes = AlignedBuf::zeroed((file.len().expect("len") as usize).next_multiple_of(SECTOR));
    file.read_at(0, &mut bytes).expect("read");
    bytes
}

/// The first letters of the files in which the mark is found.
fn marked_files(vfs: &dyn Vfs, found: &mut String) {
    for name in vfs.list().expect("list") {
        let name = &name[..name.len().min(9)];
        let is_log = name.starts_with("wal");
        let file =
            vfs.list().expect("list").into_iter().find(|other| other.starts_with(name)).expect("there");
        // Of the log, what was not given back; it begins anywhere.
        let bytes = if is_log { log_bytes(vfs, &file) } else { bytes_of(vfs, &file).to_vec() };
        if bytes.windows(MARK.len()).any(|window| window == MARK) && !found.contains(&name[..2]) {
            found.push_str(&name[..2]);
        }
    }
}

fn log_bytes(vfs: &dyn Vfs, name: &str) -> Vec<u8> {
    let file = vfs.open(name, StreamHint::Log).expect("open");
    let mut all = Vec::new();
    let mut sector = AlignedBuf::zeroed(1 << 16);
    for at in (0..file.len().expect("len").min(32 << 20)).step_by(1 << 16) {
        if file.read_at(at, &mut sector).is_ok() {
            all.extend_from_slice(&sector);
        }
    }
    all
}

/// All that puts keys and values anywhere: inserts, edits, replaced and deleted values, long ones, savepoints, a
/// transaction that is open, histories, a checkpoint, a rollback in recovery. Returns in which files the mark was found.
fn marked_workload(vfs: &Arc<dyn Vfs>, options: &StoreOptions, tables: [TableOptions; 2]) -> String {
    let mut found = String::new();
    let store = Store::open(vfs.clone(), options.clone()).expect("open");
    for (name, options) in ["plain", "lz4"].iter().zip(tables) {
        let table = store.create_table(name, options).expect("create");
        let reader = store.begin();
        assert_eq!(reader.get(&table, b"x").expect("get"), None);
        put(&store, &table, 0..300, 150).expect("put");
        put(&store, &table, 100..150, 151).expect("put");
        put(&store, &table, 200..230, 150).expect("put");
        put(&store, &table, 300..303, 60_000).expect("long ones");
        let mut txn = store.begin();
        for number in 0..50 {
            txn.delete(&table, &marked(number)).expect("delete");
        }
        txn.commit().expect("commit");
        marked_files(&**vfs, &mut found);
        store.checkpoint().expect("checkpoint");
        marked_files(&**vfs, &mut found);
        drop(reader);
    }
    let table = store.table("plain").expect("look up").expect("there");
    let mut open = store.begin();
    for number in 400..500 {
        open.put(&table, &marked(number), MARK).expect("put");
    }
    store.checkpoint().expect("checkpoint");
    open.put(&table, &marked(500), MARK).expect("put");
    marked_files(&**vfs, &mut found);
    std::mem::forget(open);
    drop((table, store));
    let store = Store::open(vfs.clone(), options.clone()).expect("recover");
    marked_files(&**vfs, &mut found);
    assert_eq!((count(&store, "plain").unwrap(), count(&store, "lz4").unwrap()), (253, 253));
    store.check().expect("check");
    store.optimize("plain", |_| ControlFlow::Continue(())).expect("optimize");
    store.close().expect("close");
    marked_files(&**vfs, &mut found);
    found
}

#[test]
fn nothing_of_a_marked_workload_lies_in_the_files() {
    let twice = |secret| StoreOptions { doublewrite: Doublewrite::On, ..options(secret) };
    let vfs: Arc<dyn Vfs> = SimVfs::new(1);
    let found = marked_workload(&vfs, &twice(None), [plain(), lz4()]);
    for file in ["wa", "t0", "do"] {
        assert!(found.contains(file), "the search finds it in {file}*: {found}");
    }
    let vfs: Arc<dyn Vfs> = SimVfs::new(1);
    let found = marked_workload(&vfs, &twice(Some("secret")), [plain().encrypted(), lz4().encrypted()]);
    assert_eq!(found, "");
}

#[test]
fn nothing_of_a_marked_workload_lies_on_the_log_device() {
    for secret in [None, Some("secret")] {
        let memory = Arc::new(MappedMemory::anonymous(8 << 20).expect("memory"));
        let device: Arc<dyn LogDevice> = memory.clone();
        let vfs: Arc<dyn Vfs> = LogDeviceVfs::format(MemVfs::new(), device, false).expect("format");
        let store = Store::open(vfs, options(secret)).expect("open");
        let table = store.create_table("t", TableOptions { encrypted: secret.is_some(), ..plain() });
        put(&store, &table.expect("create"), 0..300, 100).expect("put");
        let mut bytes = vec![0; 8 << 20];
        memory.read_at(0, &mut bytes).expect("read");
        let is_found = bytes.windows(MARK.len()).any(|window| window == MARK);
        assert_eq!(is_found, secret.is_none(), "{secret:?}");
    }
}

/// Undo of encrypted tables is in pages that plain ones share.
#[test]
fn tables_that_are_not_encrypted_lie_beside_others() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    let found = marked_workload(&vfs, &options(Some("secret")), [plain(), lz4().encrypted()]);
    assert_eq!(found, "t0", "the plain table, neither undo nor log");
    let store = Store::open(vfs, options(Some("secret"))).expect("open");
    let encrypted: Vec<bool> = ["lz4", "plain"]
        .map(|name| {
            let images = store.images(name).expect("images");
            assert!(images.encrypted == 0 || images.encrypted == images.pages.values().sum::<u64>());
            images.encrypted > 0
        })
        .into();
    assert_eq!(encrypted, [true, false]);
    let infos = store.tables().expect("tables");
    assert_eq!(infos.iter().map(|info| info.options.encrypted).collect::<Vec<_>>(), encrypted);
}

#[test]
fn what_keeps_a_store_closed_is_said_in_one_line() {
    let [plain_vfs, vfs] = [None, Some("secret")].map(|secret| {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        Store::open(vfs.clone(), options(secret)).expect("open").close().expect("close");
        vfs
    });
    for open in [Store::open, Store::open_read_only] {
        for (vfs, secret, want) in [
            (&vfs, Some("wrong"), "wrong key: it opens none of 1 key slots"),
            (&vfs, None, "its tables are encrypted, and no key was given"),
            (&plain_vfs, Some("secret"), "its tables have no keys, but one was given"),
        ] {
            let error = open(vfs.clone(), options(secret)).map(drop).expect_err("refused").to_string();
            assert!(error.ends_with(want) && !error.contains('\n'), "{error}");
        }
        drop(open(vfs.clone(), options(Some("secret"))).expect("the right one"));
    }
    let store = Store::open(plain_vfs, options(None)).expect("open");
    let error = store.create_table("t", plain().encrypted()).map(drop).expect_err("no keys").to_string();
    assert!(error.contains("the store has no keys"), "{error}");
    let row = TableOptions::row_compressed(8).encrypted();
    assert!(matches!(store.create_table("t", row), Err(Error::BadOption { what: "encrypted", .. })));
}

/// Where the entry of a table is in the key files.
fn entry_of(vfs: &dyn Vfs, table: u32) -> usize {
    let bytes = bytes_of(vfs, KEYS[0]);
    let sectors = (BLOCK_BYTES..bytes.len()).step_by(SECTOR);
    let is_its =
        |at: &usize| bytes[*at..].starts_with(b"LcKE") && bytes[at + 12..][..4] == table.to_le_bytes();
    sectors.into_iter().find(is_its).expect("an entry")
}

fn overwrite(vfs: &dyn Vfs, name: &str, at: usize, bytes: &[u8]) {
    let file = vfs.open(name, StreamHint::Data).expect("open");
    let mut aligned = AlignedBuf::zeroed(bytes.len());
    aligned.copy_from_slice(bytes);
    file.write_at(at as u64, &aligned).expect("write");
}

fn two_tables(vfs: &Arc<dyn Vfs>) {
    let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
    for name in ["one", "other"] {
        let table = store.create_table(name, plain().encrypted()).expect("create");
        put(&store, &table, 0..100, 100).expect("put");
    }
    store.close().expect("close");
}

#[test]
fn a_table_whose_key_is_lost_refuses_while_others_work() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    two_tables(&vfs);
    let at = entry_of(&*vfs, 16);
    KEYS.iter().for_each(|name| overwrite(&*vfs, name, at, &[0; SECTOR]));
    let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
    let is_locked = |outcome: Result<()>| {
        let error = outcome.expect_err("locked").to_string();
        assert_eq!(error, "table 16: encrypted, and its key is missing or damaged");
    };
    let one = store.table("one").expect("look up").expect("there");
    is_locked(store.begin().get(&one, b"k").map(drop));
    is_locked(store.begin().put(&one, b"k", b"v"));
    is_locked(store.set_encrypted("one", false));
    is_locked(store.optimize("one", |_| ControlFlow::Continue(())).map(drop));
    let other = store.table("other").expect("look up").expect("there");
    put(&store, &other, 100..200, 100).expect("put");
    assert_eq!(count(&store, "other").expect("count"), 200);
    let third = store.create_table("third", plain().encrypted()).expect("create");
    put(&store, &third, 0..10, 100).expect("put");
    let locked: Vec<bool> = store.tables().expect("tables").iter().map(|info| info.is_locked).collect();
    assert_eq!(locked, [true, false, false]);
    let checks = store.check().expect("sound as far as it can be seen");
    assert_eq!(checks.iter().map(|check| check.is_locked).collect::<Vec<_>>(), [false, true, false, false]);
    drop((one, other, third));
    store.close().expect("close");
    // The images of the locked table are verified all the same.
    overwrite(&*vfs, "t00000016.4k", 4096 + SECTOR, &[9; SECTOR]);
    let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
    let error = store.check().expect_err("damaged").to_string();
    assert!(error.contains("t00000016.4k") && error.contains("checksum"), "{error}");
    store.drop_table("one").expect("drop");
    store.check().expect("check");
}

/// Changes an entry, and makes its checksum match.
fn resealed(mut sector: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut sector);
    sector[8..12].fill(0);
    let checksum = lacuna_crc::crc32c(&sector[..120]);
    sector[8..12].copy_from_slice(&checksum.to_le_bytes());
    sector
}

/// Destroying a key destroys the table.
#[test]
fn the_key_of_a_table_goes_with_it() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    two_tables(&vfs);
    let at = entry_of(&*vfs, 16);
    let before = bytes_of(&*vfs, KEYS[0])[at..at + SECTOR].to_vec();
    let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
    store.drop_table("one").expect("drop");
    for name in KEYS {
        assert!(!bytes_of(&*vfs, name).windows(104).any(|window| *window == before[16..120]), "{name}");
    }
    let table = store.create_table("one", plain().encrypted()).expect("create");
    put(&store, &table, 0..10, 10).expect("put");
    assert_eq!(entry_of(&*vfs, 18), at, "the place is used again");
}

#[test]
fn secrets_come_and_go_and_no_data_is_written_anew() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    two_tables(&vfs);
    let files = || -> Vec<Vec<u8>> {
        let names = vfs.list().expect("list").into_iter().filter(|name| !name.starts_with("wal"));
        names.filter(|name| name != "control").map(|name| bytes_of(&*vfs, &name).to_vec()).collect()
    };
    let before = files();
    let secret = |text: &str| Secret::new(text).expect("a secret");
    let slot = key("any").slot;
    let (new, third) = (secret("new"), secret("third"));
    let change = |with: &str, change: &KeyChange<'_>| Store::change_keys(&vfs, &secret(with), change);
    let rotate = KeyChange::Rotate { new: &new, options: &slot };
    assert!(matches!(change("wrong", &rotate), Err(Error::Key { .. })));
    assert_eq!(change("secret", &rotate).expect("rotate"), 0);
    assert_eq!(change("new", &KeyChange::Add { new: &third, options: &slot }).expect("add"), 1);
    let changed = files().iter().zip(&before).filter(|(now, then)| now != then).count();
    assert_eq!(changed, 2, "the key files");
    assert!(matches!(Store::open(vfs.clone(), options(Some("secret"))), Err(Error::Key { .. })));
    assert!(matches!(change("new", &KeyChange::Remove { slot: 0 }), Err(Error::Key { .. })), "its own");
    change("third", &KeyChange::Remove { slot: 0 }).expect("remove");
    assert!(matches!(Store::open(vfs.clone(), options(Some("new"))), Err(Error::Key { .. })));
    assert_eq!(Store::keys(&vfs).expect("keys").len(), 1);
    let store = Store::open(vfs.clone(), options(Some("third"))).expect("open");
    assert_eq!(count(&store, "one").expect("count"), 100);
    // Also while it is open.
    change("third", &KeyChange::Rotate { new: &new, options: &slot }).expect("rotate");
    store.create_table("more", plain().encrypted()).expect("create");
    store.close().expect("close");
    let store = Store::open(vfs.clone(), options(Some("new"))).expect("open");
    assert_eq!(store.tables().expect("tables").len(), 3);
}

#[test]
fn a_store_that_exists_gets_keys_and_its_tables_are_encrypted_in_place() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    let store = Store::open(vfs.clone(), options(None)).expect("open");
    let table = store.create_table("t", plain()).expect("create");
    put(&store, &table, 0..200, 100).expect("put");
    assert!(matches!(Store::create_keys(&vfs, &key("secret")), Err(Error::Busy { .. })));
    drop((table, store));
    Store::create_keys(&vfs, &key("secret")).expect("create keys");
    assert!(matches!(Store::create_keys(&vfs, &key("other")), Err(Error::BadStore { .. })));
    let store = Store::open(vfs.clone(), options(Some("secret"))).expect("recover");
    for (is_encrypted, kind) in
        [(true, lz4().kind), (true, TableKind::Plain), (false, TableKind::Plain), (true, lz4().kind)]
    {
        store.set_encrypted("t", is_encrypted).expect("set");
        store.alter_table("t", kind).expect("alter");
        store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
        let images = store.images("t").expect("images");
        let pages: u64 = images.pages.values().sum();
        assert_eq!(images.encrypted, if is_encrypted { pages } else { 0 });
        assert_eq!(count(&store, "t").expect("count"), 200);
        store.check().expect("check");
    }
    let row = TableOptions::row_compressed(4).kind;
    assert!(matches!(store.alter_table("t", row), Err(Error::BadOption { what: "encrypted", .. })));
    store.close().expect("close");
    let found = |vfs: &dyn Vfs| {
        let bytes = bytes_of(vfs, "t00000016.4k");
        bytes.windows(MARK.len()).any(|window| window == MARK)
    };
    assert!(!found(&*vfs), "optimizing left nothing of the plain images in the file");
}

/// A directory whose files take holes of whole blocks, none, or refuse them from now on.
struct Holes {
    unit: u32,
    refuses: bool,
}

impl Hooks for Holes {
    fn props(&self, props: FileProps) -> FileProps {
        FileProps { hole_unit: self.unit, ..props }
    }

    fn before_batch(&self, ops: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        match self.refuses && ops.iter().any(|op| matches!(op, BatchOp::Punch { .. })) {
            true => Err(DeviceError::Unsupported { what: "directory".into(), operation: "punch a hole" }),
            false => Ok(()),
        }
    }
}

/// Behind an image that became shorter lies what the image before it had there.
#[test]
fn nothing_plain_stays_behind_encrypted_images() {
    let writes = AtomicWrites { bytes_min: 4096, bytes_max: 64 << 10 };
    for (unit, refuses, trim) in
        [(4096, false, true), (0, false, true), (4096, true, true), (4096, false, false)]
    {
        for sim in [SimVfs::new(1), SimVfs::with_atomic_writes(1, writes)] {
            let vfs: Arc<dyn Vfs> = HookedVfs::new(sim, Arc::new(Holes { unit, refuses }));
            let store =
                Store::open(vfs.clone(), StoreOptions { trim, ..options(Some("secret")) }).expect("open");
            let table = store.create_table("t", plain().page_bytes(16 << 10)).expect("create");
            put(&store, &table, 0..300, 200).expect("put");
            store.checkpoint().expect("checkpoint");
            store.alter_table("t", lz4().kind).expect("alter");
            store.set_encrypted("t", true).expect("set");
            store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
            drop(table);
            store.close().expect("close");
            let bytes = bytes_of(&*vfs, "t00000016.16k");
            let found = bytes.windows(MARK.len()).filter(|window| *window == MARK).count();
            assert_eq!(found, 0, "unit {unit}, refuses {refuses}, trim {trim}");
        }
    }
}

/// An entry for a table without a key, which does not open.
#[test]
fn a_forged_entry_keeps_a_table_from_being_encrypted() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    two_tables(&vfs);
    let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
    let table = store.create_table("plain", plain()).expect("create");
    put(&store, &table, 0..10, 100).expect("put");
    drop(table);
    store.close().expect("close");
    let at = entry_of(&*vfs, 16);
    let sector = bytes_of(&*vfs, KEYS[0])[at..at + SECTOR].to_vec();
    let sector = resealed(sector, |entry| entry[12..16].copy_from_slice(&18_u32.to_le_bytes()));
    let end = bytes_of(&*vfs, KEYS[0]).len();
    KEYS.iter().for_each(|name| overwrite(&*vfs, name, end, &sector));
    let store = Store::open(vfs, options(Some("secret"))).expect("open");
    assert!(matches!(store.set_encrypted("plain", true), Err(Error::TableLocked { .. })));
    assert_eq!(count(&store, "plain").expect("count"), 10);
}

/// There the place of a newer key holds that of a table that is gone.
#[test]
fn a_key_file_that_is_put_back_from_before_costs_no_key() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    two_tables(&vfs);
    let before = bytes_of(&*vfs, KEYS[0]).to_vec();
    let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
    store.drop_table("one").expect("drop");
    let table = store.create_table("third", plain().encrypted()).expect("create");
    put(&store, &table, 0..10, 10).expect("put");
    drop(table);
    store.close().expect("close");
    assert_eq!(bytes_of(&*vfs, KEYS[0]).len(), before.len(), "its place was used again");
    overwrite(&*vfs, KEYS[0], 0, &before);
    for _ in 0..3 {
        let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
        assert_eq!(
            (count(&store, "third").expect("count"), count(&store, "other").expect("count")),
            (10, 100)
        );
        store.close().expect("close");
    }
}

/// The same of the other file, where the power goes out in the opening that mends it.
#[test]
fn a_cut_in_the_opening_after_a_key_file_was_put_back_costs_no_key() {
    for_each_seed(300, |seed| {
        let vfs = SimVfs::new(seed);
        let place: Arc<dyn Vfs> = vfs.clone();
        two_tables(&place);
        let before = bytes_of(&*place, KEYS[1]).to_vec();
        let store = Store::open(place.clone(), options(Some("secret"))).expect("open");
        store.drop_table("one").expect("drop");
        let table = store.create_table("third", plain().encrypted()).expect("create");
        put(&store, &table, 0..10, 10).expect("put");
        drop(table);
        store.close().expect("close");
        overwrite(&*place, KEYS[1], 0, &before);
        place.open(KEYS[1], StreamHint::Data).expect("open").sync().expect("sync");
        vfs.set_cut_after(1 + seed % 12);
        drop(Store::open(place.clone(), options(Some("secret"))));
        vfs.power_cycle();
        let store = Store::open(place, options(Some("secret"))).expect("open");
        assert_eq!(
            (count(&store, "third").expect("count"), count(&store, "other").expect("count")),
            (10, 100)
        );
    });
}

/// Of two entries of a table in both files one counts, from the next opening on alone.
#[test]
fn files_that_differ_are_settled() {
    for damage in 0..3 {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        two_tables(&vfs);
        let (one, other) = (entry_of(&*vfs, 16), entry_of(&*vfs, 17));
        let whole = bytes_of(&*vfs, KEYS[0]).to_vec();
        let sealed = resealed(whole[one..one + SECTOR].to_vec(), |entry| entry[100] ^= 1);
        match damage {
            // One that does not open, in the place of that of one file.
            0 => overwrite(&*vfs, KEYS[0], one, &sealed),
            1 => overwrite(&*vfs, KEYS[1], one, &sealed),
            // The same entry elsewhere, too.
            _ => overwrite(&*vfs, KEYS[1], whole.len(), &whole[other..other + SECTOR]),
        }
        let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
        assert_eq!(count(&store, "one").expect("count") + count(&store, "other").expect("count"), 200);
        store.close().expect("close");
        for name in KEYS {
            let found = bytes_of(&*vfs, name);
            assert!(found[..whole.len()] == whole && found[whole.len()..].iter().all(|byte| *byte == 0));
        }
    }
}

/// Otherwise a change that read the key block before another one wrote it would take that back.
#[test]
fn secrets_that_change_at_a_time_are_all_changed() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    two_tables(&vfs);
    let slot = KeyOptions { cost: KeyCost { memory_kib: 2048, passes: 2 }, ..KeyOptions::default() };
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (vfs, slot) = (&vfs, &slot);
            scope.spawn(move || {
                let new = Secret::new(format!("number {number}")).expect("a secret");
                let change = KeyChange::Add { new: &new, options: slot };
                Store::change_keys(vfs, &Secret::new("secret").expect("a secret"), &change).expect("add");
            });
        }
    });
    assert_eq!(Store::keys(&vfs).expect("keys").len(), 7);
}

/// A process that ended between an image and the hole behind it, or zeros there, leaves what was there before.
#[test]
fn what_a_crash_left_behind_an_encrypted_image_goes_with_the_next_one() {
    for (unit, is_optimized) in [(0, false), (0, true), (4096, false), (4096, true)] {
        let place: Arc<dyn Vfs> = HookedVfs::new(SimVfs::new(1), Arc::new(Holes { unit, refuses: false }));
        let open = || Store::open(place.clone(), options(Some("secret"))).expect("open");
        let store = open();
        let table = store.create_table("t", lz4().page_bytes(16 << 10).encrypted()).expect("create");
        put(&store, &table, 0..300, 200).expect("put");
        drop(table);
        store.close().expect("close");
        let name = "t00000016.16k";
        let pages = bytes_of(&*place, name).len() / (16 << 10);
        let left = MARK.iter().copied().cycle().take(2 * SECTOR).collect::<Vec<_>>();
        (0..pages).for_each(|page| overwrite(&*place, name, (page + 1) * (16 << 10) - left.len(), &left));
        let store = open();
        let table = store.table("t").expect("look up").expect("there");
        if is_optimized {
            store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
        } else {
            put(&store, &table, 0..300, 201).expect("put");
        }
        store.close().expect("close");
        let bytes = bytes_of(&*place, name);
        let used = store_pages(&bytes);
        let found = used.filter(|page| page.windows(MARK.len()).any(|window| window == MARK)).count();
        // The first page and the root were not written.
        let untouched = if is_optimized { 0 } else { 2 };
        assert!(found <= untouched, "{found} pages, unit {unit}, optimized {is_optimized}");
    }
}

/// The same before it was encrypted: its pages may be in memory then, read without a key.
#[test]
fn what_a_crash_left_behind_a_plain_image_goes_with_the_encrypted_one() {
    for unit in [0, 4096] {
        let place: Arc<dyn Vfs> = HookedVfs::new(SimVfs::new(1), Arc::new(Holes { unit, refuses: false }));
        let open = || Store::open(place.clone(), options(Some("secret"))).expect("open");
        let store = open();
        let table = store.create_table("t", lz4().page_bytes(16 << 10)).expect("create");
        put(&store, &table, 0..300, 200).expect("put");
        drop(table);
        store.close().expect("close");
        let name = "t00000016.16k";
        let pages = bytes_of(&*place, name).len() / (16 << 10);
        let left = MARK.iter().copied().cycle().take(2 * SECTOR).collect::<Vec<_>>();
        (0..pages).for_each(|page| overwrite(&*place, name, (page + 1) * (16 << 10) - left.len(), &left));
        let store = open();
        assert_eq!(count(&store, "t").expect("count"), 300);
        store.set_encrypted("t", true).expect("set");
        store.optimize("t", |_| ControlFlow::Continue(())).expect("optimize");
        store.close().expect("close");
        let bytes = bytes_of(&*place, name);
        let found = store_pages(&bytes).filter(|page| page.windows(MARK.len()).any(|w| w == MARK)).count();
        assert_eq!(found, 0, "unit {unit}");
    }
}

/// Pages of 16 KiB that have an image.
fn store_pages(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(16 << 10).filter(|page| page[..64].iter().any(|byte| *byte != 0))
}

/// Nor is it written while more is replayed than the pool takes.
#[test]
fn replay_writes_nothing_of_a_table_without_its_key() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    let roomy = StoreOptions { pool_bytes: 64 << 20, ..options(Some("secret")) };
    let store = Store::open(vfs.clone(), roomy).expect("open");
    let table = store.create_table("one", plain().encrypted()).expect("create");
    put(&store, &table, 0..3000, 800).expect("put");
    drop((table, store));
    let (at, keys) = (entry_of(&*vfs, 16), KEYS.map(|name| bytes_of(&*vfs, name)));
    KEYS.iter().for_each(|name| overwrite(&*vfs, name, at, &[0; SECTOR]));
    let error = Store::open(vfs.clone(), options(Some("secret"))).map(drop).expect_err("locked");
    assert!(matches!(error, Error::TableLocked { .. }), "{error}");
    let mut found = String::new();
    marked_files(&*vfs, &mut found);
    assert_eq!(found, "", "plaintext");
    KEYS.iter().zip(&keys).for_each(|(name, bytes)| overwrite(&*vfs, name, 0, bytes));
    let store = Store::open(vfs, options(Some("secret"))).expect("open");
    assert_eq!(count(&store, "one").expect("count"), 3000);
}

/// Nor is it tried after each page: replay does not know which tables of a store with keys are to be encrypted.
#[test]
fn replay_tries_to_write_no_page_of_a_table_that_may_lack_its_key() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    let roomy = StoreOptions { pool_bytes: 64 << 20, ..options(Some("secret")) };
    let store = Store::open(vfs.clone(), roomy).expect("open");
    let table = store.create_table("one", plain()).expect("create");
    put(&store, &table, 0..3000, 800).expect("put");
    drop((table, store));
    let store = Store::open(vfs, options(Some("secret"))).expect("open");
    let stats = store.stats().expect("stats");
    assert!(stats.recovery.pages > 700, "{:?}", stats.recovery);
    assert!(stats.flush.rounds < 100, "{} rounds for {} pages", stats.flush.rounds, stats.recovery.pages);
    assert_eq!(count(&store, "one").expect("count"), 3000);
}

/// Only what may have plaintext behind it is covered with zeros, and twice where pages are written twice.
#[test]
fn an_encrypted_image_is_covered_once() {
    let place: Arc<dyn Vfs> = HookedVfs::new(SimVfs::new(1), Arc::new(Holes { unit: 0, refuses: false }));
    let store = Store::open(place, options(Some("secret"))).expect("open");
    let table = store.create_table("t", lz4().page_bytes(16 << 10).encrypted()).expect("create");
    let mut bytes = [0, 0];
    for (round, bytes) in bytes.iter_mut().enumerate() {
        put(&store, &table, 0..300, 200 + round).expect("put");
        let before = store.stats().expect("stats").flush.doublewrite_bytes;
        store.checkpoint().expect("checkpoint");
        *bytes = store.stats().expect("stats").flush.doublewrite_bytes - before;
    }
    assert!(bytes[1] < bytes[0] / 2, "{bytes:?}");
}

/// It would be written as it is: recovery does not know a table that has no page yet.
#[test]
fn what_the_log_has_for_a_table_without_its_key_waits_for_that() {
    let vfs: Arc<dyn Vfs> = MemVfs::new();
    let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
    let table = store.create_table("one", plain().encrypted()).expect("create");
    put(&store, &table, 0..100, 100).expect("put");
    drop((table, store));
    let (at, keys) = (entry_of(&*vfs, 16), KEYS.map(|name| bytes_of(&*vfs, name)));
    KEYS.iter().for_each(|name| overwrite(&*vfs, name, at, &[0; SECTOR]));
    let error = Store::open(vfs.clone(), options(Some("secret"))).map(drop).expect_err("locked");
    assert!(matches!(error, Error::TableLocked { .. }), "{error}");
    assert!(!bytes_of(&*vfs, "t00000016.4k").windows(MARK.len()).any(|window| window == MARK));
    KEYS.iter().zip(&keys).for_each(|(name, bytes)| overwrite(&*vfs, name, 0, bytes));
    let store = Store::open(vfs, options(Some("secret"))).expect("open");
    assert_eq!(count(&store, "one").expect("count"), 100);
}

/// Either copy is enough, also of a part; the next opening restores the other.
#[test]
fn either_of_both_key_files_is_enough() {
    for name in KEYS {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        two_tables(&vfs);
        let whole = bytes_of(&*vfs, name).to_vec();
        for damage in 0..4 {
            match damage {
                0 => vfs.remove(name).expect("remove"),
                1 => overwrite(&*vfs, name, 0, &[7; BLOCK_BYTES]),
                2 => overwrite(&*vfs, name, BLOCK_BYTES, &vec![7; whole.len() - BLOCK_BYTES]),
                _ => vfs.open(name, StreamHint::Data).expect("open").set_len(0).expect("cut"),
            }
            let store = Store::open(vfs.clone(), options(Some("secret"))).expect("open");
            assert_eq!(count(&store, "one").expect("count") + count(&store, "other").expect("count"), 200);
            store.close().expect("close");
            assert!(*bytes_of(&*vfs, name) == *whole, "{name} is restored");
        }
    }
}

/// Each number of operations after which the power may fail while encrypted tables are made, filled and dropped: there
/// is the key of each table that is there, and of no other.
#[test]
fn power_cuts_leave_each_table_with_its_key() {
    for_each_seed(12, |seed| {
        let mut has_cut = true;
        for cut in 1.. {
            if !has_cut {
                break;
            }
            let vfs = SimVfs::new(seed ^ cut << 32);
            let place: Arc<dyn Vfs> = vfs.clone();
            two_tables(&place);
            let store = Store::open(place.clone(), options(Some("secret"))).expect("open");
            // Some cuts only: each takes a store of its own.
            let mut rng = SeededRng::new(seed + cut);
            vfs.set_cut_after(cut * 3 + rng.below(3));
            let work = || -> Result<()> {
                let table = store.create_table("third", lz4().encrypted())?;
                put(&store, &table, 0..20, 100)?;
                store.checkpoint()?;
                store.drop_table("one")?;
                store.create_table("fourth", plain().encrypted()).map(drop)
            };
            has_cut = work().is_err();
            vfs.power_cycle();
            drop(store);
            let store = Store::open(place.clone(), options(Some("secret"))).expect("recover");
            for info in store.tables().expect("tables") {
                assert!(!info.is_locked, "{} has lost its key", info.name);
                let want = match info.name.as_str() {
                    "third" => 20,
                    "fourth" => 0,
                    _ => 100,
                };
                let found = count(&store, &info.name).expect("count");
                assert!(found == want || (info.name == "third" && found < want), "{}: {found}", info.name);
            }
            store.check().expect("check");
            let tables = store.tables().expect("tables").len();
            let keys = bytes_of(&*place, KEYS[0]);
            let entries = (BLOCK_BYTES..keys.len()).step_by(SECTOR);
            let entries = entries.filter(|at| keys[*at..].starts_with(b"LcKE")).count();
            assert_eq!(entries, tables + 2, "of tables, undo and the log");
        }
    });
}

#[test]
fn power_cuts_while_secrets_change_leave_the_old_or_the_new_one() {
    for_each_seed(40, |seed| {
        let vfs = SimVfs::new(seed);
        let place: Arc<dyn Vfs> = vfs.clone();
        two_tables(&place);
        let [old, new] = ["secret", "new"].map(|text| Secret::new(text).expect("a secret"));
        let slot = key("any").slot;
        vfs.set_cut_after(seed % 5);
        let rotate = KeyChange::Rotate { new: &new, options: &slot };
        let changed = Store::change_keys(&place, &old, &rotate);
        vfs.power_cycle();
        let by_old = Store::open(place.clone(), options(Some("secret"))).map(drop);
        let by_new = Store::open(place.clone(), options(Some("new"))).map(drop);
        assert!(by_old.is_ok() != by_new.is_ok(), "one of them: {by_old:?}, {by_new:?}");
        assert!(changed.is_err() || by_new.is_ok(), "what returned counts");
        // Whichever it is, both files have it from then on.
        let right = if by_new.is_ok() { "new" } else { "secret" };
        place.remove(KEYS[0]).expect("remove");
        drop(Store::open(place.clone(), options(Some(right))).expect("the other copy"));
    });
}

/// Key files of random bytes, and entries of other tables: an error, or a table that refuses.
#[test]
fn forged_key_files_are_errors_or_harmless() {
    for_each_seed(60, |seed| {
        let mut rng = SeededRng::new(seed);
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        two_tables(&vfs);
        let len = bytes_of(&*vfs, KEYS[0]).len();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below((len / SECTOR) as u64) as usize * SECTOR;
            let mut sector = bytes_of(&*vfs, KEYS[0])[at..at + SECTOR].to_vec();
            match rng.below(3) {
                0 => rng.fill(&mut sector),
                1 => sector[rng.below(128) as usize] ^= 1 << rng.below(8),
                _ => {
                    // An entry under another table's number, sealed.
                    let (from, to) = (16 + rng.below(2) as u32, 16 + rng.below(4) as u32);
                    sector.copy_from_slice(&bytes_of(&*vfs, KEYS[0])[at..at + SECTOR]);
                    if sector.starts_with(b"LcKE") && sector[12..16] == from.to_le_bytes() {
                        sector[12..16].copy_from_slice(&to.to_le_bytes());
                        sector[8..12].fill(0);
                        let checksum = lacuna_crc::crc32c(&sector[..120]);
                        sector[8..12].copy_from_slice(&checksum.to_le_bytes());
                    }
                }
            }
            KEYS.iter().for_each(|name| overwrite(&*vfs, name, at, &sector));
        }
        let Ok(store) = Store::open(vfs.clone(), options(Some("secret"))) else { return };
        for info in store.tables().expect("tables") {
            match count(&store, &info.name) {
                Ok(records) => assert_eq!(records, 100),
                Err(Error::TableLocked { .. }) => assert!(info.is_locked),
                Err(e) => panic!("{e}"),
            }
        }
        store.check().expect("check");
    });
}
