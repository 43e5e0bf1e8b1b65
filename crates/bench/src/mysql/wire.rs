//! The bytes on the wire: pure functions between packets and values.

use sha1_smol::Sha1;

use super::{Error, Result};

/// The client's capabilities: new passwords, found instead of changed rows, protocol 4.1, transactions in the status,
/// authentication by plug-in.
const CAPABILITIES: u32 = 0x1 | 0x2 | 0x4 | 0x200 | 0x2000 | 0x8000 | 0x8_0000;
/// The capabilities that the server must offer: protocol 4.1, new passwords, authentication by plug-in.
const CAPABILITIES_NEEDED: u32 = 0x200 | 0x8000 | 0x8_0000;
const CAPABILITY_DATABASE: u32 = 0x8;
/// latin1_swedish_ci: every byte is a character of its own, so nothing is converted on the way.
const CHARSET_LATIN1: u8 = 8;
/// Longest packet that is sent or accepted.
pub(super) const PACKET_BYTES_MAX: usize = (1 << 24) - 2;
/// The only password scheme that is spoken.
pub(super) const NATIVE_PASSWORD: &str = "mysql_native_password";

const TYPE_TINY: u8 = 1;
const TYPE_SHORT: u8 = 2;
const TYPE_LONG: u8 = 3;
const TYPE_LONGLONG: u8 = 8;
const TYPE_INT24: u8 = 9;

/// A value for a placeholder of a prepared statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param<'a> {
    /// A number.
    Uint(u64),
    /// A string of bytes.
    Bytes(&'a [u8]),
}

/// A value in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// NULL.
    Null,
    /// A whole number; negative ones are sign-extended.
    Uint(u64),
    /// Anything else, as the server writes it.
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    /// The number in it.
    ///
    /// # Errors
    /// When it is something else.
    pub fn uint(self) -> Result<u64> {
        match self {
            Field::Uint(number) => Ok(number),
            _ => Err(Error::Protocol("a column that should hold a number does not")),
        }
    }

    /// The bytes in it.
    ///
    /// # Errors
    /// When it is something else.
    pub fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Field::Bytes(bytes) => Ok(bytes),
            _ => Err(Error::Protocol("a column that should hold a string does not")),
        }
    }
}

/// Takes values off the front of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(bytes).ok_or(Error::Protocol("a packet is cut"))?;
        self.0 = rest;
        Ok(head)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many as were taken"))
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.fixed::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.fixed()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.fixed()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.fixed()?))
    }

    /// Bytes up to a zero, which is dropped; or the rest.
    fn until_zero(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        let text = &self.0[..end];
        self.0 = self.0.get(end + 1..).unwrap_or_default();
        text
    }

    /// A length-encoded number; `None` stands for NULL.
    fn length(&mut self) -> Result<Option<u64>> {
        Ok(Some(match self.u8()? {
            small @ 0..=0xFA => u64::from(small),
            0xFB => return Ok(None),
            0xFC => u64::from(self.u16()?),
            0xFD => {
                let [a, b, c] = self.fixed()?;
                u64::from(u32::from_le_bytes([a, b, c, 0]))
            }
            0xFE => self.u64()?,
            0xFF => return Err(Error::Protocol("a length that is none")),
        }))
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        self.length()?.ok_or(Error::Protocol("NULL where a number belongs"))
    }

    /// A length-encoded string.
    pub(super) fn string(&mut self) -> Result<Option<&'a [u8]>> {
        let Some(length) = self.length()? else { return Ok(None) };
        let length = usize::try_from(length).map_err(|_| Error::Protocol("a string without end"))?;
        Ok(Some(self.take(length)?))
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    match length {
        0..=0xFA => out.push(length as u8),
        0xFB..=0xFFFF => {
            out.push(0xFC);
            out.extend_from_slice(&(length as u16).to_le_bytes());
        }
        _ => {
            assert!(length <= PACKET_BYTES_MAX, "a string of {length} bytes fits no packet");
            out.push(0xFD);
            out.extend_from_slice(&(length as u32).to_le_bytes()[..3]);
        }
    }
}

/// The server's first packet.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) version: String,
    pub(super) scramble: Vec<u8>,
    pub(super) plugin: String,
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn parse_greeting(packet: &[u8]) -> Result<Greeting> {
    let mut reader = Reader(packet);
    match reader.u8()? {
        10 => {}
        0xFF => return Err(parse_error(packet)),
        _ => return Err(Error::Protocol("not a MySQL server, or one of another age")),
    }
    let version = text(reader.until_zero());
    reader.u32()?; // number of the connection
    let mut scramble = reader.take(8)?.to_vec();
    reader.u8()?;
    let low = reader.u16()?;
    reader.take(3)?; // character set and status
    let capabilities = u32::from(low) | u32::from(reader.u16()?) << 16;
    if capabilities & CAPABILITIES_NEEDED != CAPABILITIES_NEEDED {
        return Err(Error::Unsupported(format!("a server of version {version}: too old")));
    }
    let length = usize::from(reader.u8()?);
    reader.take(10)?;
    scramble.extend_from_slice(reader.take(length.saturating_sub(8).max(13))?);
    scramble.truncate(20); // a zero ends it
    Ok(Greeting { version, scramble, plugin: text(reader.until_zero()) })
}

/// The answer to the greeting.
pub(super) fn handshake(user: &str, proof: &[u8], database: Option<&str>, plugin: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let capabilities = CAPABILITIES | if database.is_some() { CAPABILITY_DATABASE } else { 0 };
    out.extend_from_slice(&capabilities.to_le_bytes());
    out.extend_from_slice(&(PACKET_BYTES_MAX as u32).to_le_bytes());
    out.push(CHARSET_LATIN1);
    out.extend_from_slice(&[0; 23]);
    out.extend_from_slice(user.as_bytes());
    out.push(0);
    out.push(u8::try_from(proof.len()).expect("a proof is short"));
    out.extend_from_slice(proof);
    if let Some(database) = database {
        out.extend_from_slice(database.as_bytes());
        out.push(0);
    }
    out.extend_from_slice(plugin.as_bytes());
    out.push(0);
    out
}

/// Proves to the server that the client knows the password, without sending it: SHA1(p) xor SHA1(scramble,
/// SHA1(SHA1(p))). An empty one has no proof.
pub(super) fn native_proof(password: &str, scramble: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let sha1 = |bytes: &[u8]| Sha1::from(bytes).digest().bytes();
    let once = sha1(password.as_bytes());
    let mask = sha1(&[scramble, &sha1(&once)].concat());
    once.iter().zip(mask).map(|(a, b)| a ^ b).collect()
}

/// Asked for another scheme: its name and the new scramble.
pub(super) fn parse_auth_switch(packet: &[u8]) -> (String, Vec<u8>) {
    let mut reader = Reader(packet.get(1..).unwrap_or_default());
    let plugin = text(reader.until_zero());
    let scramble = reader.0.strip_suffix(&[0]).unwrap_or(reader.0);
    (plugin, scramble.to_vec())
}

/// An ERR packet.
pub(super) fn parse_error(packet: &[u8]) -> Error {
    let mut reader = Reader(packet);
    let Ok((_, code)) = reader.u8().and_then(|kind| Ok((kind, reader.u16()?))) else {
        return Error::Protocol("an error that is cut");
    };
    let rest = reader.0;
    let message = if rest.first() == Some(&b'#') { rest.get(6..).unwrap_or_default() } else { rest };
    Error::Server { code, message: text(message) }
}

/// Type of a column, as far as its values on the wire differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// A number of so many bytes.
    Int {
        bytes: usize,
        signed: bool,
    },
    Bytes,
    /// Something that this client does not read in prepared statements.
    Other,
}

pub(super) fn parse_column(packet: &[u8]) -> Result<Column> {
    let mut reader = Reader(packet);
    for _ in 0..6 {
        reader.string()?; // catalogue, schema, table, its real name, column, its real name
    }
    reader.number()?;
    reader.take(6)?; // character set, length
    let kind = reader.u8()?;
    let signed = reader.u16()? & 0x20 == 0;
    let int = |bytes| Column::Int { bytes, signed };
    Ok(match kind {
        TYPE_TINY => int(1),
        TYPE_SHORT => int(2),
        TYPE_LONG | TYPE_INT24 => int(4),
        TYPE_LONGLONG => int(8),
        0 | 15 | 16 | 245..=255 => Column::Bytes,
        _ => Column::Other,
    })
}

/// A row of a prepared statement's result.
pub(super) fn parse_row<'a>(packet: &'a [u8], columns: &[Column], fields: &mut Vec<Field<'a>>) -> Result<()> {
    let mut reader = Reader(packet);
    reader.u8()?;
    let nulls = reader.take((columns.len() + 9) / 8)?;
    fields.clear();
    for (index, column) in columns.iter().enumerate() {
        if nulls[(index + 2) / 8] & (1 << ((index + 2) % 8)) != 0 {
            fields.push(Field::Null);
            continue;
        }
        fields.push(match *column {
            Column::Int { bytes, signed } => {
                let value = reader.take(bytes)?;
                let negative = signed && value[bytes - 1] & 0x80 != 0;
                let mut whole = [if negative { 0xFF } else { 0 }; 8];
                whole[..bytes].copy_from_slice(value);
                Field::Uint(u64::from_le_bytes(whole))
            }
            Column::Bytes => reader.string()?.map_or(Field::Null, Field::Bytes),
            Column::Other => return Err(Error::Unsupported("a column of a type that is not read".into())),
        });
    }
    Ok(())
}

/// COM_STMT_EXECUTE.
pub(super) fn put_execute(out: &mut Vec<u8>, statement: u32, params: &[Param<'_>]) {
    out.push(0x17);
    out.extend_from_slice(&statement.to_le_bytes());
    out.extend_from_slice(&[0, 1, 0, 0, 0]); // no cursor, once
    if params.is_empty() {
        return;
    }
    out.resize(out.len() + params.len().div_ceil(8), 0); // none is NULL
    out.push(1); // types follow
    for param in params {
        out.extend_from_slice(match param {
            Param::Uint(_) => &[TYPE_LONGLONG, 0x80],
            Param::Bytes(_) => &[253, 0],
        });
    }
    for param in params {
        match param {
            Param::Uint(number) => out.extend_from_slice(&number.to_le_bytes()),
            Param::Bytes(bytes) => {
                put_length(out, bytes.len());
                out.extend_from_slice(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_come_back() {
        for length in [0, 1, 0xFA, 0xFB, 0xFFFF, 0x1_0000, 1 << 20] {
            let mut out = Vec::new();
            put_length(&mut out, length);
            assert_eq!(Reader(&out).number().unwrap(), length as u64);
            for cut in 0..out.len() {
                assert!(Reader(&out[..cut]).number().is_err());
            }
        }
        assert_eq!(Reader(&[0xFB]).string().unwrap(), None);
        assert!(Reader(&[0xFF]).number().is_err());
        assert!(Reader(&[0xFE, 255, 255, 255, 255, 255, 255, 255, 255]).string().is_err());
    }

    /// A server stores SHA1(SHA1(p)): it checks the proof by undoing the mask.
    #[test]
    fn the_server_can_check_the_proof() {
        let scramble = *b"abcdefghijklmnopqrst";
        let proof = native_proof("secret", &scramble);
        let sha1 = |bytes: &[u8]| Sha1::from(bytes).digest().bytes();
        let stored = sha1(&sha1(b"secret"));
        let mask = sha1(&[&scramble[..], &stored].concat());
        let once: Vec<u8> = proof.iter().zip(mask).map(|(a, b)| a ^ b).collect();
        assert_eq!(sha1(&once), stored);
        assert!(native_proof("", &scramble).is_empty());
    }

    #[test]
    fn rows_are_read_by_their_columns() {
        let columns = [
            Column::Int { bytes: 8, signed: false },
            Column::Int { bytes: 1, signed: true },
            Column::Bytes,
            Column::Bytes,
        ];
        let mut packet = vec![0, 1 << 5];
        packet.extend_from_slice(&7u64.to_le_bytes());
        packet.extend_from_slice(&[0xFE, 2, b'h', b'i']);
        let mut fields = Vec::new();
        parse_row(&packet, &columns, &mut fields).unwrap();
        assert_eq!(fields, [Field::Uint(7), Field::Uint(-2i64 as u64), Field::Bytes(b"hi"), Field::Null]);
        for cut in 0..packet.len() {
            assert!(parse_row(&packet[..cut], &columns, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn errors_are_read() {
        let error = parse_error(b"\xFF\xBD\x04#40001Deadlock found");
        assert!(error.is_retryable() && error.to_string() == "Deadlock found (error 1213)");
        assert!(matches!(parse_error(&[0xFF]), Error::Protocol(_)));
        assert!(matches!(parse_greeting(&[4, 5, 6]), Err(Error::Protocol(_))));
    }
}
