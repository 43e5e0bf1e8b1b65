//! Opening a store for reading only: nothing is written to its VFS, and nothing synced.
//!
//! So it cannot recover from a crash. A store is opened this way only when there is nothing to recover: its log is
//! empty, and no transaction was running when it was closed. Then its files are complete, and stay as they are.

use std::sync::Arc;

use lacuna_device::Vfs;

use crate::{
    log_device,
    page::undo::State,
    poison::Poison,
    recovery::{Parts, fit_options, load_catalog, open_keys, open_log, open_spaces},
    txn::TxnEngine,
    types::{Doublewrite, Error, PageNo, Result, StoreOptions, TableId},
    undo::{self, UNDO_TABLE},
    wal::{Log, LogReader, control::Control},
};

/// Opens the store in `vfs`, which was closed.
pub(crate) fn open(vfs: Arc<dyn Vfs>, mut options: StoreOptions) -> Result<Arc<TxnEngine>> {
    let vfs_bytes = fit_options(&*vfs, &mut options)?;
    log_device::must_be_here(&*vfs)?;
    let what = vfs.name().to_owned();
    // Nothing is flushed, and the doublewrite file need not exist.
    options.doublewrite = Doublewrite::Off;
    let no_store = || Error::BadStore { what: what.clone(), reason: "holds no store".into() };
    let not_closed = |reason| Error::NotClosed { what: what.clone(), reason };
    let (control, root) = Control::open(&*vfs)?.ok_or_else(no_store)?;
    let keys = open_keys(&vfs, root, options.key.take().as_ref())?;
    let spaces = open_spaces(&*vfs, keys)?;
    let wal = open_log(&vfs, root, &spaces)?;
    let mut log = LogReader::new(wal.clone(), root.checkpoint);
    if log.next_group()?.is_some() || log.group_behind_end()?.is_some() {
        return Err(not_closed("its log is not empty"));
    }
    wal.must_be_writable(root.checkpoint)?;
    let poison = Arc::new(Poison::read_only());
    let no_groups = (Default::default(), root.checkpoint);
    let log = Log::start(wal, root.checkpoint, no_groups, root.epoch, options.log_bytes, poison.clone())?;
    let parts = Parts::new((vfs, vfs_bytes), options, spaces, log, control, poison, root.checkpoint)?;
    let [catalog, undo_space] = [TableId::CATALOG, UNDO_TABLE].map(|id| parts.spaces.get(id));
    let (Some(catalog), Some(undo_space)) = (catalog, undo_space) else { return Err(no_store()) };
    let is_made = parts.pager.read_if_written(&catalog, PageNo(0))?.is_some()
        && parts.pager.read_if_written(&undo_space, PageNo(0))?.is_some();
    if !is_made {
        return Err(not_closed("its making was interrupted"));
    }
    let engine = parts.into_engine(undo_space);
    let (logs, newest) = undo::survey(engine.undo())?;
    if logs.iter().any(|(_, state)| *state == State::Active) {
        return Err(not_closed("a transaction was running"));
    }
    engine.txns().skip_past(newest);
    load_catalog(&engine)?;
    Ok(engine)
}
