//! Types of files, and the caller for whom one is made.

/// Types of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileKind {
    /// The type that a mode names, as in `struct stat`.
    pub fn of_mode(mode: u32) -> Option<FileKind> {
        FileKind::of_type_bits(mode >> 12 & 0xf)
    }

    /// The type with these bits of a mode, shifted right by 12, as `d_type` has them.
    pub(crate) fn of_type_bits(bits: u32) -> Option<FileKind> {
        Some(match bits {
            0o01 => FileKind::Fifo,
            0o02 => FileKind::CharDevice,
            0o04 => FileKind::Directory,
            0o06 => FileKind::BlockDevice,
            0o10 => FileKind::File,
            0o12 => FileKind::Symlink,
            0o14 => FileKind::Socket,
            _ => return None,
        })
    }

    /// Its bits in a mode.
    pub fn mode_bits(self) -> u32 {
        let bits = match self {
            FileKind::Fifo => 0o01,
            FileKind::CharDevice => 0o02,
            FileKind::Directory => 0o04,
            FileKind::BlockDevice => 0o06,
            FileKind::File => 0o10,
            FileKind::Symlink => 0o12,
            FileKind::Socket => 0o14,
        };
        bits << 12
    }
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
