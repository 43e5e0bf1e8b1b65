//! Reading and verifying all mapped data, or some ranges of it, roughly in the order of the device.
//!
//! In the order of addresses, extents lie anywhere, and each would take a read of its own. So a plan collects very many
//! extents and sorts them into the order of the device; they are then read in pieces. If there are more than fit into
//! one plan, they are read in *windows*, each of which covers some segments, so that each segment is read about once,
//! however addresses and places differ (`survey`).
//!
//! **Invariants.**
//! 1. A plan records where extents lay at one moment, and pins nothing. If the segment of a planned extent has been
//!    reused since, is dead, or holds something else than planned, the address is looked up again, pinned and read at
//!    its current place: only that result counts, and data that is no longer mapped is skipped. Every other extent is
//!    read as planned, even if it was overwritten or unmapped since, as long as its bytes are there.
//! 2. So each sector that stays mapped is verified, at a place where it has been since it was planned; exactly once, if
//!    meanwhile no extent in the ranges is added, removed or cut. Moving an extent makes no difference: its window is
//!    decided once, by its address.
//! 3. No segment is pinned for longer than it takes to read a piece.
//!
//! Memory: 24 bytes for each extent of a plan, 51 MiB at most; for more extents than that the survey, up to a byte and
//! a half for each; and what a piece takes. The map is walked once for each window, and once for the survey, in bytes
//! about a tenth of the data of small extents. No leaf of it is kept.
//!
//! Damage is reported in the order of the device, which differs from run to run: callers sort it.

mod steps;
mod survey;
mod walk;

pub(crate) use steps::{Ranges, Sweep, Swept, everything};
