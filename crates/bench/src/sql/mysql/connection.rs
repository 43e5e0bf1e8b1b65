//! Connections to a MariaDB server: the crate `mysql`, set up for a benchmark.
//!
//! The client asks the server nothing on its own: it does not look for a socket, ask for limits, or close statements
//! that are rarely used.

use std::ops::ControlFlow;

use ::mysql::{Conn, OptsBuilder, Statement, consts::CapabilityFlags, prelude::Queryable};

use crate::sql::{
    address::{Address, Login},
    client::{Client, Error, Result, VisitRow},
    value::Value,
};

/// Longest packet that is sent.
const PACKET_BYTES_MAX: usize = 16 << 20;

impl From<::mysql::Error> for Error {
    fn from(error: ::mysql::Error) -> Error {
        match error {
            ::mysql::Error::MySqlError(error) => {
                let text = format!("{} (error {})", error.message, error.code);
                match error.code {
                    1205 | 1213 | 1020 => Error::LostRace(text),
                    1062 => Error::Duplicate(text),
                    _ => Error::Other(text),
                }
            }
            ::mysql::Error::DriverError(error) => Error::Other(error.to_string()),
            ::mysql::Error::IoError(error) => Error::Other(error.to_string()),
            other => Error::Other(other.to_string()),
        }
    }
}

/// A connection to a server. Statements run one after the other.
#[derive(Debug)]
pub struct Connection {
    conn: Conn,
    statements: Vec<Statement>,
}

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// When no server listens there, or when it refuses the login.
    pub fn connect(address: &Address, login: &Login) -> Result<Connection> {
        let options = OptsBuilder::new()
            .user(Some(&login.user))
            .pass(Some(&login.password).filter(|password| !password.is_empty()))
            .db_name(login.database.as_ref())
            // Every byte is a character of its own, so nothing is converted on the way.
            .init(vec!["SET NAMES latin1"])
            // An update counts the rows that it finds, whether or not they differ afterwards.
            .additional_capabilities(CapabilityFlags::CLIENT_FOUND_ROWS)
            .max_allowed_packet(Some(PACKET_BYTES_MAX))
            .prefer_socket(false)
            .stmt_cache_size(0);
        let options = match address {
            Address::Socket(path) => options.socket(Some(path.to_string_lossy())),
            Address::Tcp(host, port) => options.ip_or_hostname(Some(host)).tcp_port(*port),
        };
        Ok(Connection { conn: Conn::new(options)?, statements: Vec::new() })
    }

    /// Runs a statement; rows that it may return are dropped.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub fn execute(&mut self, sql: &str) -> Result<()> {
        Ok(self.conn.query_drop(sql)?)
    }

    /// Runs a statement and returns all its rows as the server writes them, NULL as `None`.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        let text = |value| match value {
            ::mysql::Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            _ => None,
        };
        let rows = self.conn.query_iter(sql)?.map(|row| Ok(row?.unwrap().into_iter().map(text).collect()));
        rows.collect()
    }
}

impl Client for Connection {
    fn execute(&mut self, sql: &str) -> Result<()> {
        Connection::execute(self, sql)
    }

    fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        Connection::query(self, sql)
    }

    fn prepare(&mut self, sql: &str) -> Result<usize> {
        self.statements.push(self.conn.prep(sql)?);
        Ok(self.statements.len() - 1)
    }

    /// A row that was replaced on a duplicate key counts twice.
    fn run(&mut self, statement: usize, params: &[Value]) -> Result<u64> {
        let statement = &self.statements[statement];
        Ok(self.conn.exec_iter(statement, sent(params))?.affected_rows())
    }

    fn select(&mut self, statement: usize, params: &[Value], visit: &mut VisitRow<'_>) -> anyhow::Result<()> {
        let statement = &self.statements[statement];
        for row in self.conn.exec_iter(statement, sent(params)).map_err(Error::from)? {
            let row: Vec<Value> =
                row.map_err(Error::from)?.unwrap().into_iter().map(received).collect::<Result<_>>()?;
            if let ControlFlow::Break(()) = visit(&row)? {
                break;
            }
        }
        Ok(())
    }

    /// Without autocommit every statement does.
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.execute("COMMIT")
    }

    fn roll_back(&mut self) -> Result<()> {
        self.execute("ROLLBACK")
    }
}

fn sent(params: &[Value]) -> Vec<::mysql::Value> {
    let sent = |param: &Value| match param {
        Value::Null => ::mysql::Value::NULL,
        Value::Int(number) => ::mysql::Value::Int(*number),
        Value::Bytes(bytes) => ::mysql::Value::Bytes(bytes.clone()),
    };
    params.iter().map(sent).collect()
}

fn received(value: ::mysql::Value) -> Result<Value> {
    match value {
        ::mysql::Value::NULL => Ok(Value::Null),
        ::mysql::Value::Int(number) => Ok(Value::Int(number)),
        ::mysql::Value::UInt(number) if number <= i64::MAX as u64 => Ok(Value::Int(number as i64)),
        ::mysql::Value::Bytes(bytes) => Ok(Value::Bytes(bytes)),
        other => Err(Error::Other(format!("the server sent {other:?}, which no column can hold"))),
    }
}
