//! The map on one core: memory, look-up, insert, overwrite, split, trim; and, at the beginning of a checkpoint, the
//! time under the lock and the walk without it.
//!
//!     cargo bench -p lacuna-ftl --features bench --bench map
//!
//! Times are processor times of the thread, so other load on the machine hardly changes them.

use std::{array, fs, hint::black_box, time::Duration};

use criterion::{
    BatchSize, Criterion, Throughput, criterion_group,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use lacuna_ftl::bench::MapBench;
use lacuna_sim::SeededRng;
use rustix::time::{ClockId, clock_gettime};

const CHUNKS: u64 = 4_000_000;
const TRIMMED: u64 = 1_000_000;
/// Random look-ups or overwrites that are passed in one call.
const GROUP: u64 = 64;

/// A map of `chunks` chunks, each overwritten once on average, at random.
fn overwritten(chunks: u64, is_whole: bool) -> MapBench {
    let (mut map, mut rng) = (MapBench::default(), SeededRng::new(1));
    (0..chunks).for_each(|chunk| map.write(chunk, chunk + 1, is_whole));
    (0..chunks).for_each(|number| map.write(rng.below(chunks), chunks + number, is_whole));
    map
}

/// As [`overwritten`], but written at random from the first chunk on.
fn scattered(chunks: u64) -> MapBench {
    let (mut map, mut rng) = (MapBench::default(), SeededRng::new(2));
    (0..2 * chunks).for_each(|number| map.write(rng.below(chunks), number + 1, false));
    map
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("a Linux system");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("two numbers");
    pages * 4096
}

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

type Make = fn() -> MapBench;

/// Prints bytes per extent; runs first, while the process is small. Memory that the allocator keeps of the previous map
/// counts as well.
fn memory() {
    let kinds: [(&str, Make); 3] = [
        ("16 KiB, ascending, then overwritten", || overwritten(CHUNKS, true)),
        ("of any size, ascending, then overwritten", || overwritten(CHUNKS, false)),
        ("of any size, at random, overwritten", || scattered(CHUNKS)),
    ];
    let before = resident();
    for (name, make) in kinds {
        let map = make();
        let extents = map.extents() as f64;
        println!(
            "{:.1} resident bytes per extent, {:.1} by own count: {extents} chunks {name}",
            (resident() - before) as f64 / extents,
            map.memory_bytes() as f64 / extents,
        );
        let began = processor_time();
        drop(map);
        println!("dropped in {:?}", processor_time() - began);
    }
}

fn chunks(rng: &mut SeededRng) -> [u64; GROUP as usize] {
    array::from_fn(|_| rng.below(CHUNKS))
}

fn speed(criterion: &mut Criterion<ProcessorTime>) {
    let mut group = criterion.benchmark_group("map");
    group.sample_size(20).throughput(Throughput::Elements(1));
    let mut rng = SeededRng::new(3);
    let mut map = overwritten(CHUNKS, false);
    group.bench_function("look-up", |bench| bench.iter(|| black_box(map.find(rng.below(CHUNKS)))));
    // As collection and reads of scattered sectors do.
    group.throughput(Throughput::Elements(GROUP)).bench_function("look-up, of 64", |bench| {
        bench.iter(|| black_box(map.find_each(&chunks(&mut rng))));
    });
    group.throughput(Throughput::Elements(1));
    // All leaves are dirty, so each is referred to: the worst case of a checkpoint's beginning. Evicts the map from the
    // cache, as other work would.
    let mut other = vec![0u8; 256 << 20];
    let mut use_cache = || other.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
    group.bench_function("beginning of a checkpoint: hold", |bench| {
        bench.iter_batched(&mut use_cache, |()| map.snapshot(), BatchSize::PerIteration);
    });
    group.bench_function("beginning of a checkpoint: walk", |bench| {
        let snapshot = || {
            use_cache();
            map.snapshot()
        };
        bench.iter_batched_ref(snapshot, |snapshot| black_box(snapshot.walk()), BatchSize::PerIteration);
    });
    drop(other);
    let mut birth = 2 * CHUNKS;
    group.bench_function("overwrite", |bench| {
        bench.iter(|| {
            birth += 1;
            map.write(rng.below(CHUNKS), birth, false);
        });
    });
    group.throughput(Throughput::Elements(GROUP)).bench_function("overwrite, of 64", |bench| {
        bench.iter(|| {
            birth += GROUP;
            map.write_each(&chunks(&mut rng), birth, false);
        });
    });
    group.throughput(Throughput::Elements(1));
    // A hole in a chunk: one extent becomes two.
    group.bench_function("split", |bench| {
        bench.iter(|| {
            let start = rng.below(CHUNKS) * 32 + 8;
            map.trim(start..start + 1);
        });
    });
    drop(map);
    let (mut map, mut chunk) = (MapBench::default(), 0);
    group.bench_function("insert, ascending", |bench| {
        bench.iter(|| {
            chunk += 1;
            map.write(chunk, chunk, false);
        });
    });
    let (mut map, mut birth) = (MapBench::default(), 0);
    group.bench_function("insert, at random", |bench| {
        bench.iter(|| {
            birth += 1;
            map.write(rng.below(1 << 40), birth, false);
        });
    });
    drop(map);
    group.sample_size(10).throughput(Throughput::Elements(TRIMMED));
    group.bench_function("trim of 1,000,000 extents", |bench| {
        let make = || overwritten(TRIMMED, false);
        bench.iter_batched_ref(make, |map| map.trim(0..u64::MAX), BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ProcessorTime);
    targets = speed
}

fn main() {
    memory();
    benches();
    Criterion::default().configure_from_args().final_summary();
}
