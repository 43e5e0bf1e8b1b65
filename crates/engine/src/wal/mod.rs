//! The write-ahead log: append, group commit, truncation.
//!
//! Owns the files `wal.*`. Appending copies a mini-transaction into the open group; a *leader* among
//! the threads that need durability seals the group, writes it and syncs, for all that wait. On an `ordered` VFS it
//! leads only until the group is written: the next group is written while the first one's sync is under way, and synced
//! in parallel.
//!
//! Invariants:
//!
//! 1. `checkpoint <= flushed <= written <= next`. Offsets only grow.
//! 2. Groups are written one after the other, never two at a time, so a group is on the device only
//!    if all before it were written before. On a medium that is not `ordered` a group is *flushed*
//!    before the next one is written; a torn or lost group is therefore always the last.
//! 3. A group is never replaced by other bytes: recovery wipes the bytes after the log's end and syncs before the first
//!    append. (Where the VFS is not `ordered` it also writes the groups it found again, as they are: after a failed
//!    sync they may be in a cache only.) Groups of earlier openings carry an older epoch.
//! 4. A record is appended, and its pages enter the list of dirty pages, under one lock: no thread sees `next` moved
//!    without also seeing the pages that are dirty since.
//! 5. Bytes count as a group only if they were written as one: they carry the store's salt. A value may hold all other
//!    bytes of a group, at an offset where one might start, and a crash may tear the group before it.
//!
//! 6. The log of a store with keys is encrypted, group by group, by whoever writes it (`format::encrypt_group`): no
//!    plaintext of it reaches a file or a log device.
//!
//! Lock order: page latches, then `state`, then the list of dirty pages. No lock is held across I/O;
//! the leader owns the end of the files by `leading`.
//!
//! [`SYNCS_MAX`] syncs may be under way. Each write and each sync that ends wakes the threads that waited for it. If
//! another sync may begin, it also wakes one thread that no sync under way covers, which leads the next sync unless a
//! new thread came first. A leader covers all threads that wait by then. A sync that ends covers all older ones too. So
//! as long as a thread waits that no sync under way covers, a thread leads or was woken to lead. A thread that finds
//! the log stopped wakes all others: it may be the one that was woken.
//!
//! A woken thread reads `flushed` and `written` without the lock, and has a signal of its own: on a busy machine the
//! members of a group would otherwise be woken one after the other, each by the one before.

pub(crate) mod control;
mod files;
pub(crate) mod format;
pub(crate) mod page_writes;
mod reader;
mod waiting;

pub(crate) use files::{LogFiles, SEGMENT_BYTES, SHORT_SEGMENT_BYTES, is_log_file};
pub(crate) use format::{GROUP_BYTES_MAX, LogRecord, Salt};
pub(crate) use reader::LogReader;

use std::{collections::VecDeque, mem, sync::Arc};

use lacuna_device::AlignedBuf;

use crate::{
    poison::{IN_A_CALL, Poison, Sentinel},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    types::{Error, Lsn, Result},
};
use format::{GroupBuilder, SECTOR};
use waiting::{Waiting, wake};

/// A group is sealed when it has this many bytes, or a sixteenth of the log: recovery starts reading
/// at a group, so a group must be a small part of what the log may hold.
const GROUP_BYTES: u64 = 1 << 20;
/// Buffered bytes at which an append waits for the device.
const BUFFERED_BYTES_MAX: usize = 4 << 20;

/// Syncs under way at a time, where groups need not wait for the sync of the one before. More would make groups
/// smaller.
const SYNCS_MAX: usize = 2;

/// How far a caller wants the log to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Handed to the file: later writes to the VFS never survive without it, if it is `ordered`.
    Written,
    /// On the medium.
    Flushed,
}

pub(crate) struct Log {
    files: Arc<LogFiles>,
    ordered: bool,
    epoch: u64,
    group_bytes: usize,
    poison: Arc<Poison>,
    state: Mutex<State>,
    /// Copies of fields of `state`, for reads without a lock.
    next_hint: AtomicU64,
    checkpoint_hint: AtomicU64,
    written_hint: AtomicU64,
    flushed_hint: AtomicU64,
}

struct State {
    open: GroupBuilder,
    sealed: VecDeque<(Lsn, Vec<u8>)>,
    sealed_bytes: usize,
    /// Where groups since the checkpoint start; recovery can only start reading at one of them.
    starts: VecDeque<Lsn>,
    written: Lsn,
    flushed: Lsn,
    checkpoint: Lsn,
    /// A leader is writing groups.
    is_led: bool,
    /// The log ends that former leaders are syncing, oldest first.
    syncing: VecDeque<Lsn>,
    /// All waiting threads, except those that lead or sync.
    waiting: Waiting,
    spare: Vec<u8>,
    /// The leader copies groups into it, as direct I/O needs aligned memory.
    aligned: AlignedBuf,
    stats: LogStats,
}

impl State {
    fn is_reached(&self, lsn: Lsn, until: Until) -> bool {
        lsn <= if until == Until::Flushed { self.flushed } else { self.written }
    }

    /// Whether a thread that waits for `lsn` has to lead: no other thread does, and no sync under way covers it. While
    /// `syncs_max` are under way one of them must end first.
    fn may_lead(&self, lsn: Lsn, until: Until, syncs_max: usize) -> bool {
        let is_covered = || self.syncing.back().is_some_and(|end| lsn <= *end);
        !self.is_led && (until == Until::Written || (self.syncing.len() < syncs_max && !is_covered()))
    }
}

/// Counters of the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogStats {
    /// Mini-transactions appended.
    pub records: u64,
    /// Groups written.
    pub groups: u64,
    /// Syncs of the log.
    pub syncs: u64,
    /// Bytes written, padding included.
    pub written_bytes: u64,
}

impl Log {
    /// Starts appending at `end`, after the groups since `checkpoint` that recovery found. The log may hold
    /// `log_bytes`.
    pub(crate) fn start(
        files: Arc<LogFiles>,
        checkpoint: Lsn,
        (groups, end): (VecDeque<Lsn>, Lsn),
        epoch: u64,
        log_bytes: u64,
        poison: Arc<Poison>,
    ) -> Result<Log> {
        let end = format::next_group(end);
        let ordered = files.is_ordered();
        let state = State {
            open: GroupBuilder::new(end, Vec::new()),
            sealed: VecDeque::new(),
            sealed_bytes: 0,
            starts: groups,
            written: end,
            flushed: end,
            checkpoint,
            is_led: false,
            syncing: VecDeque::new(),
            waiting: Waiting::default(),
            spare: Vec::new(),
            aligned: AlignedBuf::zeroed(0),
            stats: LogStats::default(),
        };
        Ok(Log {
            files,
            ordered,
            epoch,
            group_bytes: (log_bytes / 16).min(GROUP_BYTES) as usize,
            poison,
            state: Mutex::new(state),
            next_hint: AtomicU64::new(end.0),
            checkpoint_hint: AtomicU64::new(checkpoint.0),
            written_hint: AtomicU64::new(end.0),
            flushed_hint: AtomicU64::new(end.0),
        })
    }

    /// Appends a mini-transaction. `register` is called with its start and end while the log is
    /// locked (invariant 4). Waits for the device only when far too much is buffered.
    pub(crate) fn append(&self, ops: &[u8], register: impl FnOnce(Lsn, Lsn)) -> Result<Lsn> {
        let mut state = self.push(ops, register)?;
        state.stats.records += 1;
        Ok(state.open.end())
    }

    /// Appends page-write records, which are no mini-transaction.
    pub(crate) fn append_page_writes(&self, records: &[u8]) -> Result<()> {
        self.push(records, |_, _| {}).map(drop)
    }

    fn push(&self, ops: &[u8], register: impl FnOnce(Lsn, Lsn)) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        while state.sealed_bytes > BUFFERED_BYTES_MAX {
            drop(state);
            let until = self.next();
            self.reach(until, Until::Written)?;
            state = self.state.lock();
        }
        if state.open.len() + ops.len() > self.group_bytes && !state.open.is_empty() {
            self.seal(&mut state);
        }
        let (start, end) = state.open.push(ops);
        self.next_hint.store(end.0, Ordering::Release);
        register(start, end);
        Ok(state)
    }

    fn seal(&self, state: &mut State) {
        let next = format::next_group(state.open.end());
        let spare = mem::take(&mut state.spare);
        let open = mem::replace(&mut state.open, GroupBuilder::new(next, spare));
        let (start, bytes) = open.seal(self.epoch, self.files.salt);
        state.starts.push_back(start);
        state.sealed_bytes += bytes.len();
        state.sealed.push_back((start, bytes));
    }

    /// Where recovery would have to start reading now: the start of a group, at or before the oldest change that is
    /// missing on the device, which `oldest_dirty` returns. It is called with the log locked (invariant 4).
    pub(crate) fn start_needed(&self, oldest_dirty: impl FnOnce() -> Option<Lsn>) -> Lsn {
        let state = self.state.lock();
        let oldest = oldest_dirty().unwrap_or_else(|| state.open.end());
        if oldest >= state.open.start() {
            return state.open.start();
        }
        let behind = state.starts.partition_point(|start| *start <= oldest);
        state.starts
            [behind.checked_sub(1).expect("invariant 1: nothing is dirty since before the checkpoint")]
    }

    /// Where the group ends in which the checkpoint lies: all that is dirty since before that keeps the checkpoint where
    /// it is.
    pub(crate) fn checkpoint_group_end(&self) -> Lsn {
        let state = self.state.lock();
        state.starts.get(1).copied().unwrap_or_else(|| state.open.start())
    }

    /// Offset after the last record appended, for [`Log::reach`].
    pub(crate) fn next(&self) -> Lsn {
        let state = self.state.lock();
        if state.open.is_empty() { state.open.start() } else { state.open.end() }
    }

    /// The log's end; may lag slightly, and never goes back.
    pub(crate) fn end_hint(&self) -> u64 {
        self.next_hint.load(Ordering::Acquire)
    }

    /// Bytes of log that a recovery would read now.
    pub(crate) fn used_bytes(&self) -> u64 {
        let next = self.next_hint.load(Ordering::Acquire);
        next.saturating_sub(self.checkpoint_hint.load(Ordering::Acquire))
    }

    /// Bytes of log that are not written yet; may lag slightly.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.end_hint().saturating_sub(self.written_hint.load(Ordering::Acquire))
    }

    pub(crate) fn stats(&self) -> LogStats {
        self.state.lock().stats
    }

    /// Whether [`Log::reach`] would return at once.
    pub(crate) fn has_reached(&self, lsn: Lsn, until: Until) -> bool {
        self.reached(until).1.load(Ordering::Acquire) >= lsn.0
    }

    /// The meaning of `until` on this VFS, and how far the log is.
    fn reached(&self, until: Until) -> (Until, &AtomicU64) {
        let until = if self.ordered { until } else { Until::Flushed };
        (until, if until == Until::Flushed { &self.flushed_hint } else { &self.written_hint })
    }

    /// Returns once all of the log up to `lsn` is written or flushed. One of the callers does it
    /// for all.
    pub(crate) fn reach(&self, lsn: Lsn, until: Until) -> Result<()> {
        let (until, reached) = self.reached(until);
        loop {
            // What has reached the medium is there, also when the store is closed meanwhile.
            if reached.load(Ordering::Acquire) >= lsn.0 && !self.poison.has_failed() {
                return Ok(());
            }
            let mut state = self.state.lock();
            if state.is_reached(lsn, until) && !self.poison.has_failed() {
                return Ok(());
            }
            let leads = state.may_lead(lsn, until, self.syncs_max());
            let writing = match leads {
                true => self.poison.begin_to_write().map(Some),
                false => self.poison.check().map(|()| None),
            };
            match writing {
                Ok(Some(_writing)) => self.lead(state, until)?,
                // Of a closed store this may still be on its way, unless a leader failed.
                Err(Error::Closed)
                    if (state.is_led || !state.syncing.is_empty()) && !self.poison.has_failed() =>
                {
                    join(state, lsn, until);
                }
                Ok(None) => join(state, lsn, until),
                Err(e) => {
                    // Written by one that needed no sync: whether a later one came is not known here.
                    let is_unsure = matches!(e, Error::Closed) && lsn <= state.written;
                    let reason = || "the store was closed while this was on its way".to_owned();
                    let e = if is_unsure { Error::Poisoned { reason: reason() } } else { e };
                    let all = state.waiting.take_all(); // this one may be the only one that was woken
                    drop(state);
                    wake(all);
                    return Err(e);
                }
            }
        }
    }

    /// Writes all that was appended by now, as the one leader, and syncs it: on an `ordered` VFS when it no
    /// longer leads.
    fn lead(&self, mut state: MutexGuard<'_, State>, until: Until) -> Result<()> {
        if !state.open.is_empty() {
            self.seal(&mut state);
        }
        let end = state.open.start();
        state.is_led = true;
        let groups = mem::take(&mut state.sealed);
        state.sealed_bytes = 0;
        let mut aligned = mem::replace(&mut state.aligned, AlignedBuf::zeroed(0));
        drop(state);
        let lead = Lead { log: self, sentinel: Sentinel::new() };
        let outcome = self.write_groups(&groups, &mut aligned);
        self.change(outcome, |state| {
            state.is_led = false;
            state.aligned = aligned;
            state.written = end;
            state.stats.groups += groups.len() as u64;
            state.stats.written_bytes += groups.iter().map(|g| g.1.len() as u64).sum::<u64>();
            state.spare = groups.into_iter().next_back().map(|g| g.1).unwrap_or_default();
            if until == Until::Flushed {
                state.syncing.push_back(end);
            }
        })?;
        if until == Until::Written {
            return Ok(());
        }
        let outcome = self.files.sync();
        self.change(outcome, |state| {
            state.stats.syncs += 1;
            let covered = state.syncing.partition_point(|covered| *covered <= end);
            state.syncing.drain(..covered);
            state.flushed = state.flushed.max(end);
        })?;
        drop(lead);
        Ok(())
    }

    /// Notes what a leader has reached, and wakes the threads that waited for it; or stops the log and wakes all.
    fn change(&self, outcome: Result<()>, note: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.state.lock();
        let outcome = outcome.map(|()| note(&mut state)).map_err(|e| self.poison.set(e));
        let mut waiting = mem::take(&mut state.waiting);
        let woken = match outcome {
            Ok(()) => waiting.take(
                |lsn, until| state.is_reached(lsn, until),
                |lsn, until| state.may_lead(lsn, until, self.syncs_max()),
            ),
            Err(_) => waiting.take_all(),
        };
        state.waiting = waiting;
        self.written_hint.store(state.written.0, Ordering::Release);
        self.flushed_hint.store(state.flushed.0, Ordering::Release);
        drop(state);
        wake(woken);
        outcome
    }

    /// Syncs that may be under way: on a VFS that is not `ordered` a group is written only after all others are
    /// flushed (invariant 2).
    fn syncs_max(&self) -> usize {
        if self.ordered { SYNCS_MAX } else { 1 }
    }

    /// The leader's writes, without a lock. On a VFS that is not `ordered` each group is flushed before the
    /// next is written.
    fn write_groups(&self, groups: &VecDeque<(Lsn, Vec<u8>)>, aligned: &mut AlignedBuf) -> Result<()> {
        for (i, (start, bytes)) in groups.iter().enumerate() {
            if aligned.len() < bytes.len() {
                *aligned = AlignedBuf::zeroed(bytes.len().next_power_of_two());
            }
            let group = &mut aligned[..bytes.len()];
            group.copy_from_slice(bytes);
            if let Some(cipher) = &self.files.cipher {
                format::encrypt_group(group, *start, &**cipher);
            }
            if i > 0 && !self.ordered {
                self.files.sync()?;
            }
            self.files.write(*start, group)?;
        }
        Ok(())
    }

    /// Frees the log before `lsn`, which [`Log::start_needed`] returned and the control file already names as the
    /// checkpoint.
    pub(crate) fn truncate(&self, lsn: Lsn) -> Result<()> {
        let mut state = self.state.lock();
        let from = state.checkpoint;
        let is_between = from <= lsn && lsn <= state.written;
        assert!(is_between && lsn.0.is_multiple_of(SECTOR as u64), "invariant 1");
        state.checkpoint = lsn;
        self.checkpoint_hint.store(lsn.0, Ordering::Release);
        while state.starts.front().is_some_and(|start| *start < lsn) {
            state.starts.pop_front();
        }
        drop(state);
        if from < lsn {
            self.files.give_back(from, lsn).map_err(|e| self.poison.set(e))?;
        }
        Ok(())
    }
}

/// Waits until the log up to `lsn` is there, this thread has to lead, or the log is stopped.
fn join(mut state: MutexGuard<'_, State>, lsn: Lsn, until: Until) {
    let woken = state.waiting.join(lsn, until);
    drop(state);
    woken.wait();
}

/// A leader that writes or syncs for others. If it panics, the log stops and all waiters are woken.
struct Lead<'a> {
    log: &'a Log,
    sentinel: Sentinel,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if self.sentinel.sees_panic() {
            self.log.poison.panicked(IN_A_CALL);
            let all = self.log.state.lock().waiting.take_all();
            wake(all);
        }
    }
}

#[cfg(test)]
mod tests;
