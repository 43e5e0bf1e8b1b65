use std::{
    fmt,
    io::{BufReader, Read, Write},
    net::TcpStream,
    ops::ControlFlow,
    os::unix::net::UnixStream,
    path::PathBuf,
    str::FromStr,
};

use super::{
    Error, Field, Param, Result,
    wire::{
        self, Column, NATIVE_PASSWORD, PACKET_BYTES_MAX, Reader, handshake, native_proof, parse_auth_switch,
        parse_column, parse_error, parse_greeting, parse_row, put_execute,
    },
};

const OK: u8 = 0x00;
const ERROR: u8 = 0xFF;
const END: u8 = 0xFE;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Socket(PathBuf),
    /// A host and a port.
    Tcp(String),
}

impl FromStr for Address {
    type Err = &'static str;

    /// A path holds a slash; anything else is `HOST:PORT`.
    fn from_str(text: &str) -> std::result::Result<Address, &'static str> {
        if text.contains('/') {
            return Ok(Address::Socket(text.into()));
        }
        let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(_)) => Ok(Address::Tcp(text.to_owned())),
            _ => Err("a server is the path of its socket, such as /run/mysqld/mysqld.sock, or HOST:PORT"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(path) => path.display().fmt(f),
            Address::Tcp(address) => address.fmt(f),
        }
    }
}

/// User, password and database of a connection.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// User.
    pub user: String,
    /// Password; empty for none.
    pub password: String,
    /// Database to begin in.
    pub database: Option<String>,
}

/// The result of a statement that returns no rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Rows that it found to change, whether or not they differ afterwards; a row that was replaced on
    /// a duplicate key counts twice.
    pub affected: u64,
}

/// A prepared statement of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    id: u32,
    params: usize,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection to a server. Statements run one after the other.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    version: String,
    /// Of the next packet within a command and its answer.
    sequence: u8,
    /// The packet that was read last.
    packet: Vec<u8>,
    /// The packet that is being sent, with space for its header.
    out: Vec<u8>,
    columns: Vec<Column>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// When no server listens there, when it refuses the login or wants a scheme other than the native password.
    pub fn connect(address: &Address, login: &Login) -> Result<Connection> {
        let stream: Box<dyn Stream> = match address {
            Address::Socket(path) => Box::new(UnixStream::connect(path)?),
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        };
        let mut connection = Connection {
            stream: BufReader::with_capacity(64 << 10, stream),
            version: String::new(),
            sequence: 0,
            packet: Vec::new(),
            out: Vec::new(),
            columns: Vec::new(),
        };
        connection.log_in(login)?;
        Ok(connection)
    }

    /// The server's version string.
    pub fn version(&self) -> &str {
        &self.version
    }

    fn log_in(&mut self, login: &Login) -> Result<()> {
        self.receive()?;
        let greeting = parse_greeting(&self.packet)?;
        // MariaDB puts this in front of its version, for old replicas.
        self.version = greeting.version.trim_start_matches("5.5.5-").to_owned();
        let proof = native_proof(&login.password, &greeting.scramble);
        // A server whose default is another scheme asks for it by name, or switches to ours.
        let plugin = if greeting.plugin.is_empty() { NATIVE_PASSWORD } else { &greeting.plugin };
        let proof = if plugin == NATIVE_PASSWORD { proof } else { Vec::new() };
        let answer = handshake(&login.user, &proof, login.database.as_deref(), plugin);
        self.send(&answer)?;
        loop {
            self.receive()?;
            match self.packet.first() {
                Some(&OK) => return Ok(()),
                Some(&ERROR) => return Err(parse_error(&self.packet)),
                Some(&END) => {
                    let (plugin, scramble) = parse_auth_switch(&self.packet);
                    if plugin != NATIVE_PASSWORD {
                        let message = format!("the server wants to authenticate by {plugin}");
                        return Err(Error::Unsupported(message));
                    }
                    self.send(&native_proof(&login.password, &scramble))?;
                }
                _ => return Err(Error::Protocol("an answer to the login that is none")),
            }
        }
    }

    /// Runs a statement; rows that it may return are dropped.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub fn execute(&mut self, sql: &str) -> Result<Done> {
        self.begin_query(sql)?;
        let Some(columns) = self.receive_head()? else { return self.done() };
        self.receive_columns(columns)?;
        while self.receive_row()? {}
        Ok(Done { affected: 0 })
    }

    /// Runs a statement and returns all its rows as the server writes them, NULL as `None`.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        self.begin_query(sql)?;
        let Some(columns) = self.receive_head()? else { return Ok(Vec::new()) };
        self.receive_columns(columns)?;
        let mut rows = Vec::new();
        while self.receive_row()? {
            let mut reader = Reader(&self.packet);
            let row = (0..columns).map(|_| Ok(reader.string()?.map(wire::text))).collect::<Result<_>>()?;
            rows.push(row);
        }
        Ok(rows)
    }

    /// Prepares a statement.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    pub fn prepare(&mut self, sql: &str) -> Result<Statement> {
        self.command(0x16, sql.as_bytes())?;
        self.receive()?;
        let mut reader = Reader(&self.packet);
        match reader.u8()? {
            OK => {}
            ERROR => return Err(parse_error(&self.packet)),
            _ => return Err(Error::Protocol("an answer to PREPARE that is none")),
        }
        let id = reader.u32()?;
        let (columns, params) = (reader.u16()?, reader.u16()?);
        for described in [params, columns] {
            if described > 0 {
                self.receive_columns(usize::from(described))?;
            }
        }
        Ok(Statement { id, params: usize::from(params) })
    }

    /// Runs a prepared statement that returns no rows.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    ///
    /// # Panics
    /// When the number of parameters is not the statement's.
    pub fn run(&mut self, statement: Statement, params: &[Param<'_>]) -> Result<Done> {
        self.begin_execute(statement, params)?;
        match self.receive_head()? {
            None => self.done(),
            Some(_) => Err(Error::Protocol("rows from a statement that has none")),
        }
    }

    /// Runs a prepared statement and visits its rows as they arrive; those after a break are read and
    /// dropped.
    ///
    /// # Errors
    /// Whatever the server answers, or a lost connection.
    ///
    /// # Panics
    /// When the number of parameters is not the statement's.
    pub fn select(
        &mut self,
        statement: Statement,
        params: &[Param<'_>],
        mut visit: impl FnMut(&[Field<'_>]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.begin_execute(statement, params)?;
        let columns = self.receive_head()?.ok_or(Error::Protocol("no rows from a SELECT"))?;
        self.receive_columns(columns)?;
        let mut going = Ok(ControlFlow::Continue(()));
        while self.receive_row()? {
            if matches!(going, Ok(ControlFlow::Continue(()))) {
                let mut fields = Vec::with_capacity(columns);
                going = parse_row(&self.packet, &self.columns, &mut fields).and_then(|()| visit(&fields));
            }
        }
        going.map(drop)
    }

    fn begin_query(&mut self, sql: &str) -> Result<()> {
        self.command(0x03, sql.as_bytes())
    }

    fn begin_execute(&mut self, statement: Statement, params: &[Param<'_>]) -> Result<()> {
        assert_eq!(params.len(), statement.params, "parameters of a statement");
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        out.resize(4, 0);
        put_execute(&mut out, statement.id, params);
        self.out = out;
        self.sequence = 0;
        self.send_out()
    }

    fn command(&mut self, code: u8, body: &[u8]) -> Result<()> {
        self.sequence = 0;
        self.out.clear();
        self.out.extend_from_slice(&[0, 0, 0, 0, code]);
        self.out.extend_from_slice(body);
        self.send_out()
    }

    fn send(&mut self, body: &[u8]) -> Result<()> {
        self.out.clear();
        self.out.extend_from_slice(&[0; 4]);
        self.out.extend_from_slice(body);
        self.send_out()
    }

    /// Sends the content of `out` after the header's four bytes.
    fn send_out(&mut self) -> Result<()> {
        let length = self.out.len() - 4;
        if length > PACKET_BYTES_MAX {
            return Err(Error::Unsupported(format!("a statement of {length} bytes")));
        }
        self.out[..3].copy_from_slice(&(length as u32).to_le_bytes()[..3]);
        self.out[3] = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        let stream = self.stream.get_mut();
        stream.write_all(&self.out)?;
        Ok(stream.flush()?)
    }

    /// Reads the next packet into `packet`.
    fn receive(&mut self) -> Result<()> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
        if header[3] != self.sequence {
            return Err(Error::Protocol("packets are out of order"));
        }
        if length > PACKET_BYTES_MAX {
            return Err(Error::Protocol("a packet in several parts"));
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.packet.resize(length, 0);
        Ok(self.stream.read_exact(&mut self.packet)?)
    }

    /// Reads the start of an answer: the number of columns, or `None` when it has no rows.
    fn receive_head(&mut self) -> Result<Option<usize>> {
        self.receive()?;
        match self.packet.first() {
            Some(&OK) => Ok(None),
            Some(&ERROR) => Err(parse_error(&self.packet)),
            Some(0xFB) => Err(Error::Unsupported("LOAD DATA LOCAL".to_owned())),
            Some(_) => {
                let columns = Reader(&self.packet).number()?;
                Ok(Some(usize::try_from(columns).map_err(|_| Error::Protocol("too many columns"))?))
            }
            None => Err(Error::Protocol("an empty answer")),
        }
    }

    fn done(&self) -> Result<Done> {
        let mut reader = Reader(&self.packet);
        reader.u8()?;
        Ok(Done { affected: reader.number()? })
    }

    fn receive_columns(&mut self, columns: usize) -> Result<()> {
        self.columns.clear();
        for _ in 0..columns {
            self.receive()?;
            self.columns.push(parse_column(&self.packet)?);
        }
        self.receive()?;
        match self.packet.first() {
            Some(&END) if self.packet.len() < 9 => Ok(()),
            _ => Err(Error::Protocol("no end of the columns")),
        }
    }

    /// Reads the next row into `packet`; returns whether there was one.
    fn receive_row(&mut self) -> Result<bool> {
        self.receive()?;
        match self.packet.first() {
            Some(&END) if self.packet.len() < 9 => Ok(false),
            Some(&ERROR) => Err(parse_error(&self.packet)),
            Some(_) => Ok(true),
            None => Err(Error::Protocol("an empty row")),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // COM_QUIT: the server closes without a warning in its log. It may be gone.
        let _ = self.command(0x01, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        assert_eq!("/run/x.sock".parse(), Ok(Address::Socket("/run/x.sock".into())));
        assert_eq!("./x".parse(), Ok(Address::Socket("./x".into())));
        assert_eq!("localhost:3306".parse(), Ok(Address::Tcp("localhost:3306".to_owned())));
        for bad in ["localhost", "localhost:", "localhost:99999", ""] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
