//! The changes that one operation makes to inodes, and the nodes that are locked for it.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use lacuna_ftl::{Encoded, Lba, Op};
use parking_lot::RwLockWriteGuard;

use super::node::Record;
use crate::{
    error::{Refusal, Result},
    format::{
        self, Ino, Inode, LINKS_MAX, Orphan, Privilege, REGION_SECTORS, SectorBytes, Timestamp, XATTR_SECTORS,
    },
    inodes::{Inodes, Node, Touch},
    mutant::{Rule, is_broken},
};

/// Nodes whose `record`s are held alone.
pub(crate) struct Locked<'a> {
    /// In order of their numbers, each once.
    guards: Vec<(&'a Arc<Node>, RwLockWriteGuard<'a, Record>)>,
}

impl<'a> Locked<'a> {
    pub(crate) fn new(nodes: impl IntoIterator<Item = &'a Arc<Node>>) -> Locked<'a> {
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_unstable_by_key(|node| node.ino);
        nodes.dedup_by(|a, b| Arc::ptr_eq(a, b));
        Locked { guards: nodes.into_iter().map(|node| (node, node.record.write())).collect() }
    }

    pub(super) fn guard(&mut self, ino: Ino) -> (&'a Arc<Node>, &mut Record) {
        let found = self.guards.iter_mut().find(|(node, _)| node.ino == ino);
        let (node, record) = found.expect("what is changed is locked");
        (node, record)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &'a Node> + use<'a, '_> {
        self.guards.iter().map(|(node, _)| &***node)
    }

    /// Whether a locked node has no inode yet.
    pub(crate) fn is_unloaded(&mut self, node: &Node) -> bool {
        matches!(self.guard(node.ino).1, Record::Unloaded)
    }

    /// A locked node.
    pub(crate) fn node(&mut self, ino: Ino) -> &'a Arc<Node> {
        self.guard(ino).0
    }

    /// The inode of a locked node.
    pub(crate) fn inode(&mut self, node: &Node) -> Result<Inode> {
        let (node, record) = self.guard(node.ino);
        node.to_be_changed(record).ok_or(Refusal::Stale.into())
    }
}

/// The changes of one operation.
pub(crate) struct Update {
    pub(super) now: Timestamp,
    changes: Vec<Change>,
    pub(super) inodes: Vec<Inode>,
    pub(super) freed: Vec<Ino>,
    pub(super) opened: Vec<Ino>,
    pub(super) looked_up: Vec<Ino>,
    /// Inodes without a name, and whether they may get their first one from now on.
    pub(super) nameable: Vec<(Ino, bool)>,
    pub(super) touched: Vec<(Ino, Touch)>,
    /// Ranges of the map that must be in memory before the update can be made.
    pub(super) absent: Vec<Range<Lba>>,
    /// What bounds the space that it may take.
    pub(crate) privilege: Privilege,
    /// It changes nothing but times, which a check does not look at.
    pub(super) is_of_times: bool,
}

enum Change {
    Sector(Lba, Box<SectorBytes>),
    Bytes(Lba, Vec<u8>),
    Encoded(Encoded<'static>),
    Trim(Lba, u64),
}

impl Update {
    pub(crate) fn new(now: Timestamp) -> Update {
        Update {
            now,
            changes: Vec::new(),
            inodes: Vec::new(),
            freed: Vec::new(),
            opened: Vec::new(),
            looked_up: Vec::new(),
            nameable: Vec::new(),
            touched: Vec::new(),
            absent: Vec::new(),
            privilege: Privilege::Root,
            is_of_times: false,
        }
    }

    /// As [`Update::new`], for times that are in memory only.
    pub(crate) fn of_times(now: Timestamp) -> Update {
        Update { is_of_times: true, ..Update::new(now) }
    }

    /// Stored bytes of `range`. 0 if the map in memory does not show it; then the update will not be made.
    pub(crate) fn allocated(&mut self, inodes: &Inodes, range: Range<Lba>) -> u64 {
        inodes.volume.ftl().allocated_in_memory(range.clone()).unwrap_or_else(|| {
            let ends = [range.start..Lba(range.start.0 + 1), Lba(range.end.0 - 1)..range.end];
            self.absent.extend(ends);
            0
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whole sectors of data.
    pub(crate) fn write(&mut self, lba: Lba, bytes: Vec<u8>) {
        self.changes.push(Change::Bytes(lba, bytes));
    }

    /// The same, encoded.
    pub(crate) fn write_encoded(&mut self, encoded: Encoded<'static>) {
        self.changes.push(Change::Encoded(encoded));
    }

    pub(crate) fn write_sector(&mut self, lba: Lba, bytes: SectorBytes) {
        self.changes.push(Change::Sector(lba, Box::new(bytes)));
    }

    pub(crate) fn trim(&mut self, lba: Lba, sectors: u64) {
        self.changes.push(Change::Trim(lba, sectors));
    }

    /// The next version of an inode, its times included.
    pub(crate) fn put_inode(&mut self, mut inode: Inode) {
        assert!(self.inodes.iter().all(|other| other.ino() != inode.ino()), "an inode is put once");
        inode.count_change();
        self.write_sector(inode.ino().inode_lba(), inode.seal());
        self.inodes.push(inode);
    }

    /// A directory's times, which are stored later.
    pub(crate) fn touch(&mut self, ino: Ino, what: Touch) {
        self.touched.push((ino, what));
    }

    /// A new inode is open from the start.
    pub(crate) fn open(&mut self, ino: Ino) {
        self.opened.push(ino);
    }

    /// The inode's name counts as looked up.
    pub(crate) fn look_up(&mut self, ino: Ino) {
        self.looked_up.push(ino);
    }

    /// Frees the inode, with everything that it has.
    pub(crate) fn free(&mut self, inode: &Inode, inodes: &Inodes) {
        let ino = inode.ino();
        self.trim(ino.inode_lba(), 1);
        if inode.has_xattrs_outside() {
            self.trim(ino.xattr_lba(), XATTR_SECTORS);
        }
        if self.allocated(inodes, ino.region()) > 0 {
            self.trim(ino.lba(0), REGION_SECTORS);
        }
        self.freed.push(ino);
    }

    /// The inode has no name any more: frees it, or leaves it as an orphan until its last release and until it is
    /// forgotten; until the next open unless it `frees` it.
    pub(crate) fn orphan(&mut self, node: &Node, mut inode: Inode, inodes: &Inodes, frees: bool) {
        let ino = inode.ino();
        if node.opens.load(SeqCst) == 0 && !inodes.lookups.mark(ino) && frees {
            self.free(&inode, inodes);
            return;
        }
        self.put_orphan(&mut inode);
        self.put_changed(inode);
    }

    /// Notes that an inode, which the caller then puts, has no name.
    pub(crate) fn put_orphan(&mut self, inode: &mut Inode) {
        let lba = inode.ino().orphan_lba();
        if !is_broken(Rule::UnnamedIsOrphan) {
            self.write_sector(lba, format::seal(&Orphan::new(inode.ino(), inode.generation()), lba));
        }
        inode.set_nlink(0);
    }

    /// A new inode without a name may get one.
    pub(crate) fn let_be_named(&mut self, ino: Ino) {
        self.nameable.push((ino, true));
    }

    /// An inode gets its first name.
    pub(crate) fn name_orphan(&mut self, inode: &Inode) {
        if !is_broken(Rule::NamedIsNoOrphan) {
            self.trim(inode.ino().orphan_lba(), 1);
        }
        self.nameable.push((inode.ino(), false));
    }

    pub(super) fn ops(&self) -> Vec<Op<'_>> {
        let mut ops = Vec::with_capacity(self.changes.len());
        for change in &self.changes {
            ops.push(match change {
                Change::Sector(lba, bytes) => Op::Write { lba: *lba, data: &bytes[..] },
                Change::Bytes(lba, bytes) => Op::Write { lba: *lba, data: bytes },
                Change::Encoded(encoded) => Op::Encoded(encoded),
                Change::Trim(lba, sectors) => Op::Trim { lba: *lba, sectors: *sectors },
            });
        }
        ops
    }

    /// The owner of an inode, which `before` owned, once the update is made.
    pub(super) fn owner_after(&self, ino: Ino, before: Option<u32>) -> Option<u32> {
        if self.freed.contains(&ino) {
            return None;
        }
        self.inodes.iter().find(|inode| inode.ino() == ino).map_or(before, |inode| Some(inode.owner().0))
    }

    /// Stores an inode of which only names changed. Returns it with its new time.
    pub(crate) fn put_changed(&mut self, mut inode: Inode) -> Inode {
        let (accessed, modified, _) = inode.times();
        inode.set_times((accessed, modified, self.now));
        self.put_inode(inode);
        inode
    }

    /// Stores a directory whose entries change, and which gets `subdirectories` more subdirectories.
    pub(crate) fn put_parent(&mut self, mut inode: Inode, subdirectories: i64) -> Result<()> {
        if subdirectories == 0 {
            self.touch(inode.ino(), Touch::Modified);
            return Ok(());
        }
        // A count that is too small on the device is damage, which the check reports; not a reason to stop.
        let nlink = (i64::from(inode.nlink()) + subdirectories).max(2);
        if nlink > i64::from(LINKS_MAX) {
            return Err(Refusal::TooManyLinks.into());
        }
        inode.set_nlink(nlink as u32);
        let (accessed, ..) = inode.times();
        inode.set_times((accessed, self.now, self.now));
        self.put_inode(inode);
        Ok(())
    }

    /// When the change is made.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }
}
