//! Types of files, and the caller for whom one is made.

use zerocopy::TryFromBytes;

/// Types of files.
///
/// The numbers are their bits in a mode, shifted right by 12, as `d_type` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum FileKind {
    Fifo = 0o01,
    CharDevice = 0o02,
    Directory = 0o04,
    BlockDevice = 0o06,
    File = 0o10,
    Symlink = 0o12,
    Socket = 0o14,
}

impl FileKind {
    /// The type that a mode names, as in `struct stat`.
    pub fn of_mode(mode: u32) -> Option<FileKind> {
        FileKind::of_type_bits(mode >> 12 & 0xf)
    }

    pub(crate) fn of_type_bits(bits: u32) -> Option<FileKind> {
        FileKind::try_read_from_bytes(&[u8::try_from(bits).ok()?]).ok()
    }

    /// Its bits in a mode.
    pub fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }
}

/// What bounds the space that an operation may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Privilege {
    /// It leaves root its reserve.
    User,
    /// The size of the store alone: that of root, of programs in this process, and of what frees space.
    #[default]
    Root,
}

/// The caller for whom an object is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Owner of the new object.
    pub uid: u32,
    /// Group of the new object, unless its directory passes on its own (setgid).
    pub gid: u32,
    /// Permissions that the new object does not get (`umask`), unless its directory has a default access control list.
    pub umask: u32,
}
