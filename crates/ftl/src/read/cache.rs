//! Stored chunks in memory, for short reads.
//!
//! Entries are what the device holds: encoded, encrypted, and verified anew each time they are used. A hit takes a
//! decoding instead of a read of the device.
//!
//! Nothing is ever removed because it is out of date, because of two invariants:
//!
//! 1. What a `Key` names never changes. A batch writes once. Where it writes sectors twice, two chunks may have the same
//!    first sector and stored length; then the later one hides all that the earlier one has stored, and zeros behind
//!    that are not looked up. Encoded chunks are never written twice by a batch (`Op::Encoded`). The numbers of batches
//!    are not given out twice while a store is open, and the cache ends with it.
//! 2. Only what the map says is looked up. A chunk that was overwritten is not mapped any more, and its entry waits
//!    unused until others push it out. One that collection has moved keeps its batch, and so its entry.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lacuna_codec::Algorithm;
use quick_cache::{Weighter, sync::Cache};

use crate::{
    addr::{CHUNK_BYTES, Seq},
    format::Extent,
    mutant::{Rule, is_broken},
};

/// Reads of at most this many bytes use the cache: longer ones are scans, which would push everything else out for
/// chunks that they do not ask for again.
pub(super) const READ_BYTES_MAX: usize = 64 << 10;

/// About what an entry takes in memory beside its chunk, in bytes.
const ENTRY_BYTES: u64 = 128;

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    birth: Seq,
    /// The first sector of the whole chunk.
    start: u64,
    stored: u16,
    crc: u32,
    encoding: Algorithm,
    chunk_sectors: u8,
}

impl Key {
    /// The chunk of which `extent`, at `lba`, is a part.
    pub(super) fn of(lba: u64, extent: &Extent) -> Key {
        let Extent { birth, stored, crc, encoding, chunk_sectors, skip, .. } = *extent;
        let start = lba - u64::from(skip);
        if is_broken(Rule::CachedByBatch) {
            return Key {
                birth: Seq(0),
                start,
                stored: 0,
                crc: 0,
                encoding: Algorithm::None,
                chunk_sectors: 0,
            };
        }
        Key { birth, start, stored, crc, encoding, chunk_sectors }
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
    chunks: Cache<Key, Arc<[u8]>, Weight>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Arc<[u8]>> for Weight {
    fn weight(&self, _: &Key, chunk: &Arc<[u8]>) -> u64 {
        chunk.len() as u64 + ENTRY_BYTES
    }
}

impl ChunkCache {
    /// An empty cache of at most `bytes_max`; none for 0.
    pub(crate) fn new(bytes_max: u64) -> Option<ChunkCache> {
        let items = usize::try_from(bytes_max / (CHUNK_BYTES as u64 / 2)).unwrap_or(usize::MAX);
        (bytes_max > 0).then(|| ChunkCache {
            // It takes its tables at once, for so many entries.
            chunks: Cache::with_weighter(items.min(1 << 20), bytes_max, Weight),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<[u8]>> {
        let found = self.chunks.get(key);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps a chunk that was verified.
    pub(super) fn put(&self, key: Key, chunk: &[u8]) {
        self.chunks.insert(key, chunk.into());
    }

    pub(crate) fn counters(&self) -> CacheUse {
        CacheUse {
            bytes: self.chunks.weight(),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }
}
