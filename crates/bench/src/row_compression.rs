//! Counters of row-compressed tables in reports.

use lacuna_engine::RowStats;
use serde::Serializer;

use crate::side_by_side::SideBySide;

/// The counters as an object.
pub(crate) fn as_object<S: Serializer>(row: &Option<RowStats>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(row.iter().flat_map(RowStats::named))
}

/// Adds the rows for these counters, if a run has row-compressed tables.
pub(crate) fn add_rows<R>(table: &mut SideBySide<'_, R>, of: impl Fn(&R) -> Option<RowStats>) {
    if table.runs().iter().all(|run| of(run).is_none()) {
        return;
    }
    let of = |run: &R| of(run).unwrap_or_default();
    table.row("compressions", 0, |run| of(run).compressions as f64);
    table.row("failed compressions", 0, |run| of(run).failures as f64);
    table.row("splits because of them", 0, |run| of(run).splits as f64);
}
