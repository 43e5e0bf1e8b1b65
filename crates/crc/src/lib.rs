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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit by bit, from the definition.
    fn slow(crc: u32, bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!crc, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1))
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
        }
    }
}
