//! `lacuna postgres-demo`: a stock PostgreSQL on a fresh mount, of which nothing is left afterwards.
//!
//! The mount has no page cache, so a page of 8 KiB is written whole or not at all, and the log needs no copies of pages
//! (`full_page_writes`); the demo writes the same updates with and without. See `demo` for how it ends; it checks for
//! Ctrl-C between statements.

mod server;

use std::{
    env, fs,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{
    demo::{self, Mount, Work},
    say,
    size::Size,
};
use server::{Programs, Server};

/// Start a stock PostgreSQL on a fresh mount and show what it gains; everything is removed again
#[derive(Args)]
pub(crate) struct Arguments {
    /// Use this directory, on whatever file system it is, instead of a fresh mount
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of the store that is made for the mount, in the current directory
    #[arg(long, default_value = "4G")]
    size: Size,
    /// Rows of the table, about 250 bytes each
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    rows: u32,
}

/// One row in so many is updated: about one on each page.
const UPDATED_EVERY: u32 = 32;

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let interrupted = demo::interruption()?;
    let programs = Programs::find()?;
    let base = arguments.dir.clone().unwrap_or_else(|| ".".into());
    let work = Work::make(&base, "postgres-demo")?;
    // Open to the server's user, and with a short path, as sockets need.
    let open = Work::make(&env::temp_dir(), "lacuna-pg")?;
    let open_to_all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&open.0, open_to_all.clone())?;
    fs::set_permissions(&work.0, open_to_all)?;
    let mount = match &arguments.dir {
        Some(_) => None,
        None => {
            let options: &[&str] = match programs.is_for_another_user() {
                true => &["--cache=none", "--allow-other"],
                false => &["--cache=none"],
            };
            Some(Mount::start(&work.0, &open.0.join("mount"), arguments.size.0, options)?)
        }
    };
    let place = mount.as_ref().map_or(&work.0, |mount| &mount.dir).clone();
    programs.own(&place)?;
    let sockets = open.0.join("sockets");
    // Nobody else may reach them: whoever does is the cluster's owner, without a password.
    fs::DirBuilder::new().mode(0o700).create(&sockets)?;
    programs.own(&sockets)?;
    say(&format!("cluster on {}\n", place.display()))?;
    let settings: &[&str] = match mount {
        Some(_) => &["wal_recycle=off", "wal_init_zero=off", "wal_sync_method=open_datasync"],
        None => &[],
    };
    let log = open.0.join("log");
    let server = Server::start(&programs, place.join("data"), (&sockets, &log), settings, &interrupted)?;
    let shown = show(arguments, &server, mount.as_ref(), &interrupted);
    server.stop()?;
    if let Some(mount) = mount {
        mount.stop()?;
    }
    shown?;
    say("stopped; everything is removed again\n")
}

fn show(
    arguments: &Arguments,
    server: &Server<'_>,
    mount: Option<&Mount>,
    interrupted: &AtomicBool,
) -> Result<()> {
    let rows = arguments.rows;
    let query = |sql: &str| {
        ensure!(!interrupted.load(Relaxed), "interrupted");
        server.query(sql)
    };
    say(&format!("PostgreSQL {}\n", query("SHOW server_version")?))?;
    query(
        "CREATE TABLE items (id int PRIMARY KEY, changes int NOT NULL, body text NOT NULL) WITH (fillfactor = 90)",
    )?;
    query(&format!(
        "INSERT INTO items SELECT id, 0, repeat(md5(id::text), 6) FROM generate_series(1, {rows}) AS id"
    ))?;
    query("VACUUM ANALYZE items")?;
    query("CHECKPOINT")?;
    let path = server.data.join(query("SELECT pg_relation_filepath('items')")?);
    let metadata = fs::metadata(&path).with_context(|| path.display().to_string())?;
    let (file, space) = (metadata.len() as f64 / 1e6, metadata.blocks() as f64 * 512.0 / 1e6);
    say(&format!("{rows} rows: {file:.1} MB of file, {space:.1} MB taken\n"))?;
    say(&format!("\none row in {UPDATED_EVERY} updated, after a checkpoint:\n"))?;
    // Only where writes of pages are atomic.
    let kinds: &[&str] = if mount.is_some() { &["on", "off"] } else { &["on"] };
    for full_page_writes in kinds {
        query(&format!("ALTER SYSTEM SET full_page_writes = {full_page_writes}"))?;
        query("SELECT pg_reload_conf()")?;
        // The first one to see the setting, and the checkpoint that pages are copied after.
        query("SELECT pg_sleep(0.2)")?;
        query("CHECKPOINT")?;
        let before = query("SELECT pg_current_wal_lsn()")?;
        query(&format!("UPDATE items SET changes = changes + 1 WHERE id % {UPDATED_EVERY} = 0"))?;
        let bytes = server.number(&format!("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{before}')"))?;
        let bytes = bytes as f64 / 1e6;
        say(&format!("  full_page_writes = {full_page_writes:<4} {bytes:>8.1} MB of log\n"))?;
    }
    let changes = server.number("SELECT coalesce(sum(changes), 0) FROM items")?;
    let due = u64::from(rows / UPDATED_EVERY) * kinds.len() as u64;
    ensure!(changes == due, "there are {changes} changes in the table, not {due}");
    query("CHECKPOINT")?;
    let Some(mount) = mount else {
        return say("  off is for a mount with --cache=none: here a page may be torn by a crash\n");
    };
    let counters = mount.counters()?;
    say(&format!(
        "the mount: {:.1} MB written by the server, {:.1} MB by the store\n",
        counters["write_bytes"].as_f64().unwrap_or_default() / 1e6,
        counters["device_written_bytes"].as_f64().unwrap_or_default() / 1e6
    ))
}
