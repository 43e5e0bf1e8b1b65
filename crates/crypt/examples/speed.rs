//! How fast sectors are encrypted and decrypted, beside the crate `xts-mode` and the checksum that each chunk needs
//! anyway: `cargo run --release -p lacuna-crypt --example speed`.

use std::{hint::black_box, time::Instant};

use aes::{
    Aes256,
    cipher::{Array, KeyInit},
};
use lacuna_crypt::{Cost, KeyBlock, Secret, SlotOptions};
use xts_mode::{Xts128, get_tweak_default};

const CHUNK: usize = 16 << 10;
const CHUNKS: u64 = 4000;

/// Gigabytes a second of `work`, which gets the number of the chunk: the median of all chunks, which does not depend on
/// what else the machine does.
fn speed(mut work: impl FnMut(u64)) -> f64 {
    let mut times: Vec<_> = (0..CHUNKS)
        .map(|at| {
            let start = Instant::now();
            work(at);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    CHUNK as f64 / times[times.len() / 2].as_secs_f64() / 1e9
}

fn main() -> lacuna_crypt::Result<()> {
    let options = SlotOptions { cost: Cost::MIN, ..SlotOptions::default() };
    let (_, key) = KeyBlock::create([0; 16], &Secret::new("of no importance")?, &options)?;
    let cipher = key.cipher();
    let other = Xts128::new(Aes256::new(&Array([1; 32])), Aes256::new(&Array([2; 32])));
    let mut chunk = vec![7; CHUNK];
    for _ in 0..5 {
        let encrypt = speed(|at| cipher.encrypt(at * 32, &mut chunk));
        let decrypt = speed(|at| cipher.decrypt(at * 32, &mut chunk));
        let theirs = speed(|at| other.encrypt_area(&mut chunk, 512, (at * 32).into(), get_tweak_default));
        let crc = speed(|_| {
            black_box(lacuna_crc::crc32c(black_box(&chunk)));
        });
        println!("GB/s: encrypt {encrypt:.2}, decrypt {decrypt:.2}; xts-mode {theirs:.2}; CRC32C {crc:.1}");
    }
    Ok(())
}
