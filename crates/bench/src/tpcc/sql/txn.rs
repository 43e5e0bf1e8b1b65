//! A transaction on a server.
//!
//! 1. Rows that are inserted are kept back and sent in groups: before any other statement on their table, and at the
//!    latest with the commit.
//! 2. An update sends the columns that differ from what the transaction read under its lock.

use std::ops::ControlFlow;

use anyhow::{Context, Result, anyhow};

use super::{
    columns::{index_key, index_params, key_of, key_params, layout, value_of, value_params},
    statements::Shape,
};
use crate::{
    linkbench::{DbError, DbResult},
    sql::{Error, Server, Session, Value, groups},
    tpcc::{
        db::{Txn, Visit},
        schema::Table,
    },
};

/// A transaction of [`super::SqlDb`].
#[derive(Debug)]
pub struct SqlTxn<'db> {
    server: &'db Server<Shape>,
    /// Until the transaction ends or its connection is lost.
    session: Option<Session<Shape>>,
    /// The server holds locks or changes for it.
    is_begun: bool,
    /// Rows to be inserted, by table.
    rows: Vec<(Table, Vec<Vec<Value>>)>,
    /// Rows as they were read under a lock.
    locked: Vec<(Table, Vec<u8>, Vec<Value>)>,
}

fn classify(error: Error) -> DbError {
    match error {
        Error::LostRace(reason) => DbError::Retry(reason),
        error => DbError::Fatal(error.into()),
    }
}

fn is_index(table: Table) -> bool {
    matches!(table, Table::CustomerByName | Table::OrderByCustomer)
}

/// The table that has the rows on the server.
fn home(table: Table) -> Table {
    match table {
        Table::CustomerByName => Table::Customer,
        Table::OrderByCustomer => Table::Order,
        table => table,
    }
}

/// The first columns that a start has.
fn start_params(table: Table, start: &[u8]) -> Vec<Value> {
    if is_index(table) { index_params(table, start) } else { key_params(table, start) }
}

impl<'db> SqlTxn<'db> {
    pub(super) fn new(server: &'db Server<Shape>, session: Session<Shape>) -> SqlTxn<'db> {
        let (rows, locked) = (Vec::new(), Vec::new());
        SqlTxn { server, session: Some(session), is_begun: false, rows, locked }
    }

    fn session(&mut self) -> &mut Session<Shape> {
        self.session.as_mut().expect("a transaction has its connection until it ends")
    }

    /// Begins the transaction on the server, unless it is.
    fn begin(&mut self) -> DbResult<()> {
        if !self.is_begun {
            self.is_begun = true;
            self.session().begin().map_err(classify)?;
        }
        Ok(())
    }

    /// Runs a statement that changes at least so many rows; that it did shows at the latest in the commit.
    fn queue(&mut self, shape: Shape, params: &[Value], rows_min: u64) -> DbResult<()> {
        self.begin()?;
        let queued = self.session().queue(shape, params, rows_min);
        queued.map_err(|error| match error {
            Error::Missing => DbError::Fatal(anyhow!("{shape:?}: {error}")),
            error => classify(error),
        })
    }

    fn select(
        &mut self,
        shape: Shape,
        params: &[Value],
        visit: impl FnMut(&[Value]) -> Result<ControlFlow<()>>,
    ) -> DbResult<()> {
        let result = self.session().select(shape, params, visit);
        // Rolling back is harmless, and shows whether the connection is still of use.
        self.is_begun |= result.is_err();
        result.map_err(|error| error.downcast().map_or_else(DbError::Fatal, classify))
    }

    /// Sends the rows of a table that are kept back.
    fn flush(&mut self, table: Table) -> DbResult<()> {
        let Some(at) = self.rows.iter().position(|(of, _)| *of == home(table)) else { return Ok(()) };
        let (table, rows) = self.rows.swap_remove(at);
        for group in groups(&rows) {
            self.queue(Shape::Insert(table, group.len()), &group.concat(), group.len() as u64)?;
        }
        Ok(())
    }

    fn lookup(&mut self, table: Table, key: &[u8], shape: Shape) -> DbResult<Option<Vec<Value>>> {
        self.flush(table)?;
        let mut found = None;
        self.select(shape, &key_params(table, key), |fields| {
            found = Some(if layout(table).columns.is_empty() { Vec::new() } else { fields.to_vec() });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Visits the rows that a query returns, as keys and values.
    fn visit(
        &mut self,
        table: Table,
        shape: Shape,
        params: Vec<Value>,
        visit: &mut Visit<'_>,
    ) -> DbResult<()> {
        self.flush(table)?;
        self.select(shape, &params, |fields| {
            if is_index(table) {
                visit(&index_key(table, fields)?, &[])?;
            } else {
                let (key, rest) = key_of(table, fields)?;
                visit(&key, &value_of(table, rest)?)?;
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}

impl Txn for SqlTxn<'_> {
    fn find(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        let row = self.lookup(table, key, Shape::Get(table))?;
        Ok(row.map(|row| value_of(table, &row)).transpose()?)
    }

    fn find_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.begin()?;
        let Some(row) = self.lookup(table, key, Shape::Lock(table))? else { return Ok(None) };
        let value = value_of(table, &row)?;
        self.locked.push((table, key.to_vec(), row));
        Ok(Some(value))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        self.flush(table)?;
        let columns = value_params(table, value)?;
        let locked = self.locked.iter().rposition(|(of, at, _)| *of == table && at == key);
        let old = locked.map(|at| self.locked.swap_remove(at).2);
        let changed = |at: usize| old.as_ref().is_none_or(|old| old[at] != columns[at]);
        let changed: Vec<usize> = (0..columns.len()).filter(|&at| changed(at)).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let mut params: Vec<Value> = changed.iter().map(|&at| columns[at].clone()).collect();
        params.extend(key_params(table, key));
        let bits = changed.iter().fold(0, |bits, at| bits | 1 << at);
        self.queue(Shape::Update(table, bits), &params, 1)
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        if is_index(table) {
            return Ok(()); // The server keeps its indexes itself.
        }
        let mut row = key_params(table, key);
        row.extend(value_params(table, value)?);
        match self.rows.iter_mut().find(|(of, _)| *of == table) {
            Some((_, rows)) => rows.push(row),
            None => self.rows.push((table, vec![row])),
        }
        Ok(())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<()> {
        if is_index(table) {
            return Err(anyhow!("{} is the server's own", table.name()).into());
        }
        self.flush(table)?;
        self.queue(Shape::Delete(table), &key_params(table, key), 1)
    }

    fn scan(&mut self, table: Table, start: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        let params = start_params(table, start);
        self.visit(table, Shape::Scan(table, params.len()), params, visit)
    }

    fn scan_between(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        let mut params = key_params(table, from);
        let columns = params.len();
        params.extend(key_params(table, to).pop());
        self.visit(table, Shape::Between(table, columns), params, visit)
    }

    fn first(&mut self, table: Table, start: &[u8]) -> DbResult<Option<Vec<u8>>> {
        let params = start_params(table, start);
        let mut first = None;
        self.visit(table, Shape::First(table, params.len()), params, &mut |key, _| {
            first = Some(key.to_vec());
            Ok(())
        })?;
        Ok(first)
    }

    fn deliver_lines(&mut self, order: &[u8], now: u64) -> DbResult<i64> {
        self.flush(Table::OrderLine)?;
        let order = key_params(Table::OrderLine, order);
        let mut total = 0;
        self.select(Shape::LinesAmount, &order, |fields| {
            total = fields.first().context("no sum")?.int()?;
            Ok(ControlFlow::Continue(()))
        })?;
        self.queue(Shape::DeliverLines, &[vec![now.into()], order].concat(), 1)?;
        Ok(total)
    }

    fn commit(mut self) -> DbResult<()> {
        while let Some(&(table, _)) = self.rows.first() {
            self.flush(table)?;
        }
        if self.is_begun {
            let committed = self.session().commit();
            self.is_begun = committed.is_err();
            committed.map_err(classify)?;
        }
        Ok(())
    }

    fn rollback(mut self) -> DbResult<()> {
        if std::mem::take(&mut self.is_begun) {
            self.session().roll_back().map_err(classify)?;
        }
        Ok(())
    }
}

impl Drop for SqlTxn<'_> {
    fn drop(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        if self.is_begun && session.roll_back().is_err() {
            return; // The server ends what its lost connection began.
        }
        self.server.give_back(session);
    }
}
