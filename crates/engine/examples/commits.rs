//! Durable commits of one client a second: the log on flash with all else; the store with a log device, of which the
//! engine knows nothing; and the engine's own log on that device.
//!
//!     cargo run --release -p lacuna-engine --example commits -- STORE LOG_DEVICE [ROUNDS] [SECONDS]
//!
//! STORE is a new file; it is removed in the end. LOG_DEVICE is a new file, best in memory (`/dev/shm/log`), or a device
//! of at least 256 MiB, which is written over. In each round all have their turn, each with a fresh store in a file that
//! was written once in full, on the same table: one record of 100 bytes is inserted by each transaction.

use std::{
    env,
    error::Error,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use lacuna_device::{BlockDevice, LogDevice, RawDevice, RawOptions, Vfs, create_log_device, open_log_device};
use lacuna_engine::{Algorithm, LogDeviceVfs, Store, StoreOptions, TableOptions};
use lacuna_ftl::LogDeviceUse;
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};

const STORE_BYTES: u64 = 2 << 30;
const LOG_BYTES: u64 = 256 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [store, log, rest @ ..] = &arguments[..] else { return Err("give a store and a log device".into()) };
    let number = |at: usize, default| rest.get(at).map_or(Ok(default), |number| number.parse::<u64>());
    let (rounds, seconds) = (number(0, 5)?, number(1, 5)?);
    let (store, log) = (Path::new(store), Path::new(log));
    if store.exists() {
        return Err(format!("{}: exists already", store.display()).into());
    }
    let is_new = !log.exists();
    if is_new {
        drop(create_log_device(log, LOG_BYTES)?);
    }
    let raw = RawDevice::create(store, STORE_BYTES, RawOptions::default())?;
    let piece = lacuna_device::AlignedBuf::zeroed(1 << 20);
    (0..STORE_BYTES >> 20).try_for_each(|at| raw.write_at(at << 20, &piece))?;
    drop(raw);
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let alone = run(store, &Log::WithAll, seconds)?;
        let of_store = run(store, &Log::OfStore(open_log_device(log, false)?), seconds)?;
        let of_engine = run(store, &Log::OfEngine(open_log_device(log, false)?), seconds)?;
        println!(
            "round {round}: {alone:.0} commits/s alone, {of_store:.0} with a log device of the store: {:.2}, \
             {of_engine:.0} with the engine's log on it: {:.2}",
            of_store / alone,
            of_engine / alone
        );
        ratios[0].push(of_store / alone);
        ratios[1].push(of_engine / alone);
    }
    let [of_store, of_engine] = ratios.map(|mut ratios| {
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    });
    println!("medians: of the store {of_store:.2}, of the engine {of_engine:.2}");
    fs::remove_file(store)?;
    if is_new {
        fs::remove_file(log)?;
    }
    Ok(())
}

/// Where the engine's log is.
enum Log {
    WithAll,
    OfStore(Arc<dyn LogDevice>),
    OfEngine(Arc<dyn LogDevice>),
}

/// Commits a second on a fresh store.
fn run(path: &Path, log: &Log, seconds: u64) -> Result<f64, Box<dyn Error>> {
    let raw: Arc<dyn BlockDevice> = Arc::new(RawDevice::open(path, RawOptions::default())?);
    let (mut format, mut options) = (FormatOptions::default(), Options::default());
    format.ftl.force = true;
    if let Log::OfStore(device) = log {
        format.ftl.log_device = Some(Arc::clone(device));
        options.ftl.log_device = LogDeviceUse::Device(Arc::clone(device));
    }
    Nvmfs::format(raw.clone(), &format)?;
    let nvmfs = Arc::new(Nvmfs::open(raw, options)?);
    let vfs: Arc<dyn Vfs> = match log {
        Log::OfEngine(device) => LogDeviceVfs::format(nvmfs.clone(), Arc::clone(device), true)?,
        Log::WithAll | Log::OfStore(_) => nvmfs.clone(),
    };
    let store = Store::open(vfs, StoreOptions::default())?;
    let table = store.open_table("t", TableOptions::compressed(Algorithm::Lz4))?;
    let (mut commits, started) = (0_u64, Instant::now());
    while started.elapsed() < Duration::from_secs(seconds) {
        let mut txn = store.begin();
        txn.put(&table, &commits.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), &[7; 100])?;
        txn.commit()?;
        commits += 1;
    }
    let rate = commits as f64 / started.elapsed().as_secs_f64();
    store.close()?;
    nvmfs.close()?;
    Ok(rate)
}
