//! From a plan to one batch: what all changes of names have in common.
//!
//! An operation *plans* without a lock: it searches directories and loads inodes, which may read the
//! device. Then it locks the nodes that it is going to change, looks whether a bucket that the plan rests
//! on changed since, and if so starts over; if not, it *commits*: one batch, and then the nodes in
//! memory. A plan that failed is an answer only if it rests on buckets that did not change either.
//!
//! Under locks nothing waits for the device: a look at the ftl's map, and the batch, get by with what of the
//! map is in memory. When that does not do, nothing was done ([`Applied::Absent`]); the locks are given back,
//! what was missing is brought in and kept there, and the operation starts over. So does one that meets a check
//! ([`Applied::Checking`]), which may take long: it waits for that with no lock held.

use std::{
    cell::RefCell,
    ops::Range,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use lacuna_device::SECTOR;
use lacuna_ftl::{Kept, Lba, Op, Stream};
use parking_lot::RwLockWriteGuard;

use super::read_ahead::Listed;
use crate::{
    error::{Refusal, Result, is_stale},
    format::{
        self, Bucket, Dirent, Ino, Inode, Orphan, REGION_SECTORS, SectorBytes, Slot, Timestamp, Tombstone,
        XATTR_SECTORS,
    },
    inodes::{Node, Record, Touch},
    names::hash_table::{self, Buckets, Removal, Search},
    vfs::Shared,
};

/// A directory as a plan sees it. It remembers which buckets were looked at.
pub(super) struct DirReader<'a> {
    pub(super) shared: &'a Shared,
    pub(super) dir: Arc<Node>,
    since: u64,
    buckets: RefCell<Vec<u64>>,
}

impl Buckets for DirReader<'_> {
    fn get(&self, bucket: Bucket) -> Result<Slot> {
        self.buckets.borrow_mut().push(bucket.0);
        self.shared.volume.read_bucket(self.dir.ino, bucket)
    }
}

impl<'a> DirReader<'a> {
    pub(super) fn new(shared: &'a Shared, dir: &Arc<Node>) -> DirReader<'a> {
        let since = dir.changes.lock().count();
        DirReader { shared, dir: Arc::clone(dir), since, buckets: RefCell::default() }
    }

    pub(super) fn search(&self, name: &[u8]) -> Result<Search> {
        hash_table::search(self, name, self.shared.volume.hash_name(name))
    }

    /// The node of an entry that was found here, loaded.
    pub(super) fn node_of(&self, bucket: Bucket, entry: &Dirent) -> Result<Arc<Node>> {
        let node = match self.shared.node(entry.ino()) {
            Err(error) if is_stale(&error) => None,
            other => Some(other?),
        };
        node.filter(|node| is_named_by(node, entry)).ok_or_else(|| {
            let what = format!("directory {}", self.dir.ino.0);
            self.shared.volume.corrupt(&what, bucket.0, "the inode is not the one that its name stands for")
        })
    }

    /// Whether the buckets that were looked at are as they were. Called with the `record` of the
    /// directory held, so that no change is half done.
    fn is_valid(&self) -> bool {
        self.dir.changes.lock().spared(self.since, &self.buckets.borrow())
    }

    /// As [`DirReader::is_valid`], with no lock held.
    pub(super) fn is_settled(&self) -> bool {
        let _record = self.dir.record.read();
        self.is_valid()
    }
}

/// Whether a node is loaded, and the one that an entry stands for.
pub(super) fn is_named_by(node: &Node, entry: &Dirent) -> bool {
    node.is_loaded() && node.generation() == entry.generation() && node.kind() == entry.kind()
}

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

    fn guard(&mut self, ino: Ino) -> (&'a Arc<Node>, &mut Record) {
        let found = self.guards.iter_mut().find(|(node, _)| node.ino == ino);
        let (node, record) = found.expect("what is changed is locked");
        (node, record)
    }

    fn nodes(&self) -> impl Iterator<Item = &'a Node> + use<'a, '_> {
        self.guards.iter().map(|(node, _)| &***node)
    }

    pub(crate) fn record(&mut self, node: &Node) -> &mut Record {
        self.guard(node.ino).1
    }

    /// The inode of a locked node.
    pub(crate) fn inode(&mut self, node: &Node) -> Result<Inode> {
        let (node, record) = self.guard(node.ino);
        node.with_times(record).ok_or(Refusal::Stale.into())
    }
}

/// What one operation changes.
pub(crate) struct Update {
    pub(crate) now: Timestamp,
    changes: Vec<Change>,
    inodes: Vec<Inode>,
    freed: Vec<Ino>,
    opened: Vec<Ino>,
    looked_up: Vec<Ino>,
    /// Buckets of directories, and what of them is listed afterwards.
    buckets: Vec<(Ino, Range<u64>, Option<Listed>)>,
    touched: Vec<(Ino, Touch)>,
    /// What of the map must be in memory before the update can be made.
    absent: Vec<Range<Lba>>,
    /// It changes nothing but times, which a check does not look at.
    is_of_times: bool,
}

/// What came of an update.
#[must_use]
pub(crate) enum Applied {
    Done,
    /// Nothing. What these sectors need of the map is to be brought in, with no lock held.
    Absent(Vec<Range<Lba>>),
    /// Nothing. A check reads names and inodes, and is to be waited for, with no lock held.
    Checking,
}

enum Change {
    Sector(Lba, Box<SectorBytes>),
    Bytes(Lba, Vec<u8>),
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
            buckets: Vec::new(),
            touched: Vec::new(),
            absent: Vec::new(),
            is_of_times: false,
        }
    }

    /// As [`Update::new`], for times that are in memory only.
    pub(super) fn of_times(now: Timestamp) -> Update {
        Update { is_of_times: true, ..Update::new(now) }
    }

    /// Stored bytes of `range`. Where memory does not tell, 0, and the update will not be made.
    pub(super) fn allocated(&mut self, shared: &Shared, range: Range<Lba>) -> u64 {
        shared.volume.ftl().allocated_in_memory(range.clone()).unwrap_or_else(|| {
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
    pub(super) fn touch(&mut self, ino: Ino, what: Touch) {
        self.touched.push((ino, what));
    }

    pub(super) fn put_entry(&mut self, directory: Ino, bucket: Bucket, entry: &Dirent) {
        let lba = bucket.lba(directory);
        self.write_sector(lba, format::seal(entry, lba));
        self.buckets.push((directory, bucket.0..bucket.0 + 1, Some(Listed::new(entry))));
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

    /// A new inode is open from the start.
    pub(super) fn open(&mut self, ino: Ino) {
        self.opened.push(ino);
    }

    /// The inode's name counts as looked up.
    pub(super) fn look_up(&mut self, ino: Ino) {
        self.looked_up.push(ino);
    }

    /// The inode goes, with all that it has.
    pub(super) fn free(&mut self, inode: &Inode, shared: &Shared) {
        let ino = inode.ino();
        self.trim(ino.inode_lba(), 1);
        if inode.has_xattrs_outside() {
            self.trim(ino.xattr_lba(), XATTR_SECTORS);
        }
        if self.allocated(shared, ino.region()) > 0 {
            self.trim(ino.lba(0), REGION_SECTORS);
        }
        self.freed.push(ino);
    }

    /// The inode has no name any more: it goes, or waits for its last release, and to be forgotten.
    pub(super) fn orphan(&mut self, node: &Node, mut inode: Inode, shared: &Shared) {
        let ino = inode.ino();
        if node.opens.load(SeqCst) == 0 && !shared.lookups.mark(ino) {
            self.free(&inode, shared);
            return;
        }
        let orphan = Orphan::new(ino, inode.generation());
        self.write_sector(ino.orphan_lba(), format::seal(&orphan, ino.orphan_lba()));
        inode.set_nlink(0);
        self.put_changed(inode);
    }

    fn ops(&self) -> Vec<Op<'_>> {
        let mut ops = Vec::with_capacity(self.changes.len());
        for change in &self.changes {
            ops.push(match change {
                Change::Sector(lba, bytes) => Op::Write { lba: *lba, data: &bytes[..] },
                Change::Bytes(lba, bytes) => Op::Write { lba: *lba, data: bytes },
                Change::Trim(lba, sectors) => Op::Trim { lba: *lba, sectors: *sectors },
            });
        }
        ops
    }
}

impl Shared {
    /// Plans on `dirs` and commits on the nodes that the plan names besides: `commit` makes the update, or
    /// asks for another try by returning nothing.
    pub(super) fn change_names<P, T>(
        &self,
        dirs: &[&Arc<Node>],
        plan: impl Fn(&[DirReader<'_>]) -> Result<(P, Vec<Arc<Node>>)>,
        commit: impl Fn(&mut Locked<'_>, &P) -> Result<Option<(Update, T)>>,
    ) -> Result<T> {
        let mut kept = Vec::new();
        loop {
            let readers: Vec<_> = dirs.iter().map(|dir| DirReader::new(self, dir)).collect();
            let planned = plan(&readers);
            let others = planned.as_ref().map_or(&[][..], |(_, nodes)| nodes);
            let mut locked = Locked::new(dirs.iter().copied().chain(others));
            if !readers.iter().all(DirReader::is_valid) {
                continue;
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
                None => Applied::Absent(Vec::new()),
            };
            drop(locked);
            match (planned, made, applied) {
                (Err(error), ..) => return Err(error),
                (_, Some((_, done)), Applied::Done) => return Ok(done),
                (.., applied) => kept.extend(self.prepare(applied)?),
            }
        }
    }

    /// Locks `nodes` and makes the update that `make` calls for, if any; as often as it takes to have what
    /// it needs of the map in memory.
    pub(crate) fn change_nodes(
        &self,
        nodes: &[Arc<Node>],
        mut make: impl FnMut(&mut Locked<'_>) -> Result<Option<Update>>,
    ) -> Result<()> {
        let mut kept = Vec::new();
        loop {
            let mut locked = Locked::new(nodes);
            let Some(update) = make(&mut locked)? else { return Ok(()) };
            let applied = self.apply(&update, &mut locked)?;
            drop(locked);
            match applied {
                Applied::Done => return Ok(()),
                applied => kept.extend(self.prepare(applied)?),
            }
        }
    }

    /// Sees to it that what was not done can be. Called with no lock held but sectors of files and `moves`; what is
    /// returned is to be kept until it is done.
    pub(crate) fn prepare(&self, applied: Applied) -> Result<Option<Kept>> {
        match applied {
            Applied::Done => {}
            Applied::Absent(ranges) => return Ok(Some(self.volume.ftl().bring_in(&ranges)?)),
            Applied::Checking => drop(self.structure.read()),
        }
        Ok(None)
    }

    /// Makes an update, on nodes that are locked, if memory has what it needs of the map.
    fn apply(&self, update: &Update, locked: &mut Locked<'_>) -> Result<Applied> {
        if !update.absent.is_empty() {
            return Ok(Applied::Absent(update.absent.clone()));
        }
        if update.is_empty() {
            return Ok(Applied::Done);
        }
        for ino in &update.freed {
            let opens = locked.guard(*ino).0.opens.load(SeqCst);
            assert!(
                opens == 0 && !self.lookups.knows(*ino),
                "an inode in use is not freed (`inodes/lookups.rs`)"
            );
        }
        let structure = self.structure.try_read();
        if structure.is_none() && !update.is_of_times {
            return Ok(Applied::Checking);
        }
        let ops = update.ops();
        let under_way: Vec<_> = locked.nodes().map(|node| node.last_change.begin()).collect();
        let Some(seq) = self.volume.ftl().try_write_batch(&ops, Stream::Data)? else {
            return Ok(Applied::Absent(ops.iter().map(range_of).collect()));
        };
        for inode in &update.inodes {
            let (node, record) = locked.guard(inode.ino());
            if matches!(record, Record::Unloaded) {
                node.load(record, *inode, seq);
            } else {
                self.nodes.store(node, record, *inode);
            }
        }
        for ino in &update.opened {
            locked.guard(*ino).0.opens.store(1, SeqCst); // nobody could see it yet
        }
        update.looked_up.iter().for_each(|ino| self.lookups.add(*ino));
        for ino in &update.freed {
            let (node, record) = locked.guard(*ino);
            self.nodes.remove(node, record);
        }
        for (ino, buckets, listed) in &update.buckets {
            let directory = locked.guard(*ino).0;
            directory.changes.lock().note(buckets.clone());
            self.ahead.note(directory.file_id(), buckets, listed.as_ref());
        }
        for (ino, what) in &update.touched {
            self.nodes.touch(locked.guard(*ino).0, *what, update.now);
        }
        under_way.into_iter().for_each(|change| change.end(seq));
        Ok(Applied::Done)
    }
}

/// The sectors that a change is about.
pub(crate) fn range_of(op: &Op<'_>) -> Range<Lba> {
    match *op {
        Op::Write { lba, data } => lba..Lba(lba.0 + (data.len() / SECTOR) as u64),
        Op::Trim { lba, sectors } => lba..Lba(lba.0 + sectors),
    }
}
