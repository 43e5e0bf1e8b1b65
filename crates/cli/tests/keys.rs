//! Encrypted stores on the command line: where keys come from, what is refused and how, and what lies on the disk.

mod support;

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    process::{Output, Stdio},
};

use support::{Scratch, lacuna, run};

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

#[test]
fn a_store_is_read_with_its_key_only() {
    let scratch = Scratch::new();
    store(&scratch);
    for hidden in [MARK, "name-that-nobody-may-read"] {
        assert_eq!(count(&scratch, "s", &hidden[..16]), 0, "{hidden}");
    }
    let name = "s:/name-that-nobody-may-read";
    let read = |with: &str| run(&scratch, &format!("cat {name} {with}"));
    // Without a terminal; where there is one, setsid leaves it.
    let mut alone = std::process::Command::new("setsid");
    alone.arg("-w").arg(env!("CARGO_BIN_EXE_lacuna")).args(["cat", name]).current_dir(scratch.path("."));
    refused(alone.output().unwrap(), "s: the store is encrypted: a key is needed (--key-file, ");
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
    refused(run(&scratch, "key list p"), "p: a key was given, but the store is not encrypted");
}
