//! References to an inode, and freeing an inode without references.
//!
//! Names, openings and look-ups keep an inode (`lookups.rs`). One that loses its last name while it is open or known
//! becomes an orphan: its `nlink` is 0, and a sector in the region of orphans marks it. The operation that removes the
//! last reference frees it; after a crash the next open does.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use lacuna_ftl::{Lba, Remains, SECTOR};

use crate::{
    error::{Error, Refusal, Result, is_stale},
    format::{Ino, Inode, Orphan},
    inodes::{Inodes, Node, Update, lookups::Forgotten},
};

/// Orphans left by an earlier use that are read together.
const ORPHANS_AT_ONCE: usize = 512;
/// Forgotten orphans that are freed in one batch; it holds their locks.
const FREED_AT_ONCE: usize = 32;

impl Inodes {
    /// Keeps an inode until [`Inodes::release`].
    pub(crate) fn open_node(&self, ino: Ino) -> Result<()> {
        self.open_loaded(&*self.node(ino)?)
    }

    /// As [`Inodes::open_node`].
    pub(crate) fn open_loaded(&self, node: &Node) -> Result<()> {
        let _record = node.record.read();
        if node.is_removed() {
            return Err(Refusal::Stale.into());
        }
        node.opens.fetch_add(1, SeqCst);
        Ok(())
    }

    /// Ends an opening. The last one frees an inode that has neither a name nor a look-up, and stores times that wait
    /// for it.
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
    pub(crate) fn forget(&self, forgotten: impl IntoIterator<Item = (Ino, u64)>) -> Result<()> {
        let (mut marked, mut unknown) = (Vec::new(), Vec::new());
        for (ino, lookups) in forgotten {
            match self.lookups.forget(ino, lookups) {
                Forgotten::Known => {}
                Forgotten::Unknown => unknown.push(ino),
                Forgotten::Marked => marked.push(ino),
            }
        }
        self.nodes.drop_forgotten(&unknown);
        self.free_forgotten(marked)
    }

    /// See [`crate::posix::Posix::forget_all`].
    pub(crate) fn forget_all(&self) -> Result<()> {
        self.free_forgotten(self.lookups.forget_all())
    }

    /// Frees inodes whose look-ups are all forgotten, unless other references keep them (invariant 2 of
    /// `inodes/lookups.rs`), many in a batch. If one cannot be freed, the others still are.
    fn free_forgotten(&self, mut inos: Vec<Ino>) -> Result<()> {
        let given = inos.len();
        inos.sort_unstable();
        inos.dedup();
        self.lookups.note_freed(given - inos.len());
        let mut outcome = Ok(());
        for inos in inos.chunks(FREED_AT_ONCE) {
            self.preload(inos);
            let mut nodes = Vec::with_capacity(inos.len());
            for ino in inos {
                match self.node(*ino) {
                    Ok(node) => nodes.push(node),
                    Err(error) if is_stale(&error) => {} // another has freed it
                    Err(error) => outcome = Err(error),
                }
            }
            match self.free_unless_kept(&nodes) {
                Err(error) if nodes.len() > 1 && !error.stops_changes() => {
                    for node in &nodes {
                        outcome = outcome.and(self.free_unless_kept(std::slice::from_ref(node)));
                    }
                }
                freed => outcome = outcome.and(freed),
            }
            self.lookups.note_freed(inos.len());
        }
        outcome
    }

    fn free_unless_kept(&self, nodes: &[Arc<Node>]) -> Result<()> {
        self.change_nodes(nodes, |locked| {
            let mut update = Update::new((self.clock)());
            for node in nodes {
                let Ok(inode) = locked.inode(node) else { continue }; // another has freed it
                let is_kept = inode.nlink() > 0 || node.opens.load(SeqCst) > 0 || self.lookups.mark(node.ino);
                if !is_kept {
                    self.end_orphan(&mut update, &inode);
                }
            }
            Ok(Some(update))
        })
    }

    fn end_of_orphan(&self, inode: &Inode) -> Update {
        let mut update = Update::new((self.clock)());
        self.end_orphan(&mut update, inode);
        update
    }

    fn end_orphan(&self, update: &mut Update, inode: &Inode) {
        update.trim(inode.ino().orphan_lba(), 1);
        update.free(inode, self);
    }

    /// Frees the inodes that had no name and were open when the file system was last used. Those that damage keeps from
    /// being freed, or from being found, are left for the next open; the check reports the damage.
    pub(crate) fn free_orphans(&self) -> Result<()> {
        let (mut rest, mut left) = (Ino::ORPHANS.region(), None);
        while rest.start < rest.end {
            let some = self.read_orphans(&mut rest, &mut left)?;
            self.preload(&some.iter().map(|(ino, _)| *ino).collect::<Vec<_>>());
            for (ino, orphan) in some {
                pass(self.free_orphan(ino, &orphan), &mut left)?;
            }
        }
        if let Some(error) = left {
            let store = self.volume.name();
            log::warn!("{store}: files without a name may be left for the next opening to free: {error}");
        }
        Ok(())
    }

    /// The next orphans of `rest` that can be read, by their numbers.
    fn read_orphans(&self, rest: &mut Range<Lba>, left: &mut Option<Error>) -> Result<Vec<(Ino, Orphan)>> {
        let bytes = ORPHANS_AT_ONCE * SECTOR;
        let read = self.volume.ftl().read_past_damage(rest.clone(), bytes).map_err(Error::from);
        let Some(Remains { mapped, lost }) = pass(read, left)? else {
            rest.start = rest.end;
            return Ok(Vec::new());
        };
        rest.start = mapped.end;
        lost.into_iter().try_for_each(|lost| pass::<()>(Err(lost.error.into()), left).map(drop))?;
        let mut orphans = Vec::new();
        for (start, data) in &mapped.runs {
            let (sectors, _) = data.as_chunks();
            for (lba, bytes) in (start.0..).map(Lba).zip(sectors) {
                let Some(ino) = Ino::new(Ino::of(lba).1) else { continue };
                orphans
                    .extend(pass(self.volume.verify_orphan(ino, bytes), left)?.map(|orphan| (ino, orphan)));
            }
        }
        Ok(orphans)
    }

    fn free_orphan(&self, ino: Ino, orphan: &Orphan) -> Result<()> {
        let node = self.node(ino)?;
        self.change_nodes(std::slice::from_ref(&node), |locked| {
            let inode = locked.inode(&node)?;
            if !orphan.is_of(ino, inode.generation()) || inode.nlink() > 0 || ino == Ino::ROOT {
                return Err(self.volume.corrupt("orphans", ino.number(), "the inode has a name"));
            }
            Ok(Some(self.end_of_orphan(&inode)))
        })
    }

    /// Waits, at most `timeout`, until an orphan is freed because it was forgotten; see
    /// [`crate::posix::Posix::wait_for_forgotten`].
    pub(crate) fn wait_for_freed(&self, timeout: Duration) -> bool {
        self.lookups.wait_for_freed(timeout)
    }
}

/// What `result` holds. Damage and refusals are passed over, and the first one of them kept in `left`.
fn pass<T>(result: Result<T>, left: &mut Option<Error>) -> Result<Option<T>> {
    match result {
        Err(error) if error.is_damage() || matches!(error, Error::Refused(_)) => {
            left.get_or_insert(error);
            Ok(None)
        }
        result => result.map(Some),
    }
}
