//! Inodes in memory.
//!
//! A [`Node`] stands for an inode as long as it is in use, and is kept for a while after that. It owns the newest
//! version of the inode, the times that are not stored yet, and the locks of the file.
//!
//! 1. There is at most one node that is not `Removed` for a number: the one in the table. An operation that changes an
//!    inode's sector holds the `record` of its node, loaded. So a node equals the inode on the device, and a node may
//!    be dropped whenever it is not in use, no time waits to be stored, and it does not wait for its first name. And a thread that took a node from the
//!    table, then read the sector, and finds the node still `Unloaded`, has read the current inode.
//! 2. A node goes from `Unloaded` to `Live` to `Removed` and never back.
//! 3. `opens` changes with `record` held, shared or alone: a thread that holds `record` alone sees no change.
//! 4. Times in memory are newer than those in `record` or the same. A node with times to store is in
//!    the list of them, which keeps it.
//!
//! Locks, behind those that `lib.rs` lists first: a node's `times`, then the list; the table; all held for moments.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use lacuna_device::{FileId, StreamHint};
use lacuna_ftl::Seq;
use parking_lot::{Mutex, RwLock};

use super::{last_change::LastChange, ranges::Ranges, shrinking::Shrinking};
use crate::{
    error::{Refusal, Result},
    format::{Compression, FileKind, Ino, Inode, Timestamp},
    inodes::HeldRanges,
    mutant::{Rule, is_broken},
};

/// State of an inode in memory.
#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large kind")]
pub(super) enum Record {
    /// Not read yet.
    Unloaded,
    Live(Inode),
    /// The inode is gone and its number may belong to another.
    Removed,
}

pub(crate) struct Node {
    pub(super) ino: Ino,
    pub(super) record: RwLock<Record>,
    identity: OnceLock<Identity>,
    /// Length in bytes, for readers, who take no lock.
    size: AtomicU64,
    /// As [`Record::Removed`], for readers.
    removed: AtomicBool,
    is_log: AtomicBool,
    /// Its compression, for writers, who take no lock to read it.
    compression: StoredCompression,
    /// Whether its data shrinks.
    pub(super) shrinking: Shrinking,
    /// Calls of `open` without `release`.
    pub(super) opens: AtomicU32,
    /// It was made without a name, and has got none yet, but may. Changes with `record` held alone.
    pub(super) may_be_named: AtomicBool,
    times: Mutex<Times>,
    /// Sectors of the file that are being changed.
    ranges: Ranges,
    /// Of a directory.
    changes: Mutex<Changes>,
    pub(super) last_change: LastChange,
    /// Used since the table last looked for a node to drop.
    is_used: AtomicBool,
}

/// A compression that is read without a lock.
#[derive(Default)]
pub(super) struct StoredCompression(AtomicU16);

impl StoredCompression {
    pub(super) fn get(&self) -> Compression {
        let bytes = self.0.load(SeqCst).to_le_bytes();
        Compression::of_bytes(bytes).expect("it was set from one")
    }

    pub(super) fn set(&self, compression: Compression) {
        self.0.store(u16::from_le_bytes(compression.to_bytes()), SeqCst);
    }
}

/// The properties that an inode keeps for its life.
#[derive(Clone, Copy)]
struct Identity {
    generation: u32,
    kind: FileKind,
}

/// Times as they are in memory.
#[derive(Clone, Copy, Default)]
struct Times {
    accessed: Timestamp,
    modified: Timestamp,
    changed: Timestamp,
    is_dirty: bool,
    /// `accessed` as the newest change of the inode found it. Readers, who hold no `record`, move it meanwhile.
    accessed_before: Timestamp,
}

impl Times {
    fn stored(inode: &Inode) -> Times {
        let (accessed, modified, changed) = inode.times();
        Times { accessed, modified, changed, is_dirty: false, accessed_before: accessed }
    }

    /// Whether a read at `now` updates the time of access under `relatime`: if nothing was read since the last change,
    /// or for a day.
    fn is_access_due(&self, now: Timestamp) -> bool {
        let is_old = now.seconds.saturating_sub(self.accessed.seconds) >= RELATIME_SECONDS;
        is_broken(Rule::AccessRelative)
            || is_old
            || self.accessed <= self.modified
            || self.accessed <= self.changed
    }
}

/// The times that an operation updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The data were read. Updated only now and then, as with `relatime`, unless `is_strict`.
    Read { is_strict: bool },
    /// The data changed, and with it the inode.
    Modified,
    /// The inode changed.
    Changed,
}

/// This many nodes may have times in memory that are not stored; about 1 KiB each. Beyond that they are stored without
/// a sync; times that could not be stored are tried again once there are this many more.
const UNSTORED_TIMES_MAX: usize = 4096;
/// From this many on, where they cannot be stored, reads leave no times. Times left by writes come from a store that
/// accepts writes, so they can be stored.
const UNSTORED_READS_MAX: usize = 4 * UNSTORED_TIMES_MAX;

/// Slots of the table that are kept for more nodes.
const SPARE_SLOTS: usize = 1024;

/// Seconds after which a read moves the time of access even if nothing changed since the last one.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

/// The newest changes of a directory's buckets.
#[derive(Default)]
struct Changes {
    count: u64,
    recent: VecDeque<Range<u64>>,
}

/// Changes that a directory remembers: more than happen while one operation is being planned.
const RECENT_CHANGES: usize = 128;

impl Changes {
    /// Number of changes so far.
    fn count(&self) -> u64 {
        self.count
    }

    fn note(&mut self, buckets: Range<u64>) {
        if self.recent.len() == RECENT_CHANGES {
            self.recent.pop_front();
        }
        self.recent.push_back(buckets);
        self.count += 1;
    }

    /// Whether none of these buckets changed since there were `since` changes.
    fn spared(&self, since: u64, buckets: &[u64]) -> bool {
        let newer = (self.count - since) as usize;
        let mut recent = self.recent.iter().rev();
        newer <= self.recent.len()
            && recent.by_ref().take(newer).all(|change| !buckets.iter().any(|bucket| change.contains(bucket)))
    }
}

impl Node {
    fn new(ino: Ino) -> Arc<Node> {
        Arc::new(Node {
            ino,
            record: RwLock::new(Record::Unloaded),
            identity: OnceLock::new(),
            size: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            is_log: AtomicBool::new(false),
            compression: StoredCompression::default(),
            shrinking: Shrinking::default(),
            opens: AtomicU32::new(0),
            may_be_named: AtomicBool::new(false),
            times: Mutex::default(),
            ranges: Ranges::default(),
            changes: Mutex::default(),
            last_change: LastChange::default(),
            is_used: AtomicBool::new(true),
        })
    }

    /// Takes over an inode that was read or created, by the batch `seq` at the latest. Called with `record` held alone,
    /// once.
    pub(super) fn load(&self, record: &mut Record, inode: Inode, seq: Seq) {
        self.last_change.note(seq);
        let identity = Identity { generation: inode.generation(), kind: inode.kind() };
        self.is_log.store(inode.is_log(), SeqCst);
        self.compression.set(inode.compression());
        self.size.store(inode.size(), SeqCst);
        *self.times.lock() = Times::stored(&inode);
        *record = Record::Live(inode);
        assert!(self.identity.set(identity).is_ok(), "an inode is loaded once");
    }

    /// Number of the inode.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// The inode as it is now, with the times that wait to be stored.
    pub(crate) fn inode(&self) -> Result<Inode> {
        self.with_times(&self.record.read()).ok_or(Refusal::Stale.into())
    }

    /// Applies `see` to the inode as it is stored.
    pub(crate) fn live<T>(&self, see: impl FnOnce(&Inode) -> T) -> Result<T> {
        match &*self.record.read() {
            Record::Live(inode) => Ok(see(inode)),
            // Not loaded: the caller used the id of a closed handle, while another is being opened.
            Record::Removed | Record::Unloaded => Err(Refusal::Stale.into()),
        }
    }

    /// Calls `see` while the inode cannot change.
    pub(crate) fn with_record<T>(&self, see: impl FnOnce() -> T) -> T {
        let _record = self.record.read();
        see()
    }

    /// Waits until no operation holds a sector of this range of the file, and holds them.
    pub(crate) fn lock_sectors(&self, wanted: Range<u64>) -> HeldRanges<'_> {
        self.ranges.lock(wanted)
    }

    /// As [`Node::lock_sectors`] for several ranges at once.
    pub(crate) fn lock_all_sectors(&self, wanted: Vec<Range<u64>>) -> HeldRanges<'_> {
        self.ranges.lock_all(wanted)
    }

    /// How often buckets of this directory changed.
    pub(crate) fn bucket_changes(&self) -> u64 {
        self.changes.lock().count()
    }

    /// Notes a change of buckets of this directory. Called with `record` held alone.
    pub(crate) fn note_buckets(&self, buckets: Range<u64>) {
        self.changes.lock().note(buckets);
    }

    /// Whether none of these buckets of this directory changed since there were `since` changes.
    pub(crate) fn spared(&self, since: u64, buckets: &[u64]) -> bool {
        self.changes.lock().spared(since, buckets)
    }

    /// Whether it was `Live` and may still be. Takes no lock.
    pub(crate) fn is_loaded(&self) -> bool {
        self.identity.get().is_some()
    }

    /// The generation of a loaded inode.
    pub(crate) fn generation(&self) -> u32 {
        self.identity.get().expect("the inode is loaded").generation
    }

    /// The type of a loaded inode.
    pub(crate) fn kind(&self) -> FileKind {
        self.identity.get().expect("the inode is loaded").kind
    }

    /// Unique among all files that ever had this number; repeats after 2^32 of them.
    pub(crate) fn file_id(&self) -> FileId {
        FileId(u64::from(self.generation()) << 32 | u64::from(self.ino.0))
    }

    /// Length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(SeqCst)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(SeqCst)
    }

    /// Whether an inode without a name may get one.
    pub(crate) fn may_be_named(&self) -> bool {
        self.may_be_named.load(SeqCst)
    }

    pub(crate) fn is_log(&self) -> bool {
        self.is_log.load(SeqCst)
    }

    /// What its inode says, without the defaults.
    pub(crate) fn compression(&self) -> Compression {
        self.compression.get()
    }

    /// The hint of the newest opening applies.
    pub(crate) fn set_hint(&self, hint: StreamHint) {
        self.is_log.store(hint == StreamHint::Log, SeqCst);
    }

    /// The inode with the times that wait to be stored. `record` is its own.
    pub(super) fn with_times(&self, record: &Record) -> Option<Inode> {
        let Record::Live(mut inode) = *record else { return None };
        let times = *self.times.lock();
        inode.set_times((times.accessed, times.modified, times.changed));
        Some(inode)
    }

    /// As [`Node::with_times`], for a change of the inode that [`Nodes::store`] ends. Called with `record` held alone.
    pub(super) fn to_be_changed(&self, record: &Record) -> Option<Inode> {
        let mut times = self.times.lock();
        times.accessed_before = times.accessed;
        drop(times);
        self.with_times(record)
    }

    /// Whether a read at `now` updates the time of access under `relatime`.
    pub(super) fn is_access_due(&self, now: Timestamp) -> bool {
        self.times.lock().is_access_due(now)
    }

    /// Whether it may be dropped. Called with the table of nodes locked: no thread can start to use it meanwhile.
    fn is_idle(self: &Arc<Node>) -> bool {
        Arc::strong_count(self) == 1 && self.opens.load(SeqCst) == 0 && !self.may_be_named()
    }

    /// Whether times in memory are newer than those on the device.
    pub(super) fn has_times_to_store(&self) -> bool {
        self.times.lock().is_dirty
    }
}

/// All nodes by number.
pub(super) struct Nodes {
    table: Mutex<Table>,
    /// Nodes with times to store.
    dirty: Mutex<BTreeMap<Ino, Arc<Node>>>,
    dirty_count: AtomicUsize,
    /// When there are more than this many, all must be stored; `usize::MAX` while that is being done.
    store_above: AtomicUsize,
    /// Number of unused nodes that are kept.
    kept_max: usize,
    /// That of the root directory, which is the store's default.
    pub(super) store_compression: StoredCompression,
}

#[derive(Default)]
struct Table {
    by_ino: HashMap<Ino, Arc<Node>>,
    /// Numbers in the order in which nodes are examined when there are too many; it contains each node's number.
    queue: VecDeque<Ino>,
}

impl Nodes {
    pub(super) fn new(kept_max: usize) -> Nodes {
        let (dirty_count, store_above) = (AtomicUsize::new(0), AtomicUsize::new(UNSTORED_TIMES_MAX));
        let store_compression = StoredCompression::default();
        Nodes {
            table: Mutex::default(),
            dirty: Mutex::default(),
            dirty_count,
            store_above,
            kept_max,
            store_compression,
        }
    }

    /// The node of this number, if there is one.
    pub(super) fn get(&self, ino: Ino) -> Option<Arc<Node>> {
        let table = self.table.lock();
        let node = table.by_ino.get(&ino)?;
        node.is_used.store(true, SeqCst);
        Some(Arc::clone(node))
    }

    /// The node behind a file id.
    pub(super) fn get_by_id(&self, id: FileId) -> Option<Arc<Node>> {
        let node = self.get(Ino(id.0 as u32))?;
        (node.is_loaded() && node.file_id() == id).then_some(node)
    }

    /// The node of this number, a new one if there is none.
    pub(super) fn get_or_insert(&self, ino: Ino) -> Arc<Node> {
        let mut table = self.table.lock();
        if let Some(node) = table.by_ino.get(&ino) {
            node.is_used.store(true, SeqCst);
            return Arc::clone(node);
        }
        let node = Node::new(ino);
        table.insert(&node);
        table.drop_unused(self.kept_max);
        node
    }

    /// Takes over a version of the inode that is already in the ftl. Called with `record`, its own, held alone.
    pub(super) fn store(&self, node: &Arc<Node>, record: &mut Record, inode: Inode) {
        let mut times = node.times.lock();
        let before = std::mem::replace(&mut *times, Times::stored(&inode));
        if before.is_dirty && before.accessed != before.accessed_before {
            // It was read since the change began: that waits to be stored, as it did.
            (times.accessed, times.is_dirty) = (before.accessed, true);
        } else if before.is_dirty {
            self.forget_times(node.ino);
        }
        drop(times);
        node.size.store(inode.size(), SeqCst);
        node.compression.set(inode.compression());
        if node.ino == Ino::ROOT {
            self.store_compression.set(inode.compression());
        }
        *record = Record::Live(inode);
    }

    /// Called with `record`, its own, held alone, once the removal is in the ftl.
    pub(super) fn remove(&self, node: &Node, record: &mut Record) {
        *record = Record::Removed;
        let mut times = node.times.lock();
        node.removed.store(true, SeqCst);
        if std::mem::take(&mut times.is_dirty) {
            self.forget_times(node.ino);
        }
        drop(times);
        let mut table = self.table.lock();
        table.by_ino.remove(&node.ino);
        table.give_back();
    }

    /// Drops nodes that a kernel has forgotten, if they are not in use and there are many.
    pub(super) fn drop_forgotten(&self, inos: &[Ino]) {
        let mut table = self.table.lock();
        for ino in inos {
            if table.by_ino.len() <= self.kept_max / 4 {
                break;
            }
            if table.by_ino.get(ino).is_some_and(Node::is_idle) {
                table.by_ino.remove(ino);
            }
        }
        table.give_back();
    }

    /// Updates times in memory. Called with `record` of `node` held, or by readers without.
    pub(super) fn touch(&self, node: &Arc<Node>, what: Touch, now: Timestamp) {
        let mut times = node.times.lock();
        match what {
            Touch::Read { is_strict } => {
                if !is_strict && !times.is_access_due(now) {
                    return;
                }
                if !times.is_dirty && self.dirty_count() >= UNSTORED_READS_MAX {
                    return;
                }
                times.accessed = now;
            }
            Touch::Modified => (times.modified, times.changed) = (now, now),
            Touch::Changed => times.changed = now,
        }
        // `times` stays locked until the node is on the list: flag and list agree.
        if !node.is_removed() && !std::mem::replace(&mut times.is_dirty, true) {
            let mut dirty = self.dirty.lock();
            dirty.insert(node.ino, Arc::clone(node));
            self.dirty_count.store(dirty.len(), SeqCst);
        }
    }

    /// Called with the times of the node locked.
    fn forget_times(&self, ino: Ino) {
        let mut dirty = self.dirty.lock();
        dirty.remove(&ino);
        self.dirty_count.store(dirty.len(), SeqCst);
    }

    /// All nodes that are in memory.
    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        let table = self.table.try_lock().expect("read with the table of nodes held");
        table.by_ino.values().cloned().collect()
    }

    /// Number of nodes in memory.
    pub(super) fn count(&self) -> usize {
        self.table.lock().by_ino.len()
    }

    /// Number of nodes with times to store.
    pub(super) fn dirty_count(&self) -> usize {
        self.dirty_count.load(SeqCst)
    }

    /// Whether there are so many of them that the caller must store all, and then call [`Nodes::end_storing_many`]. One
    /// thread does that at a time.
    pub(super) fn begin_storing_many(&self) -> bool {
        let above = self.store_above.load(SeqCst);
        self.dirty_count() > above
            && self.store_above.compare_exchange(above, usize::MAX, SeqCst, SeqCst).is_ok()
    }

    /// The remaining times could not be stored: not every call tries again.
    pub(super) fn end_storing_many(&self) {
        self.store_above.store(self.dirty_count() + UNSTORED_TIMES_MAX, SeqCst);
    }

    /// The nodes with times to store, by number.
    pub(super) fn dirty(&self) -> Vec<Arc<Node>> {
        self.dirty.lock().values().cloned().collect()
    }
}

impl Table {
    fn insert(&mut self, node: &Arc<Node>) {
        if self.queue.len() > 2 * self.by_ino.len() + 64 {
            // Numbers of removed nodes, and those of new ones a second time.
            let mut seen = HashSet::new();
            self.queue.retain(|ino| self.by_ino.contains_key(ino) && seen.insert(*ino));
        }
        self.by_ino.insert(node.ino, Arc::clone(node));
        self.queue.push_back(node.ino);
    }

    /// Gives memory back that is much more than the nodes need.
    fn give_back(&mut self) {
        let needed = self.by_ino.len() + SPARE_SLOTS;
        if self.by_ino.capacity() > 4 * needed {
            self.by_ino.shrink_to(needed);
            let mut seen = HashSet::new();
            self.queue.retain(|ino| self.by_ino.contains_key(ino) && seen.insert(*ino));
            self.queue.shrink_to(needed);
        }
    }

    /// Drops some of the unused nodes beyond `kept_max`. Examines a constant number of nodes each time.
    fn drop_unused(&mut self, kept_max: usize) {
        const LOOKS: usize = 8;
        for _ in 0..LOOKS {
            if self.by_ino.len() <= kept_max {
                return;
            }
            let Some(ino) = self.queue.pop_front() else { return };
            let Some(node) = self.by_ino.get(&ino) else { continue };
            let is_idle = node.is_idle() && !node.is_used.swap(false, SeqCst);
            if is_idle {
                self.by_ino.remove(&ino);
            } else {
                self.queue.push_back(ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_beside_a_change_keeps_its_time() {
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let nodes = Nodes::new(8);
        let node = nodes.get_or_insert(Ino::FIRST);
        let mut record = node.record.write();
        node.load(&mut record, Inode::new(Ino::FIRST, 1, 0o100_644, at(1)), Seq(1));
        let read = |seconds| nodes.touch(&node, Touch::Read { is_strict: true }, at(seconds));
        let accessed = |record: &Record| node.with_times(record).expect("it is loaded").times().0;
        read(2);
        let mut next = node.to_be_changed(&record).expect("it is loaded");
        read(3);
        nodes.store(&node, &mut record, next);
        assert_eq!((accessed(&record), nodes.dirty_count(), node.has_times_to_store()), (at(3), 1, true));
        // A change that sets the time, with no read beside it.
        next = node.to_be_changed(&record).expect("it is loaded");
        next.set_times((at(0), at(4), at(4)));
        nodes.store(&node, &mut record, next);
        assert_eq!((accessed(&record), nodes.dirty_count(), node.has_times_to_store()), (at(0), 0, false));
    }
}
