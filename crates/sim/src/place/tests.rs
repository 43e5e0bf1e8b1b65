use std::collections::BTreeSet;

use super::*;

fn read(place: &SimPlace, name: &str, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    place.open(name, StreamHint::Data).unwrap().read_at(0, &mut buf).unwrap();
    buf
}

/// The distinct outcomes of many crashes of the same run.
fn outcomes<T: Ord>(run: impl Fn(&SimPlace), look: impl Fn(&SimPlace) -> T) -> BTreeSet<T> {
    (0..400)
        .map(|seed| {
            let place = SimPlace::new(seed);
            run(&place);
            place.power_cycle();
            look(&place)
        })
        .collect()
}

fn create(place: &SimPlace, name: &str) -> Arc<dyn File> {
    place.create(name, StreamHint::Data).unwrap()
}

#[test]
fn synced_files_survive_whole() {
    let all = outcomes(
        |place| {
            let file = create(place, "a");
            place.sync().unwrap();
            file.write_at(0, &[1; 4096]).unwrap();
            file.punch(0, 512).unwrap();
            file.set_len(8192).unwrap();
            file.sync().unwrap();
        },
        |place| {
            let len = place.open("a", StreamHint::Data).unwrap().len().unwrap();
            (len, read(place, "a", 8192))
        },
    );
    let mut expected = vec![0; 8192];
    expected[512..4096].fill(1);
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [(8192, expected)]);
}

#[test]
fn a_name_is_durable_only_after_a_sync_of_the_place() {
    let run = |place: &SimPlace| {
        create(place, "old");
        place.sync().unwrap();
        create(place, "new").sync().unwrap();
        place.rename("new", "old").unwrap();
        create(place, "last");
    };
    let all = outcomes(run, |place| place.list().unwrap());
    let names: BTreeSet<Vec<String>> = [&["old"][..], &["new", "old"], &["old"], &["last", "old"]]
        .iter()
        .map(|names| names.iter().map(|name| (*name).to_owned()).collect())
        .collect();
    assert_eq!(all, names);
}

#[test]
fn unsynced_pages_are_lost_torn_and_out_of_order() {
    let run = |place: &SimPlace| {
        let (a, b) = (create(place, "a"), create(place, "b"));
        a.set_len(4096).unwrap();
        b.set_len(4096).unwrap();
        place.sync().unwrap();
        a.write_at(0, &[1; 4096]).unwrap();
        b.write_at(0, &[2; 4096]).unwrap();
    };
    let all = outcomes(run, |place| {
        let first_bytes = |name| read(place, name, 4096).into_iter().step_by(512).collect::<Vec<u8>>();
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
fn an_unsynced_length_may_be_old_new_or_between() {
    let run = |place: &SimPlace| {
        let file = create(place, "a");
        place.sync().unwrap();
        file.write_at(0, &[1; 512]).unwrap();
        file.write_at(512, &[2; 512]).unwrap();
    };
    let all = outcomes(run, |place| {
        let len = place.open("a", StreamHint::Data).unwrap().len().unwrap();
        let past_end = read(place, "a", 4096).split_off(len as usize);
        assert!(past_end.iter().all(|byte| *byte == 0), "data past the end");
        len
    });
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [0, 512, 1024]);
}

#[test]
fn a_removed_file_may_come_back_whole() {
    let run = |place: &SimPlace| {
        create(place, "a").write_at(0, &[7; 512]).unwrap();
        place.sync().unwrap();
        place.remove("a").unwrap();
    };
    let all = outcomes(run, |place| {
        let names = place.list().unwrap();
        assert!(names.is_empty() || read(place, "a", 512) == [7; 512]);
        names
    });
    assert_eq!(all.len(), 2);
}

#[test]
fn the_power_goes_in_the_chosen_operation_and_handles_die() {
    let place = SimPlace::new(1);
    let file = create(&place, "a");
    place.sync().unwrap();
    assert_eq!(place.ops(), 2);
    place.set_cut_after(2);
    let write = BatchOp::Write { file: file.id(), offset: 0, data: &[1; 512] };
    assert!(matches!(place.write_batch(&[write, write, write]), Err(Error::PowerCut)));
    assert_eq!(place.ops(), 4);
    assert!(matches!(file.len(), Err(Error::PowerCut)));
    assert!(matches!(place.list(), Err(Error::PowerCut)));
    place.power_cycle();
    assert!(matches!(file.len(), Err(Error::PowerCut)), "a handle outlived the power cut");
    place.open("a", StreamHint::Data).unwrap().len().unwrap();
}

#[test]
fn a_kill_keeps_the_cache_and_a_later_cut_takes_it() {
    let lost = outcomes(
        |place| {
            let file = create(place, "f");
            place.sync().unwrap();
            place.set_cut_after(1);
            assert!(file.write_at(0, &[1; SECTOR]).is_err());
            place.kill();
            assert!(matches!(file.len(), Err(Error::PowerCut)), "a handle of the ended process");
            assert_eq!(read(place, "f", SECTOR), [1; SECTOR]);
        },
        |place| read(place, "f", SECTOR)[0],
    );
    assert_eq!(lost, BTreeSet::from([0, 1]));
}

#[test]
fn a_failed_sync_is_not_made_good_by_a_later_one() {
    let run = |place: &SimPlace| {
        let file = create(place, "a");
        file.set_len(512).unwrap();
        place.sync().unwrap();
        file.write_at(0, &[1; 512]).unwrap();
        place.fail_sync();
        assert!(matches!(file.sync(), Err(Error::Io { .. })));
        place.heal();
        file.sync().unwrap();
    };
    assert_eq!(outcomes(run, |place| read(place, "a", 512)[0]).len(), 2);
}

#[test]
fn what_is_written_again_after_a_failed_sync_is_durable_with_its_length() {
    let run = |place: &SimPlace| {
        let file = create(place, "a");
        place.sync().unwrap();
        file.write_at(0, &[1; 1024]).unwrap();
        place.fail_sync();
        assert!(matches!(file.sync(), Err(Error::Io { .. })));
        place.heal();
        file.write_at(512, &[2; 512]).unwrap();
        file.sync().unwrap();
    };
    let outcome = |place: &SimPlace| read(place, "a", 1024)[512];
    assert_eq!(outcomes(run, outcome), [2].into());
}

#[test]
fn failures_are_injected_and_healed() {
    let place = SimPlace::new(1);
    let file = create(&place, "a");
    place.fail_writes_after(1);
    assert!(matches!(file.write_at(0, &[1; 512]), Err(Error::Io { .. })));
    place.heal();
    place.enospc();
    assert!(matches!(file.write_at(0, &[1; 512]), Err(Error::Full { .. })));
    place.heal();
    file.write_at(0, &[1; 512]).unwrap();
    place.sync().unwrap();
    place.flip_bit("a", 5, 1);
    assert_eq!(read(&place, "a", 512)[5], 3);
}

#[test]
fn the_same_seed_has_the_same_outcome() {
    let run = |seed| {
        let place = SimPlace::new(seed);
        let file = create(&place, "a");
        file.set_len(1 << 16).unwrap();
        place.sync().unwrap();
        for round in 0..32_u64 {
            file.write_at(round * 1024, &[round as u8 + 1; 4096]).unwrap();
        }
        place.power_cycle();
        read(&place, "a", 1 << 16)
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
