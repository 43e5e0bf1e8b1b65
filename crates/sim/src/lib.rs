//! Simulated storage with power cuts and injected faults: a crate for tests.
//!
//! - [`SimDevice`] is a [`BlockDevice`](lacuna_device::BlockDevice) and [`SimVfs`] a
//!   [`Vfs`](lacuna_device::Vfs), both in memory. They keep durable content apart from content written since the last
//!   sync, so that a power cut can affect the latter in every way that the contract of `lacuna-device` allows.
//! - [`SimMemory`] is persistent memory beside a device, a [`LogDevice`](lacuna_device::LogDevice) whose stores a power
//!   cut may take line by line until they are written back and fenced.
//! - [`FaultRates`] goes beyond that contract: a [`SimDevice`] then loses and misdirects writes, returns stale data or
//!   delays discards, without an error. [`Fault`] records each.
//! - [`BeforeReads`] calls a hook before each read of any device, [`HookedVfs`] calls [`Hooks`] around the calls of
//!   any VFS, [`unreadable`] makes byte ranges of a device fail, a [`FullHost`] has no space for writes.
//! - [`forge`] changes stores behind their checksums, as an attacker would.
//! - [`pack_image`] and [`unpack_image`] keep devices as small files beside tests.
//! - [`forked`] runs part of a test in a child process.
//! - [`Watchdog`] and [`peak_memory_bytes`] limit what a test may take.
//! - [`CutTally`] counts where power cuts fell, so that a matrix which misses a place fails.
//! - [`mutation`] runs a test of a crate with one of its rules broken, and says whether an assertion noticed.
//! - [`SeededRng`] is the only source of chance; [`for_each_seed`] runs a test for many seeds and names one that fails.
//!
//! # Invariants
//!
//! 1. The same calls from one thread with the same seed end in the same bytes.
//! 2. The effects of a power cut stay within the contract of `lacuna-device`, unless faults are injected; over many
//!    seeds everything that the contract allows happens.
//! 3. Nothing touches the medium while the power is off: every call returns
//!    [`Error::PowerCut`](lacuna_device::Error::PowerCut).

mod before_reads;
mod crash;
mod device;
mod faults;
pub mod forge;
mod forked;
mod full_host;
mod hooked;
mod image;
mod limits;
mod memory;
pub mod mutation;
mod power;
mod rng;
mod seeds;
mod tally;
mod vfs;

pub use before_reads::{BeforeReads, unreadable};
pub use device::SimDevice;
pub use faults::{Fault, FaultRates};
pub use forked::forked;
pub use full_host::FullHost;
pub use hooked::{HookedVfs, Hooks};
pub use image::{pack_image, unpack_image};
pub use limits::{Watchdog, peak_memory_bytes};
pub use memory::SimMemory;
pub use rng::SeededRng;
pub use seeds::for_each_seed;
pub use tally::CutTally;
pub use vfs::SimVfs;
