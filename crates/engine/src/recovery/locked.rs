//! Tables whose keys are lost, while a store is opened after a crash: the log's changes of them are left out, and
//! transactions are finished without them. Others work, and nothing of a locked table is written unencrypted.
//!
//! Recovery cannot read the catalog yet, which says what is to be encrypted. It goes by the images that it finds. A table
//! that is set aside is missing for replay and for rollbacks, which pass over the changes of missing tables.

use std::sync::Arc;

use lacuna_device::AlignedBuf;

use crate::{
    catalog::FIRST_TABLE,
    pool::Pool,
    space::{Space, Spaces},
    types::{Error, PageNo, Result, TableId},
};

/// Pages that are looked at, at most, of a table without a key.
const PAGES: u64 = 16;

/// The tables that are set aside.
#[derive(Default)]
pub(super) struct Locked(Vec<Arc<Space>>);

impl Locked {
    /// Sets the tables aside that are known to be locked. Others are met later.
    pub(super) fn find(spaces: &Spaces) -> Result<Locked> {
        let mut locked = Locked::default();
        let Some(keys) = spaces.keys() else { return Ok(locked) };
        for space in spaces.all() {
            let is_users = space.id() >= FIRST_TABLE && space.cipher().is_none();
            if is_users && is_locked(&space, keys.is_lost(space.id()))? {
                locked.take(spaces, space);
            }
        }
        Ok(locked)
    }

    fn take(&mut self, spaces: &Spaces, space: Arc<Space>) {
        log::warn!("{}: its key is missing or damaged: what the log has of it is left out", space.name());
        spaces.remove(space.id());
        self.0.push(space);
    }

    /// Sets a table aside of which an encrypted page was met, and drops what `pool` has of it. Returns whether it was
    /// there.
    pub(super) fn add(&mut self, spaces: &Spaces, pool: &Pool, table: TableId) -> bool {
        let Some(space) = spaces.get(table).filter(|space| space.id() >= FIRST_TABLE) else { return false };
        self.take(spaces, space);
        pool.forget_table(table);
        true
    }

    /// Does `work` without the tables that it finds locked.
    pub(super) fn without(
        &mut self,
        spaces: &Spaces,
        pool: &Pool,
        work: impl Fn() -> Result<()>,
    ) -> Result<()> {
        loop {
            match work() {
                Err(Error::TableLocked { id }) if self.add(spaces, pool, id) => {}
                done => return done,
            }
        }
    }

    /// Brings all back, for the catalog to say what they are.
    pub(super) fn bring_back(self, spaces: &Spaces) {
        self.0.into_iter().for_each(|space| drop(spaces.insert(space)));
    }
}

/// Whether the first pages of a table without a cipher are encrypted, or never were written and a key `is_lost`.
fn is_locked(space: &Space, is_lost: bool) -> Result<bool> {
    let mut is_blank = true;
    let mut image = AlignedBuf::zeroed(space.slot_bytes());
    for page in (0..space.pages_in_file().min(PAGES)).map(PageNo) {
        space.file().read_at(space.offset(page), &mut image)?;
        if space.blocks().is_none() && lacuna_page::is_encrypted(&image) {
            return Ok(true);
        }
        is_blank &= image.iter().all(|byte| *byte == 0);
    }
    Ok(is_lost && is_blank)
}
