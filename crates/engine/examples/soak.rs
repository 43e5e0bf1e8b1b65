//! Loads that once destroyed stores, run for a given time under a watchdog; then `check`, and again after reopening.
//!
//!     cargo run --release -p lacuna-engine --example soak -- LOAD SECONDS [SEED]
//!
//! `rollbacks`: 4 writers with their own 300 records each, six of ten transactions rolled back, 3 readers of snapshots.
//! `contended`: 8 writers of the same 200 records in two tables with pages of 32 and 8 KiB, some values long, 2
//! readers; a flash store of 44 MiB, one flush thread, a doublewrite file, 100 KiB of history. `mixed`: 16 threads with
//! all operations, tables that come and go among them, in a pool of 2 MiB. It prints its progress every 5 s. A load in
//! which no transaction ends for a minute counts as stuck. The exit code reports success or failure.

use std::{
    env,
    error::Error as StdError,
    ops::{Bound, ControlFlow},
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lacuna_device::{BlockDevice, MemVfs, Vfs};
use lacuna_engine::{
    Algorithm, Direction, Doublewrite, Durability, Error, Store, StoreOptions, Table, TableOptions,
    TransactionOptions, Txn,
};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
use lacuna_sim::{SeededRng as Rng, SimDevice};

const STUCK: Duration = Duration::from_secs(60);

/// The transaction that one thread repeats until the time is up.
type Step = fn(&Store, &[Table], u64, &mut Rng) -> Result<(), Error>;

struct Load {
    vfs: Arc<dyn Vfs>,
    options: StoreOptions,
    tables: Vec<TableOptions>,
    threads: Vec<Step>,
}

fn main() -> Result<(), Box<dyn StdError>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [load, seconds, rest @ ..] = &arguments[..] else { return Err("soak LOAD SECONDS [SEED]".into()) };
    let seed = rest.first().map_or(Ok(1), |seed| seed.parse())?;
    let load = match load.as_str() {
        "rollbacks" => rollbacks(),
        "contended" => contended(seed)?,
        "mixed" => mixed(),
        other => return Err(format!("{other}: no such load").into()),
    };
    let open = || Store::open(load.vfs.clone(), load.options.clone());
    let store = open()?;
    let tables: Result<Vec<_>, _> = load
        .tables
        .iter()
        .zip(0..)
        .map(|(options, i)| store.create_table(&format!("t{i}"), *options))
        .collect();
    run(&store, &tables?, &load.threads, Duration::from_secs(seconds.parse()?), seed);
    println!("check: {} tables sound", store.check()?.len());
    drop(store);
    println!("opened again: {} tables sound", open()?.check()?.len());
    Ok(())
}

fn run(store: &Store, tables: &[Table], threads: &[Step], time: Duration, seed: u64) {
    let (began, ended) = (Instant::now(), AtomicU64::new(0));
    thread::scope(|scope| {
        for (step, number) in threads.iter().zip(0..) {
            let ended = &ended;
            scope.spawn(move || {
                let mut rng = Rng::new(seed << 8 | number);
                while began.elapsed() < time {
                    match step(store, tables, number, &mut rng) {
                        Ok(()) => drop(ended.fetch_add(1, Ordering::Relaxed)),
                        Err(error) if error.is_retryable() => {}
                        Err(Error::Full { .. } | Error::TableDropped { .. }) => {}
                        Err(error) => {
                            eprintln!("thread {number}, seed {seed}: {error}");
                            process::exit(1);
                        }
                    }
                }
            });
        }
        let (mut last, mut since) = (0, Instant::now());
        while began.elapsed() < time {
            thread::sleep(Duration::from_secs(5).min(time));
            let now = ended.load(Ordering::Relaxed);
            let history = store.stats().map(|stats| stats.history);
            println!("{:4} s: {now} transactions, {history:?}", began.elapsed().as_secs());
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() >= STUCK {
                eprintln!("stuck for {STUCK:?}, seed {seed}");
                process::exit(2);
            }
        }
    });
}

fn value(rng: &mut Rng, bytes_max: u64) -> Vec<u8> {
    let mut value = vec![rng.below(256) as u8; 8 + rng.below(bytes_max) as usize];
    let half = value.len() / 2;
    rng.fill(&mut value[..half]);
    value
}

fn key(owner: u64, record: u64) -> Vec<u8> {
    format!("{owner:04}/{record:06}").into_bytes()
}

fn end(txn: Txn, percent_rolled_back: u64, rng: &mut Rng) -> Result<(), Error> {
    if rng.chance(percent_rolled_back) { txn.rollback() } else { txn.commit() }
}

fn scan(txn: &Txn, table: &Table, records: usize, rng: &mut Rng) -> Result<(), Error> {
    let from = key(rng.below(20), rng.below(300));
    let (direction, bounds) = if rng.chance(50) {
        (Direction::Forward, (Bound::Included(&from[..]), Bound::Unbounded))
    } else {
        (Direction::Backward, (Bound::Unbounded, Bound::Included(&from[..])))
    };
    let (mut seen, mut before) = (0, None::<Vec<u8>>);
    txn.scan(table, bounds.0, bounds.1, direction, |key, _| {
        let is_next =
            before.as_deref().is_none_or(|before| (before < key) == (direction == Direction::Forward));
        assert!(is_next, "in order");
        before = Some(key.to_vec());
        seen += 1;
        if seen < records { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}

fn rollbacks() -> Load {
    fn writer(store: &Store, tables: &[Table], number: u64, rng: &mut Rng) -> Result<(), Error> {
        let mut txn = store.begin();
        (0..300).try_for_each(|record| txn.put(&tables[0], &key(number, record), &value(rng, 200)))?;
        end(txn, 60, rng)
    }
    fn reader(store: &Store, tables: &[Table], _: u64, rng: &mut Rng) -> Result<(), Error> {
        let txn = store.begin();
        (0..1 + rng.below(8))
            .try_for_each(|_| txn.get(&tables[0], &key(rng.below(4), rng.below(300))).map(drop))
    }
    Load {
        vfs: MemVfs::new(),
        options: StoreOptions { pool_bytes: 32 << 20, ..StoreOptions::default() },
        tables: vec![TableOptions::default()],
        threads: [vec![writer as Step; 4], vec![reader as Step; 3]].concat(),
    }
}

fn contended(seed: u64) -> Result<Load, Box<dyn StdError>> {
    fn writer(store: &Store, tables: &[Table], _: u64, rng: &mut Rng) -> Result<(), Error> {
        let options =
            if rng.chance(50) { TransactionOptions::default() } else { TransactionOptions::READ_COMMITTED };
        let mut txn = store.begin_with(options);
        for _ in 0..1 + rng.below(10) {
            let (table, key) = (&tables[rng.below(2) as usize], key(0, rng.below(200)));
            let savepoint = txn.savepoint()?;
            match rng.below(10) {
                0 => drop(txn.delete(table, &key)?),
                1 => drop(txn.get_for_update(table, &key)?),
                2 => txn.put(table, &key, &value(rng, 40_000))?,
                _ => txn.put(table, &key, &value(rng, 2000))?,
            }
            if rng.chance(10) {
                txn.rollback_to(savepoint)?;
            }
        }
        end(txn, 30, rng)
    }
    fn reader(store: &Store, tables: &[Table], _: u64, rng: &mut Rng) -> Result<(), Error> {
        let txn = store.begin();
        (0..rng.below(20)).try_for_each(|_| scan(&txn, &tables[rng.below(2) as usize], 100, rng))
    }
    let device: Arc<dyn BlockDevice> = SimDevice::new(44 << 20, seed);
    let mut format = FormatOptions::default();
    format.ftl.segment_bytes = Some(256 << 10);
    Nvmfs::format(device.clone(), &format)?;
    Ok(Load {
        vfs: Arc::new(Nvmfs::open(device, Options::default())?),
        options: StoreOptions {
            pool_bytes: 1 << 20,
            log_bytes: 1 << 20,
            flush_threads: 1,
            doublewrite: Doublewrite::On,
            history_bytes: 100 << 10,
            lock_timeout: Duration::from_secs(2),
            ..StoreOptions::default()
        },
        tables: [32, 8].map(|kib| TableOptions::compressed(Algorithm::Lz4).page_bytes(kib << 10)).to_vec(),
        threads: [vec![writer as Step; 8], vec![reader as Step; 2]].concat(),
    })
}

fn mixed() -> Load {
    fn worker(store: &Store, tables: &[Table], number: u64, rng: &mut Rng) -> Result<(), Error> {
        if rng.chance(1) {
            return ddl(store, tables, number, rng);
        }
        let options =
            if rng.chance(70) { TransactionOptions::default() } else { TransactionOptions::READ_COMMITTED };
        let mut txn = store.begin_with(options);
        for _ in 0..rng.below(30) {
            let table = &tables[rng.below(tables.len() as u64) as usize];
            let key = key(if rng.chance(80) { number } else { rng.below(16) }, rng.below(300));
            match rng.below(12) {
                0..=1 => drop(txn.delete(table, &key)?),
                2 => drop(txn.get_for_update(table, &key)?),
                3 => scan(&txn, table, 200, rng)?,
                4..=5 => drop(txn.get(table, &key)?),
                6 if rng.chance(20) => txn.put(table, &key, &value(rng, 100_000))?,
                7 => {
                    let savepoint = txn.savepoint()?;
                    txn.put(table, &key, &value(rng, 1000))?;
                    txn.rollback_to(savepoint)?;
                }
                _ => txn.put(table, &key, &value(rng, 900))?,
            }
        }
        end(txn, 40, rng)
    }
    fn ddl(store: &Store, tables: &[Table], number: u64, rng: &mut Rng) -> Result<(), Error> {
        let name = format!("own{number}");
        match rng.below(4) {
            0 => store.checkpoint(),
            1 => store.optimize("t1", |_| ControlFlow::Continue(())).map(drop),
            _ => {
                let table = store.create_table(&name, TableOptions::default().page_bytes(4096))?;
                let mut txn = store.begin();
                (0..50).try_for_each(|record| txn.put(&table, &key(number, record), &value(rng, 800)))?;
                drop(txn.get(&tables[0], b"x")?);
                end(txn, 50, rng)?;
                store.drop_table(&name)
            }
        }
    }
    let tables = vec![
        TableOptions::default().page_bytes(4096),
        TableOptions::compressed(Algorithm::Lz4),
        TableOptions::row_compressed(8),
    ];
    Load {
        vfs: MemVfs::new(),
        options: StoreOptions {
            pool_bytes: 2 << 20,
            log_bytes: 4 << 20,
            history_bytes: 1 << 20,
            durability: Durability::Relaxed,
            lock_timeout: Duration::from_secs(2),
            ..StoreOptions::default()
        },
        tables,
        threads: vec![worker as Step; 16],
    }
}
