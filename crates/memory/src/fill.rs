//! Memory that several threads fill, each its own part, and that is shared once it is filled.
//!
//! Splitting a [`Blank`] gives each thread a part of its own, which filling turns into a [`Filled`]. Filled parts are
//! read-only: they can be cloned, sliced, and, if adjacent, joined into the bytes of one request. The last handle
//! returns the memory to its [`Home`], from any thread: requests end in any order, and readers may hold written bytes
//! for a while.
//!
//! Invariants:
//! 1. Each byte of a memory belongs to at most one blank, and then to no filled part. Only the holder of the blank
//!    writes to it, and no code reads it.
//! 2. A byte that was filled is not written again until all handles of its memory are gone.
//!
//! A new memory is one blank; splitting divides its range, and filling consumes the blank. The unsafe code below relies
//! on nothing else.

#![allow(unsafe_code)] // Disjoint parts of one allocation, written by several threads.

use std::{
    mem,
    ops::{Deref, Range},
    sync::Arc,
};

use crate::AlignedBuf;

/// Takes memory back when its last handle is dropped.
pub trait Home: Send + Sync {
    /// Takes `memory` back. It is called wherever the last handle is dropped, so it must not wait for anything.
    fn take_back(&self, memory: AlignedBuf);
}

/// State that all handles of one memory share.
struct Memory {
    buf: AlignedBuf,
    home: Option<Arc<dyn Home>>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.take_back(mem::replace(&mut self.buf, AlignedBuf::zeroed(0)));
        }
    }
}

/// Exclusive memory that is not filled yet.
pub struct Blank {
    memory: Arc<Memory>,
    range: Range<usize>,
}

/// Shared memory that no longer changes.
#[derive(Clone)]
pub struct Filled {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl From<AlignedBuf> for Blank {
    fn from(buf: AlignedBuf) -> Blank {
        Blank { range: 0..buf.len(), memory: Arc::new(Memory { buf, home: None }) }
    }
}

impl From<AlignedBuf> for Filled {
    fn from(buf: AlignedBuf) -> Filled {
        Filled { range: 0..buf.len(), memory: Arc::new(Memory { buf, home: None }) }
    }
}

impl Blank {
    /// All of `buf`, which returns to `home` with its last handle.
    pub fn lent(buf: AlignedBuf, home: Arc<dyn Home>) -> Blank {
        Blank { range: 0..buf.len(), memory: Arc::new(Memory { buf, home: Some(home) }) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Splits off the first `len` bytes.
    ///
    /// # Panics
    /// When it is shorter.
    pub fn split_to(&mut self, len: usize) -> Blank {
        assert!(len <= self.len(), "{len} bytes of a blank of {}", self.len());
        let middle = self.range.start + len;
        let first = Blank { memory: Arc::clone(&self.memory), range: self.range.start..middle };
        self.range.start = middle;
        first
    }

    /// Calls `fill` on the memory, whose content is unspecified, and makes it read-only.
    pub fn fill(self, fill: impl FnOnce(&mut [u8])) -> Filled {
        let Blank { memory, range } = self;
        let start = memory.buf.base().as_ptr().wrapping_add(range.start);
        // SAFETY: the range lies in the allocation, which `memory` keeps. Its bytes are initialised, as all of an
        // `AlignedBuf` are. By invariant 1 this is the only reference to any of them.
        fill(unsafe { std::slice::from_raw_parts_mut(start, range.len()) });
        Filled { memory, range }
    }
}

impl Filled {
    /// The bytes in `within`.
    pub fn slice(&self, within: Range<usize>) -> Filled {
        assert!(within.start <= within.end && within.end <= self.len(), "{within:?} of {}", self.len());
        let range = self.range.start + within.start..self.range.start + within.end;
        Filled { memory: Arc::clone(&self.memory), range }
    }

    /// Extends the range by `next`.
    ///
    /// # Panics
    /// When `next` does not follow directly in the same memory.
    pub fn join(&mut self, next: &Filled) {
        let touches = Arc::ptr_eq(&self.memory, &next.memory) && self.range.end == next.range.start;
        assert!(touches, "joined what does not touch");
        self.range.end = next.range.end;
    }
}

impl Deref for Filled {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.memory.buf.base().as_ptr().wrapping_add(self.range.start);
        // SAFETY: the range lies in the allocation, which `memory` keeps, and is initialised. By invariant 2 no code
        // writes to it as long as `self` lives.
        unsafe { std::slice::from_raw_parts(start, self.range.len()) }
    }
}

impl std::fmt::Debug for Filled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filled({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn parts_are_filled_by_threads_and_joined() {
        let mut blank = Blank::from(AlignedBuf::zeroed(1000));
        let parts: Vec<Blank> = (0..10).map(|_| blank.split_to(100)).collect();
        assert!(blank.is_empty());
        let filled = std::thread::scope(|scope| {
            let fillers: Vec<_> = parts
                .into_iter()
                .zip(0..)
                .map(|(part, number)| scope.spawn(move || part.fill(|bytes| bytes.fill(number))))
                .collect();
            fillers.into_iter().map(|filler| filler.join().unwrap()).collect::<Vec<_>>()
        });
        let mut all = filled[2].clone();
        filled[3..].iter().for_each(|next| all.join(next));
        assert_eq!(all.len(), 800);
        assert!((0..800).all(|at| all[at] == (at / 100) as u8 + 2));
        assert_eq!(all.slice(150..250)[..], [[3; 50], [4; 50]].concat());
    }

    /// Filled parts are read while their neighbours are written: for Miri.
    #[test]
    fn a_part_is_read_while_others_are_filled() {
        let mut rest = Blank::from(AlignedBuf::zeroed(64));
        let first = rest.split_to(10).fill(|bytes| bytes.fill(1));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(first.iter().all(|byte| *byte == 1)));
            scope.spawn(move || rest.fill(|bytes| bytes.fill(2)));
        });
    }

    #[derive(Default)]
    struct Shelf(Mutex<Vec<AlignedBuf>>);

    impl Home for Shelf {
        fn take_back(&self, memory: AlignedBuf) {
            self.0.lock().push(memory);
        }
    }

    #[test]
    fn memory_goes_home_with_the_last_handle() {
        let shelf = Arc::new(Shelf::default());
        let back = || shelf.0.lock().iter().map(|memory| memory.len()).collect::<Vec<_>>();
        let mut blank = Blank::lent(AlignedBuf::zeroed(8192), shelf.clone());
        let first = blank.split_to(4096).fill(|bytes| bytes.fill(1));
        let again = first.clone();
        drop(first);
        let second = blank.fill(|bytes| bytes.fill(2));
        drop(again);
        assert_eq!(back(), []);
        drop(second.slice(10..20));
        assert_eq!(back(), [], "a handle is left");
        std::thread::spawn(move || drop(second)).join().unwrap();
        assert_eq!(back(), [8192]);
        let memory = shelf.0.lock().pop().unwrap();
        drop(Blank::lent(memory, shelf.clone()));
        assert_eq!(back(), [8192], "unused");
    }

    #[test]
    #[should_panic(expected = "joined what does not touch")]
    fn only_neighbours_are_joined() {
        let mut blank = Blank::from(AlignedBuf::zeroed(30));
        let mut first = blank.split_to(10).fill(|_| {});
        drop(blank.split_to(1));
        first.join(&blank.fill(|_| {}));
    }
}
