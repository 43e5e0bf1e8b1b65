use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::connection::Connection;
use crate::sql::{
    address::{Address, Login},
    client::{self, Client},
    definition::{Definition, Type},
    dialect::{Dialect, Format, pairs, value},
    settings::Changed,
};

/// The database from which others are made.
const FIRST_DATABASE: &str = "postgres";
/// Settings of a session: keys and indexes are used as a query orders by them, as other servers are made to.
const SESSION: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off";
/// The first number of relations that are not the system's own.
const FIRST_RELATION: u32 = 16384;

/// PostgreSQL.
#[derive(Debug)]
pub(crate) struct Postgres;

fn type_name(of: Type) -> String {
    match of {
        Type::Tiny => "smallint".to_owned(),
        Type::Int | Type::SignedInt => "integer".to_owned(),
        Type::Big | Type::SignedBig => "bigint".to_owned(),
        Type::Serial => "bigserial".to_owned(),
        Type::Char(length) => format!("char({length})"),
        Type::Text(length) => format!("varchar({length})"),
        Type::Name(length) => format!("varchar({length}) COLLATE \"C\""),
        Type::Bytes | Type::LongBytes => "bytea".to_owned(),
    }
}

/// The query for bytes that the server counts as written, by its version.
fn written_query(version: u32) -> String {
    let pages = match version {
        180_000.. => "SELECT sum(write_bytes) FROM pg_stat_io WHERE object = 'relation'",
        160_000.. => "SELECT sum(writes * op_bytes) FROM pg_stat_io WHERE object = 'relation'",
        _ => {
            "SELECT (buffers_checkpoint + buffers_clean + buffers_backend) * \
             current_setting('block_size')::bigint FROM pg_stat_bgwriter"
        }
    };
    format!("SELECT (wal_bytes + coalesce(({pages}), 0))::bigint FROM pg_stat_wal")
}

/// Space that files take, those of one relation together: `16390`, `16390.1`, `16390_fsm`, `16390_vm`.
fn allocated(files: &[PathBuf]) -> Option<u64> {
    let mut directories: HashMap<&Path, HashMap<String, u64>> = HashMap::new();
    let mut total = 0;
    for file in files {
        let directory = file.parent()?;
        if !directories.contains_key(directory) {
            let mut sizes: HashMap<String, u64> = HashMap::new();
            for entry in fs::read_dir(directory).ok()? {
                let entry = entry.ok()?;
                // Dropped since it was listed.
                let Ok(metadata) = entry.metadata() else { continue };
                let name = entry.file_name().to_string_lossy().into_owned();
                let relation = name.split(['.', '_']).next().unwrap_or_default().to_owned();
                *sizes.entry(relation).or_default() += metadata.blocks() * 512;
            }
            directories.insert(directory, sizes);
        }
        let name = file.file_name()?.to_str()?;
        total += directories.get(directory)?.get(name).copied().unwrap_or(0);
    }
    Some(total)
}

impl Dialect for Postgres {
    fn connect(&self, address: &Address, login: &Login) -> client::Result<Box<dyn Client>> {
        let mut connection = Connection::connect(address, login)?;
        connection.prepare_transactions()?;
        connection.execute(SESSION)?;
        Ok(Box::new(connection))
    }

    fn enter(&self, address: &Address, login: &Login, makes: bool) -> Result<Box<dyn Client>> {
        if let (true, Some(database)) = (makes, &login.database) {
            let first = Login { database: Some(FIRST_DATABASE.to_owned()), ..login.clone() };
            let mut connection = Connection::connect(address, &first)?;
            let there = format!("SELECT datname FROM pg_database WHERE datname = '{database}'");
            if connection.query(&there)?.is_empty() {
                connection.execute(&format!("CREATE DATABASE \"{database}\""))?;
            }
        }
        Ok(Box::new(Connection::connect(address, login)?))
    }

    fn table(&self, _database: &str, table: &str) -> String {
        table.to_owned()
    }

    fn present(&self, client: &mut dyn Client, _database: &str, tables: &[&str]) -> Result<Vec<String>> {
        let names = format!(
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename IN ('{}')",
            tables.join("', '")
        );
        Ok(client.query(&names)?.into_iter().flatten().flatten().collect())
    }

    /// Nothing is changed.
    fn begin(
        &self,
        _client: &mut dyn Client,
        _place: (&Address, &Login),
        _format: &Format,
    ) -> Result<Option<Changed>> {
        Ok(None)
    }

    fn create(
        &self,
        client: &mut dyn Client,
        _database: &str,
        table: &Definition,
        format: &Format,
    ) -> Result<()> {
        ensure!(*format == Format::Plain, "PostgreSQL has plain tables only; its mount may compress them");
        let Definition { name, index, .. } = table;
        let list = table.list(type_name);
        client.execute(&format!("CREATE TABLE {name} ({list})")).with_context(|| (*name).to_owned())?;
        if let Some((index, columns)) = index {
            let create = format!("CREATE INDEX {index} ON {name} ({columns})");
            client.execute(&create).with_context(|| (*index).to_owned())?;
        }
        Ok(())
    }

    /// Empty where the user may not know it.
    fn data_directory(&self, client: &mut dyn Client) -> Result<String> {
        Ok(value(client, "SHOW data_directory").unwrap_or_default())
    }

    fn process(&self, _client: &mut dyn Client, data_directory: &Path) -> Result<Option<u32>> {
        Ok(server_process(data_directory))
    }

    /// Old versions of rows are removed, statistics gathered, and all pages written.
    fn settle(&self, client: &mut dyn Client, _place: (&Address, &Login), tables: &[&str]) -> Result<()> {
        for table in tables {
            client.execute(&format!("VACUUM (ANALYZE) {table}"))?;
        }
        Ok(client.execute("CHECKPOINT")?)
    }

    fn sizes(&self, client: &mut dyn Client, _database: &str, data_directory: &Path) -> Result<(u64, u64)> {
        let relations = format!(
            "SELECT pg_relation_filepath(oid) FROM pg_class \
             WHERE oid >= {FIRST_RELATION} AND relkind IN ('r', 'i', 't')"
        );
        let files: Vec<PathBuf> = client
            .query(&relations)?
            .into_iter()
            .filter_map(|row| Some(data_directory.join(row.into_iter().next()??)))
            .collect();
        let logical = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class \
            WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace";
        let logical: u64 =
            value(client, logical)?.parse().context("the server does not tell the tables' sizes")?;
        Ok((logical, allocated(&files).unwrap_or(logical)))
    }

    fn written(&self, client: &mut dyn Client) -> Result<u64> {
        let version = value(client, "SHOW server_version_num")?.parse().context("server_version_num")?;
        let written = value(client, &written_query(version))?;
        written.parse().with_context(|| format!("{written:?} bytes were written"))
    }

    fn written_name(&self) -> &'static str {
        "pages and log as counted by pg_stat_wal and pg_stat_bgwriter or pg_stat_io"
    }

    fn facts(&self, client: &mut dyn Client) -> Result<Vec<(String, String)>> {
        let settings = "SELECT name, setting FROM pg_settings WHERE name IN ('server_version', 'block_size', \
            'shared_buffers', 'full_page_writes', 'wal_compression', 'fsync', 'synchronous_commit', \
            'max_wal_size', 'checkpoint_timeout', 'data_checksums', 'autovacuum', 'wal_recycle', \
            'wal_init_zero', 'wal_sync_method', 'data_directory') ORDER BY name";
        let counters = "SELECT 'wal_records', wal_records::text FROM pg_stat_wal \
            UNION ALL SELECT 'wal_fpi', wal_fpi::text FROM pg_stat_wal \
            UNION ALL SELECT 'wal_bytes', wal_bytes::text FROM pg_stat_wal";
        Ok([pairs(client, settings)?, pairs(client, counters)?].concat())
    }

    fn force_index(&self, _index: &str) -> String {
        String::new()
    }

    fn on_duplicate(&self, key: &str) -> String {
        format!("ON CONFLICT ({key}) DO UPDATE SET")
    }

    fn inserted(&self, column: &str) -> String {
        format!("excluded.{column}")
    }

    fn big_number(&self) -> &'static str {
        "bigint"
    }
}

/// The postmaster of a data directory, if it runs here.
fn server_process(data_directory: &Path) -> Option<u32> {
    let text = fs::read_to_string(data_directory.join("postmaster.pid")).ok()?;
    let pid: u32 = text.lines().next()?.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    ["postgres", "postmaster"].contains(&name.trim()).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_relation_count_together() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["16390", "16390.1", "16390_fsm", "163900", "pg_filenode.map"] {
            fs::write(dir.path().join(name), vec![1; 20_000]).unwrap();
        }
        let of =
            |names: &[&str]| allocated(&names.iter().map(|name| dir.path().join(name)).collect::<Vec<_>>());
        let one = of(&["163900"]).unwrap();
        assert!(one >= 20_000);
        assert_eq!(
            (of(&["16390"]), of(&["16390", "163900"]), of(&["7"])),
            (Some(3 * one), Some(4 * one), Some(0))
        );
        assert_eq!(allocated(&["nowhere/base/1".into()]), None);
    }
}
