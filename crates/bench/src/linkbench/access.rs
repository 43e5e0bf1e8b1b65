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
/// blends a little of them into a distribution that knows nothing of degrees. Reads and writes of links have that one
/// in common, blend, shape and shuffle: its configuration gives writes others (95%, Zipf 0.741), but its code looks
/// them up under the names of those of reads.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    ids: u64,
    degrees: Degrees,
    link_reads: Skewed,
    link_writes: Skewed,
    /// Of both.
    links_uncorrelated: Skewed,
    node_reads: Skewed,
    node_updates: Skewed,
}

const UNCORRELATED: f64 = 0.995;
/// Links of one get, geometric from [`MULTIGET_MIN`] on. The configuration means 2.6 of them, as the real service asked
/// for; LinkBench's code adds a count from 1 on to the least number, so that they are 3.6 and hardly ever one.
const MULTIGET_P: f64 = 0.382;
const MULTIGET_MIN: u64 = 1;
const MULTIGET_MAX: u64 = 127;

impl Access {
    pub(crate) fn new(ids: u64, degrees: Degrees, seed: u64) -> Access {
        let skewed = |shape, purpose| Skewed::new(ids, shape, seed, purpose);
        Access {
            ids,
            degrees,
            link_reads: skewed(0.8, RANK_SHUFFLE),
            link_writes: skewed(0.741, RANK_SHUFFLE),
            links_uncorrelated: skewed(0.8, 0xA1),
            node_reads: skewed(0.625, 0xA3),
            node_updates: skewed(0.606, 0xA3),
        }
    }

    pub(crate) fn link_read_id(&self, random: &mut Random) -> u64 {
        self.blend(&self.link_reads, random)
    }

    pub(crate) fn link_write_id(&self, random: &mut Random) -> u64 {
        self.blend(&self.link_writes, random)
    }

    fn blend(&self, correlated: &Skewed, random: &mut Random) -> u64 {
        let is_uncorrelated = random.unit() < UNCORRELATED;
        if is_uncorrelated { &self.links_uncorrelated } else { correlated }.choose(random)
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
        let wanted = (MULTIGET_MIN + steps).min(MULTIGET_MAX);
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
        ((1.0 / existing.0 * loaded).ceil() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linkbench::degree::Distribution;

    #[test]
    fn multigets_are_distinct_and_average_three_point_six() {
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
        assert!((3.5..3.75).contains(&mean), "{mean}");
    }

    /// LinkBench's code, not its configuration.
    #[test]
    fn reads_and_writes_of_links_have_hot_ids_in_common() {
        let ids = 10_000;
        let access = Access::new(ids, Degrees::new(ids, Distribution::Builtin, 1), 1);
        let hottest = |choose: fn(&Access, &mut Random) -> u64| {
            let mut random = Random::new(1, 1);
            let mut hits = vec![0u32; ids as usize + 1];
            (0..200_000).for_each(|_| hits[choose(&access, &mut random) as usize] += 1);
            let mut ranked: Vec<usize> = (1..=ids as usize).collect();
            ranked.sort_by_key(|&id| std::cmp::Reverse(hits[id]));
            (ranked[..2].to_vec(), f64::from(hits[ranked[0]]) / 200_000.0)
        };
        let (read, read_share) = hottest(Access::link_read_id);
        let (written, write_share) = hottest(Access::link_write_id);
        assert_eq!(read, written);
        // Both are that of Zipf 0.8.
        let expected = UNCORRELATED / (1..=ids).map(|rank| (rank as f64).powf(-0.8)).sum::<f64>();
        for share in [read_share, write_share] {
            assert!((share / expected - 1.0).abs() < 0.05, "{share}, expected {expected}");
        }
        let (node_read, _) = hottest(Access::node_read_id);
        let (node_updated, _) = hottest(Access::node_update_id);
        assert_eq!(node_read, node_updated);
        assert_ne!(read, node_read);
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
