//! Golden images: stores written by version 1 of the format, which every later version must read.
//!
//! `golden/` holds the files of a store after [`history`], closed, and as a power cut within a checkpoint left them:
//! with torn pages, a running transaction, versions, and deletions that are not purged. [`make_images`] wrote them, and
//! later ones, of an encrypted store and of row-compressed tables by LZ4, the functions beside their tests.

#[path = "golden/history.rs"]
mod history;

use std::{
    collections::BTreeMap,
    fs,
    ops::{Bound, ControlFlow},
    path::Path,
    sync::Arc,
};

use history::{Left, Model, Work, history, kinds, options, tables};
use lacuna_device::{AlignedBuf, MemVfs, SECTOR, StreamHint, Vfs};
use lacuna_engine::{
    Algorithm, Direction, EngineKey, Error, KeyCost, KeyOptions, Secret, Store, StoreOptions, TableKind,
    TableOptions, TransactionOptions,
};
use lacuna_sim::SimVfs;

struct Image {
    name: &'static str,
    packed: &'static [u8],
    is_closed: bool,
}

const IMAGES: [Image; 2] = [
    Image { name: "crashed", packed: include_bytes!("golden/crashed"), is_closed: false },
    Image { name: "closed", packed: include_bytes!("golden/closed"), is_closed: true },
];
/// The features in their control file.
const FEATURES: u64 = 0b11_1111_1111;
/// Zeros that are left out when files are packed, at least.
const GAP: usize = 8;
/// Where control has them in a slot, its checksum, and its sequence; and what it seals.
const FEATURES_AT: usize = 16;
const CHECKSUM_AT: usize = 12;
const SEQUENCE_AT: usize = 24;
const CONTROL_BYTES: usize = 48;
const SLOTS: [u64; 2] = [0, 4096];

fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    rest.split_off(..len).expect("the image is whole")
}

fn number(rest: &mut &[u8], len: usize) -> usize {
    let mut bytes = [0; 8];
    bytes[..len].copy_from_slice(take(rest, len));
    u64::from_le_bytes(bytes) as usize
}

/// The files of an image, all of it synced. See [`pack`].
fn unpack(image: &Image) -> Arc<SimVfs> {
    let vfs = SimVfs::new(1);
    let mut rest = image.packed;
    while !rest.is_empty() {
        let name_bytes = number(&mut rest, 1);
        let name = std::str::from_utf8(take(&mut rest, name_bytes)).expect("a name");
        let file = vfs.create(name, StreamHint::Data).expect("create");
        file.set_len(number(&mut rest, 8) as u64).expect("set_len");
        let mut at = 0;
        loop {
            at += number(&mut rest, 4);
            let len = number(&mut rest, 4);
            if len == 0 {
                break;
            }
            let start = at / SECTOR * SECTOR;
            let mut sectors = AlignedBuf::zeroed((at - start + len).next_multiple_of(SECTOR));
            file.read_at(start as u64, &mut sectors).expect("read");
            sectors[at - start..][..len].copy_from_slice(take(&mut rest, len));
            file.write_at(start as u64, &sectors).expect("write");
            at += len;
        }
    }
    vfs.sync().expect("sync");
    vfs
}

/// All files: length of the name (u8), the name, length of the file (u64); then, until no byte follows, how many zeros
/// are left out and how many bytes follow (u32 each), and these.
fn pack(vfs: &dyn Vfs) -> Vec<u8> {
    let mut packed = Vec::new();
    let mut names = vfs.list().expect("list");
    names.sort();
    for name in names {
        let file = vfs.open(&name, StreamHint::Data).expect("open");
        let len = file.len().expect("len");
        packed.push(name.len() as u8);
        packed.extend_from_slice(name.as_bytes());
        packed.extend_from_slice(&len.to_le_bytes());
        let mut bytes = AlignedBuf::zeroed(len as usize);
        file.read_at(0, &mut bytes).expect("read");
        let (mut at, mut end) = (0, 0);
        while let Some(zeros) = bytes[at..].iter().position(|byte| *byte != 0) {
            let start = at + zeros;
            at = start;
            while at < bytes.len() && bytes[at..bytes.len().min(at + GAP)].iter().any(|byte| *byte != 0) {
                at += 1;
            }
            packed.extend_from_slice(&((start - end) as u32).to_le_bytes());
            packed.extend_from_slice(&((at - start) as u32).to_le_bytes());
            packed.extend_from_slice(&bytes[start..at]);
            end = at;
        }
        packed.extend_from_slice(&[0; 8]);
    }
    packed
}

/// A number that was given already, defaults and a table that follows them.
fn prepare(store: &Store) {
    store.create_table("dropped", TableOptions::default()).expect("create");
    store.set_defaults(TableOptions::compressed(Algorithm::Zstd)).expect("defaults");
    store.create_inheriting_table("zstd").expect("create");
    store.drop_table("dropped").expect("drop");
}

/// A store whose power is cut within the checkpoint, after so many operations; `None` when it was over by then.
fn crashed(cut: u64) -> Option<Arc<SimVfs>> {
    let vfs = SimVfs::new(1);
    let store = Store::open(vfs.clone(), options()).expect("open");
    prepare(&store);
    let left = history(&store);
    vfs.set_cut_after(cut);
    store.checkpoint().err()?;
    drop((left, store));
    vfs.power_cycle();
    Some(vfs)
}

/// Writes the images. Only for a version of the format that has none yet: those of released versions stay.
#[test]
#[ignore = "writes tests/golden"]
fn make_images() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let vfs = SimVfs::new(1);
    let store = Store::open(vfs.clone(), options()).expect("open");
    prepare(&store);
    let left = history(&store);
    left.open.rollback().expect("rollback");
    drop(left.reader);
    store.close().expect("close");
    fs::write(golden.join("closed"), pack(&*vfs)).expect("write");
    // The first cut that tears pages.
    let image = (1..).find_map(|cut| {
        let vfs = crashed(cut).expect("some cut tears a page");
        let packed = pack(&*vfs);
        let did = Store::open(vfs, options()).expect("recover").stats().expect("stats").recovery;
        (did.restored_pages > 0 && did.applied > 100).then_some(packed)
    });
    fs::write(golden.join("crashed"), image.expect("there is one")).expect("write");
}

/// The records that [`history`] committed.
fn committed() -> Model {
    let store = Store::open(MemVfs::new(), options()).expect("open");
    let Left { model, open, reader } = history(&store);
    drop((open, reader));
    model
}

fn slot(vfs: &dyn Vfs, slot: u64) -> AlignedBuf {
    let mut sector = AlignedBuf::zeroed(SECTOR);
    vfs.open("control", StreamHint::Data).expect("control").read_at(slot, &mut sector).expect("read");
    sector
}

fn word(sector: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes"))
}

fn checksum(sector: &[u8]) -> u32 {
    let mut sealed = sector[..CONTROL_BYTES].to_vec();
    sealed[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    lacuna_crc::crc32c(&sealed)
}

/// Those of control's slot that counts.
fn features(vfs: &dyn Vfs) -> u64 {
    let slots = SLOTS.map(|at| slot(vfs, at)).into_iter();
    let whole = slots.filter(|sector| sector[CHECKSUM_AT..][..4] == checksum(sector).to_le_bytes());
    word(&whole.max_by_key(|sector| word(sector, SEQUENCE_AT)).expect("a whole slot"), FEATURES_AT)
}

fn read_all(store: &Store) -> Model {
    let mut found = Model::new();
    let txn = store.begin_with(TransactionOptions::READ_COMMITTED);
    for (name, _) in kinds() {
        let table = store.table(name).expect("catalog").expect("there");
        let mut each = |key: &[u8], value: &[u8]| {
            found.insert((name, key.to_vec()), value.to_vec());
            ControlFlow::Continue(())
        };
        txn.scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, &mut each).expect("scan");
    }
    found
}

#[track_caller]
fn assert_holds(store: &Store, model: &Model, what: &str) {
    let found = read_all(store);
    assert!(found == *model, "{what}: {} records, want {}", found.len(), model.len());
    let checked = store.check().unwrap_or_else(|error| panic!("{what}: {error}"));
    let records: u64 = checked.iter().filter(|table| table.name != "(catalog)").map(|t| t.records).sum();
    assert_eq!(records, model.len() as u64, "{what}");
}

/// Edits and all other kinds of changes, some of them rolled back; returns the committed records.
fn change(store: &Store, mut model: Model) -> Model {
    let tables = tables(store);
    let mut work = Work::begin(store, &tables, &model);
    (0..150).step_by(2).for_each(|key| work.set(key, Some(8)));
    model = work.commit();
    let mut work = Work::begin(store, &tables, &model);
    (0..150).for_each(|key| work.set(key, Some(9)));
    work.txn.rollback().expect("rollback");
    let mut work = Work::begin(store, &tables, &model);
    (0..150).step_by(5).for_each(|key| work.set(key, None));
    (300..320).for_each(|key| work.set(key, Some(1)));
    work.commit()
}

#[test]
fn golden_stores_are_recovered_and_changed() {
    let before = committed();
    for image in &IMAGES {
        let (name, vfs) = (image.name, unpack(image));
        assert_eq!(features(&*vfs), FEATURES, "{name}");
        let store = Store::open(vfs.clone(), options()).expect(name);
        let did = store.stats().expect("stats").recovery;
        match image.is_closed {
            true => assert_eq!((did.records, did.rolled_back, did.restored_pages), (0, 0, 0), "{name}"),
            false => {
                assert!(
                    did.applied > 100 && did.rolled_back == 1 && did.restored_pages > 0,
                    "{name}: {did:?}"
                );
            }
        }
        assert_holds(&store, &before, name);
        let model = change(&store, before.clone());
        assert_holds(&store, &model, name);
        // Replayed on pages of the image and new ones.
        drop(store);
        vfs.power_cycle();
        let store = Store::open(vfs.clone(), options()).expect(name);
        assert!(store.stats().expect("stats").recovery.applied > 100, "{name}");
        assert_holds(&store, &model, name);
        store.close().expect("close");
        let store = Store::open(vfs, options()).expect(name);
        assert_holds(&store, &model, name);
    }
}

#[test]
fn catalogs_of_golden_stores_are_kept_up() {
    for image in &IMAGES {
        let name = image.name;
        let store = Store::open(unpack(image), options()).expect(name);
        let tables = store.tables().expect("tables");
        let inherit: Vec<_> = tables.iter().filter(|table| table.inherits).map(|t| &t.name[..]).collect();
        assert_eq!(inherit, ["zstd"], "{name}");
        let zstd = TableOptions::compressed(Algorithm::Zstd);
        assert_eq!(store.defaults().expect("defaults"), zstd, "{name}");
        // 16 was a table that was dropped.
        let mut ids: Vec<_> = tables.iter().map(|table| table.id.0).collect();
        ids.sort_unstable();
        assert_eq!(ids, [17, 18, 19, 20, 21], "{name}");
        store.drop_table("lz4").expect("drop");
        let new = store.create_table("new", TableOptions::default()).expect("create");
        assert_eq!(new.id().0, 22, "{name}");
        store.set_defaults(TableOptions::compressed(Algorithm::Lz4)).expect("defaults");
        store.inherit_defaults("plain").expect("inherit");
        store.check().expect(name);
    }
}

#[test]
fn power_cuts_while_a_golden_store_is_opened_do_no_harm() {
    let before = committed();
    for image in IMAGES.iter().filter(|image| !image.is_closed) {
        let (name, golden) = (image.name, unpack(image));
        for cut in 1.. {
            let vfs = golden.fork(cut);
            vfs.set_cut_after(cut);
            // So that what recovery did is logged and written.
            let is_done = Store::open(vfs.clone(), options()).and_then(|store| store.checkpoint()).is_ok();
            vfs.power_cycle();
            let store =
                Store::open(vfs, options()).unwrap_or_else(|error| panic!("{name}: cut {cut}: {error}"));
            assert_holds(&store, &before, name);
            if is_done {
                assert!(cut > 10, "{name}: recovery has more to do");
                break;
            }
        }
    }
}

#[test]
fn a_store_of_other_features_is_refused_by_name_and_left_alone() {
    for (image, flip, says) in IMAGES
        .iter()
        .flat_map(|image| [(image, 1 << 40, "features 0x10000000000"), (image, 1 << 7, "before version 1")])
    {
        let vfs = unpack(image);
        let control = vfs.open("control", StreamHint::Data).expect("control");
        for at in SLOTS {
            let mut sector = slot(&*vfs, at);
            let features = word(&sector, FEATURES_AT) ^ flip;
            sector[FEATURES_AT..][..8].copy_from_slice(&features.to_le_bytes());
            let checksum = checksum(&sector);
            sector[CHECKSUM_AT..][..4].copy_from_slice(&checksum.to_le_bytes());
            control.write_at(at, &sector).expect("write");
        }
        let ops = vfs.ops();
        match Store::open(vfs.clone(), options()) {
            Err(Error::BadStore { reason, .. }) => assert!(reason.contains(says), "{reason}"),
            other => panic!("{}: {:?}", image.name, other.err()),
        }
        assert_eq!(vfs.ops(), ops, "nothing was written");
    }
}

/// A program of another version reads the first sector of a slot: it must be whole, and name what it may not know.
#[test]
fn a_new_store_names_what_its_readers_must_know() {
    let vfs = MemVfs::new();
    Store::open(vfs.clone(), options()).expect("open").close().expect("close");
    for at in SLOTS {
        let sector = slot(&*vfs, at);
        assert_eq!(sector[CHECKSUM_AT..][..4], checksum(&sector).to_le_bytes());
        assert!(sector[CONTROL_BYTES..].iter().all(|byte| *byte == 0));
        assert_eq!(word(&sector, FEATURES_AT), FEATURES);
    }
}

/// A store with an encrypted table, opened by `golden secret`, as a power cut left it: 40 records in pages, and 20 more in
/// the log.
const ENCRYPTED: Image =
    Image { name: "encrypted", packed: include_bytes!("golden/encrypted"), is_closed: false };

fn with_key(secret: &str) -> StoreOptions {
    let slot = KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() };
    let key = EngineKey { secret: Secret::new(secret).expect("a secret"), slot };
    StoreOptions { key: Some(key), ..options() }
}

/// A store with a row-compressed table, the first half of whose blocks are by zlib, the others by LZ4, as a power cut left
/// it: 320 records in blocks, and changes of some in the log.
const ROWS: Image = Image { name: "rows-lz4", packed: include_bytes!("golden/rows-lz4"), is_closed: false };
/// Records in it, and how many of them were stored before the table was altered.
const ROW_COUNT: u64 = 320;
const ROW_ZLIB_COUNT: u64 = 160;

fn row_kind(algorithm: Algorithm) -> TableKind {
    TableKind::RowCompressed { key_block_size: 4, algorithm, level: 0 }
}

/// The records of [`ROWS`].
fn rows() -> BTreeMap<u64, Vec<u8>> {
    let changed = |number: u64| if number.is_multiple_of(9) { number + 1 } else { number };
    (0..ROW_COUNT).filter(|number| number % 50 != 7).map(|number| (number, value(changed(number)))).collect()
}

/// Writes it, as [`make_images`] does the others.
#[test]
#[ignore = "writes tests/golden"]
fn make_image_of_rows() {
    let vfs = SimVfs::new(1);
    let store = Store::open(vfs.clone(), options()).expect("open");
    let zlib = TableOptions { kind: row_kind(Algorithm::Zlib), ..TableOptions::default() }.page_bytes(8192);
    let table = store.create_table("rows", zlib).expect("create");
    for part in [0..ROW_ZLIB_COUNT, ROW_ZLIB_COUNT..ROW_COUNT] {
        if part.start > 0 {
            store.alter_table("rows", row_kind(Algorithm::Lz4)).expect("alter");
        }
        let mut txn = store.begin();
        part.for_each(|number| txn.put(&table, &number.to_be_bytes(), &value(number)).expect("put"));
        txn.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
    }
    for number in 0..ROW_COUNT {
        let (mut txn, key) = (store.begin(), number.to_be_bytes());
        match rows().get(&number) {
            Some(row) if *row != value(number) => txn.put(&table, &key, row).expect("put"),
            Some(_) => continue,
            None => assert!(txn.delete(&table, &key).expect("delete")),
        }
        txn.commit().expect("commit");
    }
    drop((table, store));
    vfs.power_cycle();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    fs::write(golden.join(ROWS.name), pack(&*vfs)).expect("write");
}

/// How many blocks of a store have these flags.
fn blocks(vfs: &dyn Vfs, flags: u8) -> usize {
    let count = |name: String| {
        let file = vfs.open(&name, StreamHint::Data).expect("open");
        let mut bytes = AlignedBuf::zeroed(file.len().expect("len") as usize);
        file.read_at(0, &mut bytes).expect("read");
        bytes.chunks(4096).filter(|block| block.starts_with(b"LcRB") && block[6] == flags).count()
    };
    vfs.list().expect("list").into_iter().filter(|name| name.ends_with(".8k.4k")).map(count).sum()
}

#[test]
fn row_compressed_blocks_by_either_algorithm_are_recovered_and_changed() {
    let (vfs, mut model) = (unpack(&ROWS), rows());
    assert_eq!(features(&*vfs), FEATURES | 1 << 13);
    let of_zlib = blocks(&*vfs, 0);
    assert!(of_zlib > 2 && blocks(&*vfs, 2) > 2, "{of_zlib} by zlib, {} by LZ4", blocks(&*vfs, 2));
    let assert_holds = |store: &Store, model: &BTreeMap<u64, Vec<u8>>| {
        let (table, txn) = (store.table("rows").expect("catalog").expect("there"), store.begin());
        let mut found = BTreeMap::new();
        let mut each = |key: &[u8], value: &[u8]| {
            found.insert(u64::from_be_bytes(key.try_into().expect("a number")), value.to_vec());
            ControlFlow::Continue(())
        };
        txn.scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, &mut each).expect("scan");
        assert!(found == *model, "{} records, want {}", found.len(), model.len());
        store.check().expect("check");
    };
    let store = Store::open(vfs.clone(), options()).expect("recover");
    assert!(store.stats().expect("stats").recovery.applied > 20);
    assert_eq!(store.tables().expect("tables")[0].options.kind, row_kind(Algorithm::Lz4));
    assert_holds(&store, &model);
    let table = store.table("rows").expect("catalog").expect("there");
    for number in (0..ROW_COUNT + 100).step_by(3) {
        let mut txn = store.begin();
        txn.put(&table, &number.to_be_bytes(), &value(number + 5)).expect("put");
        txn.commit().expect("commit");
        model.insert(number, value(number + 5));
    }
    assert_holds(&store, &model);
    drop(table);
    store.close().expect("close");
    let store = Store::open(vfs.clone(), options()).expect("open");
    assert_holds(&store, &model);
    assert!(blocks(&*vfs, 2) > of_zlib, "new blocks are by LZ4");
}

fn value(number: u64) -> Vec<u8> {
    (0..60).map(|at| (at * number) as u8).collect()
}

/// Writes it, as [`make_images`] does the others.
#[test]
#[ignore = "writes tests/golden"]
fn make_encrypted_image() {
    let vfs = SimVfs::new(1);
    let store = Store::open(vfs.clone(), with_key("golden secret")).expect("open");
    let options = TableOptions::compressed(Algorithm::Lz4).page_bytes(4096).encrypted();
    let table = store.create_table("t", options).expect("create");
    for number in 0..60_u64 {
        let mut txn = store.begin();
        txn.put(&table, &number.to_be_bytes(), &value(number)).expect("put");
        txn.commit().expect("commit");
        if number == 39 {
            store.checkpoint().expect("checkpoint");
        }
    }
    drop((table, store));
    vfs.power_cycle();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    fs::write(golden.join(ENCRYPTED.name), pack(&*vfs)).expect("write");
}

#[test]
fn an_encrypted_image_is_recovered_and_read_with_its_key() {
    let vfs = unpack(&ENCRYPTED);
    assert_eq!(features(&*vfs), FEATURES | 1 << 11);
    assert!(matches!(Store::open(vfs.clone(), options()), Err(Error::NoKey { .. })));
    assert!(matches!(Store::open(vfs.clone(), with_key("another")), Err(Error::Key { .. })));
    let store = Store::open(vfs.clone(), with_key("golden secret")).expect("recover");
    assert!(store.stats().expect("stats").recovery.applied > 0);
    let table = store.table("t").expect("catalog").expect("there");
    for number in 0..60_u64 {
        let found = store.begin().get(&table, &number.to_be_bytes()).expect("get");
        assert_eq!(found, Some(value(number)));
    }
    assert!(store.images("t").expect("images").encrypted > 0);
    store.check().expect("check");
}
