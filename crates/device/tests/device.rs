//! The integration tests of this crate, in one program: a line below for each file, which runs only if it is declared.
//!
//! `modes.rs` is a program of its own, because it sets the umask of its process.

mod interfaces;
#[cfg(feature = "mutants")]
mod mutants;
mod patient;
mod syscalls;
