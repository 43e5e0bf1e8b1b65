//! Whether the measurements of several rounds keep a promise.
//!
//! Both sides of a ratio are measured in every round, so other load on the machine affects both. The 90% confidence
//! interval of the ratios' geometric mean follows from Student's distribution of their logarithms. A promise is kept
//! when all of that interval is on the right side of the bound, and broken when none of it is; else it is open, and
//! more rounds would decide it. One round decides nothing.

use std::fmt;

use serde::Serialize;

/// Quantiles 0.95 of Student's distribution, for 1 to 9 degrees of freedom. They fall: the last is safe for more.
const STUDENT: [f64; 9] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833];

/// The target of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// No less than the first, no more than the second.
    Between(f64, f64),
}

/// Whether a promise is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The whole interval is on the right side.
    Met,
    /// None of it is.
    Missed,
    /// The measurements do not decide it.
    Open,
    /// There are none, because what would have made them failed.
    Failed,
    /// There are none.
    #[serde(rename = "not run")]
    NotRun,
}

impl Bound {
    /// Whether a figure in `interval` meets the bound.
    pub fn judge(self, [low, high]: [f64; 2]) -> Verdict {
        let (least, most) = match self {
            Bound::AtLeast(least) => (least, f64::INFINITY),
            Bound::AtMost(most) => (f64::NEG_INFINITY, most),
            Bound::Between(least, most) => (least, most),
        };
        match () {
            () if low >= least && high <= most => Verdict::Met,
            () if high < least || low > most => Verdict::Missed,
            () => Verdict::Open,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, ">= {least}"),
            Bound::AtMost(most) => write!(f, "<= {most}"),
            Bound::Between(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::Open => "open",
            Verdict::Failed => "failed",
            Verdict::NotRun => "not run",
        })
    }
}

/// A figure of several rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Of each round.
    pub values: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// Its interval. An infinite end is null in JSON.
    pub interval: [f64; 2],
}

impl Estimate {
    /// Of ratios, times and rates: the interval of their geometric mean at a confidence of 90%. None without values,
    /// or if one is not positive.
    pub fn of_ratios(values: Vec<f64>) -> Option<Estimate> {
        let is_ratio = |value: &f64| *value > 0.0 && value.is_finite();
        if values.is_empty() || !values.iter().all(is_ratio) {
            return None;
        }
        Some(Estimate { median: median(&values), interval: interval(&values), values })
    }

    /// Of counts that depend on no clock: from the least to the most that was seen, also in one round.
    pub fn of_counts(values: Vec<f64>) -> Option<Estimate> {
        let least = values.iter().copied().min_by(f64::total_cmp)?;
        let most = values.iter().copied().max_by(f64::total_cmp)?;
        Some(Estimate { median: median(&values), interval: [least, most], values })
    }
}

/// Of some numbers, at least one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] }
}

/// The interval of the geometric mean of such ratios, at a confidence of 90%.
fn interval(ratios: &[f64]) -> [f64; 2] {
    let count = ratios.len() as f64;
    let Some(freedom) = ratios.len().checked_sub(2) else { return [0.0, f64::INFINITY] };
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let margin = STUDENT[freedom.min(STUDENT.len() - 1)] * (variance / count).sqrt();
    [(mean - margin).exp(), (mean + margin).exp()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_student() {
        let [low, high] = interval(&[1.0, 1.0, 1.0]);
        assert!((low - 1.0).abs() < 1e-9 && (high - 1.0).abs() < 1e-9);
        // Logarithms -0.1, 0, 0.1: deviation 0.1, margin 2.92 * 0.1 / sqrt(3).
        let [low, high] = interval(&[(-0.1_f64).exp(), 1.0, 0.1_f64.exp()]);
        assert!((low.ln() + 0.16859).abs() < 1e-4 && (high.ln() - 0.16859).abs() < 1e-4, "{low} {high}");
        // Two: margin 6.314 * (0.1 / sqrt(2)) / sqrt(2).
        let [low, high] = interval(&[2.0, 2.0 * 0.1_f64.exp()]);
        let middle = 2.0_f64.ln() + 0.05;
        assert!((low.ln() - middle + 0.3157).abs() < 1e-4 && (high.ln() - middle - 0.3157).abs() < 1e-4);
        // Twelve: no narrower than by the quantile of ten.
        let twelve: Vec<f64> = (0..12).map(|n| if n % 2 == 0 { 1.0 } else { 0.2_f64.exp() }).collect();
        let deviation = (12.0 * 0.01_f64 / 11.0).sqrt();
        let [low, high] = interval(&twelve);
        assert!((high.ln() - low.ln() - 2.0 * 1.833 * deviation / 12.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(interval(&[1.5]), [0.0, f64::INFINITY]);
    }

    #[test]
    fn medians_need_no_order() {
        assert_eq!((median(&[4.0, 1.0, 2.0]), median(&[2.0, 1.0]), median(&[7.0])), (2.0, 1.5, 7.0));
    }

    #[test]
    fn what_the_interval_does_not_settle_is_open() {
        use Verdict::{Met, Missed, Open};
        let table = [
            (Bound::AtLeast(1.5), [1.5, 2.0], Met),
            (Bound::AtLeast(1.5), [1.4, 2.0], Open),
            (Bound::AtLeast(1.5), [1.0, 1.49], Missed),
            (Bound::AtMost(1.0), [0.9, 1.0], Met),
            (Bound::AtMost(1.0), [0.9, 1.1], Open),
            (Bound::AtMost(1.0), [1.01, 1.1], Missed),
            (Bound::Between(0.8, 1.2), [0.8, 1.2], Met),
            (Bound::Between(0.8, 1.2), [0.7, 1.0], Open),
            (Bound::Between(0.8, 1.2), [0.7, 1.3], Open),
            (Bound::Between(0.8, 1.2), [1.3, 1.4], Missed),
            (Bound::Between(0.8, 1.2), [0.3, 0.7], Missed),
            (Bound::AtMost(0.0), [0.0, 0.0], Met),
        ];
        for (bound, interval, verdict) in table {
            assert_eq!(bound.judge(interval), verdict, "{interval:?} {bound}");
        }
        let once = Estimate::of_ratios(vec![9.0]).unwrap();
        assert_eq!(Bound::AtLeast(1.0).judge(once.interval), Open);
        let count = Estimate::of_counts(vec![0.0]).unwrap();
        assert_eq!(Bound::AtMost(0.0).judge(count.interval), Met);
    }

    #[test]
    fn estimates_refuse_what_has_no_logarithm() {
        for values in [vec![], vec![1.0, 0.0], vec![f64::NAN], vec![-1.0], vec![f64::INFINITY]] {
            assert_eq!(Estimate::of_ratios(values.clone()), None, "{values:?}");
        }
        assert_eq!(Estimate::of_counts(vec![]), None);
        assert_eq!(Estimate::of_counts(vec![3.0, 0.0, 1.0]).unwrap().interval, [0.0, 3.0]);
    }
}
