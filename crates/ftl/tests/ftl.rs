//! The integration tests of this crate, in one program: a line below for each file, which runs only if it is declared.
//!
//! Those under a scheduler of threads are in `shuttle.rs`, because its locks work in its own threads only.

#![cfg(not(feature = "shuttle"))]

mod chunk_cache;
mod crash;
mod damaged_map;
mod encoded;
mod encryption;
mod epochs;
mod failures;
mod flips;
mod flushes;
mod footprint;
mod forged;
mod golden;
mod grow;
mod harness;
mod host_space;
mod in_flight;
mod in_place;
mod interleavings;
mod kv;
mod large_replay;
mod log_crash;
mod log_device;
mod lost_checkpoint;
mod model;
#[cfg(feature = "mutants")]
mod mutants;
mod never_stuck;
mod nth_fault;
mod panics;
mod policies;
mod reserve;
mod retained_summaries;
mod salvage;
mod scrub;
mod silent_faults;
mod summaries;
mod superblocks;
mod sweep;
mod threads;
mod unreadable;
