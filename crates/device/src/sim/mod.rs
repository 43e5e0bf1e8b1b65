//! Simulated storage with power cuts, for tests of everything above.
//!
//! [`SimDevice`] is a [`crate::BlockDevice`] and [`SimPlace`] a [`crate::Place`], both in memory.
//! They keep what is durable apart from what was written since, so that a power cut can do to the
//! latter all that the crate's contract allows, decided by a seed: the same calls from one thread
//! with the same seed end in the same bytes. Beyond that contract a [`SimDevice`] can be told to lie:
//! see [`FaultRates`]. [`BeforeReads`] is a hook into the reads of any device, [`HookedPlace`] has
//! hooks into the calls of any place.

mod before_reads;
mod crash;
mod device;
mod faults;
mod hooked;
mod place;
mod power;
mod rng;
mod seeds;

pub use before_reads::{BeforeReads, unreadable};
pub use device::SimDevice;
pub use faults::{Fault, FaultRates};
pub use hooked::{HookedPlace, Hooks};
pub use place::SimPlace;
pub use rng::SeededRng;
pub use seeds::for_each_seed;
