//! Listing a directory.

use std::collections::BTreeMap;

use super::read_ahead::{Entries, Found, Listed, Window};
use crate::{
    error::{Error, Result},
    format::{Bucket, FileKind, Ino, REGION_SECTORS, Slot},
    inodes::Node,
    names::Names,
};

/// Cursors of `.`, `..` and the first bucket.
const CURSOR_SELF: u64 = 0;
const CURSOR_PARENT: u64 = 1;
const CURSOR_BUCKETS: u64 = 2;

/// Buckets that are read together: few at first, for callers that need few, then twice as many with each step.
const BUCKETS_FIRST: usize = 32;
/// As many buckets as one call asks for.
const BUCKETS_OF_CALL: usize = 1024;
/// For a listing that continues from call to call. Of a million entries in a row on flash, this reads every 16th.
const BUCKETS_AHEAD: usize = 1 << 16;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The inode that it names.
    pub ino: Ino,
    /// The type of that inode.
    pub kind: FileKind,
    /// The name: 1 to 255 bytes without `/` and NUL.
    pub name: &'a [u8],
    /// Cursor of the next entry; valid for ever, whatever is added to or removed from the directory.
    pub next: u64,
}

impl Names {
    /// Some entries from the bucket `first` on; none if there are no more. At least `buckets_max` buckets in
    /// use are read if any are.
    fn entries_from(&self, dir: &Node, first: Bucket, buckets_max: usize) -> Result<Option<Entries>> {
        let mut buckets_max = match self.ahead.find(dir.file_id(), first) {
            Found::Entries(entries) => return Ok(Some(entries)),
            Found::GoesOn { buckets_max: last } => (last * 2).clamp(buckets_max, BUCKETS_AHEAD),
            Found::Nothing => buckets_max,
        };
        loop {
            let since = dir.bucket_changes();
            match self.read_window(dir, since, first, buckets_max) {
                // The entries before the damage are listed.
                Err(_) if buckets_max > 1 => buckets_max = 1,
                Err(error) => return Err(error),
                Ok(None) => {
                    self.ahead.forget(dir.file_id());
                    return Ok(None);
                }
                Ok(Some(window)) => {
                    let piece = window.piece(first);
                    let refused = self.ahead.put(dir, since, window);
                    return Ok(Some(refused.map_or(piece, Window::into_entries)));
                }
            }
        }
    }

    /// The next `buckets_max` buckets in use from `first` on; none if there are no more. Entries that
    /// are not known are read, and known from then on, unless the directory has changed more than `since` times.
    pub(super) fn read_window(
        &self,
        dir: &Node,
        since: u64,
        first: Bucket,
        buckets_max: usize,
    ) -> Result<Option<Window>> {
        let directory = dir.ino();
        if first.0 >= REGION_SECTORS {
            return Ok(None);
        }
        let range = first.lba(directory)..directory.region().end;
        let lbas = self.inodes.volume().ftl().mapped_sectors(range, buckets_max)?;
        let Some(last) = lbas.last() else { return Ok(None) };
        let mut entries = BTreeMap::new();
        let mut unknown = Vec::new();
        for lba in &lbas {
            let (_, bucket) = Ino::of(*lba);
            match self.known.listed(dir.file_id(), Bucket(bucket)) {
                Some(listed) => drop(entries.insert(bucket, listed)),
                None => unknown.push(*lba),
            }
        }
        let mut outcome = Ok(());
        self.inodes.volume().ftl().visit_sectors(&unknown, |lba, bytes| {
            let bucket = Bucket(Ino::of(lba).1);
            let parse = |bytes| self.inodes.volume().parse_bucket(directory, bucket, bytes);
            match bytes.map_err(Error::from).and_then(parse) {
                Ok(Slot::Entry(entry)) => {
                    self.known.put(dir, since, [(bucket, &entry)]);
                    entries.insert(bucket.0, Listed::new(&entry));
                }
                Ok(_) => {}
                Err(error) => outcome = Err(error),
            }
        })?;
        outcome?;
        Ok(Some(Window { range: first.0..Ino::of(*last).1 + 1, entries, buckets_max }))
    }

    /// See [`crate::posix::Posix::readdir`].
    pub(crate) fn readdir(
        &self,
        ino: Ino,
        mut cursor: u64,
        entry: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.directory(ino)?;
        self.inodes.touch_accessed(&dir);
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
        let mut buckets_max = BUCKETS_FIRST;
        while let Some((entries, behind)) = self.entries_from(&dir, bucket, buckets_max)? {
            for (found, listed) in entries {
                let next = found.0 + 1 + CURSOR_BUCKETS;
                if !entry(DirEntry { ino: listed.ino, kind: listed.kind, name: &listed.name, next }) {
                    return Ok(());
                }
            }
            bucket = behind;
            buckets_max = (buckets_max * 2).min(BUCKETS_OF_CALL);
        }
        Ok(())
    }
}
