//! Which pages of an adaptive table rest: a note for each page, in memory.
//!
//! A page that was written is noted with the log's end at that moment, in units of [`UNIT`]. It *rests* once the log has
//! grown by a distance since then. Then it is encoded anew, by the codec for pages that rest, and is left alone until it
//! is written again. Each time that it is written after it rested, the distance doubles, up to [`PATIENCE_MAX`] times: so
//! a page that is written now and then costs few writes more than without.
//!
//! The notes are lost with the process. Of a page without a note the image on the device says how it is encoded. A table
//! has at most [`PAGES_MAX`] of them, so a file that only claims to be long takes no more memory; pages behind stay as a
//! flush writes them.

use crate::sync::{
    RwLock,
    atomic::{AtomicU32, Ordering},
};

/// Pages of a table that have notes, from its start on: 128 MiB of memory, for 512 GiB in pages of 16 KiB.
pub(crate) const PAGES_MAX: u64 = 1 << 25;

/// Bytes of log to a unit of the notes.
const UNIT: u64 = 64 << 10;
/// Doublings of the distance.
const PATIENCE_MAX: u32 = 6;

/// A note: bits 0 to 23 the units of log, modulo 2^24; bits 24 to 26 doublings of the distance; and these.
const UNITS_MASK: u32 = (1 << 24) - 1;
const PATIENCE: u32 = 1 << 24;
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
}

/// The notes of a table.
#[derive(Default)]
pub(crate) struct RestNotes(RwLock<Vec<AtomicU32>>);

fn patience(note: u32) -> u32 {
    note / PATIENCE % 8
}

impl RestNotes {
    fn change(&self, page: u64, change: impl Fn(u32) -> u32) {
        let Some(at) = usize::try_from(page).ok().filter(|_| page < PAGES_MAX) else { return };
        let notes = self.0.read();
        if let Some(note) = notes.get(at) {
            note.store(change(note.load(Ordering::Relaxed)), Ordering::Relaxed);
            return;
        }
        drop(notes);
        let mut notes = self.0.write();
        let len = notes.len().max(at + 1).next_multiple_of(1024);
        notes.resize_with(len, AtomicU32::default);
        *notes[at].get_mut() = change(0);
    }

    /// Notes that an image of the page was written as one of a page that does not rest.
    pub(crate) fn note_written(&self, page: u64, log_end: u64) {
        self.change(page, |note| {
            let more = patience(note) + u32::from(note & (RESTED | BLANK) == RESTED);
            let units = (log_end / UNIT) as u32 & UNITS_MASK;
            KNOWN | units | (more.min(PATIENCE_MAX) * PATIENCE)
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
        let notes = self.0.read();
        let note = usize::try_from(page).ok().and_then(|at| notes.get(at));
        let note = note.map_or(0, |note| note.load(Ordering::Relaxed));
        if note & KNOWN == 0 {
            return Rest::Unknown;
        }
        let units = ((log_end / UNIT) as u32).wrapping_sub(note) & UNITS_MASK;
        let is_due = note & RESTED == 0 && u64::from(units) * UNIT >= distance << patience(note);
        if is_due { Rest::Due } else { Rest::Awake }
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
        let mut end = (1 << 24) * UNIT - 2 * UNIT; // the units wrap
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
        assert!(notes.0.read().len() < 2048);
        // What did not rest does not become more patient.
        notes.note_written(9, 0);
        notes.note_written(9, 0);
        assert_eq!(notes.of(9, DISTANCE, DISTANCE), Rest::Due);
    }
}
