//! One opening of the store, and the state that its threads share.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, ControlFlow},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use lacuna_engine::{Direction, Error, Store, StoreOptions, Table, TransactionOptions};
use parking_lot::{Mutex, RwLock};

use super::{
    boundary::{Found, LEVELS},
    plan::{CHURNED, MARKS, Plan, TABLES},
    record::{Key, Seen, Stamp, State},
    value,
};
use crate::rigs::{self, Rig};

pub(crate) type SharedRig = Arc<dyn Rig + Send>;

pub(crate) struct Session {
    pub(crate) plan: Arc<Plan>,
    pub(crate) epoch: u64,
    pub(crate) rig: SharedRig,
    pub(crate) store: Store,
    tables: [Table; 2],
    pub(crate) marks: Table,
    pub(crate) churned: RwLock<Option<Table>>,
    clock: AtomicU64,
    /// Threads that still run transactions.
    pub(crate) working: AtomicUsize,
    pub(crate) dropped: Mutex<BTreeSet<u32>>,
    pub(crate) durable_until: AtomicU64,
    /// Errors that nothing explains.
    pub(crate) failures: Mutex<Vec<String>>,
}

/// Opens the store in the rig, whatever state that is in, and makes the tables that a case needs.
pub(crate) fn open(rig: &dyn Rig, plan: &Plan, rng: &mut lacuna_sim::SeededRng) -> Store {
    let quiet = StoreOptions { background: false, ..plan.options.clone() };
    let open_all = |vfs, options: &StoreOptions| -> Result<Store, Error> {
        let store = Store::open(vfs, options.clone())?;
        for (name, options) in TABLES.iter().zip(plan.tables).chain([(&MARKS, plan.marks)]) {
            // It may have been altered since.
            if store.table(name)?.is_none() {
                store.create_table(name, options)?;
            }
        }
        Ok(store)
    };
    let store = rigs::recover(rig, rng, |vfs| open_all(vfs, &quiet));
    if !plan.options.background {
        return store;
    }
    drop(store);
    let vfs = rig.open_vfs().expect("it was recovered");
    open_all(vfs, &plan.options).expect("it was recovered")
}

impl Session {
    pub(crate) fn new(rig: SharedRig, plan: Arc<Plan>, store: Store, epoch: u64) -> Session {
        let table = |name: &str| store.table(name).expect("catalog").expect("made when it was opened");
        Session {
            plan,
            epoch,
            rig,
            tables: TABLES.map(table),
            marks: table(MARKS),
            churned: RwLock::new(store.table(CHURNED).expect("catalog")),
            clock: AtomicU64::new(1),
            working: AtomicUsize::new(0),
            dropped: Mutex::default(),
            durable_until: AtomicU64::new(0),
            failures: Mutex::default(),
            store,
        }
    }

    pub(crate) fn now(&self) -> Stamp {
        self.clock.fetch_add(1, SeqCst)
    }

    /// Notes an error, unless the VFS was made to fail. The history recorded until then is checked all the same, and
    /// may show more than the error.
    pub(crate) fn fail(&self, doing: &str, error: &Error) {
        if !self.rig.may_fail() {
            self.failures.lock().push(format!("{doing}: {error:?}"));
        }
    }

    /// The table of a plan's number, if there is one now.
    pub(crate) fn table(&self, number: usize) -> Option<Table> {
        self.tables.get(number).cloned().or_else(|| self.churned.read().clone())
    }

    /// The whole store, while no transaction writes.
    pub(crate) fn look(&self) -> Found {
        let churned = self.churned.read().clone();
        let tables: Vec<&Table> = self.tables.iter().chain([&self.marks]).chain(&churned).collect();
        let [by_snapshot, committed] = LEVELS.map(|isolation| {
            let txn = self.store.begin_with(TransactionOptions { isolation });
            let mut state = State::new();
            for table in &tables {
                for direction in [Direction::Forward, Direction::Backward] {
                    let mut found = BTreeMap::new();
                    let each = |bytes: &[u8], value: &[u8]| {
                        let number = value::key_number(bytes).expect("a key of ours");
                        let key = super::worker::key_of(table, number);
                        match value::decode(key, value) {
                            Seen::Version(write, list) => drop(found.insert(key, (write, list))),
                            other => panic!("{key:?} is {other:?}"),
                        }
                        ControlFlow::Continue(())
                    };
                    txn.scan(table, Bound::Unbounded, Bound::Unbounded, direction, each).expect("scan");
                    let before = state.range(first(table)..=last(table)).count();
                    assert!(before == 0 || found.iter().all(|(key, value)| state.get(key) == Some(value)));
                    assert!(before == 0 || before == found.len(), "a scan differs by direction");
                    state.extend(found);
                }
            }
            state
        });
        assert!(by_snapshot == committed, "isolations differ while nobody writes");
        let tables = tables.iter().map(|table| number(table)).collect();
        Found { state: by_snapshot, tables, marks: number(&self.marks) }
    }
}

thread_local! {
    /// What this thread calls the tables of the session, by the numbers of their handles.
    static NUMBERS: RefCell<BTreeMap<u32, u32>> = RefCell::default();
}

/// The number of a table, which stays the same when the table is rebuilt and opened again; those of the engine are 16
/// and more.
pub(crate) fn number(table: &Table) -> u32 {
    let id = table.id().0;
    NUMBERS.with_borrow(|numbers| numbers.get(&id).copied().unwrap_or(id))
}

impl Session {
    /// To be called first in each thread that uses the session.
    pub(crate) fn number_tables(&self) {
        let tables = self.tables.iter().chain([&self.marks]);
        NUMBERS.set(tables.zip(1..).map(|(table, number)| (table.id().0, number)).collect());
    }
}

fn first(table: &Table) -> Key {
    Key { table: number(table), number: 0 }
}

fn last(table: &Table) -> Key {
    Key { table: number(table), number: u32::MAX }
}
