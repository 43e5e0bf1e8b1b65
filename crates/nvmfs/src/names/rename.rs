//! Moving names.

use std::sync::Arc;

use super::{
    check_name,
    create::{NewInode, TakenNumber},
    plan::{DirReader, NameUpdate},
};
use crate::{
    error::{Refusal, Result},
    format::{Bucket, FileKind, Ino},
    inodes::{Attr, Locked, Node, Touch},
    names::{
        Names,
        hash_table::{self, Removal, Search},
    },
};

/// How [`rename`](crate::posix::Posix::rename) treats the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rename {
    /// Replaces the inode that has it.
    #[default]
    Replace,
    /// Refuses if it exists (`RENAME_NOREPLACE`).
    NoReplace,
    /// Both change places (`RENAME_EXCHANGE`).
    Exchange,
}

/// One end of a rename.
#[derive(Clone, Copy)]
pub(crate) struct RenameEnd<'a> {
    pub(crate) parent: Ino,
    pub(crate) name: &'a [u8],
}

/// What becomes of the old name.
enum OldName {
    Removed(Removal),
    /// It is a new inode's: its number's node, and its generation.
    Whiteout(Bucket, Arc<Node>, u32),
}

/// The plan of a rename.
enum Plan {
    /// Both names stand for one inode already.
    Nothing,
    Move {
        node: Arc<Node>,
        old: OldName,
        into: Bucket,
        replaced: Option<Arc<Node>>,
    },
    Exchange {
        first: (Bucket, Arc<Node>),
        second: (Bucket, Arc<Node>),
    },
}

impl Plan {
    fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Plan::Nothing => Vec::new(),
            Plan::Move { node, replaced, old, .. } => {
                let whiteout = match old {
                    OldName::Whiteout(_, whiteout, _) => Some(whiteout),
                    OldName::Removed(_) => None,
                };
                std::iter::once(node).chain(replaced).chain(whiteout).cloned().collect()
            }
            Plan::Exchange { first, second } => vec![Arc::clone(&first.1), Arc::clone(&second.1)],
        }
    }
}

fn is_directory(node: &Node) -> bool {
    node.kind() == FileKind::Directory
}

impl Names {
    /// Moves a name, and leaves `whiteout` under the old one if there is one; for the inode that it replaces, see
    /// [`Names::drop_name`].
    pub(crate) fn rename(
        &self,
        from: RenameEnd<'_>,
        to: RenameEnd<'_>,
        mode: Rename,
        whiteout: Option<&NewInode<'_>>,
    ) -> Result<Option<Attr>> {
        self.past_damage(|frees| self.rename_and(from, to, mode, whiteout, frees))
    }

    fn rename_and(
        &self,
        from: RenameEnd<'_>,
        to: RenameEnd<'_>,
        mode: Rename,
        whiteout: Option<&NewInode<'_>>,
        frees: bool,
    ) -> Result<Option<Attr>> {
        check_name(from.name)?;
        check_name(to.name)?;
        let dirs = [self.directory(from.parent)?, self.directory(to.parent)?];
        let is_local = from.parent == to.parent;
        // Directories must not move while the check that none ends up inside itself is made.
        let _moves = (!is_local).then(|| self.moves.lock());
        let distinct = if is_local { &dirs[..1] } else { &dirs[..] };
        let taken = TakenNumber::default();
        self.change_names(
            &distinct.iter().collect::<Vec<_>>(),
            |readers| {
                let number = whiteout.map(|_| &taken);
                let ends = (&readers[0], &readers[readers.len() - 1]);
                let plan = self.plan_rename(ends, from, to, mode, number)?;
                let nodes = plan.nodes();
                Ok((plan, nodes))
            },
            |locked, plan| {
                let mut gone = None;
                let update = match plan {
                    Plan::Nothing => NameUpdate::new(self.inodes.now()),
                    Plan::Move { node, old, into, replaced } => {
                        let mut update = NameUpdate::new(self.inodes.now());
                        match (old, whiteout) {
                            (OldName::Whiteout(bucket, number, generation), Some(whiteout)) => {
                                if !taken.is_free(&self.inodes, locked, &mut update, number) {
                                    return Ok(None);
                                }
                                update.privilege = whiteout.privilege;
                                let (above, now) = (locked.inode(&dirs[0])?, update.now());
                                let (inode, _) =
                                    whiteout.inode(number.ino(), *generation, whiteout.mode, &above, now);
                                let volume = self.inodes.volume();
                                update.put_name(volume, from.parent, *bucket, from.name, &inode);
                                update.put_inode(inode);
                            }
                            (OldName::Removed(removal), _) => update.remove_entry(from.parent, *removal),
                            (OldName::Whiteout(..), None) => unreachable!("none was asked for"),
                        }
                        let inode = locked.inode(node)?;
                        update.put_name(self.inodes.volume(), to.parent, *into, to.name, &inode);
                        if let Some(replaced) = replaced {
                            gone = self.drop_name(&mut update, replaced, locked.inode(replaced)?, frees)?;
                        }
                        moved(&mut update, locked, node, to.parent, is_local)?;
                        let moves = i64::from(is_directory(node));
                        let goes = i64::from(replaced.as_deref().is_some_and(is_directory));
                        put_parents(&mut update, locked, &dirs, [-moves, moves - goes])?;
                        update
                    }
                    Plan::Exchange { first, second } => {
                        let mut update = NameUpdate::new(self.inodes.now());
                        let inodes = [locked.inode(&first.1)?, locked.inode(&second.1)?];
                        update.put_name(self.inodes.volume(), from.parent, first.0, from.name, &inodes[1]);
                        update.put_name(self.inodes.volume(), to.parent, second.0, to.name, &inodes[0]);
                        moved(&mut update, locked, &first.1, to.parent, is_local)?;
                        moved(&mut update, locked, &second.1, from.parent, is_local)?;
                        let moves = i64::from(is_directory(&first.1)) - i64::from(is_directory(&second.1));
                        put_parents(&mut update, locked, &dirs, [-moves, moves])?;
                        update
                    }
                };
                Ok(Some((update, gone)))
            },
        )
    }

    fn plan_rename(
        &self,
        (old, new): (&DirReader<'_>, &DirReader<'_>),
        from: RenameEnd<'_>,
        to: RenameEnd<'_>,
        mode: Rename,
        whiteout: Option<&TakenNumber>,
    ) -> Result<Plan> {
        let Search::Found { bucket, entry } = old.search(from.name)? else {
            return Err(Refusal::NotFound.into());
        };
        let node = old.node_of(bucket, &entry)?;
        let (into, other) = match new.search(to.name)? {
            Search::Found { bucket, entry } => (bucket, Some(new.node_of(bucket, &entry)?)),
            Search::Absent { free } => (free, None),
        };
        let is_local = from.parent == to.parent;
        if !is_local && is_directory(&node) && self.is_within(to.parent, node.ino())? {
            return Err(Refusal::Invalid.into());
        }
        match (mode, &other) {
            (Rename::NoReplace, Some(_)) => return Err(Refusal::Exists.into()),
            (Rename::Exchange, None) => return Err(Refusal::NotFound.into()),
            (_, Some(other)) if other.ino() == node.ino() => return Ok(Plan::Nothing),
            (Rename::Exchange, Some(other)) => {
                if !is_local && is_directory(other) && self.is_within(from.parent, other.ino())? {
                    return Err(Refusal::Invalid.into());
                }
                return Ok(Plan::Exchange { first: (bucket, node), second: (into, Arc::clone(other)) });
            }
            (_, Some(other)) if is_directory(&node) && !is_directory(other) => {
                return Err(Refusal::NotADirectory.into());
            }
            (_, Some(other)) if !is_directory(&node) && is_directory(other) => {
                return Err(Refusal::IsADirectory.into());
            }
            // It holds what moves.
            (_, Some(other)) if other.ino() == from.parent => return Err(Refusal::NotEmpty.into()),
            _ => {}
        }
        let old = match whiteout {
            Some(number) => {
                let (node, generation) = number.node(&self.inodes)?;
                OldName::Whiteout(bucket, node, generation)
            }
            None => OldName::Removed(hash_table::plan_removal(old, bucket, is_local.then_some(into))?),
        };
        Ok(Plan::Move { node, old, into, replaced: other })
    }
}

/// The inode of a name that moves: a directory stores its parent.
fn moved(
    update: &mut NameUpdate,
    locked: &mut Locked<'_>,
    node: &Node,
    into: Ino,
    is_local: bool,
) -> Result<()> {
    if is_local || !is_directory(node) {
        update.touch(node.ino(), Touch::Changed);
        return Ok(());
    }
    let mut inode = locked.inode(node)?;
    inode.set_parent(into);
    update.put_changed(inode);
    Ok(())
}

/// The directories that a name moves from and to, each with its change in the number of subdirectories.
fn put_parents(
    update: &mut NameUpdate,
    locked: &mut Locked<'_>,
    [from, to]: &[Arc<Node>; 2],
    more: [i64; 2],
) -> Result<()> {
    if from.ino() == to.ino() {
        return update.put_parent(locked.inode(from)?, more[0] + more[1]);
    }
    update.put_parent(locked.inode(from)?, more[0])?;
    update.put_parent(locked.inode(to)?, more[1])
}
