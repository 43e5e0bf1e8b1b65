/// SipHash-2-4 (Aumasson and Bernstein 2012) of `data`. Part of the on-disk format: the standard
/// library's hashers promise no stable result.
pub(crate) fn siphash24(key: &[u8; 16], data: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(padded)
    };
    let (k0, k1) = (word(&key[..8]), word(&key[8..]));
    let mut state = State([
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ]);
    let (words, rest) = data.split_at(data.len() / 8 * 8);
    for chunk in words.chunks(8) {
        state.absorb(word(chunk));
    }
    state.absorb(word(rest) | (data.len() as u64) << 56);
    state.0[2] ^= 0xff;
    state.rounds(4);
    state.0.iter().fold(0, |hash, v| hash ^ v)
}

struct State([u64; 4]);

impl State {
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.rounds(2);
        self.0[0] ^= word;
    }

    fn rounds(&mut self, count: usize) {
        let [v0, v1, v2, v3] = &mut self.0;
        for _ in 0..count {
            *v0 = v0.wrapping_add(*v1);
            *v1 = v1.rotate_left(13) ^ *v0;
            *v0 = v0.rotate_left(32);
            *v2 = v2.wrapping_add(*v3);
            *v3 = v3.rotate_left(16) ^ *v2;
            *v0 = v0.wrapping_add(*v3);
            *v3 = v3.rotate_left(21) ^ *v0;
            *v2 = v2.wrapping_add(*v1);
            *v1 = v1.rotate_left(17) ^ *v2;
            *v2 = v2.rotate_left(32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_reference_vectors() {
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        let data: Vec<u8> = (0..15).collect();
        // From the authors' reference implementation: lengths 0, 1, 8 and 15.
        for (len, hash) in [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
        ] {
            assert_eq!(siphash24(&key, &data[..len]), hash, "length {len}");
        }
    }
}
