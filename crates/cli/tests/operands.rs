//! What may be named in a copy, and what is meant by it.

use std::{
    fs,
    io::Write,
    os::unix::{
        fs::{MetadataExt, symlink},
        process::ExitStatusExt,
    },
    process::{Child, Output, Stdio},
    time::Duration,
};

use crate::support::{Scratch, lacuna, run, succeed};
use rustix::process::{Pid, Signal, kill_process};

/// Fails, with one line.
fn fails(scratch: &Scratch, arguments: &str, words: &str) {
    said(arguments, &run(scratch, arguments), words);
}

fn said(arguments: &str, output: &Output, words: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments}: {stderr}");
    assert!(stderr.contains(words) && stderr.lines().count() == 1, "{arguments}: {stderr}");
}

fn cat(scratch: &Scratch, path: &str) -> String {
    succeed(scratch, &format!("cat {path}"))
}

/// Runs the program with a pipe as its standard input.
fn piped(scratch: &Scratch, arguments: &str) -> Child {
    let mut command = lacuna(scratch);
    command.args(arguments.split_whitespace()).stdin(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The kernel answers questions for data and holes in them, and means nothing by it.
#[test]
fn files_that_claim_to_be_empty_are_read_to_their_end() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::write(scratch.path("empty"), "").unwrap();
    for (file, name) in [("/dev/null", "null"), ("empty", "empty"), ("/dev/stdin", "nothing")] {
        let mut command = lacuna(&scratch);
        command.args(["put", file]).arg(format!("store:/{name}")).stdin(Stdio::null());
        assert!(command.status().unwrap().success(), "{file}");
        assert_eq!(cat(&scratch, &format!("store:/{name}")), "", "{file}");
    }
    succeed(&scratch, "put /proc/sys/kernel/ostype store:/ostype");
    assert_eq!(cat(&scratch, "store:/ostype"), "Linux\n");
}

#[test]
fn a_link_that_is_named_is_followed_and_with_recursion_kept() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::create_dir(scratch.path("d")).unwrap();
    fs::write(scratch.path("d/file"), "text").unwrap();
    symlink("d/file", scratch.path("link")).unwrap();
    symlink("nowhere", scratch.path("dangling")).unwrap();
    symlink("d", scratch.path("to-directory")).unwrap();
    for (arguments, path) in [("put link store:/put", "store:/put"), ("cp link store:/", "store:/link")] {
        succeed(&scratch, arguments);
        assert_eq!(cat(&scratch, path), "text");
        assert!(succeed(&scratch, &format!("ls {path}")).starts_with('-'), "{path}");
    }
    succeed(&scratch, "cp link copy");
    assert!(scratch.path("copy").symlink_metadata().unwrap().is_file());
    fails(&scratch, "put dangling store:/x", "dangling: No such file");
    fails(&scratch, "put to-directory store:/x", "is a directory");
    succeed(&scratch, "put -r link store:/kept");
    assert!(succeed(&scratch, "ls store:/kept").trim_end().ends_with("-> d/file"));

    // In a store: link and target in the same store, across directories.
    succeed(&scratch, "put -r d store:/d");
    fs::create_dir(scratch.path("links")).unwrap();
    for (name, target) in [
        ("up", "../d/file"),
        ("twice", "up"),
        ("out", "/d/file"),
        ("round", "round"),
        ("above", "../../../d/file"),
    ] {
        symlink(target, scratch.path("links").join(name)).unwrap();
    }
    succeed(&scratch, "put -r links store:/links");
    for name in ["up", "twice", "above"] {
        assert_eq!(cat(&scratch, &format!("store:/links/{name}")), "text");
        succeed(&scratch, &format!("get store:/links/{name} got-{name}"));
        assert!(scratch.path(&format!("got-{name}")).symlink_metadata().unwrap().is_file(), "{name}");
    }
    fails(&scratch, "get store:/links/out got", "leads out of the store, to /d/file");
    fails(&scratch, "cat store:/links/round", "too many symbolic links");
    succeed(&scratch, "get -r store:/links/out got");
    assert_eq!(fs::read_link(scratch.path("got")).unwrap().to_str(), Some("/d/file"));
}

#[test]
fn what_a_pipe_yields_is_stored_whole() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|at| (at >> 8) as u8).chain([0; 100_000]).collect();
    let mut put = piped(&scratch, "put /dev/stdin store:/x");
    put.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = put.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    succeed(&scratch, "get store:/x back");
    assert!(fs::read(scratch.path("back")).unwrap() == bytes);
    // Nothing is a file too.
    let mut put = piped(&scratch, "cp /dev/stdin empty");
    drop(put.stdin.take());
    assert!(put.wait().unwrap().success());
    assert_eq!(fs::metadata(scratch.path("empty")).unwrap().len(), 0);
    // A size of 0 says nothing in /proc.
    succeed(&scratch, "put /proc/cpuinfo store:/cpus");
    assert!(cat(&scratch, "store:/cpus").contains("processor"));
}

#[test]
fn an_interrupted_copy_leaves_what_was_there() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::create_dir(scratch.path("out")).unwrap();
    fs::write(scratch.path("out/file"), "precious").unwrap();
    succeed(&scratch, "put out/file store:/file");
    // Others may be ignored where the tests run in the background, and are then by what they start.
    for arguments in ["put /dev/stdin store:/file", "cp /dev/stdin out/file", "cp /dev/stdin out/new"] {
        let mut copy = piped(&scratch, arguments);
        let mut stdin = copy.stdin.take().unwrap();
        stdin.write_all(&vec![7; 9 << 20]).unwrap(); // more than is read at once, so the target is being written
        let is_begun = || fs::read_dir(scratch.path("out")).unwrap().count() > 1;
        while arguments.contains("out/") && !is_begun() {
            std::thread::sleep(Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&copy), Signal::TERM).unwrap();
        assert!(!copy.wait().unwrap().success());
        drop(stdin);
        let names: Vec<_> =
            fs::read_dir(scratch.path("out")).unwrap().map(|of| of.unwrap().file_name()).collect();
        assert_eq!(names, ["file"], "{arguments}");
        assert_eq!(fs::read(scratch.path("out/file")).unwrap(), b"precious", "{arguments}");
        assert_eq!(cat(&scratch, "store:/file"), "precious", "{arguments}");
    }
    assert_eq!(succeed(&scratch, "ls store").lines().count(), 1);
    assert!(succeed(&scratch, "check store").contains("sound"));
}

#[test]
fn a_store_that_is_not_there_is_no_file() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::write(scratch.path("file"), "text").unwrap();
    fails(&scratch, "cp file missing:name", "there is no store missing");
    fails(&scratch, "cp file missing:/name", "there is no store missing");
    fails(&scratch, "cp store:/x missing:name", "there is no store missing");
    let absolute = scratch.path("missing:name").display().to_string();
    fails(&scratch, &format!("cp file {absolute}"), "there is no such store");
    assert!(!scratch.path("missing:name").exists());
    succeed(&scratch, "cp file ./missing:name");
    succeed(&scratch, "cp ./missing:name store:/12:30");
    succeed(&scratch, "cp store:/12:30 ./12:30");
    succeed(&scratch, &format!("cp store:/12:30 {}", scratch.path("12:31").display()));
    for name in ["missing:name", "12:30", "12:31"] {
        assert_eq!(fs::read(scratch.path(name)).unwrap(), b"text");
    }
    for store in ["/dev/nvme-typo", "/dev/disk/../nvme-typo"] {
        fails(&scratch, &format!("format {store} --size 64M"), "");
        assert!(fs::metadata(store).is_err());
    }
    fails(&scratch, "format new --size 64M --log-device /dev/typo --log-size 16M", "no such device");
}

#[test]
fn a_root_is_copied_into_another() {
    let scratch = Scratch::new();
    succeed(&scratch, "format old --size 64M");
    succeed(&scratch, "format new --size 64M");
    fs::create_dir(scratch.path("d")).unwrap();
    fs::write(scratch.path("d/a"), "first").unwrap();
    fs::hard_link(scratch.path("d/a"), scratch.path("d/b")).unwrap();
    succeed(&scratch, "put -r d old:/d");
    succeed(&scratch, "put d/a old:/top");
    fails(&scratch, "cp old: new:", "is a directory");
    for _ in 0..2 {
        succeed(&scratch, "cp -r old: new:");
        assert_eq!(succeed(&scratch, "ls new:").lines().count(), 2);
        assert_eq!(cat(&scratch, "new:/d/b"), "first");
        assert_eq!(cat(&scratch, "new:/top"), "first");
    }
    fs::create_dir(scratch.path("out")).unwrap();
    succeed(&scratch, "get -r old: out");
    let inode = |name: &str| fs::metadata(scratch.path(name)).unwrap().ino();
    assert_eq!(inode("out/d/a"), inode("out/d/b"));
    succeed(&scratch, "put -r out/. new:/d");
    assert_eq!(cat(&scratch, "new:/d/d/a"), "first");
    for arguments in ["cp -r old: old:/d", "cp -r old: old:", "cp -r out/. out", "cp -r . out"] {
        fails(&scratch, arguments, "cannot be copied into itself");
    }
}

#[test]
fn slashes_and_dots_mean_directories() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::create_dir(scratch.path("d")).unwrap();
    fs::write(scratch.path("d/file"), "text").unwrap();
    succeed(&scratch, "put -r d store:/d/");
    succeed(&scratch, "get -r store:/d out/");
    assert!(scratch.path("out/file").is_file());
    for arguments in ["put d/file store:/new/", "get store:/d/file new/", "cp d/file new/"] {
        fails(&scratch, arguments, "not a directory");
    }
    assert!(!scratch.path("new").exists());
    for arguments in ["rm -r store:/d/..", "rm -r store:/d/.", "rm -r store:", "rm -r store:/d/../.."] {
        fails(&scratch, arguments, "remove");
    }
    assert_eq!(cat(&scratch, "store:/d/../d/./file"), "text");
}

#[test]
fn an_output_that_takes_no_more_is_told_of() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::write(scratch.path("file"), vec![b'x'; 3 << 20]).unwrap();
    fs::write(scratch.path("short"), "x").unwrap();
    succeed(&scratch, "put file store:/file");
    succeed(&scratch, "put short store:/short");
    for arguments in ["cat store:/file", "cat store:/short", "ls store:", "info store", "check store"] {
        let mut command = lacuna(&scratch);
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command.args(arguments.split_whitespace()).stdout(full).output().unwrap();
        said(arguments, &output, "standard output: ");
    }
    let mut command = lacuna(&scratch);
    let mut cat = command.args(["cat", "store:/file"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(cat.stdout.take());
    assert_eq!(cat.wait().unwrap().signal(), Some(Signal::PIPE.as_raw()));
}
