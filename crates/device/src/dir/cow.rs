//! The unit in which a file system that copies on write takes space for such a copy.
#![allow(unsafe_code)] // Two calls into rustix's generic ioctl, which cannot know the opcode's type.

use std::fs;

use rustix::{
    io,
    ioctl::{self, Getter, Opcode, Setter, opcode},
};

/// `struct fsxattr` of the system.
#[derive(Clone, Copy)]
#[repr(C)]
struct FsxAttr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

const GET: Opcode = opcode::read::<FsxAttr>(b'X', 31);
const SET: Opcode = opcode::write::<FsxAttr>(b'X', 32);
/// The flag that `cowextsize` is in force.
const COWEXTSIZE: u32 = 0x1_0000;

/// Makes the file take `bytes` for a copy of as many, instead of the extents of 128 KiB that XFS takes by default. XFS
/// writes atomically by copying, so random page writes would make a file take many times its length until the system
/// gives the unused rest back, minutes later.
pub(super) fn copy_in_units_of(file: &fs::File, bytes: u32) -> io::Result<()> {
    // SAFETY: FS_IOC_FSGETXATTR fills one struct fsxattr, which FsxAttr is.
    let mut attr: FsxAttr = unsafe { ioctl::ioctl(file, Getter::<GET, FsxAttr>::new()) }?;
    if attr.xflags & COWEXTSIZE != 0 && attr.cowextsize == bytes {
        return Ok(());
    }
    attr.xflags |= COWEXTSIZE;
    attr.cowextsize = bytes;
    // SAFETY: FS_IOC_FSSETXATTR reads one struct fsxattr.
    unsafe { ioctl::ioctl(file, Setter::<SET, FsxAttr>::new(attr)) }
}
