use std::{path::PathBuf, time::Duration};

use super::{BLOCK_BYTES, Config, Data, Experiment, Measured, run_directory, table};

fn config() -> Config {
    Config {
        // Not the one that waits for statfs to show freed space: others use this file system meanwhile.
        experiments: Experiment::ALL.into_iter().filter(|e| *e != Experiment::Holes).collect(),
        file_bytes: 64 * BLOCK_BYTES,
        trims: vec![1024, 12 << 10],
        data: vec![Data::Random, Data::Zeros],
        threads: 3,
        seconds: Duration::from_millis(30),
        holes: 100,
        copies: true,
        seed: 1,
        quiet: true,
    }
}

/// All measurements, on the file system of temporary files.
fn small(test: &str) -> Option<Vec<Measured>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let dir = std::env::var_os("CARGO_TARGET_DIR").map_or(dir, PathBuf::from);
    let dir = dir.join(format!("trimbench-test-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let result = run_directory(&config(), &dir);
    let left = std::fs::read_dir(&dir).unwrap().count();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(left, 0, "files are left");
    match result {
        Err(error) if format!("{error:#}").contains("not supported") => {
            eprintln!("not tested: trimbench ({error:#})");
            None
        }
        result => Some(result.unwrap()),
    }
}

#[test]
fn every_variant_is_measured() {
    let Some(all) = small("variants") else { return };
    let of = |name: &str| all.iter().filter(|row| row.experiment.starts_with(name)).collect::<Vec<_>>();
    for name in ["beside", "then"] {
        let rows = of(name);
        let variants: Vec<_> = rows.iter().map(|row| (&*row.data, row.trim_bytes)).collect();
        assert_eq!(variants, [("random", 1024), ("random", 12 << 10), ("zeros", 1024), ("zeros", 12 << 10)]);
        assert!(rows.iter().all(|row| row.operations == 64 && row.seconds > 0.0));
    }
    assert_eq!(of("parallel").iter().map(|row| row.threads).collect::<Vec<_>>(), [1, 1, 3, 3]);
    let scans: Vec<_> = of("scan").iter().map(|row| (&*row.experiment, row.operations)).collect();
    assert_eq!(scans, [("scan: load", 64), ("scan: as loaded", 64), ("scan: age", 256), ("scan: aged", 64)]);
    assert!(of("parallel").iter().chain(&of("append")).all(|row| row.operations > 0));
    let text = table(&all);
    assert!(text.contains("beside 1K zeros") && text.contains("parallel read x3"), "{text}");
}

#[test]
fn nonsense_is_refused() {
    assert!(config().check().is_ok());
    for trim in [0, 100, BLOCK_BYTES] {
        assert!(Config { trims: vec![trim], ..config() }.check().is_err(), "{trim}");
    }
    for file_bytes in [0, 1000] {
        assert!(Config { file_bytes, ..config() }.check().is_err(), "{file_bytes}");
    }
}
