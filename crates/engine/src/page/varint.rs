//! Numbers in as few bytes as they need (LEB128). Pure.

/// Appends `value`.
pub(crate) fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off the front; `None` when there is no whole one, or one too long.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.split_off_first()?;
        let bits = u64::from(byte & 0x7f);
        value |= bits << shift;
        if value >> shift != bits {
            return None;
        }
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_longer_ones_are_refused() {
        for value in [0, 127, 128, 1 << 63, u64::MAX] {
            let mut bytes = Vec::new();
            put(value, &mut bytes);
            let mut rest = &bytes[..];
            assert_eq!((take(&mut rest), rest.len()), (Some(value), 0));
            assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None);
        }
        for bad in [[0xff; 10], [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2]] {
            assert_eq!(take(&mut &bad[..]), None, "{bad:?}");
        }
    }
}
