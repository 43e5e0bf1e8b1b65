//! Whether the data of a file shrinks, from what its last chunks did: compressing what does not shrink would cost
//! processor time and win nothing.
//!
//! After a chunk that saves no sector, many times its bytes are written as they are before a chunk is tried again; after
//! a chunk that does shrink, the next one is tried. So what a short write says does not hold for long. It is in memory
//! only, and a hint: writers of one file share it, and it does not matter whose chunk changes it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lacuna_ftl::{Algorithm, Choice};

use crate::mutant::{Rule, is_broken};

/// Bytes that are not tried for one that is, of data that does not shrink.
const SKIPPED_LZ4: u64 = 127;
/// The same with zstd, which takes longer.
const SKIPPED_ZSTD: u64 = 1023;

/// See the module.
#[derive(Default)]
pub(super) struct Shrinking {
    /// Bytes to be written as they are.
    left: AtomicU64,
}

/// The chunks of a write.
pub(super) struct Attempts<'a> {
    /// None if each chunk is to be tried.
    shrinking: Option<&'a Shrinking>,
    skips: u64,
    pub(super) skipped: u64,
    pub(super) in_vain: u64,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(shrinking: Option<&'a Shrinking>, algorithm: Algorithm) -> Attempts<'a> {
        let skips = if algorithm == Algorithm::Zstd { SKIPPED_ZSTD } else { SKIPPED_LZ4 };
        Attempts { shrinking, skips, skipped: 0, in_vain: 0 }
    }
}

impl Choice for Attempts<'_> {
    fn tries(&mut self, bytes: usize) -> bool {
        let Some(shrinking) = self.shrinking else { return true };
        let less = |left: u64| (left > 0).then(|| left.saturating_sub(bytes as u64));
        let skips = shrinking.left.fetch_update(Relaxed, Relaxed, less).is_ok();
        self.skipped += u64::from(skips);
        !skips
    }

    fn tried(&mut self, bytes: usize, is_shorter: bool) {
        self.in_vain += u64::from(!is_shorter);
        if let Some(shrinking) = self.shrinking {
            let skips = if is_shorter || is_broken(Rule::IncompressibleSkipped) { 0 } else { self.skips };
            shrinking.left.store(skips * bytes as u64, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_chunk_in_many_is_tried_until_one_shrinks() {
        const BYTES: usize = 16 << 10;
        for (algorithm, every) in [(Algorithm::Lz4, 128_u32), (Algorithm::Zstd, 1024)] {
            let shrinking = Shrinking::default();
            let mut attempts = Attempts::new(Some(&shrinking), algorithm);
            assert!(attempts.tries(BYTES) && attempts.tries(BYTES), "nothing is known yet");
            attempts.tried(BYTES, false);
            for number in 1..=3 * every {
                let tries = attempts.tries(BYTES);
                assert_eq!(tries, number % every == 0, "{number}");
                if tries {
                    attempts.tried(BYTES, false);
                }
            }
            assert_eq!((attempts.skipped, attempts.in_vain), (3 * (u64::from(every) - 1), 4));
            let mut others = Attempts::new(Some(&shrinking), algorithm);
            assert!(!others.tries(BYTES), "writers of one file share what they know");
            others.tried(BYTES, true);
            assert!(attempts.tries(BYTES) && attempts.tries(BYTES));
            // What a short write says is soon forgotten.
            attempts.tried(BYTES / 32, false);
            assert_eq!((0..every).take_while(|_| !attempts.tries(BYTES)).count() as u32, every / 32);
            shrinking.left.store(9, Relaxed);
            assert!(Attempts::new(None, algorithm).tries(BYTES), "a rewrite tries each chunk");
        }
    }
}
