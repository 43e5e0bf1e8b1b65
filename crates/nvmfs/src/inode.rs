//! Inodes that are open.
//!
//! An [`OpenInode`] is shared by all handles of a file and owns the newest version of its inode. Its
//! `record` lock orders changes: whoever holds it shared may write within the length; whoever holds it
//! alone may change the length or remove the file.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use lacuna_device::{FileId, StreamHint};
use parking_lot::{Mutex, RwLock};

use crate::{addr::Ino, format::Inode};

/// State of an inode in memory.
#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large kind")]
pub(crate) enum Record {
    /// Not read yet.
    Unloaded,
    Live(Inode),
    /// The file is gone and its number may belong to another.
    Removed,
}

pub(crate) struct OpenInode {
    pub(crate) ino: Ino,
    pub(crate) generation: u32,
    pub(crate) record: RwLock<Record>,
    /// As [`Record::Removed`], for readers, who take no lock.
    removed: AtomicBool,
    is_log: AtomicBool,
}

impl OpenInode {
    pub(crate) fn new(ino: Ino, generation: u32, record: Record) -> Arc<OpenInode> {
        Arc::new(OpenInode {
            ino,
            generation,
            record: RwLock::new(record),
            removed: AtomicBool::new(false),
            is_log: AtomicBool::new(false),
        })
    }

    /// Unique among all files that ever had this number, but for 2^32 of them.
    pub(crate) fn file_id(&self) -> FileId {
        FileId(u64::from(self.generation) << 32 | u64::from(self.ino.0))
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(SeqCst)
    }

    /// Called with `record` held alone, once the removal is in the ftl.
    pub(crate) fn mark_removed(&self, record: &mut Record) {
        *record = Record::Removed;
        self.removed.store(true, SeqCst);
    }

    pub(crate) fn is_log(&self) -> bool {
        self.is_log.load(SeqCst)
    }

    /// The newest opener's choice counts.
    pub(crate) fn set_hint(&self, hint: StreamHint) {
        self.is_log.store(hint == StreamHint::Log, SeqCst);
    }
}

/// All open inodes by number.
#[derive(Default)]
pub(crate) struct OpenInodes {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_ino: HashMap<Ino, Weak<OpenInode>>,
    /// Size at which entries without handles are looked for next, so that this costs O(1) each.
    prune_at: usize,
}

impl OpenInodes {
    /// The open inode of this number, if it has handles.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        self.table.lock().by_ino.get(&ino).and_then(Weak::upgrade)
    }

    /// The open inode behind a file id.
    pub(crate) fn get_by_id(&self, id: FileId) -> Option<Arc<OpenInode>> {
        self.get(Ino(id.0 as u32)).filter(|inode| inode.file_id() == id)
    }

    /// The open inode of this number, or a new one, not loaded. The caller keeps it from being removed
    /// meanwhile.
    pub(crate) fn get_or_insert(&self, ino: Ino, generation: u32) -> Arc<OpenInode> {
        let mut table = self.table.lock();
        if let Some(inode) = table.by_ino.get(&ino).and_then(Weak::upgrade) {
            return inode;
        }
        let inode = OpenInode::new(ino, generation, Record::Unloaded);
        table.insert(&inode);
        inode
    }

    /// Enters an inode that was just created.
    pub(crate) fn insert(&self, inode: &Arc<OpenInode>) {
        self.table.lock().insert(inode);
    }

    /// Forgets a removed inode, whose number may be given to another.
    pub(crate) fn forget(&self, ino: Ino) {
        self.table.lock().by_ino.remove(&ino);
    }
}

impl Table {
    fn insert(&mut self, inode: &Arc<OpenInode>) {
        if self.by_ino.len() >= self.prune_at {
            self.by_ino.retain(|_, inode| inode.strong_count() > 0);
            self.prune_at = 2 * self.by_ino.len() + 64;
        }
        self.by_ino.insert(inode.ino, Arc::downgrade(inode));
    }
}
