//! Records on their way into the room that was reserved for them in the log.
//!
//! Room is reserved under the log's lock, in the order of the batches. It is filled without the lock, with header,
//! entries and payload, so a batch of megabytes does not hold up small ones, by the thread that reserved, before
//! its call returns and whatever else fails meanwhile: readers of the new extents and flushes wait for nothing
//! but that. One that panics instead stops the store (`sentinel`).
//!
//! Most who have filled their room are done: they lock the log again only where a piece is to be written
//! (invariant 4 of `tail`), or others wait to be, or somebody waits for what they have filled.

use std::{
    ops::Range,
    sync::atomic::{self, Ordering::SeqCst},
};

use lacuna_memory::copy_past_cache;

use crate::{
    Result,
    addr::{BLOCK, PhysAddr, SegNo},
    batch::{Item, payload_order},
    format::{RecordHeader, Salt},
    log::Log,
    store::Store,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize},
    },
    tail::Reserved,
};

/// What [`Log::append`] has reserved.
pub(crate) struct Appended {
    /// Where the payload of each item lies.
    pub(crate) placed: Vec<PhysAddr>,
    pub(crate) records: Vec<RecordRoom>,
    /// Pieces wait to be written.
    pub(crate) has_pending: bool,
    salt: Salt,
}

/// Room for a record.
pub(crate) struct RecordRoom {
    pub(crate) header: RecordHeader,
    /// The entries, packed.
    pub(crate) body: Vec<u8>,
    /// Those of the items that it has.
    pub(crate) items: Range<usize>,
    /// Where in the segment their payload begins.
    pub(crate) payload: usize,
    /// The room, front to back.
    pub(crate) parts: Vec<Reserved>,
}

impl Appended {
    /// Nothing yet, of `items` items.
    pub(crate) fn new(salt: Salt, items: usize) -> Appended {
        Appended {
            placed: Vec::with_capacity(items),
            records: Vec::with_capacity(1),
            has_pending: false,
            salt,
        }
    }
}

impl RecordRoom {
    /// Puts the record of `items` into its room. Calls `complete` with the offset of each part that was the last
    /// one of its piece.
    fn fill(self, salt: Salt, items: &[Item<'_>], mut complete: impl FnMut(usize)) {
        let sealed = self.header.seal(salt, &self.body);
        let padding = self.payload - self.header.offset as usize - sealed.len();
        let payloads = payload_order(items).map(|index| items[index].payload);
        let mut sources = [&sealed[..], &[0; BLOCK][..padding]].into_iter().chain(payloads);
        let mut source: &[u8] = &[];
        for part in self.parts {
            let completes = part.fill(|mut out| {
                while !out.is_empty() {
                    if source.is_empty() {
                        source = sources.next().expect("as much room as the record takes");
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

/// Those who wait, with the log locked, until room is filled.
#[derive(Default)]
pub(crate) struct Awaited {
    waiting: AtomicUsize,
    pub(crate) filled: Condvar,
    /// Some room will never be filled: whoever had reserved it has panicked.
    is_lost: AtomicBool,
}

impl Awaited {
    /// Waits until `look` finds something; nothing once room is lost.
    pub(crate) fn wait<T>(
        &self,
        log: &mut MutexGuard<'_, Log>,
        look: impl Fn(&Log) -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = look(log) {
            return Some(found);
        }
        self.waiting.fetch_add(1, SeqCst);
        // Before another look: who fills after that sees that somebody waits.
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

    /// Nobody waits any more. Called with the log locked.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, SeqCst);
        self.filled.notify_all();
    }

    /// Room was filled.
    fn tell(&self, log: &Mutex<Log>) {
        atomic::fence(SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            drop(log.lock()); // who has looked before waits by now
            self.filled.notify_all();
        }
    }
}

impl Store {
    /// Fills the room that [`Log::append`] has reserved for `items`, with no lock held, and begins the writes that
    /// are possible then.
    ///
    /// # Errors
    /// When a write has failed; all room is filled nevertheless.
    pub(crate) fn fill(&self, items: &[Item<'_>], appended: Appended) -> Result<()> {
        let Appended { records, has_pending, salt, .. } = appended;
        let mut complete: Vec<(SegNo, usize)> = Vec::new();
        for record in records {
            let (range, segment) = (record.items.clone(), record.header.life.segment);
            record.fill(salt, &items[range], |at| complete.push((segment, at)));
        }
        self.awaited.tell(&self.log);
        if complete.is_empty() && !has_pending {
            return Ok(());
        }
        let mut log = self.log.lock();
        complete.into_iter().for_each(|(segment, at)| log.filled(segment, at));
        let begun = self.begin_writes(log);
        self.buffers.stock_one();
        begun
    }
}
