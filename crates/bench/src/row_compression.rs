use lacuna_engine::Store;
use serde::Serialize;

use crate::side_by_side::SideBySide;

/// Counters of row-compressed tables.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RowCompression {
    /// Compressions of pages, failed ones included.
    pub compressions: u64,
    /// Those whose result was too long for its block.
    pub failures: u64,
    /// Those because a block's modification log was full.
    pub recompressions: u64,
    /// Pages split because they did not fit.
    pub splits: u64,
    /// Pages decompressed.
    pub decompressions: u64,
    /// Those of them whose block was in memory.
    pub decompressions_without_read: u64,
    /// Padding of pages at the end, in bytes.
    pub pad_bytes: u64,
}

impl RowCompression {
    /// What row compression did since `store` was opened.
    pub(crate) fn of(store: &Store) -> anyhow::Result<RowCompression> {
        let row = store.stats()?.row;
        Ok(RowCompression {
            compressions: row.compressions,
            failures: row.failures,
            recompressions: row.recompressions,
            splits: row.splits,
            decompressions: row.decompressions,
            decompressions_without_read: row.decompressions_without_read,
            pad_bytes: row.pad_bytes,
        })
    }

    /// Adds the rows that tell of it, if a run has row-compressed tables.
    pub(crate) fn rows<R>(table: &mut SideBySide<'_, R>, of: impl Fn(&R) -> Option<&RowCompression>) {
        if table.runs().iter().all(|run| of(run).is_none()) {
            return;
        }
        let value = |run: &R, value: fn(&RowCompression) -> u64| of(run).map_or(0.0, |row| value(row) as f64);
        table.row("compressions", 0, |run| value(run, |row| row.compressions));
        table.row("failed compressions", 0, |run| value(run, |row| row.failures));
        table.row("splits because of them", 0, |run| value(run, |row| row.splits));
    }
}
