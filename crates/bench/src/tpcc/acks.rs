//! The acknowledgement log: the facts that must hold in the store after any crash.
//!
//! An [`AckFile`] with these lines:
//!
//! ```text
//! lacuna-tpcc-acks 1                   first line
//! L warehouses items customers         all of it was loaded
//! O warehouse district order customer lines
//!                                      an order was taken
//! P warehouse district number amount   a payment was taken, with this number in the history
//! D warehouse district order carrier   an order was delivered
//! ```
//!
//! None of these facts ever changes again, so each must be found as it was acknowledged. The other changes of the same
//! transactions (counters, balances, stock) are tied to these facts by the consistency conditions.

use std::{fmt, path::Path};

use anyhow::Result;

use super::Scale;
use crate::ack_file::{self, AckFile, Acknowledgement, fields};

/// The effect of one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    Loaded(Scale),
    Order { warehouse: u32, district: u32, order: u32, customer: u32, lines: u8 },
    Payment { warehouse: u32, district: u32, number: u64, amount: i64 },
    Delivery { warehouse: u32, district: u32, order: u32, carrier: u8 },
}

impl Acknowledgement for Ack {
    const FIRST_LINE: &'static str = "lacuna-tpcc-acks 1";
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ack::Loaded(Scale { warehouses, items, customers }) => {
                write!(f, "L {warehouses} {items} {customers}")
            }
            Ack::Order { warehouse, district, order, customer, lines } => {
                write!(f, "O {warehouse} {district} {order} {customer} {lines}")
            }
            Ack::Payment { warehouse, district, number, amount } => {
                write!(f, "P {warehouse} {district} {number} {amount}")
            }
            Ack::Delivery { warehouse, district, order, carrier } => {
                write!(f, "D {warehouse} {district} {order} {carrier}")
            }
        }
    }
}

/// Writes acknowledgements.
pub type AckLog = AckFile<Ack>;

/// All acknowledgements of a log.
pub(crate) fn read(path: &Path) -> Result<Vec<Ack>> {
    let mut acks = Vec::new();
    ack_file::read::<Ack>(path, |line| parse(line).map(|ack| acks.push(ack)).is_some())?;
    Ok(acks)
}

fn parse(line: &str) -> Option<Ack> {
    let (kind, rest) = line.split_once(' ')?;
    let narrow = |number: u64| u32::try_from(number).ok();
    Some(match kind {
        "L" => {
            let [warehouses, items, customers] = fields(rest)?.map(narrow);
            Ack::Loaded(Scale { warehouses: warehouses?, items: items?, customers: customers? })
        }
        "O" => {
            let [warehouse, district, order, customer, lines] = fields(rest)?.map(narrow);
            Ack::Order {
                warehouse: warehouse?,
                district: district?,
                order: order?,
                customer: customer?,
                lines: lines?.try_into().ok()?,
            }
        }
        "P" => {
            let [warehouse, district, number, amount] = fields(rest)?;
            Ack::Payment {
                warehouse: narrow(warehouse)?,
                district: narrow(district)?,
                number,
                amount: amount.try_into().ok()?,
            }
        }
        "D" => {
            let [warehouse, district, order, carrier] = fields(rest)?.map(narrow);
            Ack::Delivery {
                warehouse: warehouse?,
                district: district?,
                order: order?,
                carrier: carrier?.try_into().ok()?,
            }
        }
        _ => return None,
    })
}

/// A log of acknowledgements, line by line; see fuzz/.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    for line in String::from_utf8_lossy(bytes).lines() {
        let _ = parse(line);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let path = std::env::temp_dir().join(format!("lacuna-tpcc-acks-{}", std::process::id()));
        let acks = [
            Ack::Loaded(Scale { warehouses: 1, items: 2, customers: 3 }),
            Ack::Order { warehouse: 1, district: 2, order: 3, customer: 4, lines: 5 },
            Ack::Payment { warehouse: 1, district: 2, number: 1 << 40, amount: 500_000 },
            Ack::Delivery { warehouse: 1, district: 2, order: 3, carrier: 10 },
        ];
        let log = AckLog::create(&path).unwrap();
        log.append(&acks[..1]).unwrap();
        log.append(&acks[1..]).unwrap();
        fs::File::options().append(true).open(&path).unwrap().write_all(b"D 1 2 4").unwrap();
        assert_eq!(read(&path).unwrap(), acks);
        std::fs::remove_file(path).unwrap();
        for nonsense in ["", "L", "L 1 2", "O 1 2 3 4 256", "P 1 2 3 -4", "X 1"] {
            assert_eq!(parse(nonsense), None, "{nonsense:?}");
        }
    }
}
