//! Decides the effect of a power cut on writes that were not synced. Pure: no state, no I/O.

use crate::SeededRng;

/// The sectors of one write that reach the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    All,
    None,
    /// One flag for each sector.
    Some(Vec<bool>),
}

/// One step of a crash: the `index`-th pending write reaches the medium as far as `kept` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CrashStep {
    pub(crate) index: usize,
    pub(crate) kept: Kept,
}

/// The kind of a whole crash. Independent chance for each sector would rarely produce the crashes that find most bugs:
/// nothing lost, everything lost, only the newest write lost.
#[derive(Clone, Copy)]
enum CrashKind {
    KeepAll,
    DropAll,
    /// The first writes are kept, the next is torn, the rest dropped: a device without cache.
    Prefix,
    /// All but one write are kept; that one is dropped or torn.
    AllButOne,
    /// Each write kept, dropped or torn on its own, in any order.
    Scramble,
}

/// Decides the fate of pending writes, given the sectors of each, oldest first. The caller applies the steps in the
/// order returned; a write without a step is lost.
pub(crate) fn plan_crash(rng: &mut SeededRng, pending_sectors: &[u64]) -> Vec<CrashStep> {
    let count = pending_sectors.len();
    if count == 0 {
        return Vec::new();
    }
    let kind = match rng.below(10) {
        0 => CrashKind::KeepAll,
        1 => CrashKind::DropAll,
        2..=3 => CrashKind::Prefix,
        4..=5 => CrashKind::AllButOne,
        _ => CrashKind::Scramble,
    };
    let pivot = rng.below(count as u64) as usize;
    let kept_percent = 20 + rng.below(70);
    let mut steps: Vec<CrashStep> = (0..count)
        .map(|index| {
            let kept = match kind {
                CrashKind::KeepAll => Kept::All,
                CrashKind::DropAll => Kept::None,
                CrashKind::Prefix if index < pivot => Kept::All,
                CrashKind::Prefix if index > pivot => Kept::None,
                CrashKind::AllButOne if index != pivot => Kept::All,
                CrashKind::AllButOne if rng.chance(50) => Kept::None,
                CrashKind::Prefix | CrashKind::AllButOne => torn(rng, pending_sectors[index]),
                CrashKind::Scramble if rng.chance(kept_percent) => Kept::All,
                CrashKind::Scramble if rng.chance(50) => Kept::None,
                CrashKind::Scramble => torn(rng, pending_sectors[index]),
            };
            CrashStep { index, kept }
        })
        .collect();
    if matches!(kind, CrashKind::Scramble) && rng.chance(50) {
        rng.shuffle(&mut steps);
    }
    steps.retain(|step| step.kept != Kept::None);
    steps
}

/// A torn write: its front, its back, or any of its sectors.
fn torn(rng: &mut SeededRng, sectors: u64) -> Kept {
    let cut = rng.below(sectors + 1);
    match rng.below(3) {
        0 => Kept::Some((0..sectors).map(|sector| sector < cut).collect()),
        1 => Kept::Some((0..sectors).map(|sector| sector >= cut).collect()),
        _ => Kept::Some((0..sectors).map(|_| rng.chance(50)).collect()),
    }
}

impl Kept {
    /// The runs of kept sectors as (first sector, sectors).
    pub(crate) fn runs(&self, sectors: u64) -> Vec<(u64, u64)> {
        match self {
            Kept::All => vec![(0, sectors)],
            Kept::None => Vec::new(),
            Kept::Some(flags) => {
                let mut runs: Vec<(u64, u64)> = Vec::new();
                for (sector, _) in flags.iter().enumerate().filter(|(_, kept)| **kept) {
                    match runs.last_mut() {
                        Some((first, count)) if *first + *count == sector as u64 => *count += 1,
                        _ => runs.push((sector as u64, 1)),
                    }
                }
                runs
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_crash_happens() {
        let sectors = [1, 8, 8, 64];
        let (mut all, mut none, mut torn, mut reordered, mut hole) = (0, 0, 0, 0, 0);
        for seed in 0..400 {
            let steps = plan_crash(&mut SeededRng::new(seed), &sectors);
            all += usize::from(steps.len() == 4 && steps.iter().all(|step| step.kept == Kept::All));
            none += usize::from(steps.is_empty());
            torn += usize::from(steps.iter().any(|step| matches!(step.kept, Kept::Some(_))));
            reordered += usize::from(steps.windows(2).any(|pair| pair[0].index > pair[1].index));
            hole += usize::from(
                steps.iter().any(|step| step.index == 3) && !steps.iter().any(|step| step.index == 0),
            );
        }
        for (what, count) in
            [("all", all), ("none", none), ("torn", torn), ("reordered", reordered), ("hole", hole)]
        {
            assert!(count >= 10, "{what} happened {count} times in 400");
        }
    }

    #[test]
    fn runs_join_neighbours() {
        let kept = Kept::Some(vec![true, true, false, true, false]);
        assert_eq!(kept.runs(5), [(0, 2), (3, 1)]);
        assert_eq!(Kept::All.runs(5), [(0, 5)]);
    }
}
