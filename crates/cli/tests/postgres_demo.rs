//! The demo where PostgreSQL cannot be set up; `tests/docs/run` runs it where it can.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use crate::support::Scratch;

#[test]
fn a_demo_that_cannot_start_says_why_and_leaves_nothing() {
    let scratch = Scratch::new();
    for name in ["programs", "work", "tmp"] {
        fs::create_dir(scratch.path(name)).unwrap();
    }
    let initdb = "#!/bin/sh\necho 'The files will belong to somebody.'\n\
         echo 'initdb: error: invalid locale settings' >&2\necho 'more' >&2\nexit 1\n";
    for (name, text) in [("initdb", initdb), ("postgres", "#!/bin/sh\n"), ("psql", "#!/bin/sh\n")] {
        let program = scratch.path("programs").join(name);
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut demo = Command::new(env!("CARGO_BIN_EXE_lacuna"));
    demo.args(["postgres-demo", "--dir"]).arg(scratch.path("work"));
    demo.env("PATH", format!("{}:/usr/bin:/bin", scratch.path("programs").display()));
    demo.env("TMPDIR", scratch.path("tmp"));
    let output = demo.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Where root may not become somebody who can run the programs here, that is the reason.
    let reasons =
        ["lacuna: initdb: invalid locale settings\n", "lacuna: initdb: Permission denied (os error 13)\n"];
    let no_user = stderr.contains("there is no user postgres");
    assert!(no_user || reasons.iter().any(|reason| stderr == *reason), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
    for name in ["work", "tmp"] {
        assert_eq!(fs::read_dir(scratch.path(name)).unwrap().count(), 0, "{name}");
    }
}

/// The cluster asks nobody at its sockets for a password.
#[test]
fn nobody_else_reaches_the_server_of_a_demo() {
    // Below a directory that the server's user, where root starts it, may search.
    let directory = tempfile::tempdir().unwrap();
    let open_to_all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), open_to_all.clone()).unwrap();
    let path = |name: &str| directory.path().join(name);
    ["programs", "work", "tmp"].iter().for_each(|name| fs::create_dir(path(name)).unwrap());
    let initdb =
        "#!/bin/sh\necho \"initdb: error: mode $(stat -c %a \"$TMPDIR\"/lacuna-pg-*/sockets)\" >&2\nexit 1\n";
    for (name, text) in [("initdb", initdb), ("postgres", "#!/bin/sh\n"), ("psql", "#!/bin/sh\n")] {
        fs::write(path("programs").join(name), text).unwrap();
        fs::set_permissions(path("programs").join(name), open_to_all.clone()).unwrap();
    }
    let mut demo = Command::new("sh");
    demo.args(["-c", "umask 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_lacuna"), "postgres-demo", "--dir"]);
    demo.arg(path("work")).env("TMPDIR", path("tmp"));
    demo.env("PATH", format!("{}:/usr/bin:/bin", path("programs").display()));
    let output = demo.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("there is no user postgres") {
        eprintln!("SKIPPED: sockets of postgres-demo (root, and no user postgres)");
        return;
    }
    assert_eq!(stderr, "lacuna: initdb: mode 700\n");
}
