//! For every kind of bad input: one line that names the path and the cause, an exit code, nothing lost.

use std::{
    fs,
    process::{Command, Output},
};

use crate::support::{Scratch, lacuna, run, succeed};
use lacuna_device::{RawDevice, RawOptions, StreamHint};
use lacuna_engine::{Store, StoreOptions, TableOptions};
use lacuna_nvmfs::{VfsOptions, open_vfs};

/// Expects exit code `code` and that the last line on standard error is a complaint with all of
/// `words` in it; the line.
fn complains(output: &Output, code: i32, words: &[&str]) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    let complaints = stderr.lines().filter(|line| line.starts_with("lacuna: ")).count();
    assert_eq!(complaints, 1, "one line: {stderr}");
    let line = stderr.lines().last().unwrap_or_default().to_owned();
    assert!(line.starts_with("lacuna: "), "{stderr}");
    for word in words {
        assert!(line.contains(word), "{line:?} does not say {word:?}");
    }
    line
}

/// Whoever looks for tables, or a store, in any directory.
#[test]
fn looking_leaves_nothing_in_a_directory() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("directory")).unwrap();
    fs::write(scratch.path("directory/file"), "text").unwrap();
    for arguments in [
        "info directory",
        "check directory",
        "quota directory",
        "grow directory max",
        "table drop directory t",
    ] {
        run(&scratch, arguments);
        let names: Vec<_> = fs::read_dir(scratch.path("directory")).unwrap().collect();
        assert_eq!(names.len(), 1, "{arguments}: {names:?}");
    }
}

#[test]
fn reports_replace_reports_and_nothing_else() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    fs::write(scratch.path("file"), "a\nb\n").unwrap();
    succeed(&scratch, "put file store:/file");
    let short = "--store other --size 64M --seconds 1 --warmup 0";
    for arguments in [
        "trimbench . --file 1M --trims 1K --experiment then --json store".to_owned(),
        "trimbench --store store --file 1M --trims 1K --experiment then --json store".to_owned(),
        "iobench --size 64M --seconds 1 --pattern seqwrite --json store".to_owned(),
        "dataset file --size 64M --json store".to_owned(),
        format!("linkbench {short} --ids 10 --tables plain --json store"),
        format!("tpcc {short} --warehouses 1 --items 10 --customers 3 --json store"),
    ] {
        complains(&run(&scratch, &arguments), 1, &["store: exists already, and is no report"]);
    }
    complains(
        &run(&scratch, "dataset file --size 64M --json file"),
        1,
        &["file: the rows are read from there"],
    );
    complains(&run(&scratch, "iobench --raw x --store x --size 64M"), 1, &["name the same place"]);
    assert_eq!(succeed(&scratch, "cat store:/file"), "a\nb\n");
    for _ in 0..2 {
        succeed(&scratch, "dataset file --size 64M --json report");
    }
    assert!(fs::read_to_string(scratch.path("report")).unwrap().starts_with('{'));
}

#[test]
fn what_cannot_be_printed_is_no_success() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), "content").unwrap();
    succeed(&scratch, "format store --size 32M");
    succeed(&scratch, "put file store:/file");
    let unheard = |arguments: &str, closed: &str, words: &[&str]| {
        let line = format!("exec \"$0\" {arguments} {closed}");
        let mut command = Command::new("sh");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_lacuna")]).current_dir(scratch.path("."));
        complains(&command.output().unwrap(), 1, words);
    };
    for arguments in ["info store", "check store", "ls store", "cat store:/file"] {
        for closed in [">&-", ">/dev/full"] {
            unheard(arguments, closed, &["standard output"]);
        }
        succeed(&scratch, arguments);
    }
    // What has changed something says so.
    unheard("format new --size 32M", ">&-", &["new: formatted; this is done", "standard output"]);
    unheard("grow new 64M", ">/dev/full", &["67108864 bytes; this is done", "standard output"]);
    assert!(succeed(&scratch, "grow new max").contains("already"));
}

#[test]
fn nonsense_options() {
    let scratch = Scratch::new();
    for (arguments, words) in [
        ("format store --size 8Q", vec!["8Q", "--size"]),
        ("format store --size 0", vec!["--size", "zero"]),
        ("format --size 8G", vec!["STORE"]),
        ("info", vec!["STORE"]),
        ("frobnicate", vec!["frobnicate"]),
        ("umuont d", vec!["umuont", "similar", "umount"]),
        ("mount --read-onyl s d", vec!["--read-onyl", "similar", "--read-only"]),
        ("linkbench --ids 0", vec!["--ids", "0"]),
        ("linkbench --ids many", vec!["--ids", "many"]),
        ("linkbench --requesters 0", vec!["--requesters"]),
        ("linkbench --seconds -1", vec!["-1"]),
        ("linkbench --tables plain,zip", vec!["zip", "--tables"]),
        ("linkbench --algorithm zip", vec!["zip", "--algorithm"]),
        ("linkbench --level 23", vec!["--level"]),
        ("linkbench --pool 1.5Q", vec!["--pool"]),
        ("grow", vec!["STORE"]),
        ("grow store", vec!["SIZE|max"]),
        ("grow store 0", vec!["zero"]),
        ("grow store all", vec!["all", "8G"]),
        ("grow store -8G", vec!["-8"]),
        ("linkbench --verify-acks log", vec!["--store"]),
        ("tpcc --warehouses 0", vec!["--warehouses", "0"]),
        ("tpcc --verify", vec!["--store"]),
        ("tpcc --verify --verify-acks log --store store", vec!["--verify"]),
        ("linkbench --mysql /s --doublewrite off", vec!["--doublewrite", "--mysql"]),
        ("linkbench --postgres /s --encrypt-tables", vec!["--encrypt-tables", "--postgres"]),
        ("tpcc --mysql /s --map-memory 1G", vec!["--map-memory"]),
        ("tpcc --mysql /s --footprint whole", vec!["--footprint"]),
        ("tpcc --mysql /s --password x --password-file y", vec!["--password-file"]),
        ("tpcc --password-file y --store s", vec!["--mysql"]),
        ("iobench --rounds 3", vec!["--goals"]),
        ("iobench --goals --raw x --block 4K", vec!["--block", "--goals"]),
        ("iobench --compress lz4", vec!["--goals"]),
        ("iobench --goals --raw x --skew zipf:0.9", vec!["--skew", "--goals"]),
        ("table drop store", vec!["TABLE"]),
        ("table alter store t zip", vec!["zip", "KIND"]),
        ("table alter store t page --level 23", vec!["--level"]),
        ("table defaults store --page 8K", vec!["KIND"]),
        ("table defaults store page --page 0", vec!["--page", "zero"]),
        ("flash-model", vec!["TRACE"]),
        ("flash-model trace --page 0", vec!["--page", "zero"]),
        ("flash-model trace --over-provisioning 1001", vec!["--over-provisioning"]),
    ] {
        complains(&run(&scratch, arguments), 2, &words);
    }
    complains(&run(&scratch, "format store"), 1, &["store", "--size"]);
    complains(&run(&scratch, "linkbench --tables page,page"), 1, &["--tables", "page"]);
    complains(&run(&scratch, "linkbench --pool 1K --size 64M --ids 10"), 1, &["pool"]);
    complains(&run(&scratch, "linkbench --trace no/where"), 1, &["no"]);
    complains(&run(&scratch, "linkbench --json no/where.json"), 1, &["no/where.json"]);
    complains(&run(&scratch, "linkbench --distribution nowhere --size 64M"), 1, &["nowhere"]);
    complains(&run(&scratch, "tpcc --tables row,row"), 1, &["--tables", "row"]);
    complains(&run(&scratch, "tpcc --mysql /s --log-device l"), 1, &["log device"]);
    complains(&run(&scratch, "tpcc --mysql /s --password-file no/where"), 1, &["no/where"]);
    complains(&run(&scratch, "iobench --log-device l --size 64M"), 1, &["log device"]);
    complains(&run(&scratch, "linkbench --log-device l --trace t --size 64M"), 1, &["log device", "--trace"]);
    assert_eq!(fs::read_dir(scratch.path(".")).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn missing_and_foreign_places() {
    let scratch = Scratch::new();
    complains(&run(&scratch, "info nowhere"), 1, &["nowhere"]);
    complains(&run(&scratch, "check nowhere"), 1, &["nowhere"]);
    complains(&run(&scratch, "cp nowhere here"), 1, &["nowhere: ", "No such file"]);
    complains(&run(&scratch, "put nowhere here:x"), 1, &["here:x"]);
    complains(&run(&scratch, "metrics nowhere"), 1, &["nowhere"]);
    complains(&run(&scratch, "umount nowhere"), 1, &["nowhere"]);
    complains(&run(&scratch, "table drop nowhere t"), 1, &["nowhere"]);
    complains(&run(&scratch, "format no/where --size 64M"), 1, &["no/where"]);
    complains(&run(&scratch, "linkbench --store no/where"), 1, &["no/where"]);

    let diary = "dear diary\n".repeat(100_000);
    fs::write(scratch.path("diary"), &diary).unwrap();
    for arguments in [
        "info diary",
        "check diary",
        "scrub diary",
        "linkbench --store diary",
        "table optimize diary",
        "format diary --size 64M",
        "flash-model diary",
        "linkbench --tables page --trace diary",
    ] {
        complains(&run(&scratch, arguments), 1, &["diary"]);
    }
    fs::write(scratch.path("empty"), "").unwrap();
    complains(&run(&scratch, "info empty"), 1, &["empty"]);
    complains(&run(&scratch, "linkbench --size 64M --ids 10 --ack-log diary"), 1, &["diary"]);
    complains(&run(&scratch, "linkbench --verify-acks diary --store diary"), 1, &["diary"]);
    complains(&run(&scratch, "tpcc --size 64M --ack-log diary"), 1, &["diary"]);
    complains(&run(&scratch, "tpcc --verify --store diary"), 1, &["diary"]);
    assert!(fs::read_to_string(scratch.path("diary")).unwrap() == diary, "nothing is lost");
}

#[test]
fn tables_that_are_not_there_and_settings_that_do_not_fit() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("bare")).unwrap();
    succeed(&scratch, "format empty --size 64M");
    for storage in ["empty", "bare"] {
        complains(&run(&scratch, &format!("table defaults {storage} page")), 1, &[storage, "no tables"]);
    }
    // A store holds files too; a directory cannot be checked without tables.
    complains(&run(&scratch, "check bare"), 1, &["bare", "no tables"]);
    succeed(&scratch, "check empty");
    assert!(!scratch.path("bare/control").exists(), "a store was made there");

    let options = VfsOptions { create_size: Some(64 << 20), ..VfsOptions::default() };
    let opened = open_vfs(&scratch.path("store"), &options).unwrap();
    let store = Store::open(opened.vfs(), StoreOptions::default()).unwrap();
    store.create_table("t", TableOptions::default()).unwrap();
    store.create_table("rows", TableOptions::row_compressed(4)).unwrap();
    store.close().unwrap();
    opened.close().unwrap();
    drop(opened);
    // The lines above report space, of which each opening takes some.
    let tables =
        || succeed(&scratch, "info store").split_once("compression").expect("has tables").1.to_owned();
    let before = tables();
    for (arguments, words) in [
        ("table drop store u", ["table u", "none"]),
        ("table optimize store t u", ["table u", "none"]),
        ("table inherit store u", ["table u", "none"]),
        ("table alter store u plain", ["table u", "none"]),
        ("table alter store t plain --level 3", ["--level", "plain"]),
        ("table alter store t plain --algorithm lz4", ["--algorithm", "plain"]),
        ("table alter store t page --key-block-size 8", ["--key-block-size", "page"]),
        ("table alter store rows row --level 10", ["level", "10"]),
        ("table defaults store page --page 5000", ["page_bytes", "5000"]),
    ] {
        complains(&run(&scratch, arguments), 1, &[&["store"], &words[..]].concat());
    }
    assert_eq!(tables(), before, "nothing was changed");
    succeed(&scratch, "table alter store rows row --level 9");
}

#[test]
fn truncated_flipped_and_locked_stores() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    let sound = fs::read(scratch.path("store")).unwrap();
    complains(&run(&scratch, "format store --size 64M"), 1, &["store", "not empty"]);
    complains(&run(&scratch, "format store --size 32M"), 1, &["store"]);
    assert!(fs::read(scratch.path("store")).unwrap() == sound);

    for kept in [sound.len() / 2, 4096, 512, 1] {
        fs::write(scratch.path("cut"), &sound[..kept]).unwrap();
        complains(&run(&scratch, "info cut"), 1, &["cut"]);
    }
    // Any byte that is not zero may flip: then the store is still sound, or the damage is named.
    let written: Vec<usize> = (0..sound.len()).filter(|&at| sound[at] != 0).collect();
    for step in 0..60 {
        let mut flipped = sound.clone();
        flipped[written[step * written.len() / 60]] ^= 0x10;
        fs::write(scratch.path("flipped"), &flipped).unwrap();
        let output = run(&scratch, "check flipped");
        if !output.status.success() {
            complains(&output, 1, &["flipped"]);
        }
    }
    let held = RawDevice::open(&scratch.path("store"), RawOptions::default()).unwrap();
    for arguments in
        ["info store", "check store", "format store --size 64M --force", "linkbench --store store"]
    {
        complains(&run(&scratch, arguments), 1, &["store", "in use"]);
    }
    drop(held);
    succeed(&scratch, "check store");
    succeed(&scratch, "format store --size 32M --force");
}

#[test]
fn directories_without_rights() {
    let scratch = Scratch::new();
    // Not even root can make files there.
    complains(&run(&scratch, "linkbench --store /proc --ids 10"), 1, &["/proc"]);
}

#[test]
fn full_stores_and_disks() {
    let scratch = Scratch::new();
    let distribution = scratch.distribution();
    let arguments = format!("--ids 100000 --seconds 1 --warmup 0 --distribution {}", distribution.display());
    let acks = scratch.path("acks");
    let output = run(
        &scratch,
        &format!("linkbench --store full --size 24M --tables page --ack-log {} {arguments}", acks.display()),
    );
    complains(&output, 1, &["full", "no space"]);
    // Everything acknowledged before is there, and the store is sound.
    succeed(&scratch, "check full");
    succeed(&scratch, &format!("linkbench --verify-acks {} --store full", acks.display()));

    // A host file system without space, where we may mount one.
    let disk = scratch.path("disk");
    fs::create_dir(&disk).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16M", "none"]).arg(&disk).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: a full disk (mounting a small one needs rights)");
        return;
    }
    let mut command = lacuna(&scratch);
    command.args(["linkbench", "--store", "disk/store", "--size", "1G", "--tables", "plain"]);
    let output = command.args(arguments.split_whitespace()).output().unwrap();
    let unmounted = Command::new("umount").arg("-l").arg(&disk).status().unwrap();
    complains(&output, 1, &["disk/store", "no space"]);
    assert!(unmounted.success());
}

#[test]
fn scrubbing_names_the_damaged_file() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    let path = scratch.path("store");
    let data: Vec<u8> = (0..16384_u32).map(|n| (n * n / 7 % 251) as u8).collect();
    let opened = open_vfs(&path, &VfsOptions::default()).unwrap();
    opened.vfs().create("victim", StreamHint::Data).unwrap().write_at(1 << 20, &data).unwrap();
    opened.close().unwrap();
    drop(opened);
    assert!(succeed(&scratch, "scrub store").contains("all sound"));
    assert!(succeed(&scratch, "scrub store --json --rate 1G").contains("\"damage\": []"));

    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(512).position(|window| window == &data[..512]).expect("it is in the store");
    bytes[at + 1000] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let output = run(&scratch, "scrub store");
    complains(&output, 1, &["store", "damaged in 1 places"]);
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(found.contains("file \"victim\" at byte 1048576") && found.contains("checksum"), "{found}");
    let output = run(&scratch, "scrub store --json");
    complains(&output, 1, &["store"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"sectors\": ["));
}
