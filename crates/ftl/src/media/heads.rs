//! What is sealed among all that only looks like it, in one pass.
//!
//! A head says how long its frame or record is, and its checksum is over all of that. Whoever forges heads can make each
//! bytes look like one that reaches to the end, and checking them one by one would take the square of the time. Checksums
//! are linear, so each head, when it is met, tells which checksum all bytes have up to its end if it is sealed.

use std::{cmp::Reverse, collections::BinaryHeap};

use lacuna_crc::crc32c_append;

/// Heads in bytes that are passed over once, in order.
pub(super) struct Heads<T> {
    /// Up to where bytes were passed over, and the checksum of these; those over which no head is open do not count.
    passed: u64,
    crc: u32,
    /// Of those whose bytes would end further on: where, the checksum up to there if they are sealed, and what the caller
    /// knows them by; the first end is on top.
    open: BinaryHeap<Reverse<(u64, u32, T)>>,
}

impl<T: Ord + Copy> Heads<T> {
    /// The first byte to pass over is the one at `start`.
    pub(super) fn from(start: u64) -> Heads<T> {
        Heads { passed: start, crc: 0, open: BinaryHeap::new() }
    }

    /// The checksum of what was passed over.
    pub(super) fn crc(&self) -> u32 {
        self.crc
    }

    /// Whether a head was met whose end was not passed yet.
    pub(super) fn is_any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// A head `known` was met, and passed over up to the end of its checksum: if it is sealed, the checksum up to `end`,
    /// where it ends, is `crc`.
    pub(super) fn meet(&mut self, end: u64, crc: u32, known: T) {
        self.open.push(Reverse((end, crc, known)));
    }

    /// Passes over `bytes`, and over the rest of them when dropped. Yields the heads that end in there and are sealed.
    pub(super) fn pass<'b>(&'b mut self, bytes: &'b [u8]) -> Passing<'b, T> {
        Passing { last: self.passed + bytes.len() as u64, heads: self, bytes }
    }
}

/// See [`Heads::pass`].
pub(super) struct Passing<'b, T: Ord + Copy> {
    heads: &'b mut Heads<T>,
    /// Those that are left.
    bytes: &'b [u8],
    /// Where they end.
    last: u64,
}

impl<T: Ord + Copy> Passing<'_, T> {
    fn pass_to(&mut self, end: u64) -> u32 {
        let (passed, rest) = self.bytes.split_at((end - self.heads.passed) as usize);
        if self.heads.is_any_open() {
            self.heads.crc = crc32c_append(self.heads.crc, passed);
        }
        (self.heads.passed, self.bytes) = (end, rest);
        self.heads.crc
    }
}

impl<T: Ord + Copy> Iterator for Passing<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        loop {
            let Reverse((end, crc, known)) = *self.heads.open.peek()?;
            if end > self.last {
                return None;
            }
            let is_sealed = self.pass_to(end) == crc;
            self.heads.open.pop();
            if is_sealed {
                return Some(known);
            }
        }
    }
}

impl<T: Ord + Copy> Drop for Passing<'_, T> {
    fn drop(&mut self) {
        while self.next().is_some() {}
        self.pass_to(self.last);
    }
}
