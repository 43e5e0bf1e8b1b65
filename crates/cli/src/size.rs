use std::str::FromStr;

/// A number of bytes on the command line: digits, then nothing, K, M, G or T (powers of 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub u64);

impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Size, &'static str> {
        const HELP: &str = "a size is a number of bytes, or one with K, M, G or T behind it, such as 8G";
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K') => (&text[..text.len() - 1], 10),
            Some(b'M') => (&text[..text.len() - 1], 20),
            Some(b'G') => (&text[..text.len() - 1], 30),
            Some(b'T') => (&text[..text.len() - 1], 40),
            _ => (text, 0),
        };
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(HELP);
        }
        let number: u64 = digits.parse().map_err(|_| "too large")?;
        let bytes = number.checked_mul(1 << shift).ok_or("too large")?;
        if bytes == 0 { Err("must not be zero") } else { Ok(Size(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_strictly() {
        for (text, bytes) in
            [("512", 512), ("4K", 4096), ("256M", 256 << 20), ("8G", 8 << 30), ("1T", 1 << 40)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)));
        }
        for bad in [
            "",
            "G",
            "8g",
            "8GB",
            "8 G",
            "-8G",
            "+8",
            "1.5G",
            "0",
            "0x10",
            "8G8",
            "ü",
            "99999999999999999999",
        ] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        assert_eq!("16777216T".parse::<Size>(), Err("too large"));
    }
}
