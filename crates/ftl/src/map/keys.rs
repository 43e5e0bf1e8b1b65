//! The keys of an inner node.
//!
//! They lie in the node itself, in one run of a fixed length. So a search need not follow a pointer first, and
//! loads all lines at once, where halving alone would wait for one after the other.

use std::{
    hint::black_box,
    ops::{Index, Range},
};

/// Keys in a line of the processor's cache.
const LINE: usize = 8;
const LINES: usize = 17;

/// How many keys fit.
pub(super) const KEYS_MAX: usize = LINE * LINES;

/// See the module documentation.
#[derive(Clone)]
pub(super) struct Keys {
    len: usize,
    /// Ascending up to `len`; the rest has no meaning.
    lines: [[u64; LINE]; LINES],
}

impl Default for Keys {
    fn default() -> Keys {
        Keys { len: 0, lines: [[0; LINE]; LINES] }
    }
}

impl Index<usize> for Keys {
    type Output = u64;

    fn index(&self, index: usize) -> &u64 {
        &self.as_slice()[index]
    }
}

impl Keys {
    pub(super) fn as_slice(&self) -> &[u64] {
        &self.lines.as_flattened()[..self.len]
    }

    /// Index of the last key that is at most `key`; of the first one if there is none.
    pub(super) fn search(&self, key: u64) -> usize {
        black_box(self.lines.iter().fold(0, |all, line| all ^ line[0])); // the use that makes them be loaded
        self.as_slice().partition_point(|other| *other <= key).saturating_sub(1)
    }

    pub(super) fn push(&mut self, key: u64) {
        self.insert(self.len, key);
    }

    pub(super) fn insert(&mut self, index: usize, key: u64) {
        assert!(self.len < KEYS_MAX, "a node is split long before");
        let keys = self.lines.as_flattened_mut();
        keys.copy_within(index..self.len, index + 1);
        keys[index] = key;
        self.len += 1;
    }

    pub(super) fn set_first(&mut self, key: u64) {
        self.lines[0][0] = key;
    }

    pub(super) fn remove(&mut self, range: Range<usize>) {
        let keys = self.lines.as_flattened_mut();
        keys.copy_within(range.end..self.len, range.start);
        self.len -= range.len();
    }

    pub(super) fn split_off(&mut self, at: usize) -> Keys {
        let mut right = Keys::default();
        right.append(&self.as_slice()[at..]);
        self.remove(at..self.len);
        right
    }

    pub(super) fn append(&mut self, right: &[u64]) {
        let len = self.len + right.len();
        assert!(len <= KEYS_MAX, "nodes that are merged fit");
        self.lines.as_flattened_mut()[self.len..len].copy_from_slice(right);
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;

    fn check(keys: &Keys, model: &[u64], rng: &mut SeededRng) {
        assert_eq!(keys.as_slice(), model);
        let around = model.iter().flat_map(|key| [key.saturating_sub(1), *key, key.saturating_add(1)]);
        let others = [0, rng.next_u64() >> rng.below(64), u64::MAX - 1, u64::MAX];
        for key in around.chain(others) {
            let found = model.partition_point(|other| *other <= key).saturating_sub(1);
            assert_eq!(keys.search(key), found, "{key} in {model:?}");
        }
    }

    #[test]
    fn keys_are_those_of_a_vector() {
        for_each_seed(20, |seed| {
            let mut rng = SeededRng::new(seed);
            let (mut keys, mut model) = (Keys::default(), Vec::<u64>::new());
            for _ in 0..600 {
                let at = rng.below(model.len() as u64 + 1) as usize;
                let to = (at + rng.below(20) as usize).min(model.len());
                match rng.below(12) {
                    0 => {
                        keys.remove(at..to);
                        model.drain(at..to);
                    }
                    1 => {
                        let (right, model_right) = (keys.split_off(at), model.split_off(at));
                        check(&right, &model_right, &mut rng);
                        if rng.chance(80) {
                            keys.append(right.as_slice());
                            model.extend(model_right);
                        }
                    }
                    _ if model.len() < KEYS_MAX => {
                        let key = rng.next_u64() >> rng.below(50);
                        let at = model.partition_point(|other| *other < key);
                        keys.insert(at, key);
                        model.insert(at, key);
                    }
                    _ => {}
                }
                check(&keys, &model, &mut rng);
            }
        });
    }
}
