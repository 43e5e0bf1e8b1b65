//! Benchmarks for Lacuna and, behind the same traits, for other engines.
//!
//! layers: ack_file, block_stat, latencies, over_time, plan, progress, random, sensors, side_by_side, trace, verdict
//! layers: < flash, open_loop, page_traffic, row_compression, shuffle, significance, zipf < requesters
//! layers: < loading, sql < figures
//! layers: < linkbench
//! layers: < engine, iobench, trimbench < dataset, proof, tpcc

mod ack_file;
mod block_stat;
pub mod dataset;
pub mod engine;
mod figures;
pub mod flash;
pub mod iobench;
mod latencies;
pub mod linkbench;
mod loading;
mod open_loop;
mod over_time;
mod page_traffic;
mod plan;
mod progress;
pub mod proof;
mod random;
mod requesters;
mod row_compression;
mod sensors;
mod shuffle;
mod side_by_side;
mod significance;
pub mod sql;
pub mod tpcc;
pub mod trace;
pub mod trimbench;
mod verdict;
mod zipf;

pub use block_stat::{DeviceTraffic, device_traffic, tree_bytes};
pub use figures::Figures;
pub use latencies::Summary;
pub use open_loop::{OpenLoopReport, Window};
pub use over_time::{Series, Slice, WINDOWS_MAX};
pub use page_traffic::PageTraffic;
pub use plan::{Plan, now_ms};
pub use requesters::{Footprint, Measured};
pub use significance::{Evidence, LEVEL, judge};
pub use verdict::{Bound, Estimate, Verdict};
