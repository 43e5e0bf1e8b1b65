//! A directory on which a second writer is at work while pages are being written: always at the same moments of a seed,
//! as it runs inside of the first one's write.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use lacuna_device::{BatchOp, Vfs};
use lacuna_engine::{Error, Store, TableOptions, TransactionOptions};
use lacuna_sim::{HookedVfs, Hooks, SeededRng, SimVfs};
use parking_lot::Mutex;

use super::Rig;

/// The second writer's table. None of its transactions commits.
const TABLE: &str = "beside";

pub(crate) struct Beside {
    vfs: Arc<SimVfs>,
    rng: Mutex<SeededRng>,
    store: Mutex<Option<Store>>,
    is_working: AtomicBool,
}

impl Beside {
    pub(crate) fn new(seed: u64) -> Arc<Beside> {
        Arc::new(Beside {
            vfs: SimVfs::new(seed),
            rng: Mutex::new(SeededRng::new(!seed)),
            store: Mutex::new(None),
            is_working: AtomicBool::new(false),
        })
    }

    /// From now on, and until the next recovery, there is work beside that of others.
    pub(crate) fn work_on(&self, store: &Store) {
        store.open_table(TABLE, TableOptions::default().page_bytes(4096)).expect("table");
        *self.store.lock() = Some(store.clone());
    }

    /// Once in a while, changes so much that the log runs short: pages are flushed, and the checkpoint moves as far as
    /// the pages in flight allow. Then rolls everything back.
    fn work(&self) {
        if self.is_working.swap(true, SeqCst) {
            return;
        }
        let store = self.store.lock().clone().filter(|_| self.rng.lock().chance(30));
        if let Some(store) = store {
            let outcome = self.change(&store);
            assert!(outcome.is_ok() || self.may_fail(), "{outcome:?}");
        }
        self.is_working.store(false, SeqCst);
    }

    fn change(&self, store: &Store) -> Result<(), Error> {
        let table = store.table(TABLE)?.expect("made before");
        let mut rng = self.rng.lock();
        let mut txn = store.begin_with(TransactionOptions::READ_COMMITTED);
        for _ in 0..rng.below(200) {
            let value = vec![rng.below(256) as u8; rng.below(900) as usize];
            txn.put(&table, &rng.below(200).to_be_bytes(), &value)?;
        }
        txn.rollback()
    }

    fn may_fail(&self) -> bool {
        self.vfs.is_off() || self.vfs.is_failing()
    }

    /// Ends the second writer with the store, before the VFS is another one.
    fn end(&self) {
        let store = self.store.lock().take();
        drop(store);
    }
}

/// Pages are written by batches, and nothing else is.
impl Hooks for Beside {
    fn before_batch(&self, _: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        self.work();
        Ok(())
    }
    fn after_batch(&self, _: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        self.work(); // they are not synced yet
        Ok(())
    }
}

impl Rig for Arc<Beside> {
    fn open_vfs(&self) -> lacuna_device::Result<Arc<dyn Vfs>> {
        Ok(HookedVfs::new(self.vfs.clone(), self.clone()))
    }
    fn set_cut_after(&self, ops: u64) {
        self.vfs.set_cut_after(ops);
    }
    fn is_off(&self) -> bool {
        self.vfs.is_off()
    }
    fn power_cycle(&self) {
        self.end();
        self.vfs.power_cycle();
    }
    fn kill(&self) {
        self.end();
        self.vfs.kill();
    }
    fn fail(&self, rng: &mut SeededRng) {
        Rig::fail(&self.vfs, rng);
    }
    fn heal(&self) {
        self.end();
        self.vfs.heal();
    }
    fn may_fail(&self) -> bool {
        Beside::may_fail(self)
    }
    fn upkeep(&self, _: &mut SeededRng) {}
    fn check(&self) {}
}
