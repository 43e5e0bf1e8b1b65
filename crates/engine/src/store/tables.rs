//! Making and dropping tables, and the store's defaults for them; `alter` alters them.
//!
//! Invariants:
//!
//! 1. A number is given to one table for ever: page 0 of the catalog holds the next one, which is logged before
//!    anything names the table. So neither the log nor undo records can mean another table than the one they were
//!    written for.
//! 2. A table's file exists, durably, before the log names its pages, and until its row is gone from the catalog,
//!    durably.
//! 3. Dirty pages of a dropped table are discarded only after its file is gone, durably. Until then the checkpoint
//!    cannot pass the table's log records, so a file that still exists can be replayed.
//!
//! Crash argument of a drop: one transaction removes the row. Before that is durable the table is whole; after it,
//! opening the store removes the file, if it still exists, and skips log records, undo records and doublewrite images
//! of a table without a file.
//!
//! Locks: `ddl` before everything else; under it only transactions and latches of the catalog are waited for.

use std::sync::Arc;

use lacuna_device::StreamHint;
use lacuna_page::Algorithm;

use super::Store;
use crate::{
    alloc::Allocator,
    btree::Tree,
    catalog::{self, FIRST_TABLE, Row},
    flush::Claim,
    mtr::Mtr,
    mutant::{Rule, is_broken},
    recovery,
    space::{self, Space, corrupt},
    txn::Table,
    types::{Doublewrite, Error, PageNo, Result, TableId, TableKind, TableOptions},
    wal::{
        Until,
        control::{ADAPTIVE, ANY_BLOCKS, ROW_LZ4},
    },
};

/// The catalog's data and the counters of a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: TableId,
    /// Its settings in force.
    pub options: TableOptions,
    /// Whether its kind follows the store's defaults.
    pub inherits: bool,
    /// Its key is missing or damaged ([`Error::TableLocked`]).
    pub is_locked: bool,
    /// Length of its file in bytes, holes included.
    pub file_bytes: u64,
    /// Space that it takes in bytes.
    pub allocated_bytes: u64,
    /// Granularity of its holes in bytes.
    pub hole_unit: u32,
    /// Pages written since the store was opened.
    pub flushed_pages: u64,
    /// Pages among them that were written as they are.
    pub flushed_plain_pages: u64,
    /// Bytes of the images written since the store was opened.
    pub flushed_image_bytes: u64,
    /// Holes punched since the store was opened because an image became shorter.
    pub punches: u64,
    /// Holes that the VFS refused ([`crate::FlushStats::refused_punches`]).
    pub refused_punches: u64,
    /// Pages of an adaptive table that were encoded anew since the store was opened because they rest.
    pub rested_pages: u64,
    /// Pages of an adaptive table that were encoded anew since the store was opened because they are read often and were
    /// encoded as pages that rest.
    pub woken_pages: u64,
    /// Nodes of its tree that were split since the store was opened.
    pub splits: u64,
}

impl Store {
    /// Makes a table; durable on return. When that fails there is none, and no file of it.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::BadOption`], [`Error::Full`].
    pub fn create_table(&self, name: &str, options: TableOptions) -> Result<Table> {
        let _call = self.inner.engine.poison().call();
        self.admit_table(name)?;
        let _one = self.change_tables()?;
        self.make_table(name, options, false)
    }

    /// Makes a table with the store's defaults, which it follows from then on; durable on return.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::BadOption`].
    pub fn create_inheriting_table(&self, name: &str) -> Result<Table> {
        let _call = self.inner.engine.poison().call();
        self.admit_table(name)?;
        let _one = self.change_tables()?;
        self.make_table(name, self.defaults()?, true)
    }

    /// Refuses a new table that there is no space for. This may wait long for a purge, so the caller does not hold `ddl`:
    /// another thread may drop a table for space.
    fn admit_table(&self, name: &str) -> Result<()> {
        catalog::check_name(name)?;
        match self.table(name)? {
            Some(_) => Err(Error::TableExists { name: name.into() }),
            None => self.engine()?.admit(Claim::Space),
        }
    }

    /// The caller holds `ddl`.
    fn make_table(&self, name: &str, options: TableOptions, inherits: bool) -> Result<Table> {
        catalog::check_name(name)?;
        options.check()?;
        let engine = self.engine()?;
        engine.poison().check()?;
        if self.table(name)?.is_some() {
            return Err(Error::TableExists { name: name.into() });
        }
        let space = self.make_file(options)?;
        let made = self.write_rows([(name, Some(Row { id: space.id(), options, inherits }))]);
        if made.is_err() {
            // There is no row, and there will be none.
            self.unmake_file(&space)?;
        }
        made.map(|()| Table::new(engine.clone(), space))
    }

    /// Makes the file of a table that has no row yet, and an empty tree in it. On failure there is none, or the store
    /// is stopped. The caller holds `ddl`.
    pub(super) fn make_file(&self, options: TableOptions) -> Result<Arc<Space>> {
        let engine = self.engine()?;
        // Before the file: a program that does not know its pages must refuse the store.
        engine.flusher().require(features_of(&options))?;
        let id = self.number_table()?;
        let cipher = options.encrypted.then(|| self.make_key(id)).transpose()?;
        let file_name = space::file_name(id, options.layout());
        // What a failure leaves of a key is wiped by the next opening.
        let file = engine.flusher().vfs().create(&file_name, StreamHint::Data)?;
        let space = Space::new(id, file, options.layout())
            .inspect_err(|_| drop(engine.flusher().vfs().remove(&file_name)));
        let space = Arc::new(space?);
        if let Some(cipher) = cipher {
            space.set_cipher(cipher);
        }
        space.set_kind(options.kind);
        space.set_doublewrite(options.doublewrite);
        assert!(engine.spaces().insert(space.clone()).is_none(), "invariant 1");
        let filled = self.fill_file(&space);
        if filled.is_err() {
            self.unmake_file(&space)?;
        }
        filled?;
        if recovery::wants_holes(options.kind) {
            recovery::warn_without_holes(engine);
        }
        Ok(space)
    }

    /// Makes a new table's tree.
    fn fill_file(&self, space: &Arc<Space>) -> Result<()> {
        let engine = &self.inner.engine;
        if !engine.flusher().vfs().props().ordered {
            // The log must not name a file that a crash may undo.
            engine.flusher().vfs().sync().map_err(|e| engine.poison().set(e.into()))?;
        }
        // Before the tree: a VFS that is full refuses this, and nothing has changed yet.
        space.reserve(PageNo(1))?;
        Tree::format(engine.pager(), space).map_err(|e| engine.poison().set(e))
    }

    /// Removes a file that no row names. The table's log records are skipped as after a drop. A stopped store leaves it
    /// to the next opening.
    pub(super) fn unmake_file(&self, space: &Arc<Space>) -> Result<()> {
        let engine = &self.inner.engine;
        if engine.poison().check().is_err() {
            return Ok(());
        }
        assert!(space.close(), "nobody knows of it");
        space.close_for_good();
        engine.remove_file(space).map_err(|e| engine.poison().set(e))
    }

    /// The number of a new table (invariant 1).
    fn number_table(&self) -> Result<TableId> {
        let engine = &self.inner.engine;
        let catalog = self.catalog();
        let mut allocator = Allocator::latch(engine.pager(), catalog.space())?;
        let next = allocator.extra().max(FIRST_TABLE.0.into());
        let id = u32::try_from(next)
            .map_err(|_| corrupt(catalog.space(), PageNo(0), "the numbers of tables are used up"))?;
        let mut mtr = Mtr::new();
        allocator.set_extra(&mut mtr, next + 1);
        mtr.commit(engine.pager(), &mut [&mut allocator.header])?;
        Ok(TableId(id))
    }

    /// Replaces rows of the catalog, or removes them, all or none; durable on return.
    pub(super) fn write_rows<'a>(
        &self,
        rows: impl IntoIterator<Item = (&'a str, Option<Row>)>,
    ) -> Result<()> {
        let engine = &self.inner.engine;
        let rows: Vec<_> = rows.into_iter().collect();
        engine.flusher().require(
            rows.iter().flat_map(|(_, row)| row).fold(0, |all, row| all | features_of(&row.options)),
        )?;
        let catalog = self.catalog();
        let mut txn = self.begin_internal();
        for (name, row) in rows {
            match row {
                Some(row) => txn.put(&catalog, name.as_bytes(), &row.encode())?,
                None => drop(txn.delete(&catalog, name.as_bytes())?),
            }
        }
        txn.commit()?;
        engine.pager().log().reach(engine.pager().log().next(), Until::Flushed)
    }

    fn catalog(&self) -> Table {
        let engine = self.inner.engine.clone();
        let space = engine.spaces().get(TableId::CATALOG).expect("opened with the store");
        Table::new(engine, space)
    }

    /// The row of a table, or of [`catalog::DEFAULTS`].
    pub(super) fn row(&self, name: &str) -> Result<Option<Row>> {
        let row = self.begin_internal().get(&self.catalog(), name.as_bytes())?;
        row.map(|row| Row::decode(name, &row)).transpose()
    }

    /// The row and the space of a table; the caller holds `ddl`.
    pub(super) fn existing(&self, name: &str) -> Result<(Row, Arc<Space>)> {
        let unknown = || Error::NoSuchTable { name: name.into() };
        let row = self.row(name)?.filter(|_| name != catalog::DEFAULTS).ok_or_else(unknown)?;
        let space = self.inner.engine.spaces().get(row.id).expect("invariant 2");
        Ok((row, space))
    }

    /// The table of that name.
    pub fn table(&self, name: &str) -> Result<Option<Table>> {
        Ok(self.row_and_table(name)?.map(|(_, table)| table))
    }

    fn row_and_table(&self, name: &str) -> Result<Option<(Row, Table)>> {
        let engine = self.engine()?;
        let found = self.now_or_later(name, self.row(name)?, |id| engine.spaces().get(id))?;
        Ok(found.map(|(row, space)| (row, Table::new(engine.clone(), space))))
    }

    /// The table's row, of which `row` is what was read before, with what `find` finds for its number. The table may
    /// have been dropped since, or got another number by a rebuild.
    fn now_or_later<T>(
        &self,
        name: &str,
        mut row: Option<Row>,
        find: impl Fn(TableId) -> Option<T>,
    ) -> Result<Option<(Row, T)>> {
        let mut tried = None;
        while let Some(now) = row.filter(|row| name != catalog::DEFAULTS && tried != Some(row.id)) {
            if let Some(found) = find(now.id) {
                return Ok(Some((now, found)));
            }
            tried = Some(now.id);
            row = self.row(name)?;
        }
        Ok(None)
    }

    /// The table of that name, made with `options` when there is none. [`Store::table`] opens one as it is.
    ///
    /// # Errors
    /// [`Error::OtherOptions`] when a table of this name exists with other options, however they were set; those of
    /// [`Store::create_table`].
    pub fn open_table(&self, name: &str, options: TableOptions) -> Result<Table> {
        options.check()?;
        loop {
            if let Some((row, table)) = self.row_and_table(name)? {
                if row.options != options {
                    return Err(Error::OtherOptions {
                        name: name.into(),
                        found: row.options,
                        asked: options,
                    });
                }
                return Ok(table);
            }
            match self.create_table(name, options) {
                Err(Error::TableExists { .. }) => {} // Another thread was faster.
                other => return other,
            }
        }
    }

    /// Removes a table with all its records, and frees its space; durable on return, and after a crash done in whole or
    /// not at all. Handles of the table fail with [`Error::TableDropped`] from then on, in snapshots taken before too;
    /// a new table of that name is another one.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]. [`Error::TableInUse`] while a transaction that has read or written the table
    /// is not finished, the caller's own included; nothing has changed then. [`Error::Full`] where there is not even
    /// space for the log of that.
    pub fn drop_table(&self, name: &str) -> Result<()> {
        let _call = self.inner.engine.poison().call();
        let _one = self.change_tables()?;
        let engine = self.engine()?;
        engine.poison().check()?;
        let (_, space) = self.existing(name)?;
        // Before the table is closed to others.
        engine.admit(Claim::Row)?;
        // Also by transactions that read a file which this one replaced.
        let is_free = engine.retired_of(&space).iter().all(|old| old.is_free());
        if !is_free || !space.close() {
            return Err(Error::TableInUse { name: name.into() });
        }
        if is_broken(Rule::RowBeforeFile) {
            space.close_for_good();
            engine.remove_file(&space)?;
        }
        self.write_rows([(name, None)]).inspect_err(|_| space.reopen())?;
        space.close_for_good();
        engine.remove_file(&space).map_err(|e| engine.poison().set(e))
    }

    /// The settings of tables that are made without their own: a plain table with pages of 16 KiB until
    /// [`Store::set_defaults`] says otherwise.
    pub fn defaults(&self) -> Result<TableOptions> {
        Ok(self.row(catalog::DEFAULTS)?.map_or_else(TableOptions::default, |row| row.options))
    }

    /// Changes the defaults. The kind passes to all tables that follow them, as by [`Store::alter_table`] and
    /// in one step across a crash; the page size to those that are made from now on. A table keeps the layout
    /// that it was made in: when the default kind goes from or to row compression, or to other blocks, it
    /// keeps its kind until a kind that fits becomes the default.
    ///
    /// # Errors
    /// [`Error::BadOption`].
    pub fn set_defaults(&self, options: TableOptions) -> Result<()> {
        options.check()?;
        let _call = self.inner.engine.poison().call();
        let _one = self.change_tables()?;
        let engine = self.engine()?;
        engine.poison().check()?;
        let mut rows = recovery::read_catalog(engine)?;
        rows.retain_mut(|(_, row)| row.follow(options.kind));
        let defaults = Row { id: TableId::CATALOG, options, inherits: false };
        let changed = rows.iter().map(|(name, row)| (name.as_str(), Some(row.clone())));
        self.write_rows(changed.chain([(catalog::DEFAULTS, Some(defaults))]))?;
        for (_, row) in rows {
            engine.spaces().get(row.id).expect("invariant 2").set_kind(options.kind);
        }
        Ok(())
    }

    /// Makes the table follow the store's defaults from now on; its kind changes as by
    /// [`Store::set_defaults`].
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn inherit_defaults(&self, name: &str) -> Result<()> {
        let _call = self.inner.engine.poison().call();
        let _one = self.change_tables()?;
        let (mut row, space) = self.existing(name)?;
        row.inherits = true;
        row.follow(self.defaults()?.kind);
        let kind = row.options.kind;
        self.write_rows([(name, Some(row))])?;
        space.set_kind(kind);
        Ok(())
    }

    /// Changes whether the table's pages are written twice, from now on.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::Full`].
    pub fn set_doublewrite(&self, name: &str, setting: Doublewrite) -> Result<()> {
        let _call = self.inner.engine.poison().call();
        if setting != Doublewrite::Off {
            // The doublewrite file may have to be made, and filled.
            self.engine()?.admit(Claim::Space)?;
        }
        let _one = self.change_tables()?;
        let (mut row, space) = self.existing(name)?;
        row.options.doublewrite = setting;
        self.write_rows([(name, Some(row))])?;
        space.set_doublewrite(setting);
        Ok(())
    }

    /// All tables, by name.
    pub fn tables(&self) -> Result<Vec<TableInfo>> {
        let engine = self.engine()?;
        let mut tables = Vec::new();
        for (name, row) in recovery::read_catalog(engine)? {
            let found = self.now_or_later(&name, Some(row), |id| engine.spaces().pin_for_work(id))?;
            let Some((row, space)) = found else { continue };
            let file_bytes = space.file().len()?;
            let flushed = space.flushed();
            tables.push(TableInfo {
                name,
                id: row.id,
                options: row.options,
                inherits: row.inherits,
                is_locked: space.is_locked(),
                file_bytes,
                allocated_bytes: space.file().allocated(0, file_bytes)?,
                hole_unit: space.file().props().hole_unit,
                flushed_pages: flushed.pages,
                flushed_plain_pages: flushed.plain_pages,
                flushed_image_bytes: flushed.image_bytes,
                punches: flushed.punches,
                refused_punches: flushed.refused_punches,
                rested_pages: flushed.rested_pages,
                woken_pages: flushed.woken_pages,
                splits: space.splits(),
            });
        }
        Ok(tables)
    }
}

/// Features that a store with such a table needs.
fn features_of(options: &TableOptions) -> u64 {
    let of_kind = match options.kind {
        TableKind::Adaptive { .. } => ADAPTIVE,
        TableKind::RowCompressed { algorithm: Algorithm::Lz4, .. } => ROW_LZ4,
        _ => 0,
    };
    of_kind | if options.layout().has_later_blocks() { ANY_BLOCKS } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lacuna_device::{MemVfs, Vfs};

    use super::*;
    use crate::{StoreOptions, txn::Txn};

    /// The last step is what fails: the new row's key is locked.
    #[test]
    fn a_table_whose_row_is_refused_leaves_nothing() {
        let vfs = MemVfs::new();
        let lock_timeout = Duration::from_millis(10);
        let options = StoreOptions { background: false, lock_timeout, ..StoreOptions::default() };
        let store = Store::open(vfs.clone(), options).expect("open");
        store.create_table("other", TableOptions::default()).expect("create");
        let before = vfs.list().expect("list").len();
        let mut locker = store.begin_internal();
        assert_eq!(locker.get_for_update(&store.catalog(), b"t").expect("free"), None);
        for _ in 0..3 {
            let refused = store.create_table("t", TableOptions::default()).map(drop);
            assert!(matches!(refused, Err(Error::LockTimeout)), "{refused:?}");
        }
        assert_eq!(vfs.list().expect("list").len(), before);
        drop(locker);
        assert_eq!(store.check().expect("check").len(), 2, "the catalog and the other one");
        store.create_table("t", TableOptions::default()).expect("create");
        // The log names tables that were dropped.
        drop(store);
        let store = Store::open(vfs.clone(), StoreOptions::default()).expect("open again");
        assert_eq!((store.check().expect("check").len(), vfs.list().expect("list").len()), (3, before + 1));
    }

    /// A store whose catalog somebody changed, closed.
    fn forged(change: impl FnOnce(&Table, &mut Txn)) -> Arc<MemVfs> {
        let vfs = MemVfs::new();
        let store = Store::open(vfs.clone(), quiet()).expect("open");
        for (name, options) in [("a", TableOptions::default()), ("row", TableOptions::row_compressed(8))] {
            store.create_table(name, options).expect("create");
        }
        let mut txn = store.begin_internal();
        change(&store.catalog(), &mut txn);
        txn.commit().expect("commit");
        store.close().expect("close");
        vfs
    }

    fn quiet() -> StoreOptions {
        StoreOptions { background: false, ..StoreOptions::default() }
    }

    /// Refused however it is opened, in a line with `reason`, and no file is removed.
    fn must_be_refused(vfs: &Arc<MemVfs>, reason: &str) {
        let before = vfs.list().expect("list");
        for open in [Store::open, Store::open_read_only] {
            let error = open(vfs.clone(), quiet()).err().unwrap_or_else(|| panic!("opens: {reason}"));
            assert!(error.to_string().contains(reason), "{error}, not {reason}");
        }
        assert_eq!(vfs.list().expect("list"), before);
    }

    /// What they name would be used in two ways, or be gone as soon as one of them is dropped.
    #[test]
    fn rows_that_name_the_file_of_others_are_refused() {
        let (plain, row_compressed) = (TableOptions::default(), TableOptions::row_compressed(8));
        for (key, id, options, reason) in [
            (&b"other"[..], FIRST_TABLE.0, plain, "another table has number 16 too"),
            (b"other", TableId::CATALOG.0, plain, "table other: number 0 is not for tables"),
            (b"other", 15, plain, "number 15 is not for tables"),
            (b"other", FIRST_TABLE.0 + 2, plain, "table other: number 18 was not given to a table yet"),
            (b"a", FIRST_TABLE.0, row_compressed, "the file of table a (t00000016.16k.8k) is missing"),
            (b"", FIRST_TABLE.0, plain, "number 16 is not for tables"),
            (b"\xff", FIRST_TABLE.0, plain, "not a name that a table can have"),
            (b"a\0b", FIRST_TABLE.0, plain, "not a name that a table can have"),
        ] {
            let row = Row { id: TableId(id), options, inherits: false };
            let vfs = forged(|catalog, txn| txn.put(catalog, key, &row.encode()).expect("put"));
            must_be_refused(&vfs, reason);
        }
        must_be_refused(&forged(|catalog, txn| txn.put(catalog, b"", b"odd").expect("put")), "wrong length");
        drop(Store::open(forged(|_, _| ()), quiet()).expect("nothing was changed"));
    }

    #[test]
    fn two_files_of_a_table_are_refused() {
        let vfs = forged(|_, _| ());
        vfs.create("t00000016.32k", StreamHint::Data).expect("create");
        must_be_refused(&vfs, "t00000016.16k and t00000016.32k, both of table 16");
    }
}
