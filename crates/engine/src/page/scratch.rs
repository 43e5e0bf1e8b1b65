//! Memory for short-lived byte strings, such as a log record.

use std::{
    cell::RefCell,
    mem,
    ops::{Deref, DerefMut},
};

/// Pieces that a thread keeps.
const PIECES_MAX: usize = 4;
/// A piece that grew longer is freed.
const PIECE_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static PIECES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A vector, empty at first, in memory that the thread has used before. Dropping it keeps the memory for the next one.
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch(PIECES.with_borrow_mut(Vec::pop).unwrap_or_default())
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Deref for Scratch {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut piece = mem::take(&mut self.0);
        if (1..=PIECE_BYTES_MAX).contains(&piece.capacity()) {
            piece.clear();
            // A thread that ends has no pieces any more.
            let _ = PIECES.try_with(|pieces| {
                let mut pieces = pieces.borrow_mut();
                if pieces.len() < PIECES_MAX {
                    pieces.push(piece);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `f` in a thread that has used none yet.
    fn anew(f: impl FnOnce() + Send) {
        std::thread::scope(|scope| scope.spawn(f).join().expect("thread"));
    }

    fn of_bytes(bytes: usize) -> Scratch {
        let mut scratch = Scratch::new();
        scratch.resize(bytes, 7);
        scratch
    }

    #[test]
    fn memory_is_used_again_and_what_was_in_it_forgotten() {
        anew(|| {
            let scratch = of_bytes(1000);
            let at = scratch.as_ptr();
            drop(scratch);
            let again = Scratch::new();
            assert!(again.is_empty() && again.as_ptr() == at);
            assert_eq!(Scratch::new().capacity(), 0, "the only piece is in use");
        });
    }

    #[test]
    fn a_thread_keeps_little() {
        anew(|| {
            drop([(); 3].map(|()| of_bytes(PIECE_BYTES_MAX + 1)));
            assert_eq!(PIECES.with_borrow(Vec::len), 0);
            drop([(); 3 * PIECES_MAX].map(|()| of_bytes(100)));
            assert_eq!(PIECES.with_borrow(Vec::len), PIECES_MAX);
        });
    }
}
