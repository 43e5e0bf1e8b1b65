//! How many links a node has when it is loaded.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::LINK_TYPES;
use crate::shuffle::Shuffle;

/// Purpose number of the shuffle that relates ids to ranks; hot ids of the correlated access
/// distributions use the same, so that they are those with many links.
pub(crate) const RANK_SHUFFLE: u64 = 0xDE6;

/// Tail of the built-in distribution: share of the nodes with more than 0, 1, 2, ... links.
const FEW: [f64; 25] = [
    0.54668, 0.22537, 0.13042, 0.08007, 0.05549, 0.04172, 0.03277, 0.0268, 0.02239, 0.01922, 0.01672,
    0.01463, 0.013, 0.01175, 0.01066, 0.00973, 0.00892, 0.0082, 0.00763, 0.00717, 0.00673, 0.00638, 0.00606,
    0.00578, 0.00552,
];

/// And beyond: (share of the nodes with more links, links), straight lines between them when both
/// are drawn as logarithms, steps where a share stands twice. Fitted to the empirical distribution that
/// LinkBench comes with: within 5% of it at every quantile. The first point is the end of [`FEW`].
const MANY: [(f64, f64); 32] = [
    (0.00552, 25.0),
    (0.0053, 25.5),
    (0.00318, 43.5),
    (0.0021, 72.5),
    (0.00169, 100.0),
    (0.00123, 176.0),
    (0.000594, 726.0),
    (0.000395, 1410.0),
    (0.000264, 2380.0),
    (0.000144, 4430.0),
    (7.19e-5, 7760.0),
    (3.06e-5, 13400.0),
    (1.05e-5, 23500.0),
    (2.87e-6, 41800.0),
    (3.46e-7, 105000.0),
    (1.25e-7, 183000.0),
    (7.24e-8, 214000.0),
    (7.24e-8, 226000.0),
    (4.61e-8, 248000.0),
    (4.61e-8, 272000.0),
    (2.63e-8, 298000.0),
    (2.63e-8, 314000.0),
    (1.98e-8, 316000.0),
    (1.98e-8, 407000.0),
    (1.32e-8, 423000.0),
    (1.32e-8, 451000.0),
    (9.9e-9, 451000.0),
    (9.9e-9, 485000.0),
    (6.6e-9, 485000.0),
    (6.6e-9, 907000.0),
    (3.3e-9, 907000.0),
    (3.3e-9, 961963.0),
];

/// An out-degree distribution.
#[derive(Clone, Debug)]
pub(crate) enum Distribution {
    /// The compact table above.
    Builtin,
    /// Points (links, share of the nodes with at most so many), ascending in both.
    Points(Vec<(u64, f64)>),
}

impl Distribution {
    /// The section `nlinks` of a file in the format of LinkBench's Distribution.dat.
    pub(crate) fn read(path: &Path) -> Result<Distribution> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut points: Vec<(u64, f64)> = Vec::new();
        let mut lines = text.lines().map(str::trim).skip_while(|line| *line != "nlinks").skip(1);
        let numeric = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
        for line in lines.by_ref().take_while(numeric) {
            let mut fields = line.split_whitespace();
            let point = fields.next().zip(fields.next()).and_then(|(value, percent)| {
                Some((value.parse().ok()?, percent.parse::<f64>().ok()? / 100.0))
            });
            let Some(point) = point else { bail!("{}: bad line {line:?}", path.display()) };
            if points.last().is_some_and(|last| point <= *last || point.1 < last.1) {
                bail!("{}: line {line:?} does not ascend", path.display());
            }
            points.push(point);
        }
        if points.last().is_none_or(|last| (last.1 - 1.0).abs() > 1e-6) {
            bail!("{}: section nlinks is missing or does not end at 100 percent", path.display());
        }
        Ok(Distribution::Points(points))
    }

    /// The number of links at `tail`, the share of the nodes that have more; in `0.0 ..= 1.0`.
    fn links_at(&self, tail: f64) -> u64 {
        match self {
            Distribution::Builtin => builtin_links_at(tail),
            Distribution::Points(points) => {
                let at = points.partition_point(|&(_, share)| share < 1.0 - tail);
                points[at.min(points.len() - 1)].0
            }
        }
    }
}

fn builtin_links_at(tail: f64) -> u64 {
    if tail >= FEW[FEW.len() - 1] {
        return FEW.partition_point(|&more| more > tail) as u64;
    }
    let at = MANY.partition_point(|&(more, _)| more > tail);
    let (Some(&(right, many)), Some(&(left, few))) = (MANY.get(at), MANY.get(at.wrapping_sub(1))) else {
        return MANY[MANY.len() - 1].1 as u64;
    };
    let along = (tail / left).ln() / (right / left).ln();
    (few * (many / few).powf(along)).round() as u64
}

/// Degrees of the ids `1 ..= ids`.
#[derive(Clone, Debug)]
pub(crate) struct Degrees {
    ids: u64,
    distribution: Distribution,
    ranks: Shuffle,
}

impl Degrees {
    pub(crate) fn new(ids: u64, distribution: Distribution, seed: u64) -> Degrees {
        Degrees { ids, distribution, ranks: Shuffle::new(ids, seed, RANK_SHUFFLE) }
    }

    /// Links of the type with index `link_type` that node `id` is loaded with.
    ///
    /// As LinkBench counts them: it shares a node's links among the types, but rounds up for each
    /// type where one alone was meant, which is where its 5.25 links per node come from.
    pub(crate) fn of(&self, id: u64, link_type: usize) -> u64 {
        let rank = self.ranks.invert(id - 1);
        let links = self.distribution.links_at(rank as f64 / self.ids as f64);
        let share = links / LINK_TYPES as u64;
        share + u64::from((link_type as u64) < links - share)
    }

    #[cfg(test)]
    fn total(&self) -> u64 {
        (1..=self.ids).map(|id| (0..LINK_TYPES).map(|t| self.of(id, t)).sum::<u64>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_ids_have_five_and_a_quarter_million_links() {
        let total = Degrees::new(1_000_000, Distribution::Builtin, 1).total();
        assert!((5_200_000..5_300_000).contains(&total), "{total}");
    }

    #[test]
    fn degrees_fall_with_the_tail() {
        let at: Vec<u64> =
            (0..=400).map(|i| builtin_links_at(10f64.powf(-10.0 + f64::from(i) / 40.0))).collect();
        assert!(at.is_sorted_by(|a, b| a >= b), "{at:?}");
        assert_eq!((at[0], at[400]), (961_963, 0));
        assert_eq!(builtin_links_at(0.0), 961_963);
    }

    /// Against the original, where LINKBENCH_DISTRIBUTION names it (it may not be copied here).
    #[test]
    fn fits_the_original() {
        let Some(path) = std::env::var_os("LINKBENCH_DISTRIBUTION") else {
            eprintln!("not tested: out-degrees beside the original's (LINKBENCH_DISTRIBUTION names no file)");
            return;
        };
        let original = Distribution::read(Path::new(&path)).unwrap();
        let exact = Degrees::new(1_000_000, original.clone(), 1).total();
        assert_eq!(exact, 5_249_370, "what the original tool loads");
        for ids in [10_000, 200_000, 1_000_000] {
            let fitted = Degrees::new(ids, Distribution::Builtin, 1).total();
            let exact = Degrees::new(ids, original.clone(), 1).total();
            let off = fitted as f64 / exact as f64 - 1.0;
            assert!(off.abs() < 0.005, "{ids} ids: {fitted} links, original {exact}");
        }
        assert_eq!(first_deviation(&original), None);
    }

    /// The first quantile, as (share of nodes with more links, fit, original), at which the fit is more than 5% away
    /// from what the original has within a thousandth of there.
    fn first_deviation(original: &Distribution) -> Option<(f64, u64, u64)> {
        let Distribution::Points(points) = original else { unreachable!("it was read from a file") };
        let mut below = 0.0;
        let mut quantiles = points.iter().flat_map(|&(links, share)| {
            // Both ends of the step and its middle.
            let (few, many) = (1.0 - below, 1.0 - share);
            below = share;
            [few * 0.9999, (few + many) / 2.0, many * 1.0001].map(|tail| (tail, links))
        });
        quantiles.find_map(|(tail, links)| {
            let fitted = builtin_links_at(tail);
            let least = original.links_at((tail * 1.001).min(1.0)) as f64 * 0.95;
            let most = original.links_at(tail * 0.999) as f64 * 1.05;
            (!(least..=most).contains(&(fitted as f64))).then_some((tail, fitted, links))
        })
    }

    #[test]
    fn bad_distribution_files_are_refused() {
        let dir = std::env::temp_dir().join(format!("lacuna-degrees-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("d");
        for text in ["", "nlinks\n", "nlinks\n0 50\n", "nlinks\n0 50\n1 40\n2 100\n", "nlinks\n0 x\n"] {
            std::fs::write(&file, text).unwrap();
            assert!(Distribution::read(&file).is_err(), "{text:?}");
        }
        std::fs::write(&file, "nlinks\n0 50\n3 100\nnreads\n0 100\n").unwrap();
        assert_eq!(Degrees::new(1000, Distribution::read(&file).unwrap(), 1).total(), 500 * 4);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
