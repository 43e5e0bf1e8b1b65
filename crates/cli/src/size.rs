use std::str::FromStr;

/// A number of bytes on the command line: `8G`, `8GB`, `8GiB`, `1.5g`, `4096`. Units are powers of 1024, as databases
/// have them. A fraction is cut to whole bytes, from a mebibyte on to multiples of 4096, so that it suits a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub u64);

/// The unit of sizes of stores.
const PAGE: u128 = 4096;

impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Size, &'static str> {
        const HELP: &str =
            "a size is a number of bytes, or one with K, M, G or T behind it, such as 8G or 1.5GB";
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(HELP),
        };
        let (whole, fraction) = match number.split_once('.') {
            Some((_, "")) => return Err(HELP),
            Some(parts) => parts,
            None => (number, ""),
        };
        if whole.is_empty() || fraction.contains('.') || (shift == 0 && !fraction.is_empty()) {
            return Err(HELP);
        }
        let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| "too large")?;
        let scale = 10_u128.checked_pow(fraction.len() as u32).ok_or("too large")?;
        let exact = digits.checked_mul(1 << shift).ok_or("too large")?;
        let mut bytes = exact / scale;
        if bytes * scale != exact && bytes >= 1 << 20 {
            bytes = bytes / PAGE * PAGE;
        }
        match u64::try_from(bytes) {
            Ok(0) => Err("must not be zero"),
            Ok(bytes) => Ok(Size(bytes)),
            Err(_) => Err("too large"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_strictly() {
        for (text, bytes) in [
            ("512", 512),
            ("512B", 512),
            ("4K", 4096),
            ("512K", 512 << 10),
            ("256M", 256 << 20),
            ("8G", 8 << 30),
            ("8g", 8 << 30),
            ("8GB", 8 << 30),
            ("8GiB", 8 << 30),
            ("1.5G", 3 << 29),
            ("1.5GiB", 3 << 29),
            ("0.5k", 512),
            ("1.1M", 1_150_976),
            ("1T", 1 << 40),
            ("16777215.5T", u64::MAX - (1 << 39) + 1),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for bad in [
            "", "G", "B", "8 G", "-8G", "+8", "1.5", ".5G", "1.G", "1.5.5G", "1,5G", "0", "0.0001K", "0x10",
            "8G8", "8iB", "8GiBs", "8Q", "ü", "8ü",
        ] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        let digits = "9".repeat(400);
        for large in ["16777216T", "99999999999999999999", &digits, &format!("1.{digits}G")] {
            assert_eq!(large.parse::<Size>(), Err("too large"), "{large}");
        }
    }
}
