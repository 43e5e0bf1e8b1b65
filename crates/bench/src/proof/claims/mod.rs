//! The promises: each a figure of one round, and its target.

mod engine;
mod others;
mod storage;

use serde_json::Value;

use super::rounds::{Round, Rounds};
use crate::Bound;

/// The kind of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A ratio of two measured sides, a time: judged by its interval over rounds.
    Measured,
    /// A count that depends on no clock, or hardly: judged by the worst.
    Counted,
}

/// A figure of a round; none if the round lacks its inputs.
type Reading = Box<dyn Fn(&Round) -> Option<f64>>;
/// Why the report of a round lacks the figure, if it says so.
type Failure = Box<dyn Fn(&Round) -> Option<String>>;

/// A figure, and its target.
pub(super) struct Ask {
    /// Its name, where a promise has several figures.
    pub(super) what: &'static str,
    pub(super) kind: Kind,
    pub(super) bound: Bound,
    pub(super) value: Reading,
}

/// A promise: kept if one of its asks is met.
pub(super) struct Claim {
    pub(super) name: String,
    /// The figures of the papers and of today's best.
    pub(super) others: &'static str,
    /// The figures' places, by the tags of docs/SOURCES.md; empty where the target is ours alone.
    pub(super) source: &'static str,
    /// The runs that it needs.
    pub(super) runs: &'static [&'static str],
    pub(super) failure: Failure,
    pub(super) asks: Vec<Ask>,
}

impl Claim {
    /// With the place of what others printed.
    fn printed(self, others: &'static str, source: &'static str) -> Claim {
        Claim { others, source, ..self }
    }

    /// Whose figures are counts.
    fn counted(mut self) -> Claim {
        self.asks.iter_mut().for_each(|ask| ask.kind = Kind::Counted);
        self
    }
}

/// All of them, in the order of the design.
pub(super) fn all(rounds: &Rounds) -> Vec<Claim> {
    [engine::claims(), storage::claims(), others::claims(rounds)].into_iter().flatten().collect()
}

fn ask(kind: Kind, bound: Bound, value: impl Fn(&Round) -> Option<f64> + 'static) -> Ask {
    Ask { what: "", kind, bound, value: Box::new(value) }
}

/// A promise with one figure.
fn claim(
    runs: &'static [&'static str],
    name: impl Into<String>,
    bound: Bound,
    value: impl Fn(&Round) -> Option<f64> + 'static,
) -> Claim {
    let asks = vec![ask(Kind::Measured, bound, value)];
    Claim { name: name.into(), others: "", source: "", runs, failure: Box::new(|_| None), asks }
}

fn over(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    below.filter(|below| *below > 0.0).and_then(|below| Some(above? / below))
}

fn at(value: &Value, pointer: &str) -> Option<f64> {
    value.pointer(pointer)?.as_f64()
}
