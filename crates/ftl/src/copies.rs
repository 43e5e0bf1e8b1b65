//! Payloads on their way into the room that was reserved for them in the log.
//!
//! Room is reserved under the log's lock, in the order of the batches. Copying is done without the lock, so
//! a batch of megabytes does not hold up small ones, by the thread that reserved, before its call returns
//! and whatever else fails meanwhile: readers of the new extents and flushes wait for nothing but that.

use lacuna_device::Filled;

use crate::{addr::SegNo, batch::Item, log::Log, store::Store, sync::MutexGuard, tail::Reserved};

/// Room for a part of an item's payload, the one from byte `from` on.
pub(crate) struct Copy {
    pub(crate) segment: SegNo,
    pub(crate) item: usize,
    pub(crate) from: usize,
    pub(crate) room: Reserved,
}

/// What lies at `at` in a segment now.
pub(crate) struct Copied {
    pub(crate) segment: SegNo,
    pub(crate) at: usize,
    pub(crate) bytes: Filled,
}

impl Store {
    /// Fills the room that [`crate::log::Log::append`] has reserved for `items`. No lock is held meanwhile;
    /// the log is locked at the end, for the caller to go on with it ([`Store::begin_writes`]).
    pub(crate) fn copy(&self, items: &[Item<'_>], copies: Vec<Copy>) -> MutexGuard<'_, Log> {
        let copy = |Copy { segment, item, from, room }: Copy| {
            let payload = &items[item].payload[from..from + room.blank.len()];
            Copied { segment, at: room.at, bytes: room.blank.fill(|out| out.copy_from_slice(payload)) }
        };
        let mut copied: Vec<Copied> = Vec::with_capacity(copies.len()); // to collect would make the old one shorter
        copied.extend(copies.into_iter().map(copy));
        let mut log = self.log.lock();
        copied.into_iter().for_each(|copied| log.copied(copied));
        self.copied.notify_all();
        log
    }
}
