//! Space that rollbacks may come to need.
//!
//! A change that makes a record shorter lets others have its space, in its leaf or as a leaf of their own; one that makes
//! it compress better lets its page's image shrink, and others have the hole. A rollback asks nobody for space, and needs
//! all of that again. So it stays reserved until the transaction's end, and new records find less free:
//!
//! 1. For each record twice the bytes by which it became shorter: leaves that rollbacks split may end half full. In blocks
//!    of row-compressed tables, where records that compress better make space for others as well, twice all bytes that
//!    were replaced.
//! 2. What images have shrunk by while transactions ran that changed records, but no more than the bytes of what these
//!    changed.
//! 3. While no transaction runs, none: what stayed reserved then would be refused to everybody until the store is opened
//!    again. Builds with assertions look when a store is checked or closed.
//!
//! Each change counts, also of a record that was changed before, and so do images that shrink for other reasons meanwhile:
//! what a rollback needs at most of all that, nobody knows. Changes of plain tables count too: their images shrink once
//! they are altered, and taking a change back pays what it owed, however its table is kept by then.
//!
//! After a crash nothing is reserved: recovery rolls back before anybody writes, in what was free at the crash.
//!
//! The space for deleted records and long values is not given back before a commit. What the pages that are dirty take
//! beyond that, each at its full size, is reserved anyway (`capacity`). It also covers what goes unseen: transactions
//! that owe less than [`UNIT`], and pages that all shrink by a whole unit of space because of a few bytes.

use crate::{
    mutant::{Rule, is_broken},
    page::undo::{Change, UndoRecord},
    space::Space,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// A transaction tells what it owes in steps of so many bytes: most never do.
const UNIT: u64 = 4 << 10;

/// Bytes that a rollback of one change, or of all of a transaction, may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Of leaves.
    leaves: u64,
    /// Of images, at most.
    images: u64,
}

impl Amount {
    /// Of the change that `undo` takes back, which made the record so much `shorter`.
    pub(crate) fn of(space: &Space, undo: &UndoRecord<'_>, shorter: usize) -> Amount {
        let (shorter, kept) = (shorter as u64, undo.old_value.len() as u64);
        match undo.change {
            Change::Update | Change::Edit if space.blocks().is_some() => {
                Amount { leaves: 2 * kept, images: 0 }
            }
            Change::Update | Change::Edit => {
                Amount { leaves: 2 * shorter, images: kept.saturating_sub(shorter) }
            }
            _ => Amount::default(),
        }
    }
}

/// What one transaction owes.
#[derive(Default)]
pub(crate) struct Debt {
    now: Amount,
    /// What of it [`Owed`] knows.
    told: Amount,
}

/// What all transactions owe.
#[derive(Default)]
pub(crate) struct Owed {
    state: Mutex<State>,
    bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    of_transactions: Amount,
    /// Bytes that images have shrunk by since no transaction owed any.
    shrunk: u64,
}

impl Owed {
    pub(crate) fn bytes(&self) -> u64 {
        if is_broken(Rule::RollbacksHaveSpace) { 0 } else { self.bytes.load(Ordering::Relaxed) }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let Amount { leaves, images } = state.of_transactions;
        if images == 0 {
            state.shrunk = 0;
        }
        self.bytes.store(leaves + images.min(state.shrunk), Ordering::Relaxed);
    }

    /// Notes that images have shrunk by `bytes`.
    pub(super) fn note_shrunk(&self, bytes: u64) {
        if bytes > 0 {
            self.change(|state| state.shrunk += bytes);
        }
    }

    fn tell(&self, debt: &mut Debt) {
        let Debt { now, told } = *debt;
        self.change(|State { of_transactions, .. }| {
            of_transactions.leaves = of_transactions.leaves + now.leaves - told.leaves;
            of_transactions.images = of_transactions.images + now.images - told.images;
        });
        debt.told = now;
    }

    /// The transaction made a change.
    pub(crate) fn owe(&self, debt: &mut Debt, amount: Amount) {
        debt.now.leaves += amount.leaves;
        debt.now.images += amount.images;
        if debt.now.leaves >= debt.told.leaves + UNIT || debt.now.images >= debt.told.images + UNIT {
            self.tell(debt);
        }
    }

    /// It took the change back.
    pub(crate) fn pay(&self, debt: &mut Debt, amount: Amount) {
        // Of a transaction that a crash interrupted nothing is known.
        debt.now.leaves = debt.now.leaves.saturating_sub(amount.leaves);
        debt.now.images = debt.now.images.saturating_sub(amount.images);
        if debt.told.leaves >= debt.now.leaves + UNIT || debt.told.images >= debt.now.images + UNIT {
            self.tell(debt);
        }
    }

    /// The transaction has ended, or is about to be seen by others as ended.
    pub(crate) fn settle(&self, debt: &mut Debt) {
        if is_broken(Rule::DebtsSettled) {
            return;
        }
        debt.now = Amount::default();
        if debt.told != debt.now {
            self.tell(debt);
        }
    }
}

#[cfg(test)]
mod tests {
    use lacuna_device::MemVfs;
    use lacuna_page::Algorithm;
    use lacuna_sim::SeededRng;

    use crate::{Store, StoreOptions, Table, TableOptions, Txn};

    #[test]
    fn a_change_pays_what_it_owed_although_its_table_was_altered() {
        let options = StoreOptions { background: false, ..StoreOptions::default() };
        let store = Store::open(MemVfs::new(), options).expect("open");
        let compressed = TableOptions::compressed(Algorithm::Lz4);
        let table = |name, kind| store.create_table(name, kind).expect("create");
        let (shrinks, plain) = (table("c", compressed), table("p", TableOptions::default()));
        let put = |txn: &mut Txn, table: &Table, value: &[u8]| {
            (0..200u32).for_each(|key| txn.put(table, &key.to_be_bytes(), value).expect("put"));
        };
        let mut noise = [0; 800];
        SeededRng::new(1).fill(&mut noise);
        let mut txn = store.begin();
        [&shrinks, &plain].iter().for_each(|table| put(&mut txn, table, &noise));
        txn.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
        let mut txn = store.begin();
        put(&mut txn, &shrinks, &[b'c'; 800]);
        store.checkpoint().expect("checkpoint");
        let owed = || plain.engine().flusher().owed().bytes();
        let before = owed();
        assert!(before > 0);
        let savepoint = txn.savepoint().expect("savepoint");
        put(&mut txn, &plain, &[b'c'; 800]);
        store.alter_table("p", compressed.kind).expect("alter");
        txn.rollback_to(savepoint).expect("rollback");
        assert_eq!(owed(), before);
        txn.commit().expect("commit");
        assert_eq!(owed(), 0);
    }
}
