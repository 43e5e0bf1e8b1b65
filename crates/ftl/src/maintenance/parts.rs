//! What maintenance consists of, and its state.

use std::sync::Arc;

use crate::{
    checkpoint::Checkpointer,
    gc::Collector,
    log::Journal,
    map::SharedMap,
    media::Volume,
    paging::{Base, PagedMap},
    reuse::Reuse,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Does what is due: collection, checkpoints and the like.
pub(crate) struct Maintenance {
    pub(super) volume: Arc<Volume>,
    pub(super) map: Arc<SharedMap>,
    pub(super) journal: Arc<Journal>,
    pub(super) pages: Arc<PagedMap>,
    pub(super) reuse: Arc<Reuse>,
    pub(super) checkpointer: Arc<Checkpointer>,
    pub(super) collector: Arc<Collector>,
    pub(super) host: Host,
    /// A thread does it; see [`crate::Options::background`].
    pub(super) is_threaded: bool,
    pub(super) signal: Mutex<Signal>,
    pub(super) changed: Condvar,
    pub(super) activity: Mutex<Activity>,
    /// Bytes that collection must have moved since open; see `throttle`.
    pub(super) debt: AtomicU64,
}

impl Maintenance {
    pub(crate) fn new(
        base: Base,
        reuse: Arc<Reuse>,
        checkpointer: Arc<Checkpointer>,
        collector: Arc<Collector>,
        is_threaded: bool,
    ) -> Maintenance {
        let Base { volume, map, journal, pages } = base;
        Maintenance {
            volume,
            map,
            journal,
            pages,
            reuse,
            checkpointer,
            collector,
            host: Host::default(),
            is_threaded,
            signal: Mutex::default(),
            changed: Condvar::default(),
            activity: Mutex::default(),
            debt: AtomicU64::new(0),
        }
    }
}

/// The activity, current or last, of the holder of the maintenance lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Activity {
    #[default]
    Other,
    Collecting,
}

#[derive(Default)]
pub(super) struct Signal {
    pub(super) kicked: bool,
    pub(super) stopped: bool,
}

/// How many segments were in use, or ready, when the host had no space for one more.
#[derive(Debug)]
pub(crate) struct Host(AtomicUsize);

impl Default for Host {
    fn default() -> Host {
        Host(AtomicUsize::new(usize::MAX))
    }
}

impl Host {
    pub(super) fn give_up(&self, touched: usize) {
        self.0.store(touched, Ordering::Relaxed);
    }

    /// Whether it is not worth asking again: until the store has taken another segment, at least.
    pub(super) fn gave_up(&self, touched: usize) -> bool {
        self.0.load(Ordering::Relaxed) == touched
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_space_is_asked_again_once_more_is_in_use() {
        let host = Host::default();
        assert!(!host.gave_up(5));
        host.give_up(5);
        assert!(host.gave_up(5) && !host.gave_up(6));
        host.give_up(6);
        assert!(host.gave_up(6));
    }
}
