//! The integration tests of this crate, in one program: a line below for each file, which runs only if it is declared.

mod blocks;
mod images;
#[cfg(feature = "mutants")]
mod mutants;
