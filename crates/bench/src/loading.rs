//! The cost of a benchmark's load phase.

use std::time::Instant;

use anyhow::Result;

use crate::{
    page_traffic::PageTraffic,
    requesters::{Measured, cpu_seconds},
};

/// The load, and writing out everything that it deferred.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loading {
    /// How long it took.
    pub(crate) seconds: f64,
    /// Processor time of this process, and of a server's on the same machine.
    pub(crate) cpu_seconds: f64,
    /// Pages that our engine read and wrote.
    pub(crate) pages: Option<PageTraffic>,
}

/// Runs `load` and settles the database; returns the cost of both beside the result of `load`.
pub(crate) fn during<T>(database: &impl Measured, load: impl FnOnce() -> Result<T>) -> Result<(T, Loading)> {
    let before = database.page_traffic()?;
    let (start, cpu_start) = (Instant::now(), cpu_seconds() + database.server_cpu_seconds());
    let loaded = load()?;
    database.settle()?;
    let loading = Loading {
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds() + database.server_cpu_seconds() - cpu_start,
        pages: database.page_traffic()?.zip(before).map(|(after, before)| after - before),
    };
    Ok((loaded, loading))
}
