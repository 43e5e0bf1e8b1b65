//! Messages over a socket.
//!
//! 1. No more memory than the bytes that have arrived, and a piece: the length that a message announces is checked
//!    before anything is made of it.
//! 2. What is not a message, or longer than [`MESSAGE_BYTES_MAX`], is an error.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::Duration,
};

use bytes::BytesMut;
use postgres_protocol::message::backend::{Header, Message};

use crate::sql::{
    address::Address,
    client::{Error, Result},
};

/// Longest message that is accepted. Rows here are below 2 MiB.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Read at a time.
const PIECE_BYTES: usize = 32 << 10;

/// What carries the bytes.
pub(super) trait Wire: Read + Write + fmt::Debug + Send {
    /// How long a read waits at most.
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()>;
}

impl Wire for TcpStream {
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)
    }
}

impl Wire for UnixStream {
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)
    }
}

/// Connects to a server.
pub(super) fn dial(address: &Address) -> Result<Box<dyn Wire>> {
    Ok(match address {
        Address::Socket(path) => Box::new(UnixStream::connect(path)?),
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port))?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    })
}

/// Messages to and from a server.
#[derive(Debug)]
pub(super) struct Stream {
    wire: Box<dyn Wire>,
    input: BytesMut,
    /// Messages that are not sent yet.
    pub(super) output: BytesMut,
}

impl Stream {
    pub(super) fn new(wire: Box<dyn Wire>) -> Stream {
        Stream { wire, input: BytesMut::new(), output: BytesMut::new() }
    }

    pub(super) fn set_patience(&mut self, patience: Option<Duration>) -> Result<()> {
        Ok(self.wire.set_patience(patience)?)
    }

    /// Sends what waits.
    pub(super) fn send(&mut self) -> Result<()> {
        self.wire.write_all(&self.output)?;
        self.output.clear();
        Ok(self.wire.flush()?)
    }

    /// The next message that is an answer: not a notice or a setting, which a server sends when it likes.
    pub(super) fn receive(&mut self) -> Result<Message> {
        loop {
            match self.message()? {
                Message::NoticeResponse(_)
                | Message::ParameterStatus(_)
                | Message::NotificationResponse(_) => {}
                message => return Ok(message),
            }
        }
    }

    fn message(&mut self) -> Result<Message> {
        loop {
            if let Some(header) = Header::parse(&self.input)? {
                let length = usize::try_from(header.len()).unwrap_or(usize::MAX);
                if length > MESSAGE_BYTES_MAX {
                    return Err(Error::Other(format!("the server sent a message of {length} bytes")));
                }
                // Parsing an incomplete message would reserve what it announces.
                if self.input.len() > length {
                    let message = Message::parse(&mut self.input)?;
                    return message
                        .ok_or_else(|| Error::Other("the server sent part of a message".to_owned()));
                }
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> Result<()> {
        let mut piece = [0; PIECE_BYTES];
        let read = loop {
            match self.wire.read(&mut piece) {
                Ok(read) => break read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(Error::Other("the server does not answer".to_owned()));
                }
                Err(error) => return Err(error.into()),
            }
        };
        if read == 0 {
            return Err(Error::Other("the server closed the connection".to_owned()));
        }
        self.input.extend_from_slice(&piece[..read]);
        Ok(())
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Other(error.to_string())
    }
}
