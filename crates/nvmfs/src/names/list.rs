//! Listing a directory.

use crate::{
    Result,
    addr::{Ino, REGION_SECTORS},
    directory::{Bucket, Held},
    format::Dirent,
    fs::Shared,
    posix::{DirEntry, FileKind},
};

/// Cursors of `.`, `..` and the first bucket.
const CURSOR_SELF: u64 = 0;
const CURSOR_PARENT: u64 = 1;
const CURSOR_BUCKETS: u64 = 2;

impl Shared {
    /// The first entry at or behind `bucket`.
    fn entry_from(&self, directory: Ino, mut bucket: Bucket) -> Result<Option<(Bucket, Dirent)>> {
        while bucket.0 < REGION_SECTORS {
            let range = bucket.lba(directory)..directory.region().end;
            let Some(run) = self.ftl.mapped(range) else { return Ok(None) };
            bucket = Bucket(Ino::of(run.start).1);
            if let Held::Entry(entry) = self.read_bucket(directory, bucket)? {
                return Ok(Some((bucket, entry)));
            }
            bucket.0 += 1;
        }
        Ok(None)
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
        while let Some((found, dirent)) = self.entry_from(ino, bucket)? {
            bucket = Bucket(found.0 + 1);
            let next = bucket.0 + CURSOR_BUCKETS;
            if !entry(DirEntry { ino: dirent.ino(), kind: dirent.kind(), name: dirent.name(), next }) {
                break;
            }
        }
        Ok(())
    }
}
