//! The base of all parts of a store: volume, map and log.

use std::sync::Arc;

use super::pages::PagedMap;
use crate::{
    log::{Journal, Log},
    map::{Map, SharedMap},
    media::Volume,
    sync::atomic::AtomicU64,
};

/// The base of all parts of a store.
#[derive(Clone)]
pub(crate) struct Base {
    pub(crate) volume: Arc<Volume>,
    pub(crate) map: Arc<SharedMap>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) pages: Arc<PagedMap>,
}

impl Base {
    /// The base of a store that was read into memory; see [`crate::Options::map_memory`].
    pub(crate) fn new(volume: Volume, map: Map, log: Log, map_memory: Option<u64>) -> Base {
        let (volume, map) = (Arc::new(volume), Arc::new(SharedMap::new(map)));
        let journal = Arc::new(Journal::new(Arc::clone(&volume), Arc::clone(&map), log));
        let pages = PagedMap {
            volume: Arc::clone(&volume),
            map: Arc::clone(&map),
            journal: Arc::clone(&journal),
            memory_max: map_memory,
            faults: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        };
        Base { volume, map, journal, pages: Arc::new(pages) }
    }
}
