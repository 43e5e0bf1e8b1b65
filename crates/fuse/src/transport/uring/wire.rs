//! The structures in requests and answers of the kernel's FUSE protocol: `include/uapi/linux/fuse.h` of version 7.45,
//! as far as our mounts use it. Fields are named as there; unused ones start with an underscore. Numbers have the
//! machine's byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol: every kernel's since 2005.
pub(super) const MAJOR: u32 = 7;
/// Minor version whose structures these are. The code needs at least 36, which added the second word of flags.
pub(super) const MINOR: u32 = 45;
/// Oldest minor version that this module speaks: older ones have shorter structures.
pub(super) const MINOR_MIN: u32 = 36;

/// Numbers of operations.
pub(super) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
}

/// Flags of INIT; both words in one.
pub(super) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const ABORT_ERROR: u64 = 1 << 21;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// The fields of [`SetAttrIn`] that are set (`FATTR_*`).
pub(super) mod set_attr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of [`WriteIn`].
pub(super) const WRITE_CACHE: u32 = 1 << 0;
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Flag of [`SetXattrIn`].
pub(super) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// Flag of [`FsyncIn`].
pub(super) const FSYNC_FDATASYNC: u32 = 1 << 0;
/// All that [`StatxOut`] tells (`STATX_BASIC_STATS | STATX_BTIME`).
pub(super) const STATX_MASK: u32 = 0xfff;
/// Code of an order to drop pages.
pub(super) const NOTIFY_INVAL_INODE: i32 = 2;
/// Flags of [`OpenOut`].
pub(super) const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub(super) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub(super) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// Declares structures of the kernel with the length that each has there.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal { $($field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )* };
}

structures! {
    /// Before every request.
    InHeader: 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, _pid: u32,
        _total_extlen: u16, _padding: u16,
    }
    /// Before every answer. `error` is 0 or the negative of an errno.
    OutHeader: 16 { len: u32, error: i32, unique: u64, }

    /// The beginning of INIT's argument: before the second word of flags existed it ended at 16.
    InitIn: 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, _unused: [u32; 11], }
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, _map_alignment: u16,
        flags2: u32, _max_stack_depth: u32, _request_timeout: u16, _unused: [u16; 11],
    }

    GetAttrIn: 16 { _getattr_flags: u32, _dummy: u32, _fh: u64, }
    StatxIn: 24 { _getattr_flags: u32, _reserved: u32, _fh: u64, _sx_flags: u32, _sx_mask: u32, }
    SetAttrIn: 88 {
        valid: u32, _padding: u32, _fh: u64, size: u64, _lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, _unused4: u32, uid: u32, gid: u32,
        _unused5: u32,
    }
    MknodIn: 16 { mode: u32, rdev: u32, umask: u32, _padding: u32, }
    MkdirIn: 8 { mode: u32, umask: u32, }
    RenameIn: 8 { newdir: u64, }
    Rename2In: 16 { newdir: u64, flags: u32, _padding: u32, }
    LinkIn: 8 { oldnodeid: u64, }
    OpenIn: 8 { flags: i32, _open_flags: u32, }
    CreateIn: 16 { flags: i32, mode: u32, umask: u32, _open_flags: u32, }
    ReadIn: 40 {
        _fh: u64, offset: u64, size: u32, _read_flags: u32, _lock_owner: u64, _flags: u32, _padding: u32,
    }
    WriteIn: 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, _lock_owner: u64, flags: i32, _padding: u32,
    }
    ReleaseIn: 24 { fh: u64, _flags: u32, _release_flags: u32, _lock_owner: u64, }
    FsyncIn: 16 { _fh: u64, fsync_flags: u32, _padding: u32, }
    /// With [`init::SETXATTR_EXT`].
    SetXattrIn: 16 { size: u32, flags: u32, setxattr_flags: u32, _padding: u32, }
    GetXattrIn: 8 { size: u32, _padding: u32, }
    IoctlIn: 32 { fh: u64, _flags: u32, cmd: u32, _arg: u64, _in_size: u32, _out_size: u32, }
    ForgetIn: 8 { nlookup: u64, }
    BatchForgetIn: 8 { _count: u32, _dummy: u32, }
    ForgetOne: 16 { nodeid: u64, nlookup: u64, }
    FallocateIn: 32 { _fh: u64, offset: u64, length: u64, mode: i32, _padding: u32, }
    LseekIn: 24 { fh: u64, offset: i64, whence: i32, _padding: u32, }
    CopyFileRangeIn: 56 {
        _fh_in: u64, off_in: u64, nodeid_out: u64, _fh_out: u64, off_out: u64, len: u64, _flags: u64,
    }

    Attr: 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, _dummy: u32, attr: Attr, }
    StatxTime: 16 { seconds: i64, nanoseconds: u32, _reserved: i32, }
    /// As `struct statx`, behind how long it is valid.
    StatxOut: 288 {
        attr_valid: u64, attr_valid_nsec: u32, _flags: u32, _spare: [u64; 2],
        mask: u32, blksize: u32, _attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, _spare0: u16,
        ino: u64, size: u64, blocks: u64, _attributes_mask: u64, atime: StatxTime, btime: StatxTime,
        ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32, _dev_major: u32, _dev_minor: u32,
        _spare2: [u64; 14],
    }
    EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    OpenOut: 16 { fh: u64, open_flags: u32, _backing_id: i32, }
    WriteOut: 8 { size: u32, _padding: u32, }
    StatFsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        _padding: u32, _spare: [u32; 6],
    }
    GetXattrOut: 8 { size: u32, _padding: u32, }
    IoctlOut: 16 { result: i32, _flags: u32, in_iovs: u32, out_iovs: u32, }
    LseekOut: 8 { offset: u64, }
    /// An order, whose header has [`NOTIFY_INVAL_INODE`] where answers have an error.
    InvalInodeOut: 24 { ino: u64, off: i64, len: i64, }
    /// Followed by the name and zeros up to a multiple of 8.
    Dirent: 24 { ino: u64, off: u64, namelen: u32, kind: u32, }

    /// The last part of a ring entry's header.
    UringEntInOut: 32 { flags: u64, commit_id: u64, payload_sz: u32, _padding: u32, _reserved: u64, }
    /// In the command of an entry of the submission queue.
    UringCmdReq: 24 { flags: u64, commit_id: u64, qid: u16, _padding: [u8; 6], }
}

/// The header of a ring entry, beside its payload. `in_out` begins with an [`InHeader`] or an [`OutHeader`], `op_in`
/// with the structure of the operation.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct UringReqHeader {
    pub(super) in_out: [u8; 128],
    pub(super) op_in: [u8; 128],
    pub(super) ring_ent_in_out: UringEntInOut,
}
const _: () = assert!(size_of::<UringReqHeader>() == 288);

/// Commands of rings.
pub(super) const URING_CMD_REGISTER: u32 = 1;
pub(super) const URING_CMD_COMMIT_AND_FETCH: u32 = 2;

/// Length of the structure that an operation has between header and payload; none for unknown ones.
pub(super) fn argument_bytes(operation: u32) -> usize {
    match operation {
        opcode::GETATTR => size_of::<GetAttrIn>(),
        opcode::STATX => size_of::<StatxIn>(),
        opcode::SETATTR => size_of::<SetAttrIn>(),
        opcode::MKNOD => size_of::<MknodIn>(),
        opcode::MKDIR => size_of::<MkdirIn>(),
        opcode::RENAME => size_of::<RenameIn>(),
        opcode::RENAME2 => size_of::<Rename2In>(),
        opcode::LINK => size_of::<LinkIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<OpenIn>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<CreateIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<ReadIn>(),
        opcode::WRITE => size_of::<WriteIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => size_of::<ReleaseIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<FsyncIn>(),
        opcode::SETXATTR => size_of::<SetXattrIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<GetXattrIn>(),
        opcode::IOCTL => size_of::<IoctlIn>(),
        opcode::FALLOCATE => size_of::<FallocateIn>(),
        opcode::LSEEK => size_of::<LseekIn>(),
        opcode::COPY_FILE_RANGE => size_of::<CopyFileRangeIn>(),
        _ => 0,
    }
}
