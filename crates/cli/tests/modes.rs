//! What the program writes data into is for its owner alone, whatever the umask.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use crate::support::{Scratch, succeeded};

/// Runs the program under a umask.
fn succeed_with_umask(scratch: &Scratch, mask: &str, arguments: &str) {
    let program = env!("CARGO_BIN_EXE_lacuna");
    let mut command = Command::new("sh");
    command.current_dir(scratch.path(".")).args(["-c", &format!("umask {mask}; exec {program} {arguments}")]);
    succeeded(arguments, command.output().unwrap());
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn nobody_else_reads_what_the_program_writes() {
    for mask in ["0", "022"] {
        let scratch = Scratch::new();
        let run = |arguments: &str| succeed_with_umask(&scratch, mask, arguments);
        let distribution = scratch.distribution();
        let linkbench = format!(
            "linkbench --ids 500 --seconds 1 --warmup 0 --tables page --distribution {}",
            distribution.display()
        );
        fs::create_dir(scratch.path("bare")).unwrap();
        run("format store --size 64M");
        run(&format!("{linkbench} --store bare --ack-log acks --trace trace"));
        run("table optimize bare");
        let tables: Vec<_> =
            fs::read_dir(scratch.path("bare")).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(tables.len() > 3, "{tables:?}");
        tables.iter().for_each(|file| assert_eq!(mode(&file.path()), 0o600, "{file:?}"));
        for entry in fs::read_dir(scratch.path(".")).unwrap().map(|entry| entry.unwrap()) {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_file() && name != "distribution" {
                assert_eq!(mode(&entry.path()), 0o600, "{name}");
            }
        }
        assert!(["store", "acks"].iter().all(|name| scratch.path(name).exists()));
    }
}
