//! Background work and its schedule: collection and checkpoints.
//!
//! Deciding is separate from doing, and doing is one piece at a time, so that a thread, a simulation
//! and a writer that has run out of free segments can all drive it.
//!
//! Where there is a thread, it collects, and writers wait for it in small portions (`throttle`): the fewer segments are
//! free, the more must have been moved before a write returns. So they are slowed down to the rate at which collection
//! wins space, and hardly ever have to wait for a whole segment. Where there is no thread, a writer moves the same
//! share itself, piece by piece.

mod debt;
mod grow;
mod host;
mod parts;
mod plan;
mod thread;
mod throttle;
mod work;

pub(crate) use parts::Maintenance;
