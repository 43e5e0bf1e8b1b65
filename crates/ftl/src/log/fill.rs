//! Records being written into the space that was reserved for them in the log.
//!
//! Space is reserved under the log's lock, in the order of the batches. It is filled with header, entries and payload
//! without the lock, so a batch of megabytes does not hold up small ones. The thread that reserved the space fills it
//! before its call returns, whatever else fails meanwhile: readers of the new extents and flushes wait for nothing
//! else. A thread that panics instead stops the store (`sentinel`).
//!
//! Most threads that have filled their space are done: they lock the log again only where a piece is complete and must
//! be written (invariant 4 of `tail`), where other pieces wait to be written, or where a thread waits for the space
//! they have filled.

use std::{
    ops::Range,
    sync::atomic::{self, Ordering::SeqCst},
};

use lacuna_memory::copy_past_cache;

use crate::{
    addr::{BLOCK, PhysAddr},
    format::{RecordHeader, Salt},
    log::{
        Log,
        batch::{Item, payload_order},
        tail::Reserved,
    },
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize},
    },
};

/// The space that [`Log::append`] has reserved.
pub(crate) struct Appended {
    /// Where the payload of each item lies.
    pub(crate) placed: Vec<PhysAddr>,
    pub(crate) records: Vec<RecordSpace>,
    /// Pieces wait to be written.
    pub(crate) has_pending: bool,
    pub(super) salt: Salt,
}

/// Space for a record.
pub(crate) struct RecordSpace {
    pub(crate) header: RecordHeader,
    /// The entries, packed.
    pub(crate) body: Vec<u8>,
    /// Indexes of the items that it holds.
    pub(crate) items: Range<usize>,
    /// Where in the segment their payload begins.
    pub(crate) payload: usize,
    /// The space, front to back.
    pub(crate) parts: Vec<Reserved>,
}

impl Appended {
    /// Nothing reserved yet, of `items` items.
    pub(crate) fn new(salt: Salt, items: usize) -> Appended {
        Appended {
            placed: Vec::with_capacity(items),
            records: Vec::with_capacity(1),
            has_pending: false,
            salt,
        }
    }
}

impl RecordSpace {
    /// Puts the record of `items` into its space. Calls `complete` with the offset of each part that was the last
    /// one of its piece.
    pub(super) fn fill(self, salt: Salt, items: &[Item<'_>], mut complete: impl FnMut(usize)) {
        let sealed = self.header.seal(salt, &self.body);
        let padding = self.payload - self.header.offset as usize - sealed.len();
        let payloads = payload_order(items).map(|index| items[index].payload);
        let mut sources = [&sealed[..], &[0; BLOCK][..padding]].into_iter().chain(payloads);
        let mut source: &[u8] = &[];
        for part in self.parts {
            let completes = part.fill(|mut out| {
                while !out.is_empty() {
                    if source.is_empty() {
                        source = sources.next().expect("as much space as the record takes");
                    }
                    let (now, later) = out.split_at_mut(source.len().min(out.len()));
                    copy_past_cache(now, &source[..now.len()]);
                    (source, out) = (&source[now.len()..], later);
                }
            });
            completes.into_iter().for_each(&mut complete);
        }
    }
}

/// The threads that wait, with the log locked, until space is filled.
#[derive(Default)]
pub(super) struct PendingFills {
    waiting: AtomicUsize,
    filled: Condvar,
    /// Some space will never be filled: the thread that had reserved it has panicked.
    is_lost: AtomicBool,
}

impl PendingFills {
    /// Waits until `look` finds something; returns nothing once space is lost.
    pub(crate) fn wait<T>(
        &self,
        log: &mut MutexGuard<'_, Log>,
        look: impl Fn(&Log) -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = look(log) {
            return Some(found);
        }
        self.waiting.fetch_add(1, SeqCst);
        // Before another look: a thread that fills space after it sees that a thread waits.
        atomic::fence(SeqCst);
        let found = loop {
            match look(log) {
                None if !self.is_lost() => self.filled.wait(log),
                found => break found,
            }
        };
        self.waiting.fetch_sub(1, SeqCst);
        found
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(SeqCst)
    }

    /// Ends all waits, and no thread waits any more. Called with the log locked.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, SeqCst);
        self.filled.notify_all();
    }

    /// Space was filled.
    pub(super) fn report(&self, log: &Mutex<Log>) {
        atomic::fence(SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            drop(log.lock()); // a thread that looked before is waiting by now
            self.filled.notify_all();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
impl PendingFills {
    pub(super) fn wake_one(&self) -> bool {
        self.filled.notify_one()
    }
}
