//! A transaction on a server.
//!
//! Inserted rows and growing counts are buffered; updates may be ([`crate::sql`], `Client::queue`):
//!
//! 1. They are sent before any other statement of the transaction, so that it sees its own rows, and
//!    before the commit.
//! 2. A duplicate that is found only then is reported as lost (`DbError::Retry`), with nothing
//!    committed: `insert` may have said that the key was free.
//! 3. Counts are sent last, so that loaders which share a list wait for each other as briefly as possible.

use std::ops::ControlFlow;

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
    sql::{BAD_ROW, Server, Session, Value, groups},
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

    /// Begins the transaction on the server, unless it is.
    fn begin(&mut self) -> DbResult<()> {
        if !self.is_begun {
            self.is_begun = true;
            self.session().begin().map_err(classify)?;
        }
        Ok(())
    }

    fn run(&mut self, shape: Shape, params: &[Value]) -> DbResult<u64> {
        self.begin()?;
        self.session().run(shape, params).map_err(classify)
    }

    /// Runs a statement that changes at least so many rows; that it did shows at the latest in the commit.
    fn queue(&mut self, shape: Shape, params: &[Value], rows_min: u64) -> DbResult<()> {
        self.begin()?;
        self.session().queue(shape, params, rows_min).map_err(classify)
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
            self.queue(shape, &params, 0)?;
        }
        let counts = std::mem::take(&mut self.counts);
        for group in groups(&counts) {
            let params: Vec<Value> = group
                .iter()
                .flat_map(|raise| [raise.list.0, raise.list.1, raise.by, raise.time, 0].map(Value::from))
                .collect();
            self.queue(Shape::RaiseCounts(group.len()), &params, 0)?;
        }
        Ok(())
    }

    fn lookup(&mut self, table: Table, key: &[u8], lock: bool) -> DbResult<Option<Vec<u8>>> {
        let shape = Shape::get(table, lock).ok_or_else(|| anyhow!("the index is only scanned"))?;
        self.flush()?;
        if lock {
            self.begin()?;
        }
        let mut found = None;
        self.select(shape, &key_params(table, key)?, |fields| {
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
            let params = [id1, link_type, u64::from(visibility), newest, LIST_ROWS, fetched];
            let (mut rows, mut going) = (0, ControlFlow::Continue(()));
            self.select(Shape::ListLinks, &params.map(Value::from), |fields| {
                let [id2, time, version, data] = columns(fields)?;
                rows += 1;
                key.clear();
                key.extend_from_slice(&prefix);
                key.extend_from_slice(&newest_first(time.uint()?));
                key.extend_from_slice(&id2.uint()?.to_be_bytes());
                let (version, data) = (version.uint()? as u32, data.bytes()?);
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
        self.select(shape, &[], |fields| {
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
        self.select(Shape::AllIndexEntries, &[], |fields| {
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

fn key_params(table: Table, key: &[u8]) -> Result<Vec<Value>> {
    Ok(match table {
        Table::Node => vec![Value::from(node_id(key)?)],
        Table::Link | Table::LinkByTime => {
            let LinkId { link_type, id1, id2 } = LinkId::of_key(key)?;
            [link_type, id1, id2].map(Value::from).to_vec()
        }
        Table::Count => {
            let (id, link_type) = list_of_count(key)?;
            [id, link_type].map(Value::from).to_vec()
        }
    })
}

/// Columns of a row that are not its key's, in the order of the statements.
fn value_params(table: Table, value: &[u8], params: &mut Vec<Value>) -> Result<()> {
    match table {
        Table::Node => {
            let NodeRow { node_type, version, time, data } = NodeRow::of_value(value)?;
            params.extend([u64::from(node_type), version, u64::from(time)].map(Value::from));
            params.push(data.into());
        }
        Table::Link | Table::LinkByTime => {
            let LinkRow { visibility, time, version, data } = LinkRow::of_value(value)?;
            params.extend([u64::from(visibility), time, u64::from(version)].map(Value::from));
            params.push(data.into());
        }
        Table::Count => {
            let CountRow { count, time, version } = CountRow::of_value(value)?;
            params.extend([u64::from(count), time, version].map(Value::from));
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
    Ok(LinkId { link_type: link_type.uint()?, id1: id1.uint()?, id2: id2.uint()? })
}

fn link_row_of(fields: &[Value]) -> Result<LinkRow<'_>> {
    let [visibility, time, version, data] = columns(fields)?;
    let (visibility, version) = (visibility.uint()? as u8, version.uint()? as u32);
    Ok(LinkRow { visibility, time: time.uint()?, version, data: data.bytes()? })
}

fn row_key(table: Table, key: &[Value]) -> Result<Vec<u8>> {
    Ok(match table {
        Table::Node => {
            let [id] = columns(key)?;
            node_key(id.uint()?).to_vec()
        }
        Table::Link | Table::LinkByTime => link_of(key)?.key().to_vec(),
        Table::Count => {
            let [id, link_type] = columns(key)?;
            count_key(id.uint()?, link_type.uint()?).to_vec()
        }
    })
}

fn row_value(table: Table, fields: &[Value], value: &mut Vec<u8>) -> Result<()> {
    match table {
        Table::Node => {
            let [node_type, version, time, data] = columns(fields)?;
            let (node_type, time) = (node_type.uint()? as u32, time.uint()? as u32);
            NodeRow { node_type, version: version.uint()?, time, data: data.bytes()? }.value(value);
        }
        Table::Link | Table::LinkByTime => link_row_of(fields)?.value(value),
        Table::Count => {
            let [count, time, version] = columns(fields)?;
            let (count, version) = (count.uint()? as u32, version.uint()?);
            value.clear();
            value.extend_from_slice(&CountRow { count, time: time.uint()?, version }.value());
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
        self.queue(shape, &params, 1)
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
        Ok(self.run(shape, &key_params(table, key)?)? > 0)
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
            // One statement changes no row twice.
            match self.counts.iter_mut().find(|raise| raise.list == list) {
                Some(raise) => *raise = Raise { list, by: raise.by + by, time: raise.time.max(time) },
                None => self.counts.push(Raise { list, by, time }),
            }
            return Ok(());
        }
        self.flush()?;
        let params = [by.unsigned_abs(), time, list.0, list.1].map(Value::from);
        self.queue(Shape::LowerCount, &params, 1)
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
