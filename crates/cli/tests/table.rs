//! Tables of a store, changed from the command line.

use std::fs;

use crate::support::{Scratch, lacuna, succeed};
use lacuna_device::{DirOptions, DirVfs, Vfs};
use lacuna_engine::{Store, StoreOptions, TableOptions};
use lacuna_nvmfs::{VfsOptions, open_vfs};
use serde_json::{Value, json};

/// A store with a table of its own settings, "own", and one that follows the defaults, "follows".
fn make(scratch: &Scratch, storage: &str) {
    let options = VfsOptions { create_size: Some(64 << 20), ..VfsOptions::default() };
    let opened = open_vfs(&scratch.path(storage), &options).unwrap();
    let store = Store::open(opened.vfs(), StoreOptions::default()).unwrap();
    let own = store.create_table("own", TableOptions::default()).unwrap();
    store.create_inheriting_table("follows").unwrap();
    let mut txn = store.begin();
    (0..5000_u32).for_each(|key| txn.put(&own, &key.to_be_bytes(), &[7; 200]).unwrap());
    txn.commit().unwrap();
    store.close().unwrap();
    opened.close().unwrap();
}

/// The output of `info` for a table.
fn table(scratch: &Scratch, storage: &str, name: &str) -> Option<Value> {
    let info: Value =
        serde_json::from_str(&succeed(scratch, &format!("info {storage} --json"))).expect("valid JSON");
    info["tables"].as_array().unwrap().iter().find(|table| table["name"] == name).cloned()
}

fn form(table: &Value) -> (&str, &str, i64, bool) {
    let text = |field: &str| table[field].as_str().unwrap();
    (text("tables"), text("algorithm"), table["level"].as_i64().unwrap(), table["inherits"] == true)
}

#[test]
fn only_what_changed_the_defaults_says_that_it_is_done() {
    let scratch = Scratch::new();
    make(&scratch, "store");
    for (kind, is_done) in [("", false), ("plain", true)] {
        let mut command = lacuna(&scratch);
        command.args(format!("table defaults store {kind}").split_whitespace());
        let output = command.stdout(fs::File::create("/dev/full").unwrap()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.contains("this is done"), is_done, "{stderr}");
    }
}

#[test]
fn tables_are_altered_optimized_made_to_follow_and_dropped() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("dir")).unwrap();
    for storage in ["file", "dir"] {
        make(&scratch, storage);
        let lacuna = |arguments: &str| succeed(&scratch, &arguments.replace("PLACE", storage));
        let found = |name| table(&scratch, storage, name).expect("is there");
        let defaults = lacuna("table defaults PLACE");
        assert!(defaults.contains("tables are plain by default, in pages of 16K"), "{defaults}");
        let defaults = lacuna("table defaults PLACE page --algorithm zstd --level 3 --page 8K");
        assert!(defaults.contains("tables are page/zstd 3 by default, in pages of 8K"), "{defaults}");
        assert_eq!(form(&found("follows")), ("page", "zstd", 3, true));
        assert_eq!(form(&found("own")), ("plain", "none", 0, false));
        assert!(lacuna("table defaults PLACE page").contains("page/lz4 by default, in pages of 8K"));

        let bytes_before = found("own")["allocated_bytes"].as_u64();
        assert!(lacuna("table alter PLACE own page --algorithm zstd").contains("own: page/zstd from now on"));
        assert_eq!(found("own")["allocated_bytes"].as_u64(), bytes_before, "so far");
        let told = lacuna("table optimize PLACE");
        assert_eq!(told.lines().filter(|line| line.starts_with(storage)).count(), 2, "{told}");
        assert!(told.contains("own: ") && !told.contains("own: 0 of"), "{told}");
        assert!(found("own")["allocated_bytes"].as_u64() < bytes_before, "{told}");
        assert!(lacuna("table optimize PLACE own").contains("own: 0 of"));
        let pages = lacuna("info PLACE --pages");
        assert!(pages.contains(" zstd; their images take 0."), "{pages}");
        let pages: Value = serde_json::from_str(&lacuna("info PLACE --pages --json")).unwrap();
        let pages = pages["tables"].as_array().unwrap().iter().find(|table| table["name"] == "own").unwrap();
        assert!(pages["pages"]["zstd"].as_u64() > Some(50) && pages["pages"]["none"].is_null(), "{pages}");
        assert!(pages["image_bytes"].as_u64() < Some(500_000), "{pages}");

        let told = lacuna("table alter PLACE own row --key-block-size 2");
        assert!(told.contains("own: row") && told.contains("5000 records copied"), "{told}");
        assert_eq!(form(&found("own")), ("row", "zlib", 0, false));
        assert!(lacuna("table alter PLACE own plain").contains("own: plain now, 5000 records copied"));
        assert_eq!(found("own")["doublewrite"], "auto");
        assert!(lacuna("table doublewrite PLACE own on").contains("own: doublewrite on from now on"));
        assert_eq!(found("own")["doublewrite"], "on");
        assert!(lacuna("info PLACE").contains("doublewrite on"));

        assert!(lacuna("table inherit PLACE own").contains("own: follows the defaults, page/lz4"));
        assert_eq!(form(&found("own")), ("page", "lz4", 0, true));
        assert!(lacuna("table drop PLACE own").contains("own: dropped"));
        assert!(table(&scratch, storage, "own").is_none());
        assert!(lacuna("check PLACE").contains("sound"));
    }
}

/// Pages are written once where the file system writes them atomically.
#[test]
fn info_tells_whether_a_directory_has_atomic_writes() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("bare")).unwrap();
    let writes = DirVfs::open(&scratch.path("bare"), DirOptions::default()).unwrap().props().atomic_writes;
    let (text, json) = match writes {
        Some(writes) => (
            format!("  atomic writes (RWF_ATOMIC) of {} to {} bytes\n", writes.bytes_min, writes.bytes_max),
            json!({ "bytes_min": writes.bytes_min, "bytes_max": writes.bytes_max }),
        ),
        None => ("  no atomic writes (RWF_ATOMIC): pages are written twice by default\n".into(), Value::Null),
    };
    let info = |arguments: &str| -> Value { serde_json::from_str(&succeed(&scratch, arguments)).unwrap() };
    for turn in 0..2 {
        let changed = || fs::metadata(scratch.path("bare")).unwrap().modified().unwrap();
        let before = changed();
        let said = succeed(&scratch, "info bare");
        assert!(
            turn > 0 || changed() == before && !said.contains("live bytes"),
            "nothing of ours is there: {said}"
        );
        assert!(said.contains(&text), "{said}");
        assert_eq!(info("info bare --json").get("atomic_writes"), Some(&json));
        let opened = open_vfs(&scratch.path("bare"), &VfsOptions::default()).unwrap();
        Store::open(opened.vfs(), StoreOptions::default()).unwrap().close().unwrap();
    }
    // Nothing is known where no file without a name can be made.
    assert_eq!(info("info /proc --json").get("atomic_writes"), None);
    // In a store every batch is atomic.
    succeed(&scratch, "format store --size 64M");
    assert_eq!(info("info store --json").get("atomic_writes"), None);
}
