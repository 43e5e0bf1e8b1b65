//! A transaction on a server.
//!
//! Inserted rows and growing counts are buffered:
//!
//! 1. They are sent before any other statement of the transaction, so that it sees its own rows, and
//!    before the commit.
//! 2. A duplicate that is found only then is reported as lost (`DbError::Retry`), with nothing
//!    committed: `insert` may have said that the key was free.
//! 3. Counts are sent last, so that loaders which share a list wait for each other as briefly as possible.

use std::ops::ControlFlow;

use ::mysql::Value;
use anyhow::{Context, Result, anyhow};

use super::{
    classify,
    statements::{LIST_ROWS, Shape},
};
use crate::{
    linkbench::{
        db::{DbError, DbResult, Table, Txn, Visit},
        schema::{
            CountRow, LinkId, LinkRow, NodeRow, count_key, index_prefix, list_of_count, list_of_prefix,
            newest_first, node_id, node_key,
        },
    },
    mysql::{Server, Session, groups},
};

/// A transaction of [`super::SqlDb`].
#[derive(Debug)]
pub struct SqlTxn<'db> {
    db: &'db Server<Shape>,
    /// Until the transaction ends or its connection is lost.
    session: Option<Session<Shape>>,
    /// The server holds locks or changes for it.
    is_begun: bool,
    /// Rows to be inserted, all into one table.
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    rows_table: Table,
    /// List, growth and time of counts to be raised.
    counts: Vec<Raise>,
}

#[derive(Clone, Copy, Debug)]
struct Raise {
    list: (u64, u64),
    by: u64,
    time: u64,
}

impl<'db> SqlTxn<'db> {
    pub(super) fn new(db: &'db Server<Shape>, session: Session<Shape>) -> SqlTxn<'db> {
        let (rows, counts) = (Vec::new(), Vec::new());
        SqlTxn { db, session: Some(session), is_begun: false, rows, rows_table: Table::Node, counts }
    }

    fn session(&mut self) -> &mut Session<Shape> {
        self.session.as_mut().expect("a transaction has its connection until it ends")
    }

    fn run(&mut self, shape: Shape, params: Vec<Value>) -> DbResult<u64> {
        self.is_begun = true;
        self.session().run(shape, params).map_err(classify)
    }

    fn select(
        &mut self,
        shape: Shape,
        params: Vec<Value>,
        visit: impl FnMut(&[Value]) -> Result<ControlFlow<()>>,
    ) -> DbResult<()> {
        let result = self.session().select(shape, params, visit);
        // Rolling back is harmless, and shows whether the connection is still of use.
        self.is_begun |= result.is_err();
        result.map_err(|error| error.downcast().map_or_else(DbError::Fatal, classify))
    }

    /// Sends the buffered rows and counts.
    fn flush(&mut self) -> DbResult<()> {
        let rows = std::mem::take(&mut self.rows);
        let table = self.rows_table;
        for group in groups(&rows) {
            let shape = match table {
                Table::Node => Shape::InsertNodes(group.len()),
                Table::Link => Shape::InsertLinks(group.len()),
                Table::Count => Shape::InsertCounts(group.len()),
                Table::LinkByTime => unreachable!("the server keeps its index itself"),
            };
            let mut params = Vec::with_capacity(group.len() * 7);
            for (key, value) in group {
                row_params(table, key, value, &mut params)?;
            }
            self.run(shape, params)?;
        }
        let counts = std::mem::take(&mut self.counts);
        for group in groups(&counts) {
            let params = group
                .iter()
                .flat_map(|raise| [raise.list.0, raise.list.1, raise.by, raise.time, 0].map(Value::UInt))
                .collect();
            self.run(Shape::RaiseCounts(group.len()), params)?;
        }
        Ok(())
    }

    fn lookup(&mut self, table: Table, key: &[u8], lock: bool) -> DbResult<Option<Vec<u8>>> {
        let shape = Shape::get(table, lock).ok_or_else(|| anyhow!("the index is only scanned"))?;
        self.flush()?;
        self.is_begun |= lock;
        let mut found = None;
        self.select(shape, key_params(table, key)?, |fields| {
            let mut value = Vec::new();
            row_value(table, fields, &mut value)?;
            found = Some(value);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// The newest part of a list, page by page.
    fn scan_list(&mut self, from: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        let (id1, link_type, visibility, newest) = list_of_prefix(from)?;
        let prefix = index_prefix(id1, link_type, visibility);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut fetched = 0;
        loop {
            let params = [id1, link_type, u64::from(visibility), newest, fetched, LIST_ROWS];
            let (mut rows, mut going) = (0, ControlFlow::Continue(()));
            self.select(Shape::ListLinks, params.map(Value::UInt).to_vec(), |fields| {
                let [id2, time, version, data] = columns(fields)?;
                rows += 1;
                key.clear();
                key.extend_from_slice(&prefix);
                key.extend_from_slice(&newest_first(uint(time)?));
                key.extend_from_slice(&uint(id2)?.to_be_bytes());
                let (version, data) = (uint(version)? as u32, bytes(data)?);
                LinkRow { visibility, time: 0, version, data }.index_value(&mut value);
                going = visit(&key, &value);
                Ok(going)
            })?;
            fetched += rows;
            if rows < LIST_ROWS || going.is_break() {
                return Ok(());
            }
        }
    }

    fn scan_table(&mut self, table: Table, visit: &mut Visit<'_>) -> DbResult<()> {
        let shape = match table {
            Table::Node => Shape::AllNodes,
            Table::Link => Shape::AllLinks,
            Table::Count => Shape::AllCounts,
            Table::LinkByTime => return self.scan_index(visit),
        };
        let mut value = Vec::new();
        self.select(shape, Vec::new(), |fields| {
            let (key, rest) = fields.split_at_checked(key_columns(table)).context(BAD_ROW)?;
            row_value(table, rest, &mut value)?;
            Ok(visit(&row_key(table, key)?, &value))
        })
    }

    /// The whole index. The server sorts by rising time, the trait by falling: each list's part of one
    /// visibility is turned round before it is visited.
    fn scan_index(&mut self, visit: &mut Visit<'_>) -> DbResult<()> {
        let mut list: Vec<([u8; 33], Vec<u8>)> = Vec::new();
        let mut emit = |list: &mut Vec<([u8; 33], Vec<u8>)>| {
            list.sort_unstable();
            let going = list.iter().try_for_each(|(key, value)| visit(key, value));
            list.clear();
            going
        };
        let mut going = ControlFlow::Continue(());
        self.select(Shape::AllIndexEntries, Vec::new(), |fields| {
            let (key, rest) = fields.split_at_checked(3).context(BAD_ROW)?;
            let (id, row) = (link_of(key)?, link_row_of(rest)?);
            let mut value = Vec::new();
            row.index_value(&mut value);
            let key = row.index_key(&id);
            if list.first().is_some_and(|(first, _)| first[..17] != key[..17]) {
                going = emit(&mut list);
            }
            list.push((key, value));
            Ok(going)
        })?;
        if going.is_continue() {
            let _ = emit(&mut list);
        }
        Ok(())
    }
}

const BAD_ROW: &str = "the server sent a row of other columns than were asked for";

fn key_columns(table: Table) -> usize {
    match table {
        Table::Node => 1,
        Table::Count => 2,
        Table::Link | Table::LinkByTime => 3,
    }
}

fn columns<const N: usize>(fields: &[Value]) -> Result<&[Value; N]> {
    fields.try_into().context(BAD_ROW)
}

fn uint(field: &Value) -> Result<u64> {
    match *field {
        Value::UInt(number) => Ok(number),
        Value::Int(number) => number.try_into().context(BAD_ROW),
        _ => Err(anyhow!(BAD_ROW)),
    }
}

fn bytes(field: &Value) -> Result<&[u8]> {
    match field {
        Value::Bytes(bytes) => Ok(bytes),
        _ => Err(anyhow!(BAD_ROW)),
    }
}

fn key_params(table: Table, key: &[u8]) -> Result<Vec<Value>> {
    Ok(match table {
        Table::Node => vec![Value::UInt(node_id(key)?)],
        Table::Link | Table::LinkByTime => {
            let LinkId { link_type, id1, id2 } = LinkId::of_key(key)?;
            [link_type, id1, id2].map(Value::UInt).to_vec()
        }
        Table::Count => {
            let (id, link_type) = list_of_count(key)?;
            [id, link_type].map(Value::UInt).to_vec()
        }
    })
}

/// Columns of a row that are not its key's, in the order of the statements.
fn value_params(table: Table, value: &[u8], params: &mut Vec<Value>) -> Result<()> {
    match table {
        Table::Node => {
            let NodeRow { node_type, version, time, data } = NodeRow::of_value(value)?;
            params.extend([u64::from(node_type), version, u64::from(time)].map(Value::UInt));
            params.push(data.into());
        }
        Table::Link | Table::LinkByTime => {
            let LinkRow { visibility, time, version, data } = LinkRow::of_value(value)?;
            params.extend([u64::from(visibility), time, u64::from(version)].map(Value::UInt));
            params.push(data.into());
        }
        Table::Count => {
            let CountRow { count, time, version } = CountRow::of_value(value)?;
            params.extend([u64::from(count), time, version].map(Value::UInt));
        }
    }
    Ok(())
}

fn row_params(table: Table, key: &[u8], value: &[u8], params: &mut Vec<Value>) -> Result<()> {
    params.extend(key_params(table, key)?);
    value_params(table, value, params)
}

fn link_of(key: &[Value]) -> Result<LinkId> {
    let [link_type, id1, id2] = columns(key)?;
    Ok(LinkId { link_type: uint(link_type)?, id1: uint(id1)?, id2: uint(id2)? })
}

fn link_row_of(fields: &[Value]) -> Result<LinkRow<'_>> {
    let [visibility, time, version, data] = columns(fields)?;
    let (visibility, version) = (uint(visibility)? as u8, uint(version)? as u32);
    Ok(LinkRow { visibility, time: uint(time)?, version, data: bytes(data)? })
}

fn row_key(table: Table, key: &[Value]) -> Result<Vec<u8>> {
    Ok(match table {
        Table::Node => {
            let [id] = columns(key)?;
            node_key(uint(id)?).to_vec()
        }
        Table::Link | Table::LinkByTime => link_of(key)?.key().to_vec(),
        Table::Count => {
            let [id, link_type] = columns(key)?;
            count_key(uint(id)?, uint(link_type)?).to_vec()
        }
    })
}

fn row_value(table: Table, fields: &[Value], value: &mut Vec<u8>) -> Result<()> {
    match table {
        Table::Node => {
            let [node_type, version, time, data] = columns(fields)?;
            let (node_type, time) = (uint(node_type)? as u32, uint(time)? as u32);
            NodeRow { node_type, version: uint(version)?, time, data: bytes(data)? }.value(value);
        }
        Table::Link | Table::LinkByTime => link_row_of(fields)?.value(value),
        Table::Count => {
            let [count, time, version] = columns(fields)?;
            let (count, version) = (uint(count)? as u32, uint(version)?);
            value.clear();
            value.extend_from_slice(&CountRow { count, time: uint(time)?, version }.value());
        }
    }
    Ok(())
}

impl Txn for SqlTxn<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.lookup(table, key, false)
    }

    fn get_for_update(&mut self, table: Table, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        self.lookup(table, key, true)
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        let shape = match table {
            Table::Node => Shape::UpdateNode,
            Table::Link => Shape::UpdateLink,
            Table::Count => Shape::UpdateCount,
            Table::LinkByTime => return Ok(()),
        };
        self.flush()?;
        let mut params = Vec::with_capacity(7);
        value_params(table, value, &mut params)?;
        params.extend(key_params(table, key)?);
        if self.run(shape, params)? == 0 {
            self.insert(table, key, value)?;
        }
        Ok(())
    }

    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) -> DbResult<bool> {
        if table == Table::LinkByTime {
            return Ok(true);
        }
        if table != self.rows_table || !self.counts.is_empty() {
            self.flush()?;
            self.rows_table = table;
        }
        self.rows.push((key.to_vec(), value.to_vec()));
        Ok(true)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> DbResult<bool> {
        let shape = match table {
            Table::Node => Shape::DeleteNode,
            Table::Link => Shape::DeleteLink,
            Table::Count => Shape::DeleteCount,
            Table::LinkByTime => return Ok(true),
        };
        self.flush()?;
        Ok(self.run(shape, key_params(table, key)?)? > 0)
    }

    /// Supports the scans that the benchmark makes: a list, newest first, and whole tables. Links of a list that have
    /// the same time come in falling order of their other end.
    fn scan(&mut self, table: Table, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> DbResult<()> {
        self.flush()?;
        if from.is_empty() && to.iter().all(|&byte| byte == 0xFF) {
            return self.scan_table(table, visit);
        }
        if table != Table::LinkByTime {
            return Err(anyhow!("a part of table {} is never scanned", table.name()).into());
        }
        self.scan_list(from, visit)
    }

    fn change_count(&mut self, list: (u64, u64), by: i64, time: u64) -> DbResult<()> {
        if let Ok(by) = u64::try_from(by) {
            self.counts.push(Raise { list, by, time });
            return Ok(());
        }
        self.flush()?;
        let params = [by.unsigned_abs(), time, list.0, list.1].map(Value::UInt);
        if self.run(Shape::LowerCount, params.to_vec())? == 0 {
            return Err(anyhow!("list {list:?} has links but no count").into());
        }
        Ok(())
    }

    fn commit(mut self) -> DbResult<()> {
        self.flush()?;
        if self.is_begun {
            let committed = self.session().commit();
            self.is_begun = committed.is_err();
            committed.map_err(classify)?;
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
        self.db.give_back(session);
    }
}
