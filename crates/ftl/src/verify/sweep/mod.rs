//! Reading and verifying all that is mapped, or some ranges of it, about as it lies on the device.
//!
//! In the order of addresses, extents lie anywhere, and each would take a read of its own. So very many are planned,
//! put into the order of the device, and then read in pieces. More than fit into one plan are read in *windows*, each
//! of which is what lies in some segments, so that each segment is read about once, however addresses and places differ
//! (`survey`).
//!
//! **Invariants.**
//! 1. A plan is where extents lay at one moment, and pins nothing. What is planned of a segment that has been used
//!    again since, that is dead, or where something else is found than what was planned, is looked up anew, pinned and
//!    read where it is now: only that counts, and what is gone is not missed. All else is met as it was planned: what
//!    was overwritten or unmapped since too, as long as its bytes are there.
//! 2. So each sector that is mapped all the time is verified, at a place where it was since it was planned; and once,
//!    if meanwhile no extent in the ranges comes, goes or is cut. Where one is moved to does not matter: its window is
//!    settled once, by its address.
//! 3. No segment is pinned for longer than it takes to read a piece.
//!
//! Memory: 24 bytes for each extent of a plan, 51 MiB at most; for more extents than that the survey, up to a byte
//! and a half for each; and what a piece takes. The map is walked once for each window, and once for the
//! survey, in bytes about a tenth of what small extents take. No leaf of it is kept.
//!
//! What is wrong comes in the order of the device, which differs from time to time: callers sort.

mod steps;
mod survey;
mod walk;

pub(crate) use steps::{Ranges, Sweep, Swept, everything};
