//! Listing a directory.

use crate::{
    Result,
    addr::{Ino, REGION_SECTORS},
    directory::{self, Bucket, Held},
    format::Dirent,
    fs::Shared,
    posix::{DirEntry, FileKind},
};

/// Cursors of `.`, `..` and the first bucket.
const CURSOR_SELF: u64 = 0;
const CURSOR_PARENT: u64 = 1;
const CURSOR_BUCKETS: u64 = 2;

/// Entries that are read together: few at first, for who wants few, then more with each step.
const ENTRIES_FIRST: usize = 32;
const ENTRIES_MAX: usize = 1024;

/// Entries that were read together, and the bucket behind them.
type Entries = (Vec<(Bucket, Dirent)>, Bucket);

impl Shared {
    /// What is in the next `buckets_max` buckets in use from `first` on; none if there are no more.
    fn entries_from(&self, directory: Ino, first: Bucket, buckets_max: usize) -> Result<Option<Entries>> {
        if first.0 >= REGION_SECTORS {
            return Ok(None);
        }
        let range = first.lba(directory)..directory.region().end;
        let lbas = self.ftl.mapped_sectors(range, buckets_max)?;
        let Some(last) = lbas.last() else { return Ok(None) };
        let mut entries = Vec::with_capacity(lbas.len());
        for (lba, bytes) in self.ftl.read_sectors(&lbas)? {
            let bucket = Bucket(Ino::of(lba).1);
            if let Held::Entry(entry) = directory::parse_bucket(&self.store, directory, bucket, &bytes)? {
                entries.push((bucket, entry));
            }
        }
        Ok(Some((entries, Bucket(Ino::of(*last).1 + 1))))
    }

    /// See [`crate::posix::Posix::readdir`].
    pub(crate) fn readdir(
        &self,
        ino: Ino,
        mut cursor: u64,
        entry: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.directory(ino)?;
        self.touch_accessed(&dir);
        let kind = FileKind::Directory;
        if cursor == CURSOR_SELF {
            if !entry(DirEntry { ino, kind, name: b".", next: CURSOR_PARENT }) {
                return Ok(());
            }
            cursor = CURSOR_PARENT;
        }
        if cursor == CURSOR_PARENT {
            let parent = self.parent_of(&dir)?;
            if !entry(DirEntry { ino: parent, kind, name: b"..", next: CURSOR_BUCKETS }) {
                return Ok(());
            }
            cursor = CURSOR_BUCKETS;
        }
        let mut bucket = Bucket(cursor - CURSOR_BUCKETS);
        let mut buckets_max = ENTRIES_FIRST;
        loop {
            let read = match self.entries_from(ino, bucket, buckets_max) {
                // What comes before the damage is listed.
                Err(_) if buckets_max > 1 => {
                    buckets_max = 1;
                    continue;
                }
                read => read?,
            };
            let Some((entries, behind)) = read else { return Ok(()) };
            for (found, dirent) in entries {
                let next = found.0 + 1 + CURSOR_BUCKETS;
                if !entry(DirEntry { ino: dirent.ino(), kind: dirent.kind(), name: dirent.name(), next }) {
                    return Ok(());
                }
            }
            bucket = behind;
            buckets_max = (buckets_max * 2).min(ENTRIES_MAX);
        }
    }
}
