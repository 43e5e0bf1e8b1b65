//! Values that differ from others in a few bytes, which the log and undo hold as edits.

use lacuna_sim::SeededRng;

/// `value`, which is not empty, with up to five of its bytes changed.
pub(crate) fn edited(value: &[u8], rng: &mut SeededRng) -> Vec<u8> {
    let mut value = value.to_vec();
    for _ in 0..rng.below(6) {
        let at = rng.below(value.len() as u64) as usize;
        value[at] = value[at].wrapping_add(1 + rng.below(255) as u8);
    }
    value
}
