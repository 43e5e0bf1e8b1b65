//! The design's promises on speed, space and bytes written, judged by the measurements of `./evaluate` or `bench/proof`.
//!
//! Both keep a directory: `settings`, one line that describes how much was run, and for each round `round-N` with a
//! report `NAME.json` of each of [`RUNS`]. `./evaluate` notes in it the command, or the reason why there is no report;
//! `bench/proof` does so beside it, in `NAME.command` and `NAME.error`. [`judge`] reads all of it. It computes only ratios
//! of figures of one round, and medians and intervals of these ([`crate::Estimate`]); a round that lacks a report does
//! not count for the figures that need it; if something failed in it, promises on these are not met. All promises are judged together ([`crate::judge`]).

mod claims;
mod report;
mod rounds;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::Result;

pub use report::{Figure, Judged, LACKS, Proof, failed_rounds};
pub use rounds::RUNS;

/// Judges the rounds in a directory.
///
/// # Errors
/// When the directory or a file in it cannot be read, or is not in the script's format.
pub fn judge(directory: &Path) -> Result<Proof> {
    let rounds = rounds::Rounds::read(directory)?;
    Ok(report::prove(&rounds))
}
