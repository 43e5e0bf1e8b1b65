//! Undo slots: which are free, and what history their pages hold.
//!
//! A transaction whose history a view may need leaves its undo log where it is when it commits, and gives
//! its slot back at once: the next owner appends behind it. So readers never make writers wait. A slot
//! without history is used from the start of its first page, which keeps undo in a few hot pages.
//!
//! Invariants:
//!
//! 1. Logs in a slot were finished in the order in which they lie there.
//! 2. A slot is *kept* from the first log that is kept in it until all are purged and its pages are cleared.
//!    Its owner appends then; nobody else takes it meanwhile.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::active::{POISON_CHECK, deadline};
use crate::{
    error::{Error, Result},
    ids::{PageNo, UndoPtr},
    mutant::{Rule, is_broken},
    poison::Poison,
    undo::{SLOTS, UndoLog},
};

/// The undo log of a committed transaction, kept for views.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptLog {
    pub(crate) log: UndoLog,
    /// When the transaction finished.
    pub(crate) moment: u64,
    pub(crate) newest: UndoPtr,
    /// It deleted records, or replaced long values.
    pub(crate) needs_purge: bool,
    /// Room that its undo records and the long values they own take.
    pub(crate) bytes: u64,
}

/// A slot whose pages hold history.
#[derive(Default)]
struct Kept {
    /// Oldest first, each with the page in which its log starts.
    logs: VecDeque<(PageNo, KeptLog)>,
    /// The same for the log of the slot's owner.
    owner_start: Option<PageNo>,
}

#[derive(Default)]
struct Table {
    /// The one given back last is taken first.
    free: Vec<u32>,
    kept: HashMap<u32, Kept>,
    /// Kept logs by their moments.
    order: BTreeMap<u64, u32>,
    bytes: u64,
}

/// What to do with a slot's pages after logs in it were purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// It holds no history any more. It was free, and now belongs to the caller, to be cleared.
    Whole,
    /// The pages before this one, the first one excepted.
    UpTo(PageNo),
    /// The slot's owner will deal with its pages.
    Owned,
}

/// All undo slots. Its lock is taken last, under latches too, and held for moments.
pub(crate) struct Slots {
    table: Mutex<Table>,
    freed: Condvar,
    made: Vec<AtomicBool>,
}

impl Slots {
    pub(super) fn new() -> Slots {
        Slots {
            table: Mutex::new(Table { free: (0..SLOTS).rev().collect(), ..Table::default() }),
            freed: Condvar::new(),
            made: (0..SLOTS).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Takes a free slot, waiting for one when all are in use; and whether its pages hold history.
    pub(crate) fn take(&self, timeout: Duration, poison: &Poison) -> Result<(u32, bool)> {
        let deadline = deadline(timeout);
        let mut table = self.table.lock();
        loop {
            if let Some(slot) = table.free.pop() {
                return Ok((slot, table.kept.contains_key(&slot)));
            }
            if Instant::now() >= deadline {
                return Err(Error::LockTimeout);
            }
            // A stopped store gives no slot back any more.
            poison.check()?;
            self.freed.wait_until(&mut table, deadline.min(Instant::now() + POISON_CHECK));
        }
    }

    /// Takes a particular slot, which recovery found in use.
    pub(crate) fn take_this(&self, slot: u32) {
        self.table.lock().free.retain(|free| *free != slot);
    }

    /// Gives a slot back whose pages hold nothing that counts.
    pub(crate) fn give_back(&self, slot: u32) {
        let mut table = self.table.lock();
        table.kept.remove(&slot);
        table.free.push(slot);
        self.freed.notify_one();
    }

    /// Gives a slot back whose owner leaves nothing in it but history of others. False, and the slot stays
    /// its owner's, when there is none any more: its pages are to be cleared then.
    pub(crate) fn give_back_kept(&self, slot: u32) -> bool {
        let mut table = self.table.lock();
        match table.kept.get_mut(&slot) {
            Some(kept) if !kept.logs.is_empty() => kept.owner_start = None,
            _ => return false,
        }
        table.free.push(slot);
        self.freed.notify_one();
        true
    }

    /// Notes that the log of a kept slot's owner starts in the page `start`, or behind it.
    pub(crate) fn start_log(&self, slot: u32, start: PageNo) {
        if let Some(kept) = self.table.lock().kept.get_mut(&slot) {
            kept.owner_start = Some(start);
        }
    }

    /// Keeps the owner's log, which starts in `first` if no other is in the slot, and gives the slot back.
    /// False, and nothing done, when no view needs it and no other log is kept there.
    pub(crate) fn keep(&self, log: KeptLog, first: PageNo, is_needed: bool) -> bool {
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let slot = log.log.slot();
        let kept = table.kept.entry(slot).or_default();
        if !is_needed && kept.logs.is_empty() {
            table.kept.remove(&slot);
            return false;
        }
        assert!(kept.logs.back().is_none_or(|(_, last)| last.moment < log.moment), "invariant 1");
        let start = kept.owner_start.take().unwrap_or(first);
        kept.logs.push_back((start, log));
        table.order.insert(log.moment, slot);
        table.bytes += log.bytes;
        table.free.push(slot);
        self.freed.notify_one();
        true
    }

    /// The logs that finished before `moment` in the slot that has the oldest of all, oldest first; none when
    /// there are none. They stay kept.
    pub(crate) fn due(&self, moment: u64) -> Vec<KeptLog> {
        let table = self.table.lock();
        let Some((_, slot)) = table.order.range(..moment).next() else { return Vec::new() };
        let logs = table.kept[slot].logs.iter().map(|(_, log)| *log);
        logs.take_while(|log| log.moment < moment || is_broken(Rule::LaterLogsKept)).collect()
    }

    /// Whether there are any.
    pub(crate) fn is_due(&self, moment: u64) -> bool {
        self.table.lock().order.range(..moment).next().is_some()
    }

    /// Forgets the oldest `count` logs of a kept slot, which were purged.
    pub(crate) fn purged(&self, slot: u32, count: usize) -> Drained {
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let kept = table.kept.get_mut(&slot).expect("its logs were kept");
        for (_, log) in kept.logs.drain(..count) {
            table.order.remove(&log.moment);
            table.bytes -= log.bytes;
        }
        let next = kept.logs.front().map(|(start, _)| *start).or(kept.owner_start);
        if let Some(start) = next {
            return Drained::UpTo(start);
        }
        match table.free.iter().position(|free| *free == slot) {
            Some(at) => {
                table.free.remove(at);
                Drained::Whole
            }
            None => Drained::Owned,
        }
    }

    /// Logs kept, and the bytes they take.
    pub(crate) fn history(&self) -> (u64, u64) {
        let table = self.table.lock();
        (table.order.len() as u64, table.bytes)
    }

    /// Whether the slot's first page exists.
    pub(crate) fn is_made(&self, slot: u32) -> bool {
        self.made[slot as usize].load(Ordering::Acquire)
    }

    pub(crate) fn set_made(&self, slot: u32) {
        self.made[slot as usize].store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TxnId;

    fn log(slot: u32, moment: u64) -> KeptLog {
        let log = UndoLog::new(slot, TxnId(moment), false);
        KeptLog { log, moment, newest: UndoPtr::NONE, needs_purge: false, bytes: 10 }
    }

    fn take(slots: &Slots) -> (u32, bool) {
        slots.take(Duration::ZERO, &Poison::default()).expect("free")
    }

    #[test]
    fn a_slot_with_history_is_free_and_appended_to_until_it_is_drained() {
        let slots = Slots::new();
        let (slot, kept) = take(&slots);
        assert!(!kept && !slots.keep(log(slot, 1), PageNo(1), false), "nobody needs it");
        assert!(slots.keep(log(slot, 1), PageNo(1), true));
        assert_eq!(take(&slots), (slot, true));
        slots.start_log(slot, PageNo(7));
        assert!(slots.keep(log(slot, 3), PageNo(1), false), "others are kept there");
        assert_eq!((slots.due(3).len(), slots.due(4).len(), slots.history()), (1, 2, (2, 20)));
        assert_eq!(slots.purged(slot, 1), Drained::UpTo(PageNo(7)));
        assert_eq!(slots.purged(slot, 1), Drained::Whole);
        assert!(take(&slots) != (slot, true), "it is the caller's to clear");
        slots.give_back(slot);
        assert_eq!((take(&slots), slots.history()), ((slot, false), (0, 0)));
    }

    #[test]
    fn the_owner_of_a_drained_slot_clears_it() {
        let slots = Slots::new();
        let (slot, _) = take(&slots);
        assert!(slots.keep(log(slot, 1), PageNo(1), true));
        assert_eq!(take(&slots), (slot, true));
        assert_eq!(slots.purged(slot, 1), Drained::Owned);
        assert!(!slots.give_back_kept(slot));
        assert!(!slots.keep(log(slot, 2), PageNo(1), false));
    }
}
