//! Tests under a scheduler of threads. A program of their own: under it, locks work in its threads only.

#[cfg(feature = "mutants")]
mod mutants;
#[path = "shuttle/main.rs"]
mod scheduled;
