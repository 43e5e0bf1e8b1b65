//! Benchmarks for Lacuna and, behind the same traits, for other engines.

pub mod engine;
pub mod iobench;
pub mod linkbench;
pub mod mysql;
