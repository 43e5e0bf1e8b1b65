//! A store with a log device, through the program.

use std::fs;

use crate::support::{Scratch, run, succeed};

/// What a command that must fail says, one line.
fn refused(scratch: &Scratch, arguments: &str) -> String {
    let output = run(scratch, arguments);
    assert_eq!(output.status.code(), Some(1), "lacuna {arguments}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn a_store_opens_with_its_log_device_or_expressly_without() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), "text").unwrap();
    let missing = refused(&scratch, "format store --size 64M --log-device log");
    assert!(missing.contains("--log-size"), "{missing}");
    assert!(!scratch.path("store").exists());
    succeed(&scratch, "format store --size 64M --log-device log --log-size 1M");
    let taken = refused(&scratch, "format other --size 64M --log-device log");
    assert!(taken.contains("not empty"), "{taken}");

    succeed(&scratch, "put file store:/file --log-device log");
    let info = succeed(&scratch, "--log-device log info store");
    assert!(info.contains("log device"), "{info}");
    assert!(succeed(&scratch, "check store --log-device=log").contains("sound"));
    for command in ["info store", "check store", "cat store:/file"] {
        let none = refused(&scratch, command);
        assert!(none.contains("--without-log-device"), "{none}");
    }
    succeed(&scratch, "format plain --size 64M");
    let needless = refused(&scratch, "info plain --log-device log");
    assert!(needless.contains("the store has none"), "{needless}");

    // Who only looks without it does not give it up: what it holds would be lost.
    for command in [
        "check store",
        "info store",
        "scrub store",
        "quota store",
        "ls store:/",
        "cat store:/file",
        "get store:/file copy",
        "cp store:/file copy",
    ] {
        succeed(&scratch, &format!("{command} --without-log-device"));
        assert_eq!(succeed(&scratch, "cat store:/file --log-device log"), "text", "{command}");
    }
    fs::write(scratch.path("new"), vec![0; 1 << 20]).unwrap();
    let unasked = refused(&scratch, "put file store:/other --new-log-device new");
    assert!(unasked.contains("--without-log-device"), "{unasked}");
    // It is lost; what was closed is there. Then the old one is refused, and a new one taken.
    succeed(&scratch, "put file store:/other --without-log-device");
    assert_eq!(succeed(&scratch, "cat store:/file"), "text");
    let looks = refused(&scratch, "info store --new-log-device new");
    assert!(looks.contains("only read"), "{looks}");
    succeed(&scratch, "put file store:/third --new-log-device new");
    let old = refused(&scratch, "cat store:/file --log-device log");
    assert!(old.contains("earlier state"), "{old}");
    assert_eq!(succeed(&scratch, "cat store:/file --log-device new"), "text");
    assert!(succeed(&scratch, "check store --log-device new").contains("sound"));
}

#[test]
fn only_one_log_device_is_named_on_either_side_of_the_command() {
    let scratch = Scratch::new();
    succeed(&scratch, "format store --size 64M");
    let options = ["--log-device log", "--without-log-device", "--new-log-device new"];
    for (before, after) in options.iter().flat_map(|before| options.map(|after| (*before, after))) {
        if before == after {
            continue;
        }
        for line in [format!("{before} check store {after}"), format!("{before} {after} check store")] {
            let output = run(&scratch, &line);
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && said.contains("cannot be used"), "{line}: {said}");
        }
    }
    for option in ["--log-device", "--new-log-device", "--key-file", "--tables-key-fd"] {
        for line in
            [format!("{option} 1 check store {option}=2"), format!("{option}=1 {option} 2 check store")]
        {
            let output = run(&scratch, &line);
            let said = String::from_utf8(output.stderr).unwrap();
            let is_refused =
                output.status.code() == Some(2) && said.contains("cannot be used multiple times");
            assert!(is_refused && said.contains(option) && said.lines().count() == 1, "{line}: {said}");
        }
    }
}

/// Whoever forgets to mount the disk of the log device, or names another file, changes nothing.
#[test]
fn a_log_device_that_is_not_there_is_named() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), "text").unwrap();
    succeed(&scratch, "format store --size 64M --log-device log --log-size 1M");
    succeed(&scratch, "put file store:/file --log-device log");
    fs::rename(scratch.path("log"), scratch.path("away")).unwrap();
    fs::write(scratch.path("empty"), vec![0; 1 << 20]).unwrap();
    fs::create_dir(scratch.path("dir")).unwrap();
    let store = fs::read(scratch.path("store")).unwrap();
    for command in
        ["info store", "check store", "cat store:/file", "put file store:/other", "mount store dir"]
    {
        let missing = refused(&scratch, &format!("{command} --log-device log"));
        assert!(missing.contains("/log: ") && missing.contains("No such file"), "{missing}");
        let empty = refused(&scratch, &format!("{command} --log-device empty"));
        assert!(empty.contains("/empty: "), "{empty}");
    }
    assert!(!scratch.path("log").exists());
    assert!(fs::read(scratch.path("store")).unwrap() == store);
    assert_eq!(succeed(&scratch, "cat store:/file --log-device away"), "text");
}

/// It belongs to one of them, and does after somebody has looked at another one with it.
#[test]
fn looking_at_a_copy_takes_no_log_device_away() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), "text").unwrap();
    succeed(&scratch, "format store --size 64M --log-device log --log-size 1M");
    succeed(&scratch, "put file store:/file --log-device log");
    fs::copy(scratch.path("store"), scratch.path("copy")).unwrap();
    let contents = || ["store", "copy", "log"].map(|name| fs::read(scratch.path(name)).unwrap());
    let before = contents();
    for command in ["check", "info", "scrub", "quota"] {
        succeed(&scratch, &format!("{command} copy --log-device log"));
        assert!(contents() == before, "{command}");
    }
    assert_eq!(succeed(&scratch, "cat store:/file --log-device log"), "text");
    succeed(&scratch, "put file store:/other --log-device log");
    let before = contents();
    for command in ["check", "info", "scrub", "quota"] {
        let old = refused(&scratch, &format!("{command} copy --log-device log"));
        assert!(old.contains("an old copy of the store is here"), "{command}: {old}");
        assert!(contents() == before, "{command}");
    }
}

#[test]
fn a_log_device_in_memory_says_that_it_is_gone_with_the_power() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        return eprintln!("SKIPPED: no /dev/shm");
    };
    let (scratch, log) = (Scratch::new(), directory.path().join("log"));
    let format = format!("format store --size 64M --log-size 1M --log-device {}", log.display());
    let output = run(&scratch, &format);
    assert!(output.status.success());
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.contains("gone with the power"), "{warning}");
    let info = succeed(&scratch, &format!("info store --log-device {}", log.display()));
    assert!(info.contains("GONE WITH THE POWER"), "{info}");
}
