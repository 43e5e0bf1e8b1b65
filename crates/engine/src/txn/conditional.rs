//! Writes that depend on the present value, and reads into the caller's memory.

use super::{Txn, read};
use crate::{
    btree::Tree,
    mutant::{Rule, is_broken},
    page::node::Node,
    txn::Table,
    types::Result,
};

/// The outcome of [`Txn::insert_if_absent`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Insertion {
    /// There was no record with that key. Now there is.
    Done,
    /// There is one, with this value. Nothing was changed.
    Present(Vec<u8>),
}

/// The outcome of [`Txn::compare_and_swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Swap {
    /// The record had the expected value, and has the new one now.
    Done,
    /// It has this value, or does not exist. Nothing was changed.
    Other(Option<Vec<u8>>),
}

impl Txn {
    /// Like [`Txn::get`], into memory of the caller, which is used again: `value` is replaced, or emptied where there
    /// is no record. Returns whether there is one. Values that a leaf holds are copied once, and nothing is allocated
    /// when `value` has the capacity.
    ///
    /// (There is no guard that shows a value in place: it would hold the latch of its leaf, and so block all writers of
    /// that leaf, also of other records, until it is dropped; a writer that kept it would wait for itself for ever.)
    ///
    /// ```
    /// # use lacuna_device::MemVfs;
    /// # use lacuna_engine::{Error, Store, StoreOptions, TableOptions};
    /// # let store = Store::open(MemVfs::new(), StoreOptions::default())?;
    /// # let table = store.create_table("t", TableOptions::default())?;
    /// let mut txn = store.begin();
    /// txn.put(&table, b"ada", b"countess")?;
    /// let mut value = Vec::new();
    /// assert!(txn.get_into(&table, b"ada", &mut value)? && value == b"countess");
    /// assert!(!txn.get_into(&table, b"bob", &mut value)? && value.is_empty());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Txn::get`]; `value` may hold anything then.
    pub fn get_into(&self, table: &Table, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let _call = self.engine.poison.call();
        let space = self.space(table)?;
        self.engine.flusher.throttle_memory()?;
        let reader = self.reader();
        let leaf = Tree::new(&self.engine.pager, &space).leaf_read(key)?;
        let node = Node::new(&leaf);
        let Ok(slot) = node.search(key) else {
            reader.check()?;
            return Ok(false);
        };
        let Some(kept) = read::visible(&self.engine, reader, node.leaf_cell(slot))? else { return Ok(false) };
        match kept.into_short(value) {
            None => Ok(true),
            Some(long) => {
                drop(leaf);
                *value = long.read(&self.engine, &space)?;
                Ok(true)
            }
        }
    }

    /// Sets the value of `key` if there is no such record. The key is locked until the end of the transaction in any
    /// case. [`Txn::insert`] is faster where the caller does not need the existing value.
    ///
    /// ```
    /// # use lacuna_device::MemVfs;
    /// # use lacuna_engine::{Error, Insertion, Store, StoreOptions, TableOptions};
    /// # let store = Store::open(MemVfs::new(), StoreOptions::default())?;
    /// # let table = store.create_table("t", TableOptions::default())?;
    /// let mut txn = store.begin();
    /// assert_eq!(txn.insert_if_absent(&table, b"ada", b"1")?, Insertion::Done);
    /// assert_eq!(txn.insert_if_absent(&table, b"ada", b"2")?, Insertion::Present(b"1".to_vec()));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Txn::put`].
    pub fn insert_if_absent(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<Insertion> {
        match self.get_for_update(table, key)? {
            Some(present) => Ok(Insertion::Present(present)),
            None => self.put(table, key, value).map(|()| Insertion::Done),
        }
    }

    /// Gives the record of `key` the value `new`, or deletes it, if it has the value `expected`, or does not exist. The
    /// key is locked until the end of the transaction in any case.
    ///
    /// Under a snapshot it is compared with the value in the snapshot; where others have changed that since, this fails
    /// with [`Error::Conflict`](crate::Error::Conflict). A transaction of one such call is best begun at read
    /// committed.
    ///
    /// ```
    /// # use lacuna_device::MemVfs;
    /// # use lacuna_engine::{Error, Store, StoreOptions, Swap, TableOptions};
    /// # let store = Store::open(MemVfs::new(), StoreOptions::default())?;
    /// # let table = store.create_table("t", TableOptions::default())?;
    /// let mut txn = store.begin();
    /// assert_eq!(txn.compare_and_swap(&table, b"ada", None, Some(b"1"))?, Swap::Done);
    /// assert_eq!(txn.compare_and_swap(&table, b"ada", None, Some(b"2"))?, Swap::Other(Some(b"1".to_vec())));
    /// assert_eq!(txn.compare_and_swap(&table, b"ada", Some(b"1"), None)?, Swap::Done);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Txn::put`].
    pub fn compare_and_swap(
        &mut self,
        table: &Table,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap> {
        let found = match is_broken(Rule::SwapsLock) {
            true => self.get(table, key)?,
            false => self.get_for_update(table, key)?,
        };
        if found.as_deref() != expected {
            return Ok(Swap::Other(found));
        }
        match new {
            Some(value) => self.put(table, key, value)?,
            None if found.is_some() => drop(self.delete(table, key)?),
            None => {}
        }
        Ok(Swap::Done)
    }
}
