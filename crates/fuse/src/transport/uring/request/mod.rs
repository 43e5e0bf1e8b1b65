//! Requests of the kernel, from bytes. Pure.
//!
//! Requests are not trusted to be well-formed: whatever the bytes are, parsing ends in an operation or in an error.

use lacuna_nvmfs::{
    Timestamp,
    posix::{Caller, Rename, SetAttr, SetTime, XattrMode},
};
use rustix::io::Errno as Os;
use zerocopy::FromBytes;

use super::wire::{self, InHeader, opcode, set_attr};
use crate::{
    Opening,
    service::{Errno, SetGroupId, WriteRequest},
};

/// Flags of renameat2(2).
const RENAME_NOREPLACE: u32 = 1 << 0;
const RENAME_EXCHANGE: u32 = 1 << 1;
const RENAME_WHITEOUT: u32 = 1 << 2;

/// An operation on an inode, or in a directory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation<'a> {
    Lookup { name: &'a [u8] },
    GetAttr,
    Statx,
    SetAttr(SetAttr),
    ReadLink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    Mknod { name: &'a [u8], mode: u32, umask: u32, rdev: u32 },
    Mkdir { name: &'a [u8], mode: u32, umask: u32 },
    Unlink { name: &'a [u8] },
    Rmdir { name: &'a [u8] },
    Rename { name: &'a [u8], to: (u64, &'a [u8]), mode: Rename, leaves_whiteout: bool },
    Link { ino: u64, name: &'a [u8] },
    Open { flags: i32 },
    OpenDir,
    Create { name: &'a [u8], mode: u32, umask: u32, flags: i32 },
    CreateUnnamed { mode: u32, umask: u32, flags: i32 },
    Read { offset: u64, len: u32 },
    Write(WriteRequest<'a>),
    ReadDir { cursor: u64, len: u32 },
    ReadDirPlus { cursor: u64, len: u32 },
    Release { handle: u64 },
    ReleaseDir,
    Fsync { data_only: bool },
    StatFs,
    SetXattr { name: &'a [u8], value: &'a [u8], mode: XattrMode, set_group_id: SetGroupId },
    GetXattr { name: &'a [u8], len: u32 },
    ListXattr { len: u32 },
    RemoveXattr { name: &'a [u8] },
    Ioctl { handle: u64, command: u32, data: &'a [u8] },
    Fallocate { offset: u64, len: u64, mode: i32 },
    Seek { handle: u64, offset: i64, whence: i32 },
    CopyRange { from_offset: u64, to: (u64, u64), len: u64 },
}

/// Splits bytes read from the device: a header, the structure of its operation, and the rest. `None` where it is
/// shorter than it must be.
pub(super) fn split(bytes: &[u8]) -> Option<(InHeader, &[u8], &[u8])> {
    let (header, rest) = InHeader::read_from_prefix(bytes).ok()?;
    let body = rest.get(..(header.len as usize).checked_sub(size_of::<InHeader>())?)?;
    let (argument, payload) = body.split_at_checked(wire::argument_bytes(header.opcode))?;
    Some((header, argument, payload))
}

/// The inodes that a FORGET or BATCH_FORGET names, each with how many look-ups of it are forgotten: one in its
/// header, or many behind a count.
pub(super) fn forgotten<'a>(
    header: &InHeader,
    payload: &'a [u8],
) -> impl Iterator<Item = (u64, u64)> + use<'a> {
    let lookups = (header.opcode == opcode::FORGET).then(|| read::<wire::ForgetIn>(payload));
    let one = lookups.and_then(Result::ok).map(|one| (header.nodeid, one.nlookup));
    let many = if header.opcode == opcode::BATCH_FORGET { payload } else { &[] };
    let many = many.get(size_of::<wire::BatchForgetIn>()..).unwrap_or_default();
    let each = many.chunks_exact(size_of::<wire::ForgetOne>());
    let each = each.filter_map(|bytes| read::<wire::ForgetOne>(bytes).ok());
    one.into_iter().chain(each.map(|one| (one.nodeid, one.nlookup)))
}

impl<'a> Operation<'a> {
    /// Reads the operation that a header names. `argument` begins with its structure.
    ///
    /// # Errors
    /// ENOSYS for an operation that is not offered, after which the kernel uses its own fallback or stops asking;
    /// EINVAL for unknown flags; EIO for a request that no kernel sends.
    pub(super) fn parse(
        header: &InHeader,
        argument: &[u8],
        payload: &'a [u8],
    ) -> Result<Operation<'a>, Errno> {
        let caller = Caller { uid: header.uid, gid: header.gid, umask: 0 };
        Ok(match header.opcode {
            opcode::LOOKUP => Operation::Lookup { name: name(payload)? },
            opcode::GETATTR => Operation::GetAttr,
            opcode::STATX => Operation::Statx,
            opcode::SETATTR => Operation::SetAttr(changes(&read(argument)?, caller)),
            opcode::READLINK => Operation::ReadLink,
            opcode::SYMLINK => {
                let (name, target) = two_names(payload)?;
                Operation::Symlink { name, target }
            }
            opcode::MKNOD => {
                let wire::MknodIn { mode, umask, rdev, .. } = read(argument)?;
                Operation::Mknod { name: name(payload)?, mode, umask, rdev }
            }
            opcode::MKDIR => {
                let wire::MkdirIn { mode, umask } = read(argument)?;
                Operation::Mkdir { name: name(payload)?, mode, umask }
            }
            opcode::UNLINK => Operation::Unlink { name: name(payload)? },
            opcode::RMDIR => Operation::Rmdir { name: name(payload)? },
            opcode::RENAME => rename(read::<wire::RenameIn>(argument)?.newdir, 0, payload)?,
            opcode::RENAME2 => {
                let wire::Rename2In { newdir, flags, .. } = read(argument)?;
                rename(newdir, flags, payload)?
            }
            opcode::LINK => {
                Operation::Link { ino: read::<wire::LinkIn>(argument)?.oldnodeid, name: name(payload)? }
            }
            opcode::OPEN => Operation::Open { flags: read::<wire::OpenIn>(argument)?.flags },
            opcode::OPENDIR => Operation::OpenDir,
            opcode::CREATE => {
                let wire::CreateIn { flags, mode, umask, .. } = read(argument)?;
                Operation::Create { name: name(payload)?, mode, umask, flags }
            }
            opcode::TMPFILE => {
                let wire::CreateIn { flags, mode, umask, .. } = read(argument)?;
                name(payload)?; // nobody's
                Operation::CreateUnnamed { mode, umask, flags }
            }
            opcode::STATFS => Operation::StatFs,
            opcode::RELEASE => Operation::Release { handle: read::<wire::ReleaseIn>(argument)?.fh },
            opcode::RELEASEDIR => Operation::ReleaseDir,
            opcode::FSYNC | opcode::FSYNCDIR => {
                let wire::FsyncIn { fsync_flags, .. } = read(argument)?;
                Operation::Fsync { data_only: fsync_flags & wire::FSYNC_FDATASYNC != 0 }
            }
            _ => return Operation::parse_data(header, argument, payload),
        })
    }

    /// The other half: data, attributes beyond those of stat, and ranges.
    fn parse_data(header: &InHeader, argument: &[u8], payload: &'a [u8]) -> Result<Operation<'a>, Errno> {
        let caller = Caller { uid: header.uid, gid: header.gid, umask: 0 };
        Ok(match header.opcode {
            opcode::READ => {
                let wire::ReadIn { offset, size, .. } = read(argument)?;
                Operation::Read { offset, len: size }
            }
            opcode::WRITE => Operation::Write(write(&read(argument)?, payload, caller)?),
            opcode::READDIR => {
                let wire::ReadIn { offset, size, .. } = read(argument)?;
                Operation::ReadDir { cursor: offset, len: size }
            }
            opcode::READDIRPLUS => {
                let wire::ReadIn { offset, size, .. } = read(argument)?;
                Operation::ReadDirPlus { cursor: offset, len: size }
            }
            opcode::SETXATTR => set_xattr(&read(argument)?, payload)?,
            opcode::GETXATTR => {
                Operation::GetXattr { name: name(payload)?, len: read::<wire::GetXattrIn>(argument)?.size }
            }
            opcode::LISTXATTR => Operation::ListXattr { len: read::<wire::GetXattrIn>(argument)?.size },
            opcode::REMOVEXATTR => Operation::RemoveXattr { name: name(payload)? },
            opcode::IOCTL => {
                let wire::IoctlIn { fh, cmd, .. } = read(argument)?;
                Operation::Ioctl { handle: fh, command: cmd, data: payload }
            }
            opcode::FALLOCATE => {
                let wire::FallocateIn { offset, length: len, mode, .. } = read(argument)?;
                Operation::Fallocate { offset, len, mode }
            }
            opcode::LSEEK => {
                let wire::LseekIn { fh, offset, whence, .. } = read(argument)?;
                Operation::Seek { handle: fh, offset, whence }
            }
            opcode::COPY_FILE_RANGE => {
                let wire::CopyFileRangeIn { off_in, nodeid_out, off_out, len, .. } = read(argument)?;
                Operation::CopyRange { from_offset: off_in, to: (nodeid_out, off_out), len }
            }
            _ => return Err(Os::NOSYS.into()),
        })
    }
}

/// The error for a request that no kernel sends.
fn malformed() -> Errno {
    Os::IO.into()
}

fn read<T: FromBytes>(argument: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(argument).map(|(value, _)| value).map_err(|_| malformed())
}

/// A name that ends with the payload.
fn name(payload: &[u8]) -> Result<&[u8], Errno> {
    match first_name(payload)? {
        (name, []) => Ok(name),
        _ => Err(malformed()),
    }
}

fn two_names(payload: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let (first, rest) = first_name(payload)?;
    Ok((first, name(rest)?))
}

/// Splits at the first NUL, which is part of neither.
fn first_name(payload: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = payload.iter().position(|byte| *byte == 0).ok_or_else(malformed)?;
    Ok((&payload[..end], &payload[end + 1..]))
}

fn rename(new_parent: u64, flags: u32, payload: &[u8]) -> Result<Operation<'_>, Errno> {
    let leaves_whiteout = flags & RENAME_WHITEOUT != 0;
    let mode = match flags & !RENAME_WHITEOUT {
        0 => Rename::Replace,
        RENAME_NOREPLACE => Rename::NoReplace,
        RENAME_EXCHANGE if !leaves_whiteout => Rename::Exchange,
        _ => return Err(Os::INVAL.into()),
    };
    let (name, new_name) = two_names(payload)?;
    Ok(Operation::Rename { name, to: (new_parent, new_name), mode, leaves_whiteout })
}

fn write<'a>(write: &wire::WriteIn, payload: &'a [u8], caller: Caller) -> Result<WriteRequest<'a>, Errno> {
    Ok(WriteRequest {
        offset: write.offset,
        data: payload.get(..write.size as usize).ok_or_else(malformed)?,
        open_flags: write.flags,
        kill_privileges: (write.write_flags & wire::WRITE_KILL_SUIDGID != 0).then_some(caller),
        is_direct: Opening::is_direct(write.fh),
        from_cache: write.write_flags & wire::WRITE_CACHE != 0,
        caller,
    })
}

fn set_xattr<'a>(set: &wire::SetXattrIn, payload: &'a [u8]) -> Result<Operation<'a>, Errno> {
    let mode = match set.flags {
        0 => XattrMode::Set,
        1 => XattrMode::Create,
        2 => XattrMode::Replace,
        _ => return Err(Os::INVAL.into()),
    };
    let (name, rest) = first_name(payload)?;
    let value = rest.get(..set.size as usize).ok_or_else(malformed)?;
    let goes = set.setxattr_flags & wire::SETXATTR_ACL_KILL_SGID != 0;
    let set_group_id = if goes { SetGroupId::Goes } else { SetGroupId::Stays };
    Ok(Operation::SetXattr { name, value, mode, set_group_id })
}

fn changes(set: &wire::SetAttrIn, caller: Caller) -> SetAttr {
    let has = |flag: u32| set.valid & flag != 0;
    let time = |is_set: u32, is_now: u32, seconds: i64, nanoseconds: u32| match () {
        () if !has(is_set) => None,
        () if has(is_now) => Some(SetTime::Now),
        () => Some(SetTime::At(timestamp(seconds, nanoseconds))),
    };
    SetAttr {
        mode: has(set_attr::MODE).then_some(set.mode),
        uid: has(set_attr::UID).then_some(set.uid),
        gid: has(set_attr::GID).then_some(set.gid),
        size: has(set_attr::SIZE).then_some(set.size),
        accessed: time(set_attr::ATIME, set_attr::ATIME_NOW, set.atime, set.atimensec),
        modified: time(set_attr::MTIME, set_attr::MTIME_NOW, set.mtime, set.mtimensec),
        changed: has(set_attr::CTIME).then(|| timestamp(set.ctime, set.ctimensec)),
        kill_privileges: (has(set_attr::SIZE) && has(set_attr::KILL_SUIDGID)).then_some(caller),
    }
}

/// The kernel keeps nanoseconds below a second; other values are not valid times.
fn timestamp(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds, nanoseconds: nanoseconds.min(999_999_999) }
}

#[cfg(test)]
mod tests;
