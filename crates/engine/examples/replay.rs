//! The cost of replay in its worst case: small changes of records all over a table that is many times the pool.
//!
//!     cargo build --release -p lacuna-engine --example replay
//!     replay STORE load [MILLIONS]    # STORE: a new file, 400 MB a million
//!     replay STORE work [SECONDS]     # changes records until the log is full, then for SECONDS (0), and is gone
//!     replay STORE open               # what opening it had to do
//!
//! Pool and log have 128 and 256 MiB, the table pages of 16 KiB with 50 records in LZ4.

use std::{
    env,
    error::Error,
    ops::{Bound, ControlFlow},
    process,
    time::{Duration, Instant},
};

use lacuna_engine::{Algorithm, Direction, Durability, Store, StoreOptions, TableOptions};
use lacuna_nvmfs::{VfsOptions, open_vfs};

const RECORD_BYTES: usize = 300;
const LOG_BYTES: u64 = 256 << 20;

/// Knuth's MMIX generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1);
    let path = arguments.next().ok_or("give the path of a store file")?;
    let what = arguments.next().ok_or("give load, work or open")?;
    let number: Option<u64> = arguments.next().map(|n| n.to_string_lossy().parse()).transpose()?;
    let is_load = what == "load";
    let millions = number.unwrap_or(4);
    let create_size = is_load.then_some((millions + 2) << 30);
    let vfs = open_vfs(path.as_ref(), &VfsOptions { create_size, ..VfsOptions::default() })?;
    let options = StoreOptions {
        durability: if is_load { Durability::Relaxed } else { Durability::Sync },
        log_bytes: LOG_BYTES,
        ..StoreOptions::default()
    };
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let store = Store::open(vfs.vfs(), options)?;
    if what == "open" {
        let (seconds, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let stats = store.stats()?;
        println!("{:#?}", stats.recovery);
        let pool = stats.pool;
        println!("opened in {seconds:.2} s, {cpu:.2} s of processor time, {} pages read", pool.misses);
        println!("{} pages written, {} bytes read", stats.flush.pages, stats.vfs.device_read_bytes);
        store.close()?;
        return Ok(vfs.close()?);
    }
    let table = store.open_table("t", TableOptions::compressed(Algorithm::Lz4))?;
    let mut random = Random(1);
    if is_load {
        for first in (0..millions * 1_000_000).step_by(1000) {
            let mut txn = store.begin();
            for key in first..first + 1000 {
                let mut value = [0; RECORD_BYTES];
                value[..RECORD_BYTES / 3].fill_with(|| random.next() as u8);
                txn.put(&table, &key.to_be_bytes(), &value)?;
            }
            txn.commit()?;
        }
        store.close()?;
        return Ok(vfs.close()?);
    }
    let mut records = 0;
    store.begin().scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Backward, |key, _| {
        records = 1 + u64::from_be_bytes(key.try_into().expect("a number"));
        ControlFlow::Break(())
    })?;
    let start = store.stats()?;
    let work = |mut random: Random, until: &dyn Fn() -> bool| -> Result<(), lacuna_engine::Error> {
        while !until() {
            let mut txn = store.begin();
            for _ in 0..100 {
                let key = (random.next() % records).to_be_bytes();
                let mut value = txn.get(&table, &key)?.expect("loaded");
                value[200..208].copy_from_slice(&random.next().to_le_bytes());
                txn.put(&table, &key, &value)?;
            }
            txn.commit()?;
        }
        Ok(())
    };
    // The first checkpoint comes when three quarters of it are used.
    let is_full =
        || store.stats().is_ok_and(|s| s.log.written_bytes - start.log.written_bytes > LOG_BYTES / 8 * 7);
    work(Random(3), &is_full)?;
    let end = Instant::now() + Duration::from_secs(number.unwrap_or(0));
    work(Random(7), &|| Instant::now() >= end)?;
    let stats = store.stats()?;
    println!("{:?}\n{:?}\n{:?}", stats.log, stats.flush, stats.pool);
    println!("{:.2} s of processor time", cpu_seconds() - cpu);
    process::exit(0)
}

fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
