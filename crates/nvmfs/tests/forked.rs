//! A process that forks while a store is open. A program of its own with one test: no other thread may run.

use std::{path::Path, sync::Arc};

use lacuna_device::{StreamHint, Vfs};
use lacuna_ftl::{Lba, Op, Stream, Work};
use lacuna_nvmfs::{CheckDepth, FormatOptions, Nvmfs, OpenedVfs, VfsOptions, format_path, open_vfs};
use lacuna_sim::forked;

fn open(path: &Path) -> Arc<Nvmfs> {
    match open_vfs(path, &VfsOptions::default()).unwrap() {
        OpenedVfs::Store(vfs) => vfs,
        _ => unreachable!("it is a store"),
    }
}

#[test]
fn a_forked_process_neither_changes_the_store_nor_waits_for_threads_that_it_has_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    format_path(&path, Some(64 << 20), &FormatOptions::default()).unwrap();
    let vfs = open(&path);
    let file = vfs.create("a", StreamHint::Data).unwrap();
    file.write_at(0, &[1; 4096]).unwrap();
    let inner = vfs.directory("d", true).unwrap();
    type Entry = (&'static str, fn(&Nvmfs) -> bool);
    let entries: [Entry; 7] = [
        ("accept", |vfs| {
            vfs.ftl().write_batch(&[Op::Trim { lba: Lba(1 << 40), sectors: 1 }], Stream::Data).is_err()
        }),
        ("flush", |vfs| vfs.ftl().flush().is_err()),
        ("flush_through", |vfs| vfs.ftl().flush_through(vfs.ftl().last_seq()).is_err()),
        ("close of the ftl", |vfs| vfs.ftl().close().is_err()),
        ("close", |vfs| vfs.close().is_err()),
        ("checkpoint", |vfs| vfs.ftl().checkpoint().is_err()),
        ("step", |vfs| vfs.ftl().step(Work::Due).is_err()),
    ];
    for (what, entry) in entries {
        assert!(forked(|| entry(&vfs)), "{what}");
    }
    let mut owned = Some((file, inner, vfs));
    assert!(forked(|| owned.take().is_some()), "drop");
    let (file, inner, vfs) = owned.expect("this process still has it");
    file.write_at(0, &[2; 4096]).unwrap();
    drop((file, inner));
    vfs.close().unwrap();
    drop(vfs);
    let vfs = open(&path);
    assert!(vfs.check(CheckDepth::Payload).unwrap().is_clean());
    let mut found = [0; 4096];
    vfs.open("a", StreamHint::Data).unwrap().read_at(0, &mut found).unwrap();
    assert!(found == [2; 4096]);
}
