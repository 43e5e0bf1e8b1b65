//! Writers beside a VFS whose free space comes and goes.

use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    sync::{Mutex, atomic::AtomicBool},
};

use lacuna_device::FileId;

use super::*;

/// Reports too little free space for new records while `is_full`: enough for deletes, however much of the pool is dirty.
#[derive(Default)]
struct Scarce {
    is_full: AtomicBool,
}

impl Hooks for Scarce {
    fn before_batch(&self, _ops: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        thread::yield_now();
        Ok(())
    }

    fn free_bytes(&self) -> lacuna_device::Result<Option<u64>> {
        let free = if self.is_full.load(SeqCst) { 3 << 19 } else { 1 << 30 };
        Ok(Some(free))
    }
}

/// Several that find no space purge and flush at the same time, for each other's deletes too, beside a reader: each ends
/// with its record or with [`Error::Full`], and what was refused leaves nothing behind.
#[test]
fn writers_without_space_purge_for_each_other() {
    const RECORDS: u64 = 20;
    explore(10, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let scarce = Arc::new(Scarce::default());
        // Without holes the undo file is cut for them.
        let small = StoreOptions { history_bytes: 4 << 10, trim: dice().chance(50), ..options() };
        let store = Store::open(HookedVfs::new(vfs.clone(), scarce.clone()), small).unwrap();
        let table = store.open_table("t", TableOptions::default().page_bytes(64 << 10)).unwrap();
        (0..2).for_each(|writer| {
            let mut txn = store.begin();
            (0..RECORDS).for_each(|record| txn.put(&table, &key(writer, record), &value(0)).unwrap());
            txn.commit().unwrap();
        });
        scarce.is_full.store(dice().chance(80), SeqCst);
        let writers = (0..2).map(|writer| {
            let (store, table, scarce) = (store.clone(), table.clone(), scarce.clone());
            thread::spawn(move || {
                let mut want: BTreeMap<_, _> = (0..RECORDS).map(|record| (key(writer, record), 0)).collect();
                for round in 0..3 {
                    let mut txn = store.begin();
                    for record in 2 * round..2 * round + 2 {
                        assert!(txn.delete(&table, &key(writer, record)).unwrap());
                        want.remove(&key(writer, record));
                    }
                    txn.commit().unwrap();
                    let mut txn = store.begin();
                    match txn.put(&table, &key(writer, RECORDS + round), &value(1)) {
                        Ok(()) => {
                            txn.commit().unwrap();
                            want.insert(key(writer, RECORDS + round), 1);
                        }
                        Err(Error::Full { .. }) => txn.rollback().unwrap(),
                        Err(error) => panic!("{error}"),
                    }
                    scarce.is_full.store(dice().chance(50), SeqCst);
                }
                want
            })
        });
        let writers: Vec<_> = writers.collect();
        let view = store.begin();
        match view.get(&table, &key(0, RECORDS - 1)) {
            Ok(found) => assert_eq!(found.map(|value| version(&value)), Some(0)),
            Err(error) => assert!(matches!(error, Error::SnapshotTooOld), "{error}"),
        }
        drop(view);
        let want = join(writers).into_iter().flatten().collect();
        scarce.is_full.store(false, SeqCst);
        check(store, table, &vfs, &want);
    });
}

const PAGE_BYTES: u64 = 64 << 10;

/// Has space for so many new pages; a batch that needs more fails, and that stops the store.
#[derive(Default)]
struct Small {
    free_pages: AtomicU64,
    /// File and offset of each page that has its space.
    pages: Mutex<BTreeSet<(FileId, u64)>>,
}

impl Hooks for Small {
    fn before_batch(&self, ops: &[BatchOp<'_>]) -> lacuna_device::Result<()> {
        thread::yield_now();
        let mut pages = self.pages.lock().unwrap();
        for op in ops {
            if let BatchOp::Write { file, offset, data } = op
                && data.len() as u64 == PAGE_BYTES
                && pages.insert((*file, *offset))
                && self.free_pages.fetch_update(SeqCst, SeqCst, |free| free.checked_sub(1)).is_err()
            {
                return Err(lacuna_device::Error::Full { what: "it".into() });
            }
        }
        Ok(())
    }

    fn free_bytes(&self) -> lacuna_device::Result<Option<u64>> {
        // And for a little log.
        Ok(Some(self.free_pages.load(SeqCst) * PAGE_BYTES + PAGE_BYTES / 2))
    }
}

/// Several that find no space flush what fits, at the same time: together no more than that.
#[test]
fn flushes_in_parts_share_what_is_free() {
    explore(20, || {
        let vfs: Arc<dyn Vfs> = MemVfs::new();
        let small = Arc::new(Small { free_pages: AtomicU64::new(1 << 20), ..Small::default() });
        let store = Store::open(HookedVfs::new(vfs.clone(), small.clone()), options()).unwrap();
        let table = store.open_table("t", TableOptions::default().page_bytes(PAGE_BYTES as usize)).unwrap();
        fill(&store, &table, 40, 0);
        small.free_pages.store(2 + dice().below(3), SeqCst);
        let flushes = (0..3).map(|_| {
            let store = store.clone();
            thread::spawn(move || {
                let refused = store.optimize("t", |_| ControlFlow::Continue(())).unwrap_err();
                assert!(matches!(refused, Error::Full { .. }), "{refused}");
            })
        });
        join(flushes.collect());
        assert!(small.free_pages.load(SeqCst) == 0, "what fits is flushed");
        small.free_pages.store(1 << 20, SeqCst);
        let want = (0..40).map(|record| (key(0, record), 0)).collect();
        check(store, table, &vfs, &want);
    });
}
