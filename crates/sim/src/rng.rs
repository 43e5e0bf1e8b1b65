/// A small seeded generator (SplitMix64, Steele, Lea and Flood 2014). It is the only source of chance in simulations,
/// so a seed replays a run exactly.
#[derive(Clone, Debug)]
pub struct SeededRng {
    state: u64,
    /// The highest 16 bits of the first numbers, which a fuzzer chose, the next one last.
    chosen: Vec<u16>,
}

impl SeededRng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng { state: seed, chosen: Vec::new() }
    }

    /// A generator whose first choices a fuzzer makes: two bytes decide the highest bits of a number, and so what
    /// [`SeededRng::below`] makes of it.
    pub fn choosing(bytes: &[u8]) -> SeededRng {
        let (pairs, _) = bytes.as_chunks::<2>();
        SeededRng { state: 0, chosen: pairs.iter().rev().map(|pair| u16::from_le_bytes(*pair)).collect() }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        self.chosen.pop().map_or(z, |chosen| u64::from(chosen) << 48 | z >> 16)
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True in `percent` of 100 calls.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Fills `buf` with random bytes.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}
