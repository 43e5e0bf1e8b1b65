//! Times that are in memory only, and storing them in a sync.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use crate::{
    error::Result,
    format::{FileKind, Ino},
    inodes::{Inodes, Locked, Node, Touch, Update},
    mutant::{Rule, is_broken},
};

/// When reads update times of last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Never: `noatime`.
    Never,
    /// The first time after a change, and then once a day: `relatime`.
    #[default]
    Relative,
    /// Each time: `strictatime`.
    Always,
}

impl Inodes {
    /// Notes that an inode was read.
    pub(crate) fn touch_accessed(&self, node: &Arc<Node>) {
        if self.keeps_access_time(node) {
            let is_strict = self.access_times == AccessTimes::Always;
            self.nodes.touch(node, Touch::Read { is_strict }, (self.clock)());
        }
    }

    /// See [`crate::posix::Posix::access_times`].
    pub(crate) fn access_times(&self) -> AccessTimes {
        self.access_times
    }

    /// See [`crate::posix::Posix::note_access`].
    pub(crate) fn note_access(&self, notes: bool) {
        self.notes_access.store(notes, Relaxed);
    }

    /// See [`crate::posix::Posix::is_access_due`].
    pub(crate) fn is_access_due(&self, ino: Ino) -> bool {
        let node = self.nodes.get(ino).filter(|node| node.is_loaded() && self.keeps_access_time(node));
        node.is_some_and(|node| {
            self.access_times == AccessTimes::Always || node.is_access_due((self.clock)())
        })
    }

    fn keeps_access_time(&self, node: &Node) -> bool {
        let is_left_out = self.skips_directories && node.kind() == FileKind::Directory;
        self.access_times != AccessTimes::Never && !is_left_out && self.notes_access.load(Relaxed)
    }

    /// The update that stores the times of these nodes, which are locked; none if none wait for it.
    pub(super) fn times_of(&self, nodes: &[Arc<Node>], locked: &mut Locked<'_>) -> Option<Update> {
        let mut update = Update::of_times((self.clock)());
        for node in nodes.iter().filter(|node| node.has_times_to_store()) {
            if let Ok(inode) = locked.inode(node) {
                update.put_inode(inode);
            }
        }
        (!update.is_empty()).then_some(update)
    }

    /// Stores the times of these nodes in one batch.
    pub(crate) fn store_times(&self, nodes: &[Arc<Node>]) -> Result<()> {
        self.change_nodes(nodes, |locked| Ok(self.times_of(nodes, locked)))
    }

    /// Stores all times that wait for it. Where some cannot be stored, stores the others, unless nothing can be stored.
    pub(crate) fn store_all_times(&self) -> Result<()> {
        /// Inodes in one batch.
        const PIECE: usize = 64;
        let mut outcome = Ok(());
        for nodes in self.nodes.dirty().chunks(PIECE) {
            if self.store_times(nodes).is_ok() {
                continue;
            }
            for node in nodes {
                match self.store_times(std::slice::from_ref(node)) {
                    Err(error) if error.stops_changes() => return Err(error),
                    stored => outcome = outcome.and(stored),
                }
            }
        }
        outcome
    }

    /// Keeps the times that are in memory only from becoming too many. Called with no lock held.
    pub(crate) fn store_many_times(&self) {
        if self.nodes.begin_storing_many() {
            // If a file's times cannot be stored, its next sync reports that; the operation at hand has succeeded.
            let _ = self.store_all_times();
            self.nodes.end_storing_many();
        }
    }

    /// See [`crate::posix::Posix::fsync`].
    pub(crate) fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        let Some(node) = self.nodes.get(ino).filter(|node| node.is_loaded()) else {
            return Ok(self.volume.ftl().flush()?); // no change of it is in memory
        };
        let stored = if data_only || is_broken(Rule::FsyncStoresTimes) {
            Ok(())
        } else {
            self.store_times(std::slice::from_ref(&node))
        };
        if is_broken(Rule::FsyncFlushes) {
            return stored;
        }
        match node.last_change.seq() {
            Some(seq) => self.volume.ftl().flush_through(seq)?,
            None => self.volume.ftl().flush()?,
        }
        stored
    }

    /// See [`crate::posix::Posix::sync`].
    pub(crate) fn sync(&self) -> Result<()> {
        let stored = self.store_all_times();
        if !is_broken(Rule::SyncFlushes) {
            self.volume.ftl().flush()?;
        }
        stored
    }
}
