//! Giving freed memory back to the system.
//!
//! glibc keeps what is freed between what is still in use, and looks only at the end of each of its heaps. A mount that
//! knew a million files and forgot them would keep their memory for ever.

#![allow(unsafe_code)] // It is a function of the C library.

/// Inodes by which the number in memory must fall before this is worth its while: some megabytes.
const FALL: usize = 4096;

/// Has glibc give back what is free, once the number of inodes in memory has fallen by much.
#[derive(Default)]
pub(super) struct Heap {
    /// The greatest number since then.
    inodes_max: usize,
}

impl Heap {
    /// Looks at the number of inodes in memory.
    pub(super) fn look(&mut self, inodes: usize) {
        if self.has_fallen(inodes) {
            give_back();
        }
    }

    fn has_fallen(&mut self, inodes: usize) -> bool {
        let has_fallen = inodes + FALL <= self.inodes_max;
        self.inodes_max = if has_fallen { inodes } else { self.inodes_max.max(inodes) };
        has_fallen
    }
}

/// Takes milliseconds, during which threads that allocate wait for each other.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number, touches only memory that is free, and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_after_each_large_fall() {
        let mut heap = Heap::default();
        for (inodes, expected) in [
            (0, false),
            (FALL - 1, false),
            (0, false),
            (3 * FALL, false),
            (2 * FALL + 1, false),
            (2 * FALL, true),
            (2 * FALL, false),
            (FALL, true),
            (5, false),
        ] {
            assert_eq!(heap.has_fallen(inodes), expected, "{inodes}");
        }
        give_back();
    }
}
