//! Which rows the requests touch.

use super::{
    LINK_TYPES,
    degree::{Degrees, RANK_SHUFFLE},
};
use crate::{random::Random, shuffle::Shuffle, zipf::Zipf};

/// How likely the second id of a link request is one that was loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Existing(f64);

impl Existing {
    pub(crate) const ADD: Existing = Existing(0.05);
    pub(crate) const UPDATE: Existing = Existing(0.9);
    pub(crate) const DELETE: Existing = Existing(0.9);
    pub(crate) const GET: Existing = Existing(0.5);
}

/// A skewed choice among all ids.
#[derive(Clone, Debug)]
struct Skewed {
    zipf: Zipf,
    ids: Shuffle,
}

impl Skewed {
    fn new(ids: u64, shape: f64, seed: u64, purpose: u64) -> Skewed {
        Skewed { zipf: Zipf::new(ids, shape), ids: Shuffle::new(ids, seed, purpose) }
    }

    fn choose(&self, random: &mut Random) -> u64 {
        1 + self.ids.permute(self.zipf.rank(random))
    }
}

/// All access distributions of the request phase; shared by the requesters.
///
/// "Correlated" ones rank ids as [`Degrees`] does: the hottest id has the most links. LinkBench
/// blends a little of them into a distribution that knows nothing of degrees. Its code then looks
/// up the blend of writes under the name of that of reads; here the configuration is followed literally (95%
/// uncorrelated, Zipf 0.741).
#[derive(Clone, Debug)]
pub(crate) struct Access {
    ids: u64,
    degrees: Degrees,
    link_reads: [Skewed; 2],
    link_writes: [Skewed; 2],
    node_reads: Skewed,
    node_updates: Skewed,
}

const READS_UNCORRELATED: f64 = 0.995;
const WRITES_UNCORRELATED: f64 = 0.95;
/// Geometric, as many links in one get as the real service asked for: mean 2.6.
const MULTIGET_P: f64 = 0.382;
const MULTIGET_MAX: u64 = 128;

impl Access {
    pub(crate) fn new(ids: u64, degrees: Degrees, seed: u64) -> Access {
        let skewed = |shape, purpose| Skewed::new(ids, shape, seed, purpose);
        Access {
            ids,
            degrees,
            link_reads: [skewed(0.8, RANK_SHUFFLE), skewed(0.8, 0xA1)],
            link_writes: [skewed(0.741, RANK_SHUFFLE), skewed(0.741, 0xA2)],
            node_reads: skewed(0.625, 0xA3),
            node_updates: skewed(0.606, 0xA3),
        }
    }

    pub(crate) fn link_read_id(&self, random: &mut Random) -> u64 {
        let uncorrelated = random.unit() < READS_UNCORRELATED;
        self.link_reads[usize::from(uncorrelated)].choose(random)
    }

    pub(crate) fn link_write_id(&self, random: &mut Random) -> u64 {
        let uncorrelated = random.unit() < WRITES_UNCORRELATED;
        self.link_writes[usize::from(uncorrelated)].choose(random)
    }

    pub(crate) fn node_read_id(&self, random: &mut Random) -> u64 {
        self.node_reads.choose(random)
    }

    pub(crate) fn node_update_id(&self, random: &mut Random) -> u64 {
        self.node_updates.choose(random)
    }

    pub(crate) fn node_delete_id(&self, random: &mut Random) -> u64 {
        1 + random.below(self.ids)
    }

    /// Index of a link type.
    pub(crate) fn link_type(&self, random: &mut Random) -> usize {
        random.below(LINK_TYPES as u64) as usize
    }

    /// The other end of a link of `id1`.
    pub(crate) fn id2(&self, random: &mut Random, id1: u64, link_type: usize, existing: Existing) -> u64 {
        id1 + random.below(self.id2_range(id1, link_type, existing))
    }

    /// The distinct other ends that one get asks for.
    pub(crate) fn multiget(&self, random: &mut Random, id1: u64, link_type: usize, id2s: &mut Vec<u64>) {
        let range = self.id2_range(id1, link_type, Existing::GET);
        let steps = ((1.0 - random.unit()).ln() / (1.0 - MULTIGET_P).ln()).ceil() as u64;
        let wanted = steps.clamp(1, MULTIGET_MAX);
        id2s.clear();
        if range <= wanted {
            // LinkBench asks for as many even where fewer exist.
            id2s.extend(id1..id1 + wanted);
            return;
        }
        while (id2s.len() as u64) < wanted {
            let id2 = id1 + random.below(range);
            if !id2s.contains(&id2) {
                id2s.push(id2);
            }
        }
    }

    fn id2_range(&self, id1: u64, link_type: usize, existing: Existing) -> u64 {
        let loaded = self.degrees.of(id1, link_type) as f64;
        ((loaded / existing.0).ceil() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linkbench::degree::Distribution;

    #[test]
    fn multigets_are_distinct_and_average_two_point_six() {
        let degrees = Degrees::new(10_000, Distribution::Builtin, 1);
        let access = Access::new(10_000, degrees, 1);
        let mut random = Random::new(1, 1);
        let (mut id2s, mut total) = (Vec::new(), 0);
        for _ in 0..20_000 {
            let id1 = access.link_read_id(&mut random);
            access.multiget(&mut random, id1, 0, &mut id2s);
            total += id2s.len();
            let mut sorted = id2s.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), id2s.len());
        }
        let mean = total as f64 / 20_000.0;
        assert!((2.5..2.75).contains(&mean), "{mean}");
    }

    #[test]
    fn ids_stay_in_range() {
        let access = Access::new(50, Degrees::new(50, Distribution::Builtin, 1), 1);
        let mut random = Random::new(1, 1);
        for _ in 0..5000 {
            for id in [
                access.link_read_id(&mut random),
                access.link_write_id(&mut random),
                access.node_read_id(&mut random),
                access.node_update_id(&mut random),
                access.node_delete_id(&mut random),
            ] {
                assert!((1..=50).contains(&id));
            }
        }
    }
}
