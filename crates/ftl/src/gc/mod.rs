//! Garbage collection: moving the live extents out of a segment, so that all of it becomes garbage.
//!
//! The victim is the sealed segment that pays best: much space won for few bytes moved, and old. Its summary, or else
//! its records, list the sectors that were written to it; the map says which of them are live there. Each live extent
//! is read, verified, cut to its live part, and appended as a chunk of its own to the collection's append point for
//! extents of its age; the map is switched to the new place if it still holds exactly that extent.
//!
//! Extents are moved to the append point of their class (`log::lifetime`). Where segments are scarce, classes
//! share one.
//!
//! A segment is collected in pieces ([`PIECE_BYTES`]), so that a writer that does one piece is not held up by the rest.
//! The rest of a victim waits in a [`Collection`] under the maintenance lock; anything may happen between two pieces.
//! Invariants:
//! 1. The victim of a collection is sealed and in the life in which it was chosen, or the collection is dropped before
//!    it does another piece. So it reads the bytes that were there when the victim was chosen.
//! 2. Nothing that a collection remembers counts unless the map still holds it when it is moved.
//! 3. Until a collection has ended no other begins: the space that it was found to fit into stays its own,
//!    because neither writers nor leaves written back take the segments kept for collection.
//!
//! Crash argument: a moved extent is the same bytes at another place. Recovery replays relocations after the batches,
//! where the map still holds what they moved (`recovery::replay`). Losing a relocation in a power cut does no harm: the
//! old place stays intact until the relocation is durable (`reuse`).
//!
//! A chunk that does not fit into the rest of a segment may be moved in two parts. They are two relocations like any
//! others: where a power cut leaves one of them, the other part is found at its old place, which is not reused before
//! both are durable (`reuse`). The additional extent that recovery then finds is accounted for (`log::peak`).
//!
//! A live chunk whose checksum does not match, or that cannot be read, is left where it is. Its segment is counted as
//! damaged and neither collected again nor reused until the store is opened anew, so that the error stays an error and
//! collection goes on. The same holds for a segment that counts extents which no leaf holds: its counters were forged.

mod ahead;
mod collection;
mod collector;
mod live;
mod mover;
mod moving;
mod restore;

pub(crate) use collector::{Collecting, Collector};
