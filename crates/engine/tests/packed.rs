//! Images of compressed leaves are packed; one that does not unpack is an error that names its page.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, MemVfs, StreamHint, Vfs};
use lacuna_engine::{Algorithm, Error, Store, StoreOptions, TableOptions};

const PAGE: usize = 16 << 10;
const SECTOR: usize = 512;
/// Where an image has its kind, algorithm, flags, length and checksum, and where its stored bytes start.
const KIND_AT: usize = 5;
const ALGORITHM_AT: usize = 6;
const FLAGS_AT: usize = 7;
const STORED_BYTES_AT: usize = 32;
const CHECKSUM_AT: usize = 36;
const HEADER_BYTES: usize = 64;
const NODE: u8 = 2;
const PACKED: u8 = 1;
const ROOT: usize = 1;
/// That of a store's first table.
const FILE: &str = "t00000016.16k";
const KEYS: u32 = 2_000;

fn open(vfs: &Arc<MemVfs>) -> Store {
    let options = StoreOptions { background: false, ..StoreOptions::default() };
    Store::open(vfs.clone(), options).expect("open")
}

fn value(key: u32) -> Vec<u8> {
    format!("{key:05} is the value of {key}").into_bytes()
}

/// A closed store with one table of several leaves.
fn written(options: TableOptions) -> Arc<MemVfs> {
    let vfs = MemVfs::new();
    let store = open(&vfs);
    let table = store.create_table("t", options).expect("create");
    let mut txn = store.begin();
    (0..KEYS).for_each(|key| txn.put(&table, &key.to_be_bytes(), &value(key)).expect("put"));
    txn.commit().expect("commit");
    drop(table);
    store.close().expect("close");
    vfs
}

fn assert_reads(vfs: &Arc<MemVfs>, what: &str) {
    let store = open(vfs);
    let table = store.table("t").expect("catalog").expect("there");
    let txn = store.begin();
    for key in 0..KEYS {
        let found = txn.get(&table, &key.to_be_bytes()).expect("get");
        assert_eq!(found, Some(value(key)), "{what}: {key}");
    }
    store.check().expect(what);
}

/// The images of all nodes, by page.
fn nodes(vfs: &MemVfs) -> Vec<(usize, AlignedBuf)> {
    let file = vfs.open(FILE, StreamHint::Data).expect("the table");
    let pages = file.len().expect("len") as usize / PAGE;
    let read = |page: usize| {
        let mut image = AlignedBuf::zeroed(PAGE);
        file.read_at((page * PAGE) as u64, &mut image).expect("read");
        (page, image)
    };
    (0..pages).map(read).filter(|(_, image)| image[KIND_AT] == NODE).collect()
}

#[test]
fn compressed_leaves_are_packed_and_no_others() {
    for (options, algorithm, flags) in [
        (TableOptions::default(), 0, 0),
        (TableOptions::compressed(Algorithm::Lz4), 1, PACKED),
        (TableOptions::compressed(Algorithm::Zstd), 2, PACKED),
    ] {
        let vfs = written(options);
        let nodes = nodes(&vfs);
        assert!(nodes.len() > 3, "{} nodes", nodes.len());
        for (page, image) in nodes {
            let want = if page == ROOT { 0 } else { flags };
            assert_eq!((image[ALGORITHM_AT], image[FLAGS_AT]), (algorithm, want), "page {page}");
        }
        assert_reads(&vfs, "reopened");
    }
}

/// Values that repeat in no order: the codec finds them in the page, but not in columns.
#[test]
fn packing_makes_no_page_larger() {
    let texts = |bytes: usize| -> Vec<String> {
        let word = |text: u64| format!("{:016x}", (text + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        // One column is alike in all of them, so that heads reach to there.
        (0..40)
            .map(|text| (0..3).map(|i| word(3 * text + i)).collect::<String>()[..bytes].to_owned() + "/")
            .collect()
    };
    for (algorithm, bytes) in
        [(Algorithm::Lz4, 24), (Algorithm::Lz4, 36), (Algorithm::Zstd, 36), (Algorithm::Zlib, 30)]
    {
        let texts = texts(bytes);
        let [packed, alone] = [true, false].map(|packing| {
            let vfs = MemVfs::new();
            let options = StoreOptions { background: false, packing, ..StoreOptions::default() };
            let store = Store::open(vfs.clone(), options).expect("open");
            let table = store.create_table("t", TableOptions::compressed(algorithm)).expect("create");
            let mut txn = store.begin();
            for key in 0..KEYS {
                let text = &texts[(key.wrapping_mul(0x9E37_79B9) >> 16) as usize % texts.len()];
                txn.put(&table, &key.to_be_bytes(), text.as_bytes()).expect("put");
            }
            txn.commit().expect("commit");
            drop(table);
            store.close().expect("close");
            let length = |image: &AlignedBuf| {
                let stored = &image[STORED_BYTES_AT..CHECKSUM_AT];
                let stored = u32::from_le_bytes(stored.try_into().expect("four")) as usize;
                (HEADER_BYTES + stored).next_multiple_of(SECTOR)
            };
            nodes(&vfs).iter().map(|(page, image)| (*page, length(image))).collect::<Vec<_>>()
        });
        assert!(packed.len() > 3 && packed.len() == alone.len());
        for ((page, packed), (_, alone)) in packed.iter().zip(&alone) {
            assert!(
                packed <= alone,
                "{algorithm:?}, {bytes}: page {page}: {packed} bytes packed, {alone} alone"
            );
        }
    }
}

/// An LZ4 block of a few literals.
fn lz4_literals(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 15);
    [&[(bytes.len() as u8) << 4], bytes].concat()
}

#[test]
fn what_does_not_unpack_is_an_error_with_its_place() {
    let vfs = written(TableOptions::compressed(Algorithm::Lz4));
    let (page, image) = nodes(&vfs).into_iter().find(|(_, image)| image[FLAGS_AT] == PACKED).expect("a leaf");
    let file = vfs.open(FILE, StreamHint::Data).expect("the table");
    let put = |flags: u8, stored: &[u8]| {
        let mut forged = AlignedBuf::zeroed(SECTOR);
        forged[..HEADER_BYTES].copy_from_slice(&image[..HEADER_BYTES]);
        forged[FLAGS_AT] = flags;
        forged[STORED_BYTES_AT..CHECKSUM_AT].copy_from_slice(&(stored.len() as u32).to_le_bytes());
        forged[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        forged[HEADER_BYTES..HEADER_BYTES + stored.len()].copy_from_slice(stored);
        let checksum = lacuna_crc::crc32c(&forged[..HEADER_BYTES + stored.len()]);
        forged[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        file.write_at((page * PAGE) as u64, &forged).expect("write");
    };
    for (flags, stored, want) in [
        (PACKED, lz4_literals(&[1; 14]), "packed leaf without a header"),
        (PACKED, vec![0xF0], "does not decompress"),
        (0, lz4_literals(&[1; 14]), "does not decompress"),
        (8, lz4_literals(&[1; 14]), "flags 0x08"),
    ] {
        put(flags, &stored);
        let error = open(&vfs).check().expect_err(want);
        let Error::Corrupt { what, at, reason } = &error else { panic!("{error}") };
        assert_eq!((&what[..], &at[..]), (FILE, &format!("page {page}")[..]));
        assert!(reason.contains(want), "{reason}");
    }
    file.write_at((page * PAGE) as u64, &image).expect("write");
    assert_reads(&vfs, "as it was");
}
