//! Batches of data, and of the inodes that they change.
//!
//! A batch that stays within the length of a file holds that file's `record` shared, so that writes go in parallel. One
//! that makes the file longer holds it alone, and the next version of the inode is part of the batch.

use std::sync::Arc;

use lacuna_ftl::{Lba, Op, Stream};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use super::{last_change::UnderWay, node::Record};
use crate::{
    error::{Refusal, Result},
    format::{Caller, Ino, Inode, Privilege, SectorBytes},
    inodes::{Attempt, Inodes, Node, Touch},
};

/// For whom the data of a file is changed; by default for a program in this process.
#[derive(Clone, Copy, Default)]
pub(crate) struct Author {
    /// Take set-user-id and set-group-id away, on behalf of this caller.
    pub(crate) kill_privileges: Option<Caller>,
    pub(crate) privilege: Privilege,
    /// The times stay as they are: the data does too, or somebody else sets them.
    pub(crate) keeps_times: bool,
}

/// The effect of a batch on one file.
pub(crate) struct Target {
    pub(crate) node: Arc<Node>,
    /// The file reaches at least to this byte afterwards.
    pub(crate) end: u64,
    pub(crate) by: Author,
}

/// A file of a batch while the batch is under way.
enum Held<'a> {
    /// Its inode stays as it is, but for times.
    Within { target: &'a Target, record: RwLockReadGuard<'a, Record>, under_way: UnderWay<'a> },
    /// Its next inode is part of the batch.
    Changing(Box<Changing<'a>>),
}

struct Changing<'a> {
    node: &'a Arc<Node>,
    record: RwLockWriteGuard<'a, Record>,
    next: Inode,
    bytes: SectorBytes,
    under_way: UnderWay<'a>,
}

impl Held<'_> {
    /// The owner, if it is this inode.
    fn owner_of(&self, ino: Ino) -> Option<u32> {
        let (node, inode) = match self {
            Held::Within { target, record, .. } => (&target.node, live(record).ok()?),
            Held::Changing(changing) => (changing.node, &changing.next),
        };
        (node.ino == ino).then(|| inode.owner().0)
    }

    /// The inode's write in the batch.
    fn inode_op(&self) -> Option<Op<'_>> {
        match self {
            Held::Within { .. } => None,
            Held::Changing(changing) => {
                Some(Op::Write { lba: changing.node.ino.inode_lba(), data: &changing.bytes })
            }
        }
    }
}

impl Inodes {
    /// A batch goes to the log's append point if all its files are logs.
    fn stream(targets: &[Target]) -> Stream {
        if targets.iter().all(|target| target.node.is_log()) { Stream::Log } else { Stream::Data }
    }

    /// Applies `ops`, which change the data of `targets`, in one batch. The sectors of the ops are held;
    /// targets come in order of their numbers. What is written is compressed as the files say.
    pub(crate) fn write_data(&self, ops: &[Op<'_>], targets: &[Target]) -> Result<()> {
        let compressed = self.compress(ops, targets, false);
        let ops = compressed.ops();
        self.retry(|| self.try_write_data(&ops, targets))
    }

    /// As [`Inodes::write_data`] for data that is there already, of one file. Nothing is written, and false returned, if
    /// it `is_plain` now and stays that.
    pub(crate) fn rewrite_data(&self, ops: &[Op<'_>], target: Target, is_plain: bool) -> Result<bool> {
        let targets = [target];
        let compressed = self.compress(ops, &targets, true);
        if is_plain && compressed.is_plain() {
            return Ok(false);
        }
        let ops = compressed.ops();
        self.retry(|| self.try_write_data(&ops, &targets))?;
        Ok(true)
    }

    /// As [`Inodes::write_data`] for data of one file that is encoded already.
    pub(crate) fn write_encoded(&self, ops: &[Op<'_>], target: Target) -> Result<()> {
        let targets = [target];
        self.retry(|| self.try_write_data(ops, &targets))
    }

    /// As [`Inodes::write_data`], but returns without effect where it would have to wait.
    fn try_write_data(&self, ops: &[Op<'_>], targets: &[Target]) -> Result<Attempt<()>> {
        let mut held = Vec::with_capacity(targets.len());
        for target in targets {
            held.push(self.hold(target)?);
        }
        let batch: Vec<Op<'_>> = ops.iter().copied().chain(held.iter().filter_map(Held::inode_op)).collect();
        if batch.is_empty() {
            return Ok(Attempt::Done(()));
        }
        let changes_inodes = held.iter().any(|held| matches!(held, Held::Changing(_)));
        let privilege = targets.iter().map(|target| target.by.privilege).min().unwrap_or_default();
        let seq = match self.submit(&batch, Inodes::stream(targets), privilege, changes_inodes, |ino| {
            let owner = held.iter().find_map(|held| held.owner_of(ino));
            (owner, owner)
        })? {
            Attempt::Done(seq) => seq,
            Attempt::Absent(mut sectors) => {
                sectors.extend(targets.iter().map(|target| {
                    let lba = target.node.ino.inode_lba();
                    lba..Lba(lba.0 + 1)
                }));
                return Ok(Attempt::Absent(sectors));
            }
            Attempt::Changed | Attempt::Checking => return Ok(Attempt::Checking),
        };
        drop(batch);
        let now = (self.clock)();
        for held in held {
            match held {
                Held::Within { target, under_way, .. } => {
                    if !target.by.keeps_times {
                        self.nodes.touch(&target.node, Touch::Modified, now);
                    }
                    under_way.end(seq);
                }
                Held::Changing(mut changing) => {
                    self.nodes.store(changing.node, &mut changing.record, changing.next);
                    changing.under_way.end(seq);
                }
            }
        }
        Ok(Attempt::Done(()))
    }

    /// Keeps the inode of a file as it is while a batch writes, or lets the batch alone change it.
    fn hold<'a>(&self, target: &'a Target) -> Result<Held<'a>> {
        let Target { node, end, by: Author { kill_privileges, keeps_times, .. } } = target;
        let stays = |inode: &Inode| {
            *end <= inode.size() && !kill_privileges.is_some_and(|caller| inode.has_privileges(caller))
        };
        let record = node.record.read();
        if stays(live(&record)?) {
            return Ok(Held::Within { target, record, under_way: node.last_change.begin() });
        }
        drop(record);
        let record = node.record.write();
        let under_way = node.last_change.begin();
        if stays(live(&record)?) {
            return Ok(Held::Within { target, record: RwLockWriteGuard::downgrade(record), under_way });
        }
        let mut next = node.to_be_changed(&record).ok_or(Refusal::Stale)?;
        next.set_size(next.size().max(*end));
        if let Some(caller) = *kill_privileges {
            next.drop_privileges(caller);
        }
        if !keeps_times {
            let now = (self.clock)();
            next.set_times((next.times().0, now, now));
        }
        next.count_change();
        let bytes = next.seal();
        Ok(Held::Changing(Box::new(Changing { node, record, next, bytes, under_way })))
    }
}

/// The inode of a file that exists.
pub(super) fn live(record: &Record) -> Result<&Inode> {
    match record {
        Record::Live(inode) => Ok(inode),
        // Not loaded: the caller used the id of a closed handle, while another is being opened.
        Record::Removed | Record::Unloaded => Err(Refusal::Stale.into()),
    }
}
