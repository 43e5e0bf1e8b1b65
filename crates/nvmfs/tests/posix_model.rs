//! The inode interface against a simple file system in memory.

use std::sync::Arc;

use crate::stores::{assert_clean, formatted};
use crate::world::{Driver, World, random_change, refusal, summary};
use lacuna_device::BlockDevice;
use lacuna_nvmfs::{Nvmfs, Options};
use lacuna_sim::{SeededRng, for_each_seed};

/// Few inodes stay in memory, so that they are read again and again.
fn open(device: &Arc<dyn BlockDevice>) -> Nvmfs {
    Nvmfs::open(Arc::clone(device), Options { inodes_kept: 4, ..Options::default() }).unwrap()
}

#[test]
fn random_histories_match_the_model() {
    for_each_seed(30, |seed| {
        let mut rng = SeededRng::new(seed);
        let device = formatted(32 << 20);
        let mut vfs = open(&device);
        let mut driver = Driver::new(vfs.posix());
        let mut world = World::default();
        for step in 0..400 {
            let change = random_change(&mut rng, &world);
            let expected = world.apply(&change);
            match (driver.apply(&change), expected) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(expected)) => {
                    assert_eq!(refusal(error).unwrap(), expected, "step {step}: {change:?}");
                }
                (result, expected) => panic!("step {step}: {change:?}: {result:?}, not {expected:?}"),
            }
            if rng.chance(5) {
                let found = driver.snapshot().unwrap();
                let expected = world.snapshot();
                assert!(found == expected, "step {step}: {}\nnot {}", summary(&found), summary(&expected));
                assert_clean(&vfs);
            }
            if rng.chance(2) {
                if rng.chance(50) {
                    vfs.close().unwrap()
                } else {
                    driver.fs.sync().unwrap()
                }
                drop((driver, vfs));
                vfs = open(&device);
                driver = Driver::new(vfs.posix());
                world.close_all();
                assert!(driver.snapshot().unwrap() == world.snapshot(), "step {step}, reopened");
                assert_clean(&vfs);
            }
        }
        assert!(driver.snapshot().unwrap() == world.snapshot());
        while !driver.handles.is_empty() {
            driver.fs.release(driver.handles.pop().unwrap()).unwrap();
        }
        assert_clean(&vfs);
    });
}
