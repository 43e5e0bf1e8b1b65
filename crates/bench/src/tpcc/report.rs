//! A run's results, as JSON and as a table for people.

use serde::Serialize;

use super::mix::Operation;
use crate::{
    figures::{self, Figures},
    loading::Loading,
    page_traffic,
    requesters::Requested,
    row_compression,
    side_by_side::{self, SideBySide},
};

/// Result of one run. Its JSON form is part of the command line's contract.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The figures common to all benchmarks.
    #[serde(flatten)]
    pub figures: Figures,
    /// Rows loaded, those of the indexes included.
    pub rows: u64,
    /// Transactions completed in it, with the new-orders that rolled back.
    pub transactions: u64,
    /// Their rate.
    pub transactions_per_second: f64,
    /// Transactions over the measured phase and the time until all is written.
    pub settled_transactions_per_second: f64,
    /// New-orders committed in it, as a rate.
    pub new_orders_per_minute: f64,
    /// The same per transaction.
    pub device_bytes_written_per_transaction: f64,
    /// Whether the consistency conditions hold at the end.
    pub consistent: bool,
    /// Transactions that were run again because of a deadlock, a conflict or a lock timeout.
    pub retries: u64,
}

impl RunReport {
    pub(crate) fn new(
        tables: &str,
        algorithm: &str,
        loading: Loading,
        rows: u64,
        requested: &Requested,
        violation: Option<anyhow::Error>,
    ) -> RunReport {
        let transactions = requested.latencies.requests();
        let consistent = violation.is_none();
        let names = Operation::names();
        let figures = Figures::new(tables, algorithm, loading, requested, names, violation);
        let new_orders = figures.ops[Operation::NewOrder as usize].1.count;
        RunReport {
            rows,
            transactions,
            transactions_per_second: figures.per_second(transactions),
            settled_transactions_per_second: figures.per_second_settled(transactions),
            new_orders_per_minute: figures.per_second(new_orders) * 60.0,
            device_bytes_written_per_transaction: requested.device_bytes_written as f64
                / transactions.max(1) as f64,
            consistent,
            retries: requested.retries,
            figures,
        }
    }
}

/// A table of the runs side by side; with two or more, the last column is last over first.
pub fn comparison(runs: &[RunReport]) -> String {
    let mut table =
        SideBySide::new(runs, |run| side_by_side::title(&run.figures.tables, &run.figures.algorithm));
    let per_transaction = |run: &RunReport| run.figures.cpu_seconds * 1e6 / run.transactions.max(1) as f64;
    figures::add_load(&mut table, |run| &run.figures);
    table.row("new-orders per minute", 0, |run| run.new_orders_per_minute);
    table.row("transactions per second", 0, |run| run.transactions_per_second);
    table.row("  until all is written", 0, |run| run.settled_transactions_per_second);
    figures::add_lag(&mut table, |run| &run.figures);
    figures::add_space(&mut table, |run| &run.figures);
    table.row("written per transaction, KB", 2, |run| run.device_bytes_written_per_transaction / 1e3);
    table.row("processor time per transaction, us", 1, per_transaction);
    page_traffic::add_rows(&mut table, |run| run.transactions, |run| run.figures.pages);
    row_compression::add_rows(&mut table, |run| run.figures.row_compression);
    table.row("transactions run again", 0, |run| run.retries as f64);
    for (operation, name) in Operation::names().enumerate() {
        let of = |run: &RunReport| run.figures.ops[operation].1;
        table.row(name, 0, |run| of(run).count as f64);
        table.row("  mean, us", 0, |run| of(run).mean_us);
        table.row("  p50, us", 0, |run| of(run).p50_us);
        table.row("  p95, us", 0, |run| of(run).p95_us);
        table.row("  p99, us", 0, |run| of(run).p99_us);
        table.row("  max, us", 0, |run| of(run).max_us);
    }
    table.finish() + &figures::over_time(runs.iter().map(|run| &run.figures))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Footprint, latencies::Latencies};

    fn report() -> RunReport {
        let mut latencies = Latencies::new(Operation::COUNT);
        for _ in 0..99 {
            latencies.record(Operation::NewOrder as usize, 1000);
        }
        latencies.record(Operation::NewOrderRolledBack as usize, 1000);
        let requested = Requested {
            latencies,
            seconds: 2.0,
            settle_seconds: 2.0,
            cpu_seconds: 1.0,
            energy_joules: None,
            drive_celsius: None,
            pages: None,
            open_loop: None,
            over_time: None,
            device_bytes_written: 1000,
            footprint: Footprint::default(),
            retries: 3,
        };
        RunReport::new("page", "lz4", Loading::default(), 7, &requested, None)
    }

    #[test]
    fn only_committed_new_orders_count() {
        let report = report();
        assert!((report.new_orders_per_minute - 99.0 * 30.0).abs() < 1e-6);
        assert!((report.transactions_per_second - 50.0).abs() < 1e-6);
        assert!((report.settled_transactions_per_second - 25.0).abs() < 1e-6);
        assert!((report.device_bytes_written_per_transaction - 10.0).abs() < 1e-6);
    }

    /// Tools read these names, so they must not change.
    #[test]
    fn json_has_the_promised_fields() {
        let json = serde_json::to_value(report()).unwrap();
        let mut names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        let promised = [
            "algorithm",
            "allocated_bytes",
            "consistent",
            "cpu_seconds",
            "device_bytes_written",
            "device_bytes_written_per_transaction",
            "load_cpu_seconds",
            "load_seconds",
            "logical_bytes",
            "new_orders_per_minute",
            "ops",
            "request_seconds",
            "retries",
            "rows",
            "settle_seconds",
            "settled_transactions_per_second",
            "store_bytes",
            "tables",
            "transactions",
            "transactions_per_second",
        ];
        assert_eq!(names, promised);
        let ops: Vec<&str> = json["ops"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(ops.len(), 6);
        assert!(json["ops"]["stock_level"]["p99_us"].is_number());
    }
}
