//! Numbers in as few bytes as they need: seven bits each, the lowest first, and the highest bit of a byte says that
//! another one follows (LEB128).

use super::Flaw;

/// Most bytes that a number takes.
pub(super) const VARINT_BYTES_MAX: usize = 10;

/// Appends `value`.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off the front of `rest`.
pub(super) fn take(rest: &mut &[u8]) -> Result<u64, Flaw> {
    let mut value = 0;
    for (index, byte) in rest.iter().enumerate().take(VARINT_BYTES_MAX) {
        let bits = u64::from(byte & 0x7f);
        value |= bits << (7 * index);
        if value >> (7 * index) != bits {
            return Err("number of more than 64 bits");
        }
        if byte & 0x80 == 0 {
            *rest = &rest[index + 1..];
            return Ok(value);
        }
    }
    Err("number without an end")
}

/// Bytes that `value` takes.
pub(super) fn len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// The signed difference of `value` from `before`, zigzag-coded: small for a small distance in either direction.
pub(super) fn step(before: u64, value: u64) -> u64 {
    let difference = value.wrapping_sub(before) as i64;
    (difference << 1 ^ difference >> 63) as u64
}

/// The value that is `step` from `before`.
pub(super) fn stepped(before: u64, step: u64) -> u64 {
    before.wrapping_add(step >> 1 ^ (step & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_take_seven_bits_a_byte() {
        for (value, bytes) in [(0, 1), (127, 1), (128, 2), (16383, 2), (16384, 3), (u64::MAX, 10)] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!((out.len(), len(value)), (bytes, bytes), "{value}");
        }
        assert_eq!(
            [(9, 9), (9, 8), (9, 10), (9, 7)].map(|(before, value)| step(before, value)),
            [0, 1, 2, 3]
        );
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for mut bytes in [&[][..], &[0x80], &[0xff; 10], &[0x80; 11]] {
            assert!(take(&mut bytes).is_err(), "{bytes:?}");
        }
        let mut beyond = &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2][..];
        assert!(take(&mut beyond).is_err());
    }

    proptest! {
        #[test]
        fn numbers_come_back(before: u64, value: u64, shift in 0..64) {
            let value = value >> shift;
            let mut out = Vec::new();
            put(&mut out, value);
            put(&mut out, step(before, value));
            prop_assert_eq!(out.len(), len(value) + len(step(before, value)));
            let mut rest = &out[..];
            prop_assert_eq!(take(&mut rest), Ok(value));
            prop_assert_eq!(stepped(before, take(&mut rest).unwrap()), value);
            prop_assert!(rest.is_empty());
        }
    }
}
