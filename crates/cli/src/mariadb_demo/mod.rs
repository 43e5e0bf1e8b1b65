//! `lacuna mariadb-demo`: a stock MariaDB on a fresh mount, of which nothing is left afterwards.
//!
//! See `demo` for how it ends; it checks for Ctrl-C between statements.

mod server;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lacuna_bench::sql::mysql::Connection;

use crate::{
    demo::{self, Mount, Work},
    say,
    size::Size,
};
use server::{Programs, Server};

/// Start a stock MariaDB on a fresh mount and show what it gains; everything is removed again
#[derive(Args)]
pub(crate) struct Arguments {
    /// Use this directory, on whatever file system it is, instead of a fresh mount
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of the store that is made for the mount, in the current directory
    #[arg(long, default_value = "4G")]
    size: Size,
    /// Rows of each table, about 2 KiB each
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    rows: u32,
}

/// Rows that one statement inserts or updates: Ctrl-C waits no longer than that.
const ROWS_PER_STATEMENT: u32 = 500;

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let interrupted = demo::interruption()?;
    let programs = Programs::find()?;
    let base = arguments.dir.clone().unwrap_or_else(|| ".".into());
    let work = Work::make(&base, "mariadb-demo")?;
    let mount = match &arguments.dir {
        Some(_) => None,
        None => Some(Mount::start(&work.0, &work.0.join("mount"), arguments.size.0, &["--fcta"])?),
    };
    let data_base = mount.as_ref().map_or(&work.0, |mount| &mount.dir).clone();
    say(&format!("data directory on {}\n", data_base.display()))?;
    let server = Server::start(&programs, &data_base, &work.0, &interrupted)?;
    let demo = Demo { arguments, interrupted: &interrupted, data: server.data.clone() };
    let shown = demo.show(&mut server.connect()?, mount.as_ref());
    server.stop()?;
    if let Some(mount) = mount {
        mount.stop()?;
    }
    shown?;
    say("stopped; everything is removed again\n")
}

struct Demo<'a> {
    arguments: &'a Arguments,
    interrupted: &'a AtomicBool,
    data: PathBuf,
}

impl Demo<'_> {
    fn show(&self, server: &mut Connection, mount: Option<&Mount>) -> Result<()> {
        // A provider that is missing is refused here; zlib is always there.
        let lz4 = server.execute("SET GLOBAL innodb_compression_algorithm = 'lz4'");
        let algorithm = if lz4.is_ok() { "lz4" } else { "zlib" };
        server.execute(&format!("SET GLOBAL innodb_compression_algorithm = '{algorithm}'"))?;
        let version = server.query("SELECT VERSION()")?.into_iter().flatten().flatten().next();
        say(&format!("MariaDB {}, page compression by {algorithm}\n", version.unwrap_or_default()))?;
        server.execute("CREATE DATABASE demo")?;
        for (table, options) in [("plain", ""), ("compressed", "PAGE_COMPRESSED=1")] {
            server.execute(&format!(
                "CREATE TABLE demo.{table} (id INT UNSIGNED PRIMARY KEY, body VARBINARY(2000) NOT NULL) \
                 ENGINE=InnoDB {options}"
            ))?;
        }
        say(&format!("\n{:<46}{:>12}{:>14}{:>14}\n", "", "rows", "file MB", "on flash MB"))?;
        for table in ["plain", "compressed"] {
            self.in_groups(
                |first, end| {
                    format!(
                        "INSERT INTO demo.{table} SELECT seq, CONCAT(RANDOM_BYTES(1000), REPEAT('b', 1000)) \
                     FROM demo.numbers WHERE seq >= {first} AND seq < {end}"
                    )
                },
                server,
            )?;
            self.sizes(server, "loaded", table)?;
        }
        for table in ["plain", "compressed"] {
            self.in_groups(
                |first, end| {
                    format!(
                        "UPDATE demo.{table} SET body = REPEAT('a', LENGTH(body)) \
                     WHERE id >= {first} AND id < {end}"
                    )
                },
                server,
            )?;
            self.sizes(server, "updated to what compresses well", table)?;
        }
        self.facts(server, mount)
    }

    /// Runs a statement for groups of rows until all had their turn.
    fn in_groups(&self, statement: impl Fn(u32, u32) -> String, server: &mut Connection) -> Result<()> {
        let rows = self.arguments.rows;
        for first in (0..rows).step_by(ROWS_PER_STATEMENT as usize) {
            ensure!(!self.interrupted.load(Relaxed), "interrupted");
            let end = rows.min(first + ROWS_PER_STATEMENT);
            // A statement without the sequence engine, which may be missing.
            let numbers: Vec<String> = (first..end).map(|n| format!("SELECT {n} AS seq")).collect();
            let numbers = format!("({}) AS numbers", numbers.join(" UNION ALL "));
            server.execute(&statement(first, end).replace("demo.numbers", &numbers))?;
        }
        Ok(())
    }

    /// Writes a table out and shows its file.
    fn sizes(&self, server: &mut Connection, what: &str, table: &str) -> Result<()> {
        server.execute(&format!("FLUSH TABLES demo.{table} FOR EXPORT"))?;
        server.execute("UNLOCK TABLES")?;
        let path = self.data.join("demo").join(format!("{table}.ibd"));
        let metadata = fs::metadata(&path).with_context(|| path.display().to_string())?;
        let (file, space) = (metadata.len() as f64 / 1e6, metadata.blocks() as f64 * 512.0 / 1e6);
        let title = format!("{table} table, {what}");
        say(&format!("{title:<46}{:>12}{file:>14.1}{space:>14.1}\n", self.arguments.rows))
    }

    fn facts(&self, server: &mut Connection, mount: Option<&Mount>) -> Result<()> {
        say("\ninformation_schema.INNODB_SYS_TABLESPACES:\n")?;
        let spaces = server.query(
            "SELECT NAME, FS_BLOCK_SIZE, FILE_SIZE, ALLOCATED_SIZE \
             FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME LIKE 'demo/%'",
        )?;
        let titles = ["NAME", "FS_BLOCK_SIZE", "FILE_SIZE", "ALLOCATED_SIZE"];
        let titles = titles.map(|title| Some(title.to_owned())).to_vec();
        for row in [vec![titles], spaces].concat() {
            let cells = row.iter().map(|cell| format!("{:<18}", cell.as_deref().unwrap_or("NULL")));
            say(&format!("  {}\n", cells.collect::<String>().trim_end()))?;
        }
        say("doublewrite:\n")?;
        let settings = server.query(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_doublewrite', 'innodb_use_atomic_writes')",
        )?;
        let counted = server.query("SHOW GLOBAL STATUS LIKE 'Innodb_dblwr_pages_written'")?;
        for row in [settings, counted].concat() {
            let [name, value] = [0, 1].map(|at| row.get(at).cloned().flatten().unwrap_or_default());
            say(&format!("  {name:<30}{value}\n"))?;
        }
        let tables = server.query("CHECK TABLE demo.plain, demo.compressed EXTENDED")?;
        for row in tables {
            let last = row.last().cloned().flatten().unwrap_or_default();
            if last != "OK" {
                bail!("CHECK TABLE: {}", row.into_iter().flatten().collect::<Vec<_>>().join(" "));
            }
        }
        say("CHECK TABLE: OK\n")?;
        let Some(mount) = mount else { return Ok(()) };
        let counters = mount.counters()?;
        say(&format!(
            "the mount:\n  {} files told that their writes are atomic\n  {} trims inferred from pages that \
             shrank\n  {:.1} MB written by the server, {:.1} MB by the store\n",
            counters["atomic_handshakes"],
            counters["trims_inferred"],
            counters["write_bytes"].as_f64().unwrap_or_default() / 1e6,
            counters["device_written_bytes"].as_f64().unwrap_or_default() / 1e6
        ))
    }
}
