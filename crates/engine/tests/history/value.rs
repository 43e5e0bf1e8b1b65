//! Keys and values as bytes. A value names its write and the writes that it was made from, and all its other bytes
//! follow from these, so that a value which is torn, mixed or of another key is recognised.

use lacuna_sim::SeededRng;

use super::record::{Key, Seen, WriteId};

/// Write, form, length of the value, number of elements.
const HEADER: usize = 8 + 1 + 4 + 4;

/// How the bytes after the elements are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// All the same for a key: one write differs from the next in few bytes.
    Alike = 0,
    /// Of the write: they neither compress nor resemble another.
    Random = 1,
}

/// Some keys are longer than others.
pub(crate) fn key_bytes(number: u32) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    if number % 8 == 3 {
        bytes.resize(200, number as u8);
    }
    bytes
}

pub(crate) fn key_number(bytes: &[u8]) -> Option<u32> {
    let number = u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?);
    (key_bytes(number) == bytes).then_some(number)
}

/// The value of a write, of at least `bytes_min` bytes.
pub(crate) fn encode(key: Key, write: WriteId, list: &[WriteId], form: Form, bytes_min: usize) -> Vec<u8> {
    let bytes = bytes_min.max(HEADER + list.len() * 8);
    let mut value = Vec::with_capacity(bytes);
    value.extend_from_slice(&write.0.to_le_bytes());
    value.push(form as u8);
    value.extend_from_slice(&(bytes as u32).to_le_bytes());
    value.extend_from_slice(&(list.len() as u32).to_le_bytes());
    list.iter().for_each(|element| value.extend_from_slice(&element.0.to_le_bytes()));
    let filled = value.len();
    value.resize(bytes, key.number as u8 ^ key.table as u8);
    if form == Form::Random {
        SeededRng::new(write.0 ^ u64::from(key.number) << 48).fill(&mut value[filled..]);
    }
    value
}

/// Decodes a value read at `key`.
pub(crate) fn decode(key: Key, value: &[u8]) -> Seen {
    parse(key, value).unwrap_or_else(|| {
        let start = &value[..value.len().min(32)];
        Seen::Garbage(format!("{} bytes, the first are {start:02x?}", value.len()))
    })
}

fn parse(key: Key, value: &[u8]) -> Option<Seen> {
    let number = |at: usize| Some(u32::from_le_bytes(value.get(at..at + 4)?.try_into().ok()?) as usize);
    let element = |at: usize| Some(WriteId(u64::from_le_bytes(value.get(at..at + 8)?.try_into().ok()?)));
    let write = element(0)?;
    let form = [Form::Alike, Form::Random].into_iter().find(|form| *form as u8 == value[8])?;
    let (bytes, elements) = (number(9)?, number(13)?);
    if bytes != value.len() || elements > bytes / 8 {
        return None;
    }
    let list: Vec<WriteId> = (0..elements).map(|i| element(HEADER + i * 8)).collect::<Option<_>>()?;
    (encode(key, write, &list, form, bytes) == value).then_some(Seen::Version(write, list))
}

#[test]
fn values_are_recognised_and_damaged_ones_are_not() {
    let key = Key { table: 16, number: 3 };
    for form in [Form::Alike, Form::Random] {
        let list = [WriteId::new(4, 1), WriteId::new(5, 2)];
        let value = encode(key, list[1], &list, form, 100);
        let sound = Seen::Version(list[1], list.to_vec());
        assert_eq!(decode(key, &value), sound);
        for at in 0..value.len() {
            let mut damaged = value.clone();
            damaged[at] ^= 0x10;
            // Other names of writes are found by the checker, which knows all that there are.
            match decode(key, &damaged) {
                Seen::Garbage(_) => {}
                other => assert!(other != sound && at < HEADER + 16, "byte {at}"),
            }
        }
        assert!(matches!(decode(key, &value[..99]), Seen::Garbage(_)));
        assert!(matches!(decode(key, &[]), Seen::Garbage(_)));
        let elsewhere = Key { number: 4, ..key };
        assert!(matches!(decode(elsewhere, &value), Seen::Garbage(_)));
    }
    assert_eq!(key_number(&key_bytes(3)), Some(3));
    assert_eq!(key_number(&key_bytes(3)[..9]), None);
}
