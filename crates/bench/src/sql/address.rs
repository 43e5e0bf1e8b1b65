use std::{fmt, path::PathBuf, str::FromStr};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Socket(PathBuf),
    /// A host and a port.
    Tcp(String, u16),
}

impl FromStr for Address {
    type Err = &'static str;

    /// A path holds a slash; anything else is `HOST:PORT`.
    fn from_str(text: &str) -> Result<Address, &'static str> {
        if text.contains('/') {
            return Ok(Address::Socket(text.into()));
        }
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = parts
            .ok_or("a server is the path of its socket, such as /run/mysqld/mysqld.sock, or HOST:PORT")?;
        Ok(Address::Tcp(host.to_owned(), port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(path) => path.display().fmt(f),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        assert_eq!("/run/x.sock".parse(), Ok(Address::Socket("/run/x.sock".into())));
        assert_eq!("./x".parse(), Ok(Address::Socket("./x".into())));
        assert_eq!("localhost:3306".parse(), Ok(Address::Tcp("localhost".to_owned(), 3306)));
        for bad in ["localhost", "localhost:", "localhost:99999", ""] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
