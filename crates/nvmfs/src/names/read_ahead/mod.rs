//! What listings are going to ask for, read ahead.
//!
//! The entries of a directory lie in the order of their names' hashes in the space, and in the order in which
//! they were made on flash. So a listing that reads few entries at a time waits for a read for each; one that
//! reads very many reads what lies near on flash together. A listing through the kernel comes in calls for some
//! hundred entries each: what was read and not asked for yet waits here.
//!
//! It owns, in memory only, some windows: ranges of buckets of directories, and the entries in them.
//!
//! **Invariants.**
//! 1. A window has the entry of every bucket in its range that holds one, and no other: a change of names is
//!    noted here before it is answered; and what was read, with no lock held, becomes a window only if the
//!    directory did not change since before it was read.
//! 2. There are at most [`WINDOWS_MAX`] windows, and one for a directory.
//!
//! **Locks.** One, held for moments, behind all others but a directory's `changes`, which is taken under it.
//! A change counts in `changes` first and is noted here second, both with the directory's `record` held: so of
//! a change and a window that was read beside it, either the window sees the count or the change the window.
//!
//! **Crash.** Nothing here lasts, and nothing here is written.

use std::{collections::BTreeMap, ops::Range};

use lacuna_device::FileId;
use parking_lot::Mutex;

use crate::{
    format::{Bucket, Dirent, FileKind, Ino},
    inodes::Node,
};

/// Listings that may go on beside each other without reading anew; each costs up to some megabytes.
const WINDOWS_MAX: usize = 4;

/// Entries handed out at a time.
const PIECE: usize = 128;

/// What a listing shows of an entry.
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

/// Entries, and the bucket behind what was looked at.
pub(super) type Entries = (Vec<(Bucket, Listed)>, Bucket);

/// What there is from a bucket on.
pub(super) enum Found {
    /// Some entries.
    Entries(Entries),
    /// The listing has come to the end of a window of so many buckets.
    GoesOn {
        buckets_max: usize,
    },
    Nothing,
}

/// See the module.
#[derive(Default)]
pub(crate) struct ReadAhead {
    /// The one that was asked for last comes last.
    windows: Mutex<Vec<(FileId, Window)>>,
}

impl ReadAhead {
    /// What there is of a directory from the bucket `first` on.
    pub(super) fn find(&self, directory: FileId, first: Bucket) -> Found {
        let mut windows = self.windows.lock();
        let Some(at) = windows.iter().position(|(of, _)| *of == directory) else { return Found::Nothing };
        let found = windows[at].1.find(first);
        if !matches!(found, Found::Nothing) {
            windows[at..].rotate_left(1);
        }
        found
    }

    /// Keeps a window of a directory in place of any other, unless the directory has changed since it had
    /// changed `since` times: then it is handed back. That was asked before the window was read.
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

    /// Drops what there is of a directory: its listing has come to the end.
    pub(super) fn forget(&self, directory: FileId) {
        self.windows.lock().retain(|(of, _)| *of != directory);
    }

    /// Notes that these buckets of a directory, which is locked, hold nothing to be listed now, or one this.
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
