//! Counters that only grow, and the ends of their numbers.
//!
//! A store in which one is near its end was not made by counting. What is beyond the greatest number that can be counted
//! to is refused where it is read; from half of that on a store can only be read, so that it never comes so far by
//! being used; and from a quarter on `check` reports it, so that what it calls sound can be used for longer than anybody
//! lives.

use lacuna_device::Vfs;

use super::next_table;
use crate::{
    txn::TxnEngine,
    types::{Error, Lsn, Result, TxnId},
    wal::control::{COUNTER_MAX, Control},
};

/// What is counted, how far, and how far it can be.
pub(crate) type Counter = (&'static str, u64, u64);

/// Those of the log that ends at `end`, and of the control file.
pub(crate) fn of_log(control: &Control, epoch: u64, end: Lsn) -> [Counter; 3] {
    [
        ("writes of the control file", control.sequence(), COUNTER_MAX),
        ("openings", epoch, COUNTER_MAX),
        ("bytes of log", end.0, COUNTER_MAX),
    ]
}

/// That of transactions, `newest` being the last.
pub(crate) fn of_transactions(newest: TxnId) -> Counter {
    ("transactions", newest.0, TxnId::COUNTED_MAX)
}

/// Refuses to change a store of which a counter is near its end.
pub(crate) fn must_be_left(vfs: &dyn Vfs, counters: &[Counter]) -> Result<()> {
    match counters.iter().find(|(_, counter, max)| *counter > max / 2) {
        None => Ok(()),
        Some((name, counter, _)) => {
            let reason = format!("the number of {name} has come to {counter}: the store can only be read");
            Err(Error::BadStore { what: vfs.name().into(), reason })
        }
    }
}

/// Reports a counter that will come near its end one day.
pub(crate) fn check(engine: &TxnEngine) -> Result<()> {
    let [sequence, epoch, end] = of_log(
        engine.flusher().control(),
        engine.flusher().control().root().epoch,
        engine.pager().log().next(),
    );
    let tables = ("tables made", next_table(engine)?, u32::MAX.into());
    let all = [sequence, epoch, end, of_transactions(engine.txns().next()), tables];
    match all.into_iter().find(|(_, counter, max)| *counter > max / 4) {
        None => Ok(()),
        Some((name, counter, _)) => Err(Error::Corrupt {
            what: engine.flusher().vfs().name().into(),
            at: format!("number of {name}"),
            reason: format!("has come to {counter}, which nobody counts to"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lacuna_device::MemVfs;

    use super::*;
    use crate::{
        Store, StoreOptions, TableOptions,
        alloc::Allocator,
        mtr::Mtr,
        page::{ops::PageOp, undo::NEWEST},
        types::PageNo,
        undo::UNDO_TABLE,
    };

    fn open(vfs: &Arc<MemVfs>) -> Result<Store> {
        Store::open(vfs.clone(), StoreOptions { background: false, ..StoreOptions::default() })
    }

    /// A closed store that somebody changed.
    fn forged(change: impl FnOnce(&TxnEngine, Mtr)) -> Arc<MemVfs> {
        let vfs = MemVfs::new();
        let store = open(&vfs).expect("open");
        let table = store.create_table("t", TableOptions::default()).expect("create");
        change(table.engine(), Mtr::new());
        store.close().expect("close");
        vfs
    }

    /// What `check` calls sound can be used, and is sound afterwards; a store that can only be read can be read.
    #[test]
    fn transactions_near_their_end_are_refused() {
        let max = TxnId::COUNTED_MAX;
        for (newest, can_be_read, can_be_changed, is_sound) in [
            (u64::MAX, false, false, false),
            (max + 1, false, false, false),
            (max, true, false, false),
            (max / 2 + 1, true, false, false),
            (max / 2 - 100, true, true, false),
            (max / 4 + 1, true, true, false),
            (max / 4 - 100, true, true, true),
        ] {
            let vfs = forged(|engine, mut mtr| {
                let undo = engine.spaces().get(UNDO_TABLE).expect("undo");
                let mut page = engine.pager().write(&undo, PageNo(1)).expect("of the first slot");
                mtr.apply(&mut page, PageOp::Bytes { offset: NEWEST as u16, data: &newest.to_le_bytes() });
                mtr.commit(engine.pager(), &mut [&mut page]).expect("commit");
            });
            let read = Store::open_read_only(vfs.clone(), StoreOptions::default());
            assert_eq!(read.map(drop).is_ok(), can_be_read, "{newest}");
            let store = open(&vfs);
            assert_eq!(store.is_ok(), can_be_changed, "{newest}");
            let Ok(store) = store else { continue };
            assert_eq!(store.check().is_ok(), is_sound, "{newest}");
            store.create_table("new", TableOptions::default()).expect("create");
            store.close().expect("close");
            assert_eq!(open(&vfs).expect("as before").check().is_ok(), is_sound, "{newest}");
        }
    }

    /// They are counted in 32 bits.
    #[test]
    fn numbers_of_tables_near_their_end_are_reported() {
        for (next, is_left, is_sound) in [
            (u64::MAX, false, false),
            (1 << 32, false, false),
            (u64::from(u32::MAX), true, false),
            (u64::from(u32::MAX) / 4 - 1, true, true),
        ] {
            let vfs = forged(|engine, mut mtr| {
                let catalog = engine.spaces().get(crate::types::TableId::CATALOG).expect("catalog");
                let mut allocator = Allocator::latch(engine.pager(), &catalog).expect("latch");
                allocator.set_extra(&mut mtr, next);
                mtr.commit(engine.pager(), &mut [&mut allocator.header]).expect("commit");
            });
            let store = open(&vfs).expect("open");
            assert_eq!(store.check().is_ok(), is_sound, "{next}");
            let made = store.create_table("new", TableOptions::default());
            assert_eq!(made.is_ok(), is_left, "{next}: {:?}", made.err());
            drop(store);
            open(&vfs).expect("open again");
        }
    }
}
