//! Which pages of an adaptive table rest, and which are read often: a note for each page, in memory.
//!
//! A page that was written is noted with the log's end at that moment, in units of [`UNIT`]. It *rests* once the log has
//! grown by a distance since then. Then it is encoded anew, by the codec for pages that rest, and is left alone until it
//! is written again. Each time that it is written after it rested, the distance doubles, up to [`PATIENCE_MAX`] times: so
//! a page that is written now and then costs few writes more than without.
//!
//! What takes less space takes longer to decode, so a page that is *read often* is not encoded as one that rests, and one
//! that is so already is *woken*. Reads are counted that miss the pool, as others decode nothing: up to [`READS_MAX`] of a
//! page. Once there were [`MEAN_READS`] for each page of the table, each count is halved as the walk over the notes comes
//! by. So a page is compared with the table's mean, whatever the rate of reads, and what is not read any more is
//! forgotten. (Einziger, Friedman and Manes age the counts of TinyLFU so, ACM Transactions on Storage 2017.) A page that
//! is read about as often as the mean may rest, one that is read twice as often is woken; in between it stays as it is,
//! and what was woken rests again after its count was halved twice at the earliest.
//!
//! The notes are lost with the process. Of a page without a note the image on the device says how it is encoded. A table
//! has at most [`PAGES_MAX`] of them, so a file that only claims to be long takes no more memory; pages behind stay as a
//! flush writes them.

use crate::{
    mutant::{Rule, is_broken},
    sync::{
        RwLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

/// Pages of a table that have notes, from its start on: 128 MiB of memory, for 512 GiB in pages of 16 KiB.
pub(crate) const PAGES_MAX: u64 = 1 << 25;

/// Bytes of log to a unit of the notes.
const UNIT: u64 = 64 << 10;
/// A distance is no longer, as units are told apart by their last bits.
const DISTANCE_MAX: u64 = (1 << 22) * UNIT;
/// Doublings of the distance.
const PATIENCE_MAX: u32 = 6;

/// Reads that are counted of a page. One with all of them is woken.
const READS_MAX: u32 = 7;
/// A page with fewer counted reads may rest.
const READS_OFTEN: u32 = 2;
/// Reads of a page after which counts are halved, on an average.
const MEAN_READS: u64 = 2;

/// A note: bits 0 to 22 the units of log, modulo 2^23; bits 23 to 25 doublings of the distance; bits 26 to 28 reads; and
/// these. Several threads change it, each by a single exchange.
const UNITS_MASK: u32 = (1 << 23) - 1;
const PATIENCE: u32 = 1 << 23;
const READ: u32 = 1 << 26;
/// There was nothing there.
const BLANK: u32 = 1 << 29;
const RESTED: u32 = 1 << 30;
const KNOWN: u32 = 1 << 31;

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing.
    Unknown,
    /// It was written lately, or was encoded as one that rests.
    Awake,
    /// It rests, and is to be encoded so.
    Due,
    /// It is encoded as one that rests, and read often: it is to be encoded as one that was written.
    Woken,
}

/// The notes of a table.
#[derive(Default)]
pub(crate) struct RestNotes {
    of_pages: RwLock<Vec<AtomicU32>>,
    /// Since the counts were last aged.
    reads: AtomicU64,
}

fn patience(note: u32) -> u32 {
    note / PATIENCE % 8
}

fn reads(note: u32) -> u32 {
    note / READ % (READS_MAX + 1)
}

impl RestNotes {
    fn change(&self, page: u64, change: impl Fn(u32) -> u32) {
        let Some(at) = usize::try_from(page).ok().filter(|_| page < PAGES_MAX) else { return };
        let notes = self.of_pages.read();
        if let Some(note) = notes.get(at) {
            let _ = note.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |note| Some(change(note)));
            return;
        }
        drop(notes);
        let mut notes = self.of_pages.write();
        let len = notes.len().max(at + 1).next_multiple_of(1024);
        notes.resize_with(len, AtomicU32::default);
        let note = notes[at].get_mut();
        *note = change(*note); // others may have been here meanwhile
    }

    /// Notes a read that missed the pool.
    pub(crate) fn note_read(&self, page: u64) {
        if is_broken(Rule::ReadsNoted) {
            return;
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.change(page, |note| if reads(note) < READS_MAX { note + READ } else { note });
    }

    /// Whether the counts of reads are to be aged, if the table has so many pages.
    pub(crate) fn begin_to_age(&self, pages: u64) -> bool {
        let is_due = self.reads.load(Ordering::Relaxed) >= MEAN_READS * pages && !is_broken(Rule::ReadsAge);
        if is_due {
            self.reads.store(0, Ordering::Relaxed);
        }
        is_due
    }

    /// Halves the page's count of reads.
    pub(crate) fn age(&self, page: u64) {
        self.change(page, |note| note - reads(note).div_ceil(2) * READ);
    }

    /// Notes that an image of the page was written as one of a page that does not rest.
    pub(crate) fn note_written(&self, page: u64, log_end: u64) {
        self.change(page, |note| {
            let more = patience(note) + u32::from(note & (RESTED | BLANK) == RESTED);
            let units = (log_end / UNIT) as u32 & UNITS_MASK;
            KNOWN | units | (more.min(PATIENCE_MAX) * PATIENCE) | (reads(note) * READ)
        });
    }

    /// Notes that it is encoded as one that rests, or cannot be any better.
    pub(crate) fn note_rested(&self, page: u64) {
        self.change(page, |note| KNOWN | RESTED | note);
    }

    /// Notes that there is no page.
    pub(crate) fn note_blank(&self, page: u64) {
        self.change(page, |note| KNOWN | RESTED | BLANK | note);
    }

    /// Whether the page rests, if the log ends at `log_end` and a page rests after `distance` bytes of it.
    pub(crate) fn of(&self, page: u64, log_end: u64, distance: u64) -> Rest {
        let notes = self.of_pages.read();
        let note = usize::try_from(page).ok().and_then(|at| notes.get(at));
        let note = note.map_or(0, |note| note.load(Ordering::Relaxed));
        if note & KNOWN == 0 {
            return Rest::Unknown;
        }
        let units = ((log_end / UNIT) as u32).wrapping_sub(note) & UNITS_MASK;
        let distance = (distance << patience(note)).min(DISTANCE_MAX);
        let is_old = u64::from(units) * UNIT >= distance;
        match note & (RESTED | BLANK) {
            0 if is_old && reads(note) < READS_OFTEN => Rest::Due,
            RESTED if reads(note) == READS_MAX => Rest::Woken,
            _ => Rest::Awake,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_rests_after_the_distance_and_later_each_time_it_woke() {
        const DISTANCE: u64 = 4 * UNIT;
        let notes = RestNotes::default();
        assert_eq!(notes.of(7, 0, DISTANCE), Rest::Unknown);
        let mut end = (u64::from(UNITS_MASK) - 1) * UNIT; // the units wrap
        for round in 0..10 {
            notes.note_written(7, end);
            let distance = DISTANCE << round.min(PATIENCE_MAX);
            assert_eq!(notes.of(7, end + distance - UNIT, DISTANCE), Rest::Awake, "round {round}");
            end += distance;
            assert_eq!(notes.of(7, end, DISTANCE), Rest::Due, "round {round}");
            notes.note_rested(7);
            assert_eq!(notes.of(7, end + (distance << 3), DISTANCE), Rest::Awake);
        }
        assert_eq!(notes.of(8, end, DISTANCE), Rest::Unknown);
        // A page that is too far behind takes no memory.
        notes.note_written(PAGES_MAX, end);
        assert_eq!(notes.of(PAGES_MAX, end, 0), Rest::Unknown);
        assert!(notes.of_pages.read().len() < 2048);
        // What did not rest does not become more patient.
        notes.note_written(9, 0);
        notes.note_written(9, 0);
        assert_eq!(notes.of(9, DISTANCE, DISTANCE), Rest::Due);
        // In the largest of logs a page rests as well.
        assert_eq!(notes.of(9, DISTANCE_MAX, 1 << 50), Rest::Due);
    }

    #[test]
    fn a_page_that_is_read_often_does_not_rest_until_it_is_forgotten() {
        let notes = RestNotes::default();
        let read = |times| (0..times).for_each(|_| notes.note_read(5));
        read(1);
        assert_eq!(notes.of(5, 0, 0), Rest::Unknown);
        notes.note_written(5, 0);
        assert_eq!(notes.of(5, 0, 0), Rest::Due, "one read is not often");
        read(READS_OFTEN - 1);
        assert_eq!(notes.of(5, 0, 0), Rest::Awake);
        notes.note_written(5, 0);
        assert_eq!(notes.of(5, 0, 0), Rest::Awake, "also when it is written again");
        notes.note_rested(5);
        read(READS_MAX - READS_OFTEN - 1);
        assert_eq!(notes.of(5, 0, 0), Rest::Awake, "not yet");
        read(100);
        assert_eq!(notes.of(5, 0, 0), Rest::Woken);
        notes.note_written(5, 0);
        notes.age(5);
        assert_eq!(notes.of(5, 0, 0), Rest::Awake, "it does not rest at once");
        notes.age(5);
        assert_eq!(notes.of(5, 0, 0), Rest::Due);
        let counted = 1 + 1 + u64::from(READS_MAX) - 3 + 100;
        assert!(!notes.begin_to_age(counted));
        assert!(notes.begin_to_age(counted / MEAN_READS) && !notes.begin_to_age(1));
        // What is not there is not woken.
        notes.note_blank(6);
        (0..READS_MAX).for_each(|_| notes.note_read(6));
        assert_eq!(notes.of(6, 0, 0), Rest::Awake);
    }
}
