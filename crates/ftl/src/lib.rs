//! A host-side flash translation layer: a sparse space of 2^64 sectors on a block device, with
//! atomic batches, persistent trim and thin provisioning.
//!
//! ```
//! use std::sync::Arc;
//!
//! use lacuna_device::{BlockDevice, MemDevice};
//! use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Stream};
//!
//! # fn main() -> lacuna_ftl::Result<()> {
//! let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
//! Ftl::format(device.clone(), &FormatOptions::default())?;
//! let ftl = Ftl::open(device, Options::default())?;
//!
//! // Both or neither, whatever happens; and for good once flushed.
//! let page = [7; 4096];
//! let far = Lba(1 << 50);
//! ftl.write_batch(
//!     &[Op::Write { lba: far, data: &page }, Op::Trim { lba: Lba(0), sectors: 1 << 40 }],
//!     Stream::Data,
//! )?;
//! ftl.flush()?;
//!
//! let mut back = [0; 4096];
//! ftl.read(far, &mut back)?;
//! assert_eq!(back, page);
//! # Ok(())
//! # }
//! ```
//!
//! # What it is good for
//!
//! It replaces the log, allocator, journal and recovery of a storage program by four primitives: a space in which every
//! address is free, batches, trim, and a query of what is mapped.
//!
//! - **Key-value stores**: a key's hash is its address, so there is no index to keep and no compaction;
//!   a transaction is one batch. `examples/kv.rs` is one, with no recovery code.
//! - **File systems**: a file is a region of the space, which needs no allocation and is removed by one trim; create,
//!   rename and unlink are one batch each, with neither journal nor fsck. The crate `lacuna-nvmfs` is one.
//! - **Databases**: pages are overwritten in place, whole after any crash, without a doublewrite buffer;
//!   what compression saves of a page is trimmed. Logs have a [`Stream`] of their own, trimmed from the front.
//! - **Caches**: the address on the backing device is the address here; eviction is a trim, a batch holds data and its
//!   metadata, and a restart finds both ([`Ftl::mapped`] lists what is cached):
//!
//! ```
//! # use std::{ops::Range, sync::Arc};
//! # use lacuna_device::{BlockDevice, MemDevice};
//! # use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Result, Stream};
//! # fn main() -> Result<()> {
//! # let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
//! # Ftl::format(device.clone(), &FormatOptions::default())?;
//! # let cache = Ftl::open(device, Options::default())?;
//! /// What of a disk of any size is cached.
//! fn cached(cache: &Ftl) -> Result<Vec<Range<Lba>>> {
//!     let (mut runs, mut from) = (Vec::new(), Lba(0));
//!     while let Some(run) = cache.mapped(from..Lba(u64::MAX))? {
//!         from = run.end;
//!         runs.push(run);
//!     }
//!     Ok(runs)
//! }
//!
//! let put = |lba, data| cache.write_batch(&[Op::Write { lba, data }], Stream::Data);
//! put(Lba(8), &[1; 4096])?;
//! put(Lba(1 << 40), &[2; 4096])?;
//! cache.write_batch(&[Op::Trim { lba: Lba(8), sectors: 8 }], Stream::Data)?; // evict
//! assert_eq!(cached(&cache)?, [Lba(1 << 40)..Lba((1 << 40) + 8)]);
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! - **Batch.** Any mix of writes and trims under one number, applied whole or not at all across any
//!   crash. There is no other way to write. Numbers are dense.
//! - **Prefix.** After a power cut the space is what some prefix of the accepted batches, in order,
//!   made of it, and that prefix contains every batch accepted before the last [`Ftl::flush`] that
//!   returned.
//! - **Never wrong bytes.** Data that does not match its checksum is an error that names the place.
//! - **Never stuck.** Reads, trims and overwrites of the same size work on a full store, and a batch
//!   is refused with [`Error::Full`] before anything of it is applied. Of what is [`Encoded`], a payload takes its space
//!   until all of it is overwritten or trimmed: an overwrite of the same size is one of the whole.
//!
//! # How it works
//!
//! The device is cut into segments. The first holds two superblock slots, and copies of
//! the superblock lie in a segment in the middle and behind the last one. The others are free, or are filled from front
//! to back with *records*: a header, entries, payload. A batch is one record, or one per segment that it spans. Batches
//! of data and moved extents have an append point each for every class of lifetime, logs have one; a record is never
//! changed once it is written. A sealed segment ends in a *summary*, a copy of its headers and entries, so that they
//! can be read without the rest of the segment. The *map* says which record holds the bytes of each sector; its
//! *leaves* are in memory, or on the device, or both. A *checkpoint* is the map after one batch, on the device: the
//! leaves that changed since the one before, and an index of all. The superblock points to its root. Bytes that the map
//! does not point to are garbage, and collection turns mostly-garbage segments into free ones by moving the live
//! extents.
//!
//! # Why a power cut at any instant is harmless
//!
//! The device may keep or lose each sector written since the last sync, in any order (see [`lacuna_device`]). Recovery
//! reads superblock and checkpoint, then the records after the checkpoint. It applies batches by number until the first
//! that is not there whole; then, also by number, relocations: the extents that collection has moved. Nine facts make
//! that enough:
//!
//! 1. **A batch is whole or void.** Its parts are counted, and the last one is marked. Headers and
//!    entries are under one CRC. Payload has a CRC per chunk; recovery verifies it for every batch
//!    that is not known to be durable. (`recovery::replay`)
//! 2. **Flushed means in the prefix.** A flush writes the tails of all append points for batches,
//!    waits for every earlier write, then syncs. So it makes all batches up to its own durable, on
//!    whichever append point, and no gap lies below a flushed batch. (`log::flush`)
//! 3. **Flushed sectors are never changed.** A flush pads to the next device block, and appends go
//!    on behind it. A tail is never appended to after a reopen: recovery opens fresh segments. (`log::tail`)
//! 4. **Corruption is distinguished from a torn log tail.** Records say up to which batch all was durable when they
//!    were made. If recovery ends below the highest such mark, it reports corruption. (`recovery::replay`)
//! 5. **Stale bytes are not taken for records.** A record names its segment, offset, epoch and generation under a CRC
//!    that is salted with the store's identity. A generation is given out twice only if the power cut lost all headers
//!    that had it; the epochs then differ. (`media::scan`)
//! 6. **A batch past the power cut is void for ever.** Its number will be given out again. So before the
//!    first batch is accepted, opening makes a checkpoint durable that begins behind all older segments,
//!    under a new epoch. (`recovery`)
//! 7. **Changing the root is atomic.** Everything that a new root leads to is synced before the first
//!    slot is written, and what only the old root needs is freed after both slots and the copies are. Leaves that are
//!    written between two checkpoints are reached through the next one only. No segment with a leaf is
//!    reused while the durable root or the map in memory leads to it. (`checkpoint`, `media::superblock`)
//! 8. **Nothing is overwritten that a recovery could need.** A segment is reused only when no extent is in it, the
//!    durable checkpoint began after it was sealed, and a flush of everything that began after it was dead has ended.
//!    Then none of its records is replayed. Whichever prefix recovery reaches, it holds the batches that overwrote the
//!    segment's extents and finds the relocations that moved them, even if the checkpoint's map still points into it.
//!    The records of a segment that is younger than the checkpoint lead from that to later places: the segment waits
//!    for the next checkpoint, or until its *retained summary*, a copy of its summary among the leaves of the map, is
//!    durable and can be replayed in its stead. (`reuse`, `checkpoint::retained`)
//! 9. **Moving is invisible.** Collection changes where bytes are and not what they are. A relocation names sectors and
//!    the *birth* of their bytes, the batch that wrote them. It applies wherever the map holds just that birth,
//!    whichever batches the power cut lost. That of an encoded chunk names all its sectors, and its batch changed none of
//!    them twice, so its payload holds what its birth left in each. A relocation that the power cut lost does no harm: the old place is intact,
//!    by 8. One below the flush mark that is missing is corruption. (`recovery::replay`)
//!
//! With a *log device* ([`LogDeviceUse`]) a flush makes durable there what is not on the device yet, and the nine facts
//! hold for the device alone, with "flushed" read as settled: written to the device and synced. All marks, deaths and
//! roots rely on what is settled, so the device without its log device is a store after a power cut, whose last flushes
//! were not called. Three more make the two of them a store in which those were called:
//!
//! 10. **What is acknowledged is on one of them.** Each byte appended for a batch is listed until it is settled or in
//!     the ring, and a flush that is logged takes all that is listed. (`log::logging`)
//! 11. **Bringing it over is harmless.** Recovery writes the same bytes to the same places, before it reads anything
//!     else. A segment is reused only after the mark on the log device has moved past all that the ring holds of it; and
//!     with the root of the new epoch all of the ring is void. (`recovery::log_device`)
//! 12. **The log device belongs to one state of one store.** Identity, epoch and last batch on both say so; a store that
//!     went on without its log device says so durably first. (`media::ring`, `recovery::log_device`)
//!
//! A second power cut, during recovery, meets the same bytes: recovery first makes durable what it has read and what
//! may never have been synced (`recovery::resync`), and writes its checkpoint only where neither its map nor its replay
//! lead. Once that checkpoint is in force, it meets an empty log, by 6.
//!
//! A failed write or sync leaves it unknown what the device holds, so it *poisons* the store: reads go on, all else
//! fails until the store is opened anew. A later sync that succeeds proves nothing, so the next open first rewrites in
//! place whatever is not known to be durable. A panic stops reads as well: the map may be between two states.
//! (`log::sentinel`)
//!
//! # Reading the source
//!
//! A folder imports only what stands above it in this picture; `.ci/layers` checks that against the lines below it.
//! Each folder's `mod.rs` says what it owns and which invariants it holds.
//!
//! ```text
//!  addr, ranges, sync, mutant    units, locks (under a scheduler for tests), rules that tests break
//!  encoding                      what is stored of chunks that are compressed: pure
//!  error, options                what callers see
//!  format                        every byte on the device
//!  space                         sizes and limits: pure arithmetic
//!  media                         the device, and what lies there: superblocks, records, summaries; the log device's ring
//!  map                           which sectors are stored where; no I/O
//!  log                           segments, append points, tails, writes in flight, flushes, the reserve
//!  paging                        leaves of the map into memory and out of it
//!  read   reuse                  reads; when a segment may be used again, and why that is safe
//!  checkpoint                    the map to the device, and the switch of the root
//!  gc                            choosing victims, and moving what is live out of them
//!  maintenance                   what is due, and how long writers wait for it
//!  write                         batches into log and map
//!  recovery                      from the device to map and log: replay, resync, salvage
//!  verify                        check, scrub
//!  store                         the parts put together; the public face
//!
//! layers: addr, mutant, ranges, sync < encoding < error, options < format < space < media < map < log < paging
//! layers: < read, reuse < checkpoint < gc < maintenance < write < recovery < verify < store < bench, fuzz
//! ```

mod addr;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod checkpoint;
mod encoding;
mod error;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
mod gc;
mod log;
mod maintenance;
mod map;
mod media;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub mod mutant;
mod options;
mod paging;
mod ranges;
mod read;
mod recovery;
mod reuse;
mod space;
mod store;
mod sync;
mod verify;
mod write;

pub use addr::{CHUNK_SECTORS, Lba, SECTOR, Seq};
pub use encoding::{Choice, Encoded, chunks};
pub use error::{Error, Result};
pub use lacuna_codec::{Algorithm, Codec};
pub use lacuna_crypt::{
    Cost as KeyCost, Error as KeyError, KeyChange, SECRET_BYTES_MAX as KEY_BYTES_MAX, Secret,
    SlotInfo as KeyInfo, SlotOptions as KeyOptions, Source as KeySource,
};
pub use options::{
    CheckDepth, Effect, Finding, Footprint, FormatOptions, Key, LogDeviceUse, NewKey, Op, Options, Progress,
    Report, Room, RoomOf, Spare, Stats, Stream, StreamStats, Work,
};
pub use paging::ResidentLeaves;
pub use read::{Cold, Lost, Mapped, Remains};
pub use space::BATCH_BYTES_MAX;
pub use store::Ftl;
pub use verify::{Damage, Scrub};

/// The example of README.md, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
