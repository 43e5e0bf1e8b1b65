//! Opening a store: from the state that a crash left to one that holds every acknowledged commit and no other
//! transaction.
//!
//! 1. The control file names the checkpoint. Without one the store is new, or its creation was interrupted before it
//!    held anything.
//! 2. The log is read to find its end, and which images are on the device.
//! 3. Torn pages are restored from the doublewrite file, if there is one, and pages that may be whole in a cache only
//!    are written again. Bytes after the log's end are wiped and the opening's epoch is made durable before the first
//!    new record, so stale bytes are never taken for new log.
//! 4. The log is replayed (`replay`): an operation is applied when the page's LSN is older. This brings back
//!    the pages of all tables, undo included, as they were when the last record was logged.
//! 5. The catalog is read as it is without the transactions that the undo file says were running. Files of tables that it
//!    does not know are removed: making or dropping these tables was interrupted.
//! 6. Those transactions are rolled back, by logged changes; deletions of committed ones are purged, and their history,
//!    which no view needs any more, is dropped.
//!
//! A crash during any step leaves a state that the same steps handle again: replay is idempotent by page LSN, a
//! rollback continues where it stopped, and the checkpoint moves only when pages are on the device.
//!
//! A process that was killed, or whose sync failed, leaves data in a cache that a later power cut still loses. An
//! `ordered` VFS handles that itself. Elsewhere recovery relies on nothing that it has only read: names are synced
//! before they are listed, the control file is rewritten with the epoch, groups and pages as above.

pub(crate) mod counters;
pub(crate) mod read_only;
mod replay;

use std::{
    collections::{HashSet, VecDeque},
    ops::{Bound, ControlFlow},
    sync::Arc,
    time::{Duration, Instant},
};

use lacuna_device::{StreamHint, Vfs};
use lacuna_page::Algorithm;

use crate::{
    alloc::Allocator,
    btree::{Direction, Tree},
    catalog::{self, CATALOG_PAGE_BYTES, FIRST_TABLE, Row},
    flush::{self, Debt, Flusher},
    keys::{Keys, LOG_KEY},
    log_device,
    mtr::Pager,
    page::undo::{State, UNDO_PAGE_BYTES},
    poison::Poison,
    pool::{Pool, read_ahead::ReadAhead},
    recovery::replay::replay,
    space::{self, SYSTEM_CODEC, Space, Spaces, corrupt},
    txn::{self, ActiveTxns, TxnEngine},
    types::{
        EngineKey, Error, Layout, Lsn, PageId, PageNo, Result, StoreOptions, TableId, TableKind, UndoPtr,
    },
    undo::{self, UNDO_TABLE},
    wal::{
        Log, LogFiles, LogReader, SEGMENT_BYTES, SHORT_SEGMENT_BYTES, Salt,
        control::{self, Control, Root},
        is_log_file,
        page_writes::PageWrites,
    },
};

/// The work of opening a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStats {
    /// Bytes of log read.
    pub log_bytes: u64,
    /// Mini-transactions in them.
    pub records: u64,
    /// Page operations applied; the others were already on the device.
    pub applied: u64,
    /// Operations that page-write records showed to be on the device: their pages were not read for them.
    pub on_device: u64,
    /// Times that a page was read, or initialised, to replay its log records.
    pub pages: u64,
    /// How long reading and replaying the log took.
    pub replay_time: Duration,
    /// Transactions rolled back.
    pub rolled_back: u64,
    /// Pages put back from the doublewrite file.
    pub restored_pages: u64,
}

/// Opens the store in `vfs`, making a new one when the VFS is empty.
pub(crate) fn open(vfs: Arc<dyn Vfs>, mut options: StoreOptions) -> Result<(Arc<TxnEngine>, RecoveryStats)> {
    let vfs_bytes = fit_options(&*vfs, &mut options)?;
    log_device::must_be_here(&*vfs)?;
    let (control, root) = match Control::open(&*vfs)? {
        Some(found) => found,
        None => {
            let salt = options.log_salt.map_or_else(Salt::random, |salt| Ok(Salt(salt.get())))?;
            make(&vfs, salt, options.key.as_ref())?;
            Control::open(&*vfs)?.expect("just made")
        }
    };
    if !vfs.props().ordered {
        // A killed process may have left changes of names in a cache, which a power cut would still undo.
        vfs.sync()?;
    }
    // The secret is of no use any more.
    let keys = open_keys(&vfs, root, options.key.take().as_ref())?;
    let spaces = open_spaces(&*vfs, keys)?;
    let mut wal = open_log(&vfs, root, &spaces)?;
    let started = Instant::now();
    let mut on_device = PageWrites::default();
    let (groups, end, epoch) = survey_log(wal.clone(), root.checkpoint, &mut on_device)?;
    let mut root = Root { epoch: root.epoch.max(epoch), ..root };
    if wants_short_log_files(&*vfs) && root.features & control::SHORT_LOG_FILES == 0 && groups.is_empty() {
        // Of an empty log no offset lies in a file.
        root.features |= control::SHORT_LOG_FILES;
        wal = open_log(&vfs, root, &spaces)?;
    }
    counters::must_be_left(&*vfs, &counters::of_log(&control, root.epoch, end))?;
    if let Some(keys) = spaces.keys() {
        keys.settle()?; // replay writes pages with them
    }
    let mut stats = RecoveryStats {
        restored_pages: flush::restore(&*vfs, &spaces, root.checkpoint, &on_device)?,
        ..RecoveryStats::default()
    };
    wal.must_be_writable(end)?;
    wal.wipe_behind(end)?;
    let root = Root { epoch: root.epoch + 1, ..root };
    control.write(root, true)?;
    wal.give_all_back(root.checkpoint)?;
    let poison = Arc::new(Poison::default());
    let log = Log::start(
        wal.clone(),
        root.checkpoint,
        (groups, end),
        root.epoch,
        options.log_bytes,
        poison.clone(),
    )?;
    let parts = Parts::new((vfs, vfs_bytes), options, spaces, log, control, poison, end)?;
    replay(&parts, LogReader::new(wal, root.checkpoint), end, &on_device, &mut stats)?;
    stats.replay_time = started.elapsed();
    let undo_space = bootstrap(&parts, &on_device)?;
    let engine = parts.into_engine(undo_space);
    finish_transactions(&engine, &mut stats)?;
    if let Some(keys) = engine.spaces().keys() {
        keys.forget_others(|table| table == LOG_KEY || engine.spaces().get(table).is_some())?;
    }
    Ok((engine, stats))
}

/// Opens the keys of a store that has some.
pub(crate) fn open_keys(vfs: &Arc<dyn Vfs>, root: Root, key: Option<&EngineKey>) -> Result<Option<Keys>> {
    let what = || vfs.name().to_owned();
    match (root.features & control::ENCRYPTED != 0, key) {
        (false, None) => Ok(None),
        // Something has put a store that is not encrypted in the place of the one that the caller means.
        (false, Some(_)) => Err(Error::NoKeys { what: what() }),
        (true, None) => Err(Error::NoKey { what: what() }),
        (true, Some(key)) => Keys::open(vfs, &key.secret).map(Some),
    }
}

/// The log's files.
pub(crate) fn open_log(vfs: &Arc<dyn Vfs>, root: Root, spaces: &Spaces) -> Result<Arc<LogFiles>> {
    let cipher = spaces.keys().map(|keys| keys.system_cipher(LOG_KEY)).transpose()?;
    let segment_bytes = match root.features & control::SHORT_LOG_FILES {
        0 => SEGMENT_BYTES,
        _ => SHORT_SEGMENT_BYTES,
    };
    Ok(Arc::new(LogFiles::open(vfs.clone(), segment_bytes, root.salt)?.with_cipher(cipher)))
}

/// Whether log can be given back by whole files only.
fn wants_short_log_files(vfs: &dyn Vfs) -> bool {
    vfs.props().hole_unit == 0 && vfs.log_bytes_max().is_none()
}

/// The layers below transactions, as they are put together while a store is opened.
struct Parts {
    pager: Arc<Pager>,
    spaces: Arc<Spaces>,
    flusher: Arc<Flusher>,
    txns: Arc<ActiveTxns>,
    read_ahead: Arc<ReadAhead>,
    options: StoreOptions,
    poison: Arc<Poison>,
}

impl Parts {
    /// For a store whose log ends at `end`.
    fn new(
        (vfs, vfs_bytes): (Arc<dyn Vfs>, u64),
        options: StoreOptions,
        spaces: Spaces,
        log: Log,
        control: Control,
        poison: Arc<Poison>,
        end: Lsn,
    ) -> Result<Parts> {
        let spaces = Arc::new(spaces);
        let pool = Arc::new(Pool::new(options.pool_bytes, end, poison.clone()));
        let pager = Arc::new(Pager::new(pool.clone(), log, poison.clone()));
        let txns = Arc::new(ActiveTxns::new());
        let flusher = Flusher::new(
            (vfs, vfs_bytes),
            &options,
            spaces.clone(),
            pager.clone(),
            control,
            txns.clone(),
            poison.clone(),
        )?;
        let read_ahead = Arc::new(ReadAhead::new(pool, spaces.clone(), poison.clone()));
        Ok(Parts { pager, spaces, flusher: Arc::new(flusher), txns, read_ahead, options, poison })
    }

    fn into_engine(self, undo_space: Arc<Space>) -> Arc<TxnEngine> {
        Arc::new(TxnEngine::new(
            self.txns,
            undo_space,
            self.pager,
            self.spaces,
            self.flusher,
            self.read_ahead,
            (self.options, self.poison),
        ))
    }
}

/// Checks options and VFS, and cuts options down to what the VFS allows. Returns the VFS's size in bytes.
pub(crate) fn fit_options(vfs: &dyn Vfs, options: &mut StoreOptions) -> Result<u64> {
    options.check()?;
    if vfs.props().io_align > 512 {
        let reason =
            format!("needs I/O aligned to {} bytes; 512 is the most that works", vfs.props().io_align);
        return Err(Error::BadStore { what: vfs.name().into(), reason });
    }
    let vfs_bytes = match vfs.free_bytes()? {
        Some(free_bytes) => free_bytes.saturating_add(vfs.stats()?.allocated_bytes),
        None => u64::MAX,
    };
    options.log_bytes = flush::log_bytes(options, vfs_bytes);
    if let Some(log_bytes_max) = vfs.log_bytes_max() {
        // Work that was let in while the log was full enough still logs something.
        options.log_bytes = options.log_bytes.min(log_bytes_max / 2);
    }
    options.history_bytes = flush::history_bytes(options, vfs_bytes);
    Ok(vfs_bytes)
}

/// Makes the files of a new store. The control file comes last and makes them one.
fn make(vfs: &Arc<dyn Vfs>, salt: Salt, key: Option<&EngineKey>) -> Result<()> {
    let system = [(TableId::CATALOG, CATALOG_PAGE_BYTES), (UNDO_TABLE, UNDO_PAGE_BYTES)]
        .map(|(id, page_bytes)| space::file_name(id, Layout::of_pages(page_bytes)));
    for name in vfs.list()? {
        let is_ours = is_log_file(&name) || space::parse_file_name(&name).is_some();
        if is_ours && vfs.open(&name, StreamHint::Data)?.len()? > 0 {
            let reason = format!("holds {name} but no {} file: its root is lost", control::NAME);
            return Err(Error::BadStore { what: vfs.name().into(), reason });
        }
    }
    for name in system {
        match vfs.create(&name, StreamHint::Data) {
            Ok(_) | Err(lacuna_device::Error::Exists { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    vfs.sync()?;
    match vfs.remove(control::NAME) {
        Ok(()) | Err(lacuna_device::Error::NotFound { .. }) => {}
        Err(e) => return Err(e.into()),
    }
    if let Some(key) = key {
        Keys::create(vfs, key)?;
    }
    let features = key.map_or(0, |_| control::ENCRYPTED);
    Control::create(&**vfs, Root { epoch: 1, checkpoint: Lsn(0), salt, features })?;
    vfs.sync()?;
    Ok(())
}

pub(crate) fn open_spaces(vfs: &dyn Vfs, keys: Option<Keys>) -> Result<Spaces> {
    let spaces = Spaces::with_keys(keys);
    for name in vfs.list()? {
        if let Some((id, layout)) = space::parse_file_name(&name) {
            let space = Space::new(id, vfs.open(&name, StreamHint::Data)?, layout)?;
            if id == TableId::CATALOG || id == UNDO_TABLE {
                space.set_codec(SYSTEM_CODEC);
            }
            if let Some(keys) = spaces.keys()
                && let Some(cipher) = keys.cipher(id)
            {
                space.set_cipher(cipher);
            }
            if let Some(other) = spaces.insert(Arc::new(space)) {
                let reason = format!("holds {} and {name}, both of {id}", other.name());
                return Err(Error::BadStore { what: vfs.name().into(), reason });
            }
        }
    }
    Ok(spaces)
}

/// Finds where the log's groups start, where it ends, and the opening that wrote the last; collects the page-write records. After a failed sync, groups
/// that read well may be in a cache only; so, unless the VFS is `ordered`, they are written again, to be synced with
/// the wiping.
fn survey_log(
    wal: Arc<LogFiles>,
    checkpoint: Lsn,
    on_device: &mut PageWrites,
) -> Result<(VecDeque<Lsn>, Lsn, u64)> {
    let mut reader = LogReader::new(wal.clone(), checkpoint);
    let mut groups = VecDeque::new();
    loop {
        let at = reader.position();
        let group = reader.next_group()?;
        let is_group = group.is_some();
        for record in group.iter().flat_map(|group| group.records()) {
            on_device.take_in(&record).map_err(|e| bad_log(record.start, e.0))?;
        }
        if is_group && !wal.is_ordered() {
            reader.rewrite(at)?;
        }
        if !is_group {
            if let Some(behind) = reader.group_behind_end()? {
                return Err(bad_log(at, &format!("no whole group, but one begins at byte {}", behind.0)));
            }
            return Ok((groups, at, reader.epoch()));
        }
        groups.push_back(at);
    }
}

pub(crate) fn bad_log(at: Lsn, reason: &str) -> Error {
    Error::Corrupt { what: "log".into(), at: format!("byte {}", at.0), reason: reason.into() }
}

/// Makes the catalog and the undo file of a store that was just created. While the log begins at 0, all of its history
/// was replayed, and a page that is blank then was never made, unless a page-write record names it; in any other case
/// it was lost. A lost catalog must not be made again: all tables would be removed.
fn bootstrap(parts: &Parts, on_device: &PageWrites) -> Result<Arc<Space>> {
    let missing = |name: &str| Error::BadStore {
        what: parts.flusher.vfs().name().into(),
        reason: format!("{name} is missing"),
    };
    let catalog = parts.spaces.get(TableId::CATALOG).ok_or_else(|| missing("the catalog"))?;
    let undo_space = parts.spaces.get(UNDO_TABLE).ok_or_else(|| missing("the undo file"))?;
    let is_new = parts.flusher.checkpoint_lsn() == Lsn(0);
    for space in [&catalog, &undo_space] {
        let is_made = !is_new || on_device.lsn(PageId { table: space.id(), page: PageNo(0) }).is_some();
        if is_made && parts.pager.read_if_written(space, PageNo(0))?.is_none() {
            return Err(corrupt(space, PageNo(0), "blank in a store that has been used"));
        }
    }
    if parts.pager.read_if_written(&catalog, PageNo(0))?.is_none() {
        Tree::format(&parts.pager, &catalog)?;
    }
    if parts.pager.read_if_written(&undo_space, PageNo(0))?.is_none() {
        undo::format(&parts.pager, &undo_space)?;
    }
    Ok(undo_space)
}

fn finish_transactions(engine: &TxnEngine, stats: &mut RecoveryStats) -> Result<()> {
    let (found, newest) = undo::survey(engine.undo())?;
    counters::must_be_left(engine.flusher().vfs(), &[counters::of_transactions(newest)])?;
    for (log, state) in &found {
        if *state == State::Active {
            engine.txns().resume(log.txn());
        }
        engine.undo().slots().take_this(log.slot());
    }
    // Not before: numbers below all running ones count as finished.
    engine.txns().skip_past(newest);
    // Rows as they will be then. Until now pages of tables that may lack their key stayed in memory, and held log.
    load_catalog(engine)?;
    for (log, state) in found {
        if state == State::Active {
            txn::roll_back(engine, log, UndoPtr::NONE, &mut Debt::default())?;
            if let Some(running) = engine.txns().get(log.txn()) {
                engine.txns().finish(&running, std::iter::empty());
            }
            stats.rolled_back += 1;
        }
        // No view exists: every committed transaction can be purged.
        for (committed, newest) in undo::committed_logs(engine.undo(), log, state)? {
            txn::purge(engine, committed, newest)?;
        }
        if state != State::Idle || !log.is_clear(engine.undo())? {
            engine.clear_slot(log.slot())?;
        } else {
            engine.undo().slots().give_back(log.slot());
        }
    }
    Ok(())
}

/// The catalog's rows of tables, by name.
pub(crate) fn read_catalog(engine: &TxnEngine) -> Result<Vec<(String, Row)>> {
    let catalog = engine.spaces().get(TableId::CATALOG).expect("opened with the store");
    let mut rows = Vec::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    txn::scan(engine, &catalog, txn::Reader::COMMITTED, all, Direction::Forward, |key, value| {
        rows.push(catalog::decode_name(key).and_then(|name| Ok((Row::decode(&name, value)?, name))));
        ControlFlow::Continue(())
    })?;
    let rows: Vec<_> = rows.into_iter().collect::<Result<_>>()?;
    Ok(rows
        .into_iter()
        .filter(|(_, name)| name != catalog::DEFAULTS)
        .map(|(row, name)| (name, row))
        .collect())
}

/// Applies the catalog's settings to the tables' files. Each row has a file of its own, made as the row says.
pub(crate) fn load_catalog(engine: &TxnEngine) -> Result<()> {
    let rows = read_catalog(engine)?;
    let next = next_table(engine)?;
    let mut named = HashSet::new();
    for (name, row) in &rows {
        if u64::from(row.id.0) >= next {
            return Err(catalog::bad_row(name, format!("number {} was not given to a table yet", row.id.0)));
        }
        if !named.insert(row.id) {
            return Err(catalog::bad_row(name, format!("another table has number {} too", row.id.0)));
        }
        let space = engine.spaces().get(row.id).filter(|space| space.layout() == row.options.layout());
        let Some(space) = space else {
            let reason = format!(
                "the file of table {name} ({}) is missing",
                space::file_name(row.id, row.options.layout())
            );
            return Err(Error::BadStore { what: engine.flusher().vfs().name().into(), reason });
        };
        space.set_kind(row.options.kind);
        space.set_doublewrite(row.options.doublewrite);
        space.set_encrypted(row.options.encrypted);
        if space.is_locked() && engine.pager().pool().dirty().has_any_of(row.id) {
            // The log had changes for it, which nobody could encrypt: the store waits for the key.
            return Err(Error::TableLocked { id: row.id });
        }
    }
    if rows.iter().any(|(_, row)| wants_holes(row.options.kind)) {
        warn_without_holes(engine);
    }
    for space in engine.spaces().all() {
        let is_system = space.id() == TableId::CATALOG || space.id() == UNDO_TABLE;
        if !engine.poison().is_read_only() && !is_system && rows.iter().all(|(_, row)| row.id != space.id()) {
            engine.remove_file(&space)?;
        }
    }
    Ok(())
}

/// The number of the next table (`store::tables`, invariant 1).
pub(crate) fn next_table(engine: &TxnEngine) -> Result<u64> {
    let catalog = engine.spaces().get(TableId::CATALOG).expect("opened with the store");
    let next = Allocator::latch(engine.pager(), &catalog)?.extra();
    Ok(next.max(FIRST_TABLE.0.into()))
}

pub(crate) fn wants_holes(kind: TableKind) -> bool {
    match kind {
        TableKind::PageCompressed { algorithm, .. } => algorithm != Algorithm::None,
        TableKind::Adaptive { .. } => true,
        TableKind::Plain | TableKind::RowCompressed { .. } => false,
    }
}

/// Compressed pages take as much space as others on a VFS without holes; nothing else would report that.
pub(crate) fn warn_without_holes(engine: &TxnEngine) {
    // A place that nobody can write to was not asked for holes.
    if engine.flusher().vfs().props().hole_unit == 0 && !engine.poison().is_read_only() {
        log::warn!(
            "{}: makes no holes, so compressed pages take as much space as plain ones",
            engine.flusher().vfs().name()
        );
    }
}
