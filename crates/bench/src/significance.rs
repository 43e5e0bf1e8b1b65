//! Whether many promises are kept, judged together.
//!
//! A 90% interval is wrong once in ten times, so among forty promises some would be decided by chance. Here each promise
//! is one test, and [Holm's correction](https://www.jstor.org/stable/4615733) bounds the chance that *any* of the
//! decisions is wrong by [`LEVEL`]:
//!
//! 1. The logarithms of a figure's rounds are compared with that of its target by Student's t. That gives two
//!    probabilities of such figures or more extreme ones: if the promise were just broken, and if it were just kept.
//! 2. The lesser of the two, doubled, is the p of the promise. The direction is that of the lesser.
//! 3. The p of all promises that have one are corrected together. A promise whose corrected p is at most [`LEVEL`] is
//!    met or missed, as the direction says; else it is open. With a single promise that is the 90% interval's verdict.
//!
//! A promise that several figures can keep ("smaller or faster") is one test. It is kept if any of `k` figures keeps it:
//! the least of their p, times `k` (Bonferroni). It is broken if all of them break it: the greatest of their p.
//!
//! Figures that depend on no clock have no error to speak of, and are no tests.

use crate::verdict::{Bound, Verdict};

/// Most probability that any decision is wrong.
pub const LEVEL: f64 = 0.1;
/// Deviations of logarithms below this are those of arithmetic.
const EXACT: f64 = 1e-12;

/// How well figures fit a promise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Probability of figures that speak so much for the promise, if it is just broken.
    pub met: f64,
    /// Probability of figures that speak so much against it, if it is just kept.
    pub missed: f64,
}

impl Evidence {
    /// Of ratios of several rounds; none of fewer than two, or of one that has no logarithm.
    pub fn of(ratios: &[f64], bound: Bound) -> Option<Evidence> {
        let has_logarithm = |ratio: &f64| *ratio > 0.0 && ratio.is_finite();
        if ratios.len() < 2 || !ratios.iter().all(has_logarithm) {
            return None;
        }
        let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let at_least = |least: f64| Evidence { met: above(&logs, least), missed: below(&logs, least) };
        let at_most = |most: f64| Evidence { met: below(&logs, most), missed: above(&logs, most) };
        Some(match bound {
            Bound::AtLeast(least) => at_least(least),
            Bound::AtMost(most) => at_most(most),
            // Kept if both sides are, broken if either is.
            Bound::Between(least, most) => {
                let (low, high) = (at_least(least), at_most(most));
                Evidence { met: low.met.max(high.met), missed: (2.0 * low.missed.min(high.missed)).min(1.0) }
            }
        })
    }

    /// Of a promise that each of several figures can keep; none where none of them is measured.
    pub fn of_alternatives(figures: &[Option<Evidence>]) -> Option<Evidence> {
        let measured: Vec<Evidence> = figures.iter().copied().flatten().collect();
        let met = measured.iter().map(|figure| figure.met).min_by(f64::total_cmp)? * figures.len() as f64;
        let missed = measured.iter().map(|figure| figure.missed).max_by(f64::total_cmp)?;
        // What was not measured may keep it.
        let missed = if measured.len() == figures.len() { missed } else { 1.0 };
        Some(Evidence { met: met.min(1.0), missed })
    }

    /// That of both directions.
    fn p(self) -> f64 {
        (2.0 * self.met.min(self.missed)).min(1.0)
    }
}

/// The verdict on each promise and its corrected p, all of them together; promises without evidence are open and do
/// not count.
pub fn judge(promises: &[Option<Evidence>]) -> Vec<(Verdict, Option<f64>)> {
    let p: Vec<f64> = promises.iter().flatten().map(|evidence| evidence.p()).collect();
    let mut corrected = holm(&p).into_iter();
    let judge_one = |evidence: &Option<Evidence>| {
        let Some(evidence) = evidence else { return (Verdict::Open, None) };
        let p = corrected.next().expect("one for each");
        let verdict = match () {
            () if p > LEVEL => Verdict::Open,
            () if evidence.met <= evidence.missed => Verdict::Met,
            () => Verdict::Missed,
        };
        (verdict, Some(p))
    };
    promises.iter().map(judge_one).collect()
}

/// Holm's corrected p, in the same order.
fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let (mut corrected, mut most) = (vec![0.0; p.len()], 0.0_f64);
    for (rank, at) in order.into_iter().enumerate() {
        most = most.max(p[at] * (p.len() - rank) as f64).min(1.0);
        corrected[at] = most;
    }
    corrected
}

/// Probability of a mean as far above the target's logarithm or farther, if it is the true one.
fn above(logs: &[f64], target: f64) -> f64 {
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let (distance, error) = (mean - target.ln(), (variance / count).sqrt());
    if error < EXACT {
        return if distance >= -EXACT { 0.0 } else { 1.0 };
    }
    tail(distance / error, logs.len() - 1)
}

/// The same below it.
fn below(logs: &[f64], target: f64) -> f64 {
    let mirrored: Vec<f64> = logs.iter().map(|log| -log).collect();
    above(&mirrored, 1.0 / target)
}

/// Probability that Student's t with so many degrees of freedom, one or more, is `t` or more. Finite sums: Abramowitz
/// and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
fn tail(t: f64, freedom: usize) -> f64 {
    let angle = (t.abs() / (freedom as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let is_odd = freedom % 2 == 1;
    // 1 + 1/2 cos^2 + (1*3)/(2*4) cos^4 + ..., or cos + 2/3 cos^3 + (2*4)/(3*5) cos^5 + ...
    let (mut term, mut sum) = (if is_odd { cos } else { 1.0 }, 0.0);
    let mut step = if is_odd { 3 } else { 2 };
    while step <= freedom {
        sum += term;
        term *= cos * cos * (step - 1) as f64 / step as f64;
        step += 2;
    }
    let within = if is_odd { std::f64::consts::FRAC_2_PI * (angle + sin * sum) } else { sin * sum };
    let outside = ((1.0 - within) / 2.0).clamp(0.0, 0.5);
    if t >= 0.0 { outside } else { 1.0 - outside }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;

    fn is_close(a: f64, b: f64, within: f64) -> bool {
        (a - b).abs() <= within
    }

    /// Quantiles from Abramowitz and Stegun, table 26.10, to three decimals.
    #[test]
    fn tails_are_those_of_the_tables() {
        let table = [
            (1, 1.0, 0.25),
            (1, 6.314, 0.05),
            (1, 12.706, 0.025),
            (2, 2.920, 0.05),
            (2, 9.925, 0.005),
            (3, 3.182, 0.025),
            (4, 2.132, 0.05),
            (4, 4.604, 0.005),
            (5, 2.015, 0.05),
            (5, 4.032, 0.005),
            (9, 1.833, 0.05),
            (10, 3.169, 0.005),
            (30, 2.042, 0.025),
        ];
        for (freedom, t, p) in table {
            assert!(is_close(tail(t, freedom), p, p * 2e-3), "{freedom} {t}: {}", tail(t, freedom));
            assert!(is_close(tail(-t, freedom), 1.0 - p, p * 2e-3), "{freedom} {t}");
        }
        for freedom in 1..20 {
            assert_eq!(tail(0.0, freedom), 0.5);
            assert!(tail(1e9, freedom) < 1e-8 && tail(1e300, freedom) < 1e-15);
        }
    }

    /// The example of R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm").
    #[test]
    fn corrected_p_are_those_of_r() {
        let corrected = holm(&[0.04, 0.01, 0.05, 0.02, 0.03]);
        for (found, expected) in corrected.iter().zip([0.09, 0.05, 0.09, 0.08, 0.09]) {
            assert!(is_close(*found, expected, 1e-12), "{corrected:?}");
        }
        assert_eq!((holm(&[]), holm(&[0.5])), (vec![], vec![0.5]));
        // None is above 1, and a greater p never has a lesser correction.
        assert_eq!(holm(&[0.9, 0.4, 0.4]), [1.0, 1.0, 1.0]);
    }

    /// By hand: logarithms -0.1, 0, 0.1 have the mean 0 and the error 0.1 / sqrt(3). A target of exp(-0.16859) is 2.92
    /// errors below, which is the quantile 0.95 of two degrees of freedom.
    #[test]
    fn evidence_is_that_of_student() {
        let ratios = [(-0.1_f64).exp(), 1.0, 0.1_f64.exp()];
        let low = Evidence::of(&ratios, Bound::AtLeast((-0.16859_f64).exp())).unwrap();
        assert!(is_close(low.met, 0.05, 1e-4) && is_close(low.missed, 0.95, 1e-4), "{low:?}");
        let high = Evidence::of(&ratios, Bound::AtMost(0.16859_f64.exp())).unwrap();
        assert!(is_close(high.met, 0.05, 1e-4) && is_close(high.missed, 0.95, 1e-4), "{high:?}");
        let missed = Evidence::of(&ratios, Bound::AtMost((-0.16859_f64).exp())).unwrap();
        assert!(is_close(missed.missed, 0.05, 1e-4), "{missed:?}");
        let within = Bound::Between((-0.16859_f64).exp(), 9.0);
        assert!(is_close(Evidence::of(&ratios, within).unwrap().met, 0.05, 1e-4));
        let outside = Bound::Between(0.16859_f64.exp(), 9.0);
        assert!(is_close(Evidence::of(&ratios, outside).unwrap().missed, 0.1, 1e-4));
        for none in [&[][..], &[1.0], &[1.0, 0.0], &[1.0, f64::INFINITY], &[1.0, f64::NAN]] {
            assert_eq!(Evidence::of(none, Bound::AtLeast(1.0)), None, "{none:?}");
        }
    }

    #[test]
    fn rounds_without_any_difference_decide_by_themselves() {
        let exact = |value: f64, bound| Evidence::of(&[value; 3], bound).unwrap();
        assert_eq!(exact(2.0, Bound::AtLeast(2.0)), Evidence { met: 0.0, missed: 0.0 });
        assert_eq!(exact(2.1, Bound::AtLeast(2.0)), Evidence { met: 0.0, missed: 1.0 });
        assert_eq!(exact(1.9, Bound::AtLeast(2.0)), Evidence { met: 1.0, missed: 0.0 });
        assert_eq!(exact(1.9, Bound::AtMost(2.0)), Evidence { met: 0.0, missed: 1.0 });
    }

    #[test]
    fn one_promise_is_judged_as_its_interval_is() {
        let table = [
            vec![1.2, 1.25, 1.22],
            vec![0.9, 1.3, 1.2],
            vec![0.7, 0.8, 0.75],
            vec![1.0, 1.01],
            vec![1.0, 3.0],
            vec![0.9, 0.95, 1.02, 0.97, 1.01],
        ];
        for values in table {
            for bound in [Bound::AtLeast(1.0), Bound::AtMost(1.0), Bound::AtLeast(1.1), Bound::AtMost(0.9)] {
                let interval = Estimate::of_ratios(values.clone()).unwrap().interval;
                let (verdict, _) = judge(&[Evidence::of(&values, bound)])[0];
                assert_eq!(verdict, bound.judge(interval), "{values:?} {bound}");
            }
        }
    }

    #[test]
    fn what_one_promise_decides_many_may_not() {
        let fits = Some(Evidence { met: 0.02, missed: 0.98 });
        let breaks = Some(Evidence { met: 0.999, missed: 0.001 });
        assert_eq!(judge(&[fits]), [(Verdict::Met, Some(0.04))]);
        // p of 0.04 twice: the least of two is corrected to 0.08.
        assert!(judge(&[fits, fits]).iter().all(|(verdict, _)| *verdict == Verdict::Met));
        assert!(judge(&[fits, fits, fits]).iter().all(|(verdict, _)| *verdict == Verdict::Open));
        // What has no evidence is no test. The third step corrects nothing any more.
        let judged = judge(&[None, fits, None, breaks]);
        assert_eq!(judged[0], (Verdict::Open, None));
        assert_eq!((judged[1].0, judged[3].0), (Verdict::Met, Verdict::Missed));
        assert!(is_close(judged[3].1.unwrap(), 0.004, 1e-12), "{judged:?}");
    }

    #[test]
    fn alternatives_are_one_test() {
        let (strong, weak) = (Evidence { met: 0.01, missed: 0.99 }, Evidence { met: 0.9, missed: 0.1 });
        let both = Evidence::of_alternatives(&[Some(strong), Some(weak)]).unwrap();
        assert_eq!(both, Evidence { met: 0.02, missed: 0.99 });
        let broken = Evidence { met: 0.97, missed: 0.03 };
        let all = Evidence::of_alternatives(&[Some(broken), Some(weak)]).unwrap();
        assert_eq!(all, Evidence { met: 1.0, missed: 0.1 });
        // An alternative that was not measured may keep the promise, and takes its share of the level.
        let half = Evidence::of_alternatives(&[Some(broken), None]).unwrap();
        assert_eq!(half.missed, 1.0);
        assert_eq!(Evidence::of_alternatives(&[Some(strong), None]).unwrap().met, 0.02);
        assert_eq!(Evidence::of_alternatives(&[Some(strong)]), Some(strong));
        assert_eq!(Evidence::of_alternatives(&[None, None]), None);
    }
}
