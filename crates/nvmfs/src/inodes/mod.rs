//! Inodes in memory, and the batches that change them.
//!
//! [`Inodes`] owns the volume and, in memory only, a [`Node`] for each inode in use (`node.rs`), the look-ups that a
//! kernel has not forgotten (`lookups.rs`), and the source of numbers for new inodes (`numbers.rs`). All changes of
//! inodes happen here: `commit.rs` turns an [`Update`] into one batch, `file_batch.rs` writes data together with the
//! inodes that it makes longer. Layers above hold nodes and never see their locks.
//!
//! `record`s of nodes, `structure` and `numbers` are private to this folder; their order is in `lib.rs`.

mod attr;
mod commit;
mod compress;
mod file_batch;
mod last_change;
mod lookups;
mod node;
mod numbers;
mod orphans;
mod quota;
mod ranges;
mod shrinking;
mod times;
mod update;
mod xattr;

use std::sync::{Arc, atomic::AtomicBool};

use lacuna_device::FileId;
use lacuna_ftl::{Lba, Spare};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use self::{
    compress::Counters,
    lookups::Lookups,
    node::{Nodes, Record, StoredCompression},
    numbers::Numbers,
    quota::Quotas,
};
use crate::{
    error::{Refusal, Result},
    format::{Ino, SectorBytes, Timestamp},
    volume::Volume,
};

pub(crate) use self::{
    attr::attr_of,
    commit::Attempt,
    file_batch::{Author, Target},
    node::{Node, Touch},
    ranges::HeldRanges,
    update::{Locked, Update},
};
pub use self::{
    attr::{Attr, SetAttr, SetTime, StatFs},
    compress::CompressionStats,
    quota::{Usage, UserQuota},
    times::AccessTimes,
};

/// All inodes of a volume.
pub(crate) struct Inodes {
    volume: Volume,
    nodes: Nodes,
    clock: fn() -> Timestamp,
    /// Space that is root's alone.
    root_reserve: Spare,
    /// When reads update times of last access, and whether listings do not (`nodiratime`).
    access_times: AccessTimes,
    skips_directories: bool,
    /// Whether reads update them at all now.
    notes_access: AtomicBool,
    numbers: Mutex<Numbers>,
    /// Inodes that a kernel knows.
    lookups: Lookups,
    quotas: Quotas,
    /// What the mount says of files that say nothing themselves.
    mount_compression: StoredCompression,
    compressed: Counters,
    /// Held shared by changes of names or inodes other than times, alone while they are checked.
    structure: RwLock<()>,
}

impl Inodes {
    pub(crate) fn new(
        volume: Volume,
        clock: fn() -> Timestamp,
        (access_times, skips_directories): (AccessTimes, bool),
        inodes_kept: usize,
        root_reserve: Spare,
    ) -> Inodes {
        Inodes {
            volume,
            nodes: Nodes::new(inodes_kept),
            clock,
            root_reserve,
            access_times,
            skips_directories,
            notes_access: AtomicBool::new(true),
            numbers: Mutex::new(Numbers::new(clock())),
            lookups: Lookups::default(),
            quotas: Quotas::default(),
            mount_compression: StoredCompression::default(),
            compressed: Counters::default(),
            structure: RwLock::new(()),
        }
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The time by the file system's clock.
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Keeps names and inodes as they are, but for times, while they are checked.
    pub(crate) fn quiesce(&self) -> RwLockWriteGuard<'_, ()> {
        self.structure.write()
    }

    /// The node of a number, whether an inode has that number or not.
    pub(crate) fn node_of_number(&self, ino: Ino) -> Arc<Node> {
        self.nodes.get_or_insert(ino)
    }

    /// Number of inodes in memory.
    pub(crate) fn count_in_memory(&self) -> usize {
        self.nodes.count()
    }

    /// The node behind a file id, if it is in memory.
    pub(crate) fn node_by_id(&self, id: FileId) -> Option<Arc<Node>> {
        self.nodes.get_by_id(id)
    }

    /// The node of an inode, loaded.
    pub(crate) fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        let node = self.nodes.get_or_insert(ino);
        if !node.is_loaded() {
            let stored = self.volume.ftl().read_sectors(&[ino.inode_lba()])?;
            self.load(&node, stored.first().map(|(_, bytes)| bytes))?;
        }
        if node.is_removed() { Err(Refusal::Stale.into()) } else { Ok(node) }
    }

    /// Loads a node out of the sector of its inode, if it has one. The sector was read after the node was taken from
    /// the table and with no lock held. Every thread that takes the node meanwhile gets this one, so if it is not
    /// loaded yet, no operation has changed the inode since.
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
        // The allocation of their files is asked for next: that takes the map's sums, and the leaves at both ends.
        let ends = nodes
            .iter()
            .map(|node| node.ino.region())
            .flat_map(|region| [region.start..Lba(region.start.0 + 1), Lba(region.end.0 - 1)..region.end]);
        let _ = self.volume.ftl().load_leaves(&ends.collect::<Vec<_>>());
        for node in &nodes {
            if let Ok(index) = stored.binary_search_by_key(&node.ino.inode_lba(), |(lba, _)| *lba) {
                // Damage is reported to the operation that needs the inode.
                let _ = self.load(node, Some(&stored[index].1));
            }
        }
    }

    /// Fails if any lock is held that must not be held while the device is read.
    #[cfg(test)]
    pub(crate) fn assert_unlocked(&self) {
        for node in self.nodes.all() {
            assert!(node.record.try_write().is_some(), "read with the record of {:?} held", node.ino);
        }
        assert!(self.structure.try_write().is_some(), "read with `structure` held");
        assert!(self.numbers.try_lock().is_some(), "read with `numbers` held");
    }
}
