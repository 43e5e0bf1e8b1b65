//! LinkBench: the social graph benchmark of Armstrong et al. (SIGMOD 2013), after the original
//! tool with its configuration `FBWorkload.properties`, as it runs rather than as that reads.
//!
//! A run loads nodes and links, warms up, and lets many requesters draw ten kinds of requests with
//! the original's mix, access distributions and payloads; then it verifies that index and counts agree with the links.
//! The main differences from the original, besides the language (docs/layers/bench.md has all):
//!
//! - Versions of rows count their changes (the original writes constants), so that the
//!   acknowledgement log can prove what survived a crash.
//! - The load keeps counts equal to visible links in every transaction (the original loads counts
//!   at its end).
//! - Payload is generated from one seed, so that plain and compressed tables hold the same rows.

mod access;
mod acks;
mod db;
mod degree;
mod history;
mod load;
#[cfg(test)]
mod memory;
mod mix;
mod operations;
mod payload;
mod report;
mod request;
mod schema;
mod sql;
#[cfg(test)]
mod tests;
mod verify;

use std::{path::PathBuf, sync::atomic::AtomicU64};

use anyhow::Result;

use crate::{Plan, loading};

pub use acks::AckLog;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use acks::fuzz as fuzz_acks;
pub use db::{Db, DbError, DbResult, Table, Txn, Visit};
pub use mix::Mix;
pub use payload::NODE_DATA_BYTES_MAX;
pub use report::{RunReport, comparison};
pub use sql::{SqlDb, SqlTxn};
pub use verify::{Verified, verify_acks};

/// Types of links in the graph.
const LINK_TYPES: usize = 2;
/// Most links that a list request returns.
const RANGE_LIMIT: usize = 10_000;

/// Settings of a run that are the same for every kind of table.
#[derive(Clone, Debug)]
pub struct Config {
    /// Nodes 1 to `ids` are loaded. LinkBench's "1x" is 10,000,000.
    pub ids: u64,
    /// Threads, times and seed.
    pub plan: Plan,
    /// A file in the format of LinkBench's Distribution.dat whose out-degrees are used instead of
    /// the built-in fit to them.
    pub distribution: Option<PathBuf>,
    /// How often each operation is requested.
    pub mix: Mix,
}

/// Runs load, warm-up and request phase on `db`, whose tables exist and are empty, and verifies the
/// graph. `tables` and `algorithm` name the kind of tables in the report.
///
/// # Errors
/// When the database or the acknowledgement log fails. A graph that does not verify is not an error
/// here: see [`crate::Figures::violation`].
pub fn run<D: Db>(
    db: &D,
    config: &Config,
    tables: &str,
    algorithm: &str,
    acks: Option<&AckLog>,
) -> Result<RunReport> {
    let distribution = match &config.distribution {
        Some(path) => degree::Distribution::read(path)?,
        None => degree::Distribution::Builtin,
    };
    let degrees = degree::Degrees::new(config.ids, distribution, config.plan.seed);
    let next_node_id = AtomicU64::new(0);

    let (loaded, loading) = loading::during(db, || load::load(db, config, &degrees, acks, &next_node_id))?;

    let access = access::Access::new(config.ids, degrees, config.plan.seed);
    let requested = request::request(db, config, &access, acks, &next_node_id)?;
    let violation = verify::verify_graph(db).err();
    Ok(RunReport::new(tables, algorithm, loading, loaded, &requested, violation))
}
