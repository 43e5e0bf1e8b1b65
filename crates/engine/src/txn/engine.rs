//! The state that all transactions of a store share.

use std::{sync::Arc, time::Duration};

use super::{ActiveTxns, Purge, rebuild::Retired};
use crate::{
    flush::Flusher,
    mtr::Pager,
    overflow::Chains,
    poison::Poison,
    pool::read_ahead::ReadAhead,
    space::{Space, Spaces},
    types::StoreOptions,
    undo::UndoFile,
};

/// The layers below, as transactions use them, and the state of all transactions.
pub(crate) struct TxnEngine {
    pub(super) pager: Arc<Pager>,
    pub(super) spaces: Arc<Spaces>,
    pub(super) flusher: Arc<Flusher>,
    pub(super) read_ahead: Arc<ReadAhead>,
    pub(super) chains: Chains,
    pub(super) undo: UndoFile,
    pub(super) txns: Arc<ActiveTxns>,
    pub(super) purge: Purge,
    pub(super) retired: Retired,
    pub(super) options: StoreOptions,
    pub(super) poison: Arc<Poison>,
}

impl TxnEngine {
    /// For the transactions `txns`, with the undo file `undo_space`.
    pub(crate) fn new(
        txns: Arc<ActiveTxns>,
        undo_space: Arc<Space>,
        pager: Arc<Pager>,
        spaces: Arc<Spaces>,
        flusher: Arc<Flusher>,
        read_ahead: Arc<ReadAhead>,
        (options, poison): (StoreOptions, Arc<Poison>),
    ) -> TxnEngine {
        TxnEngine {
            chains: Chains::new(pager.clone(), flusher.clone()),
            undo: UndoFile::new(pager.clone(), flusher.clone(), undo_space),
            pager,
            spaces,
            flusher,
            read_ahead,
            txns,
            purge: Purge::default(),
            retired: Retired::default(),
            options,
            poison,
        }
    }

    pub(crate) fn pager(&self) -> &Arc<Pager> {
        &self.pager
    }

    pub(crate) fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    pub(crate) fn flusher(&self) -> &Arc<Flusher> {
        &self.flusher
    }

    pub(crate) fn read_ahead(&self) -> &Arc<ReadAhead> {
        &self.read_ahead
    }

    pub(crate) fn lock_timeout(&self) -> Duration {
        self.options.lock_timeout
    }

    pub(crate) fn flush_threads(&self) -> usize {
        self.options.flush_threads
    }

    #[cfg(test)]
    pub(crate) fn chains(&self) -> &Chains {
        &self.chains
    }

    pub(crate) fn undo(&self) -> &UndoFile {
        &self.undo
    }

    pub(crate) fn txns(&self) -> &ActiveTxns {
        &self.txns
    }

    /// Asserts that no transaction leaves space reserved for its rollback behind.
    pub(crate) fn check_owed(&self) {
        self.txns.while_none_runs(|| {
            let bytes = self.flusher.owed().bytes();
            debug_assert!(bytes == 0, "invariant 3 of owed: {bytes} bytes are reserved for no transaction");
        });
    }

    pub(crate) fn poison(&self) -> &Poison {
        &self.poison
    }
}
