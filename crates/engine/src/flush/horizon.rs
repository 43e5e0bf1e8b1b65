//! The visibility horizon: images of compressed pages do not name transactions below it.
//!
//! A leaf record names its writer and an undo record. Once the writer is finished and all views see it, neither is
//! followed any more. Numbers that differ from record to record are also what a compressor cannot shorten. So images of
//! compressed leaves have zeros there, as if the record had always existed. The page in memory keeps them.
//!
//! Invariant: a transaction below the horizon is finished, all views see it, and its end is in the log as far as an
//! image's own changes must be (flush invariant 1). So recovery, which finds the image, never rolls it back.
//!
//! Records that are deleted or hold a reference keep both, because purge looks for them.

use crate::{
    flush::Flusher,
    mutant::{Rule, is_broken},
    sync::Mutex,
    types::{Lsn, Result, TxnId},
    wal::Until,
};

/// The transactions, as the flush layer below them sees them.
pub(crate) trait Transactions: Send + Sync {
    /// Transactions with lesser numbers are finished, and all views see them. Only grows.
    fn seen_by_all(&self) -> TxnId;
}

/// The horizon: transactions with lesser numbers are below it.
pub(super) struct Horizon(Mutex<State>);

struct State {
    horizon: TxnId,
    /// The next horizon, once the log up to `end` is written.
    finished: TxnId,
    end: Lsn,
}

impl Default for Horizon {
    fn default() -> Horizon {
        Horizon(Mutex::new(State { horizon: TxnId::NONE, finished: TxnId::NONE, end: Lsn(0) }))
    }
}

impl Flusher {
    /// Moves the horizon past the transactions that are finished by now and that all views see, unless others write
    /// meanwhile.
    pub(crate) fn advance_horizon(&self) -> Result<()> {
        self.pager.log().reach(self.pager.log().next(), Until::Written)?;
        self.horizon();
        Ok(())
    }

    /// The horizon. Each call moves it as far as the log allows.
    pub(super) fn horizon(&self) -> TxnId {
        let mut state = self.horizon.0.lock();
        if is_broken(Rule::EndsLogged) {
            return self.transactions.seen_by_all();
        }
        // Twice: while no transaction writes, the horizon then passes every finished one.
        for _ in 0..2 {
            if self.pager.log().has_reached(state.end, Until::Written) {
                state.horizon = state.finished;
                state.finished = self.transactions.seen_by_all();
                // Their ends were logged before they were finished.
                state.end = self.pager.log().next();
            }
        }
        state.horizon
    }
}

#[cfg(test)]
mod tests {
    use lacuna_device::MemVfs;

    use super::*;
    use crate::{Durability, Store, StoreOptions, TableOptions, btree::Tree, page::node::Node};

    #[test]
    fn the_horizon_passes_what_all_see_once_its_end_is_logged() {
        let options =
            StoreOptions { background: false, durability: Durability::Relaxed, ..StoreOptions::default() };
        let store = Store::open(MemVfs::new(), options).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        let engine = table.engine();
        let (pager, flusher) = (engine.pager(), engine.flusher());
        let put = |value: &[u8]| {
            let mut txn = store.begin();
            txn.put(&table, b"k", value).expect("put");
            txn.commit().expect("commit");
        };
        let is_behind = || {
            let leaf = Tree::new(pager, table.space()).leaf_read(b"k").expect("leaf");
            let horizon = [flusher.horizon(), flusher.horizon()];
            Node::new(&leaf).leaf_cell(0).txn < horizon[1]
        };
        let log_all = || pager.log().reach(pager.log().next(), Until::Flushed).expect("log");
        put(b"1");
        assert!(!is_behind(), "its end is not in the log");
        log_all();
        assert!(is_behind());
        let reader = store.begin();
        reader.get(&table, b"k").expect("get");
        put(b"2");
        log_all();
        assert!(!is_behind(), "a view does not see it");
        drop(reader);
        assert!(is_behind());
        let mut older = store.begin();
        older.put(&table, b"l", b"").expect("put");
        put(b"3");
        log_all();
        assert!(!is_behind(), "an older one is running");
        older.rollback().expect("rollback");
        log_all();
        assert!(is_behind());
    }
}
