//! Entry point for fuzz/: raw bytes, and the same under a valid checksum. Not a stable interface.

use crate::{
    format::{KEY_BLOCK_BYTES, KEY_BLOCK_MAGIC, reseal},
    secret::Secret,
    slots::{Cost, KeyBlock},
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
