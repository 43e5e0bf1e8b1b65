//! A store's size, the disks it moves between, and those who may only read it.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use crate::support::{Scratch, lacuna, run, succeed};
use lacuna_engine::{Store, StoreOptions, TableOptions};
use lacuna_nvmfs::{VfsOptions, open_vfs};

const MIB: u64 = 1 << 20;

fn refused(output: &Output, words: &[&str]) {
    assert_eq!(output.stderr.iter().filter(|byte| **byte == b'\n').count(), 1, "{output:?}");
    refused_at_last(output, words);
}

/// As [`refused`], by the last line: progress precedes it.
fn refused_at_last(output: &Output, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap_or_default();
    words.iter().for_each(|word| assert!(last.contains(word), "{stderr:?} does not say {word:?}"));
}

/// Runs a system's program, which must succeed; its standard output.
fn system(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// A loop device, until it is dropped.
struct Loop(String);

impl Loop {
    /// None, loudly, where we may have none.
    fn new(file: &Path, sector_bytes: u32) -> Option<Loop> {
        let sectors = sector_bytes.to_string();
        let mut command = Command::new("losetup");
        let output = command.args(["--find", "--show", "--sector-size", &sectors]).arg(file).output();
        match output {
            Ok(output) if output.status.success() => {
                let disk = Loop(String::from_utf8(output.stdout).expect("text").trim().to_owned());
                // Whatever its last user made of it: the kernel keeps that.
                system("blockdev", &["--setrw", disk.path()]);
                Some(disk)
            }
            _ => {
                eprintln!("SKIPPED: loop devices (they need root and losetup)");
                None
            }
        }
    }

    fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("blockdev").args(["--setrw", &self.0]).status();
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

fn sparse(scratch: &Scratch, name: &str, bytes: u64) -> PathBuf {
    let path = scratch.path(name);
    fs::File::create(&path).expect("made").set_len(bytes).expect("sized");
    path
}

fn put(scratch: &Scratch, store: &str, text: &str) {
    fs::write(scratch.path("text"), text).expect("written");
    succeed(scratch, &format!("put text {store}:text"));
}

#[test]
fn a_disk_is_not_copied_into_the_store_on_it() {
    let scratch = Scratch::new();
    let Some(disk) = Loop::new(&sparse(&scratch, "image", 64 * MIB), 512) else { return };
    succeed(&scratch, &format!("format {}", disk.path()));
    system("cp", &["-a", disk.path(), &scratch.path("node").display().to_string()]);
    for arguments in
        [format!("put {} node:/itself", disk.path()), format!("put node {}:/itself", disk.path())]
    {
        refused(&run(&scratch, &arguments), &["cannot be copied into itself"]);
    }
}

#[test]
fn a_store_file_grows() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 32M");
    put(&scratch, "store", "kept");
    for (size, words) in [
        ("16M", &["does not become smaller"][..]),
        ("33554944", &["not a multiple of 4096"]),
        ("33M", &["too little", "at least"]),
        ("16777215T", &["too many segments"]),
    ] {
        refused(&run(&scratch, &format!("grow store {size}")), &[&["store"], words].concat());
        assert_eq!(fs::metadata(scratch.path("store")).expect("there").len(), 32 * MIB, "{size}");
    }
    assert!(succeed(&scratch, "grow store max").contains("already"));
    assert!(succeed(&scratch, "grow store 1.5GiB").contains("grown from 33554432 to 1610612736 bytes"));
    assert_eq!(fs::metadata(scratch.path("store")).expect("there").len(), 1536 * MIB);
    assert_eq!(succeed(&scratch, "cat store:text"), "kept");
    succeed(&scratch, "check store");
    assert!(!succeed(&scratch, "info store").contains("lacuna grow"), "it has all");

    fs::OpenOptions::new()
        .write(true)
        .open(scratch.path("store"))
        .expect("opens")
        .set_len(2048 * MIB)
        .expect("longer");
    assert!(succeed(&scratch, "info store").contains("`lacuna grow store max` adds 536.9 MB"));
    assert!(succeed(&scratch, "grow store max").contains("to 2147483648 bytes"));
    succeed(&scratch, "check store");

    fs::create_dir(scratch.path("bare")).expect("made");
    refused(&run(&scratch, "grow bare 64M"), &["bare", "directory"]);
    let bare = succeed(&scratch, "info bare");
    assert!(bare.contains("no store is mounted there, and it holds no tables"), "{bare}");
    refused(&run(&scratch, "grow nowhere 64M"), &["nowhere"]);
    fs::OpenOptions::new()
        .write(true)
        .open(scratch.path("store"))
        .expect("opens")
        .set_len(1024 * MIB)
        .expect("cut");
    for command in ["info store", "check store", "grow store max"] {
        refused(&run(&scratch, command), &["store", "truncated"]);
    }
}

/// Overwrites `len` bytes of `file` at `at`.
fn overwrite(file: &Path, at: u64, len: u64, byte: u8) {
    let opened = fs::OpenOptions::new().write(true).open(file).expect("opens");
    opened.write_all_at(&vec![byte; len as usize], at).expect("written");
}

#[test]
fn a_store_outlives_a_wipe_of_either_end() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    put(&scratch, "store", "kept");
    let store = scratch.path("store");
    for at in [0, 63 * MIB] {
        overwrite(&store, at, MIB, 0);
        assert_eq!(succeed(&scratch, "cat store:text"), "kept");
        succeed(&scratch, "check store");
        succeed(&scratch, "scrub store");
    }
    // Another file system has taken its place.
    overwrite(&store, 0, MIB, 0);
    overwrite(&store, 1024, 1024, 7);
    for command in ["check store", "info store", "put text store:text", "mount store ."] {
        refused(&run(&scratch, command), &["store", "something else is in its place", "rescue"]);
    }
    refused(
        &run(&scratch, "format store --size 64M"),
        &["store", "not empty", "what is left of a Lacuna store"],
    );
    succeed(&scratch, "rescue store rescued");
    assert_eq!(fs::read_to_string(scratch.path("rescued/text")).expect("read"), "kept");
}

/// A store that is mounted, until it is dropped.
struct Mount<'a> {
    scratch: &'a Scratch,
    dir: PathBuf,
}

impl Mount<'_> {
    /// Mounts `store` on `dir`; none, loudly, where we may not.
    fn new(scratch: &Scratch) -> Option<Mount<'_>> {
        let dir = scratch.path("dir");
        fs::create_dir_all(&dir).expect("made");
        let mounted = run(scratch, "mount store dir");
        if !mounted.status.success() {
            eprintln!("SKIPPED: a mounted store: {}", String::from_utf8_lossy(&mounted.stderr));
            return None;
        }
        Some(Mount { scratch, dir })
    }

    /// The process that serves it.
    fn daemon(&self) -> String {
        let store = self.scratch.path("store");
        let line = format!("background-process .* {}", store.to_str().expect("text"));
        system("pgrep", &["-f", &line])
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = run(self.scratch, "umount dir");
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.dir).status();
    }
}

/// Waits for something that takes a busy machine a while.
fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}, not even after minutes");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_mounted_store_is_listed() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    let Some(mount) = Mount::new(&scratch) else { return };
    fs::write(mount.dir.join("text"), "kept").expect("written");
    fs::create_dir(mount.dir.join("a b")).expect("made");
    for name in [&b"two\nlines"[..], b"no \xff text", b"\"quoted\""] {
        fs::write(mount.dir.join("a b").join(OsStr::from_bytes(name)), name).expect("written");
    }
    succeed(&scratch, "umount dir");
    let paths = [&b"store"[..], b"store:", b"store:/a b/./", b"store:text", b"store:a b/no \xff text"];
    let list = |path: &[u8]| lacuna(&scratch).arg("ls").arg(OsStr::from_bytes(path)).output().expect("runs");
    let unmounted = paths.map(list);
    for output in &unmounted {
        assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
    }
    drop(mount);
    let mount = Mount::new(&scratch).expect("mounts again");
    let mounted = paths.map(list);
    let missing = run(&scratch, "ls store:none");
    let busy = run(&scratch, "cat store:text");
    drop(mount);
    assert_eq!(mounted, unmounted);
    refused(&missing, &["store:/none", "no such file"]);
    refused(&busy, &["store", "in use", "mounted on", "dir"]);
}

/// Tables of which a program has made a change through the mount are shown once it has closed them.
#[test]
fn a_mounted_store_shows_its_tables() {
    let scratch = Scratch::new();
    make(&scratch, "store", true);
    let Some(mount) = Mount::new(&scratch) else { return };
    let shown = succeed(&scratch, "info store");
    assert!(shown.contains("people") && shown.contains("mounted over"), "{shown}");
    let opened = open_vfs(&mount.dir, &VfsOptions::default()).expect("opened");
    let store = Store::open(opened.vfs(), StoreOptions::default()).expect("opened");
    let people = store.table("people").expect("catalog").expect("there");
    let mut txn = store.begin();
    txn.put(&people, b"bob", b"builder").expect("put");
    txn.commit().expect("committed");
    let hidden = succeed(&scratch, "info store");
    assert!(hidden.contains("tables not shown") && !hidden.contains("people"), "{hidden}");
    drop(people);
    store.close().expect("closed");
    opened.close().expect("closed");
    drop(opened);
    assert!(succeed(&scratch, "info store --json").contains("\"people\""));
}

#[test]
fn a_mounted_store_is_scrubbed() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 256M");
    let Some(mount) = Mount::new(&scratch) else { return };
    let data: Vec<u8> =
        (0..1_u32 << 20).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    for name in ["victim", "other"] {
        fs::File::create(mount.dir.join(name))
            .and_then(|mut file| file.write_all(&data).and(file.sync_all()))
            .expect("written");
    }
    // Beside writes that make collection necessary.
    let is_over = AtomicBool::new(false);
    let (scrubs, written) = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            while !is_over.load(Relaxed) || written < 100 {
                fs::write(mount.dir.join(format!("hot {}", written % 7)), &data[..1 << 20]).expect("written");
                written += 1;
            }
            written
        });
        let scrubs =
            ["scrub store", "scrub store --json", "scrub store --rate 1T"].map(|line| run(&scratch, line));
        is_over.store(true, Relaxed);
        (scrubs, writer.join().expect("writes"))
    });
    for (output, word) in scrubs.iter().zip(["all sound", "\"damage\": []", "all sound"]) {
        assert!(output.status.success(), "{output:?} beside {written} writes");
        assert!(String::from_utf8_lossy(&output.stdout).contains(word), "{output:?}");
    }
    // Who does not wait for its end ends it.
    let scrubs = || {
        fs::read_dir(format!("/proc/{}/task", mount.daemon())).expect("threads").flatten().any(|thread| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "control-client")
        })
    };
    let slow = || {
        lacuna(&scratch)
            .args(["scrub", "store", "--rate", "1K"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs")
    };
    let mut client = slow();
    await_that("it does not begin", scrubs);
    client.kill().expect("killed");
    client.wait().expect("ended");
    await_that("it goes on for nobody", || !scrubs());
    // Nor does it keep a store open.
    let mut client = slow();
    let mut begun = String::new();
    let stderr = client.stderr.take().expect("piped");
    let mut stderr = BufReader::new(stderr);
    stderr.read_line(&mut begun).expect("progress");
    assert!(begun.contains("beside the mount"), "{begun}");
    succeed(&scratch, "umount dir");
    assert_eq!(client.wait().expect("ended").code(), Some(1));
    let last = stderr.lines().last().expect("a reason").expect("text");
    assert!(last.contains("store: unmounted"), "{last}");

    let store = scratch.path("store");
    let bytes = fs::read(&store).expect("read");
    let at =
        bytes.windows(512).position(|window| window == &data[1 << 20..][..512]).expect("it is in the store");
    overwrite(&store, at as u64 + 100, 1, !bytes[at + 100]);
    let unmounted = run(&scratch, "scrub store");
    refused(&unmounted, &["store", "damaged in 1 places"]);
    let remounted = Mount::new(&scratch).expect("mounts again");
    let mounted = run(&scratch, "scrub store --rate 1G");
    drop(remounted);
    refused_at_last(&mounted, &["store", "damaged in 1 places"]);
    // But for the name, which is the whole path for the process of the mount.
    let found = String::from_utf8_lossy(&mounted.stdout).replace(store.to_str().expect("text"), "store");
    assert_eq!(found, String::from_utf8_lossy(&unmounted.stdout));
}

/// A file system of `kind`, until it is dropped.
struct Host(PathBuf);

impl Host {
    /// None, loudly, where we may not mount.
    fn new(scratch: &Scratch, kind: &str, options: &str) -> Option<Host> {
        let dir = scratch.path(kind);
        fs::create_dir(&dir).expect("made");
        let mounted = Command::new("mount").args(["-t", kind, "-o", options, kind]).arg(&dir).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: a {kind} (needs root)");
            return None;
        }
        Some(Host(dir))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.0).status();
    }
}

fn taken(file: &Path) -> u64 {
    fs::metadata(file).expect("there").blocks() * 512
}

#[test]
fn a_store_has_one_owner_by_all_its_names() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    std::os::unix::fs::symlink("store", scratch.path("link")).expect("linked");
    fs::hard_link(scratch.path("store"), scratch.path("second")).expect("linked");
    let Some(disk) = Loop::new(&scratch.path("store"), 512) else { return };
    let Some(mount) = Mount::new(&scratch) else { return };
    fs::create_dir(scratch.path("elsewhere")).expect("made");
    for name in ["store", "link", "second", disk.path()] {
        let words = ["in use by another process", "mounted on", "/dir:"];
        refused(&run(&scratch, &format!("mount {name} elsewhere")), &words);
        refused(&run(&scratch, &format!("rm {name}:text")), &words);
    }
    drop(mount);
    // The other way round.
    succeed(&scratch, &format!("mount {} dir", disk.path()));
    let refusals = ["store", "second"].map(|name| run(&scratch, &format!("mount {name} elsewhere")));
    succeed(&scratch, "umount dir");
    refusals.iter().for_each(|refusal| refused(refusal, &["in use by another process"]));
    succeed(&scratch, "check store");
}

/// A limit of the size of files, as shells and services set it, is an error and kills nothing.
#[test]
fn a_limit_of_file_sizes_kills_no_mount() {
    let scratch = Scratch::new();
    let limited = |command: &str| {
        // In units of 512 bytes: 48 MiB.
        let script = format!("ulimit -f 98304 && exec $0 {command}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_lacuna")]).current_dir(scratch.path("."));
        shell.output().expect("sh")
    };
    refused(&limited("format store --size 64M"), &["store", "File too large"]);
    assert!(!scratch.path("store").exists());
    succeed(&scratch, "format store --size 32M");
    fs::create_dir(scratch.path("dir")).expect("made");
    let mounted = limited("mount store dir");
    if !mounted.status.success() {
        eprintln!("SKIPPED: a mounted store: {}", String::from_utf8_lossy(&mounted.stderr));
        return;
    }
    let mount = Mount { scratch: &scratch, dir: scratch.path("dir") };
    let too_large = run(&scratch, "grow store 64M");
    let written = fs::write(mount.dir.join("text"), "kept");
    drop(mount);
    refused(&too_large, &["store", "File too large"]);
    written.expect("it is served still");
    assert_eq!(succeed(&scratch, "cat store:text"), "kept");
}

/// A part of a store, as a copy that was broken off leaves it, gives back what it holds.
#[test]
fn what_is_left_of_a_truncated_store_is_saved_as_it_says() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    put(&scratch, "store", "kept");
    let file = fs::OpenOptions::new().write(true).open(scratch.path("store")).expect("opens");
    file.set_len(40 * MIB).expect("cut");
    let refusal = run(&scratch, "rescue store saved");
    refused(&refusal, &["store", "truncated", "truncate -s 67108864", "rescue"]);
    file.set_len(64 * MIB).expect("as it says");
    succeed(&scratch, "rescue store saved");
    assert_eq!(fs::read_to_string(scratch.path("saved/text")).expect("saved"), "kept");
}

#[test]
fn a_store_is_mounted_without_a_place_for_its_socket() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::create_dir(scratch.path("dir")).expect("made");
    // Each in a mount namespace of its own, so that nobody else misses /run.
    for breaks in [
        "mount -t tmpfs -o nr_inodes=1 none /run",
        "mount -t tmpfs -o ro none /run",
        // As a process leaves it that is stopped.
        "mount -t tmpfs none /run && mkdir /run/lacuna && exec 9>/run/lacuna/lock && flock 9",
    ] {
        let script = format!(
            "{breaks} || exit 77; $0 mount --foreground store dir 2>log & \
             for i in $(seq 1200); do mountpoint -q dir && break; sleep 0.1; done; \
             echo kept >dir/text && cat dir/text && umount dir && wait && cat log"
        );
        // A mount that does not end would hold the output open for ever.
        let mut shell = Command::new("timeout");
        shell.args(["-s", "KILL", "300", "unshare", "--mount"]);
        shell.args(["sh", "-c", &script, env!("CARGO_BIN_EXE_lacuna")]);
        let output = shell.current_dir(scratch.path(".")).output().expect("timeout");
        let text = String::from_utf8_lossy(&output.stdout);
        if output.status.code() == Some(77) || text.is_empty() && !rustix_is_root() {
            eprintln!("SKIPPED: mounts of one's own (needs root)");
            return;
        }
        assert!(text.starts_with("kept\n"), "{output:?}");
        assert!(text.contains("no control socket") && text.contains("/run/lacuna"), "{text}");
        succeed(&scratch, "check store");
    }
}

/// As a script does that waits for the mount only; over any transport.
#[test]
fn what_is_unmounted_as_soon_as_it_is_seen_stays_unmounted() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::create_dir(scratch.path("dir")).expect("made");
    let dir = fs::canonicalize(scratch.path("dir")).expect("there");
    let is_in_table = || {
        let table = fs::read("/proc/self/mountinfo").expect("a table");
        let dir = dir.as_os_str().as_bytes();
        table.windows(dir.len()).any(|at| at == dir)
    };
    let device = fs::metadata(&dir).expect("there").dev();
    let is_served = || fs::metadata(&dir).is_ok_and(|found| found.dev() != device);
    for round in 0..12_u64 {
        let mut command = lacuna(&scratch);
        command.args(["mount", "--foreground", "store", "dir"]).stderr(Stdio::piped());
        let mut mount = command.spawn().expect("starts");
        let is_there: &dyn Fn() -> bool = if round % 3 == 0 { &is_in_table } else { &is_served };
        while !is_there() && mount.try_wait().expect("a child").is_none() {}
        thread::sleep(Duration::from_micros(500 * round));
        if !is_in_table() {
            let output = mount.wait_with_output().expect("ends");
            eprintln!("SKIPPED: a mounted store: {}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        system("umount", &["-i", dir.to_str().expect("text")]);
        let deadline = Instant::now() + Duration::from_secs(120);
        while mount.try_wait().expect("a child").is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let serves_on = mount.try_wait().expect("a child").is_none();
        if serves_on {
            let _ = Command::new("umount").args(["-i", "-l"]).arg(&dir).status();
        }
        let output = mount.wait_with_output().expect("ends");
        assert!(!serves_on, "round {round}: mounted again: {output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        let was_early = text.contains("unmounted before it was served");
        assert!(output.status.success() || was_early, "round {round}: {output:?}");
    }
    succeed(&scratch, "check store");
}

#[test]
fn a_preallocated_store_keeps_its_space() {
    let scratch = Scratch::new();
    // The least that may fail for want of space: with a file that takes all of the rest.
    let Some(host) = Host::new(&scratch, "tmpfs", "size=160M") else { return };
    let store = host.0.join("store");
    refused(
        &run(&scratch, "format tmpfs/large --size 256M --preallocate"),
        &["tmpfs/large", "no space left"],
    );
    assert!(!host.0.join("large").exists());
    succeed(&scratch, "format tmpfs/store --size 64M --preallocate");
    assert!(taken(&store) >= 64 * MIB, "{}", taken(&store));
    std::os::unix::fs::symlink(&store, scratch.path("store")).expect("linked");
    let Some(mount) = Mount::new(&scratch) else { return };
    assert!(succeed(&scratch, "info store").contains("preallocated"));
    let grown = run(&scratch, "grow store 128M");
    assert!(grown.status.success(), "{grown:?}");
    let too_large = run(&scratch, "grow store 256M");
    let mut rest = fs::File::create(host.0.join("rest")).expect("made");
    while rest.write_all(&[1; 1 << 12]).is_ok() {}
    for round in 0..6_u8 {
        fs::write(mount.dir.join("file"), vec![round; 40 << 20]).expect("it has its space");
        system("sync", &[mount.dir.join("file").to_str().expect("text")]);
        fs::remove_file(mount.dir.join("file")).expect("removed");
    }
    fs::write(mount.dir.join("file"), vec![7; 40 << 20]).expect("it has its space");
    drop(mount);
    refused(&too_large, &["store", "no space left"]);
    assert_eq!(fs::metadata(&store).expect("there").len(), 128 * MIB);
    assert!(taken(&store) >= 128 * MIB, "{}", taken(&store));
    succeed(&scratch, "check store");
    assert!(succeed(&scratch, "info store").contains("preallocated"));
    // Anew, as another one.
    drop(rest);
    fs::remove_file(host.0.join("rest")).expect("removed");
    refused(&run(&scratch, "format store --size 64M --preallocate"), &["store", "not 67108864"]);
    succeed(&scratch, "format store --size 64M --force");
    assert!(taken(&store) < 64 * MIB, "{}", taken(&store));
    assert!(!succeed(&scratch, "info store").contains("preallocated"));
}

#[test]
fn space_is_set_aside_or_refused() {
    let scratch = Scratch::new();
    if let Some(host) = Host::new(&scratch, "ramfs", "mode=0700") {
        let refusal = run(&scratch, "format ramfs/store --size 64M --preallocate");
        refused(&refusal, &["ramfs/store", "sets no space aside"]);
        assert!(!host.0.join("store").exists());
    }
    if let Some(disk) = Loop::new(&sparse(&scratch, "disk", 64 * MIB), 512) {
        let refusal = run(&scratch, &format!("format {} --preallocate", disk.path()));
        refused(&refusal, &[disk.path(), "block device", "--preallocate"]);
    }
}

#[test]
fn a_mounted_store_grows() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 32M");
    let Some(mount) = Mount::new(&scratch) else { return };
    let dir = mount.dir.clone();
    let size = || system("stat", &["-f", "-c", "%b %S", dir.to_str().expect("text")]);
    let before = size();
    fs::write(dir.join("text"), "kept").expect("written");
    let grown = run(&scratch, "grow store 256M");
    let refusal = run(&scratch, "grow store 64M");
    let after = size();
    let large = fs::write(dir.join("large"), vec![7; 100 << 20]);
    succeed(&scratch, "umount dir");
    assert!(grown.status.success(), "{grown:?}");
    assert!(String::from_utf8_lossy(&grown.stdout).contains("grown from 33554432 to 268435456 bytes"));
    refused(&refusal, &["store", "does not become smaller"]);
    assert!(before != after, "{before}, then {after}");
    large.expect("space for it");
    assert_eq!(succeed(&scratch, "cat store:text"), "kept");
    succeed(&scratch, "check store");
}

#[test]
fn a_store_moves_between_disks_of_512_and_4096_byte_sectors() {
    let scratch = Scratch::new();
    let file = sparse(&scratch, "disk", 256 * MIB);
    for (round, sector_bytes) in [512, 4096, 512, 4096].into_iter().enumerate() {
        let Some(disk) = Loop::new(&file, sector_bytes) else { return };
        let disk = disk.path();
        if round == 0 {
            // Smaller than its disk.
            succeed(&scratch, &format!("format {disk} --size 100M"));
            refused(
                &run(&scratch, &format!("format {disk} --size 300M --force")),
                &[disk, "268435456 bytes"],
            );
        } else {
            assert_eq!(succeed(&scratch, &format!("cat {disk}:text")), format!("round {}", round - 1));
        }
        put(&scratch, disk, &format!("round {round}"));
        succeed(&scratch, &format!("check {disk}"));
        if round == 1 {
            assert!(succeed(&scratch, &format!("info {disk}")).contains(&format!("lacuna grow {disk} max")));
            refused(&run(&scratch, &format!("grow {disk} 1G")), &[disk, "cannot be made"]);
            succeed(&scratch, &format!("grow {disk} 200M"));
            assert!(succeed(&scratch, &format!("grow {disk} max")).contains("to 268435456 bytes"));
        }
    }
    // As a file, on whichever disk that is.
    assert_eq!(succeed(&scratch, "cat disk:text"), "round 3");
}

/// A store with a table that was closed, and `cut`, which was not.
fn stores(scratch: &Scratch) {
    make(scratch, "store", true);
    make(scratch, "cut", false);
}

fn make(scratch: &Scratch, name: &str, is_closed: bool) {
    let options = VfsOptions { create_size: Some(64 * MIB), ..VfsOptions::default() };
    let opened = open_vfs(&scratch.path(name), &options).expect("made");
    let store = Store::open(opened.vfs(), StoreOptions::default()).expect("opened");
    let people = store.create_table("people", TableOptions::default()).expect("made");
    let mut txn = store.begin();
    txn.put(&people, b"ada", b"countess").expect("put");
    txn.commit().expect("committed");
    if is_closed {
        drop(people);
        store.close().expect("closed");
        opened.close().expect("closed");
    }
}

/// What one who may only read sees of `store` and `cut`, by `run`.
fn assert_only_read(run: impl Fn(&str, &str) -> Output) {
    for (store, is_closed) in [("store", true), ("cut", false)] {
        let info = run("info", store);
        let text = String::from_utf8_lossy(&info.stdout);
        assert!(info.status.success(), "{store}: {info:?}");
        assert!(text.contains(if is_closed { "people" } else { "tables not shown" }), "{text}");
        let check = run("check", store);
        let text = String::from_utf8_lossy(&check.stdout);
        match is_closed {
            true => assert!(check.status.success() && text.contains("sound"), "{check:?}"),
            false => refused(&check, &["not closed cleanly"]),
        }
    }
}

#[test]
fn a_read_only_disk_is_looked_at() {
    let scratch = Scratch::new();
    stores(&scratch);
    let disks = ["store", "cut"].map(|name| (name, Loop::new(&scratch.path(name), 512)));
    let [(_, Some(store)), (_, Some(cut))] = &disks else { return };
    for disk in [store, cut] {
        system("blockdev", &["--setro", disk.path()]);
    }
    assert_only_read(|command, name| {
        let disk = if name == "store" { store } else { cut };
        run(&scratch, &format!("{command} {}", disk.path()))
    });
    refused(&run(&scratch, &format!("grow {} max", store.path())), &[store.path()]);
}

#[test]
fn who_may_only_read_a_store_looks_at_it() {
    const NOBODY: &str = "65534";
    if !rustix_is_root() {
        eprintln!("SKIPPED: a store of another user (needs root)");
        return;
    }
    // Below a directory that everybody may search.
    let scratch = Scratch::new();
    let directory = tempfile::tempdir().expect("temporary directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("rights");
    stores(&scratch);
    let program = directory.path().join("lacuna");
    fs::copy(env!("CARGO_BIN_EXE_lacuna"), &program).expect("copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("rights");
    for name in ["store", "cut"] {
        let path = directory.path().join(name);
        fs::copy(scratch.path(name), &path).expect("copied");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("rights");
    }
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(&program);
        command.args(arguments).current_dir(directory.path()).env_remove("XDG_RUNTIME_DIR");
        command.output().expect("setpriv")
    };
    let before = fs::read(directory.path().join("cut")).expect("read");
    assert_only_read(|command, name| as_nobody(&[command, name]));
    refused(&as_nobody(&["grow", "store", "128M"]), &["store", "ermission denied"]);
    fs::set_permissions(directory.path().join("store"), fs::Permissions::from_mode(0o400)).expect("rights");
    refused(&as_nobody(&["info", "store"]), &["store", "ermission denied"]);
    assert!(fs::read(directory.path().join("cut")).expect("read") == before, "nothing is written");
}

fn rustix_is_root() -> bool {
    system("id", &["-u"]) == "0"
}
