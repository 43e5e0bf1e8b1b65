//! The gain of reading ahead of scans: a freshly opened store scans a whole table, with the thread that reads ahead and
//! without, by turns.
//!
//!     cargo run --release -p lacuna-engine --example scan -- STORE [MILLIONS]   # STORE: a new file, 200 MB a million
//!
//! Records come with 200 bytes, half of them random, in an LZ4 table four times as large as the pool. Without the
//! thread the store has no other either, but nothing is dirty.

use std::{
    env,
    error::Error,
    ops::{Bound, ControlFlow},
    time::Instant,
};

use lacuna_engine::{Algorithm, Direction, Store, StoreOptions, Table, TableOptions};
use lacuna_nvmfs::{OpenedVfs, VfsOptions, open_vfs};

const ROUNDS: u32 = 5;
const RECORD_BYTES: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1);
    let path = arguments.next().ok_or("give the path of a new store file")?;
    let millions: u32 = arguments.next().map_or(Ok(1), |n| n.to_string_lossy().parse())?;
    let records = millions * 1_000_000;
    let options = VfsOptions { create_size: Some(u64::from(millions) << 30), ..VfsOptions::default() };
    let vfs = open_vfs(path.as_ref(), &options)?;
    load(&vfs, records)?;
    println!("{:8} {:>7} {:>7} {:>8} {:>8} {:>8}", "ahead", "s", "cpu s", "missed", "ahead", "unused");
    for _ in 0..ROUNDS {
        for background in [true, false] {
            let (store, table) = open(&vfs, records, background)?;
            let (start, cpu) = (Instant::now(), cpu_seconds());
            let mut seen = 0;
            let each = |_: &[u8], value: &[u8]| {
                seen += u32::from(value.len() == RECORD_BYTES);
                ControlFlow::Continue(())
            };
            store.begin().scan(&table, Bound::Unbounded, Bound::Unbounded, Direction::Forward, each)?;
            let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            assert_eq!(seen, records);
            let pool = store.stats()?.pool;
            let name = if background { "yes" } else { "no" };
            println!(
                "{name:8} {seconds:7.2} {cpu:7.2} {:8} {:8} {:8}",
                pool.misses, pool.read_ahead, pool.read_ahead_unused
            );
            drop(table);
            store.close()?;
        }
    }
    Ok(vfs.close()?)
}

fn open(vfs: &OpenedVfs, records: u32, background: bool) -> Result<(Store, Table), lacuna_engine::Error> {
    let pool_bytes = records as usize * RECORD_BYTES / 4;
    let store = Store::open(vfs.vfs(), StoreOptions { pool_bytes, background, ..StoreOptions::default() })?;
    let table = store.open_table("t", TableOptions::compressed(Algorithm::Lz4))?;
    Ok((store, table))
}

fn load(vfs: &OpenedVfs, records: u32) -> Result<(), lacuna_engine::Error> {
    let (store, table) = open(vfs, records, true)?;
    let mut random = 1u64;
    for first in (0..records).step_by(1000) {
        let mut txn = store.begin();
        for key in first..first + 1000 {
            let mut value = [0; RECORD_BYTES];
            for byte in &mut value[..RECORD_BYTES / 2] {
                // Knuth's MMIX generator.
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = (random >> 56) as u8;
            }
            txn.put(&table, &key.to_be_bytes(), &value)?;
        }
        txn.commit()?;
    }
    drop(table);
    store.close()
}

fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
