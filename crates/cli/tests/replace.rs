//! A copy replaces its target when it is whole, and not before.

use std::fs;

use crate::support::{Scratch, run, succeed};

/// Bytes that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Fails, with one line.
fn fails(scratch: &Scratch, arguments: &str, words: &str) {
    let output = run(scratch, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments}: {stderr}");
    assert!(stderr.contains(words) && stderr.lines().count() == 1, "{arguments}: {stderr}");
}

/// Names in a directory outside, hidden ones too.
fn names(scratch: &Scratch, path: &str) -> Vec<String> {
    let entries = fs::read_dir(scratch.path(path)).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Names in the root directory of a store.
fn names_inside(scratch: &Scratch, store: &str) -> Vec<String> {
    let listing = succeed(scratch, &format!("ls {store}"));
    listing.lines().map(|line| line.split_whitespace().last().unwrap().to_owned()).collect()
}

fn damage(scratch: &Scratch, store: &str, bytes: &[u8]) {
    let mut image = fs::read(scratch.path(store)).unwrap();
    let at = image.windows(bytes.len()).position(|window| window == bytes).expect("it is in the store");
    image[at] ^= 1;
    fs::write(scratch.path(store), image).unwrap();
}

#[test]
fn a_full_store_keeps_what_a_copy_was_to_replace() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 24M");
    succeed(&scratch, "format from --size 64M");
    fs::write(scratch.path("old"), "precious").unwrap();
    fs::write(scratch.path("big"), noise(30 << 20)).unwrap();
    succeed(&scratch, "put old store:/file");
    succeed(&scratch, "put big from:/big");
    for arguments in ["put big store:/file", "cp big store:/file", "cp from:/big store:/file"] {
        fails(&scratch, arguments, "no space");
        assert_eq!(succeed(&scratch, "cat store:/file"), "precious", "{arguments}");
        assert_eq!(names_inside(&scratch, "store"), ["file"], "{arguments}");
        assert!(succeed(&scratch, "check store").contains("sound"));
    }
    // Nor is the part of a new one left.
    fails(&scratch, "put big store:/new", "no space");
    assert_eq!(names_inside(&scratch, "store"), ["file"]);
    fs::write(scratch.path("new"), "new").unwrap();
    succeed(&scratch, "put new store:/file");
    assert_eq!(succeed(&scratch, "cat store:/file"), "new");
}

#[test]
fn a_damaged_source_replaces_nothing() {
    let scratch = Scratch::new();
    succeed(&scratch, "format from --size 64M");
    succeed(&scratch, "format to --size 64M");
    fs::create_dir_all(scratch.path("tree/d")).unwrap();
    let data = noise(12 << 20);
    fs::write(scratch.path("tree/d/file"), &data).unwrap();
    fs::write(scratch.path("tree/d/sound"), "sound").unwrap();
    succeed(&scratch, "cp -r tree from:/");
    damage(&scratch, "from", &data[10_000_000..10_000_100]);
    fs::create_dir_all(scratch.path("out/d")).unwrap();
    fs::write(scratch.path("out/d/file"), "precious").unwrap();
    succeed(&scratch, "cp -r out/d to:/");
    for arguments in ["get from:/tree/d/file out/d/file", "cp from:/tree/d/file out/d"] {
        fails(&scratch, arguments, "checksum");
        assert_eq!(fs::read(scratch.path("out/d/file")).unwrap(), b"precious", "{arguments}");
        assert_eq!(names(&scratch, "out/d"), ["file"], "{arguments}");
    }
    fails(&scratch, "cp from:/tree/d/file to:/d/file", "checksum");
    assert_eq!(succeed(&scratch, "cat to:/d/file"), "precious");
    fails(&scratch, "get from:/tree/d/file new", "checksum");
    assert!(!scratch.path("new").exists(), "the part of a file that was asked for");
    // Of a tree the rest is copied, and where nothing is in the way what can be read, as ever.
    for (arguments, out) in [("get -r from:/tree/d out", "out/d"), ("get -r from:/tree/d new", "new")] {
        assert_eq!(run(&scratch, arguments).status.code(), Some(1));
        assert_eq!(fs::read(scratch.path(out).join("sound")).unwrap(), b"sound");
        assert_eq!(names(&scratch, out), ["file", "sound"]);
    }
    assert_eq!(fs::read(scratch.path("out/d/file")).unwrap(), b"precious");
    assert!(data.starts_with(&fs::read(scratch.path("new/file")).unwrap()));
}

#[test]
fn a_source_outside_that_cannot_be_read_replaces_nothing() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::write(scratch.path("file"), "precious").unwrap();
    succeed(&scratch, "put file store:/file");
    // Its first page is not there.
    for arguments in ["put /proc/self/mem store:/file", "cp /proc/self/mem store:/file"] {
        fails(&scratch, arguments, "/proc/self/mem: bytes from 0 on");
        assert_eq!(succeed(&scratch, "cat store:/file"), "precious", "{arguments}");
        assert_eq!(names_inside(&scratch, "store"), ["file"], "{arguments}");
    }
}

#[test]
fn a_target_outside_that_takes_no_more_keeps_what_it_had() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::write(scratch.path("big"), noise(6 << 20)).unwrap();
    succeed(&scratch, "put big store:/big");
    fs::create_dir(scratch.path("out")).unwrap();
    fs::write(scratch.path("out/big"), "precious").unwrap();
    // No file of more than 2 MiB.
    for arguments in ["get store:/big out/big", "cp store:/big out", "cp big out"] {
        let command = format!("ulimit -f 4096; exec {} {arguments}", env!("CARGO_BIN_EXE_lacuna"));
        let mut shell = std::process::Command::new("sh");
        let output = shell.current_dir(scratch.path(".")).args(["-c", &command]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        assert_eq!(fs::read(scratch.path("out/big")).unwrap(), b"precious", "{arguments}");
        assert_eq!(names(&scratch, "out"), ["big"], "{arguments}");
    }
}
