//! The space of a store that only root may fill, so that root can still work on a mount that a user has filled.

use std::{fmt, str::FromStr};

use lacuna_nvmfs::Spare;

use crate::size::Size;

/// Percent that are kept where other users are let in, as in ext4.
const PERCENT: u8 = 5;
/// As mke2fs has it.
const PERCENT_MAX: u8 = 50;

/// A reserve on the command line: `10%`, `512M`, `0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reserve(pub(super) Spare);

/// What is kept unless an option says otherwise. On a mount of its maker's alone there is nobody to keep it from.
pub(super) fn default_for(allow_other: bool) -> Spare {
    if allow_other { Spare::Percent(PERCENT) } else { Spare::Nothing }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Spare::Nothing => f.write_str("0"),
            Spare::Percent(percent) => write!(f, "{percent}%"),
            Spare::Bytes(bytes) => write!(f, "{bytes}B"),
        }
    }
}

impl FromStr for Reserve {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Reserve, &'static str> {
        const HELP: &str = "a reserve is percent from 0% to 50%, a size such as 512M, or 0";
        let is_digit = |byte: u8| byte.is_ascii_digit();
        if text.bytes().all(is_digit) {
            // 5 is more likely meant as percent than as bytes.
            return if text == "0" { Ok(Reserve(Spare::Nothing)) } else { Err(HELP) };
        }
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(|Size(bytes)| Reserve(Spare::Bytes(bytes))).map_err(|_| HELP);
        };
        match percent.parse() {
            Ok(percent @ 0..=PERCENT_MAX) if text.as_bytes().first().copied().is_some_and(is_digit) => {
                Ok(Reserve(Spare::Percent(percent)))
            }
            _ => Err(HELP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_percent_or_a_size() {
        for (text, spare) in [
            ("0", Spare::Nothing),
            ("0%", Spare::Percent(0)),
            ("5%", Spare::Percent(5)),
            ("50%", Spare::Percent(50)),
            ("512M", Spare::Bytes(512 << 20)),
            ("4096B", Spare::Bytes(4096)),
        ] {
            assert_eq!(text.parse(), Ok(Reserve(spare)), "{text}");
            assert_eq!(Reserve(spare).to_string().parse(), Ok(Reserve(spare)), "{text}");
        }
        for bad in ["", "5", "00", "51%", "%", "+5%", "-1%", "5.5%", "5 %", "300%", "5%%", "x", "0G"] {
            assert!(bad.parse::<Reserve>().is_err(), "{bad}");
        }
        assert_eq!([true, false].map(default_for), [Spare::Percent(5), Spare::Nothing]);
    }
}
