//! Seeds and random numbers for the engine's tests.
#![allow(dead_code, unreachable_pub)] // Each test binary uses a part of it.

use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of this run: `LACUNA_SEED` if it is set, to replay a failure, else a new one.
pub fn seed() -> u64 {
    match std::env::var("LACUNA_SEED") {
        Ok(seed) => seed.parse().expect("LACUNA_SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).expect("clock").as_nanos() as u64,
    }
}

/// How many cases a randomised test runs: `LACUNA_CASES` if it is set.
pub fn cases(default: u64) -> u64 {
    match std::env::var("LACUNA_CASES") {
        Ok(cases) => cases.parse().expect("LACUNA_CASES is a number"),
        Err(_) => default,
    }
}

/// splitmix64: small, seeded, good enough to choose test inputs.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
