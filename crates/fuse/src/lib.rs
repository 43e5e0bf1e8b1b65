//! Serves a Lacuna file system to the kernel, so that unmodified programs run on it.
//!
//! Three parts, each knowing nothing of those named before it:
//!
//! layers: complaints, innodb, latencies, mutant < counters, open_files < service < claims, transport < fuzz
//!
//! - [`transport`] carries the kernel's requests and our answers. It is behind a trait, because there is
//!   more than one way to talk to the kernel.
//! - [`Service`] answers them. It adds to [`lacuna_nvmfs::posix`] the parts that only a mount needs: DirectFS
//!   handshake, synchronous writes, counters, and a log of failures.
//! - [`innodb`] decides whether a write implies a trim. It is pure.
//!
//! # Data and caches
//!
//! What is opened without `O_DIRECT` lives in the kernel's page cache, written through: written data has reached the
//! store when `write` returns. With `O_DIRECT` one request of up to 1 MiB is one atomic batch, and parallel writes to
//! one file go in parallel; the kernel keeps no pages then, except those that are mapped into memory. With
//! [`PageCache::Off`] all files are open that way. With [`PageCache::WriteBack`] written data stays in the kernel until
//! the file is synced or closed, or the kernel needs the memory.
//!
//! Names and attributes are cached for a day: a store has one owner, so nothing changes without the kernel's knowledge.
//!
//! A program in the process that serves may read and write a file past the kernel ([`Claim`]), as long as nobody else has
//! it open.

mod claims;
mod complaints;
mod counters;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
pub mod innodb;
mod latencies;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub mod mutant;
mod open_files;
mod service;
pub mod transport;

pub use claims::Claim;
pub use counters::{Counters, CountersSnapshot};
pub use latencies::{Kind, LATENCY_BOUNDS_US, Latencies, LatencySnapshot};
pub use open_files::Opening;
pub use service::{Errno, Found, NamedAttr, PageCache, Service, ServiceOptions, SetGroupId, WriteRequest};
pub use transport::{
    MountOptions, Session, Transport, Unmounter, fuser::FuserTransport, uring::UringTransport,
};
