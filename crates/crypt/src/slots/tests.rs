use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{format::reseal, limits::SECRET_BYTES_MAX};

const UUID: [u8; 16] = [7; 16];

fn cheap(label: &str) -> SlotOptions {
    SlotOptions { source: Source::File, label: label.into(), cost: Cost::MIN }
}

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

fn block() -> (KeyBlock, VolumeKey) {
    KeyBlock::create(UUID, &secret("one"), &cheap("first")).unwrap()
}

/// Made by other implementations: Argon2id and ChaCha20-Poly1305 of OpenSSL, HChaCha20 in Python.
#[test]
fn a_slot_that_others_wrapped() {
    let sealed = "\
        caf9973998cd3986b9753d4363e35ec7425a05dba922f50fdcdad70db97e3f8e57307306a1d0dfbd\
        a2a1db396195185622a6ad146a52073630bb6149efb742c7cea76940f3f3db8cd9983e9207d83b07";
    let hex: Vec<u8> =
        (0..160).step_by(2).map(|at| u8::from_str_radix(&sealed[at..at + 2], 16).unwrap()).collect();
    let mut slot = Slot {
        source: 1,
        label: "mine".into(),
        memory_kib: 64,
        passes: 2,
        salt: std::array::from_fn(|at| 100 + at as u8),
        nonce: std::array::from_fn(|at| 200 + at as u8),
        sealed: hex.try_into().unwrap(),
    };
    let key = slot.unwrap(&UUID, &secret("correct horse")).unwrap().expect("it opens");
    assert_eq!(*key.0, std::array::from_fn(|at| at as u8));
    let theirs = std::mem::replace(&mut slot.sealed, [0; SEALED_BYTES]);
    slot.seal(&UUID, &key, &secret("correct horse")).unwrap();
    assert_eq!(slot.sealed, theirs);
}

#[test]
fn secrets_come_and_go_and_the_key_stays() {
    let (first, key) = block();
    let (second, slot) = first.add(&secret("one"), &secret("two"), &cheap("second")).unwrap();
    assert_eq!((slot, second.sequence()), (1, first.sequence() + 1));
    for (text, slot) in [("one", 0), ("two", 1)] {
        let (found, opened) = second.unlock(&secret(text)).unwrap();
        assert_eq!((found, &opened.0), (slot, &key.0));
    }
    let (third, slot) = second.rotate(&secret("one"), &secret("three"), &cheap("third")).unwrap();
    assert_eq!(slot, 0);
    assert_eq!(third.unlock(&secret("one")).unwrap_err(), Error::WrongKey { used: 2 });
    assert_eq!(third.unlock(&secret("three")).unwrap().1.0, key.0);
    let labels: Vec<_> = third.slots().into_iter().map(|slot| (slot.slot, slot.label, slot.source)).collect();
    assert_eq!(labels, [(0, "third".into(), Source::File), (1, "second".into(), Source::File)]);

    assert_eq!(third.remove(&secret("two"), 1).unwrap_err(), Error::KeyOfRemoved { slot: 1 });
    assert_eq!(third.remove(&secret("two"), 2).unwrap_err(), Error::UnusedSlot { slot: 2 });
    assert_eq!(third.remove(&secret("two"), SLOTS).unwrap_err(), Error::UnusedSlot { slot: SLOTS });
    assert!(matches!(third.remove(&secret("nobody's"), 1), Err(Error::WrongKey { .. })));
    let last = third.remove(&secret("two"), 0).unwrap();
    assert!(last.unlock(&secret("three")).is_err());
    assert_eq!(last.unlock(&secret("two")).unwrap().1.0, key.0);
    assert_eq!(last.remove(&secret("two"), 1).unwrap_err(), Error::KeyOfRemoved { slot: 1 });
}

#[test]
fn there_are_eight_slots() {
    let (mut block, _) = block();
    for slot in 1..SLOTS {
        let new = secret(&format!("key {slot}"));
        block = block.add(&secret("one"), &new, &cheap("")).unwrap().0;
    }
    assert_eq!(block.slots().len(), SLOTS);
    assert_eq!(block.add(&secret("one"), &secret("x"), &cheap("")).unwrap_err(), Error::NoFreeSlot);
    assert!(block.unlock(&secret("key 7")).is_ok());
}

#[test]
fn a_slot_of_another_store_does_not_open() {
    let (one, _) = block();
    let mut other = one.0.clone();
    other.uuid = [8; 16];
    assert_eq!(KeyBlock(other).unlock(&secret("one")).unwrap_err(), Error::WrongKey { used: 1 });
}

/// A block in which one secret has two slots, as programs of before made it.
fn twice() -> (KeyBlock, VolumeKey) {
    let (block, key) = block();
    let slot = wrap(&UUID, &key, &secret("one"), &cheap("first")).unwrap();
    (block.with(1, Some(slot)).unwrap(), key)
}

/// The old key went on opening another slot.
#[test]
fn a_rotated_key_opens_nothing() {
    let (one, _) = block();
    let refused = one.add(&secret("one"), &secret("one"), &cheap("again")).unwrap_err();
    assert_eq!(refused, Error::OpensAlready { slot: 0 });
    let (block, slot) = twice().0.add(&secret("one"), &secret("two"), &cheap("")).unwrap();
    assert_eq!(slot, 2);
    let (rotated, slot) = block.rotate(&secret("one"), &secret("three"), &cheap("")).unwrap();
    assert_eq!(slot, 0);
    assert_eq!(rotated.unlock(&secret("one")).unwrap_err(), Error::WrongKey { used: 2 });
    for known in ["two", "three"] {
        let refused = rotated.rotate(&secret("three"), &secret(known), &cheap("")).unwrap_err();
        assert!(matches!(refused, Error::OpensAlready { .. }), "{known}");
    }
    assert!(rotated.unlock(&secret("two")).is_ok() && rotated.unlock(&secret("three")).is_ok());
}

/// Invariant 1: not even for the same secret.
#[test]
fn wrappings_share_nothing() {
    let (block, _) = twice();
    let [Some(left), Some(right), ..] = &block.0.slots else { panic!("two slots") };
    assert!(left.salt != right.salt && left.nonce != right.nonce && left.sealed != right.sealed);
}

#[test]
fn what_does_not_fit_is_refused() {
    assert_eq!(Secret::new("").unwrap_err(), Error::SecretLength { bytes: 0 });
    assert!(
        Secret::new(vec![1; SECRET_BYTES_MAX]).is_ok() && Secret::new(vec![1; SECRET_BYTES_MAX + 1]).is_err()
    );
    let (block, _) = block();
    let add = |options: &SlotOptions| block.add(&secret("one"), &secret("two"), options).unwrap_err();
    assert_eq!(add(&cheap(&"x".repeat(LABEL_BYTES_MAX + 1))), Error::Label);
    assert_eq!(add(&cheap("a\nb")), Error::Label);
    for (memory_kib, passes) in [(7, 1), (8, 0), (2 << 20, 1), (1 << 20, 5), (8, 65), (u32::MAX, u32::MAX)] {
        let cost = Cost { memory_kib, passes };
        assert_eq!(add(&SlotOptions { cost, ..cheap("") }), Error::Cost { memory_kib, passes });
    }
}

/// A wrong key costs an attacker, and a forged block costs its reader no more than this.
#[test]
fn a_slot_that_asks_for_too_much_is_passed_over() {
    let (block, _) = block();
    let (mut block, _) = block.add(&secret("one"), &secret("two"), &cheap("")).unwrap();
    block.0.slots[0].as_mut().unwrap().memory_kib = u32::MAX;
    assert!(block.unlock(&secret("two")).is_ok());
    assert_eq!(block.unlock(&secret("x")).unwrap_err(), Error::Cost { memory_kib: u32::MAX, passes: 1 });
}

#[test]
fn secrets_are_not_printed() {
    let (block, key) = block();
    let printed = format!("{:?} {:?} {:?} {:?}", secret("hush"), key, block, cheap("x"));
    assert_eq!(printed.matches("(..)").count(), 2);
    assert!(!printed.contains("hush") && !printed.contains("104"), "{printed}");
}

#[test]
fn every_flipped_bit_of_a_block_is_noticed() {
    let good = block().0.encode();
    assert_eq!(KeyBlock::parse(&good).unwrap().encode(), good);
    assert_eq!(KeyBlock::parse(&good[1..]).unwrap_err(), Error::Damaged("no key block"));
    assert!(KeyBlock::parse(&good[..KEY_BLOCK_BYTES - 1]).is_err());
    for bit in (0..good.len() * 8).step_by(if cfg!(miri) { 997 } else { 1 }) {
        let mut bad = good;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(KeyBlock::parse(&bad).is_err(), "bit {bit}");
    }
}

/// With a checksum that matches, a changed slot is refused, or does not open: all of it is authenticated.
#[test]
fn every_forged_byte_of_a_slot_is_noticed() {
    const SLOT: std::ops::Range<usize> = 64..64 + 256;
    let good = block().0.encode();
    for at in SLOT {
        let mut bad = good;
        bad[at] ^= 1;
        reseal(&mut bad);
        let opened = KeyBlock::parse(&bad).and_then(|block| block.unlock(&secret("one")).map(|_| ()));
        assert!(opened.is_err(), "byte {at} of the block");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn forged_blocks_are_errors_or_come_back_the_same(
        changes in vec((0..KEY_BLOCK_BYTES, any::<u8>()), 0..4),
        sealed in any::<bool>(),
    ) {
        let mut bytes = block().0.encode();
        for (at, value) in changes {
            bytes[at] = value;
        }
        if sealed {
            reseal(&mut bytes);
        }
        if let Ok(block) = KeyBlock::parse(&bytes) {
            prop_assert_eq!(block.encode(), bytes);
        }
    }
}

/// Otherwise it would be one that cannot be read any more.
#[test]
fn the_last_number_that_can_be_read_is_not_counted_on() {
    let (mut block, _) = block();
    block.0.sequence = SEQUENCE_MAX;
    assert!(KeyBlock::parse(&block.encode()).is_ok());
    assert!(matches!(block.add(&secret("one"), &secret("two"), &cheap("")), Err(Error::Damaged(_))));
    block.0.sequence -= 1;
    let (added, _) = block.add(&secret("one"), &secret("two"), &cheap("")).unwrap();
    assert!(KeyBlock::parse(&added.encode()).is_ok());
}
