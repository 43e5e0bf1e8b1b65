//! What the design promises of speed, room and bytes written, judged by what `bench/proof` measured.
//!
//! That script keeps a directory: `settings`, one line that says how much was run, and for each round `round-N` with
//! a report `NAME.json` of each of [`RUNS`], beside it the command (`NAME.command`), or why there is no report
//! (`NAME.error`). [`judge`] reads all of it. It computes nothing but ratios of figures of one round, and medians and
//! intervals of these ([`crate::Estimate`]); a round that lacks a report counts for none of what needs it.

mod claims;
mod report;
mod rounds;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::Result;

pub use report::{Judged, Proof};
pub use rounds::RUNS;

/// Judges what the rounds in a directory found.
///
/// # Errors
/// When the directory or a file in it cannot be read, or is not what the script writes.
pub fn judge(directory: &Path) -> Result<Proof> {
    let rounds = rounds::Rounds::read(directory)?;
    Ok(report::prove(&rounds))
}
