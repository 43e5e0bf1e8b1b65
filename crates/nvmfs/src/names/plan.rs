//! How a change of names is planned and committed.
//!
//! An operation *plans* without a lock: it searches directories and loads inodes, which may read the device. Then it
//! locks the nodes that it is going to change, checks whether a bucket that the plan depends on changed since, and if
//! so starts over; if not, it *commits*: one batch, and then the nodes in memory. The failure of a plan, too, is a
//! valid result only if the buckets that it depends on did not change. `inodes/commit.rs` lists the reasons why an
//! attempt may have to be repeated.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut, Range},
    sync::Arc,
};

use super::{
    hash_table::{Buckets, Removal, Search},
    read_ahead::Listed,
};
use crate::{
    error::{Refusal, Result, is_stale},
    format::{self, Bucket, Dirent, Ino, Inode, Slot, Timestamp, Tombstone},
    inodes::{Attempt, Locked, Node, Update},
    names::{Names, hash_table},
    volume::Volume,
};

/// A directory as a plan sees it. It remembers which buckets were looked at.
pub(super) struct DirReader<'a> {
    pub(super) names: &'a Names,
    pub(super) dir: Arc<Node>,
    since: u64,
    buckets: RefCell<Vec<u64>>,
}

impl Buckets for DirReader<'_> {
    fn get(&self, bucket: Bucket) -> Result<Slot> {
        self.buckets.borrow_mut().push(bucket.0);
        let Names { inodes, known, .. } = self.names;
        if let Some(entry) = known.get(self.dir.file_id(), bucket) {
            return Ok(Slot::Entry(entry));
        }
        let slot = inodes.volume().read_bucket(self.dir.ino(), bucket)?;
        if let Slot::Entry(entry) = &slot {
            known.put(&self.dir, self.since, [(bucket, entry)]);
        }
        Ok(slot)
    }
}

impl<'a> DirReader<'a> {
    pub(super) fn new(names: &'a Names, dir: &Arc<Node>) -> DirReader<'a> {
        let since = dir.bucket_changes();
        DirReader { names, dir: Arc::clone(dir), since, buckets: RefCell::default() }
    }

    pub(super) fn search(&self, name: &[u8]) -> Result<Search> {
        hash_table::search(self, name, self.names.inodes.volume().hash_name(name))
    }

    /// The node of an entry that was found here, loaded.
    pub(super) fn node_of(&self, bucket: Bucket, entry: &Dirent) -> Result<Arc<Node>> {
        let corrupt = |reason| {
            let what = format!("directory {}", self.dir.ino().0);
            Err(self.names.inodes.volume().corrupt(&what, bucket.0, reason))
        };
        let node = match self.names.inodes.node(entry.ino()) {
            Err(error) if is_stale(&error) => None,
            other => Some(other?),
        };
        let Some(node) = node.filter(|node| is_named_by(node, entry)) else {
            return corrupt("the inode is not the one that its name stands for");
        };
        match self.names.lies_in(&node, self.dir.ino())? {
            true => Ok(node),
            false => corrupt("the directory of this name lies in another one"),
        }
    }

    /// Whether the buckets that were looked at have not changed. Called with the `record` of the directory held, so
    /// that no change is half done.
    fn is_valid(&self) -> bool {
        self.dir.spared(self.since, &self.buckets.borrow())
    }

    /// As [`DirReader::is_valid`], with no lock held.
    pub(super) fn is_settled(&self) -> bool {
        self.dir.with_record(|| self.is_valid())
    }
}

/// Whether a node is loaded, and the one that an entry stands for.
pub(super) fn is_named_by(node: &Node, entry: &Dirent) -> bool {
    node.is_loaded() && node.generation() == entry.generation() && node.kind() == entry.kind()
}

/// The changes that one operation makes to names, and to the inodes that they stand for.
pub(super) struct NameUpdate {
    inodes: Update,
    /// Buckets of directories, and the entry that is in them afterwards.
    buckets: Vec<(Ino, Range<u64>, Option<Box<Dirent>>)>,
}

impl Deref for NameUpdate {
    type Target = Update;

    fn deref(&self) -> &Update {
        &self.inodes
    }
}

impl DerefMut for NameUpdate {
    fn deref_mut(&mut self) -> &mut Update {
        &mut self.inodes
    }
}

impl NameUpdate {
    pub(super) fn new(now: Timestamp) -> NameUpdate {
        NameUpdate { inodes: Update::new(now), buckets: Vec::new() }
    }

    /// A name for `inode`.
    pub(super) fn put_name(
        &mut self,
        volume: &Volume,
        directory: Ino,
        bucket: Bucket,
        name: &[u8],
        inode: &Inode,
    ) {
        self.put_entry(directory, bucket, &Dirent::new(name, volume.hash_name(name), inode));
    }

    fn put_entry(&mut self, directory: Ino, bucket: Bucket, entry: &Dirent) {
        let lba = bucket.lba(directory);
        self.write_sector(lba, format::seal(entry, lba));
        self.buckets.push((directory, bucket.0..bucket.0 + 1, Some(Box::new(*entry))));
    }

    pub(super) fn remove_entry(&mut self, directory: Ino, removal: Removal) {
        match removal {
            Removal::Bury(bucket) => {
                let lba = bucket.lba(directory);
                self.write_sector(lba, format::seal(&Tombstone::new(), lba));
            }
            Removal::Clear { first, count } => self.trim(first.lba(directory), count),
        }
        self.buckets.push((directory, removal.buckets(), None));
    }
}

impl Names {
    /// Plans on `dirs` and commits on the nodes that the plan names besides: `commit` makes the update, or requests
    /// another try by returning nothing.
    pub(super) fn change_names<P, T>(
        &self,
        dirs: &[&Arc<Node>],
        plan: impl Fn(&[DirReader<'_>]) -> Result<(P, Vec<Arc<Node>>)>,
        commit: impl Fn(&mut Locked<'_>, &P) -> Result<Option<(NameUpdate, T)>>,
    ) -> Result<T> {
        self.inodes.retry(|| {
            let readers: Vec<_> = dirs.iter().map(|dir| DirReader::new(self, dir)).collect();
            let planned = plan(&readers);
            let others = planned.as_ref().map_or(&[][..], |(_, nodes)| nodes);
            let mut locked = Locked::new(dirs.iter().copied().chain(others));
            if !readers.iter().all(DirReader::is_valid) {
                return Ok(Attempt::Changed);
            }
            for dir in dirs {
                // A directory that was removed while it is open has no entries and gets none.
                match locked.inode(dir) {
                    Ok(inode) if inode.nlink() > 0 => {}
                    _ => return Err(Refusal::NotFound.into()),
                }
            }
            let made = match &planned {
                Ok((plan, _)) => commit(&mut locked, plan)?,
                Err(_) => None,
            };
            let applied = match &made {
                Some((update, _)) => self.apply(update, &mut locked)?,
                None => Attempt::Changed,
            };
            drop(locked);
            match (planned, made) {
                (Err(error), _) => Err(self.inodes.volume().found_damage(error)),
                (_, Some((_, done))) => Ok(applied.map(|()| done)),
                (_, None) => Ok(Attempt::Changed),
            }
        })
    }

    /// Makes an update and notes, with the nodes still locked, which buckets changed.
    fn apply(&self, update: &NameUpdate, locked: &mut Locked<'_>) -> Result<Attempt<()>> {
        let applied = self.inodes.apply(update, locked)?;
        if matches!(applied, Attempt::Done(())) {
            for (ino, buckets, entry) in &update.buckets {
                let directory = locked.node(*ino);
                let count = || directory.note_buckets(buckets.clone());
                self.known.note(directory.file_id(), buckets, entry.as_deref(), count);
                self.ahead.note(directory.file_id(), buckets, entry.as_deref().map(Listed::new).as_ref());
            }
        }
        Ok(applied)
    }
}
