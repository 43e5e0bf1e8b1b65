//! The key-value store of examples/kv.rs against a map, under power cuts and with colliding keys.

#[allow(dead_code, unreachable_pub)] // Its `main`, and what it would export.
#[path = "../examples/kv.rs"]
mod example;

use std::{collections::BTreeMap, sync::Arc};

use crate::harness::{assert_sound, format, open};
use example::{Change, Error, Kv, SLOTS};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::Ftl;
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn changes(rng: &mut SeededRng, keys: u64) -> Vec<Change> {
    let change = |rng: &mut SeededRng| {
        let key = format!("key {}", rng.below(keys)).into_bytes();
        if rng.chance(30) {
            return Change::Delete(key);
        }
        let len = if rng.chance(10) { rng.below(20_000) } else { rng.below(900) };
        let mut value = vec![0; len as usize];
        rng.fill(&mut value);
        Change::Put(key, value)
    };
    (0..1 + rng.below(5)).map(|_| change(rng)).collect()
}

fn apply(model: &mut Model, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(key, value) => drop(model.insert(key.clone(), value.clone())),
            Change::Delete(key) => drop(model.remove(key)),
        }
    }
}

fn assert_same(kv: &Kv, model: &Model) {
    let found: Model = kv.iter().map(Result::unwrap).collect();
    assert!(found == *model, "{} keys, {} expected", found.len(), model.len());
    for (key, value) in model {
        assert!(kv.get(key).unwrap().as_ref() == Some(value));
    }
    assert_eq!(kv.get(b"never there").unwrap(), None);
}

/// Sixteen keys in sixteen slots: nearly all collide, in batches too.
#[test]
fn colliding_keys_behave_like_a_map() {
    for_each_seed(10, |seed| {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4 << 20));
        format(&device);
        let kv = Kv::new(open(&device), 16);
        let (mut rng, mut model) = (SeededRng::new(seed), Model::new());
        for _ in 0..300 {
            let changes = changes(&mut rng, 16);
            match kv.apply(&changes) {
                Ok(()) => apply(&mut model, &changes),
                Err(Error::Crowded) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_same(&kv, &model);
        assert_sound(kv.ftl());
    });
}

#[test]
fn a_cut_leaves_whole_batches_and_all_that_was_flushed() {
    for_each_seed(60, |seed| {
        let device = SimDevice::new(4 << 20, seed);
        let shared: Arc<dyn BlockDevice> = device.clone();
        format(&shared);
        let mut rng = SeededRng::new(seed);
        // The permitted states after a cut: the one at the last flush, and the one after each batch since.
        let mut states = vec![Model::new()];
        for _ in 0..4 {
            let kv = Kv::new(Ftl::open(shared.clone(), Default::default()).unwrap(), SLOTS);
            let found: Model = kv.iter().map(Result::unwrap).collect();
            assert!(states.contains(&found), "a state that never was, or one before the flush");
            assert_same(&kv, &found);
            assert_sound(kv.ftl());
            states = vec![found];
            device.set_cut_after(1 + rng.below(80));
            loop {
                let changes = changes(&mut rng, 60);
                let mut next = states.last().unwrap().clone();
                apply(&mut next, &changes);
                states.push(next);
                if kv.apply(&changes).is_err() {
                    break;
                }
                if rng.chance(20) {
                    if kv.flush().is_err() {
                        break;
                    }
                    states.drain(..states.len() - 1);
                }
            }
            assert!(device.is_off(), "only the cut ends a round");
            drop(kv);
            device.power_cycle();
        }
    });
}
