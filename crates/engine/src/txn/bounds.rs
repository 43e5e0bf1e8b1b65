//! Ranges of keys.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys: `..`, `"a".."f"`, `key..`, or a pair of bounds, of anything that is bytes.
///
/// A range whose lower bound is above its upper one is empty.
pub trait KeyRange {
    /// The lower and the upper bound.
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>);
}

impl KeyRange for RangeFull {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for Range<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(self.start.as_ref()), Bound::Excluded(self.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeInclusive<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(self.start().as_ref()), Bound::Included(self.end().as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeFrom<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(self.start.as_ref()), Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeTo<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Excluded(self.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for RangeToInclusive<K> {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Included(self.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> KeyRange for (Bound<K>, Bound<K>) {
    fn key_bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.0.as_ref().map(AsRef::as_ref), self.1.as_ref().map(AsRef::as_ref))
    }
}

/// Where the keys end that begin with `prefix`.
pub(super) fn prefix_end(prefix: &[u8]) -> Bound<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX).map_or(0, |last| last + 1);
    let mut end = prefix[..kept].to_vec();
    match end.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(end)
        }
        None => Bound::Unbounded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_behind_all_that_begins_with_them() {
        for (prefix, end) in [
            (&b"ab"[..], Bound::Excluded(b"ac".to_vec())),
            (b"a\xff\xff", Bound::Excluded(b"b".to_vec())),
            (b"\xff", Bound::Unbounded),
            (b"", Bound::Unbounded),
        ] {
            assert_eq!(prefix_end(prefix), end, "{prefix:?}");
        }
    }

    #[test]
    fn ranges_of_anything_that_is_bytes() {
        let ab: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(b"a"), Bound::Excluded(b"b"));
        assert_eq!(("a".."b").key_bounds(), ab);
        assert_eq!((b"a"..b"b").key_bounds(), ab);
        assert_eq!((b"a".to_vec()..b"b".to_vec()).key_bounds(), ab);
        assert_eq!((Bound::Included([b'a']), Bound::Excluded([b'b'])).key_bounds(), ab);
        assert_eq!(("a"..="b").key_bounds(), (ab.0, Bound::Included(&b"b"[..])));
        assert_eq!(("a"..).key_bounds(), (ab.0, Bound::Unbounded));
        assert_eq!((.."b").key_bounds(), (Bound::Unbounded, ab.1));
        assert_eq!((..="b").key_bounds(), (Bound::Unbounded, Bound::Included(&b"b"[..])));
        assert_eq!((..).key_bounds(), (Bound::Unbounded, Bound::Unbounded));
    }
}
