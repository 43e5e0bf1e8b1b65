//! Programs that have the library and were not started by `lacuna run` are left alone.

use std::{env, path::PathBuf, process::Command};

/// Beside the program of this test, for which it was built.
fn library() -> PathBuf {
    let own = env::current_exe().expect("this test");
    own.with_file_name("liblacuna_preload.so")
}

#[test]
fn programs_that_are_not_meant_are_left_alone() {
    let library = library();
    assert!(library.is_file(), "{} is not there", library.display());
    // Another process, and one that had this number once.
    let others = [None, Some("3 4 1 1"), Some("3 4 5"), Some("nonsense"), Some("")];
    for meant in others {
        let mut program = Command::new("sh");
        program.args(["-c", "export LACUNA_RUN=\"${MEANT-3 4 $$ 1}\"; exec cat /proc/self/maps"]);
        program.env("LD_PRELOAD", &library).env_remove("MEANT").env_remove("LACUNA_RUN");
        if let Some(meant) = meant {
            program.env("MEANT", meant);
        }
        let output = program.output().expect("starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.is_empty(), "{meant:?}: {told}");
        let maps = String::from_utf8_lossy(&output.stdout);
        assert!(maps.contains("liblacuna_preload.so"), "{meant:?}: it was not loaded");
    }
}
