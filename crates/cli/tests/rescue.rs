//! The files that `lacuna rescue` recovers from damaged stores.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use crate::support::{Scratch, run, succeed};
use lacuna_nvmfs::{Ino, OpenedVfs, VfsOptions, open_vfs, posix::XattrMode};

/// Bytes that are found nowhere else.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// All files below `dir`, by their paths.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut rest = vec![dir.to_owned()];
    while let Some(next) = rest.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => rest.push(entry.path()),
                kind if kind.is_file() => {
                    let path = entry.path().strip_prefix(dir).unwrap().display().to_string();
                    found.insert(path, fs::read(entry.path()).unwrap());
                }
                _ => {}
            }
        }
    }
    found
}

/// A store with a tree in it.
fn store(scratch: &Scratch) {
    let tree = scratch.path("tree");
    fs::create_dir_all(tree.join("sub/directory-of-orphans")).unwrap();
    fs::write(tree.join("whole"), content(1, 100_000)).unwrap();
    fs::write(tree.join("torn"), content(2, 300_001)).unwrap();
    fs::write(tree.join("sub/name-that-is-lost"), content(3, 70_000)).unwrap();
    fs::write(tree.join("sub/directory-of-orphans/orphan"), content(4, 5000)).unwrap();
    fs::hard_link(tree.join("whole"), tree.join("sub/whole")).unwrap();
    symlink("whole", tree.join("link")).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(&content(5, 4096), 10 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    succeed(scratch, "format store --size 64M");
    succeed(scratch, "cp -r tree store:/tree");
}

/// Damages every occurrence of `bytes` in the store.
fn damage(scratch: &Scratch, bytes: &[u8]) {
    let path = scratch.path("store");
    let mut image = fs::read(&path).unwrap();
    let places: Vec<_> =
        (0..image.len() - bytes.len()).filter(|at| image[*at..].starts_with(bytes)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| image[*at] ^= 1);
    fs::write(path, image).unwrap();
}

#[test]
fn a_sound_store_is_copied_as_it_is() {
    let scratch = Scratch::new();
    store(&scratch);
    succeed(&scratch, "rescue store out");
    assert_eq!(files(&scratch.path("out/tree")), files(&scratch.path("tree")));
    assert!(!scratch.path("out/lost+found").exists());
    let inode = |path: &str| fs::metadata(scratch.path(path)).unwrap().ino();
    assert_eq!(inode("out/tree/whole"), inode("out/tree/sub/whole"));
    assert_eq!(fs::read_link(scratch.path("out/tree/link")).unwrap(), Path::new("whole"));
    assert!(fs::metadata(scratch.path("out/tree/sparse")).unwrap().blocks() < 1000);
    // Existing files are not overwritten.
    let output = run(&scratch, "rescue store out");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("out: not empty"), "{output:?}");
}

/// Root, index and counters of the last checkpoint exist once: without them nothing was copied.
#[test]
fn files_are_copied_without_any_record_of_the_last_checkpoint() {
    let scratch = Scratch::new();
    store(&scratch);
    let image = fs::read(scratch.path("store")).unwrap();
    // Kinds of records: docs/FORMAT.md.
    let records = (0..image.len() - 512).step_by(512).filter(|at| image[*at..].starts_with(b"LREC"));
    let records: Vec<usize> = records.filter(|at| (4..=6).contains(&image[*at + 8])).collect();
    assert!(records.len() > 3, "{records:?}");
    let mut damaged = image;
    records.iter().for_each(|at| damaged[*at + 70] ^= 1);
    fs::write(scratch.path("store"), damaged).unwrap();
    let refused = run(&scratch, "check store");
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && stderr.contains("checkpoint root"), "{stderr}");
    assert!(stderr.contains("lacuna rescue"), "says what to do: {stderr}");
    let output = run(&scratch, "rescue store out");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("put together from what can be read of the map"), "{stderr}");
    assert_eq!(files(&scratch.path("out/tree")), files(&scratch.path("tree")));
}

#[test]
fn what_is_left_of_a_damaged_store_is_copied() {
    let scratch = Scratch::new();
    store(&scratch);
    damage(&scratch, &content(2, 300_001)[200_000..200_016]);
    damage(&scratch, b"name-that-is-lost");
    damage(&scratch, b"directory-of-orphans");
    let output = run(&scratch, "rescue store out");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for words in ["store:/tree/torn: bytes ", "store:/tree/sub: entries: ", "has lost its name", " losses, "]
    {
        assert!(stderr.contains(words), "no {words:?} in {stderr}");
    }

    let (found, mut expected) = (files(&scratch.path("out")), BTreeMap::new());
    let mut losts = 0;
    for (path, bytes) in files(&scratch.path("tree")) {
        let path = match path.as_str() {
            "sub/name-that-is-lost" | "sub/directory-of-orphans/orphan" => {
                let is_it = |(path, found): &(&String, &Vec<u8>)| {
                    path.starts_with("lost+found/#") && **found == bytes
                };
                losts += 1;
                found.iter().find(is_it).expect("it is found").0.clone()
            }
            _ => format!("tree/{path}"),
        };
        expected.insert(path, bytes);
    }
    assert!(losts == 2 && found.keys().any(|path| path.ends_with("/orphan")), "{:?}", found.keys());
    // Of a file that is torn a chunk is missing, and nothing else.
    let torn = expected.get_mut("tree/torn").unwrap();
    let lost = 200_000 / 16_384 * 16_384;
    torn[lost..lost + 16_384].fill(0);
    assert!(found == expected, "{:?}, not {:?}", found.keys(), expected.keys());
}

#[test]
fn what_is_no_store_is_refused() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), content(1, 100_000)).unwrap();
    for store in ["file", "missing"] {
        let output = run(&scratch, &format!("rescue {store} out"));
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(store), "{output:?}");
        assert!(!scratch.path("out").exists());
    }
}

/// Whom its list of access kept out is not known then.
#[test]
fn a_file_whose_attributes_cannot_be_read_is_for_its_owner_alone() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::write(scratch.path("file"), content(1, 100_000)).unwrap();
    fs::set_permissions(scratch.path("file"), fs::Permissions::from_mode(0o664)).unwrap();
    succeed(&scratch, "put file store:/file");
    let store = open_vfs(&scratch.path("store"), &VfsOptions::default()).unwrap();
    let OpenedVfs::Store(fs) = store else { panic!("not a store") };
    let posix = fs.posix();
    let ino = posix.lookup(Ino::ROOT, b"file").unwrap().ino;
    posix.setxattr(ino, b"user.large", &content(2, 5000), XattrMode::Set).unwrap();
    fs.close().unwrap();
    drop((posix, fs));
    damage(&scratch, &content(2, 5000)[2000..2016]);

    succeed(&scratch, "format other --size 64M");
    fs::write(scratch.path("there"), "what is there").unwrap();
    for (arguments, is_kept) in [
        ("get store:/file new", true),
        ("rescue store out", true),
        ("cp store:/file other:/file", true),
        ("get store:/file there", false),
    ] {
        let output = run(&scratch, arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("store:/file: attributes: "), "{arguments}: {stderr}");
        assert_eq!(stderr.contains("left as it was"), !is_kept, "{arguments}: {stderr}");
    }
    for name in ["new", "out/file"] {
        assert_eq!(fs::metadata(scratch.path(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        assert!(fs::read(scratch.path(name)).unwrap() == content(1, 100_000), "{name}");
    }
    assert!(succeed(&scratch, "ls other").starts_with("-rw------- "));
    assert_eq!(fs::read_to_string(scratch.path("there")).unwrap(), "what is there");
}
