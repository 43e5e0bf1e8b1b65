//! Altering a table: by its row in the catalog alone, or, where its pages must lie in the file in another way, by
//! rebuilding it (`txn::rebuild`).
//!
//! 1. Under `ddl` the copy's file is made, without a row in the catalog, and the rebuild begins.
//! 2. The table is copied without any lock. It is pinned as by a transaction, so it is not dropped meanwhile.
//! 3. Under `ddl`, with writers shut out, the table's row is changed to name the copy, durably. If writers do not end
//!    within [`SHUT_MAX`], those that wait are let in again and it is tried once more later: the others may wait for
//!    them.
//!
//! Crash argument: before the row of step 3 is durable the table is as it was, and its copy a file without a row, which
//! the next opening removes; after it the old file is one.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use super::Store;
use crate::{
    btree::Tree,
    catalog::Row,
    flush::Claim,
    mutant::{Rule, is_broken},
    space::{Space, lineage::Rebuild, pins::TablePin},
    sync::thread,
    txn::Copier,
    types::{Error, Result, TableKind},
};

/// Longest time for which writers of the table that have not begun are kept waiting for those that have.
const SHUT_MAX: Duration = Duration::from_millis(50);
/// Pause before they are shut out again.
const PAUSE: Duration = Duration::from_millis(200);

/// How far [`Store::alter_table_with`] has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlterProgress {
    /// About how many records the table had when it began; 0 where none has to be copied.
    pub records: u64,
    /// Records copied so far.
    pub copied: u64,
    /// The table is altered.
    pub is_done: bool,
}

impl Store {
    /// Changes how the table's pages are kept; it no longer follows the store's defaults.
    ///
    /// Between plain and page-compressed, from one algorithm to another, and where only a level changes, this says how
    /// pages are written from now on. Those on the device stay as they are until they are next flushed, or
    /// [`Store::optimize`] writes them: tables may mix all algorithms. To or from row compression, or other blocks, the
    /// table is rebuilt: see [`Store::alter_table_with`].
    ///
    /// # Errors
    /// Those of [`Store::alter_table_with`].
    pub fn alter_table(&self, name: &str, kind: TableKind) -> Result<()> {
        self.alter_table_with(name, kind, |_| ControlFlow::Continue(())).map(drop)
    }

    /// Like [`Store::alter_table`], with a report after every few records that are copied, and while writers are waited
    /// for. When `each` breaks the table stays as it is.
    ///
    /// While a table is rebuilt others read and write it. Each change of a record that was copied is made twice. In the
    /// end the transactions that have written it are waited for, as long as for a lock or as long as copying took;
    /// those that have not are kept waiting for moments. Snapshots that were taken before go on reading what they saw, from
    /// the old file, which is kept as long as one of them is open; what they write to the table is refused with
    /// [`Error::Conflict`]. The store must have space for both files meanwhile.
    ///
    /// A crash leaves the table as it was, or altered, with every commit. So does an error, which leaves it as it was.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::BadOption`]; [`Error::TableInUse`] while another call rebuilds it;
    /// [`Error::TooLarge`] for a key that is too long for the blocks; [`Error::Full`]; [`Error::LockTimeout`] when a
    /// transaction that has written the table does not end.
    pub fn alter_table_with(
        &self,
        name: &str,
        kind: TableKind,
        mut each: impl FnMut(AlterProgress) -> ControlFlow<()>,
    ) -> Result<AlterProgress> {
        let rebuilding = self.begin_to_alter(name, kind)?;
        let Some(mut rebuilding) = rebuilding else {
            return Ok(AlterProgress { is_done: true, ..AlterProgress::default() });
        };
        let engine = self.engine()?;
        let started = Instant::now();
        let records = Tree::new(engine.pager(), &rebuilding.source).estimate()?;
        let mut progress = AlterProgress { records, copied: 0, is_done: false };
        let mut copier = Copier::new(engine, &rebuilding.source, &rebuilding.rebuild);
        loop {
            let call = engine.poison().call();
            let has_more = copier.step()?;
            drop(call);
            progress.copied = copier.records;
            if each(progress).is_break() {
                return Ok(progress);
            }
            if !has_more {
                break;
            }
        }
        let deadline = Instant::now() + started.elapsed().max(engine.lock_timeout());
        while !self.replace(name, kind, &mut rebuilding)? {
            if each(progress).is_break() {
                return Ok(progress);
            }
            if Instant::now() >= deadline {
                return Err(Error::LockTimeout);
            }
            thread::sleep(PAUSE);
        }
        drop(rebuilding);
        progress.is_done = true;
        engine.remove_retired().map_err(|e| engine.poison().set(e))?;
        Ok(progress)
    }

    /// Changes the row, or begins a rebuild.
    fn begin_to_alter(&self, name: &str, kind: TableKind) -> Result<Option<Rebuilding<'_>>> {
        let engine = self.engine()?;
        let _call = engine.poison().call();
        engine.poison().check()?;
        if self.rebuilds(name, kind)? {
            // This may wait long for a purge: not under `ddl`.
            engine.admit(Claim::Space)?;
        }
        let _one = self.inner.ddl.lock();
        engine.poison().check()?;
        let (before, source) = self.existing(name)?;
        let row = altered(&before, kind)?;
        if source.rebuild().is_some() {
            return Err(Error::TableInUse { name: name.into() });
        }
        if row.options.layout() == before.options.layout() {
            self.write_rows([(name, Some(row))])?;
            source.set_kind(kind);
            return Ok(None);
        }
        let source = source.pin()?;
        let target = self.make_file(row.options)?;
        let rebuild = source.begin_rebuild(target).expect("under ddl there was none");
        Ok(Some(Rebuilding { store: self, source, rebuild, is_done: false }))
    }

    fn rebuilds(&self, name: &str, kind: TableKind) -> Result<bool> {
        let Some(row) = self.row(name)? else { return Ok(false) };
        Ok(altered(&row, kind).is_ok_and(|altered| altered.options.layout() != row.options.layout()))
    }

    /// Puts the copy in the table's place; false when writers did not end.
    fn replace(&self, name: &str, kind: TableKind, rebuilding: &mut Rebuilding<'_>) -> Result<bool> {
        let engine = self.engine()?;
        let _call = engine.poison().call();
        let _one = self.inner.ddl.lock();
        engine.poison().check()?;
        let source: &Arc<Space> = &rebuilding.source;
        if !source.shut(Instant::now() + SHUT_MAX) {
            return Ok(false);
        }
        if let Err(e) = self.replace_while_shut(name, kind, source, &rebuilding.rebuild) {
            source.admit_writers();
            return Err(e);
        }
        rebuilding.is_done = true;
        Ok(true)
    }

    fn replace_while_shut(
        &self,
        name: &str,
        kind: TableKind,
        source: &Arc<Space>,
        rebuild: &Rebuild,
    ) -> Result<()> {
        let engine = self.engine()?;
        rebuild.check()?;
        let target = rebuild.target();
        let (row, _) = self.existing(name)?;
        assert_eq!(row.id, source.id(), "a table that is pinned and being rebuilt stays");
        let row = Row { id: target.id(), ..altered(&row, kind)? };
        target.set_doublewrite(row.options.doublewrite); // it may have changed meanwhile
        // From here on new views read the copy, once they find it; until writers are let in both hold the same.
        assert!(target.shut(Instant::now()), "nobody knows of it");
        let moment = engine.txns().next_moment();
        target.descend_from(source, moment);
        if is_broken(Rule::OldFileLast) {
            engine.flusher().vfs().remove(&source.name())?;
        }
        self.write_rows([(name, Some(row))])?;
        engine.keep_retired(source.clone(), moment);
        source.become_replaced(target.clone(), moment);
        Ok(())
    }
}

/// The row after an alteration.
fn altered(row: &Row, kind: TableKind) -> Result<Row> {
    let mut row = Row { inherits: false, ..row.clone() };
    row.options.kind = kind;
    row.options.check()?;
    Ok(row)
}

/// A rebuild; when this is dropped before it is done, it is given up.
struct Rebuilding<'a> {
    store: &'a Store,
    /// As by a transaction.
    source: TablePin,
    rebuild: Arc<Rebuild>,
    is_done: bool,
}

impl Drop for Rebuilding<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.source.end_rebuild();
        // A stopped store leaves the file to its next opening. On failure the store stops, and the next call says why.
        let _ = self.store.unmake_file(self.rebuild.target());
    }
}
