use std::collections::BTreeSet;

use super::*;

fn read(vfs: &SimVfs, name: &str, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    vfs.open(name, StreamHint::Data).unwrap().read_at(0, &mut buf).unwrap();
    buf
}

/// The distinct outcomes of many crashes of the same run.
fn outcomes<T: Ord>(run: impl Fn(&SimVfs), look: impl Fn(&SimVfs) -> T) -> BTreeSet<T> {
    (0..400)
        .map(|seed| {
            let vfs = SimVfs::new(seed);
            run(&vfs);
            vfs.power_cycle();
            look(&vfs)
        })
        .collect()
}

fn create(vfs: &SimVfs, name: &str) -> Arc<dyn File> {
    vfs.create(name, StreamHint::Data).unwrap()
}

#[test]
fn synced_files_survive_whole() {
    let all = outcomes(
        |vfs| {
            let file = create(vfs, "a");
            vfs.sync().unwrap();
            file.write_at(0, &[1; 4096]).unwrap();
            file.punch(0, 512).unwrap();
            file.set_len(8192).unwrap();
            file.sync().unwrap();
        },
        |vfs| {
            let len = vfs.open("a", StreamHint::Data).unwrap().len().unwrap();
            (len, read(vfs, "a", 8192))
        },
    );
    let mut expected = vec![0; 8192];
    expected[512..4096].fill(1);
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [(8192, expected)]);
}

#[test]
fn a_name_is_durable_only_after_a_sync_of_the_place() {
    let run = |vfs: &SimVfs| {
        create(vfs, "old");
        vfs.sync().unwrap();
        create(vfs, "new").sync().unwrap();
        vfs.rename("new", "old").unwrap();
        create(vfs, "last");
    };
    let all = outcomes(run, |vfs| vfs.list().unwrap());
    let names: BTreeSet<Vec<String>> = [&["old"][..], &["new", "old"], &["old"], &["last", "old"]]
        .iter()
        .map(|names| names.iter().map(|name| (*name).to_owned()).collect())
        .collect();
    assert_eq!(all, names);
}

#[test]
fn unsynced_pages_are_lost_torn_and_out_of_order() {
    let run = |vfs: &SimVfs| {
        let (a, b) = (create(vfs, "a"), create(vfs, "b"));
        a.set_len(4096).unwrap();
        b.set_len(4096).unwrap();
        vfs.sync().unwrap();
        a.write_at(0, &[1; 4096]).unwrap();
        b.write_at(0, &[2; 4096]).unwrap();
    };
    let all = outcomes(run, |vfs| {
        let first_bytes = |name| read(vfs, name, 4096).into_iter().step_by(512).collect::<Vec<u8>>();
        (first_bytes("a"), first_bytes("b"))
    });
    let none = vec![0; 8];
    assert!(all.contains(&(none.clone(), none.clone())));
    assert!(all.contains(&(vec![1; 8], vec![2; 8])));
    assert!(all.contains(&(vec![1; 8], none.clone())));
    assert!(all.contains(&(none, vec![2; 8])), "a later write never survived an earlier one");
    assert!(all.iter().any(|(a, _)| a.contains(&0) && a.contains(&1)), "no page was torn");
}

#[test]
fn an_atomic_write_is_kept_or_lost_and_others_are_torn_beside_it() {
    let all: BTreeSet<_> = (0..400)
        .map(|seed| {
            let vfs = SimVfs::with_atomic_writes(seed, AtomicWrites { bytes_min: 1024, bytes_max: 4096 });
            let file = create(&vfs, "a");
            file.set_len(8192).unwrap();
            vfs.sync().unwrap();
            file.write_atomic(0, &[1; 4096]).unwrap();
            file.write_at(4096, &[2; 4096]).unwrap();
            vfs.power_cycle();
            let found = read(&vfs, "a", 8192).into_iter().step_by(512).collect::<Vec<u8>>();
            (found[..8].to_vec(), found[8..].to_vec())
        })
        .collect();
    let atomic: BTreeSet<_> = all.iter().map(|(atomic, _)| atomic.clone()).collect();
    assert_eq!(atomic, BTreeSet::from([vec![0; 8], vec![1; 8]]));
    assert!(all.iter().any(|(_, other)| other.contains(&0) && other.contains(&2)), "no page was torn");
}

#[test]
fn only_what_is_offered_is_written_atomically() {
    let vfs = SimVfs::with_atomic_writes(1, AtomicWrites { bytes_min: 1024, bytes_max: 4096 });
    let file = create(&vfs, "a");
    for (offset, len) in [(0, 512), (0, 8192), (0, 1536), (512, 1024), (2048, 4096)] {
        let refused = file.write_atomic(offset, &vec![1; len]);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{len} bytes at {offset}");
    }
    assert_eq!(file.len().unwrap(), 0);
    for (offset, len) in [(0, 1024), (1024, 1024), (2048, 2048), (4096, 4096)] {
        file.write_atomic(offset, &vec![1; len]).unwrap();
    }
    assert!(create(&SimVfs::new(1), "a").write_atomic(0, &[1; 4096]).is_err());
}

#[test]
fn an_unsynced_length_may_be_old_new_or_between() {
    let run = |vfs: &SimVfs| {
        let file = create(vfs, "a");
        vfs.sync().unwrap();
        file.write_at(0, &[1; 512]).unwrap();
        file.write_at(512, &[2; 512]).unwrap();
    };
    let all = outcomes(run, |vfs| {
        let len = vfs.open("a", StreamHint::Data).unwrap().len().unwrap();
        let past_end = read(vfs, "a", 4096).split_off(len as usize);
        assert!(past_end.iter().all(|byte| *byte == 0), "data past the end");
        len
    });
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [0, 512, 1024]);
}

#[test]
fn a_removed_file_may_come_back_whole() {
    let run = |vfs: &SimVfs| {
        create(vfs, "a").write_at(0, &[7; 512]).unwrap();
        vfs.sync().unwrap();
        vfs.remove("a").unwrap();
    };
    let all = outcomes(run, |vfs| {
        let names = vfs.list().unwrap();
        assert!(names.is_empty() || read(vfs, "a", 512) == [7; 512]);
        names
    });
    assert_eq!(all.len(), 2);
}

#[test]
fn the_power_goes_in_the_chosen_operation_and_handles_die() {
    let vfs = SimVfs::new(1);
    let file = create(&vfs, "a");
    vfs.sync().unwrap();
    assert_eq!(vfs.ops(), 2);
    vfs.set_cut_after(2);
    let write = BatchOp::Write { file: file.id(), offset: 0, data: &[1; 512] };
    assert!(matches!(vfs.write_batch(&[write, write, write]), Err(Error::PowerCut)));
    assert_eq!(vfs.ops(), 4);
    assert!(matches!(file.len(), Err(Error::PowerCut)));
    assert!(matches!(vfs.list(), Err(Error::PowerCut)));
    vfs.power_cycle();
    assert!(matches!(file.len(), Err(Error::PowerCut)), "a handle outlived the power cut");
    vfs.open("a", StreamHint::Data).unwrap().len().unwrap();
}

#[test]
fn a_kill_keeps_the_cache_and_a_later_cut_takes_it() {
    let lost = outcomes(
        |vfs| {
            let file = create(vfs, "f");
            vfs.sync().unwrap();
            vfs.set_cut_after(1);
            assert!(file.write_at(0, &[1; SECTOR]).is_err());
            vfs.kill();
            assert!(matches!(file.len(), Err(Error::PowerCut)), "a handle of the ended process");
            assert_eq!(read(vfs, "f", SECTOR), [1; SECTOR]);
        },
        |vfs| read(vfs, "f", SECTOR)[0],
    );
    assert_eq!(lost, BTreeSet::from([0, 1]));
}

/// As `DirVfs`, which syncs the files that it has written.
#[test]
fn a_sync_of_the_next_life_leaves_what_it_has_not_written() {
    let run = |vfs: &SimVfs, writes_again: bool, syncs_file: bool| {
        let file = create(vfs, "f");
        file.set_len(2 * SECTOR as u64).unwrap();
        vfs.sync().unwrap();
        file.write_at(0, &[1; SECTOR]).unwrap();
        vfs.kill();
        let file = vfs.open("f", StreamHint::Data).unwrap();
        if writes_again {
            file.write_at(SECTOR as u64, &[2; SECTOR]).unwrap();
        }
        if syncs_file {
            file.sync().unwrap();
        }
        create(vfs, "g");
        vfs.sync().unwrap();
    };
    for (writes_again, syncs_file, want) in
        [(false, false, &[0, 1][..]), (true, false, &[1]), (false, true, &[1])]
    {
        let found = outcomes(|vfs| run(vfs, writes_again, syncs_file), |vfs| read(vfs, "f", SECTOR)[0]);
        assert_eq!(found, want.iter().copied().collect(), "{writes_again} {syncs_file}");
    }
    let removed = |vfs: &SimVfs| {
        create(vfs, "f");
        vfs.sync().unwrap();
        vfs.open("f", StreamHint::Data).unwrap().write_at(0, &[1; SECTOR]).unwrap();
        vfs.kill();
        vfs.remove("f").unwrap();
        vfs.sync().unwrap();
    };
    assert_eq!(outcomes(removed, |vfs| vfs.list().unwrap().len()), [0].into());
}

#[test]
fn a_failed_sync_is_not_made_good_by_a_later_one() {
    let run = |vfs: &SimVfs| {
        let file = create(vfs, "a");
        file.set_len(512).unwrap();
        vfs.sync().unwrap();
        file.write_at(0, &[1; 512]).unwrap();
        vfs.fail_sync();
        assert!(matches!(file.sync(), Err(Error::Io { .. })));
        vfs.heal();
        file.sync().unwrap();
    };
    assert_eq!(outcomes(run, |vfs| read(vfs, "a", 512)[0]).len(), 2);
}

#[test]
fn what_is_written_again_after_a_failed_sync_is_durable_with_its_length() {
    let run = |vfs: &SimVfs| {
        let file = create(vfs, "a");
        vfs.sync().unwrap();
        file.write_at(0, &[1; 1024]).unwrap();
        vfs.fail_sync();
        assert!(matches!(file.sync(), Err(Error::Io { .. })));
        vfs.heal();
        file.write_at(512, &[2; 512]).unwrap();
        file.sync().unwrap();
    };
    let outcome = |vfs: &SimVfs| read(vfs, "a", 1024)[512];
    assert_eq!(outcomes(run, outcome), [2].into());
}

#[test]
fn failures_are_injected_and_healed() {
    let vfs = SimVfs::new(1);
    let file = create(&vfs, "a");
    vfs.fail_writes_after(1);
    assert!(matches!(file.write_at(0, &[1; 512]), Err(Error::Io { .. })));
    vfs.heal();
    vfs.enospc();
    assert!(matches!(file.write_at(0, &[1; 512]), Err(Error::Full { .. })));
    vfs.heal();
    file.write_at(0, &[1; 512]).unwrap();
    vfs.sync().unwrap();
    vfs.flip_bit("a", 5, 1);
    assert_eq!(read(&vfs, "a", 512)[5], 3);
}

#[test]
fn the_same_seed_has_the_same_outcome() {
    let run = |seed| {
        let vfs = SimVfs::new(seed);
        let file = create(&vfs, "a");
        file.set_len(1 << 16).unwrap();
        vfs.sync().unwrap();
        for round in 0..32_u64 {
            file.write_at(round * 1024, &[round as u8 + 1; 4096]).unwrap();
        }
        vfs.power_cycle();
        read(&vfs, "a", 1 << 16)
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
