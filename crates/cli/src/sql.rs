//! Benchmarks on the tables of a server: options, runs, and what reports say of it.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args, ValueEnum};
use lacuna_bench::sql::{
    Address, Brand, Format, Login, OnServer, Written, give_back_settings, postgres::LoginUrl,
};
use lacuna_nvmfs::LogDevicePath;
use serde_json::{Map, Value, json};

use crate::{keys, log_device, signals::before_the_end, tables::Kind};

/// Options that a server would have no use for.
const OF_OUR_ENGINE: [&str; 21] = [
    "store",
    "size",
    "pool",
    "trace",
    "algorithm",
    "level",
    "key_block_size",
    "row_algorithm",
    "row_level",
    "doublewrite",
    "atomic_writes",
    "trim",
    "elide_zero_tails",
    "packing",
    "checksums",
    "flush_threads",
    "wal_device",
    "encrypt_tables",
    "map_memory",
    "chunk_cache",
    "footprint",
];

/// Options of a server.
#[derive(Args)]
#[command(group = ArgGroup::new("server").args(["mysql", "postgres"]))]
pub(crate) struct SqlOptions {
    /// Use the tables of a MariaDB server, at its socket or HOST:PORT, not our engine; global settings that a run changes
    /// are told and go back at its end
    #[arg(
        long, value_name = "SERVER",
        conflicts_with_all = OF_OUR_ENGINE
    )]
    mysql: Option<Address>,
    /// Use the tables of a PostgreSQL server, at the directory of its socket, HOST:PORT, or
    /// postgres://USER:PASSWORD@HOST:PORT/DATABASE (for a socket postgres:///DATABASE?host=DIRECTORY)
    #[arg(
        long, value_name = "SERVER",
        conflicts_with_all = OF_OUR_ENGINE
    )]
    postgres: Option<LoginUrl>,
    /// With --mysql or --postgres: user to connect as, by default root or postgres
    #[arg(long, requires = "server")]
    user: Option<String>,
    /// With --mysql or --postgres: password, if any, which others see in the list of processes; by default what the
    /// environment has as MYSQL_PWD or PGPASSWORD
    #[arg(long, requires = "server")]
    password: Option<String>,
    /// With --mysql or --postgres: the password is the first line of this file
    #[arg(long, value_name = "FILE", requires = "server", conflicts_with = "password")]
    password_file: Option<PathBuf>,
    /// With --mysql or --postgres: database for the tables, by default named like the benchmark; made when missing
    #[arg(long, requires = "server")]
    database: Option<String>,
    /// With --mysql: compression of page tables: lz4, zlib, lzo, lzma, bzip2 or snappy, as far as the
    /// server has it
    #[arg(
        long,
        value_name = "ALGORITHM",
        default_value = "lz4",
        requires = "mysql",
        conflicts_with = "postgres"
    )]
    innodb_algorithm: String,
    /// With --mysql: engine of plain tables: innodb, or rocksdb (MyRocks)
    #[arg(long, value_enum, default_value = "innodb", requires = "mysql", conflicts_with = "postgres")]
    mysql_engine: MysqlEngine,
    /// With --mysql or --postgres: what bytes written are counted by: a block device, process (the server's
    /// /proc/PID/io), status (the server's own counter), or auto, the first of these that can be had
    #[arg(long, value_name = "COUNTER", default_value = "auto", requires = "server")]
    written_from: Written,
}

/// The engine of a server's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MysqlEngine {
    Innodb,
    Rocksdb,
}

/// A server, and how to log in.
pub(crate) struct SqlServer {
    pub(crate) brand: Brand,
    pub(crate) address: Address,
    pub(crate) login: Login,
}

/// How the tables of a run are made.
pub(crate) struct Making {
    pub(crate) format: Format,
    pub(crate) written: Written,
    pub(crate) kind: Kind,
    /// Name of the compression.
    pub(crate) algorithm: String,
}

/// Runs on a server, one for each kind of tables.
pub(crate) struct Runs<R> {
    pub(crate) runs: Vec<R>,
    facts: Vec<Vec<(String, String)>>,
    written_from: String,
}

impl SqlOptions {
    /// The server that was asked for, if one was; its database is `benchmark` by default. What an option says counts,
    /// before what an address says, and that before the environment.
    pub(crate) fn server(&self, benchmark: &str) -> Result<Option<SqlServer>> {
        let (brand, url, user, variable) = match (&self.mysql, &self.postgres) {
            (Some(address), _) => {
                let nothing =
                    LoginUrl { address: address.clone(), user: None, password: None, database: None };
                (Brand::Mysql, nothing, "root", "MYSQL_PWD")
            }
            (None, Some(url)) => (Brand::Postgres, url.clone(), "postgres", "PGPASSWORD"),
            (None, None) => return Ok(None),
        };
        if keys::is_given() || log_device::chosen() != LogDevicePath::None {
            bail!("a server has no use for a key of ours, nor for a log device");
        }
        let of_file = self.password_file.as_deref().map(first_line).transpose()?;
        let password = self.password.clone().or(of_file).or(url.password);
        let login = Login {
            user: self.user.clone().or(url.user).unwrap_or_else(|| user.to_owned()),
            password: password.or_else(|| env::var(variable).ok()).unwrap_or_default(),
            database: Some(self.database.clone().or(url.database).unwrap_or_else(|| benchmark.to_owned())),
        };
        Ok(Some(SqlServer { brand, address: url.address, login }))
    }

    /// Runs the kinds of tables one after the other; those of the last stay. `begin` comes first: a crash in between
    /// leaves an acknowledgement log that demands nothing.
    pub(crate) fn run_each<D: OnServer, L, R>(
        &self,
        server: &SqlServer,
        kinds: &[Kind],
        begin: impl Fn() -> Result<L>,
        create: impl Fn(&Making) -> Result<D>,
        mut run: impl FnMut(&D, &Making, L) -> Result<R>,
    ) -> Result<Runs<R>> {
        if server.brand == Brand::Postgres && kinds.iter().any(|kind| *kind != Kind::Plain) {
            bail!("--tables: PostgreSQL has plain tables only");
        }
        let is_rocks = self.mysql_engine == MysqlEngine::Rocksdb;
        if is_rocks && kinds.iter().any(|kind| *kind != Kind::Plain) {
            bail!("--tables: MyRocks has plain tables only, and compresses them by its own settings");
        }
        if kinds.contains(&Kind::Adaptive) {
            bail!("--tables: a server has no adaptive tables");
        }
        before_the_end(give_back_settings);
        let mut all = Runs { runs: Vec::new(), facts: Vec::new(), written_from: String::new() };
        for (number, &kind) in kinds.iter().enumerate() {
            let log = begin()?;
            let (format, algorithm) = match kind {
                Kind::Plain if is_rocks => (Format::Rocks, "rocksdb".to_owned()),
                Kind::Plain => (Format::Plain, "none".to_owned()),
                Kind::Row => (Format::Row, "zlib".to_owned()),
                Kind::Page => (Format::Page(self.innodb_algorithm.clone()), self.innodb_algorithm.clone()),
                Kind::Adaptive => unreachable!("refused"),
            };
            let making = Making { format, written: self.written_from.clone(), kind, algorithm };
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
        server: &SqlServer,
        kinds: &[Kind],
        runs: &Runs<R>,
    ) -> Map<String, Value> {
        let algorithm = match server.brand {
            Brand::Mysql if self.mysql_engine == MysqlEngine::Rocksdb => "rocksdb",
            Brand::Mysql => self.innodb_algorithm.as_str(),
            Brand::Postgres => "none",
        };
        let settings = [
            ("version", json!(env!("CARGO_PKG_VERSION"))),
            ("server", json!(server.address.to_string())),
            ("database", json!(server.login.database)),
            ("device_bytes_written_from", json!(runs.written_from)),
            ("tables", kinds.iter().map(|kind| kind.name()).collect()),
            ("algorithm", json!(algorithm)),
            ("isolation", json!("read committed")),
        ];
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn first_line(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
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
