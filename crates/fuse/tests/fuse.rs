//! The integration tests of this crate, in one program: a line below for each file, which runs only if it is declared.
//!
//! `processors.rs` is a program of its own, because its test looks at all threads of its process.

mod claims;
mod mount;
mod mounted;
#[cfg(feature = "mutants")]
mod mutants;
mod openings;
mod parallel;
mod privileges;
mod races;
mod service;
