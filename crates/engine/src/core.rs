//! What the parts of an open store share.

use std::sync::{Arc, OnceLock};

use lacuna_device::Place;

use crate::{
    flush::Flush,
    overflow::Readers,
    poison::Poison,
    pool::{Pool, read_ahead::Ahead},
    space::{Space, Spaces},
    txn::{Purge, Txns},
    types::options::StoreOptions,
    wal::{Log, control::Control},
};

/// The parts of an open store. Each documents its own invariants; their lock order, outermost first:
/// page latches, the log's state, the list of dirty pages.
pub(crate) struct Core {
    pub(crate) place: Arc<dyn Place>,
    pub(crate) options: StoreOptions,
    pub(crate) poison: Arc<Poison>,
    /// Nothing is ever written (`poison` refuses it).
    pub(crate) is_read_only: bool,
    pub(crate) spaces: Spaces,
    pub(crate) pool: Pool,
    pub(crate) log: Log,
    pub(crate) control: Control,
    pub(crate) flush: Flush,
    pub(crate) txns: Txns,
    pub(crate) purge: Purge,
    pub(crate) chain_readers: Readers,
    pub(crate) ahead: Ahead,
    pub(crate) undo_space: OnceLock<Arc<Space>>,
}

impl Core {
    pub(crate) fn undo_space(&self) -> &Arc<Space> {
        self.undo_space.get().expect("opened with the store")
    }
}
