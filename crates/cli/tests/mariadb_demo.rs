//! The demo where MariaDB cannot be set up; `tests/docs/run` runs it where it can.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use crate::support::Scratch;

#[test]
fn a_demo_that_cannot_start_says_why_and_leaves_nothing() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("programs")).unwrap();
    fs::create_dir(scratch.path("work")).unwrap();
    // Refuses as MariaDB's script does where the host's name has no address.
    let install = "#!/bin/sh\n\
         case \" $* \" in *' --force '*) echo; echo 'no password file'; exit 1;; esac\n\
         echo 'Neither host could be looked up'; exit 1\n";
    for (name, text) in [("mariadb-install-db", install), ("mariadbd", "#!/bin/sh\nexit 1\n")] {
        let program = scratch.path("programs").join(name);
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut demo = Command::new(env!("CARGO_BIN_EXE_lacuna"));
    demo.args(["mariadb-demo", "--dir"]).arg(scratch.path("work"));
    demo.env("PATH", format!("{}:/usr/bin:/bin", scratch.path("programs").display()));
    let output = demo.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "lacuna: mariadb-install-db: no password file\n",
        "host names must not matter, and the reason must be told"
    );
    assert_eq!(fs::read_dir(scratch.path("work")).unwrap().count(), 0);
}

/// The server's root has no password: its socket is all that others are kept from.
#[test]
fn nobody_else_reaches_the_server_of_a_demo() {
    let scratch = Scratch::new();
    ["programs", "work", "tmp"].iter().for_each(|name| fs::create_dir(scratch.path(name)).unwrap());
    let server = "#!/bin/sh\n\
         for argument; do\n\
         case $argument in --socket=*) stat -c %a \"$(dirname \"${argument#--socket=}\")\" >\"$TMPDIR/mode\";; esac\n\
         done; exit 1\n";
    for (name, text) in [("mariadb-install-db", "#!/bin/sh\n"), ("mariadbd", server)] {
        let program = scratch.path("programs").join(name);
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut demo = Command::new("sh");
    demo.args(["-c", "umask 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_lacuna"), "mariadb-demo", "--dir"]);
    demo.arg(scratch.path("work")).env("TMPDIR", scratch.path("tmp"));
    demo.env("PATH", format!("{}:/usr/bin:/bin", scratch.path("programs").display()));
    let output = demo.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let mode = fs::read_to_string(scratch.path("tmp/mode")).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(mode.trim(), "700");
}
