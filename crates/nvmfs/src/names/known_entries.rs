//! Entries of directories that were made or read not long ago.
//!
//! A program makes files, looks them up, and removes them again soon; a listing shows names that are then used one by
//! one. Each of these operations searches its name, and without this would read a sector of the device for that.
//!
//! It owns, in memory only, entries by directory and bucket.
//!
//! **Invariants.**
//! 1. An entry here is the one in its bucket: a change of names is noted here before the operation returns; and an
//!    entry that was read, with no lock held, is kept only if the directory has not changed since before the read.
//! 2. There are at most [`ENTRIES_MAX`], about 8 MB; those that came first go first.
//!
//! 3. A search that knows of a change, because it obtained the number of changes after that, gets no entry from before
//!    it: it would not notice that the entry is old. So the change is counted in `changes` and noted here in one step,
//!    with the table locked.
//!
//! **Locks.** One, held for moments, behind all others but a directory's `changes`, which is taken under it. For a change
//! and an entry that is read at the same time, either the entry sees the count or the change sees the entry.
//!
//! **Crash.** Nothing here is persistent.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ops::Range,
};

use lacuna_device::FileId;
use parking_lot::Mutex;

use super::read_ahead::Listed;
use crate::{
    format::{Bucket, Dirent, FileKind, Ino},
    inodes::Node,
    mutant::{Rule, is_broken},
};

/// As many as one program removes after it has listed them.
const ENTRIES_MAX: usize = 1 << 16;
/// The table gives memory back when it has this many times the space that it needs, beyond a small one.
const SPARE_FACTOR: usize = 4;
const SMALL: usize = 1 << 10;

type Key = (FileId, u64);

/// An entry without what can be told from its place.
struct Kept {
    ino: Ino,
    generation: u32,
    kind: FileKind,
    hash: u64,
    name: Box<[u8]>,
}

/// See the module.
#[derive(Default)]
pub(super) struct KnownEntries(Mutex<Table>);

#[derive(Default)]
struct Table {
    entries: HashMap<Key, Kept>,
    /// Each key in `entries`, the oldest first; and keys of those that are gone, or here a second time.
    queue: VecDeque<Key>,
}

impl KnownEntries {
    /// The entry in a bucket, if it is known.
    pub(super) fn get(&self, directory: FileId, bucket: Bucket) -> Option<Dirent> {
        let table = self.0.lock();
        let kept = table.entries.get(&(directory, bucket.0))?;
        Some(Dirent::of_parts(kept.ino, kept.generation, kept.kind, &kept.name, kept.hash))
    }

    /// What a listing shows of the entry in a bucket, if that is known.
    pub(super) fn listed(&self, directory: FileId, bucket: Bucket) -> Option<Listed> {
        let table = self.0.lock();
        let kept = table.entries.get(&(directory, bucket.0))?;
        Some(Listed { ino: kept.ino, kind: kept.kind, name: kept.name.clone() })
    }

    /// Keeps entries that were read from a directory, unless it has changed since it had changed `since` times. The
    /// caller obtained `since` before it read them.
    pub(super) fn put<'a>(
        &self,
        directory: &Node,
        since: u64,
        entries: impl IntoIterator<Item = (Bucket, &'a Dirent)>,
    ) {
        let mut table = self.0.lock();
        if directory.bucket_changes() == since {
            entries
                .into_iter()
                .for_each(|(bucket, entry)| table.insert((directory.file_id(), bucket.0), entry));
        }
    }

    /// Has entries read again.
    #[cfg(test)]
    pub(super) fn clear(&self) {
        *self.0.lock() = Table::default();
    }

    /// Notes that these buckets of a directory, which is locked, now hold no entry, or that one of them holds this one.
    /// `count` counts that as a change of the directory.
    pub(super) fn note(
        &self,
        directory: FileId,
        buckets: &Range<u64>,
        entry: Option<&Dirent>,
        count: impl FnOnce(),
    ) {
        let mut table = self.0.lock();
        count();
        if is_broken(Rule::KnownEntriesNoted) {
            return;
        }
        for bucket in buckets.clone() {
            match entry {
                Some(entry) => table.insert((directory, bucket), entry),
                None => table.remove((directory, bucket)),
            }
        }
    }
}

impl Table {
    fn insert(&mut self, key: Key, entry: &Dirent) {
        let kept = Kept {
            ino: entry.ino(),
            generation: entry.generation(),
            kind: entry.kind(),
            hash: entry.hash(),
            name: entry.name().into(),
        };
        if self.entries.insert(key, kept).is_some() {
            return;
        }
        self.queue.push_back(key);
        while self.entries.len() > ENTRIES_MAX {
            let Some(oldest) = self.queue.pop_front() else { return };
            self.entries.remove(&oldest);
        }
        if self.queue.len() > 2 * self.entries.len() + SMALL {
            self.tidy();
        }
    }

    /// Leaves each key that is here once in the queue.
    fn tidy(&mut self) {
        let mut seen = HashSet::new();
        self.queue.retain(|key| self.entries.contains_key(key) && seen.insert(*key));
    }

    fn remove(&mut self, key: Key) {
        self.entries.remove(&key);
        if self.entries.capacity() > SPARE_FACTOR * self.entries.len() + SMALL {
            self.tidy();
            self.entries.shrink_to(2 * self.entries.len());
            self.queue.shrink_to(2 * self.entries.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Inode, Timestamp};

    fn entry(number: u64) -> Dirent {
        let inode = Inode::new(Ino::FIRST, number as u32, 0o100_644, Timestamp::default());
        Dirent::new(format!("name {number}").as_bytes(), number * 7, &inode)
    }

    #[test]
    fn the_newest_stay_and_memory_follows_their_number() {
        let known = KnownEntries::default();
        let (directory, other) = (FileId(7), FileId(8));
        let note = |number: u64| known.note(directory, &(number..number + 1), Some(&entry(number)), || {});
        let more = 1000;
        (0..ENTRIES_MAX as u64 + more).for_each(note);
        assert!(known.get(directory, Bucket(more - 1)).is_none());
        let found = known.get(directory, Bucket(more)).expect("it is kept");
        let expected = entry(more);
        assert_eq!((found.ino(), found.generation()), (expected.ino(), expected.generation()));
        assert_eq!((found.kind(), found.hash()), (expected.kind(), expected.hash()));
        assert_eq!(found.name(), expected.name());
        assert!(known.get(other, Bucket(more)).is_none());
        known.note(directory, &(0..2 * ENTRIES_MAX as u64), None, || {});
        let table = known.0.lock();
        assert!(table.entries.is_empty() && table.entries.capacity() <= SPARE_FACTOR * SMALL);
        assert!(table.queue.capacity() <= SPARE_FACTOR * SMALL, "{}", table.queue.capacity());
    }

    #[test]
    fn what_comes_and_goes_leaves_no_keys_behind() {
        let known = KnownEntries::default();
        for number in 0..100_000 {
            known.note(FileId(7), &(number..number + 1), Some(&entry(number)), || {});
            known.note(FileId(7), &(number..number + 1), None, || {});
        }
        assert!(known.0.lock().queue.len() <= 2 * SMALL);
    }
    #[test]
    fn a_search_that_sees_a_change_counted_gets_no_older_entry() {
        let known = KnownEntries::default();
        let (directory, bucket) = (FileId(7), Bucket(1));
        for round in 0..100 {
            known.note(directory, &(1..2), Some(&entry(round)), || {});
            std::thread::scope(|scope| {
                let mut search = None;
                known.note(directory, &(1..2), Some(&entry(round + 1)), || {
                    search =
                        Some(scope.spawn(|| known.get(directory, bucket).expect("it is kept").generation()));
                    std::thread::sleep(std::time::Duration::from_millis(1));
                });
                let found = search.expect("it was counted").join().unwrap();
                assert_eq!(found, entry(round + 1).generation());
            });
        }
    }
}
