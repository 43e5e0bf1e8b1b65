//! Memory that is going to be looked at.

#![allow(unsafe_code)] // An instruction of the processor that has no other name.

/// Asks the processor for the line of its cache that `byte` is in, without waiting for it. A hint: what is not
/// asked for is waited for when it is looked at. Processors other than x86-64 are made to look at it.
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
