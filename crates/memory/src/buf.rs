//! Buffers that direct I/O can use.
#![allow(unsafe_code)] // One allocation with a chosen alignment, which `Vec` cannot express.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use crate::{
    huge::{HUGE_PAGE, HugePage},
    slots,
};

/// A byte buffer of fixed length, aligned to 4096 bytes, and zeroed unless a constructor says otherwise.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    memory: Memory,
}

/// Slots for [`AlignedBuf::reused`]: of few lengths, because each takes huge pages of its own.
const REUSED_BYTES: [usize; 3] = [16 << 10, 64 << 10, 256 << 10];

/// The source of a buffer's memory.
enum Memory {
    /// An allocation of its own; none when it is empty.
    Own,
    /// A part of this huge page.
    Part(#[expect(dead_code, reason = "it lives as long as its parts")] Arc<HugePage>),
    /// A slot of that many bytes, of the huge page with that number.
    Slot { slot_bytes: usize, page: u32 },
}

impl AlignedBuf {
    /// Alignment in bytes; enough for any device's direct I/O.
    pub const ALIGN: usize = 4096;

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        if len == 0 {
            return AlignedBuf { ptr: NonNull::dangling(), len, memory: Memory::Own };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        AlignedBuf { ptr, len, memory: Memory::Own }
    }

    /// A buffer of `len` bytes, one of many of that length. They share huge pages if the length allows it (multiples of
    /// 4 KiB up to 256 KiB). It holds zeros, or the bytes of an earlier buffer.
    pub fn dense(len: usize) -> AlignedBuf {
        AlignedBuf::in_slot(len, len)
    }

    /// A buffer of `len` bytes for a short time. Up to 256 KiB it costs neither an allocation nor clearing, and holds
    /// zeros, or the bytes of earlier buffers.
    pub fn reused(len: usize) -> AlignedBuf {
        let slot_bytes = REUSED_BYTES.into_iter().find(|slot_bytes| len <= *slot_bytes);
        AlignedBuf::in_slot(len, slot_bytes.unwrap_or(len))
    }

    /// A buffer at the start of a slot of `slot_bytes`, if there are such slots.
    fn in_slot(len: usize, slot_bytes: usize) -> AlignedBuf {
        match slots::take(slot_bytes) {
            Some((ptr, page)) => AlignedBuf { ptr, len, memory: Memory::Slot { slot_bytes, page } },
            None => AlignedBuf::zeroed(len),
        }
    }

    /// Buffers of `len` zero bytes for long use with a device: as many as fill a huge page if that is at most 8,
    /// otherwise a single one.
    pub fn for_long_use(len: usize) -> Vec<AlignedBuf> {
        if !(HUGE_PAGE / 8..=HUGE_PAGE).contains(&len) || !HUGE_PAGE.is_multiple_of(len) {
            return vec![AlignedBuf::zeroed(len)];
        }
        let page = Arc::new(HugePage::zeroed());
        // Disjoint parts, each for one buffer.
        let part = |at| AlignedBuf { ptr: page.at(at), len, memory: Memory::Part(Arc::clone(&page)) };
        (0..HUGE_PAGE).step_by(len).map(part).collect()
    }

    /// Where the memory begins. The pointer borrows nothing: its user must exclude conflicting access.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.ptr
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, Self::ALIGN).expect("buffer length overflows")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        match self.memory {
            // SAFETY: allocated in `zeroed` with this very layout, freed once.
            Memory::Own if self.len > 0 => unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) },
            Memory::Own | Memory::Part(_) => {}
            Memory::Slot { slot_bytes, page } => slots::give_back(self.ptr, slot_bytes, page),
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes (or dangling with length zero) while
        // `self` lives, and `&self` excludes writers.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

// SAFETY: the buffer owns its memory; shared access is read-only by the borrow rules.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuf {}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_share_a_huge_page_and_nothing_else() {
        // Compared as a whole: byte by byte, Miri would take too long.
        let all = |byte: u8| vec![byte; 1 << 20];
        let mut buffers = AlignedBuf::for_long_use(1 << 20);
        assert_eq!(buffers.len(), 2);
        for (buffer, byte) in buffers.iter_mut().zip(1..) {
            assert!(buffer.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN));
            assert!(buffer[..] == all(0));
            buffer.fill(byte);
        }
        let (last, first) = (buffers.pop().unwrap(), buffers.pop().unwrap());
        assert!(first[..] == all(1));
        drop(first);
        assert!(last[..] == all(2), "it lives as long as one of them");
    }

    #[test]
    fn buffers_of_many_lengths_use_slots_of_few() {
        for (len, expected) in
            [(1, 16 << 10), (16 << 10, 16 << 10), (100 << 10, 256 << 10), (256 << 10, 256 << 10)]
        {
            let mut buffer = AlignedBuf::reused(len);
            assert!(
                matches!(buffer.memory, Memory::Slot { slot_bytes, .. } if slot_bytes == expected),
                "{len}"
            );
            assert_eq!(buffer.len(), len);
            assert!(buffer.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN));
            buffer.fill(1);
        }
        assert!(AlignedBuf::reused(300 << 10).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn odd_lengths_have_memory_of_their_own() {
        for len in [0, 100, 64 << 10, 600 << 10, 4 << 20] {
            let buffers = AlignedBuf::for_long_use(len);
            assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [len]);
        }
    }
}
