//! Memory in huge pages of the operating system.
#![allow(unsafe_code)] // Allocations with a chosen alignment, and advice to the system about them.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    ptr::NonNull,
};

use rustix::mm::{Advice, madvise};

/// Size of a huge page on most machines, in bytes. Memory in one costs the processor, and the kernel that sends it to a
/// device, one look-up in the page tables instead of hundreds.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Exclusive memory of [`HUGE_PAGE`] bytes, aligned to as many.
pub(crate) struct HugePage(NonNull<u8>);

impl HugePage {
    const LAYOUT: Layout = match Layout::from_size_align(HUGE_PAGE, HUGE_PAGE) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    /// Uninitialised memory.
    pub(crate) fn new() -> HugePage {
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc(Self::LAYOUT) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(Self::LAYOUT) };
        if cfg!(not(miri)) {
            // SAFETY: these are whole pages of the allocation, and their content is not changed. This is only advice: a
            // system without a free huge page uses small ones.
            let _ = unsafe { madvise(raw.cast(), HUGE_PAGE, Advice::LinuxHugepage) };
        }
        HugePage(ptr)
    }

    /// Memory of zeros.
    pub(crate) fn zeroed() -> HugePage {
        let page = HugePage::new();
        // SAFETY: all of it is in the allocation, which has no other reference yet.
        unsafe { page.0.write_bytes(0, HUGE_PAGE) };
        page
    }

    /// The address of byte `offset`, valid as long as the page lives.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < HUGE_PAGE, "byte {offset} of a huge page");
        // SAFETY: it is in the allocation.
        unsafe { self.0.add(offset) }
    }
}

impl Drop for HugePage {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout, freed once.
        unsafe { dealloc(self.0.as_ptr(), Self::LAYOUT) }
    }
}

// SAFETY: it gives addresses but no access to the memory; each holder of a part is responsible for that part.
unsafe impl Send for HugePage {}
// SAFETY: as above.
unsafe impl Sync for HugePage {}
