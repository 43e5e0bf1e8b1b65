//! From the bytes of a request to the bytes of its answer, through the service.

use lacuna_nvmfs::posix::{Attr, Caller};
use rustix::io::Errno as Os;

use super::{
    reply::{self, Reply},
    request::Operation,
    wire::{self, InHeader},
};
use crate::{
    NamedAttr, Service,
    service::Errno,
    transport::{
        COPY_BYTES_MAX, XATTR_BYTES_MAX,
        invalidator::{Cached, Invalidator},
    },
};

/// Longest answer to a request that comes with a payload: the value of an extended attribute.
pub(super) const SHORT_REPLY_BYTES_MAX: usize = XATTR_BYTES_MAX;

/// Answers a request into `out` and returns the answer's length without its header.
///
/// `out` must hold [`SHORT_REPLY_BYTES_MAX`]; where there is no payload, the longest read.
pub(super) fn answer(
    (service, invalidator): (&Service, &Invalidator),
    header: &InHeader,
    argument: &[u8],
    payload: &[u8],
    out: &mut [u8],
) -> Result<usize, Errno> {
    let operation = Operation::parse(header, argument, payload)?;
    let caller = Caller { uid: header.uid, gid: header.gid, umask: 0 };
    let mut reply = Reply::new(out);
    Answer { service, invalidator, ino: header.nodeid, caller, reply: &mut reply }.respond(operation)?;
    Ok(reply.len())
}

struct Answer<'a, 'b> {
    service: &'a Service,
    invalidator: &'a Invalidator,
    /// The inode, or directory, of the request.
    ino: u64,
    caller: Caller,
    reply: &'a mut Reply<'b>,
}

impl Answer<'_, '_> {
    fn respond(&mut self, operation: Operation<'_>) -> Result<(), Errno> {
        let (service, ino, caller) = (self.service, self.ino, self.caller);
        match operation {
            Operation::Lookup { name } => match service.lookup(ino, name) {
                // The kernel may cache that too, as it may what it finds.
                Err(errno) if errno == Os::NOENT.into() => self.reply.put(&reply::absent()),
                found => self.reply.put(&reply::found(&found?, self.service.options())),
            },
            Operation::GetAttr => self.attributes(service.getattr(ino)),
            Operation::Statx => {
                let attr = service.getattr(ino)?;
                self.reply.put(&reply::statx(&attr, self.service.options()))
            }
            Operation::SetAttr(changes) => self.attributes(service.setattr(ino, &changes)),
            Operation::ReadLink => self.reply.bytes(&service.readlink(ino)?),
            Operation::Symlink { name, target } => self.entry(service.symlink(ino, name, target, caller)),
            Operation::Mknod { name, mode, umask, rdev } => {
                self.entry(service.mknod(ino, name, mode, rdev, Caller { umask, ..caller }))
            }
            Operation::Mkdir { name, mode, umask } => {
                self.entry(service.mkdir(ino, name, mode, Caller { umask, ..caller }))
            }
            Operation::Unlink { name } => service.unlink(ino, name),
            Operation::Rmdir { name } => service.rmdir(ino, name),
            Operation::Rename { name, to, mode, leaves_whiteout } => {
                service.rename((ino, name), to, mode, leaves_whiteout.then_some(caller))
            }
            Operation::Link { ino: linked, name } => self.entry(service.link(linked, ino, name, caller)),
            Operation::Create { name, mode, umask, flags } => {
                let made = service.create(ino, name, mode, Caller { umask, ..caller })?;
                self.made_open(made, flags)
            }
            Operation::CreateUnnamed { mode, umask, flags } => {
                let made = service.create_unnamed(ino, mode, flags, Caller { umask, ..caller })?;
                self.made_open(made, flags)
            }
            Operation::ReadDir { cursor, len } => self.read_dir(cursor, len),
            Operation::ReadDirPlus { cursor, len } => self.read_dir_plus(cursor, len),
            Operation::Release { handle } => service.close(ino, handle),
            Operation::ReleaseDir => service.release(ino),
            Operation::StatFs => self.reply.put(&reply::stat_fs(&service.statfs()?)),
            operation => self.respond_with_data(operation),
        }
    }

    /// The other half: open files, their data, and extended attributes.
    fn respond_with_data(&mut self, operation: Operation<'_>) -> Result<(), Errno> {
        let (service, ino, caller) = (self.service, self.ino, self.caller);
        match operation {
            Operation::Open { flags } => {
                service.open(ino)?;
                self.reply.put(&reply::opened(service.opening(ino, flags), flags))
            }
            Operation::OpenDir => {
                service.open_directory(ino)?;
                self.reply.put(&wire::OpenOut::default())
            }
            Operation::Read { offset, len } => {
                self.reply.fill(len as usize, |buf| service.read(ino, offset, buf))
            }
            Operation::Write(request) => {
                let written = service.write(ino, request);
                // The answer does not wait for the order: this thread may be the only one that can answer the reads
                // that the order waits for.
                if let Some(bytes) = service.made_stale(ino, &request) {
                    self.invalidator.order(ino, Cached::Pages(bytes), || ());
                }
                self.written(written? as u64)
            }
            Operation::CopyRange { from_offset, to, len } => {
                let len = len.min(COPY_BYTES_MAX);
                self.written(service.copy_range((ino, from_offset), to, len, caller)?)
            }
            Operation::Fsync { data_only } => service.fsync(ino, data_only),
            Operation::SetXattr { name, value, mode, set_group_id } => {
                service.setxattr(ino, name, value, mode, caller, set_group_id)
            }
            Operation::GetXattr { name, len } => self.reply.sized(&service.getxattr(ino, name)?, len),
            Operation::ListXattr { len } => self.reply.sized(&service.listxattr(ino, caller)?, len),
            Operation::RemoveXattr { name } => service.removexattr(ino, name),
            Operation::Ioctl { handle, command, data } => {
                let answer = service.ioctl(ino, handle, command, data, caller)?;
                self.reply.put(&wire::IoctlOut { in_iovs: 1, ..wire::IoctlOut::default() })?;
                self.reply.bytes(&answer)
            }
            Operation::Fallocate { offset, len, mode } => service.fallocate(ino, offset, len, mode, caller),
            Operation::Seek { handle, offset, whence } => {
                let offset = service.seek(ino, handle, offset, whence)?;
                self.reply.put(&wire::LseekOut { offset })
            }
            _ => unreachable!("`respond` has answered all others"),
        }
    }

    fn entry(&mut self, found: Result<Attr, Errno>) -> Result<(), Errno> {
        self.reply.put(&reply::entry(&found?, self.service.options()))
    }

    /// An inode that is open from the start.
    fn made_open(&mut self, made: Attr, flags: i32) -> Result<(), Errno> {
        self.entry(Ok(made))?;
        let opening = self.service.opening(Service::number(made.ino), flags);
        self.reply.put(&reply::opened(opening, flags))
    }

    fn attributes(&mut self, found: Result<Attr, Errno>) -> Result<(), Errno> {
        self.reply.put(&reply::attr_out(&found?, self.service.options()))
    }

    fn written(&mut self, bytes: u64) -> Result<(), Errno> {
        self.reply.put(&wire::WriteOut { size: bytes as u32, _padding: 0 })
    }

    fn read_dir(&mut self, cursor: u64, len: u32) -> Result<(), Errno> {
        let mut outcome = Ok(true);
        self.service.readdir(self.ino, cursor, |number, kind, name, next| {
            outcome = self.reply.dirent(len as usize, (number, next, kind), name);
            outcome == Ok(true)
        })?;
        outcome.map(drop)
    }

    fn read_dir_plus(&mut self, cursor: u64, len: u32) -> Result<(), Errno> {
        let options = self.service.options();
        let mut outcome = Ok(true);
        self.service.readdir_with_attributes(self.ino, cursor, |NamedAttr { name, found, next }| {
            let entry = reply::found(&found, options);
            outcome = self.reply.dirent_plus(len as usize, &entry, (next, found.attr.kind), &name);
            outcome == Ok(true)
        })?;
        outcome.map(drop)
    }
}

#[cfg(test)]
mod tests;
