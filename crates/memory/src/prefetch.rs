//! Prefetching memory into the processor's cache.

#![allow(unsafe_code)] // A prefetch is an intrinsic of the processor.

/// Asks the processor to load the cache line of `byte`, without waiting for it. A hint. On processors other than x86-64
/// this reads the byte.
#[inline]
pub fn prefetch(byte: &u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch changes nothing and fails nowhere, whatever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    std::hint::black_box(*byte);
}
