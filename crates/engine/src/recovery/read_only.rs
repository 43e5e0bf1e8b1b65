//! Opening a store for reading only: nothing is written to its place, not even a sync.
//!
//! So what a crash left cannot be dealt with. A store is opened so only when there is nothing to do: its log is empty,
//! and no transaction was running when it was closed. Then its files say all, and stay as they are.

use std::sync::{Arc, OnceLock};

use lacuna_device::Place;

use crate::{
    catalog::CATALOG_TABLE,
    core::Core,
    flush::Flush,
    overflow::Readers,
    poison::Poison,
    pool::{Pool, read_ahead::Ahead},
    recovery::{fit_options, load_catalog, open_spaces},
    txn::{Purge, Txns},
    types::{
        error::{Error, Result},
        ids::PageNo,
        options::{Doublewrite, StoreOptions},
    },
    undo::{self, State, UNDO_TABLE},
    wal::{Log, LogFiles, Reader, STRETCH_BYTES, control::Control},
};

/// Opens the store in `place`, which was closed.
pub(crate) fn open(place: Arc<dyn Place>, mut options: StoreOptions) -> Result<Arc<Core>> {
    let place_bytes = fit_options(&*place, &mut options)?;
    let what = place.name().to_owned();
    // Nothing is flushed, and the file for it need not be there.
    options.doublewrite = Doublewrite::Off;
    let no_store = || Error::BadStore { what: what.clone(), reason: "holds no store".into() };
    let not_closed = |reason| Error::NotClosed { what: what.clone(), reason };
    let (control, root) = Control::open(&*place)?.ok_or_else(no_store)?;
    let spaces = open_spaces(&*place)?;
    let wal = Arc::new(LogFiles::open(place.clone(), STRETCH_BYTES, root.salt)?);
    let mut log = Reader::new(wal.clone(), root.checkpoint);
    if log.next_group()?.is_some() || log.group_behind_end()?.is_some() {
        return Err(not_closed("its log is not empty"));
    }
    let poison = Arc::new(Poison::read_only());
    let no_groups = (Default::default(), root.checkpoint);
    let log = Log::start(wal, root.checkpoint, no_groups, root.epoch, options.log_bytes, poison.clone())?;
    let core = Arc::new(Core {
        flush: Flush::new(&*place, place_bytes, &options)?,
        pool: Pool::new(options.pool_bytes, root.checkpoint, poison.clone()),
        place,
        options,
        poison,
        is_read_only: true,
        spaces,
        log,
        control,
        txns: Txns::new(),
        purge: Purge::default(),
        chain_readers: Readers::default(),
        ahead: Ahead::default(),
        undo_space: OnceLock::new(),
    });
    let [catalog, undo_space] = [CATALOG_TABLE, UNDO_TABLE].map(|id| core.spaces.get(id));
    let (Some(catalog), Some(undo_space)) = (catalog, undo_space) else { return Err(no_store()) };
    let is_made = core.pool.read_if_written(&catalog, PageNo(0))?.is_some()
        && core.pool.read_if_written(&undo_space, PageNo(0))?.is_some();
    if !is_made {
        return Err(not_closed("its making was interrupted"));
    }
    core.undo_space.set(undo_space).ok().expect("just made");
    let (logs, newest) = undo::survey(&core)?;
    if logs.iter().any(|(_, state)| *state == State::Active) {
        return Err(not_closed("a transaction was running"));
    }
    core.txns.skip_past(newest);
    load_catalog(&core)?;
    Ok(core)
}
