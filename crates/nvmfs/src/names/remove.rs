//! Names that go, and inodes without names.
//!
//! **Damage.** Where the inode of a file cannot be read, or is not the one that its name stands for, the name
//! can be removed, and it goes alone: how many others there are, and what the last one takes along, only the
//! inode knew. So the inode stays, its number is not given to another (invariant 2 of `vfs/mod.rs`: its sector is
//! mapped), and what the file takes is kept for a repair; `check` names it. The name of a damaged directory
//! stays: it is the only way to what is in there. So does a name that another is to replace.
//!
//! Who removes such a name holds the `record` of its number's node, and finds it not loaded, or another's:
//! nobody has come to read the inode meanwhile.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use lacuna_ftl::Lba;

use super::{
    check_name,
    update::{DirReader, Locked, Update, is_named_by},
};
use crate::{
    error::{Error, Refusal, Result, is_stale},
    format::{Dirent, FileKind, Ino, Inode, Orphan},
    inodes::{Attr, Node, attr_of},
    names::hash_table::{self, Removal, Search},
    vfs::Shared,
};

/// Orphans of an earlier use that are read together.
const ORPHANS_AT_ONCE: usize = 512;

impl Shared {
    /// Takes a name of anything but a directory away; see [`Shared::drop_name`].
    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Option<Attr>> {
        let dir = self.directory(parent)?;
        check_name(name)?;
        self.change_names(
            &[&dir],
            |readers| plan_removal(&readers[0], name),
            |locked, doomed| {
                let node = &doomed.node;
                if doomed.entry.kind() == FileKind::Directory {
                    return Err(Refusal::IsADirectory.into());
                }
                let mut update = Update::new((self.clock)());
                update.remove_entry(parent, doomed.removal);
                let mut gone = None;
                if !doomed.is_damaged {
                    gone = self.drop_name(&mut update, node, locked.inode(node)?)?;
                } else if is_named_by(node, &doomed.entry) {
                    return Ok(None); // somebody could read it after all
                }
                update.put_parent(locked.inode(&dir)?, 0)?;
                Ok(Some((update, gone)))
            },
        )
    }

    /// Removes an empty directory; see [`Shared::drop_name`].
    pub(crate) fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<Option<Attr>> {
        let dir = self.directory(parent)?;
        if name == b".." {
            return Err(Refusal::NotEmpty.into());
        }
        check_name(name)?;
        self.change_names(
            &[&dir],
            |readers| plan_removal(&readers[0], name),
            |locked, doomed| {
                if doomed.entry.kind() != FileKind::Directory {
                    return Err(Refusal::NotADirectory.into());
                }
                let mut update = Update::new((self.clock)());
                update.remove_entry(parent, doomed.removal);
                let gone = self.drop_name(&mut update, &doomed.node, locked.inode(&doomed.node)?)?;
                update.put_parent(locked.inode(&dir)?, -1)?;
                Ok(Some((update, gone)))
            },
        )
    }

    /// One name less for an inode, and its end if that was the last: then what there is to tell of it.
    pub(super) fn drop_name(
        &self,
        update: &mut Update,
        node: &Node,
        mut inode: Inode,
    ) -> Result<Option<Attr>> {
        let last = Attr { nlink: 0, changed: update.now, ..attr_of(&inode, 0) };
        match inode.kind() {
            // By invariant 3 of `names/hash_table.rs` an empty directory has no sector.
            FileKind::Directory if update.allocated(self, node.ino.region()) > 0 => {
                return Err(Refusal::NotEmpty.into());
            }
            FileKind::Directory => update.orphan(node, inode, self),
            _ if inode.nlink() > 1 => {
                inode.set_nlink(inode.nlink() - 1);
                update.put_changed(inode);
                return Ok(None);
            }
            _ => update.orphan(node, inode, self),
        }
        Ok(Some(last))
    }

    /// Keeps an inode until [`Shared::release`].
    pub(crate) fn open_node(&self, ino: Ino) -> Result<()> {
        self.open_loaded(&*self.node(ino)?)
    }

    /// As [`Shared::open_node`].
    pub(crate) fn open_loaded(&self, node: &Node) -> Result<()> {
        let _record = node.record.read();
        if node.is_removed() {
            return Err(Refusal::Stale.into());
        }
        node.opens.fetch_add(1, SeqCst);
        Ok(())
    }

    /// Ends an opening. The last one frees what has no name and is known to nobody, and stores times that wait for it.
    pub(crate) fn release(&self, ino: Ino) -> Result<()> {
        let node = self.nodes.get(ino).ok_or(Refusal::Stale)?;
        let record = node.record.read();
        let before = node.opens.fetch_update(SeqCst, SeqCst, |opens| opens.checked_sub(1));
        drop(record);
        match before {
            Err(_) => return Err(Refusal::Stale.into()),
            Ok(1) => {}
            Ok(_) => return Ok(()),
        }
        self.change_nodes(std::slice::from_ref(&node), |locked| {
            let Ok(inode) = locked.inode(&node) else { return Ok(None) }; // another's release was the last
            if node.opens.load(SeqCst) > 0 {
                return Ok(None);
            }
            if inode.nlink() > 0 {
                return Ok(self.times_of(std::slice::from_ref(&node), locked));
            }
            Ok((!self.lookups.mark(ino)).then(|| self.end_of_orphan(&inode)))
        })
    }

    /// See [`crate::posix::Posix::forget`].
    pub(crate) fn forget(&self, ino: Ino, lookups: u64) -> Result<()> {
        if self.lookups.forget(ino, lookups) { self.free_forgotten(ino) } else { Ok(()) }
    }

    /// See [`crate::posix::Posix::forget_all`].
    pub(crate) fn forget_all(&self) -> Result<()> {
        let freed = self.lookups.forget_all().into_iter().map(|ino| self.free_forgotten(ino));
        freed.fold(Ok(()), Result::and)
    }

    /// Frees what nobody knows any more, unless something else keeps it (invariant 2 of `inodes/lookups.rs`).
    fn free_forgotten(&self, ino: Ino) -> Result<()> {
        let freed = self.node(ino).and_then(|node| {
            self.change_nodes(std::slice::from_ref(&node), |locked| {
                let inode = locked.inode(&node)?;
                let is_kept = inode.nlink() > 0 || node.opens.load(SeqCst) > 0 || self.lookups.mark(ino);
                Ok((!is_kept).then(|| self.end_of_orphan(&inode)))
            })
        });
        self.lookups.note_freed();
        match freed {
            Err(error) if is_stale(&error) => Ok(()), // another has freed it
            freed => freed,
        }
    }

    fn end_of_orphan(&self, inode: &Inode) -> Update {
        let mut update = Update::new((self.clock)());
        update.trim(inode.ino().orphan_lba(), 1);
        update.free(inode, self);
        update
    }

    /// Frees what had no name and was open when the file system was last used. Damage is left for the
    /// check to report.
    pub(crate) fn free_orphans(&self) -> Result<()> {
        let mut rest = Ino::ORPHANS.region();
        loop {
            let lbas = self.volume.ftl().mapped_sectors(rest.clone(), ORPHANS_AT_ONCE)?;
            let Some(last) = lbas.last() else { return Ok(()) };
            rest.start = Lba(last.0 + 1);
            let orphans = self.read_orphans(&lbas)?;
            self.preload(&orphans.iter().map(|(ino, _)| *ino).collect::<Vec<_>>());
            for (ino, orphan) in orphans {
                match self.free_orphan(ino, &orphan) {
                    Err(error) if !error.is_damage() && !matches!(error, Error::Refused(_)) => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Those of the orphans in these sectors that can be read, by their numbers.
    fn read_orphans(&self, lbas: &[Lba]) -> Result<Vec<(Ino, Orphan)>> {
        let (mut orphans, mut outcome) = (Vec::new(), Ok(()));
        self.volume.ftl().visit_sectors(lbas, |lba, bytes| {
            let Some(ino) = Ino::new(Ino::of(lba).1) else { return };
            match bytes.map_err(Error::from).and_then(|bytes| self.volume.verify_orphan(ino, bytes)) {
                Ok(orphan) => orphans.push((ino, orphan)),
                Err(error) if error.is_damage() => {}
                Err(error) => outcome = Err(error),
            }
        })?;
        orphans.sort_unstable_by_key(|(ino, _)| *ino);
        outcome.map(|()| orphans)
    }

    fn free_orphan(&self, ino: Ino, orphan: &Orphan) -> Result<()> {
        let node = self.node(ino)?;
        self.change_nodes(std::slice::from_ref(&node), |locked| {
            let inode = locked.inode(&node)?;
            if !orphan.is_of(ino, inode.generation()) || inode.nlink() > 0 {
                return Err(self.volume.corrupt("orphans", ino.number(), "the inode has a name"));
            }
            Ok(Some(self.end_of_orphan(&inode)))
        })
    }

    /// The update that stores the times of these nodes, which are locked; none if none wait for it.
    fn times_of(&self, nodes: &[Arc<Node>], locked: &mut Locked<'_>) -> Option<Update> {
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

    /// Stores all times that wait for it; where that fails, those of all others, unless nothing can be stored.
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
            // Whose times cannot be stored hears of it when it is synced; what was just done is done.
            let _ = self.store_all_times();
            self.nodes.end_storing_many();
        }
    }
}

/// A name that is to be removed.
struct Doomed {
    entry: Dirent,
    removal: Removal,
    /// Loaded, unless it is damaged.
    node: Arc<Node>,
    /// It is no directory, and there is nothing but its name to be removed.
    is_damaged: bool,
}

/// How to remove a name, and the node to be locked for it.
fn plan_removal(reader: &DirReader<'_>, name: &[u8]) -> Result<(Doomed, Vec<Arc<Node>>)> {
    let Search::Found { bucket, entry } = reader.search(name)? else {
        return Err(Refusal::NotFound.into());
    };
    let (node, is_damaged) = match reader.node_of(bucket, &entry) {
        Err(error) if error.is_damage() && entry.kind() != FileKind::Directory => {
            (reader.shared.nodes.get_or_insert(entry.ino()), true)
        }
        node => (node?, false),
    };
    let removal = hash_table::plan_removal(reader, bucket, None)?;
    Ok((Doomed { entry, removal, node: Arc::clone(&node), is_damaged }, vec![node]))
}
