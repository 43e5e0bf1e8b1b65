//! Encoding pages of adaptive tables anew once they rest, and again when they are read often then (`space::rest`).
//!
//! A flush writes pages of an adaptive table by the cheap codec. The producer looks through the notes of these tables,
//! one table after the other, and queues jobs for pages that rest or are woken: a consumer rewrites them (`rewrite`), so
//! a crash leaves each in the one form or the other, and no foreground thread has to do with it.
//!
//! 1. Work that others wait for comes first: there is one such job at a time, among those that `queue` puts last, and
//!    none while more than half of the log is in use that flushes may let grow; or more than all of it, while nobody
//!    changes a page: then no flush gives any of it back. Nor is there one while its pages, should their images grow, may
//!    take the space that deletes need.
//! 2. Consumers spend a share of one processor's time for it, less while others change pages ([`BUSY_SHARE`]) than while
//!    none does ([`QUIET_SHARE`]). A page that cannot have its time now rests later.
//! 3. While nobody changes a page for [`QUIET_ROUNDS`], every page rests that is neither dirty nor read often: the log
//!    does not grow.
//! 4. A page that cannot be read is left alone: whoever needs it gets the error.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lacuna_device::AlignedBuf;
use lacuna_page::{Algorithm, HEADER_BYTES, image_form, read_meta};

use super::{
    Due, Flusher, JOB_PAGES,
    queue::{RestJob, Work},
    stats::Cause,
    write::Writer,
};
use crate::{
    mutant::{Rule, is_broken},
    space::{
        Space,
        rest::{PAGES_MAX, Rest},
    },
    sync::Mutex,
    types::{Lsn, PageNo, Result, TableId},
};

/// Parts of the time, of which one is spent.
const BUSY_SHARE: u32 = 16;
const QUIET_SHARE: u32 = 2;
/// Time that may be saved up.
const SAVED_MAX: Duration = Duration::from_millis(200);
/// Rounds of the producer without a change of others after which the store is quiet: a second.
const QUIET_ROUNDS: u32 = 50;
/// A page rests once the log has grown by this share of what it may hold since the page was written.
const DISTANCE_SHARE: u64 = 4;
/// Notes looked at in a round, at most.
const ROUND_NOTES: u64 = 4096;

/// Where the producer is.
pub(super) struct Rests(Mutex<State>);

struct State {
    table: TableId,
    page: u64,
    /// Counts of reads are aged on this way through the table.
    ages: bool,
    /// Log records of others.
    seen: u64,
    quiet_rounds: u32,
    /// Log records of pages that were encoded anew.
    renewed: u64,
    is_queued: bool,
    /// Time that may be spent.
    saved: Duration,
    looked: Instant,
}

impl Default for Rests {
    fn default() -> Rests {
        Rests(Mutex::new(State {
            table: TableId(0),
            page: 0,
            ages: false,
            seen: 0,
            quiet_rounds: 0,
            renewed: 0,
            is_queued: false,
            saved: SAVED_MAX,
            looked: Instant::now(),
        }))
    }
}

impl Flusher {
    fn rest_distance(&self) -> u64 {
        self.options.log_bytes / DISTANCE_SHARE
    }

    /// The next pages to be encoded anew, if there is time for it.
    pub(super) fn rest_work(&self) -> Option<Work> {
        let adaptive = self.spaces.adaptive();
        if adaptive.is_empty() {
            return None;
        }
        let mut state = self.rests.0.lock();
        if state.is_queued {
            return None;
        }
        let seen = self.pager.log().stats().records.saturating_sub(state.renewed);
        state.quiet_rounds = if seen == state.seen { state.quiet_rounds + 1 } else { 0 };
        state.seen = seen;
        let is_quiet = state.quiet_rounds >= QUIET_ROUNDS;
        let share = if is_quiet { QUIET_SHARE } else { BUSY_SHARE };
        let saved = state.saved + state.looked.elapsed() / share;
        state.saved = saved.min(SAVED_MAX);
        state.looked = Instant::now();
        let log_kept = self.log_kept();
        let is_log_short = self.pager.log().used_bytes() > if is_quiet { log_kept } else { log_kept / 2 };
        // Without threads whoever calls gives it the time.
        if is_log_short || (state.saved.is_zero() && self.has_threads()) {
            return None;
        }
        let space = adaptive.iter().find(|space| space.id() >= state.table).unwrap_or(&adaptive[0]);
        let has_space = || self.has_space_to_rewrite((JOB_PAGES * space.page_bytes()) as u64);
        // While nobody writes, nobody else measures in a store without threads.
        if !has_space() && (self.measure_capacity().is_err() || !has_space()) {
            return None;
        }
        if space.id() != state.table {
            (state.table, state.page) = (space.id(), 0);
        }
        let end = space.pages_in_file().min(PAGES_MAX);
        let notes = space.rest_notes();
        if state.page == 0 {
            state.ages = notes.begin_to_age(end);
        }
        let mut pages = Vec::new();
        let last = end.min(state.page + ROUND_NOTES);
        while state.page < last && pages.len() < JOB_PAGES {
            if state.ages {
                notes.age(state.page);
            }
            if self.rest_of(space, state.page, is_quiet) != Rest::Awake {
                pages.push(state.page);
            }
            state.page += 1;
        }
        if state.page >= end {
            (state.table, state.page) = (TableId(state.table.0 + 1), 0);
        }
        state.is_queued = !pages.is_empty();
        (!pages.is_empty()).then(|| Work::Rest(RestJob { space: Arc::clone(space), pages, is_quiet }))
    }

    fn rest_of(&self, space: &Space, page: u64, is_quiet: bool) -> Rest {
        let distance = if is_quiet || is_broken(Rule::RestsWait) { 0 } else { self.rest_distance() };
        space.rest_notes().of(page, self.pager.log().end_hint(), distance)
    }

    /// The job is done, or will not be.
    pub(super) fn end_rest(&self, renewed: u64, spent: Duration) {
        let mut state = self.rests.0.lock();
        state.renewed += renewed;
        state.is_queued = false;
        state.saved = state.saved.saturating_sub(spent);
    }
}

impl Writer {
    /// Encodes those of the pages anew that rest and whose image would differ; returns how many.
    pub(super) fn rest(&mut self, flusher: &Flusher, job: RestJob) -> Result<u64> {
        let started = Instant::now();
        let rested = self.encode_anew(flusher, job);
        flusher.end_rest(rested.as_ref().map_or(0, |pages| *pages), started.elapsed());
        rested
    }

    fn encode_anew(&mut self, flusher: &Flusher, job: RestJob) -> Result<u64> {
        let Some(space) = job.space.pin_for_work().filter(|space| !space.is_locked()) else { return Ok(0) };
        let (mut rested, mut woken) = (Vec::new(), Vec::new());
        for page in job.pages {
            if flusher.rest_of(&space, page, job.is_quiet) == Rest::Unknown && !look_up(&space, page) {
                continue;
            }
            let (cause, renewed) = match flusher.rest_of(&space, page, job.is_quiet) {
                Rest::Due => (Cause::Rest, &mut rested),
                Rest::Woken => (Cause::Wake, &mut woken),
                Rest::Awake | Rest::Unknown => continue,
            };
            let notes = space.rest_notes();
            match self.renew_if_outdated(flusher, &space, PageNo(page), cause) {
                Ok(Some(frame)) => renewed.push(frame),
                // It is written soon, and then noted; or neither codec does better, which is tried later each time.
                Ok(None) if cause == Cause::Wake || has_changes(flusher, &space, PageNo(page)) => {
                    notes.note_written(page, flusher.pager.log().end_hint());
                }
                Ok(None) => notes.note_rested(page),
                // Nobody has asked for it.
                Err(_) if flusher.poison.check().is_ok() => notes.note_rested(page),
                Err(error) => return Err(error),
            }
        }
        let mut count = 0;
        for (frames, cause) in [(rested, Cause::Rest), (woken, Cause::Wake)] {
            count += frames.len() as u64;
            self.write(flusher, &Due { frames, before: Lsn(u64::MAX), cause })?;
        }
        Ok(count)
    }
}

fn has_changes(flusher: &Flusher, space: &Space, page: PageNo) -> bool {
    let found = flusher.pager.read_if_written(space, page);
    found.is_ok_and(|page| page.is_some_and(|page| page.frame().has_changes()))
}

/// Notes what the image of a page on the device says; false when there is none.
fn look_up(space: &Space, page: u64) -> bool {
    let mut header = AlignedBuf::zeroed(lacuna_device::SECTOR);
    let read = space.file().read_at(space.offset(PageNo(page)), &mut header).is_ok();
    let Some((algorithm, _)) = image_form(&header[..HEADER_BYTES]).ok().filter(|_| read) else {
        // A page that is free, or was not written yet; what is damaged is found by others.
        space.rest_notes().note_blank(page);
        return false;
    };
    space.rest_notes().note_written(page, read_meta(&header).lsn);
    if algorithm == Algorithm::Zstd {
        space.rest_notes().note_rested(page);
    }
    true
}
