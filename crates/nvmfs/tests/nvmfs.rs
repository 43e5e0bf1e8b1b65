//! The integration tests of this crate, in one program: a line below for each file, which runs only if it is declared.

mod acl;
mod acl_threads;
mod by_inode;
mod cold_full;
mod compression;
mod crash;
mod damage;
mod fight;
mod forged;
mod forged_names;
mod forged_store;
mod full;
mod golden;
mod history;
mod logged;
mod model;
#[cfg(feature = "mutants")]
mod mutants;
mod posix;
mod posix_crash;
mod posix_large;
mod posix_model;
mod posix_stores;
mod power;
mod quota;
mod race_random;
mod races;
mod stores;
mod unreadable;
mod world;
