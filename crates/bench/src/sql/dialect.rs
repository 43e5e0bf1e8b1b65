use std::{fmt::Debug, path::Path};

use anyhow::{Result, bail};

use super::{
    address::{Address, Login},
    client::{self, Client},
    definition::Definition,
    settings::Changed,
};

/// How a server keeps the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Uncompressed.
    Plain,
    /// InnoDB's ROW_FORMAT=COMPRESSED with KEY_BLOCK_SIZE=8, the older scheme (zlib).
    Row,
    /// InnoDB's PAGE_COMPRESSED=1 with this algorithm: lz4, zlib, lzo, lzma, bzip2 or snappy.
    Page(String),
    /// MyRocks: ENGINE=ROCKSDB, compressed as the server's `rocksdb_default_cf_options` say.
    Rocks,
}

/// What is different from server to server.
pub(crate) trait Dialect: Debug + Send + Sync {
    /// Connects, with the settings of a benchmark's transactions.
    fn connect(&self, address: &Address, login: &Login) -> client::Result<Box<dyn Client>>;

    /// Connects to the server and makes the database of the login when it is missing and `makes`; a connection that
    /// finds tables by the names of [`Self::table`].
    fn enter(&self, address: &Address, login: &Login, makes: bool) -> Result<Box<dyn Client>>;

    /// Name of a table for connections of [`Self::enter`] and [`Self::connect`].
    fn table(&self, database: &str, table: &str) -> String;

    /// Those of the tables that the database has.
    fn present(&self, client: &mut dyn Client, database: &str, tables: &[&str]) -> Result<Vec<String>>;

    /// Changes the settings of the server without which it does not keep tables so, for as long as the result lives.
    fn begin(
        &self,
        client: &mut dyn Client,
        place: (&Address, &Login),
        format: &Format,
    ) -> Result<Option<Changed>>;

    /// Makes a table.
    fn create(
        &self,
        client: &mut dyn Client,
        database: &str,
        table: &Definition,
        format: &Format,
    ) -> Result<()>;

    /// The directory of the server's data.
    fn data_directory(&self, client: &mut dyn Client) -> Result<String>;

    /// Its process, if it runs on this machine.
    fn process(&self, client: &mut dyn Client, data_directory: &Path) -> Result<Option<u32>>;

    /// Lets the server do all work that it put off.
    fn settle(&self, client: &mut dyn Client, place: (&Address, &Login), tables: &[&str]) -> Result<()>;

    /// Length of the tables, and space that they take.
    fn sizes(&self, client: &mut dyn Client, database: &str, data_directory: &Path) -> Result<(u64, u64)>;

    /// Bytes that the server counts as written.
    fn written(&self, client: &mut dyn Client) -> Result<u64>;

    /// The name of that counter.
    fn written_name(&self) -> &'static str;

    /// Version, settings that matter for comparisons, and counters, by name.
    fn facts(&self, client: &mut dyn Client) -> Result<Vec<(String, String)>>;

    /// Words behind a table's name in a query that has to use an index.
    fn force_index(&self, index: &str) -> String;

    /// Words between an insertion and the changes that are made where the key is there already.
    fn on_duplicate(&self, key: &str) -> String;

    /// The value of a column that was to be inserted, in such a change.
    fn inserted(&self, column: &str) -> String;

    /// A number of 64 bits with a sign, in a conversion.
    fn big_number(&self) -> &'static str;
}

/// The single value that a query returns.
pub(crate) fn value(client: &mut dyn Client, query: &str) -> Result<String> {
    let rows = client.query(query)?;
    match rows.into_iter().flatten().flatten().next() {
        Some(value) => Ok(value),
        None => bail!("no answer to {query}"),
    }
}

/// Rows of two columns, a name and a value.
pub(crate) fn pairs(client: &mut dyn Client, query: &str) -> Result<Vec<(String, String)>> {
    let pair = |row: Vec<Option<String>>| match <[_; 2]>::try_from(row) {
        Ok([Some(name), Some(value)]) => Some((name.to_lowercase(), value)),
        _ => None,
    };
    Ok(client.query(query)?.into_iter().filter_map(pair).collect())
}
