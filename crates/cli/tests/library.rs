//! The program and the library `lacuna` on each other's stores.

use crate::support::{Scratch, succeed};
use lacuna::{Store, TableOptions};

#[test]
fn the_library_opens_what_the_program_formats() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    let store = Store::open(scratch.path("store")).expect("opened");
    let table = store.open_table("people", TableOptions::default()).expect("table");
    let mut txn = store.begin();
    txn.put(&table, b"ada", b"countess").expect("put");
    txn.commit().expect("commit");
    drop(table);
    store.close().expect("closed");
    assert_eq!(std::fs::metadata(scratch.path("store")).expect("a file").len(), 64 << 20);
    succeed(&scratch, "check store");
    assert!(succeed(&scratch, "info store").contains("people"));
}

#[test]
fn the_program_works_on_what_the_library_makes() {
    let scratch = Scratch::new();
    let store = Store::builder().size(64 << 20).open(scratch.path("store")).expect("made");
    store.create_table("people", TableOptions::default()).expect("table");
    store.close().expect("closed");
    succeed(&scratch, "check store");
    succeed(&scratch, "table drop store people");
    let store = Store::open(scratch.path("store")).expect("opened");
    assert!(store.tables().expect("catalog").is_empty());
}
