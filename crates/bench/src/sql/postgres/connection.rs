//! Connections to a PostgreSQL server: the messages of the crate `postgres-protocol` over a socket.
//!
//! Statements are prepared once and run by the extended protocol, parameters and columns in binary. What
//! [`Client::queue`] is given, and the beginning of a transaction, waits in the output and goes out with the next
//! statement whose answer matters: a transaction takes a round trip for each of its reads and one for its end.
//!
//! 1. The server answers in the order of the statements; after an error it skips all up to the end of the group, the
//!    commit among them.
//! 2. A commit counts only when the server says COMMIT: in a failed transaction it says ROLLBACK.
//! 3. After anything that the protocol does not allow, or a lost connection, every call fails.

use std::ops::ControlFlow;

use bytes::{BufMut, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::{
    IsNull, Oid,
    message::{
        backend::{DataRowBody, Message},
        frontend,
    },
};

use super::{
    login::{error_of, log_in, unexpected},
    stream::{Stream, Wire, dial},
};
use crate::sql::{
    address::{Address, Login},
    client::{Client, Error, Result, VisitRow},
    value::{BAD_ROW, Value},
};

/// Queued statements are sent when they take more.
const QUEUED_BYTES_MAX: usize = 1 << 20;
/// Longest answer that is kept as a whole.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Statements that every connection prepares.
const BEGIN: usize = 0;
const COMMIT: usize = 1;

/// How a parameter or column is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int2,
    Int4,
    Int8,
    Bytes,
}

impl Kind {
    fn of(oid: Oid) -> Result<Kind> {
        match oid {
            21 => Ok(Kind::Int2),
            23 => Ok(Kind::Int4),
            20 => Ok(Kind::Int8),
            // bytea, text, char(n), varchar.
            17 | 25 | 1042 | 1043 => Ok(Kind::Bytes),
            _ => Err(Error::Other(format!("type {oid} of the server is not known"))),
        }
    }

    fn write(self, value: &Value, out: &mut BytesMut) -> std::result::Result<IsNull, String> {
        let range = |_| format!("{value:?} is out of the range of its column");
        match (self, value) {
            (_, Value::Null) => return Ok(IsNull::Yes),
            (Kind::Int2, Value::Int(number)) => out.put_i16((*number).try_into().map_err(range)?),
            (Kind::Int4, Value::Int(number)) => out.put_i32((*number).try_into().map_err(range)?),
            (Kind::Int8, Value::Int(number)) => out.put_i64(*number),
            (Kind::Bytes, Value::Bytes(bytes)) => out.extend_from_slice(bytes),
            _ => return Err(format!("a parameter is not of type {self:?}")),
        }
        Ok(IsNull::No)
    }

    fn read(self, bytes: &[u8]) -> Option<Value> {
        Some(match self {
            Kind::Int2 => Value::Int(i16::from_be_bytes(bytes.try_into().ok()?).into()),
            Kind::Int4 => Value::Int(i32::from_be_bytes(bytes.try_into().ok()?).into()),
            Kind::Int8 => Value::Int(i64::from_be_bytes(bytes.try_into().ok()?)),
            Kind::Bytes => Value::Bytes(bytes.to_vec()),
        })
    }
}

#[derive(Clone, Debug)]
struct Statement {
    params: Vec<Kind>,
    columns: Vec<Kind>,
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    statements: Vec<Statement>,
    /// Statements in the output or on their way: number, and the rows that each must find.
    queued: Vec<(usize, u64)>,
    /// A transaction is under way, or its beginning is queued.
    is_begun: bool,
    is_broken: bool,
}

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// When no server listens there, or when it refuses the login.
    pub(super) fn connect(address: &Address, login: &Login) -> Result<Connection> {
        Connection::over(dial(address)?, login)
    }

    pub(super) fn over(wire: Box<dyn Wire>, login: &Login) -> Result<Connection> {
        let mut stream = Stream::new(wire);
        log_in(&mut stream, login)?;
        let (statements, queued) = (Vec::new(), Vec::new());
        Ok(Connection { stream, statements, queued, is_begun: false, is_broken: false })
    }

    /// Prepares what transactions need.
    pub(super) fn prepare_transactions(&mut self) -> Result<()> {
        let numbers = [self.prepare("BEGIN ISOLATION LEVEL READ COMMITTED")?, self.prepare("COMMIT")?];
        assert_eq!(numbers, [BEGIN, COMMIT], "these are the first statements of a connection");
        Ok(())
    }

    /// Runs what talks to the server; see invariant 3.
    fn guarded<T, E: From<Error>>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        if self.is_broken {
            return Err(Error::Other("the connection to the server is lost".to_owned()).into());
        }
        // Undone by whoever reads the end of an answer.
        self.is_broken = true;
        work(self)
    }

    /// Adds a statement to the group that goes out next.
    fn push(&mut self, statement: usize, params: &[Value], rows_min: u64) -> Result<()> {
        let Statement { params: kinds, columns } = &self.statements[statement];
        if kinds.len() != params.len() {
            return Err(Error::Other(format!("{} parameters for {} places", params.len(), kinds.len())));
        }
        let before = self.stream.output.len();
        let bound = frontend::bind(
            "",
            &name(statement),
            [1],
            kinds.iter().zip(params),
            |(kind, value), out| Ok(kind.write(value, out)?),
            columns.iter().map(|_| 1),
            &mut self.stream.output,
        );
        if let Err(error) = bound {
            self.stream.output.truncate(before);
            return Err(Error::Other(match error {
                frontend::BindError::Conversion(error) => error.to_string(),
                frontend::BindError::Serialization(error) => error.to_string(),
            }));
        }
        frontend::execute("", 0, &mut self.stream.output)?;
        self.queued.push((statement, rows_min));
        Ok(())
    }

    /// Sends the group and reads its answers; rows of the last statement are visited. Returns how many rows that
    /// statement found.
    fn finish(&mut self, visit: &mut VisitRow<'_>) -> anyhow::Result<u64> {
        frontend::sync(&mut self.stream.output);
        self.guarded(|this| {
            let queued = std::mem::take(&mut this.queued);
            this.stream.send()?;
            this.read_answers(&queued, visit)
        })
    }

    fn read_answers(&mut self, queued: &[(usize, u64)], visit: &mut VisitRow<'_>) -> anyhow::Result<u64> {
        let (mut answered, mut found) = (0, 0);
        let mut going = ControlFlow::Continue(());
        let mut failure: Option<anyhow::Error> = None;
        loop {
            // A server that ends says why, and then no more.
            let message = match (self.stream.receive(), failure) {
                (Ok(message), was) => {
                    failure = was;
                    message
                }
                (Err(_), Some(was)) => return Err(was),
                (Err(error), None) => return Err(error.into()),
            };
            let current = queued.get(answered);
            match (message, current) {
                (Message::BindComplete, Some(_)) => {}
                (Message::DataRow(row), Some(&(statement, _))) => {
                    let is_wanted = answered + 1 == queued.len() && going.is_continue() && failure.is_none();
                    if is_wanted {
                        let row = values(&row, &self.statements[statement].columns)?;
                        match visit(&row) {
                            Ok(goes) => going = goes,
                            Err(error) => failure = Some(error),
                        }
                    }
                }
                (Message::CommandComplete(body), Some(&(statement, rows_min))) => {
                    let tag = body.tag().map_err(Error::from)?;
                    found = rows_of(tag);
                    answered += 1;
                    if statement == COMMIT && tag != "COMMIT" {
                        let refused = "the server rolled the transaction back at its commit".to_owned();
                        failure.get_or_insert(Error::Other(refused).into());
                    } else if found < rows_min {
                        failure.get_or_insert(Error::Missing.into());
                    }
                }
                (Message::ErrorResponse(body), _) => {
                    failure.get_or_insert(error_of(&body).into());
                }
                (Message::ReadyForQuery(body), _) => {
                    self.is_begun = body.status() != b'I';
                    if answered < queued.len() && failure.is_none() {
                        return Err(unexpected("so many statements").into());
                    }
                    self.is_broken = false;
                    return failure.map_or(Ok(found), Err);
                }
                _ => return Err(unexpected("a statement").into()),
            }
        }
    }

    /// The same where no rows are asked for.
    fn finish_without_rows(&mut self) -> Result<u64> {
        let found = self.finish(&mut |_| Ok(ControlFlow::Continue(())));
        found.map_err(|error| error.downcast().unwrap_or_else(|error| Error::Other(error.to_string())))
    }

    /// Sends what is queued, if anything is.
    fn drain(&mut self) -> Result<()> {
        if self.queued.is_empty() { Ok(()) } else { self.finish_without_rows().map(drop) }
    }

    fn read_description(&mut self) -> Result<Statement> {
        let (mut params, mut columns) = (Vec::new(), Vec::new());
        let mut failure = None;
        loop {
            match self.stream.receive() {
                Ok(Message::ParseComplete | Message::NoData) => {}
                Ok(Message::ParameterDescription(body)) => {
                    params = body.parameters().map_err(Error::from).map(Kind::of).collect()?;
                }
                Ok(Message::RowDescription(body)) => {
                    let kinds = body.fields().map_err(Error::from).map(|field| Kind::of(field.type_oid()));
                    columns = kinds.collect()?;
                }
                Ok(Message::ErrorResponse(body)) => failure = Some(error_of(&body)),
                Ok(Message::ReadyForQuery(body)) => {
                    self.is_begun = body.status() != b'I';
                    self.is_broken = false;
                    return failure.map_or(Ok(Statement { params, columns }), Err);
                }
                Ok(_) => return Err(unexpected("a preparation")),
                Err(error) => return Err(failure.unwrap_or(error)),
            }
        }
    }

    fn read_text_rows(&mut self) -> Result<Vec<Vec<Option<String>>>> {
        let (mut rows, mut failure, mut bytes) = (Vec::new(), None, 0);
        loop {
            match self.stream.receive() {
                Ok(
                    Message::RowDescription(_) | Message::CommandComplete(_) | Message::EmptyQueryResponse,
                ) => {}
                Ok(Message::DataRow(row)) => {
                    let text = |range: Option<std::ops::Range<usize>>| {
                        Ok(range.map(|range| String::from_utf8_lossy(&row.buffer()[range]).into_owned()))
                    };
                    bytes += row.buffer().len();
                    if bytes > ANSWER_BYTES_MAX {
                        return Err(Error::Other("the server's answer is too long".to_owned()));
                    }
                    rows.push(row.ranges().map(text).collect()?);
                }
                Ok(Message::ErrorResponse(body)) => failure = Some(error_of(&body)),
                Ok(Message::ReadyForQuery(body)) => {
                    self.is_begun = body.status() != b'I';
                    self.is_broken = false;
                    return failure.map_or(Ok(rows), Err);
                }
                Ok(_) => return Err(unexpected("a query")),
                Err(error) => return Err(failure.unwrap_or(error)),
            }
        }
    }
}

impl Client for Connection {
    fn execute(&mut self, sql: &str) -> Result<()> {
        self.query(sql).map(drop)
    }

    fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        self.drain()?;
        frontend::query(sql, &mut self.stream.output)?;
        self.guarded(|this| {
            this.stream.send()?;
            this.read_text_rows()
        })
    }

    fn prepare(&mut self, sql: &str) -> Result<usize> {
        self.drain()?;
        let number = self.statements.len();
        let output = &mut self.stream.output;
        frontend::parse(&name(number), &numbered(sql), [], output)?;
        frontend::describe(b'S', &name(number), output)?;
        frontend::sync(output);
        let statement = self.guarded(|this| {
            this.stream.send()?;
            this.read_description()
        })?;
        self.statements.push(statement);
        Ok(number)
    }

    fn run(&mut self, statement: usize, params: &[Value]) -> Result<u64> {
        self.push(statement, params, 0)?;
        self.finish_without_rows()
    }

    fn queue(&mut self, statement: usize, params: &[Value], rows_min: u64) -> Result<()> {
        self.push(statement, params, rows_min)?;
        if self.stream.output.len() > QUEUED_BYTES_MAX { self.drain() } else { Ok(()) }
    }

    fn select(&mut self, statement: usize, params: &[Value], visit: &mut VisitRow<'_>) -> anyhow::Result<()> {
        self.push(statement, params, 0)?;
        self.finish(visit).map(drop)
    }

    fn begin(&mut self) -> Result<()> {
        if !self.is_begun {
            self.push(BEGIN, &[], 0)?;
            self.is_begun = true;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.push(COMMIT, &[], 0)?;
        self.finish_without_rows().map(drop)
    }

    fn roll_back(&mut self) -> Result<()> {
        // What was not sent need not be undone.
        self.stream.output.clear();
        self.queued.clear();
        self.execute("ROLLBACK")
    }
}

/// Says goodbye, so that the server's log does not complain.
impl Drop for Connection {
    fn drop(&mut self) {
        if !self.is_broken {
            self.stream.output.clear();
            frontend::terminate(&mut self.stream.output);
            let _ = self.stream.send();
        }
    }
}

/// Name of a statement on the server.
fn name(statement: usize) -> String {
    format!("s{statement}")
}

/// The same statement with numbers in the places of parameters. Our statements have no question marks elsewhere.
fn numbered(sql: &str) -> String {
    let mut parts = sql.split('?');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (number, part) in parts.enumerate() {
        text += &format!("${}{part}", number + 1);
    }
    text
}

/// Rows that a statement found, by what the server says at its end: `UPDATE 3`, `INSERT 0 3`, `COMMIT`.
fn rows_of(tag: &str) -> u64 {
    tag.rsplit(' ').next().and_then(|last| last.parse().ok()).unwrap_or(0)
}

fn values(row: &DataRowBody, columns: &[Kind]) -> Result<Vec<Value>> {
    let mut ranges = row.ranges();
    let mut values = Vec::with_capacity(columns.len());
    let bad = || Error::Other(BAD_ROW.to_owned());
    for column in columns {
        values.push(match ranges.next()?.ok_or_else(bad)? {
            None => Value::Null,
            Some(range) => column.read(&row.buffer()[range]).ok_or_else(bad)?,
        });
    }
    if ranges.next()?.is_some() { Err(bad()) } else { Ok(values) }
}

/// A server that says these bytes, whatever it is told.
#[cfg(any(test, feature = "fuzzing"))]
#[derive(Debug)]
pub(super) struct Scripted(pub(super) std::io::Cursor<Vec<u8>>);

#[cfg(any(test, feature = "fuzzing"))]
impl std::io::Read for Scripted {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl std::io::Write for Scripted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Wire for Scripted {
    fn set_patience(&mut self, _patience: Option<std::time::Duration>) -> std::io::Result<()> {
        Ok(())
    }
}

/// A whole conversation with a server that says these bytes, of which every part may fail; see fuzz/.
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(feature = "fuzzing"), expect(unreachable_pub, reason = "fuzz/ alone sees it"))]
pub fn fuzz(bytes: &[u8]) {
    let login = Login { user: "u".to_owned(), password: "p".to_owned(), database: None };
    let wire = Box::new(Scripted(std::io::Cursor::new(bytes.to_vec())));
    let Ok(mut connection) = Connection::over(wire, &login) else { return };
    if connection.prepare_transactions().is_err() {
        return;
    }
    let _ = connection.query("SHOW x");
    let Ok(statement) = connection.prepare("UPDATE t SET x = ?") else { return };
    let params = vec![Value::Int(1); connection.statements[statement].params.len()];
    let _ = connection.begin();
    let _ = connection.queue(statement, &params, 1);
    let _ = connection.select(statement, &params, &mut |row| {
        assert!(row.len() <= usize::from(u16::MAX), "a row of {} columns", row.len());
        Ok(ControlFlow::Continue(()))
    });
    let _ = connection.run(statement, &params);
    let _ = connection.commit();
    let _ = connection.roll_back();
}
