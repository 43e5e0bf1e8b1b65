/// Source of all randomness of a run: xoshiro256** (Blackman and Vigna), seeded through SplitMix64.
///
/// Equal seeds give equal streams on every machine and in every later version: `--seed` means the
/// same data for plain and compressed tables.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    /// A stream for `seed` and for one purpose of that run, such as one chunk or one requester.
    pub(crate) fn new(seed: u64, purpose: u64) -> Random {
        let mut mix = seed ^ splitmix(&mut purpose.wrapping_add(0x5EED));
        Random { state: std::array::from_fn(|_| splitmix(&mut mix)) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0 .. bound`; `bound` is not zero. The bias, below 2^-32 for what a benchmark
    /// asks for, is that of taking the high half of a product.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0);
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller).
    pub(crate) fn gaussian(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_differ() {
        let draw = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            std::array::from_fn::<u64, 4, _>(|_| random.next())
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn moments_are_right() {
        let mut random = Random::new(1, 1);
        let n = 200_000;
        let (mut sum, mut squares, mut uniform) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let x = random.gaussian();
            sum += x;
            squares += x * x;
            uniform += random.below(10) as f64;
        }
        assert!((sum / f64::from(n)).abs() < 0.01);
        assert!((squares / f64::from(n) - 1.0).abs() < 0.02);
        assert!((uniform / f64::from(n) - 4.5).abs() < 0.03);
    }
}
