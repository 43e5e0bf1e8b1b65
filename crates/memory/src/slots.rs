//! Memory for buffers of a few lengths, many of which share a huge page.
//!
//! A general allocator spends 20 KiB on a buffer of 16 KiB that is aligned to 4 KiB, because its own header is in the
//! way of the next buffer. And random access to many buffers waits for page-table look-ups (TLB misses), unless they
//! lie in huge pages. So each length has huge pages of its own here, cut into slots of that length.
//!
//! ```text
//! huge page, 2 MiB:  slot | slot | slot | ... | rest
//! ```
//!
//! A buffer takes the first free slot, so later pages run empty. An empty page goes back to the system if another page
//! of that length is empty too.
//!
//! Invariants:
//! 1. A slot is taken exactly as long as its buffer lives. No other code accesses it.
//! 2. All bytes of a page are initialised when it is added.
//! 3. No page before `first` has a free slot.
//!
//! An arena's lock is innermost: a thread that holds it calls nothing but the allocator.

use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::huge::{HUGE_PAGE, HugePage};

/// Lengths are multiples of this, so slots are aligned to it.
const UNIT: usize = 4096;
/// The longest slot.
const SLOT_BYTES_MAX: usize = 256 << 10;
/// Words with a bit for each slot of a page, for the shortest.
const WORDS: usize = HUGE_PAGE / UNIT / 64;

/// Huge pages of one length of slots.
struct Arena {
    /// By number; a number without a page is reused.
    pages: Vec<Option<Page>>,
    first: usize,
    /// Pages without a taken slot.
    empty: usize,
}

struct Page {
    memory: HugePage,
    taken: [u64; WORDS],
    taken_slots: usize,
}

static ARENAS: [Mutex<Arena>; SLOT_BYTES_MAX / UNIT] =
    [const { Mutex::new(Arena::new()) }; SLOT_BYTES_MAX / UNIT];

/// The arena of slots of `len` bytes; none for other lengths.
fn arena(len: usize) -> Option<&'static Mutex<Arena>> {
    if len.is_multiple_of(UNIT) { ARENAS.get((len / UNIT).checked_sub(1)?) } else { None }
}

/// Exclusive, initialised memory of `len` bytes, and the number with which to give it back; none for other lengths.
pub(crate) fn take(len: usize) -> Option<(NonNull<u8>, u32)> {
    let arena = arena(len)?;
    let found = arena.lock().take(len);
    Some(found.unwrap_or_else(|| {
        let memory = HugePage::zeroed(); // with the lock released
        let mut arena = arena.lock();
        arena.add(memory);
        arena.take(len).expect("a page with free slots")
    }))
}

/// Gives back memory that [`take`] returned for `len` bytes. No code accesses it any more.
pub(crate) fn give_back(slot: NonNull<u8>, len: usize, page: u32) {
    let unneeded = arena(len).expect("a slot's length").lock().give_back(slot, len, page);
    drop(unneeded); // with the lock released
}

impl Arena {
    const fn new() -> Arena {
        Arena { pages: Vec::new(), first: 0, empty: 0 }
    }

    fn add(&mut self, memory: HugePage) {
        let number = self.pages.iter().position(Option::is_none).unwrap_or(self.pages.len());
        if number == self.pages.len() {
            self.pages.push(None);
        }
        self.pages[number] = Some(Page { memory, taken: [0; WORDS], taken_slots: 0 });
        self.first = self.first.min(number);
        self.empty += 1;
    }

    fn take(&mut self, len: usize) -> Option<(NonNull<u8>, u32)> {
        let slots = HUGE_PAGE / len;
        let mut pages = self.pages.iter_mut().enumerate().skip(self.first);
        let found = pages.find_map(|(number, page)| {
            let page = page.as_mut().filter(|page| page.taken_slots < slots)?;
            Some((number, page))
        });
        let Some((number, page)) = found else {
            self.first = self.pages.len();
            return None;
        };
        self.first = number;
        self.empty -= usize::from(page.taken_slots == 0);
        let word = page.taken.iter().position(|word| *word != u64::MAX).expect("a free slot");
        let slot = word * 64 + page.taken[word].trailing_ones() as usize;
        assert!(slot < slots, "slot {slot} of {slots}");
        page.taken[word] |= 1 << (slot % 64);
        page.taken_slots += 1;
        Some((page.memory.at(slot * len), number as u32))
    }

    /// Returns a huge page that is no longer needed.
    fn give_back(&mut self, slot: NonNull<u8>, len: usize, number: u32) -> Option<HugePage> {
        let number = number as usize;
        let page = self.pages[number].as_mut().expect("invariant 1: a slot lies in a page");
        let slot = (slot.addr().get() - page.memory.at(0).addr().get()) / len;
        let (word, bit) = (&mut page.taken[slot / 64], 1 << (slot % 64));
        assert!(*word & bit != 0, "invariant 1: a slot is given back once");
        *word ^= bit;
        page.taken_slots -= 1;
        self.first = self.first.min(number);
        if page.taken_slots > 0 {
            return None;
        }
        if self.empty == 0 {
            self.empty = 1;
            return None;
        }
        self.pages[number].take().map(|page| page.memory)
    }
}

#[cfg(test)]
mod tests {
    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;
    use crate::AlignedBuf;

    impl Arena {
        /// Checks the bookkeeping of the pages against their bits; returns how many slots are taken.
        fn check(&self, slots: usize) -> usize {
            let mut taken = 0;
            let mut empty = 0;
            for (number, page) in self.pages.iter().enumerate() {
                let Some(page) = page else { continue };
                let here: usize = page.taken.iter().map(|word| word.count_ones() as usize).sum();
                assert_eq!(page.taken_slots, here);
                assert!(number >= self.first || here == slots, "invariant 3: page {number}");
                taken += here;
                empty += usize::from(here == 0);
            }
            assert_eq!(self.empty, empty);
            taken
        }
    }

    fn take(arena: &mut Arena, len: usize) -> (NonNull<u8>, u32) {
        arena.take(len).unwrap_or_else(|| {
            arena.add(HugePage::new());
            arena.take(len).expect("a new page")
        })
    }

    /// Slots are taken and given back at random; none is handed out twice, and freed slots are reused.
    #[test]
    fn slots_are_given_once_and_pages_go_back() {
        for_each_seed(if cfg!(miri) { 2 } else { 30 }, |seed| {
            let mut rng = SeededRng::new(seed);
            let len = UNIT * [1, 4, 6, 16, 32][rng.below(5) as usize];
            let slots = HUGE_PAGE / len;
            let mut arena = Arena::new();
            let mut held = Vec::new();
            for _ in 0..4 {
                let target = rng.below(4 * slots as u64) as usize;
                while held.len() != target {
                    if held.len() < target {
                        let slot = take(&mut arena, len);
                        assert!(slot.0.addr().get().is_multiple_of(UNIT));
                        held.push(slot);
                    } else {
                        let (slot, page) = held.swap_remove(rng.below(held.len() as u64) as usize);
                        arena.give_back(slot, len, page);
                    }
                }
                assert_eq!(arena.check(slots), held.len());
                let mut starts: Vec<_> = held.iter().map(|(slot, _)| slot.addr().get()).collect();
                starts.sort_unstable();
                assert!(starts.windows(2).all(|two| two[1] - two[0] >= len), "one lies in another");
            }
            for (slot, page) in held {
                arena.give_back(slot, len, page);
            }
            assert_eq!(arena.check(slots), 0);
            assert!(arena.pages.iter().flatten().count() <= 1, "one page stays");
        });
    }

    #[test]
    fn what_was_taken_first_is_filled_first() {
        let mut arena = Arena::new();
        let len = SLOT_BYTES_MAX;
        let held: Vec<_> = (0..20).map(|_| take(&mut arena, len)).collect();
        assert_eq!(held.last().map(|(_, page)| *page), Some(2));
        arena.give_back(held[3].0, len, held[3].1);
        assert_eq!(take(&mut arena, len), held[3]);
    }

    #[test]
    fn buffers_of_all_lengths_keep_their_bytes() {
        let lens = [0, 100, UNIT, 24 << 10, 16 << 10, 16 << 10, SLOT_BYTES_MAX, SLOT_BYTES_MAX + UNIT];
        let mut buffers = lens.map(AlignedBuf::dense);
        for (buffer, byte) in buffers.iter_mut().zip(1..) {
            buffer.fill(byte);
        }
        for ((buffer, byte), len) in buffers.iter().zip(1..).zip(lens) {
            assert_eq!(buffer.len(), len);
            assert!(buffer[..] == vec![byte; len]); // as a whole: byte by byte, Miri would take too long
            assert!(len == 0 || buffer.as_ptr().addr().is_multiple_of(UNIT));
        }
    }
}
