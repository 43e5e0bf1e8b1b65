//! The one ioctl that rustix has no safe wrapper for.
#![allow(unsafe_code)] // Two calls into rustix's generic ioctl, which cannot know the opcode's type.

use std::{fs::File, io};

use rustix::ioctl::{self, Opcode, Setter};

/// `BLKDISCARD` of `linux/fs.h`: `_IO(0x12, 119)`, a pointer to offset and length in bytes.
const BLKDISCARD: Opcode = ioctl::opcode::none(0x12, 119);

/// Discards a byte range of a block device.
pub(super) fn discard_block_range(device: &File, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: the kernel reads two u64 behind the pointer that BLKDISCARD takes, and the setter passes
    // one to such a pair, which lives until the call returns.
    let request = unsafe { Setter::<BLKDISCARD, [u64; 2]>::new([offset, len]) };
    // SAFETY: as above; BLKDISCARD writes to no memory of ours.
    unsafe { ioctl::ioctl(device, request) }.map_err(Into::into)
}
