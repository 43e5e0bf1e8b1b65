//! The path of a batch from the call to the device, on a device in memory: the cost of the ftl itself.
//!
//!     cargo bench -p lacuna-ftl --bench flush

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Stream};
use lacuna_sim::SeededRng;

const THREADS: [u64; 3] = [1, 4, 16];

fn store() -> Ftl {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(512 << 20));
    Ftl::format(Arc::clone(&device), &FormatOptions::default()).unwrap();
    Ftl::open(device, Options { background: true, ..Options::default() }).unwrap()
}

fn noise(len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    SeededRng::new(1).fill(&mut data);
    data
}

/// Time in which `threads` threads make `requests` requests in all.
fn time(threads: u64, requests: u64, request: impl Fn(u64, u64) + Sync) -> Duration {
    let start = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            let request = &request;
            scope
                .spawn(move || (thread..requests).step_by(threads as usize).for_each(|n| request(thread, n)));
        }
    });
    start.elapsed()
}

fn flush_path(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("flush");
    group.sample_size(20).throughput(Throughput::Elements(1));
    let (small, page, large) = (noise(4096), noise(16384), noise(4 << 20));
    // Its part in a write, for which there is no switch.
    group.bench_function("checksum of 16 KiB", |bench| bench.iter(|| lacuna_crc::crc32c(black_box(&page))));
    for threads in THREADS {
        let ftl = store();
        group.bench_function(format!("append 4 KiB and flush, {threads} threads"), |bench| {
            bench.iter_custom(|requests| {
                time(threads, requests, |thread, number| {
                    let lba = Lba((thread << 30) + number % 1024 * 8);
                    ftl.write_batch(&[Op::Write { lba, data: &small }], Stream::Log).unwrap();
                    ftl.flush().unwrap();
                })
            });
        });
        group.bench_function(format!("write 16 KiB, {threads} threads"), |bench| {
            bench.iter_custom(|requests| {
                time(threads, requests, |thread, number| {
                    let lba = Lba((1 << 40) + (thread << 30) + number % 256 * 32);
                    ftl.write_batch(&[Op::Write { lba, data: &page }], Stream::Data).unwrap();
                })
            });
        });
    }
    // How long small appends wait while another thread writes large batches.
    let ftl = store();
    group.bench_function("append 4 KiB and flush beside batches of 4 MiB", |bench| {
        bench.iter_custom(|requests| {
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        ftl.write_batch(&[Op::Write { lba: Lba(0), data: &large }], Stream::Data).unwrap();
                    }
                });
                let spent = time(1, requests, |_, number| {
                    let lba = Lba((1 << 50) + number % 1024 * 8);
                    ftl.write_batch(&[Op::Write { lba, data: &small }], Stream::Log).unwrap();
                    ftl.flush().unwrap();
                });
                is_over.store(true, Relaxed);
                spent
            })
        });
    });
    group.finish();
}

criterion_group!(benches, flush_path);
criterion_main!(benches);
