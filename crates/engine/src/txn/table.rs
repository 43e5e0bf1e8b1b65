//! Handles of tables.

use std::sync::Arc;

use crate::{
    btree::Tree,
    space::{Space, pins::TablePin},
    txn::TxnEngine,
    types::{Error, Result, TableId},
};

/// A table of an open store.
#[derive(Clone)]
pub struct Table {
    engine: Arc<TxnEngine>,
    space: Arc<Space>,
}

impl Table {
    pub(crate) fn new(engine: Arc<TxnEngine>, space: Arc<Space>) -> Table {
        Table { engine, space }
    }

    pub(crate) fn engine(&self) -> &Arc<TxnEngine> {
        &self.engine
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Keeps the file that the table has now from being dropped, as a transaction does.
    ///
    /// # Errors
    /// [`crate::Error::TableDropped`], [`crate::Error::TableLocked`].
    pub(crate) fn pin_newest(&self) -> Result<TablePin> {
        loop {
            let newest = self.space.newest();
            let space = newest.as_ref().unwrap_or(&self.space);
            match space.pin() {
                // It was replaced in between.
                Err(Error::TableDropped { .. }) if space.newest().is_some() => {}
                pinned => return pinned,
            }
        }
    }

    /// Its number when this handle was made. A rebuild ([`crate::Store::alter_table_with`]) gives the table another one.
    pub fn id(&self) -> TableId {
        self.space.id()
    }

    /// About how many records the table has, uncommitted ones included, from a few paths through its tree, in the time
    /// of a few look-ups. Where records of all lengths are mixed well it is within a few percent. [`crate::Txn::count`]
    /// is exact.
    ///
    /// # Errors
    /// [`crate::Error::TableDropped`], [`crate::Error::Closed`].
    pub fn estimated_count(&self) -> Result<u64> {
        self.engine.poison.check_open()?;
        let _call = self.engine.poison.call();
        let space = self.pin_newest()?;
        Tree::new(&self.engine.pager, &space).estimate()
    }
}
