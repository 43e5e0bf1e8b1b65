//! The debt of a write to collection. Pure arithmetic.
//!
//! When more free segments are lacking than the thread wins back alone, each byte written adds debt: a number of bytes
//! that collection has to move. Segments that a flush will free count as free. This price is zero at first, and
//! [`PRICE_MAX`] where only collection's own segments are left. In between it grows with the square, so that a store
//! whose victims are mostly garbage is hardly slowed down, and one that is nearly full reaches a level at which
//! collection wins as much space as is written. That level need not be known: while the price is too low, free segments
//! fall to where it is higher.
//!
//! The debt is a target for the bytes moved since open. A writer raises the target and waits until collection is near
//! it; the next writers wait for the rest.

use std::time::Duration;

/// Bytes moved per byte written when all that writers may take is taken. With a victim that is 97% live, 32 bytes are
/// moved for each byte won.
const PRICE_MAX: u64 = 32;

/// Debt below which no writer waits: collection progresses in steps of this size.
const CREDIT_BYTES: u64 = 1 << 20;

/// Debt beyond which no more is noted, so that a pause of collection does not become one of the writers.
const DEBT_BYTES_MAX: u64 = 32 << 20;

/// Longest wait of one batch.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(50);

/// Bytes that collection must move for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owed(u64);

impl Owed {
    pub(crate) const NOTHING: Owed = Owed(0);

    /// For a batch of `bytes`, when `lacking` of `kept` bytes are lacking that are kept free for writers.
    pub(crate) fn new(bytes: u64, lacking: u64, kept: u64) -> Owed {
        let lacking = u128::from(lacking.min(kept));
        let square = u128::from(kept) * u128::from(kept);
        Owed((u128::from(bytes * PRICE_MAX) * lacking * lacking / square.max(1)) as u64)
    }

    /// The count at which this debt is paid, given that of all before it and what was moved.
    pub(crate) fn target(self, before: u64, moved: u64) -> u64 {
        (before.max(moved) + self.0).min(moved + DEBT_BYTES_MAX)
    }
}

/// Whether a writer that waits for `target` may go on.
pub(crate) fn is_paid(target: u64, moved: u64) -> bool {
    target <= moved + CREDIT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_grows_with_what_is_lacking() {
        let prices: Vec<_> = (0..=8).map(|lacking| Owed::new(1000, lacking, 8).0).collect();
        assert_eq!(prices, [0, 500, 2000, 4500, 8000, 12500, 18000, 24500, 32000]);
        assert_eq!(Owed::new(1000, 9, 8).0, 32000, "it does not go beyond the highest");
        assert_eq!(
            Owed::new(16 << 20, 1 << 40, 1 << 40).0,
            512 << 20,
            "sizes of large stores do not overflow"
        );
    }

    #[test]
    fn debts_add_up_until_they_are_paid() {
        let owed = Owed(CREDIT_BYTES);
        let first = owed.target(0, 100);
        assert!(is_paid(first, 100), "some credit is given");
        let second = owed.target(first, 100);
        assert!(!is_paid(second, 100));
        assert!(is_paid(second, 100 + CREDIT_BYTES));
        assert_eq!(owed.target(second, 10 * CREDIT_BYTES), 11 * CREDIT_BYTES, "no credit is saved up");
        assert_eq!(owed.target(u64::MAX / 2, 0), DEBT_BYTES_MAX);
    }
}
