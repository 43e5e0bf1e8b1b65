//! Names: looking them up, making, moving and removing them. Invariants, crash argument and lock order
//! are those of `fs.rs`; how a change is planned and committed is in `update.rs`.

mod create;
mod list;
mod remove;
mod rename;
mod update;

use std::sync::Arc;

pub(crate) use create::{NewInode, Numbers};
pub(crate) use rename::RenameEnd;
pub(crate) use update::{Locked, Update};

use self::update::DirReader;
use crate::{
    Refusal, Result,
    addr::Ino,
    directory::Search,
    format::{self, NAME_BYTES_MAX},
    fs::Shared,
    node::{Node, Record},
    posix::FileKind,
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
    /// The node of an inode, loaded. Only those who need this very inode wait while it is read.
    pub(crate) fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        let node = self.nodes.get_or_insert(ino);
        if node.is_loaded() && !node.is_removed() {
            return Ok(node);
        }
        let mut record = node.record.write();
        match *record {
            Record::Live(_) => {}
            Record::Removed => return Err(Refusal::Stale.into()),
            Record::Unloaded => {
                if !self.ftl.is_mapped(ino.inode_lba()) {
                    return Err(Refusal::Stale.into());
                }
                let inode = self.read_inode(ino)?;
                node.load(&mut record, inode);
            }
        }
        drop(record);
        Ok(node)
    }

    /// The node of a directory.
    fn directory(&self, ino: Ino) -> Result<Arc<Node>> {
        let node = self.node(ino)?;
        if node.kind() == FileKind::Directory { Ok(node) } else { Err(Refusal::NotADirectory.into()) }
    }

    /// The node that `name` stands for in a directory.
    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Arc<Node>> {
        let dir = self.directory(parent)?;
        match name {
            b"." => return Ok(dir),
            b".." => return self.node(self.parent_of(&dir)?),
            _ => check_name(name)?,
        }
        loop {
            let reader = DirReader::new(self, &dir);
            let found = reader.search(name).and_then(|found| match found {
                Search::Found { bucket, entry } => reader.node_of(bucket, &entry),
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
        Err(self.corrupt("inode table", ino.number(), "its parents lead nowhere"))
    }
}
