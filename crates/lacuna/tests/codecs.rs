//! Pages of algorithms that are not built in.

use std::{fs, path::Path};

use lacuna::{Algorithm, Error, Store, TableKind, TableOptions};

const PAGE_BYTES: usize = 16 << 10;

fn open(path: &Path) -> lacuna::Result<Store> {
    Store::builder().pool_bytes(4 << 20).open(path)
}

/// Sets `algorithm` in the header of every page in the file of a table; see `page` in docs/FORMAT.md.
fn relabel(file: &Path, algorithm: Algorithm) {
    let mut bytes = fs::read(file).expect("a table");
    for image in bytes.chunks_exact_mut(PAGE_BYTES).filter(|image| image.starts_with(b"LcPg")) {
        image[6] = algorithm.into();
        let stored_bytes = u32::from_le_bytes(image[32..36].try_into().expect("four bytes")) as usize;
        image[36..40].fill(0);
        let checksum = lacuna_crc::crc32c(&image[..64 + stored_bytes]);
        image[36..40].copy_from_slice(&checksum.to_le_bytes());
    }
    fs::write(file, bytes).expect("written");
}

/// In a directory tables are files of pages, which can be forged.
#[test]
fn a_page_of_an_algorithm_that_is_not_built_in_names_the_feature() {
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::None) {
        let directory = tempfile::tempdir().expect("a directory");
        let store = open(directory.path()).expect("made");
        let table = store.create_table("t", TableOptions::default()).expect("table");
        let mut txn = store.begin();
        txn.put(&table, b"key", b"value").expect("put");
        txn.commit().expect("commit");
        drop(table);
        store.close().expect("closed");

        relabel(&directory.path().join("t00000016.16k"), algorithm);
        let store = open(directory.path()).expect("opened");
        let table = store.table("t").expect("catalog").expect("a table");
        let error = store.begin().get(&table, b"key").expect_err("it was read");
        let message = error.to_string();
        if algorithm.is_built_in() {
            assert!(matches!(error, Error::Corrupt { .. }), "{message}");
            continue;
        }
        assert!(
            matches!(error, Error::NotBuiltIn { algorithm: found, .. } if found == algorithm),
            "{message}"
        );
        assert!(message.contains(&format!("feature `{algorithm}`")), "{message}");
        assert!(message.contains("t00000016.16k: page"), "{message}");
        // The rest of the store is intact.
        let other = store.create_table("other", TableOptions::default()).expect("table");
        let mut txn = store.begin();
        txn.put(&other, b"key", b"value").expect("put");
        txn.commit().expect("commit");
        drop((table, other));
        store.close().expect("closed");
    }
}

#[test]
fn no_table_is_made_with_an_algorithm_that_is_not_built_in() {
    let store = Store::in_memory().expect("made");
    let table = store.create_table("t", TableOptions::default()).expect("table");
    let kind_of = |algorithm| TableKind::PageCompressed { algorithm, level: 0 };
    let kinds = Algorithm::ALL.map(|algorithm| (algorithm, kind_of(algorithm)));
    for (algorithm, kind) in kinds {
        let options = TableOptions { kind, ..TableOptions::default() };
        let outcomes = [
            store.create_table(algorithm.name(), options).map(drop),
            store.alter_table("t", kind),
            store.set_defaults(options),
        ];
        for outcome in outcomes {
            match algorithm.is_built_in() {
                true => outcome.expect("built in"),
                false => assert!(matches!(outcome, Err(Error::NotBuiltIn { .. })), "{outcome:?}"),
            }
        }
    }
    let row = store.create_table("row", TableOptions::row_compressed(8));
    match Algorithm::Zlib.is_built_in() {
        true => drop(row.expect("zlib is built in")),
        false => assert!(matches!(row, Err(Error::NotBuiltIn { algorithm: Algorithm::Zlib, .. }))),
    }
    let mut txn = store.begin();
    txn.put(&table, b"key", b"value").expect("put");
    txn.commit().expect("commit");
    store.check().expect("sound");
}
