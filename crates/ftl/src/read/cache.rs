//! Stored chunks in memory, for short reads.
//!
//! Entries are what the device holds: encoded, encrypted, and verified anew each time they are used. A hit takes a
//! decoding instead of a read of the device.
//!
//! Chunks come from reads that missed, and from batches: whoever keeps pages in memory of its own writes most of them
//! when it needs their space, and reads them again from here. What is kept is decided by address, so that a chunk that is
//! overwritten often and read in between stays.
//!
//! No entry is used that is out of date, because of two invariants:
//!
//! 1. A version names bytes that never change. The numbers of batches are not given out twice while a store is open, and
//!    the cache ends with it. If two chunks of one batch have the same first sector, length and checksum, the later one
//!    hides all that the earlier one has stored, and is put later.
//! 2. An entry counts only if its version is that of the map. Readers and writers put chunks in any order; the older one
//!    of two may stay, and is a miss. A chunk that collection has moved keeps its batch, and so its entry.
//!
//! Chunks of all lengths come and go, put by one thread and dropped by another. A general allocator, with an arena for
//! each thread, soon took twice their bytes; in [`DenseBytes`] they take little more than is counted here
//! (`crates/ftl/examples/cache_memory.rs`).

use std::{
    borrow::Cow,
    sync::atomic::{AtomicU64, Ordering},
};

use lacuna_codec::Algorithm;
use lacuna_memory::DenseBytes;
use quick_cache::{Weighter, sync::Cache};
use smallvec::SmallVec;

use crate::{
    Seq,
    addr::{CHUNK_BYTES, PhysAddr, SegNo},
    format::{EntryKind, Extent},
    log::Item,
    mutant::{Rule, is_broken},
};

/// Reads of at most this many bytes use the cache: longer ones are scans, which would push everything else out for
/// chunks that they do not ask for again.
pub(super) const READ_BYTES_MAX: usize = 64 << 10;

/// The same for batches: those of a database's pages are shorter, those of a file that is copied longer.
const BATCH_BYTES_MAX: u64 = 512 << 10;

/// About what an entry takes in the cache's tables, in bytes.
const ENTRY_BYTES: u64 = 128;

/// What a chunk is called in the map, whichever part of it an extent is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// The first sector of the whole chunk.
    start: u64,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    birth: Seq,
    stored: u16,
    crc: u32,
    encoding: Algorithm,
    chunk_sectors: u8,
}

impl Key {
    /// The chunk of which `extent`, at `lba`, is a part.
    pub(super) fn of(lba: u64, extent: &Extent) -> Key {
        let Extent { birth, stored, crc, encoding, chunk_sectors, skip, .. } = *extent;
        Key { start: lba - u64::from(skip), version: Version { birth, stored, crc, encoding, chunk_sectors } }
    }
}

/// Counters of a cache since the store was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheUse {
    pub(crate) bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// Stored chunks, of a bounded number of bytes.
pub(crate) struct ChunkCache {
    /// By their first sectors.
    chunks: Cache<u64, Entry, Weight>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Clone)]
struct Entry {
    version: Version,
    chunk: Chunk,
}

/// A stored chunk. Most are compressed pages, which fit into one piece.
#[derive(Clone)]
pub(super) struct Chunk(SmallVec<[DenseBytes; 1]>);

impl Chunk {
    fn new(bytes: &[u8]) -> Chunk {
        Chunk(bytes.chunks(DenseBytes::LEN_MAX).map(DenseBytes::new).collect())
    }

    /// The bytes of the chunk, copied if they lie in several pieces.
    pub(super) fn bytes(&self) -> Cow<'_, [u8]> {
        match self.0.as_slice() {
            [piece] => Cow::Borrowed(piece),
            pieces => Cow::Owned(pieces.iter().map(|piece| &**piece).collect::<Vec<&[u8]>>().concat()),
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.0.iter().map(|piece| piece.memory_bytes() as u64).sum()
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<u64, Entry> for Weight {
    fn weight(&self, _: &u64, entry: &Entry) -> u64 {
        entry.chunk.memory_bytes() + ENTRY_BYTES
    }
}

impl ChunkCache {
    /// An empty cache of at most `bytes_max`; none for 0.
    pub(crate) fn new(bytes_max: u64) -> Option<ChunkCache> {
        let items = usize::try_from(bytes_max / (CHUNK_BYTES as u64 / 4)).unwrap_or(usize::MAX);
        (bytes_max > 0).then(|| ChunkCache {
            // It takes its tables at once, for so many entries.
            chunks: Cache::with_weighter(items.min(1 << 20), bytes_max, Weight),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    pub(super) fn get(&self, key: &Key) -> Option<Chunk> {
        let is_current = |version| version == key.version || is_broken(Rule::CachedByBatch);
        let found = self.chunks.get(&key.start).filter(|entry| is_current(entry.version));
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found.map(|entry| entry.chunk)
    }

    /// Keeps a chunk that was verified.
    pub(super) fn put(&self, key: Key, chunk: &[u8]) {
        self.chunks.insert(key.start, Entry { version: key.version, chunk: Chunk::new(chunk) });
    }

    /// Keeps the chunks of the batch `seq`.
    pub(crate) fn put_batch(&self, seq: Seq, items: &[Item<'_>]) {
        let bytes: u64 = items.iter().map(|item| item.payload.len() as u64).sum();
        if bytes > BATCH_BYTES_MAX {
            return;
        }
        for item in items.iter().filter(|item| item.kind == EntryKind::Write) {
            let nowhere = PhysAddr { segment: SegNo(0), grain: 0 };
            self.put(Key::of(item.lba.0, &item.entry(nowhere).extent(seq)), item.payload);
        }
    }

    pub(crate) fn counters(&self) -> CacheUse {
        CacheUse {
            bytes: self.chunks.weight(),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }
}
