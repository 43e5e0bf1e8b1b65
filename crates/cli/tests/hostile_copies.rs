//! Copies of forged stores, into trees that others may write, and past what a target cannot take.

use std::{
    fs,
    io::Write,
    os::unix::{
        fs::{FileExt, MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use crate::support::{Scratch, run, succeed, succeeded};
use lacuna_ftl::{Lba, Op, Stream};
use lacuna_nvmfs::{
    Ino, Nvmfs, OpenedVfs, VfsOptions, open_vfs,
    posix::{Caller, Posix, SetAttr, XattrMode},
};

/// Opens the store of a test, to do what the program does not.
fn open(scratch: &Scratch) -> Arc<Nvmfs> {
    let OpenedVfs::Store(fs) = open_vfs(&scratch.path("store"), &VfsOptions::default()).unwrap() else {
        panic!("not a store")
    };
    fs
}

/// Gives `bytes` to the sector that `is_it` picks in the region of an inode, under a valid checksum.
fn forge(fs: &Nvmfs, region: u64, is_it: impl Fn(&[u8; 512]) -> bool, bytes: &[(usize, &[u8])]) {
    let mut rest = Lba(region << 36)..Lba((region + 1) << 36);
    while let Some(run) = fs.ftl().mapped(rest.clone()).unwrap() {
        for lba in (run.start.0..run.end.0).map(Lba) {
            let mut sector = [0; 512];
            fs.ftl().read(lba, &mut sector).unwrap();
            if is_it(&sector) {
                bytes.iter().for_each(|(at, bytes)| sector[*at..*at + bytes.len()].copy_from_slice(bytes));
                sector[8..12].fill(0);
                let crc = lacuna_crc::crc32c(&sector);
                sector[8..12].copy_from_slice(&crc.to_le_bytes());
                fs.ftl().write_batch(&[Op::Write { lba, data: &sector }], Stream::Data).unwrap();
                return;
            }
        }
        rest.start = run.end;
    }
    panic!("no such sector");
}

/// Offsets in the sector of an entry, and of the parent in that of an inode.
const INO_AT: usize = 24;
const NAME_LEN_AT: usize = 33;
const NAME_AT: usize = 48;
const PARENT_AT: usize = 64;

/// Gives `bytes` to the entry `name` of a directory.
fn forge_entry(fs: &Nvmfs, directory: Ino, name: &[u8], bytes: &[(usize, &[u8])]) {
    let is_it = |sector: &[u8; 512]| {
        usize::from(sector[NAME_LEN_AT]) == name.len() && sector[NAME_AT..].starts_with(name)
    };
    forge(fs, directory.number(), is_it, bytes);
}

fn make(fs: &Posix, parent: Ino, name: &str) -> Ino {
    fs.mkdir(parent, name.as_bytes(), 0o755, Caller::default()).unwrap().ino
}

/// Expects a failure that is said in lines, the last of them with all of `words`.
fn fails(output: &Output, words: &[&str]) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{:?}: {stderr}", output.status);
    assert!(!stderr.contains("panicked"), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "no {word:?} in {stderr}");
    }
    stderr
}

fn read(scratch: &Scratch, path: &str) -> String {
    fs::read_to_string(scratch.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Runs the program by a shell, behind `before`.
fn run_behind(scratch: &Scratch, before: &str, arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_lacuna");
    let mut command = Command::new("sh");
    command.current_dir(scratch.path(".")).args(["-c", &format!("{before} {program} {arguments}")]);
    command.output().unwrap()
}

/// Scratch directories are removed by recursion, which trees of this depth do not bear.
fn remove_deep(path: &Path) {
    assert!(Command::new("rm").arg("-rf").arg(path).status().unwrap().success());
}

#[test]
fn a_name_twice_leads_nowhere() {
    for object in ["directory", "file"] {
        for link_is_first in [true, false] {
            let scratch = Scratch::new();
            succeed(&scratch, "format store --size 64M");
            let elsewhere = scratch.path("elsewhere");
            fs::create_dir(&elsewhere).unwrap();
            fs::write(elsewhere.join("victim"), "precious").unwrap();
            let tree = scratch.path("tree");
            fs::create_dir_all(tree.join("sound")).unwrap();
            fs::write(tree.join("sound/file"), "sound").unwrap();
            succeed(&scratch, "cp -r tree store:/d");
            let make_link = || {
                let to = if object == "file" { elsewhere.join("victim") } else { elsewhere.clone() };
                symlink(to, scratch.path("x")).unwrap();
                succeed(&scratch, "cp -r x store:/d/x");
            };
            let make_object = || {
                fs::create_dir_all(scratch.path("y")).unwrap();
                fs::write(scratch.path("y/planted"), "planted").unwrap();
                match object {
                    "file" => succeed(&scratch, "cp y/planted store:/d/y"),
                    _ => succeed(&scratch, "cp -r y store:/d/y"),
                }
            };
            if link_is_first {
                make_link();
                make_object();
            } else {
                make_object();
                make_link();
            }
            let fs = open(&scratch);
            let directory = fs.posix().lookup(Ino::ROOT, b"d").unwrap().ino;
            forge_entry(&fs, directory, b"y", &[(NAME_AT, b"x")]);
            fs.close().unwrap();
            drop(fs);

            fs::create_dir(scratch.path("merged")).unwrap();
            fs::create_dir(scratch.path("merged/d")).unwrap();
            for arguments in
                ["get -r store:/d out1", "cp -r store:/d out2", "rescue store out3", "get -r store:/d merged"]
            {
                fails(&run(&scratch, arguments), &["/x: the directory has this name twice"]);
                assert_eq!(read(&scratch, "elsewhere/victim"), "precious", "{arguments}");
                assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1, "{arguments}");
            }
            assert_eq!(read(&scratch, "out1/sound/file"), "sound");
        }
    }
}

#[test]
fn a_name_that_is_a_path_is_refused() {
    for name in [&b"../x"[..], b"/a/b"] {
        let scratch = Scratch::new();
        succeed(&scratch, "format store --size 64M");
        fs::create_dir(scratch.path("tree")).unwrap();
        fs::write(scratch.path("tree/abcd"), "planted").unwrap();
        fs::write(scratch.path("tree/sound"), "sound").unwrap();
        succeed(&scratch, "cp -r tree store:/d");
        let fs = open(&scratch);
        let directory = fs.posix().lookup(Ino::ROOT, b"d").unwrap().ino;
        forge_entry(&fs, directory, b"abcd", &[(NAME_AT, name)]);
        fs.close().unwrap();
        drop(fs);
        for (arguments, out) in [("get -r store:/d out", "out"), ("rescue store saved", "saved/d")] {
            fails(&run(&scratch, arguments), &["impossible name"]);
            assert!(!scratch.path("x").exists() && !scratch.path("saved/x").exists());
            assert!(out == "out" || read(&scratch, &format!("{out}/sound")) == "sound");
        }
    }
}

/// No link in a tree that others may write is followed, wherever it is.
#[test]
fn links_in_the_target_are_neither_followed_nor_replaced() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("tree/sub")).unwrap();
    fs::write(scratch.path("tree/sub/planted"), "planted").unwrap();
    fs::write(scratch.path("tree/file"), "planted").unwrap();
    fs::write(scratch.path("tree/replaced"), "new").unwrap();
    succeed(&scratch, "format store --size 64M");
    succeed(&scratch, "cp -r tree store:/tree");
    for (arguments, out) in [("get -r store:/tree one", "one"), ("cp -r tree two", "two")] {
        let elsewhere = scratch.path(&format!("elsewhere-{out}"));
        fs::create_dir_all(scratch.path(&format!("{out}/tree"))).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("victim"), "precious").unwrap();
        fs::set_permissions(elsewhere.join("victim"), fs::Permissions::from_mode(0o640)).unwrap();
        let into = |name: &str| scratch.path(&format!("{out}/tree/{name}"));
        symlink(&elsewhere, into("sub")).unwrap();
        symlink(elsewhere.join("victim"), into("file")).unwrap();
        fs::write(into("replaced"), "an older one").unwrap();
        fs::hard_link(into("replaced"), scratch.path(&format!("kept-{out}"))).unwrap();
        fails(&run(&scratch, arguments), &["tree/sub: exists already", "tree/file: exists already"]);
        assert_eq!(fs::read_to_string(elsewhere.join("victim")).unwrap(), "precious");
        assert_eq!(mode(&elsewhere.join("victim")), 0o640);
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
        assert!(into("file").is_symlink() && into("sub").is_symlink());
        assert_eq!(fs::read_to_string(into("replaced")).unwrap(), "new");
        assert_eq!(read(&scratch, &format!("kept-{out}")), "an older one", "another name of the old file");
    }
}

/// A file that was there already was cut to nothing and written over, whatever other names it had: the source's own, or
/// that of a file that was copied just before.
#[test]
fn a_copy_writes_over_no_other_name() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/a"), "first").unwrap();
    fs::hard_link(scratch.path("tree/a"), scratch.path("tree/b")).unwrap();
    succeed(&scratch, "format store --size 64M");
    succeed(&scratch, "put -r tree store:/tree");
    let fs = open(&scratch);
    let posix = fs.posix();
    let tree = posix.lookup(Ino::ROOT, b"tree").unwrap().ino;
    let links = make(&posix, Ino::ROOT, "links");
    let linked = make(&posix, links, "tree");
    posix.link(posix.lookup(tree, b"a").unwrap().ino, linked, b"a").unwrap();
    make(&posix, Ino::ROOT, "again");
    fs.close().unwrap();
    drop((posix, fs));
    succeed(&scratch, "cp -r store:/tree store:/links");
    for path in ["tree/a", "tree/b", "links/tree/a", "links/tree/b"] {
        assert_eq!(succeed(&scratch, &format!("cat store:/{path}")), "first", "{path}");
    }

    succeed(&scratch, "put -r tree store:/again");
    fs::remove_file(scratch.path("tree/b")).unwrap();
    fs::write(scratch.path("tree/b"), "second").unwrap();
    succeed(&scratch, "put -r tree store:/again");
    for (path, content) in [("a", "first"), ("b", "second")] {
        assert_eq!(succeed(&scratch, &format!("cat store:/again/tree/{path}")), content);
    }
    succeed(&scratch, "check store");
}

/// Permissions of the group opened the mask of a list that the directory had passed on.
#[test]
fn a_list_of_the_directory_lets_nobody_into_a_copy() {
    let scratch = Scratch::new();
    fs::write(scratch.path("secret"), "secret").unwrap();
    fs::set_permissions(scratch.path("secret"), fs::Permissions::from_mode(0o660)).unwrap();
    succeed(&scratch, "format store --size 64M");
    let fs = open(&scratch);
    let posix = fs.posix();
    let dir = make(&posix, Ino::ROOT, "dir");
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1_u16, 7_u16, u32::MAX), (2, 6, 777), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    posix.setxattr(dir, b"system.posix_acl_default", &list, XattrMode::Set).unwrap();
    fs.close().unwrap();
    drop((posix, fs));
    for _ in 0..2 {
        succeed(&scratch, "put secret store:/dir/");
        let fs = open(&scratch);
        let posix = fs.posix();
        let dir = posix.lookup(Ino::ROOT, b"dir").unwrap().ino;
        let copy = posix.lookup(dir, b"secret").unwrap();
        assert_eq!(copy.perm & 0o777, 0o660);
        assert!(
            posix.getxattr(copy.ino, b"system.posix_acl_access").is_err(),
            "a list that the source has not"
        );
        fs.close().unwrap();
    }
}

#[test]
fn a_directory_in_itself_ends() {
    let scratch = Scratch::new();
    let forged = |forge_parent: bool| {
        let _ = fs::remove_file(scratch.path("store"));
        succeed(&scratch, "format store --size 64M");
        let fs = open(&scratch);
        let posix = fs.posix();
        let outer = make(&posix, Ino::ROOT, "outer");
        let inner = make(&posix, outer, "inner");
        make(&posix, inner, "loop");
        posix.mknod(Ino::ROOT, b"file", 0o100_600, 0, Caller::default()).unwrap();
        if forge_parent {
            let is_outer = |sector: &[u8; 512]| sector[16..24] == ((1 << 36) + outer.number()).to_le_bytes();
            forge(&fs, 1, is_outer, &[(PARENT_AT, &(inner.number() as u32).to_le_bytes())]);
        } else {
            let generation = posix.getattr(outer).unwrap().generation;
            let of_outer = [(outer.number() as u32).to_le_bytes(), generation.to_le_bytes()].concat();
            forge_entry(&fs, inner, b"loop", &[(INO_AT, &of_outer)]);
        }
        fs.close().unwrap();
    };
    succeed(&scratch, "format other --size 64M");
    forged(false);
    let bounded = |arguments: &str| run_behind(&scratch, "exec timeout 120", arguments);
    for arguments in
        ["cp -r store:/outer store:/copy", "get -r store:/outer out", "cp -r store:/outer other:/copy"]
    {
        fails(&bounded(arguments), &["/inner/loop: "]);
    }
    assert!(scratch.path("out/inner").is_dir());
    fails(&bounded("rescue store saved"), &["/inner/loop: "]);
    fails(&bounded("rm -r store:/outer"), &["store:/outer: "]);
    forged(true);
    fails(&bounded("cp store:/file store:/outer/inner/x"), &["store:/outer/inner/x: "]);
}

#[test]
fn trees_may_be_as_deep_as_they_like() {
    // Paths of more than 4096 bytes; and more levels than recursion could go down on this stack.
    const LEVELS: usize = 4_000;
    let scratch = Scratch::new();
    let succeed = |arguments: &str| {
        succeeded(arguments, run_behind(&scratch, "ulimit -s 1024; exec", arguments));
    };
    succeed("format store --size 256M");
    succeed("format other --size 256M");
    let fs = open(&scratch);
    let posix = fs.posix();
    let mut deepest = make(&posix, Ino::ROOT, "deep");
    for _ in 1..LEVELS {
        deepest = make(&posix, deepest, "d");
    }
    posix.mknod(deepest, b"file", 0o100_640, 0, Caller::default()).unwrap();
    fs.close().unwrap();
    drop((posix, fs));
    succeed("cp -r store:/deep other:/deep");
    succeed("rm -r other:/deep");
    assert_eq!(run(&scratch, "ls other").stdout, b"");
    succeed("get -r store:/deep out");
    succeed("put -r out other:/back");
    succeed("rescue store saved");
    for out in ["out", "saved/deep"] {
        let mut find = Command::new("find");
        find.arg(scratch.path(out)).args(["-name", "file", "-printf", "%d %m"]);
        let found = find.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), format!("{LEVELS} 640"), "{out}");
        remove_deep(&scratch.path(out));
    }
    succeed("rm -r other:/back");
}

#[test]
fn nothing_is_copied_over_itself() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("a/b")).unwrap();
    fs::write(scratch.path("a/file"), "precious").unwrap();
    fs::hard_link(scratch.path("a/file"), scratch.path("same")).unwrap();
    symlink("a", scratch.path("link")).unwrap();
    succeed(&scratch, "format store --size 64M");
    succeed(&scratch, "cp -r a store:/a");
    for arguments in [
        "cp -r a a/b",
        "cp -r a a/b/c",
        "cp -r a link/b/c",
        "cp a/file same",
        "cp a/file a",
        "cp -r store:/a store:/a/b",
        "cp store:/a/file store:/a/file",
        "put store store:/itself",
        "put -r store store:/itself",
        "cp store store:/itself",
        "cp ./store store:",
    ] {
        fails(&run(&scratch, arguments), &["cannot be copied into itself"]);
        assert_eq!(read(&scratch, "same"), "precious", "{arguments}");
        assert_eq!(fs::read_dir(scratch.path("a/b")).unwrap().count(), 0, "{arguments}");
    }
    assert_eq!(succeed(&scratch, "cat store:/a/file"), "precious");
    // The rest is copied.
    fails(&run(&scratch, "put -r . store:/all"), &["./store: cannot be copied into itself", "1 losses"]);
    assert_eq!(succeed(&scratch, "cat store:/all/same"), "precious");
    assert!(!succeed(&scratch, "ls store:/all").contains("store"));

    fs::File::create(scratch.path("log")).unwrap().set_len(32 << 20).unwrap();
    let copied = run(&scratch, "put --new-log-device log -r . store:/with_log");
    fails(
        &copied,
        &["./store: cannot be copied into itself", "./log: cannot be copied into itself", "2 losses"],
    );
    fails(&run(&scratch, "put --log-device log log store:/log"), &["cannot be copied into itself"]);
}

/// Set-user-id bits and capabilities that a store holds.
#[test]
fn privileges_leave_a_store_on_request_only() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::write(scratch.path("program"), "#!/bin/sh\n").unwrap();
    succeed(&scratch, "put program store:/program");
    let fs = open(&scratch);
    let posix = fs.posix();
    let ino = posix.lookup(Ino::ROOT, b"program").unwrap().ino;
    // CAP_SETUID, effective and permitted.
    let mut capability = [0; 20];
    (capability[0], capability[3], capability[4]) = (1, 2, 128);
    posix.setxattr(ino, b"security.capability", &capability, XattrMode::Set).unwrap();
    posix.setattr(ino, &SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    fs.close().unwrap();
    drop((posix, fs));
    let is_root = rustix::process::geteuid().is_root();
    for arguments in ["get store:/program out", "cp store:/program out", "rescue store out"] {
        let _ = fs::remove_dir_all(scratch.path("out"));
        let _ = fs::remove_file(scratch.path("out"));
        let out = scratch.path(if arguments.starts_with("rescue") { "out/program" } else { "out" });
        let has_capability = || rustix::fs::getxattr(&out, "security.capability", &mut [0; 64][..]).is_ok();
        let output = run(&scratch, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.contains("see --privileged"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert_eq!((mode(&out), has_capability()), (0o755, false), "{arguments}");
        if is_root {
            let _ = fs::remove_dir_all(scratch.path("out"));
            let _ = fs::remove_file(scratch.path("out"));
            succeed(&scratch, &format!("{arguments} --privileged"));
            assert_eq!((mode(&out), has_capability()), (0o6755, true), "{arguments}");
        } else {
            eprintln!("SKIPPED in part: only root can keep capabilities");
        }
    }
}

/// A forgotten colon names the store itself, which is open at that moment.
#[test]
fn a_copy_replaces_no_store() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    succeed(&scratch, "format other --size 64M");
    fs::write(scratch.path("file"), "text").unwrap();
    succeed(&scratch, "put file store:/file");
    succeed(&scratch, "put file store:/store");
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/store"), "text").unwrap();
    for arguments in [
        "cp store:/file store",
        "cp file store",
        "get store:/file store",
        "get store:/store .",
        "get store:/file other",
    ] {
        fails(&run(&scratch, arguments), &["exists already, and is a Lacuna store"]);
    }
    fs::create_dir(scratch.path("into")).unwrap();
    fs::create_dir(scratch.path("into/tree")).unwrap();
    fs::rename(scratch.path("other"), scratch.path("into/tree/store")).unwrap();
    fails(&run(&scratch, "cp -r tree into"), &["tree/store: exists already, and is a Lacuna store"]);
    assert_eq!(succeed(&scratch, "cat store:/file"), "text");
    assert!(succeed(&scratch, "check into/tree/store").contains("sound"));
    // What is no store makes way.
    fs::write(scratch.path("old"), "old").unwrap();
    succeed(&scratch, "get store:/file old");
    assert_eq!(read(&scratch, "old"), "text");
}

#[test]
fn copies_go_on_past_fifos_and_sockets() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("tree")).unwrap();
    let _socket = UnixListener::bind(scratch.path("tree/b-socket")).unwrap();
    assert!(Command::new("mkfifo").arg(scratch.path("tree/a-fifo")).status().unwrap().success());
    fs::write(scratch.path("tree/z"), "behind them").unwrap();
    succeed(&scratch, "format store --size 64M");
    let left_out = |arguments: &str, names: &[&str]| {
        let output = run(&scratch, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {stderr}");
        assert_eq!(stderr.lines().count(), names.len(), "{arguments}: {stderr}");
        for (line, name) in stderr.lines().zip(names) {
            assert!(line.contains(&format!("{name}: neither file")), "{arguments}: {stderr}");
        }
    };
    left_out("put -r tree store:/tree", &["a-fifo", "b-socket"]);
    assert_eq!(succeed(&scratch, "cat store:/tree/z"), "behind them");
    left_out("cp -r tree out", &["a-fifo", "b-socket"]);
    assert_eq!(read(&scratch, "out/z"), "behind them");
    let fs = open(&scratch);
    let directory = fs.posix().lookup(Ino::ROOT, b"tree").unwrap().ino;
    fs.posix().mknod(directory, b"a-fifo", 0o010_644, 0, Caller::default()).unwrap();
    fs.close().unwrap();
    drop(fs);
    left_out("get -r store:/tree back", &["a-fifo"]);
    assert_eq!(read(&scratch, "back/z"), "behind them");
    left_out("rescue store rescued", &["a-fifo"]);
    let line = fails(&run(&scratch, "cp tree/b-socket out"), &["b-socket: "]);
    assert_eq!(line.lines().count(), 1, "{line}");
}

/// A store with objects that many a target cannot take, and sound ones behind them.
fn demanding(scratch: &Scratch) {
    succeed(scratch, "format store --size 64M");
    let tree = scratch.path("tree");
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("large"), "begins here").unwrap();
    fs::write(tree.join("longer"), vec![7; 3 << 20]).unwrap();
    fs::write(tree.join("attribute"), "has one").unwrap();
    fs::write(tree.join("other"), "another's").unwrap();
    fs::write(tree.join("z"), "behind them").unwrap();
    fs::hard_link(tree.join("z"), tree.join("z-again")).unwrap();
    symlink("z", tree.join("z-link")).unwrap();
    succeed(scratch, "cp -r tree store:/tree");
    let fs = open(scratch);
    let posix = fs.posix();
    let directory = posix.lookup(Ino::ROOT, b"tree").unwrap().ino;
    let ino = |name: &[u8]| posix.lookup(directory, name).unwrap().ino;
    posix.setattr(ino(b"large"), &SetAttr { size: Some(1 << 45), ..SetAttr::default() }).unwrap();
    posix.setattr(ino(b"other"), &SetAttr { uid: Some(12345), ..SetAttr::default() }).unwrap();
    posix.setxattr(ino(b"attribute"), b"user.large", &[5; 60_000], XattrMode::Set).unwrap();
    let mut deep = ino(b"d");
    for _ in 0..20 {
        deep = make(&posix, deep, &"d".repeat(250));
    }
    posix.mknod(deep, b"deep", 0o100_600, 0, Caller::default()).unwrap();
    fs.close().unwrap();
}

/// What every target can take of that store is in `out`.
fn has_the_rest(scratch: &Scratch, out: &str) {
    for (name, content) in [("attribute", "has one"), ("other", "another's"), ("z", "behind them")] {
        assert_eq!(read(scratch, &format!("{out}/tree/{name}")), content);
    }
    let found = Command::new("find").arg(scratch.path(out)).args(["-name", "deep"]).output().unwrap();
    assert_eq!(found.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
    let mut large = [0; 11];
    fs::File::open(scratch.path(&format!("{out}/tree/large"))).unwrap().read_exact_at(&mut large, 0).unwrap();
    assert_eq!(&large, b"begins here");
}

#[test]
fn rescue_goes_on_past_what_the_target_cannot_take() {
    let scratch = Scratch::new();
    demanding(&scratch);
    // No file of more than 2 MiB.
    let output = run_behind(&scratch, "trap '' XFSZ; ulimit -f 4096; exec", "rescue store out");
    let stderr = fails(
        &output,
        &["out/tree/large: its length", "out/tree/longer: bytes", "files and directories copied"],
    );
    has_the_rest(&scratch, "out");
    let inode = |name: &str| fs::metadata(scratch.path(name)).unwrap().ino();
    assert_eq!(inode("out/tree/z"), inode("out/tree/z-again"));
    if stderr.contains("out/tree/attribute") {
        assert!(stderr.contains("without the attribute user.large"), "{stderr}");
    }
}

#[test]
fn rescue_onto_a_file_system_without_owners_or_attributes() {
    let scratch = Scratch::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can lose the right to give files away, or mount");
        return;
    }
    demanding(&scratch);
    let output =
        run_behind(&scratch, "exec setpriv --inh-caps=-chown --bounding-set=-chown", "rescue store out");
    fails(&output, &["out/tree/other: without its owner", "files and directories copied"]);
    has_the_rest(&scratch, "out");
    // ramfs has no extended attributes.
    fs::create_dir(scratch.path("ram")).unwrap();
    let mount = Command::new("mount").args(["-t", "ramfs", "none"]).arg(scratch.path("ram")).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED in part: no ramfs can be mounted");
        return;
    }
    let output = run(&scratch, "rescue store ram/out");
    let checked = std::panic::catch_unwind(|| {
        fails(&output, &["ram/out/tree/attribute: without the attribute user.large"]);
        has_the_rest(&scratch, "ram/out");
    });
    assert!(Command::new("umount").arg("-l").arg(scratch.path("ram")).status().unwrap().success());
    checked.unwrap();
}

/// Access control lists are kept, and where they cannot be, nobody has more rights than with them.
#[test]
fn access_control_lists_survive_or_shut() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/a"), "for one").unwrap();
    fs::write(scratch.path("tree/b"), "for none").unwrap();
    fs::set_permissions(scratch.path("tree/a"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(scratch.path("tree/b"), fs::Permissions::from_mode(0o600)).unwrap();
    let set = |list: &str, path: &str| {
        let mut command = Command::new("setfacl");
        command.args(list.split_whitespace()).arg(scratch.path(path));
        command.output().is_ok_and(|output| output.status.success())
    };
    if !set("-m u:12345:rw", "tree/a") {
        eprintln!("SKIPPED: no setfacl, or no access control lists here");
        return;
    }
    let list = |path: &str| {
        let output = Command::new("getfacl").args(["-cn"]).arg(scratch.path(path)).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(set("-d -m u:54321:rw", "tree"));
    // What a directory passes on to its files is no part of them.
    fs::create_dir(scratch.path("out")).unwrap();
    assert!(set("-d -m u:777:rwx", "out"));
    succeed(&scratch, "cp -r tree out");
    for path in ["tree", "tree/a", "tree/b"] {
        assert_eq!(list(&format!("out/{path}")), list(path), "{path}");
    }
    // The bits of the group say what the list allows at most.
    assert_eq!(mode(&scratch.path("tree/a")), 0o660);
    succeed(&scratch, "format store --size 64M");
    let output = run(&scratch, "put -r tree store:/tree");
    if !output.status.success() {
        fails(&output, &["tree/a: without the attribute system.posix_acl_access"]);
        assert!(succeed(&scratch, "ls store:/tree").contains("-rw------- "), "nobody but the owner");
        assert!(!succeed(&scratch, "ls store:/tree").contains("-rw-rw---- "));
    }
}

#[test]
fn a_full_target_ends_a_copy() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    for number in 0..50 {
        let mut file = fs::File::create(scratch.path(&format!("tree/{number}"))).unwrap();
        let bytes: Vec<_> =
            (0..1_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        file.write_all(&bytes).unwrap();
    }
    succeed(&scratch, "format store --size 24M");
    let stderr = fails(&run(&scratch, "put -r tree store:/tree"), &["store", "no space"]);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    succeed(&scratch, "check store");
}
