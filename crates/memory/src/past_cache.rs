//! Copies into memory that the processor does not read again.
//!
//! An ordinary store first loads the line that it changes into the cache, and evicts another one. A copy that is only
//! sent to a device pays for that twice: it waits for old bytes that are not needed, and evicts lines that are.
//! Streaming stores gather whole lines and send them to memory past the cache.

#![allow(unsafe_code)] // Streaming stores are intrinsics of the processor.

/// Bytes below which streaming does not pay, because the wait for the last lines takes some 100 ns.
#[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(dead_code, reason = "tests know it"))]
const STREAMED_MIN: usize = 8192;

/// Copies `from` to `to`, of the same length, for a device to read.
pub fn copy_past_cache(to: &mut [u8], from: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))] // Miri knows no streaming stores.
    if to.len() >= STREAMED_MIN {
        return stream(to, from);
    }
    to.copy_from_slice(from);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stream(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// A line of the cache, as it is stored.
    const LINE: usize = 64;
    const STORE: usize = size_of::<__m128i>();

    assert_eq!(to.len(), from.len(), "a copy of another length");
    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let (to_head, to_rest) = to.split_at_mut(head);
    let (from_head, from_rest) = from.split_at(head);
    let (to_lines, to_tail) = to_rest.as_chunks_mut::<LINE>();
    let (from_lines, from_tail) = from_rest.as_chunks::<LINE>();
    to_head.copy_from_slice(from_head);
    to_tail.copy_from_slice(from_tail);
    for (to, from) in to_lines.iter_mut().zip(from_lines) {
        for at in (0..LINE).step_by(STORE) {
            // SAFETY: both addresses lie in their lines. Lines of `to` begin on a multiple of 64 bytes, so the store is
            // aligned; the load need not be. All x86_64 processors have these instructions.
            unsafe {
                let bytes = _mm_loadu_si128(from.as_ptr().add(at).cast());
                _mm_stream_si128(to.as_mut_ptr().add(at).cast(), bytes);
            }
        }
    }
    // Before any thread, including this one, reads `to` or learns that it is filled. SAFETY: as above.
    unsafe { _mm_sfence() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_copy_changes() {
        let from: Vec<u8> = (0..20_000_u32).map(|at| (at * 31 / 7) as u8).collect();
        let lengths = [0, 1, STREAMED_MIN - 1, STREAMED_MIN, STREAMED_MIN + 77, 16_384];
        for (len, start) in lengths.into_iter().flat_map(|len| (0..130).map(move |start| (len, start))) {
            let mut to = vec![0xee; 17_000];
            copy_past_cache(&mut to[start..start + len], &from[2 * start..][..len]);
            let mut expected = vec![0xee; 17_000];
            expected[start..start + len].copy_from_slice(&from[2 * start..][..len]);
            assert!(to == expected, "{len} bytes to {start}");
        }
    }

    #[test]
    #[should_panic(expected = "a copy of another length")]
    fn lengths_must_agree() {
        copy_past_cache(&mut [0; STREAMED_MIN], &[0; STREAMED_MIN + 1]);
    }
}
