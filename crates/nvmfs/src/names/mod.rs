//! Names: looking them up, making, moving and removing them. Invariants, crash argument and lock order
//! are those of `lib.rs`; how a change is planned and committed is in `plan.rs`.
//!
//! **Look-ups beside changes** (invariant 5 of `lib.rs`). A search takes no lock, nor does the step from the entry to
//! the inode: the name may be removed in between, and its inode with it.
//! 1. An operation that removes a name notes its bucket among the directory's changes before it releases the
//!    directory's `record`. The inode is freed with its last name, or later.
//! 2. So a search that finds an inode gone, then waits for that `record`, and sees no change of the buckets that it
//!    looked at, has found damage. Otherwise the search starts over, and finds the inode that the name stands for by
//!    then. Each such retry means that another operation has completed a change.

mod create;
pub(crate) mod hash_table;
mod known_entries;
mod list;
mod plan;
mod read_ahead;
mod remove;
mod rename;

use parking_lot::Mutex;
use std::sync::Arc;

pub(crate) use create::NewInode;
use known_entries::KnownEntries;
pub use list::DirEntry;
use read_ahead::ReadAhead;
pub use rename::Rename;
pub(crate) use rename::RenameEnd;

use self::plan::DirReader;
use crate::{
    error::{Refusal, Result, is_stale},
    format::{self, Bucket, Dirent, FileKind, Ino, Inode, NAME_BYTES_MAX},
    inodes::{Inodes, Node},
    names::hash_table::Search,
};

/// Refuses a string that cannot be an entry's name.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Refusal::NameTooLong.into());
    }
    if format::is_name(name) { Ok(()) } else { Err(Refusal::Invalid.into()) }
}

/// The names of all inodes.
pub(crate) struct Names {
    inodes: Arc<Inodes>,
    /// Entries that listings are going to ask for.
    ahead: ReadAhead,
    known: KnownEntries,
    /// Held while a name moves from one directory to another.
    moves: Mutex<()>,
}

impl Names {
    pub(crate) fn new(inodes: Arc<Inodes>) -> Names {
        Names { inodes, ahead: ReadAhead::default(), known: KnownEntries::default(), moves: Mutex::new(()) }
    }

    /// Has entries read that are known.
    #[cfg(test)]
    pub(crate) fn read_again(&self) {
        self.known.clear();
    }

    /// The node of a directory.
    fn directory(&self, ino: Ino) -> Result<Arc<Node>> {
        let node = self.inodes.node(ino)?;
        if node.kind() == FileKind::Directory { Ok(node) } else { Err(Refusal::NotADirectory.into()) }
    }

    /// The node that `name` stands for in a directory.
    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Arc<Node>> {
        self.lookup_with(parent, name, |node| Ok(Arc::clone(node)))
    }

    /// Applies `see` to the node that `name` stands for in a directory. If the result is that the inode is gone, the
    /// name is looked up again.
    pub(crate) fn lookup_with<T>(
        &self,
        parent: Ino,
        name: &[u8],
        see: impl Fn(&Arc<Node>) -> Result<T>,
    ) -> Result<T> {
        let dir = self.directory(parent)?;
        match name {
            b"." => return see(&dir),
            b".." => return self.see_parent(&dir, see),
            _ => check_name(name)?,
        }
        self.find(&dir, name, |reader, bucket, entry| see(&reader.node_of(bucket, entry)?))
    }

    /// Applies `see` to the parent of a directory, which may move meanwhile.
    fn see_parent<T>(&self, dir: &Node, see: impl Fn(&Arc<Node>) -> Result<T>) -> Result<T> {
        loop {
            let parent = self.parent_of(dir)?;
            match self.inodes.node(parent).and_then(|node| see(&node)) {
                Err(error) if is_stale(&error) => match dir.live(|inode| (inode.parent(), inode.nlink())) {
                    Ok((now, _)) if now != parent => {}
                    // A directory without a name has no parent any more; the field holds the last one.
                    Ok((_, 0)) => return Err(Refusal::NotFound.into()),
                    _ => return Err(Refusal::Stale.into()),
                },
                seen => return seen,
            }
        }
    }

    /// The content of an entry: the number and type of the inode that it names, even if that is damaged.
    pub(crate) fn entry(&self, parent: Ino, name: &[u8]) -> Result<(Ino, FileKind)> {
        let dir = self.directory(parent)?;
        check_name(name)?;
        self.find(&dir, name, |_, _, entry| Ok((entry.ino(), entry.kind())))
    }

    /// Applies `see` to the entry of a name.
    fn find<T>(
        &self,
        dir: &Arc<Node>,
        name: &[u8],
        see: impl Fn(&DirReader<'_>, Bucket, &Dirent) -> Result<T>,
    ) -> Result<T> {
        loop {
            let reader = DirReader::new(self, dir);
            let found = reader.search(name).and_then(|found| match found {
                Search::Found { bucket, entry } => see(&reader, bucket, &entry),
                Search::Absent { .. } => Err(Refusal::NotFound.into()),
            });
            // An entry that was found was there; a missing or invalid one may have been changing.
            if found.is_ok() || reader.is_settled() {
                return found.map_err(|error| self.inodes.volume().found_damage(error));
            }
        }
    }

    /// Whether an entry of the directory `parent` may name a node: if that is a directory, it lies there, and not in
    /// itself. So no walk down from the root comes to a directory above, whatever the store holds. It may have moved
    /// since the entry was read.
    pub(crate) fn lies_in(&self, node: &Node, parent: Ino) -> Result<bool> {
        if node.kind() != FileKind::Directory {
            return Ok(true);
        }
        match self.parent_of(node) {
            Err(error) if is_stale(&error) => Ok(false),
            named => Ok(named? == parent && node.ino() != parent),
        }
    }

    fn parent_of(&self, dir: &Node) -> Result<Ino> {
        dir.live(Inode::parent)
    }

    /// Whether `ino` is the directory `above` or lies below it. Called with `moves` held, so that the
    /// answer stays true.
    fn is_within(&self, mut ino: Ino, above: Ino) -> Result<bool> {
        // A chain of parents that comes back to a directory never ends: the one met at the last power of two (Brent).
        let (mut met, mut steps) = (ino, 0_u32);
        loop {
            if ino == above {
                return Ok(true);
            }
            if ino == Ino::ROOT {
                return Ok(false);
            }
            ino = self.parent_of(&*self.directory(ino)?)?;
            if ino == met {
                let reason = "its parents lead back to it";
                return Err(self.inodes.volume().corrupt("inode table", ino.number(), reason));
            }
            steps += 1;
            if steps.is_power_of_two() {
                met = ino;
            }
        }
    }
}
