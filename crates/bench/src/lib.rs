//! Benchmarks for Lacuna and, behind the same traits, for other engines.

mod block_stat;
pub mod engine;
pub mod iobench;
pub mod linkbench;
pub mod mysql;
pub mod trimbench;
