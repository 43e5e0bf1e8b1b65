//! Entry point for fuzz/: raw bytes, and the same under a valid checksum. Not a stable interface.

use crate::{
    format::{KEY_BLOCK_BYTES, KEY_BLOCK_MAGIC, reseal},
    secret::{Secret, VOLUME_KEY_BYTES, VolumeKey},
    slots::{Cost, KeyBlock},
    wrapped::WRAPPED_KEY_BYTES,
};

/// A key block, and its slots where they ask for little.
pub fn key_block(bytes: &[u8]) {
    let _ = KeyBlock::parse(bytes);
    let mut block = [0; KEY_BLOCK_BYTES];
    let len = bytes.len().min(KEY_BLOCK_BYTES);
    block[..len].copy_from_slice(&bytes[..len]);
    block[..8].copy_from_slice(&KEY_BLOCK_MAGIC);
    reseal(&mut block);
    let Ok(parsed) = KeyBlock::parse(&block) else { return };
    assert_eq!(parsed.encode(), block);
    let is_cheap = |cost: Cost| cost.memory_kib <= 64 && cost.passes <= 2;
    if parsed.slots().into_iter().all(|slot| is_cheap(slot.cost)) {
        assert!(parsed.unlock(&Secret::new("fuzzed").expect("a secret")).is_err(), "made by chance");
    }
}

/// A wrapped key and its context, neither of which opens unless it was made so; and one that was, changed.
pub fn wrapped_key(bytes: &[u8]) {
    let Some((wrapped, context)) = bytes.split_first_chunk::<WRAPPED_KEY_BYTES>() else { return };
    let root = VolumeKey(Box::new([7; VOLUME_KEY_BYTES]));
    assert!(root.unwrap(wrapped, context).is_none(), "made by chance");
    let key = VolumeKey(Box::new(wrapped[..VOLUME_KEY_BYTES].try_into().expect("its length")));
    let mut sealed = root.wrap(&key, context).expect("the system is random");
    assert!(root.unwrap(&sealed, context).is_some_and(|found| found.0 == key.0));
    let [.., at, flip] = *wrapped;
    sealed[usize::from(at) % WRAPPED_KEY_BYTES] ^= flip.max(1);
    assert!(root.unwrap(&sealed, context).is_none(), "changed");
}
