//! A directory: a hash table as sparse as the space that it lies in.
//!
//! The sectors of a directory's region are its buckets, one entry each. A name goes into the bucket that its hash
//! names, or into the first free one behind it. With 2^36 buckets and at most 2^28 files two names hardly ever collide,
//! an empty bucket takes no space, and the table never grows or moves.
//!
//! 1. Every bucket from a name's own up to the one that holds it is in use (by an entry or a
//!    tombstone), so a search ends at the first empty bucket.
//! 2. An entry never moves while its name exists: a position in a listing stays valid. So removal leaves a tombstone
//!    where entries follow, instead of shifting them back.
//! 3. A run of used buckets ends in an entry: removing that entry also removes the tombstones before it. So there are
//!    never more tombstones than the entries' own collisions require.
//! 4. No name is there twice.
//!
//! The functions here read and decide; the caller writes what they decide in one batch, and ensures that the directory
//! did not change in between.

use std::ops::Range;

use crate::{
    error::{Refusal, Result},
    format::{Bucket, Dirent, REGION_SECTORS, Slot},
};

/// Buckets behind the last one that a hash names, so that a search never wraps around. More names than
/// this in one run would need as many collisions of a keyed hash.
const OVERFLOW_BUCKETS: u64 = 1 << 16;

/// Buckets that a hash can name.
const HOME_BUCKETS: u64 = REGION_SECTORS - OVERFLOW_BUCKETS;

/// The source of the buckets of one directory: the ftl, or a map in tests.
pub(crate) trait Buckets {
    /// The content of `bucket`.
    fn get(&self, bucket: Bucket) -> Result<Slot>;
}

/// Result of a search.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives on the stack, for a moment")]
pub(crate) enum Search {
    Found {
        bucket: Bucket,
        entry: Dirent,
    },
    /// No such name; a new entry for it goes into `free`.
    Absent {
        free: Bucket,
    },
}

/// How to empty a bucket without breaking invariant 1 or 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Entries follow.
    Bury(Bucket),
    /// Nothing follows: this bucket and the tombstones before it are cleared.
    Clear { first: Bucket, count: u64 },
}

/// The bucket that a hash names.
pub(crate) fn home(hash: u64) -> Bucket {
    Bucket(hash % HOME_BUCKETS)
}

/// Looks for `name`.
pub(crate) fn search(buckets: &impl Buckets, name: &[u8], hash: u64) -> Result<Search> {
    let first = home(hash).0;
    let mut free = None;
    for bucket in (first..first + OVERFLOW_BUCKETS).map(Bucket) {
        match buckets.get(bucket)? {
            Slot::Empty => return Ok(Search::Absent { free: free.unwrap_or(bucket) }),
            Slot::Tombstone => free = free.or(Some(bucket)),
            Slot::Entry(entry) if entry.hash() == hash && entry.name() == name => {
                return Ok(Search::Found { bucket, entry });
            }
            Slot::Entry(_) => {}
        }
    }
    free.map(|free| Search::Absent { free }).ok_or(Refusal::NoSpace.into())
}

/// Decides how to remove the entry in `bucket` while, in the same batch, `filled` gets one.
pub(crate) fn plan_removal(
    buckets: &impl Buckets,
    bucket: Bucket,
    filled: Option<Bucket>,
) -> Result<Removal> {
    let next = Bucket(bucket.0 + 1);
    let entries_follow =
        next.0 < REGION_SECTORS && (filled == Some(next) || !matches!(buckets.get(next)?, Slot::Empty));
    if entries_follow {
        return Ok(Removal::Bury(bucket));
    }
    let mut first = bucket;
    // More tombstones than a search passes over are not the work of this module.
    while first.0 > bucket.0.saturating_sub(OVERFLOW_BUCKETS) {
        let before = Bucket(first.0 - 1);
        if filled == Some(before) || !matches!(buckets.get(before)?, Slot::Tombstone) {
            break;
        }
        first = before;
    }
    Ok(Removal::Clear { first, count: bucket.0 - first.0 + 1 })
}

impl Removal {
    /// The buckets that change.
    pub(crate) fn buckets(self) -> Range<u64> {
        match self {
            Removal::Bury(bucket) => bucket.0..bucket.0 + 1,
            Removal::Clear { first, count } => first.0..first.0 + count,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;
    use crate::format::{Ino, Inode, Timestamp, siphash24};

    #[derive(Default)]
    struct MapBuckets(BTreeMap<u64, Slot>);

    impl Buckets for MapBuckets {
        fn get(&self, bucket: Bucket) -> Result<Slot> {
            Ok(self.0.get(&bucket.0).copied().unwrap_or(Slot::Empty))
        }
    }

    impl MapBuckets {
        fn insert(&mut self, bucket: Bucket, name: &str, hash: u64) {
            let inode = Inode::new(Ino::FIRST, 1, 0o100_644, Timestamp::default());
            self.0.insert(bucket.0, Slot::Entry(Dirent::new(name.as_bytes(), hash, &inode)));
        }

        fn remove(&mut self, removal: Removal) {
            match removal {
                Removal::Bury(bucket) => {
                    self.0.insert(bucket.0, Slot::Tombstone);
                }
                Removal::Clear { first, count } => {
                    (first.0..first.0 + count).for_each(|bucket| assert!(self.0.remove(&bucket).is_some()));
                }
            }
        }

        fn check(&self, names: &BTreeSet<String>, hash: impl Fn(&str) -> u64) {
            for name in names {
                let found = search(self, name.as_bytes(), hash(name)).unwrap();
                assert!(matches!(found, Search::Found { .. }), "invariant 1: {name} is lost");
            }
            for (bucket, held) in &self.0 {
                let last = !self.0.contains_key(&(bucket + 1));
                assert!(!(last && matches!(held, Slot::Tombstone)), "invariant 3: bucket {bucket}");
            }
            let entries = self.0.values().filter(|held| matches!(held, Slot::Entry(_))).count();
            assert_eq!(entries, names.len());
        }
    }

    /// A table of ten homes, so that everything collides with everything.
    #[test]
    fn colliding_names_come_go_and_are_renamed() {
        let hash = |name: &str| siphash24(&[7; 16], name.as_bytes()) % 10;
        for_each_seed(300, |seed| {
            let mut rng = SeededRng::new(seed);
            let mut buckets = MapBuckets::default();
            let mut names = BTreeSet::new();
            for _ in 0..200 {
                let name = format!("{}", rng.below(14));
                let to = format!("{}", rng.below(14));
                match (search(&buckets, name.as_bytes(), hash(&name)).unwrap(), rng.below(2)) {
                    (Search::Absent { free }, _) => {
                        buckets.insert(free, &name, hash(&name));
                        names.insert(name);
                    }
                    (Search::Found { bucket, .. }, 0) => {
                        buckets.remove(plan_removal(&buckets, bucket, None).unwrap());
                        names.remove(&name);
                    }
                    (Search::Found { .. }, _) if name == to => {}
                    (Search::Found { bucket, .. }, _) => {
                        let into = match search(&buckets, to.as_bytes(), hash(&to)).unwrap() {
                            Search::Found { bucket, .. } => bucket,
                            Search::Absent { free } => free,
                        };
                        buckets.remove(plan_removal(&buckets, bucket, Some(into)).unwrap());
                        buckets.insert(into, &to, hash(&to));
                        names.remove(&name);
                        names.insert(to);
                    }
                }
                buckets.check(&names, hash);
            }
        });
    }
}
