//! CRC-32C (Castagnoli, reflected, as in iSCSI and ext4): the checksum of every format of Lacuna, in one place, so
//! that whoever computes it can be exchanged. Processors have instructions for it; `crc-fast` folds with the widest.
//!
//! ```
//! assert_eq!(lacuna_crc::crc32c(b"123456789"), 0xe306_9283);
//! assert_eq!(lacuna_crc::crc32c_append(lacuna_crc::crc32c(b"12345"), b"6789"), 0xe306_9283);
//! ```

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// The checksum of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// The checksum of what has the checksum `crc`, with `bytes` behind it.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// The checksum of what has the checksum `first`, with `len` bytes behind it that have the checksum `second`.
pub fn crc32c_combine(first: u32, second: u32, len: u64) -> u32 {
    let bits = (0..u64::BITS as usize).filter(|bit| len >> bit & 1 == 1);
    bits.fold(first, |crc, bit| product(SHIFTS[bit], crc)) ^ second
}

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// By `n`, what a checksum is multiplied by for 2^n bytes behind it: x to the power of 8 * 2^n.
const SHIFTS: [u32; u64::BITS as usize] = {
    let mut shifts = [1 << (31 - 8); u64::BITS as usize];
    let mut n = 1;
    while n < shifts.len() {
        shifts[n] = product(shifts[n - 1], shifts[n - 1]);
        n += 1;
    }
    shifts
};

/// Product of two polynomials modulo that of the checksum; the highest bit is the coefficient of 1.
const fn product(left: u32, mut right: u32) -> u32 {
    let (mut product, mut bit) = (0, 1 << 31);
    while bit > 0 {
        if left & bit != 0 {
            product ^= right;
        }
        right = (right >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(right & 1));
        bit >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit by bit, from the definition.
    fn slow(crc: u32, bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!crc, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1))
            })
        })
    }

    #[test]
    fn known_values() {
        // RFC 3720, B.4.
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, crc) in
            [(vec![0; 32], 0x8a91_36aa), (vec![0xff; 32], 0x62a8_ab43), (ascending, 0x46dd_794e)]
        {
            assert_eq!(crc32c(&bytes), crc);
        }
        assert_eq!(crc32c(&[]), 0);
    }

    #[test]
    fn every_length_and_alignment() {
        let bytes: Vec<u8> = (0..1400_u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        for start in 0..64 {
            for len in (0..300).chain(1000..1300) {
                let piece = &bytes[start..start + len];
                assert_eq!(crc32c(piece), slow(0, piece), "{len} bytes from {start}");
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_are_as_good_as_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..20_000), cut: u16) {
            let (a, b) = bytes.split_at(usize::from(cut) % (bytes.len() + 1));
            prop_assert_eq!(crc32c(&bytes), slow(0, &bytes));
            prop_assert_eq!(crc32c_append(crc32c(a), b), slow(0, &bytes));
            prop_assert_eq!(crc32c_append(0, a), crc32c(a));
            prop_assert_eq!(crc32c_combine(crc32c(a), crc32c(b), b.len() as u64), slow(0, &bytes));
        }
    }
}
