//! Names: looking them up, making, moving and removing them. Invariants, crash argument and lock order
//! are those of `vfs/mod.rs`; how a change is planned and committed is in `update.rs`.
//!
//! **Look-ups beside changes** (invariant 5 of `vfs/mod.rs`). A search takes no lock, nor does the step from the entry to
//! the inode: the name may go in between, and its inode with it.
//! 1. Who takes a name away notes its bucket among the directory's changes before giving the directory's `record` back.
//!    The inode is freed with its last name, or later.
//! 2. So who finds an inode gone, then waits for that `record`, and sees no change of the buckets that were looked at,
//!    has met with damage. Else the search starts over, and finds what the name stands for by then. Each such turn is
//!    another's change that was completed.

mod create;
pub(crate) mod hash_table;
mod list;
mod read_ahead;
mod remove;
mod rename;
mod update;

use std::sync::Arc;

use lacuna_ftl::Lba;

pub(crate) use create::{NewInode, Numbers};
pub use list::DirEntry;
pub(crate) use read_ahead::Ahead;
pub use rename::Rename;
pub(crate) use rename::RenameEnd;
pub(crate) use update::{Applied, Update, range_of};

use self::update::DirReader;
use crate::{
    error::{Refusal, Result, is_stale},
    format::{self, Bucket, Dirent, FileKind, Ino, NAME_BYTES_MAX, SectorBytes},
    inodes::{Node, Record},
    names::hash_table::Search,
    vfs::Shared,
};

/// Directories from the root down to any other, at most. More are taken for a damaged chain.
const DEPTH_MAX: u32 = 1 << 20;

/// Refuses what cannot be an entry's name.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Refusal::NameTooLong.into());
    }
    if format::is_name(name) { Ok(()) } else { Err(Refusal::Invalid.into()) }
}

impl Shared {
    /// The node of an inode, loaded.
    pub(crate) fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        let node = self.nodes.get_or_insert(ino);
        if !node.is_loaded() {
            let stored = self.volume.ftl().read_sectors(&[ino.inode_lba()])?;
            self.load(&node, stored.first().map(|(_, bytes)| bytes))?;
        }
        if node.is_removed() { Err(Refusal::Stale.into()) } else { Ok(node) }
    }

    /// Loads a node out of the sector of its inode, if it has one. That was read after the node was taken
    /// from the table and with no lock held: who takes the node meanwhile takes this one, so if it is not
    /// loaded yet, nobody has changed the inode since.
    fn load(&self, node: &Arc<Node>, stored: Option<&SectorBytes>) -> Result<()> {
        let mut record = node.record.write();
        if matches!(*record, Record::Unloaded) {
            let inode = self.volume.verify_inode(node.ino, stored.ok_or(Refusal::Stale)?)?;
            node.load(&mut record, inode, self.volume.ftl().last_seq());
        }
        Ok(())
    }

    /// See [`crate::posix::Posix::preload`].
    pub(crate) fn preload(&self, inos: &[Ino]) {
        let nodes = inos.iter().map(|ino| self.nodes.get_or_insert(*ino));
        let nodes: Vec<_> = nodes.filter(|node| !node.is_loaded()).collect();
        let lbas: Vec<_> = nodes.iter().map(|node| node.ino.inode_lba()).collect();
        let Ok(stored) = self.volume.ftl().read_sectors(&lbas) else { return };
        // What their files take is asked for next: the map's sums, but for the leaves at both ends.
        let ends = nodes
            .iter()
            .map(|node| node.ino.region())
            .flat_map(|region| [region.start..Lba(region.start.0 + 1), Lba(region.end.0 - 1)..region.end]);
        let _ = self.volume.ftl().bring_in(&ends.collect::<Vec<_>>());
        for node in &nodes {
            if let Ok(index) = stored.binary_search_by_key(&node.ino.inode_lba(), |(lba, _)| *lba) {
                // What is damaged is reported to who needs it.
                let _ = self.load(node, Some(&stored[index].1));
            }
        }
    }

    /// The node of a directory.
    fn directory(&self, ino: Ino) -> Result<Arc<Node>> {
        let node = self.node(ino)?;
        if node.kind() == FileKind::Directory { Ok(node) } else { Err(Refusal::NotADirectory.into()) }
    }

    /// The node that `name` stands for in a directory.
    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Arc<Node>> {
        self.lookup_with(parent, name, |node| Ok(Arc::clone(node)))
    }

    /// What `see` makes of the node that `name` stands for in a directory. Where that says that the inode is gone, the
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

    /// What `see` makes of the parent of a directory, which may move meanwhile.
    fn see_parent<T>(&self, dir: &Node, see: impl Fn(&Arc<Node>) -> Result<T>) -> Result<T> {
        loop {
            let parent = self.parent_of(dir)?;
            match self.node(parent).and_then(|node| see(&node)) {
                Err(error) if is_stale(&error) => match &*dir.record.read() {
                    Record::Live(inode) if inode.parent() != parent => {}
                    // Without a name it has no parent either, only the memory of one.
                    Record::Live(inode) if inode.nlink() == 0 => return Err(Refusal::NotFound.into()),
                    _ => return Err(Refusal::Stale.into()),
                },
                seen => return seen,
            }
        }
    }

    /// What a name itself tells: the number and type of what it stands for, even if that is damaged.
    pub(crate) fn entry(&self, parent: Ino, name: &[u8]) -> Result<(Ino, FileKind)> {
        let dir = self.directory(parent)?;
        check_name(name)?;
        self.find(&dir, name, |_, _, entry| Ok((entry.ino(), entry.kind())))
    }

    /// What `see` makes of the entry of a name.
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
            // What was found was there; what was not, or not in order, may have been changing.
            if found.is_ok() || reader.is_settled() {
                return found;
            }
        }
    }

    fn parent_of(&self, dir: &Node) -> Result<Ino> {
        match &*dir.record.read() {
            Record::Live(inode) => Ok(inode.parent()),
            _ => Err(Refusal::Stale.into()),
        }
    }

    /// Whether `ino` is the directory `above` or lies below it. Called with `moves` held, so that the
    /// answer stays true.
    fn is_within(&self, mut ino: Ino, above: Ino) -> Result<bool> {
        for _ in 0..DEPTH_MAX {
            if ino == above {
                return Ok(true);
            }
            if ino == Ino::ROOT {
                return Ok(false);
            }
            ino = self.parent_of(&*self.directory(ino)?)?;
        }
        Err(self.volume.corrupt("inode table", ino.number(), "its parents lead nowhere"))
    }
}
