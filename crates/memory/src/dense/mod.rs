//! An allocator that packs small, reference-counted byte strings into huge pages.
//!
//! Random access to many small pieces of memory waits for page-table look-ups (TLB misses) about as long as for the
//! bytes themselves, unless the pieces lie in huge pages, which no general allocator promises. This allocator does,
//! for pieces of up to [`DenseBytes::LEN_MAX`] bytes that come and go, grow and shrink at random.
//!
//! ```text
//! huge page, 2 MiB:  piece | free | piece | piece ...    each of whole units of 256 bytes
//! piece:             count of handles, 4 bytes | 4 unused | the bytes | rest of its last unit
//! ```
//!
//! A piece goes into the first free units, by page and place, that suffice; it shrinks where it is, and grows there if
//! the following units are free. So later pages run empty, and an empty page goes back to the system if another page is
//! empty too. Units of one cache line took 2% less memory, but pieces moved four times as often, and each move searched
//! four times the bits. Slabs by size, as in other allocators, would cost more: the leaves of the ftl's map all grow by
//! a byte per row when their numbers do, and a slab is free only when all its pieces are gone. Slabs took 1.6 times the
//! memory, this takes 1.1 times.
//!
//! Invariants:
//! 1. The units of a piece are taken exactly as long as it has handles, and their number is its count. No other code
//!    accesses them.
//! 2. The bytes of a piece change only through its one handle, borrowed exclusively.
//! 3. Before page `from[n]` there are no `n` free units in a row, and no page has more in a row than its `run_max`,
//!    unless that is as much as a piece may need.
//!
//! The lock is innermost: a thread that holds it calls nothing but the allocator.

#![allow(unsafe_code)] // Counted references to memory that is divided here.

use std::{
    ops::{Deref, Range},
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering, fence},
};

use parking_lot::Mutex;

use crate::huge::{HUGE_PAGE, HugePage};

/// The unit of allocation.
const UNIT_BYTES: usize = 256;
/// Units of a huge page; each has a bit in one of its words.
const UNITS: usize = HUGE_PAGE / UNIT_BYTES;
const WORDS: usize = UNITS / 64;
/// Units of the largest piece.
const PIECE_UNITS_MAX: usize = 19;
/// Length of the head before the bytes.
const HEAD_BYTES: usize = 8;

/// A handle of bytes that do not change while others have handles too. Clones are handles of the same bytes.
pub struct DenseBytes {
    piece: NonNull<u8>,
    len: u32,
    /// Number of the huge page.
    page: u32,
}

struct Page {
    memory: HugePage,
    taken: Box<[u64; WORDS]>,
    taken_units: usize,
    run_max: usize,
}

struct Arena {
    /// By number; a number without a page is reused.
    pages: Vec<Option<Page>>,
    /// The first page in which to look for this many units in a row.
    from: [usize; PIECE_UNITS_MAX + 1],
    /// Whether a page has no piece.
    has_empty: bool,
}

static ARENA: Mutex<Arena> = Mutex::new(Arena::new());

/// Units of a piece that holds `len` bytes.
fn units_for(len: usize) -> usize {
    (HEAD_BYTES + len).div_ceil(UNIT_BYTES)
}

impl Arena {
    const fn new() -> Arena {
        Arena { pages: Vec::new(), from: [0; PIECE_UNITS_MAX + 1], has_empty: false }
    }

    /// Takes a piece of `units` units: its memory and the number of its page.
    fn take(&mut self, units: usize) -> (NonNull<u8>, u32) {
        let fits = |page: &mut Option<Page>| page.as_mut().and_then(|page| page.find(units));
        let rest = self.pages.iter_mut().enumerate().skip(self.from[units]);
        let found = rest.into_iter().find_map(|(number, page)| Some((number, fits(page)?)));
        let (number, unit) = found.unwrap_or_else(|| (self.add(), 0));
        self.from[units] = number;
        let page = self.pages[number].as_mut().expect("found in a page");
        self.has_empty &= page.taken_units > 0;
        page.set(unit, units, true);
        (page.memory.at(unit * UNIT_BYTES), number as u32)
    }

    /// A new page.
    fn add(&mut self) -> usize {
        let number = self.pages.iter().position(Option::is_none).unwrap_or(self.pages.len());
        if number == self.pages.len() {
            self.pages.push(None);
        }
        let memory = HugePage::new();
        self.pages[number] =
            Some(Page { memory, taken: Box::new([0; WORDS]), taken_units: 0, run_max: UNITS });
        self.from.iter_mut().for_each(|from| *from = number.min(*from));
        number
    }

    /// Takes back a piece of `units` units that has no handle any more. Returns a huge page that is no longer needed.
    fn give_back(&mut self, number: u32, piece: NonNull<u8>, units: usize) -> Option<HugePage> {
        let first = self.unit_of(number, piece);
        self.free(number, first, units);
        if self.page(number).taken_units > 0 {
            return None;
        }
        let is_needed = !std::mem::replace(&mut self.has_empty, true);
        if is_needed { None } else { self.pages[number as usize].take().map(|page| page.memory) }
    }

    /// Resizes a piece in place from `old` units to `new`, which is not 0. False if other pieces are in the way.
    fn resize(&mut self, number: u32, piece: NonNull<u8>, old: usize, new: usize) -> bool {
        let first = self.unit_of(number, piece);
        if new < old {
            self.free(number, first + new, old - new);
        } else if new > old {
            let page = self.page(number);
            if !page.is_free(first + old..first + new) {
                return false;
            }
            page.set(first + old, new - old, true);
        }
        true
    }

    fn page(&mut self, number: u32) -> &mut Page {
        self.pages[number as usize].as_mut().expect("invariant 1: a piece lies in a page")
    }

    /// The first unit of a piece.
    fn unit_of(&mut self, number: u32, piece: NonNull<u8>) -> usize {
        (piece.addr().get() - self.page(number).memory.at(0).addr().get()) / UNIT_BYTES
    }

    /// Frees units of a piece.
    fn free(&mut self, number: u32, first: usize, units: usize) {
        let page = self.page(number);
        page.set(first, units, false);
        let run = page.run_around(first, units);
        page.run_max = page.run_max.max(run);
        for from in &mut self.from[1..=run.min(PIECE_UNITS_MAX)] {
            *from = (*from).min(number as usize);
        }
    }
}

impl Page {
    /// The first of `units` free units in a row.
    fn find(&mut self, units: usize) -> Option<usize> {
        if self.run_max < units {
            return None;
        }
        let mut run = 0; // of free units before `at`
        for (index, word) in self.taken.iter().enumerate() {
            let mut at = 0;
            while at < 64 {
                let free = (word >> at).trailing_zeros().min(64 - at);
                run += free as usize;
                at += free;
                if run >= units {
                    return Some(index * 64 + at as usize - run);
                }
                if at < 64 {
                    at += (word >> at).trailing_ones();
                    run = 0;
                }
            }
        }
        self.run_max = units - 1;
        None
    }

    /// Marks units as taken or free; they must be in the other state.
    fn set(&mut self, first: usize, units: usize, is_taken: bool) {
        let (mut unit, end) = (first, first + units);
        while unit < end {
            let here = (64 - unit % 64).min(end - unit);
            let mask = u64::MAX >> (64 - here) << (unit % 64);
            let word = &mut self.taken[unit / 64];
            assert!(*word & mask == if is_taken { 0 } else { mask }, "invariant 1: units of two pieces");
            *word ^= mask;
            unit += here;
        }
        match is_taken {
            true => self.taken_units += units,
            false => self.taken_units -= units,
        }
    }

    /// Length of the run of free units around `units` free ones, as far as it matters.
    fn run_around(&self, first: usize, units: usize) -> usize {
        let is_free = |unit: &usize| !self.is_taken(*unit);
        let before = (0..first).rev().take(PIECE_UNITS_MAX).take_while(is_free).count();
        let behind = (first + units..UNITS).take(PIECE_UNITS_MAX).take_while(is_free).count();
        before + units + behind
    }

    fn is_taken(&self, unit: usize) -> bool {
        self.taken[unit / 64] >> (unit % 64) & 1 == 1
    }

    /// Whether these units exist and are all free.
    fn is_free(&self, mut units: Range<usize>) -> bool {
        units.end <= UNITS && !units.any(|unit| self.is_taken(unit))
    }
}

impl DenseBytes {
    /// Greatest length in bytes.
    pub const LEN_MAX: usize = PIECE_UNITS_MAX * UNIT_BYTES - HEAD_BYTES;

    /// A copy of `bytes`, at most [`Self::LEN_MAX`] of them.
    pub fn new(bytes: &[u8]) -> DenseBytes {
        assert!(bytes.len() <= Self::LEN_MAX, "{} bytes in one piece", bytes.len());
        let (piece, page) = ARENA.lock().take(units_for(bytes.len()));
        // SAFETY: the piece has space for both and starts on a unit, so it is aligned. It was taken just now, so by
        // invariant 1 no other code accesses it.
        unsafe {
            piece.cast::<AtomicU32>().write(AtomicU32::new(1));
            piece.add(HEAD_BYTES).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
        DenseBytes { piece, len: bytes.len() as u32, page }
    }

    /// Bytes that they take of their huge page.
    pub fn memory_bytes(&self) -> usize {
        units_for(self.len()) * UNIT_BYTES
    }

    fn count(&self) -> &AtomicU32 {
        // SAFETY: `new` has initialised it, and the piece is taken as long as `self` lives (invariant 1).
        unsafe { self.piece.cast::<AtomicU32>().as_ref() }
    }

    /// Whether there is another handle of these bytes.
    pub fn is_shared(&self) -> bool {
        // Accesses through handles that are gone happen before everything that follows.
        self.count().load(Ordering::Acquire) > 1
    }

    /// Whether both are handles of the same bytes in memory.
    pub fn is_same(&self, other: &DenseBytes) -> bool {
        self.piece == other.piece
    }

    /// The bytes, to be changed. If they are shared this becomes the one handle of a copy.
    pub fn make_mut(&mut self) -> &mut [u8] {
        if self.is_shared() {
            *self = DenseBytes::new(self);
        }
        // SAFETY: `new` has initialised this many bytes. This is their only handle, and no other can be made while it
        // is borrowed (invariant 2).
        unsafe { std::slice::from_raw_parts_mut(self.piece.add(HEAD_BYTES).as_ptr(), self.len as usize) }
    }

    /// Makes it a handle of a copy of `bytes`: in place, if no other handle exists and they fit there.
    pub fn set(&mut self, bytes: &[u8]) {
        let (old, new) = (units_for(self.len()), units_for(bytes.len()));
        if self.is_shared() || (old != new && !ARENA.lock().resize(self.page, self.piece, old, new)) {
            *self = DenseBytes::new(bytes);
            return;
        }
        // SAFETY: the piece has space for them. This is its only handle, borrowed exclusively (invariant 2), so `bytes`
        // are not in it.
        unsafe {
            self.piece.add(HEAD_BYTES).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
        self.len = bytes.len() as u32;
    }
}

impl Deref for DenseBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` has initialised this many bytes, and the piece is taken as long as `self` lives (invariant 1).
        // They do not change while this handle is borrowed (invariant 2).
        unsafe { std::slice::from_raw_parts(self.piece.add(HEAD_BYTES).as_ptr(), self.len as usize) }
    }
}

impl Clone for DenseBytes {
    fn clone(&self) -> DenseBytes {
        let before = self.count().fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "too many handles of the same bytes");
        DenseBytes { ..*self }
    }
}

impl Drop for DenseBytes {
    fn drop(&mut self) {
        if self.count().fetch_sub(1, Ordering::Release) == 1 {
            // Accesses through other handles happen before the piece is reused.
            fence(Ordering::Acquire);
            let unneeded = ARENA.lock().give_back(self.page, self.piece, units_for(self.len()));
            drop(unneeded); // with the lock released
        }
    }
}

// SAFETY: handles are counted with atomics, and only a sole handle gives mutable access.
unsafe impl Send for DenseBytes {}
// SAFETY: as above.
unsafe impl Sync for DenseBytes {}

impl std::fmt::Debug for DenseBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DenseBytes({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests;
