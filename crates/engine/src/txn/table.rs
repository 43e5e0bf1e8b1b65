//! Handles of tables.

use std::sync::Arc;

use crate::{
    btree::Tree,
    space::Space,
    txn::TxnEngine,
    types::{Result, TableId},
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
        // Like a transaction, so that the table is not dropped meanwhile.
        let newest = self.space.newest();
        let space = newest.as_ref().unwrap_or(&self.space).pin()?;
        Tree::new(&self.engine.pager, &space).estimate()
    }
}
