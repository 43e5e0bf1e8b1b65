//! Benchmarks on the tables of a server: options, runs, and what reports say of it.

use anyhow::{Result, bail};
use clap::Args;
use lacuna_bench::sql::{Address, Format, Login, OnServer, Written};
use serde_json::{Map, Value, json};

use crate::tables::Kind;

/// Options of a server.
#[derive(Args)]
pub(crate) struct SqlOptions {
    /// Use the tables of a MySQL or MariaDB server, at its socket or HOST:PORT, not our engine
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["store", "size", "pool", "trace", "algorithm"])]
    pub(crate) mysql: Option<Address>,
    /// With --mysql: user to connect as
    #[arg(long, default_value = "root", requires = "mysql")]
    user: String,
    /// With --mysql: password, if any
    #[arg(long, default_value = "", requires = "mysql", hide_default_value = true)]
    password: String,
    /// With --mysql: database for the tables, by default named like the benchmark; made when missing
    #[arg(long, requires = "mysql")]
    database: Option<String>,
    /// With --mysql: compression of page tables: lz4, zlib, lzo, lzma, bzip2 or snappy, as far as the
    /// server has it
    #[arg(long, value_name = "ALGORITHM", default_value = "lz4", requires = "mysql")]
    innodb_algorithm: String,
    /// With --mysql: what bytes written are counted by: a block device, process (the server's
    /// /proc/PID/io), status (the server's own counter), or auto, the first of these that can be had
    #[arg(long, value_name = "COUNTER", default_value = "auto", requires = "mysql")]
    written_from: Written,
}

/// How the tables of a run are made.
pub(crate) struct Making<'a> {
    pub(crate) login: &'a Login,
    pub(crate) format: Format,
    pub(crate) written: Written,
    pub(crate) kind: Kind,
    /// Name of the compression.
    pub(crate) algorithm: &'a str,
}

/// Runs on a server, one for each kind of tables.
pub(crate) struct Runs<R> {
    pub(crate) runs: Vec<R>,
    facts: Vec<Vec<(String, String)>>,
    written_from: String,
}

impl SqlOptions {
    /// User, password and the database, which is `benchmark` by default.
    pub(crate) fn login(&self, benchmark: &str) -> Login {
        Login {
            user: self.user.clone(),
            password: self.password.clone(),
            database: Some(self.database.clone().unwrap_or_else(|| benchmark.to_owned())),
        }
    }

    /// Runs the kinds of tables one after the other; those of the last stay. `begin` comes first: a crash in between
    /// leaves an acknowledgement log that demands nothing.
    pub(crate) fn run_each<D: OnServer, L, R>(
        &self,
        login: &Login,
        kinds: &[Kind],
        begin: impl Fn() -> Result<L>,
        create: impl Fn(&Making<'_>) -> Result<D>,
        mut run: impl FnMut(&D, &Making<'_>, L) -> Result<R>,
    ) -> Result<Runs<R>> {
        if kinds.contains(&Kind::Adaptive) {
            bail!("--tables: a server has no adaptive tables");
        }
        let mut all = Runs { runs: Vec::new(), facts: Vec::new(), written_from: String::new() };
        for (number, &kind) in kinds.iter().enumerate() {
            let log = begin()?;
            let (format, algorithm) = match kind {
                Kind::Plain => (Format::Plain, "none"),
                Kind::Row => (Format::Row, "zlib"),
                Kind::Page => (Format::Page(self.innodb_algorithm.clone()), self.innodb_algorithm.as_str()),
                Kind::Adaptive => unreachable!("refused"),
            };
            let making = Making { login, format, written: self.written_from.clone(), kind, algorithm };
            let database = create(&making)?;
            all.runs.push(run(&database, &making, log)?);
            all.facts.push(database.server_facts()?);
            all.written_from = database.written_from();
            if number + 1 < kinds.len() {
                database.drop_tables()?;
            }
        }
        Ok(all)
    }

    /// Settings that every report names.
    pub(crate) fn as_json<R>(
        &self,
        server: &Address,
        login: &Login,
        kinds: &[Kind],
        runs: &Runs<R>,
    ) -> Map<String, Value> {
        let settings = [
            ("version", json!(env!("CARGO_PKG_VERSION"))),
            ("server", json!(server.to_string())),
            ("database", json!(login.database)),
            ("device_bytes_written_from", json!(runs.written_from)),
            ("tables", kinds.iter().map(|kind| kind.name()).collect()),
            ("algorithm", json!(self.innodb_algorithm)),
            ("isolation", json!("read committed")),
        ];
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

impl<R> Runs<R> {
    /// Settings and counters of the server after each run; numbers as numbers.
    pub(crate) fn servers(&self) -> Vec<Map<String, Value>> {
        let value =
            |text: &String| text.parse::<u64>().map_or_else(|_| Value::String(text.clone()), Value::from);
        let object = |facts: &Vec<(String, String)>| {
            facts.iter().map(|(name, text)| (name.clone(), value(text))).collect()
        };
        self.facts.iter().map(object).collect()
    }
}
