//! The integration tests of this crate, in one program: a line below for each file, which runs only if it is declared.
//!
//! Those under a scheduler of threads are in `shuttle.rs`, because its locks work in its own threads only.

#![cfg(not(feature = "shuttle"))]

mod adaptive;
mod ahead;
mod alter;
mod at_limit;
mod bulk;
mod contention;
mod contract;
mod crash;
mod cursors;
mod damaged;
mod encrypted;
mod faults;
mod flush;
mod forged;
mod forged_files;
mod full;
mod golden;
mod hermitage;
#[path = "history/main.rs"]
mod history;
mod killed;
mod leaves;
mod little_space;
mod log_device;
mod many_tables;
mod model;
#[cfg(feature = "mutants")]
mod mutants;
mod opening;
mod optimize;
mod overflow;
mod packed;
mod panics;
mod regressions;
mod replay;
mod rigs;
mod rolled_back;
mod row;
mod shapes;
mod snapshot;
mod snapshots_at_limit;
mod switches;
mod syscalls;
mod tables;
