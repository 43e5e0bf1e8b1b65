//! Encrypted stores on the command line: where keys come from, what is refused and how, and what lies on the disk.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    process::{Command, Output, Stdio},
};

use crate::support::{Scratch, lacuna, run};

const MARK: &str = "the content that nobody may read";

fn good(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn refused(output: Output, words: &str) {
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert!(stderr.contains(words), "{stderr}");
}

fn key_file(scratch: &Scratch, name: &str, key: &str) {
    fs::write(scratch.path(name), key).unwrap();
    fs::set_permissions(scratch.path(name), fs::Permissions::from_mode(0o600)).unwrap();
}

/// How often `bytes` stand in the file `name`.
fn count(scratch: &Scratch, name: &str, bytes: &str) -> usize {
    let content = fs::read(scratch.path(name)).unwrap();
    content.windows(bytes.len()).filter(|window| *window == bytes.as_bytes()).count()
}

/// A store with a file in it, whose key is in the file `one`.
fn store(scratch: &Scratch) {
    key_file(scratch, "one", "first key\n");
    key_file(scratch, "two", "second key");
    fs::write(scratch.path("plain"), MARK.repeat(5000)).unwrap();
    good(run(scratch, "format s --size 64M --encrypt --key-file one --label mine"));
    good(run(scratch, "put plain s:/name-that-nobody-may-read --key-file one"));
}

/// The program, without a terminal; where there is one, setsid leaves it.
fn without_terminal(scratch: &Scratch) -> Command {
    let mut command = Command::new("setsid");
    command.arg("-w").arg(env!("CARGO_BIN_EXE_lacuna")).current_dir(scratch.path("."));
    command
}

#[test]
fn a_store_is_read_with_its_key_only() {
    let scratch = Scratch::new();
    store(&scratch);
    for hidden in [MARK, "name-that-nobody-may-read"] {
        assert_eq!(count(&scratch, "s", &hidden[..16]), 0, "{hidden}");
    }
    let name = "s:/name-that-nobody-may-read";
    let read = |with: &str| run(&scratch, &format!("cat {name} {with}"));
    refused(
        without_terminal(&scratch).args(["cat", name]).output().unwrap(),
        "s: the store is encrypted: a key is needed (--key-file, ",
    );
    refused(read("--key-file two"), "s: wrong key: it opens none of 1 key slots");
    refused(read("--key-file one --key-fd 0"), "only one of --key-file, --key-command and --key-fd");
    refused(read("--key-file missing"), "missing");
    assert_eq!(good(read("--key-file one")), MARK.repeat(5000));

    let mut by_command = lacuna(&scratch);
    by_command.args(["cat", name, "--key-command", "cat one"]);
    assert_eq!(good(by_command.output().unwrap()), MARK.repeat(5000));
    by_command = lacuna(&scratch);
    by_command.args(["cat", name, "--key-command", "cat one; false"]);
    refused(by_command.output().unwrap(), "--key-command: exit status: 1");

    let mut by_descriptor = lacuna(&scratch);
    by_descriptor.args(["cat", name, "--key-fd=0"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = by_descriptor.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"first key").unwrap();
    assert_eq!(good(child.wait_with_output().unwrap()), MARK.repeat(5000));

    fs::set_permissions(scratch.path("one"), fs::Permissions::from_mode(0o644)).unwrap();
    let warned = read("--key-file one");
    assert!(String::from_utf8_lossy(&warned.stderr).contains("one: others may read or change this key"));
    good(warned);
}

#[test]
fn keys_are_added_removed_and_rotated() {
    let scratch = Scratch::new();
    store(&scratch);
    let opens = |key: &str| run(&scratch, &format!("ls s --key-file {key}")).status.success();
    assert_eq!(good(run(&scratch, "key list s")), "s: key slot 0: file mine\n");
    let added = run(&scratch, "key add s --key-file one --new-key-file two --label theirs");
    assert_eq!(good(added), "s: key slot 1 added\n");
    assert!(opens("one") && opens("two"));
    refused(
        run(&scratch, "key remove s 1 --key-file two"),
        "key slot 1 can be removed only with a key of another slot",
    );
    refused(run(&scratch, "key remove s 5 --key-file two"), "key slot 5 is not in use");
    good(run(&scratch, "key remove s 0 --key-file two"));
    let mut failing = lacuna(&scratch);
    failing.args(["key", "add", "s", "--key-file", "two", "--new-key-command", "false"]);
    refused(failing.output().unwrap(), "--new-key-command: exit status: 1");
    let mut alone = without_terminal(&scratch);
    alone.args(["key", "add", "s", "--key-file", "two"]);
    refused(alone.output().unwrap(), "(--new-key-file, --new-key-command, --new-key-fd)");
    assert!(!opens("one") && opens("two"));
    good(run(&scratch, "key rotate s --key-file two --new-key-file one"));
    assert!(opens("one") && !opens("two"));
    assert_eq!(good(run(&scratch, "key list s")), "s: key slot 1: file\n");
    let listed: serde_json::Value = serde_json::from_str(&good(run(&scratch, "key list s --json"))).unwrap();
    assert_eq!(listed[0]["memory_kib"], 128 << 10);
    good(run(&scratch, "check s --key-file one"));
    assert!(good(run(&scratch, "info s --key-file one")).contains("data is encrypted"));
}

#[test]
fn check_and_scrub_need_no_key_and_a_plain_store_takes_none() {
    let scratch = Scratch::new();
    store(&scratch);
    assert!(good(run(&scratch, "check s --without-key")).ends_with("s: sound\n"));
    assert!(good(run(&scratch, "scrub s --without-key")).contains("MB read, all sound"));
    assert!(good(run(&scratch, "scrub s --key-file one")).contains("MB read, all sound"));
    good(run(&scratch, "rescue s saved --key-file one"));
    assert_eq!(
        fs::read_to_string(scratch.path("saved/name-that-nobody-may-read")).unwrap(),
        MARK.repeat(5000)
    );
    refused(run(&scratch, "format p --size 64M --key-file one"), "p: a key is given, but not --encrypt");
    good(run(&scratch, "format p --size 64M"));
    refused(run(&scratch, "ls p --key-file one"), "p: a key was given, but the store is not encrypted");
    refused(run(&scratch, "key list p"), "p: not encrypted, so it has no keys");
}

/// The tables of a directory and of a store, which is not encrypted itself.
#[test]
fn tables_have_keys_of_their_own() {
    const RUN: &str = "--ids 1000 --requesters 2 --seconds 1 --warmup 0 --pool 16M --size 512M --tables page \
        --distribution distribution";
    let scratch = Scratch::new();
    key_file(&scratch, "one", "first key\n");
    key_file(&scratch, "two", "second key");
    scratch.distribution();
    fs::create_dir(scratch.path("dir")).unwrap();
    for place in ["dir", "s"] {
        refused(
            run(&scratch, &format!("linkbench --store {place} {RUN} --encrypt-tables")),
            "--encrypt-tables: tables that stay need a key that is known (--tables-key-file)",
        );
        let with = "--tables-key-file one --encrypt-tables";
        good(run(&scratch, &format!("linkbench --store {place} {RUN} {with}")));
        refused(
            run(&scratch, &format!("check {place} --tables-key-file two")),
            "wrong key: it opens none of 1 key slots",
        );
        assert!(good(run(&scratch, &format!("check {place} --tables-key-file one"))).contains("sound"));
        let info = good(run(&scratch, &format!("info {place} --json --tables-key-file one")));
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        let tables = info["tables"].as_array().unwrap();
        assert!(!tables.is_empty() && tables.iter().all(|table| table["encrypted"] == true), "{info}");
        let rotated = run(
            &scratch,
            &format!("key --tables rotate {place} --tables-key-file one --new-key-file two --label mine"),
        );
        assert_eq!(good(rotated), format!("{place}: key slot 0 of the tables has the new key\n"));
        assert_eq!(
            good(run(&scratch, &format!("key list {place} --tables"))),
            format!("{place}: key slot 0: file mine\n")
        );
        let name = tables[0]["name"].as_str().unwrap();
        let plain = run(&scratch, &format!("table encrypt {place} {name} off --tables-key-file two"));
        assert_eq!(good(plain), format!("{place}: {name}: not encrypted from now on\n"));
        good(run(&scratch, &format!("table optimize {place} {name} --tables-key-file two")));
        assert!(good(run(&scratch, &format!("check {place} --tables-key-file two"))).contains("sound"));
    }
    // Tables that were made without.
    good(run(&scratch, &format!("linkbench --store t {RUN}")));
    refused(run(&scratch, "check t --tables-key-file one"), "its tables have no keys, but one was given");
    refused(run(&scratch, "key list t --tables"), "its tables have no keys");
    let made = run(&scratch, "key create t --tables --tables-key-file one --label first");
    assert_eq!(good(made), "t: tables can be encrypted; key slot 0 has the key\n");
    let mut alone = std::process::Command::new("setsid");
    alone.arg("-w").arg(env!("CARGO_BIN_EXE_lacuna")).args(["check", "t"]).current_dir(scratch.path("."));
    refused(alone.output().unwrap(), "no key was given (--tables-key-file, ");
    assert!(good(run(&scratch, "check t --tables-key-file one")).contains("sound"));
}

#[test]
fn a_copy_between_stores_has_a_key_for_each() {
    let scratch = Scratch::new();
    store(&scratch);
    good(run(&scratch, "format other --size 64M --encrypt --key-file two"));
    good(run(&scratch, "format open --size 64M"));
    let name = "name-that-nobody-may-read";
    let copy = |arguments: &str| run(&scratch, &format!("cp {arguments}"));
    good(copy(&format!("s:/{name} other:/a --from-key-file one --to-key-file two")));
    good(copy(&format!("s:/{name} other:/b --from-key-file one --key-file two")));
    good(copy("other:/b s:/b --to-key-file one --key-command cat<two"));
    good(copy("other:/a open:/a --from-key-file two"));
    good(copy("open:/a s:/a --to-key-file one"));
    for (path, key) in [("other:/a", "two"), ("other:/b", "two"), ("s:/a", "one"), ("s:/b", "one")] {
        assert!(good(run(&scratch, &format!("cat {path} --key-file {key}"))).starts_with(MARK), "{path}");
    }
    refused(copy(&format!("s:/{name} other:/c --key-file two")), "s: ");
    refused(copy(&format!("s:/{name} other:/c --from-key-file two --to-key-file two")), "s: ");
    refused(copy(&format!("s:/{name} open:/c --from-key-file one --to-key-file two")), "open: ");
    refused(copy(&format!("s:/{name} out --to-key-file one")), "out: not in a store, and needs no key");
    assert!(!scratch.path("out").exists());
}
