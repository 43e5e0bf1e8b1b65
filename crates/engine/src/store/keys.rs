//! Keys of encrypted tables.

use std::sync::Arc;

use lacuna_crypt::{KeyChange, Secret, SlotInfo};
use lacuna_device::Vfs;

use super::{Store, lock::StoreLock};
use crate::{
    keys::{self, DataCipher, Keys},
    types::{EngineKey, Error, Result, TableId},
    wal::control::{Control, ENCRYPTED, Root},
};

impl Store {
    /// Makes keys for a store that exists and has none; durable on return. From the next opening on its log and undo are
    /// encrypted, and tables can be. A store that is made with [`crate::StoreOptions::key`] has keys from the beginning.
    ///
    /// # Errors
    /// [`Error::BadStore`] for a VFS without a store, or with keys; [`Error::Key`]; [`Error::Busy`].
    pub fn create_keys(vfs: &Arc<dyn Vfs>, key: &EngineKey) -> Result<()> {
        let _claim = StoreLock::new(vfs)?;
        let refuse = |reason: &str| Error::BadStore { what: vfs.name().into(), reason: reason.into() };
        let (control, root) = Control::open(&**vfs)?.ok_or_else(|| refuse("holds no store"))?;
        if root.features & ENCRYPTED != 0 {
            return Err(refuse("has keys already"));
        }
        Keys::create(vfs, key)?;
        control.write(Root { features: root.features | ENCRYPTED, ..root }, true)
    }

    /// Changes the secrets that open the keys of the store in `vfs`, which `secret` opens; returns the slot that
    /// changed. No data is written anew: keys of data stay, and are wrapped anew.
    ///
    /// # Errors
    /// [`Error::NoKeys`], [`Error::Key`].
    pub fn change_keys(vfs: &Arc<dyn Vfs>, secret: &Secret, change: &KeyChange<'_>) -> Result<usize> {
        must_have_keys(vfs)?;
        keys::change(&**vfs, secret, change)
    }

    /// The slots of the keys of the store in `vfs`; no secret is needed.
    ///
    /// # Errors
    /// [`Error::NoKeys`].
    pub fn keys(vfs: &Arc<dyn Vfs>) -> Result<Vec<SlotInfo>> {
        must_have_keys(vfs)?;
        keys::list(&**vfs)
    }

    /// Changes whether the table's pages are encrypted, from now on. Those on the device stay as they are until they
    /// are next flushed, or [`Store::optimize`] writes them.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::BadOption`], [`Error::TableLocked`], [`Error::TableInUse`] while it is rebuilt.
    pub fn set_encrypted(&self, name: &str, is_encrypted: bool) -> Result<()> {
        let engine = self.engine()?;
        let _call = engine.poison().call();
        let _one = self.inner.ddl.lock();
        engine.poison().check()?;
        let (mut row, space) = self.existing(name)?;
        if space.is_locked() {
            return Err(Error::TableLocked { id: space.id() });
        }
        if space.rebuild().is_some() {
            return Err(Error::TableInUse { name: name.into() });
        }
        let before = row.options.encrypted;
        row.options.encrypted = is_encrypted;
        row.options.check()?;
        if is_encrypted && space.cipher().is_none() {
            space.set_cipher(self.make_key(space.id())?);
        }
        self.write_rows([(name, Some(row))]).inspect_err(|_| space.set_encrypted(before))?;
        space.set_encrypted(is_encrypted);
        Ok(())
    }

    /// A key for a table that has none; durable on return.
    pub(super) fn make_key(&self, table: TableId) -> Result<Arc<DataCipher>> {
        let keys = self.engine()?.spaces().keys();
        let keys = keys.ok_or_else(|| Error::BadOption {
            what: "encrypted",
            reason: "the store has no keys: make them first".into(),
        })?;
        keys.make(table)
    }
}

fn must_have_keys(vfs: &Arc<dyn Vfs>) -> Result<()> {
    let found = Control::open(&**vfs)?;
    let has_keys = found.is_some_and(|(_, root)| root.features & ENCRYPTED != 0);
    if has_keys { Ok(()) } else { Err(Error::NoKeys { what: vfs.name().into() }) }
}
