use crate::random::Random;

/// A permutation of `0 .. n` that is cheap both ways: the residue classes modulo a number of
/// groups are rotated, each by its own amount (as LinkBench does it).
#[derive(Clone, Debug)]
pub(crate) struct Shuffle {
    n: u64,
    rotations: Vec<u64>,
}

impl Shuffle {
    const GROUPS: u64 = 1024;

    pub(crate) fn new(n: u64, seed: u64, purpose: u64) -> Shuffle {
        let groups = Self::GROUPS.min(n).max(1);
        let mut random = Random::new(seed, purpose);
        Shuffle { n, rotations: (0..groups).map(|_| random.below((n / groups).max(1))).collect() }
    }

    pub(crate) fn permute(&self, index: u64) -> u64 {
        self.rotate(index, |rotation, _| rotation)
    }

    pub(crate) fn invert(&self, index: u64) -> u64 {
        self.rotate(index, |rotation, members| members - rotation)
    }

    fn rotate(&self, index: u64, by: impl Fn(u64, u64) -> u64) -> u64 {
        assert!(index < self.n);
        let groups = self.rotations.len() as u64;
        let group = index % groups;
        let members = (self.n - group).div_ceil(groups);
        let position = (index / groups + by(self.rotations[group as usize], members)) % members;
        position * groups + group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_permutation_with_an_inverse() {
        for n in [1, 2, 1000, 1024, 1025, 5000] {
            let shuffle = Shuffle::new(n, 1, 7);
            let mut seen = vec![false; n as usize];
            for index in 0..n {
                let to = shuffle.permute(index);
                assert!(!std::mem::replace(&mut seen[to as usize], true));
                assert_eq!(shuffle.invert(to), index);
            }
        }
    }
}
