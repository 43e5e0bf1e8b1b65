//! The cost of single records on one thread, with all pages in memory; and of loading, record by record and in bulk.
//!
//!     cargo bench -p lacuna-engine --bench records
//!
//! Times are those of the calling thread on a processor, so other load on the machine hardly changes them; loads also
//! say how long they took, with background threads and until the commit was durable, in memory.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{
    Criterion, criterion_group,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use lacuna_device::MemVfs;
use lacuna_engine::{Durability, Error, Store, StoreOptions, Table, TableOptions, TransactionOptions};
use lacuna_sim::SeededRng;
use rustix::time::{ClockId, clock_gettime};

const RECORDS: u64 = 200_000;
const VALUE_BYTES: usize = 100;
const ROUNDS: usize = 5;

/// Time that this thread has had a processor.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct ProcessorTime;

impl Measurement for ProcessorTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        processor_time()
    }

    fn end(&self, start: Duration) -> Duration {
        processor_time() - start
    }

    fn add(&self, left: &Duration, right: &Duration) -> Duration {
        *left + *right
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn open(durability: Durability) -> (Store, Table) {
    let options = StoreOptions { pool_bytes: 256 << 20, durability, ..StoreOptions::default() };
    let store = Store::open(MemVfs::new(), options).unwrap();
    let table = store.create_table("t", TableOptions::default()).unwrap();
    (store, table)
}

fn record(number: u64) -> ([u8; 8], [u8; VALUE_BYTES]) {
    (number.to_be_bytes(), [number as u8; VALUE_BYTES])
}

fn puts(store: &Store, table: &Table) -> Result<(), Error> {
    for first in (0..RECORDS).step_by(1000) {
        let mut txn = store.begin();
        for number in first..first + 1000 {
            let (key, value) = record(number);
            txn.put(table, &key, &value)?;
        }
        txn.commit()?;
    }
    Ok(())
}

fn bulk(store: &Store, table: &Table) -> Result<(), Error> {
    let mut txn = store.begin();
    txn.bulk_load(table, (0..RECORDS).map(record))?;
    txn.commit()
}

/// Loads the same records both ways, by turns, and prints the medians.
fn loads() {
    type Load = fn(&Store, &Table) -> Result<(), Error>;
    let ways: [(&str, Load); 2] = [("puts, 1,000 a transaction", puts), ("bulk load", bulk)];
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for ((_, load), times) in ways.iter().zip(&mut times) {
            let (store, table) = open(Durability::Sync);
            let (wall, thread) = (Instant::now(), processor_time());
            load(&store, &table).unwrap();
            times.push((processor_time() - thread, wall.elapsed()));
        }
    }
    let medians = times.map(|times: Vec<(Duration, Duration)>| {
        let (mut thread, mut wall): (Vec<_>, Vec<_>) = times.into_iter().unzip();
        thread.sort();
        wall.sort();
        (thread[ROUNDS / 2], wall[ROUNDS / 2])
    });
    for ((name, _), (thread, wall)) in ways.iter().zip(medians) {
        let each = |time: Duration| time.as_nanos() as f64 / RECORDS as f64;
        println!("{name}: {:.0} ns a record of the thread, {:.0} ns passed", each(thread), each(wall));
    }
    let [(thread, wall), (bulk_thread, bulk_wall)] = medians;
    println!(
        "bulk load is {:.1} times as quick by the thread's time, {:.1} by the clock",
        thread.as_secs_f64() / bulk_thread.as_secs_f64(),
        wall.as_secs_f64() / bulk_wall.as_secs_f64()
    );
}

fn records(criterion: &mut Criterion<ProcessorTime>) {
    let (store, table) = open(Durability::Relaxed);
    bulk(&store, &table).unwrap();
    let mut rng = SeededRng::new(1);
    let mut value = Vec::new();
    let mut group = criterion.benchmark_group("records");
    let txn = store.begin();
    group.bench_function("get_into", |bench| {
        bench.iter(|| txn.get_into(&table, &rng.below(RECORDS).to_be_bytes(), &mut value).unwrap());
    });
    group.bench_function("get", |bench| {
        bench.iter(|| black_box(txn.get(&table, &rng.below(RECORDS).to_be_bytes()).unwrap()));
    });
    group.bench_function("next of a range", |bench| {
        let mut range = txn.range(&table, ..).unwrap();
        bench.iter(|| match range.next() {
            Some(record) => drop(black_box(record.unwrap())),
            None => range = txn.range(&table, ..).unwrap(),
        });
    });
    drop(txn);
    for (name, options) in
        [("snapshot", TransactionOptions::default()), ("read committed", TransactionOptions::READ_COMMITTED)]
    {
        group.bench_function(format!("get_into in a transaction of its own, {name}"), |bench| {
            bench.iter(|| {
                let key = rng.below(RECORDS).to_be_bytes();
                store.begin_with(options).get_into(&table, &key, &mut value).unwrap()
            });
        });
        group.bench_function(format!("update in a transaction of its own, {name}, relaxed"), |bench| {
            bench.iter(|| {
                let (key, mut value) = record(rng.below(RECORDS));
                value[7] = rng.below(256) as u8;
                let mut txn = store.begin_with(options);
                txn.put(&table, &key, &value).unwrap();
                txn.commit().unwrap();
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ProcessorTime).sample_size(50);
    targets = records
}

fn main() {
    // `cargo test` only checks that it builds.
    if std::env::args().any(|argument| argument == "--bench") {
        loads();
        benches();
    }
    Criterion::default().configure_from_args().final_summary();
}
