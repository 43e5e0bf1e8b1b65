//! What the operations of [`Posix`](super::Posix) take and return.

use crate::format::{Ino, Timestamp};

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

/// What [`Posix::read_runs`](super::Posix::read_runs) found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Data and the bytes that it starts at, in order; between two of them lies a hole.
    pub runs: Vec<(u64, Vec<u8>)>,
    /// Up to here was looked; the length of the file if there is no more.
    pub end: u64,
}

/// What `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number.
    pub ino: Ino,
    /// Differs between files that had this number one after the other.
    pub generation: u32,
    /// Type.
    pub kind: FileKind,
    /// Permissions, the lower 12 bits of the mode.
    pub perm: u16,
    /// Names; of a directory 2 and its subdirectories. 0 once it has none.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device files.
    pub rdev: u64,
    /// Length in bytes; of a directory the room that its entries take.
    pub size: u64,
    /// Room taken on flash in bytes.
    pub allocated_bytes: u64,
    /// Last read; kept as `relatime` has it.
    pub accessed: Timestamp,
    /// Last change of the data.
    pub modified: Timestamp,
    /// Last change of anything.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
}

/// On whose behalf something is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Owner of what is made.
    pub uid: u32,
    /// Group of what is made, unless its directory hands down its own (setgid).
    pub gid: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// That of the file system's clock.
    Now,
    /// This one.
    At(Timestamp),
}

impl SetTime {
    /// What is set at `now`.
    pub fn at(self, now: Timestamp) -> Timestamp {
        match self {
            SetTime::Now => now,
            SetTime::At(time) => time,
        }
    }
}

/// What to change of an inode; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions; only the lower 12 bits count.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Time of last access.
    pub accessed: Option<SetTime>,
    /// Time of last modification.
    pub modified: Option<SetTime>,
    /// Time of last change; by default the clock's.
    pub changed: Option<Timestamp>,
    /// A change of length takes set-user-id and set-group-id away (`FATTR_KILL_SUIDGID`). A change of owner always
    /// does, and both take capabilities (`security.capability`) away.
    pub kill_privileges: bool,
}

/// How to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// What lies between the written bytes and this offset becomes a hole, in the same batch. Whole
    /// sectors only; the file does not grow by it.
    pub trim_to: Option<u64>,
    /// Take set-user-id and set-group-id away (`FUSE_WRITE_KILL_SUIDGID`).
    pub kill_privileges: bool,
    /// A mapped page is written back (`FUSE_WRITE_CACHE`), some time after it was changed: what the file has got
    /// since, it keeps. All other writes take capabilities (`security.capability`) away, as Linux does.
    pub from_cache: bool,
}

/// What [`rename`](super::Posix::rename) does about the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rename {
    /// Replaces what has it.
    #[default]
    Replace,
    /// Refuses if anything has it (`RENAME_NOREPLACE`).
    NoReplace,
    /// Both change places (`RENAME_EXCHANGE`).
    Exchange,
}

/// What [`fallocate`](super::Posix::fallocate) does. No mode reserves room: provisioning is thin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Mode 0: the file reaches at least to the end of the range.
    Extend,
    /// `FALLOC_FL_KEEP_SIZE`: nothing but times.
    KeepSize,
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`: the range reads as zeros and takes no room.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`: as a hole; the file reaches at least to its end, unless `keep_size`.
    ZeroRange {
        /// With `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
}

/// What [`setxattr`](super::Posix::setxattr) expects of the attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Nothing.
    #[default]
    Set,
    /// That it does not exist (`XATTR_CREATE`).
    Create,
    /// That it exists (`XATTR_REPLACE`).
    Replace,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// What it names.
    pub ino: Ino,
    /// The type of that.
    pub kind: FileKind,
    /// The name: 1 to 255 bytes without `/` and NUL.
    pub name: &'a [u8],
    /// Cursor of what follows; valid for ever, whatever comes and goes in the directory.
    pub next: u64,
}

/// What `statfs` tells. Room is in bytes and without the store's reserve; provisioning is thin, so that
/// sizes of files do not count, but what is stored of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Room there is.
    pub total_bytes: u64,
    /// Room left.
    pub free_bytes: u64,
    /// Inodes there can be.
    pub inodes: u64,
    /// Of these, how many are free.
    pub free_inodes: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}
