//! Reading ahead of listings.
//!
//! The entries of a directory lie in the order of their names' hashes in the space, and in the order in which they were
//! made on flash. So a listing that reads few entries at a time waits for one read per entry; one that reads very many
//! reads neighbours on flash together. A listing through the kernel comes in calls for some hundred entries each:
//! entries that were read but not asked for yet are kept here.
//!
//! It owns, in memory only, some windows: ranges of buckets of directories, and the entries in them.
//!
//! **Invariants.**
//! 1. A window has the entry of every bucket in its range that holds one, and no other: a change of names is noted here
//!    before the operation returns; and entries that were read, with no lock held, become a window only if the
//!    directory has not changed since before the read.
//! 2. There are at most [`WINDOWS_MAX`] windows, and one for a directory.
//!
//! **Locks.** One, held for moments, behind all others but a directory's `changes`, which is taken under it. A change
//! counts in `changes` first and is noted here second, both with the directory's `record` held: so for a change and a
//! window that is read at the same time, either the window sees the count or the change sees the window.
//!
//! **Crash.** Nothing here is persistent.

use std::{collections::BTreeMap, ops::Range};

use lacuna_device::FileId;
use parking_lot::Mutex;

use crate::{
    format::{Bucket, Dirent, FileKind, Ino},
    inodes::Node,
};

/// Concurrent listings that need not read again; each costs up to some megabytes.
const WINDOWS_MAX: usize = 4;

/// Entries handed out at a time.
const PIECE: usize = 128;

/// The part of an entry that a listing shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    pub(super) name: Box<[u8]>,
}

impl Listed {
    pub(super) fn new(entry: &Dirent) -> Listed {
        Listed { ino: entry.ino(), kind: entry.kind(), name: entry.name().into() }
    }
}

/// A range of buckets, and all entries in it.
pub(super) struct Window {
    pub(super) range: Range<u64>,
    pub(super) entries: BTreeMap<u64, Listed>,
    /// Buckets in use that were to be read for it.
    pub(super) buckets_max: usize,
}

/// Entries, and the bucket behind the last one that was looked at.
pub(super) type Entries = (Vec<(Bucket, Listed)>, Bucket);

/// The kept entries from a bucket on.
pub(super) enum Found {
    /// Some entries.
    Entries(Entries),
    /// The listing has reached the end of a window of this many buckets.
    GoesOn {
        buckets_max: usize,
    },
    Nothing,
}

/// See the module.
#[derive(Default)]
pub(crate) struct ReadAhead {
    /// The most recently used one is last.
    windows: Mutex<Vec<(FileId, Window)>>,
}

impl ReadAhead {
    /// The kept entries of a directory from the bucket `first` on.
    pub(super) fn find(&self, directory: FileId, first: Bucket) -> Found {
        let mut windows = self.windows.lock();
        let Some(at) = windows.iter().position(|(of, _)| *of == directory) else { return Found::Nothing };
        let found = windows[at].1.find(first);
        if !matches!(found, Found::Nothing) {
            windows[at..].rotate_left(1);
        }
        found
    }

    /// Keeps a window of a directory in place of any other, unless the directory has changed since it had changed
    /// `since` times: then the window is returned. The caller obtained `since` before it read the window.
    pub(super) fn put(&self, directory: &Node, since: u64, window: Window) -> Option<Window> {
        let mut windows = self.windows.lock();
        windows.retain(|(of, _)| *of != directory.file_id());
        if directory.bucket_changes() != since {
            return Some(window);
        }
        if windows.len() == WINDOWS_MAX {
            windows.remove(0);
        }
        windows.push((directory.file_id(), window));
        None
    }

    /// Drops the window of a directory: its listing has reached the end.
    pub(super) fn forget(&self, directory: FileId) {
        self.windows.lock().retain(|(of, _)| *of != directory);
    }

    /// Notes that these buckets of a directory, which is locked, now hold no entry to be listed, or that one of them
    /// holds this entry.
    pub(super) fn note(&self, directory: FileId, buckets: &Range<u64>, entry: Option<&Listed>) {
        let mut windows = self.windows.lock();
        let of_directory = windows.iter_mut().find(|(of, _)| *of == directory);
        let Some((_, Window { range, entries, .. })) = of_directory else { return };
        for bucket in buckets.clone().filter(|bucket| range.contains(bucket)) {
            match entry {
                Some(entry) => entries.insert(bucket, entry.clone()),
                None => entries.remove(&bucket),
            };
        }
    }
}

impl Window {
    fn find(&self, first: Bucket) -> Found {
        if first.0 == self.range.end {
            return Found::GoesOn { buckets_max: self.buckets_max };
        }
        if self.range.contains(&first.0) { Found::Entries(self.piece(first)) } else { Found::Nothing }
    }

    /// Some of the entries from `first` on, which is in the range.
    pub(super) fn piece(&self, first: Bucket) -> Entries {
        let entries = self.entries.range(first.0..).take(PIECE);
        let piece: Vec<_> = entries.map(|(bucket, entry)| (Bucket(*bucket), entry.clone())).collect();
        let behind = match piece.last() {
            Some((last, _)) if piece.len() == PIECE => last.0 + 1,
            _ => self.range.end,
        };
        (piece, Bucket(behind))
    }

    /// All entries.
    pub(super) fn into_entries(self) -> Entries {
        let entries = self.entries.into_iter().map(|(bucket, entry)| (Bucket(bucket), entry));
        (entries.collect(), Bucket(self.range.end))
    }
}

#[cfg(test)]
mod tests;
