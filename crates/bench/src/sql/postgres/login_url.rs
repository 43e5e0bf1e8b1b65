use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::sql::address::Address;

/// Port of a server that names none.
const PORT: u16 = 5432;
const FORMS: &str = "a server is HOST:PORT, the directory of its socket, such as /run/postgresql, or \
    postgres://USER:PASSWORD@HOST:PORT/DATABASE, with ?host=DIRECTORY for a socket";

/// A server, and what its address says of user and database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginUrl {
    /// Where it listens.
    pub address: Address,
    /// User, if the address names one.
    pub user: Option<String>,
    /// Password, if the address has one.
    pub password: Option<String>,
    /// Database, if the address names one.
    pub database: Option<String>,
}

impl LoginUrl {
    fn at(address: Address) -> LoginUrl {
        LoginUrl { address, user: None, password: None, database: None }
    }
}

impl FromStr for LoginUrl {
    type Err = String;

    /// A URL as libpq has them, the path of a socket or of its directory (with a slash in it), or `HOST:PORT`.
    fn from_str(text: &str) -> Result<LoginUrl, String> {
        let url = ["postgres://", "postgresql://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        match url {
            Some(url) => of_url(url),
            None if text.contains("://") => Err(FORMS.to_owned()),
            None if text.contains('/') => Ok(LoginUrl::at(Address::Socket(socket(Path::new(text), PORT)))),
            None => text.parse().map(LoginUrl::at).map_err(|_| FORMS.to_owned()),
        }
    }
}

/// The socket in a directory; a path that has the name of a socket is one.
fn socket(path: &Path, port: u16) -> PathBuf {
    let is_socket = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".s.PGSQL."));
    if is_socket { path.to_owned() } else { path.join(format!(".s.PGSQL.{port}")) }
}

fn of_url(url: &str) -> Result<LoginUrl, String> {
    let (url, options) = url.split_once('?').unwrap_or((url, ""));
    let (place, database) = url.split_once('/').unwrap_or((url, ""));
    let (login, place) = place.rsplit_once('@').unwrap_or(("", place));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    // The port is behind the brackets of an address of IPv6.
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (place, ""),
    };
    let mut host = decoded(host.trim_start_matches('[').trim_end_matches(']'))?;
    let mut port = decoded(port)?;
    let (mut user, mut password) = (decoded(user)?, decoded(password)?);
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let value = decoded(value)?;
        match name {
            "host" => host = value,
            "port" => port = value,
            "user" => user = value,
            "password" => password = value,
            _ => return Err(format!("{name}: known options are host, port, user and password")),
        }
    }
    let port = if port.is_empty() { Ok(PORT) } else { port.parse() };
    let port = port.map_err(|_| FORMS.to_owned())?;
    let address = match host.as_str() {
        "" => Address::Tcp("localhost".to_owned(), port),
        path if path.contains('/') => Address::Socket(socket(Path::new(path), port)),
        _ => Address::Tcp(host, port),
    };
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    Ok(LoginUrl {
        address,
        user: given(user),
        password: given(password),
        database: given(decoded(database)?),
    })
}

/// Text with its escapes (`%2F`) resolved.
fn decoded(text: &str) -> Result<String, String> {
    let bad = || format!("{text:?} has an escape that is none");
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        out.push(match byte {
            b'%' => {
                let high = digit(bytes.next()).ok_or_else(bad)?;
                (high << 4 | digit(bytes.next()).ok_or_else(bad)?) as u8
            }
            _ => byte,
        });
    }
    // A zero would end the name in the protocol.
    String::from_utf8(out).ok().filter(|text| !text.contains('\0')).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    #[test]
    fn urls_are_taken_apart() {
        let url: LoginUrl = "postgres://me:p%40ss@db.example:6000/bench".parse().unwrap();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(url.address, tcp("db.example", 6000));
        assert_eq!((url.user, url.password, url.database), (some("me"), some("p@ss"), some("bench")));
        let socket = |path: &str| Address::Socket(path.into());
        for (text, address) in [
            ("localhost:5433", tcp("localhost", 5433)),
            ("postgres://", tcp("localhost", 5432)),
            ("postgresql://host", tcp("host", 5432)),
            ("postgres://[::1]:7/x", tcp("::1", 7)),
            ("postgres://[::1]", tcp("::1", 5432)),
            ("postgres:///bench?host=/run/postgresql", socket("/run/postgresql/.s.PGSQL.5432")),
            ("postgres://%2Frun%2Fpg:1/bench", socket("/run/pg/.s.PGSQL.1")),
            ("postgres:///?host=/run/pg&port=7&user=me", socket("/run/pg/.s.PGSQL.7")),
            ("/run/postgresql", socket("/run/postgresql/.s.PGSQL.5432")),
            ("./.s.PGSQL.77", socket("./.s.PGSQL.77")),
        ] {
            assert_eq!(text.parse::<LoginUrl>().unwrap().address, address, "{text}");
        }
        for bad in [
            "",
            "localhost",
            "mysql://host/x",
            "postgres://host:port/x",
            "postgres://host/%4",
            "postgres://host/%zz",
            "postgres://host/%00",
            "postgres://host/x?sslmode=require",
        ] {
            assert!(bad.parse::<LoginUrl>().is_err(), "{bad}");
        }
    }
}
