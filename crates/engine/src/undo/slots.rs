//! Undo slots: which are free, which history their pages hold, and which thread may free pages.
//!
//! A transaction whose history a view may need leaves its undo log where it is when it commits, and returns its slot at
//! once: the next owner appends after it. So readers never make writers wait. A slot without history is used from the
//! start of its first page, which keeps undo in a few hot pages.
//!
//! A slot is *free*, or *held*: by the transaction that took it, then by the purge queue when that transaction
//! has committed and no view needs its log, or by purge, which clears it. It is *kept* from the first log that is
//! kept in it until all are purged and its pages are cleared; it may be free meanwhile.
//!
//! Invariants:
//!
//! 1. Logs in a slot are in the order in which their transactions finished.
//! 2. The next owner of a kept slot appends; only the holder of a slot writes records to it.
//! 3. Pages are freed only with a [`Clearance`], of which a slot has one at a time. Purge gets it for the pages before
//!    the oldest log that is still needed, whether or not the slot is held; the holder, for all pages, once no log is
//!    kept in the slot and purge has returned its own. A holder that leaves earlier only frees the slot: it stays kept,
//!    and its pages are purge's, or the next owner's, to clear.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    mutant::{Rule, is_broken},
    poison::{POISON_CHECK, Poison},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        deadline,
    },
    types::{Error, PageNo, Result, UndoPtr},
    undo::{SLOTS, UndoLog},
};

/// Memory that a kept log takes here, beside the undo that it names: in both lists of `Table`, spare capacity included.
const KEPT_BYTES: u64 = 128;

/// Logs of a slot that purge takes at a time: it copies them under the lock, and forgets them at their end.
const DUE_MAX: usize = 1000;

/// The undo log of a committed transaction, kept for views.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetainedLog {
    pub(crate) log: UndoLog,
    /// When the transaction finished.
    pub(crate) moment: u64,
    pub(crate) newest: UndoPtr,
    /// It deleted records, or replaced long values.
    pub(crate) needs_purge: bool,
    /// Bytes that its undo records and the long values they own take.
    pub(crate) bytes: u64,
}

impl RetainedLog {
    /// What it takes until it is purged, on the device or in memory.
    fn all_bytes(&self) -> u64 {
        self.bytes + KEPT_BYTES
    }
}

/// Where the log of a kept slot's owner starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogStart {
    /// What was the chain's last page: the log starts in it or after it.
    pub(crate) page: PageNo,
    /// Its first record, after the link.
    pub(crate) record: UndoPtr,
}

/// A slot whose pages hold history.
#[derive(Default)]
struct SlotHistory {
    /// Oldest first, each with the page in which its log starts.
    logs: VecDeque<(PageNo, RetainedLog)>,
    owner_start: Option<LogStart>,
    /// Purge has the slot's clearance.
    is_trimmed: bool,
}

impl SlotHistory {
    /// Whether only the slot's holder still needs its pages.
    fn is_drained(&self) -> bool {
        self.logs.is_empty() && (!self.is_trimmed || is_broken(Rule::OneGivesPagesBack))
    }
}

/// The right to free pages of a slot (invariant 3): those before `keep`, or all; never the first one.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Clearance {
    slot: u32,
    keep: Option<PageNo>,
}

impl Clearance {
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// The first page that stays beside the slot's first one, if any does.
    pub(crate) fn keep(&self) -> Option<PageNo> {
        self.keep
    }
}

struct Table {
    /// The slot returned last is taken first.
    free: Vec<u32>,
    is_held: Vec<bool>,
    kept: HashMap<u32, SlotHistory>,
    /// Retained logs by their moments.
    order: BTreeMap<u64, u32>,
    bytes: u64,
}

impl Table {
    fn free(&mut self, slot: u32) {
        assert!(std::mem::replace(&mut self.is_held[slot as usize], false), "only who holds a slot frees it");
        self.free.push(slot);
    }

    fn hold(&mut self, slot: u32) {
        let was_held = std::mem::replace(&mut self.is_held[slot as usize], true);
        assert!(!was_held, "a slot has one holder");
    }

    /// The holder's right to all pages; `None` while there are logs in them, or purge has its own.
    fn clearance(&self, slot: u32) -> Option<Clearance> {
        assert!(self.is_held[slot as usize], "only for who holds the slot");
        let is_drained = self.kept.get(&slot).is_none_or(SlotHistory::is_drained);
        is_drained.then_some(Clearance { slot, keep: None })
    }
}

/// The next step for a slot's pages after logs in it were purged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// It holds no history any more. It was free, and now belongs to the caller, to be cleared.
    Whole(Clearance),
    /// Logs are left, or the owner's is: the pages before them are to be freed.
    UpTo(Clearance),
    /// The slot's owner will free its pages.
    Owned,
}

/// All undo slots. Its lock is taken last, also under latches, and held briefly.
pub(crate) struct Slots {
    table: Mutex<Table>,
    freed: Condvar,
    made: Vec<AtomicBool>,
}

impl Slots {
    pub(super) fn new() -> Slots {
        let table = Table {
            free: (0..SLOTS).rev().collect(),
            is_held: vec![false; SLOTS as usize],
            kept: HashMap::new(),
            order: BTreeMap::new(),
            bytes: 0,
        };
        let made = (0..SLOTS).map(|_| AtomicBool::new(false)).collect();
        Slots { table: Mutex::new(table), freed: Condvar::new(), made }
    }

    /// Takes a free slot, waiting for one when all are in use; and whether its pages hold history.
    pub(crate) fn take(&self, timeout: Duration, poison: &Poison) -> Result<(u32, bool)> {
        let deadline = deadline(timeout);
        let mut table = self.table.lock();
        loop {
            if let Some(slot) = table.free.pop() {
                table.hold(slot);
                return Ok((slot, table.kept.contains_key(&slot)));
            }
            if Instant::now() >= deadline {
                return Err(Error::TooManyWriters { max: SLOTS });
            }
            // In a stopped store no slot is returned any more.
            poison.check()?;
            self.freed.wait_until(&mut table, deadline.min(Instant::now() + POISON_CHECK));
        }
    }

    /// Takes a particular slot, which recovery found in use.
    pub(crate) fn take_this(&self, slot: u32) {
        let mut table = self.table.lock();
        table.free.retain(|free| *free != slot);
        table.hold(slot);
    }

    /// Returns a slot that has only its first page, with no record that is needed.
    pub(crate) fn give_back(&self, slot: u32) {
        let mut table = self.table.lock();
        assert!(table.kept.get(&slot).is_none_or(SlotHistory::is_drained), "invariant 3");
        table.kept.remove(&slot);
        table.free(slot);
        self.freed.notify_one();
    }

    /// The holder's clearance for all of the slot's pages; where it gets none yet (invariant 3), this frees the slot.
    pub(crate) fn leave(&self, slot: u32) -> Option<Clearance> {
        let mut table = self.table.lock();
        let clearance = table.clearance(slot);
        if clearance.is_none() {
            table.kept.get_mut(&slot).expect("it is kept").owner_start = None;
            table.free(slot);
            self.freed.notify_one();
        }
        clearance
    }

    /// Returns a slot that was cleared.
    pub(crate) fn cleared(&self, clearance: Clearance) {
        assert!(clearance.keep.is_none(), "of all its pages");
        self.give_back(clearance.slot);
    }

    /// Notes where the log of a kept slot's owner starts.
    pub(crate) fn start_log(&self, slot: u32, start: LogStart) {
        if let Some(kept) = self.table.lock().kept.get_mut(&slot) {
            kept.owner_start = Some(start);
        }
    }

    /// The first record of a kept slot's owner, if it has written one in this life of the store.
    pub(crate) fn record_start(&self, slot: u32) -> Option<UndoPtr> {
        Some(self.table.lock().kept.get(&slot)?.owner_start?.record)
    }

    /// Keeps the owner's log, which starts in `first` if no other is in the slot, and returns the slot. False, and
    /// nothing done, when no view needs it, no other log is kept there and purge is not at work there.
    pub(crate) fn keep(&self, log: RetainedLog, first: PageNo, is_needed: bool) -> bool {
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let slot = log.log.slot();
        if !is_needed && table.clearance(slot).is_some() {
            table.kept.remove(&slot);
            return false;
        }
        let kept = table.kept.entry(slot).or_default();
        assert!(kept.logs.back().is_none_or(|(_, last)| last.moment < log.moment), "invariant 1");
        let start = kept.owner_start.take().map_or(first, |start| start.page);
        kept.logs.push_back((start, log));
        table.order.insert(log.moment, slot);
        table.bytes += log.all_bytes();
        table.free(slot);
        self.freed.notify_one();
        true
    }

    /// The logs that finished before the moment of the oldest view in the slot that has the oldest of all, oldest first,
    /// at most [`DUE_MAX`]; none when there are none. They stay kept.
    ///
    /// `oldest_view` is asked once the lock is held: a view that needs a log was open before the log was kept, and so
    /// is seen. Asked before, it may be one that was opened since, and kept logs may be its history.
    pub(crate) fn due(&self, oldest_view: impl Fn() -> u64) -> Vec<RetainedLog> {
        let too_early = is_broken(Rule::HorizonUnderLock).then(&oldest_view);
        let table = self.table.lock();
        let moment = too_early.unwrap_or_else(oldest_view);
        let Some((_, slot)) = table.order.range(..moment).next() else { return Vec::new() };
        let logs = table.kept[slot].logs.iter().map(|(_, log)| *log);
        let due = logs.take_while(|log| log.moment < moment || is_broken(Rule::LaterLogsKept));
        due.take(DUE_MAX).collect()
    }

    /// Whether there are any.
    pub(crate) fn is_due(&self, moment: u64) -> bool {
        self.table.lock().order.range(..moment).next().is_some()
    }

    /// Drops the oldest `count` logs of a kept slot, which were purged.
    pub(crate) fn purged(&self, slot: u32, count: usize) -> Drained {
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let kept = table.kept.get_mut(&slot).expect("its logs were kept");
        assert!(!kept.is_trimmed, "invariant 3");
        for (_, log) in kept.logs.drain(..count) {
            table.order.remove(&log.moment);
            table.bytes -= log.all_bytes();
        }
        let next = kept.logs.front().map(|(start, _)| *start).or(kept.owner_start.map(|start| start.page));
        if let Some(start) = next {
            kept.is_trimmed = true;
            return Drained::UpTo(Clearance { slot, keep: Some(start) });
        }
        Slots::whole(table, slot).map_or(Drained::Owned, Drained::Whole)
    }

    /// Takes back purge's clearance. When the log that the pages were kept for is gone meanwhile and the slot is not
    /// held, purge gets a clearance for all of the slot's pages instead, together with the slot.
    pub(crate) fn trimmed(&self, clearance: Clearance) -> Option<Clearance> {
        let mut guard = self.table.lock();
        let kept = guard.kept.get_mut(&clearance.slot)?;
        kept.is_trimmed = false;
        if kept.logs.is_empty() { Slots::whole(&mut guard, clearance.slot) } else { None }
    }

    /// Purge's clearance for a slot without logs, which it holds from now on; `None` when the slot is held already.
    fn whole(table: &mut Table, slot: u32) -> Option<Clearance> {
        let at = table.free.iter().position(|free| *free == slot)?;
        table.free.remove(at);
        table.hold(slot);
        table.clearance(slot)
    }

    /// Logs kept, and the bytes they take, on the device and in memory.
    pub(crate) fn history(&self) -> (u64, u64) {
        let table = self.table.lock();
        (table.order.len() as u64, table.bytes)
    }

    /// Bytes of those that finished after the moment.
    pub(crate) fn bytes_since(&self, moment: u64) -> u64 {
        let table = self.table.lock();
        if table.order.range(..=moment).next().is_none() {
            return table.bytes;
        }
        let logs = table.kept.values().flat_map(|kept| &kept.logs).map(|(_, log)| log);
        logs.filter(|log| log.moment > moment).map(RetainedLog::all_bytes).sum()
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
    use crate::types::TxnId;

    fn log(slot: u32, moment: u64) -> RetainedLog {
        let log = UndoLog::new(slot, TxnId(moment), false);
        RetainedLog { log, moment, newest: UndoPtr::NONE, needs_purge: false, bytes: 10 }
    }

    const START: LogStart = LogStart { page: PageNo(7), record: UndoPtr::NONE };

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
        slots.start_log(slot, START);
        assert!(slots.keep(log(slot, 3), PageNo(1), false), "others are kept there");
        assert_eq!(
            (slots.due(|| 3).len(), slots.due(|| 4).len(), slots.history()),
            (1, 2, (2, 20 + 2 * KEPT_BYTES))
        );
        let bytes_since = [0, 1, 2, 3].map(|moment| slots.bytes_since(moment) / (10 + KEPT_BYTES));
        assert_eq!(bytes_since, [2, 1, 1, 0]);
        let part = Clearance { slot, keep: Some(PageNo(7)) };
        assert_eq!(slots.purged(slot, 1), Drained::UpTo(part));
        assert_eq!(slots.trimmed(Clearance { slot, keep: Some(PageNo(7)) }), None, "a log is left");
        let Drained::Whole(all) = slots.purged(slot, 1) else { panic!("nobody holds it") };
        assert!(take(&slots) != (slot, true), "it is the caller's to clear");
        slots.cleared(all);
        assert_eq!((take(&slots), slots.history()), ((slot, false), (0, 0)));
    }

    #[test]
    fn purge_takes_a_part_of_many_logs() {
        let slots = Slots::new();
        for moment in 1..=2 * DUE_MAX as u64 {
            let (slot, _) = take(&slots);
            slots.keep(log(slot, moment), PageNo(1), true);
        }
        let due = slots.due(|| u64::MAX);
        assert_eq!((due.len(), due[0].moment, due[due.len() - 1].moment), (DUE_MAX, 1, DUE_MAX as u64));
    }

    #[test]
    fn the_owner_of_a_drained_slot_clears_it() {
        let slots = Slots::new();
        let (slot, _) = take(&slots);
        assert!(slots.keep(log(slot, 1), PageNo(1), true));
        assert_eq!(take(&slots), (slot, true));
        assert_eq!(slots.purged(slot, 1), Drained::Owned);
        assert!(!slots.keep(log(slot, 2), PageNo(1), false));
        assert_eq!(slots.leave(slot), Some(Clearance { slot, keep: None }));
    }

    /// A slot of which purge frees pages, up to the log of its owner, which starts in page 7.
    fn trimmed_slot() -> (Slots, u32, Clearance) {
        let slots = Slots::new();
        let (slot, _) = take(&slots);
        assert!(slots.keep(log(slot, 1), PageNo(1), true));
        assert_eq!(take(&slots), (slot, true));
        slots.start_log(slot, START);
        let Drained::UpTo(part) = slots.purged(slot, 1) else { panic!("its owner has a log there") };
        (slots, slot, part)
    }

    /// Otherwise a purge that still trims the chain of earlier logs would free the next owner's pages.
    #[test]
    fn whoever_leaves_a_slot_that_is_trimmed_leaves_its_pages_to_others() {
        let (slots, slot, part) = trimmed_slot();
        assert_eq!(slots.leave(slot), None, "purge is at work there");
        assert_eq!(slots.trimmed(part), Some(Clearance { slot, keep: None }), "nobody has it");
        assert!(take(&slots).0 != slot, "purge clears it");

        let (slots, slot, part) = trimmed_slot();
        assert_eq!(slots.leave(slot), None);
        assert_eq!(take(&slots), (slot, true), "the next one appends");
        assert_eq!(slots.trimmed(part), None, "the next one will clear it");
        assert_eq!(slots.leave(slot), Some(Clearance { slot, keep: None }));

        let (slots, slot, part) = trimmed_slot();
        assert!(slots.keep(log(slot, 2), PageNo(1), false), "purge comes to it next");
        assert_eq!(slots.trimmed(part), None);
        assert!(matches!(slots.purged(slot, 1), Drained::Whole(_)));
    }
}
