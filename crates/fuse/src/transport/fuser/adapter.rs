//! Calls of fuser become calls of the service, and its results their replies.

use std::{
    cell::RefCell,
    ffi::OsStr,
    io,
    ops::Deref,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, OnceLock, atomic::Ordering::SeqCst},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use lacuna_nvmfs::posix::{Attr, Caller, Rename, SetAttr, XattrMode};
use rustix::io::Errno as Os;

use super::{
    super::{
        BACKGROUND_MAX, COPY_BYTES_MAX, REQUEST_BYTES_MAX, STATFS_BLOCK_BYTES, TTL,
        invalidator::{Cached, Invalidator},
        ttl_of_attr,
    },
    convert::{caller, empty, file_type, generation, set_time, sized, system_time, timestamp},
    end::{End, note_thread},
};
use crate::{
    Found, NamedAttr, Opening, Service,
    mutant::{Rule, is_broken},
    service::{Errno, SetGroupId, WriteRequest},
};

/// Requests about directories need no handle: the number is enough.
const NO_HANDLE: FileHandle = FileHandle(0);

/// The inode of a name that stands for none: to the kernel, number 0 says so.
const ABSENT: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

/// Capabilities to request from the kernel, where it offers them.
const CAPABILITIES: [InitFlags; 11] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    // Without it the kernel asks for capabilities before every fallocate.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    // Files that are open for direct I/O can be mapped into memory.
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    // An abort is distinguished from an unmount.
    InitFlags::FUSE_ABORT_ERROR,
    // File handles outlive the kernel's caches, for open_by_handle_at and NFS.
    InitFlags::FUSE_EXPORT_SUPPORT,
    // The kernel checks access control lists.
    InitFlags::FUSE_POSIX_ACL,
];

/// Turns calls of fuser into calls of the service.
pub(super) struct Adapter {
    pub(super) service: Arc<Service>,
    pub(super) end: Arc<OnceLock<End>>,
    /// Set before the first request is served.
    pub(super) invalidator: Arc<OnceLock<Invalidator>>,
    /// The umask is applied here, because a default access control list takes its place; otherwise the kernel has
    /// applied it.
    pub(super) masks: bool,
}

thread_local! {
    /// The buffer that a thread reads into.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Adapter {
    fn service(&self) -> Serving<'_> {
        // Not in the thread that mounts.
        if self.end.get().is_some() {
            note_thread(&self.end);
        }
        Serving(self)
    }

    fn attr(&self, attr: &Attr) -> FileAttr {
        FileAttr {
            ino: INodeNo(Service::number(attr.ino)),
            size: attr.size,
            blocks: attr.allocated_bytes.div_ceil(512),
            atime: system_time(attr.accessed),
            mtime: system_time(attr.modified),
            ctime: system_time(attr.changed),
            crtime: system_time(attr.created),
            kind: file_type(attr.kind),
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            // The kernel's 32 bits, as it gave them.
            rdev: attr.rdev as u32,
            blksize: self.service().options().block_bytes,
            flags: 0,
        }
    }

    /// How long the kernel may cache an inode and its name: fuser has one time for both.
    fn ttl(&self, attr: &Attr) -> Duration {
        ttl_of_attr(attr, self.service().options())
    }

    /// As [`Adapter::ttl`], for the inode that a name stands for.
    fn ttl_of_found(&self, found: &Found) -> Duration {
        if found.is_damaged { Duration::ZERO } else { self.ttl(&found.attr) }
    }

    /// The caller of a request that makes something.
    fn maker(&self, request: &Request, umask: u32) -> Caller {
        Caller { umask: if self.masks { umask } else { 0 }, ..caller(request) }
    }

    fn entry(&self, result: Result<Attr, Errno>, reply: ReplyEntry) {
        match result {
            Ok(attr) => reply.entry(&self.ttl(&attr), &self.attr(&attr), generation(&attr)),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn attributes(&self, result: Result<Attr, Errno>, reply: ReplyAttr) {
        match result {
            Ok(attr) => reply.attr(&self.ttl(&attr), &self.attr(&attr)),
            Err(errno) => reply.error(errno.into()),
        }
    }
}

/// The service, to a thread that serves a request.
struct Serving<'a>(&'a Adapter);

impl Deref for Serving<'_> {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.0.service
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(end) = self.0.end.get()
        {
            log::error!("a thread that serves requests has ended, and the mount with it");
            end.has_come.store(true, SeqCst);
            (end.unmount.lock())();
        }
    }
}

/// A file's opening, with the flags `asked`, as the kernel takes it.
fn opened(opening: Opening, asked: i32) -> (FileHandle, FopenFlags) {
    let flags = match opening {
        Opening::Direct if is_broken(Rule::ParallelDirectWrites) => FopenFlags::FOPEN_DIRECT_IO,
        Opening::Direct => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        Opening::Cached => FopenFlags::FOPEN_KEEP_CACHE,
        Opening::CachedAnew => FopenFlags::empty(),
    };
    (FileHandle(opening.handle(asked)), flags)
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in CAPABILITIES {
            if config.add_capabilities(capability).is_err() {
                log::info!("this kernel's FUSE lacks {capability:?}");
            }
        }
        if self.service().is_written_back()
            && config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_err()
        {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's FUSE does not write back"));
        }
        self.masks = config.add_capabilities(InitFlags::FUSE_DONT_MASK).is_ok();
        // Both err only on 0 and beyond fuser's own limits.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.service().lookup(parent.0, name.as_bytes()) {
            Ok(found) => {
                reply.entry(&self.ttl_of_found(&found), &self.attr(&found.attr), generation(&found.attr))
            }
            // The kernel may cache that too, as it may what it finds.
            Err(errno) if errno == Os::NOENT.into() => reply.entry(&TTL, &ABSENT, Generation(0)),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.service().forget(ino.0, lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.attributes(self.service().getattr(ino.0), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = SetAttr {
            mode,
            uid,
            gid,
            size,
            accessed: atime.map(set_time),
            modified: mtime.map(set_time),
            changed: ctime.map(timestamp),
            // fuser does not pass FATTR_KILL_SUIDGID on; the kernel sets it for all but CAP_FSETID.
            kill_privileges: (size.is_some() && request.uid() != 0).then(|| caller(request)),
        };
        self.attributes(self.service().setattr(ino.0, &changes), reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.service().readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let maker = self.maker(request, umask);
        self.entry(self.service().mknod(parent.0, name.as_bytes(), mode, rdev, maker), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let maker = self.maker(request, umask);
        self.entry(self.service().mkdir(parent.0, name.as_bytes(), mode, maker), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.service().unlink(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.service().rmdir(parent.0, name.as_bytes()), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        self.entry(self.service().symlink(parent.0, name.as_bytes(), target, caller(request)), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let whiteout = flags.contains(RenameFlags::RENAME_WHITEOUT).then(|| caller(request));
        let flags = flags.difference(RenameFlags::RENAME_WHITEOUT);
        let mode = if flags.is_empty() {
            Rename::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            Rename::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE && whiteout.is_none() {
            Rename::Exchange
        } else {
            return reply.error(fuser::Errno::EINVAL);
        };
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        empty(self.service().rename(from, to, mode, whiteout), reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.service().link(ino.0, parent.0, name.as_bytes(), caller(request)), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.service().open(ino.0) {
            Ok(()) => {
                let (handle, flags) = opened(self.service().opening(ino.0, flags.0), flags.0);
                reply.opened(handle, flags);
            }
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.service().create(parent.0, name.as_bytes(), mode, self.maker(request, umask)) {
            Ok(attr) => {
                let opening = self.service().opening(Service::number(attr.ino), flags);
                let (handle, flags) = opened(opening, flags);
                reply.created(&self.ttl(&attr), &self.attr(&attr), generation(&attr), handle, flags);
            }
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size as usize {
                buffer.resize(size as usize, 0);
            }
            let buffer = &mut buffer[..size as usize];
            match self.service().read(ino.0, offset, buffer) {
                Ok(bytes) => reply.data(&buffer[..bytes]),
                Err(errno) => reply.error(errno.into()),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let request = WriteRequest {
            offset,
            data,
            open_flags: flags.0,
            kill_privileges: kills.then(|| caller(request)),
            is_direct: Opening::is_direct(handle.0),
            from_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            caller: caller(request),
        };
        let written = self.service().write(ino.0, request);
        let answer = move || match written {
            Ok(bytes) => reply.written(bytes as u32),
            Err(errno) => reply.error(errno.into()),
        };
        match self.service().made_stale(ino.0, &request) {
            Some(bytes) => {
                self.invalidator.get().expect("set before").order(ino.0, Cached::Pages(bytes), answer);
            }
            None => answer(),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // No error is deferred that a close could report; after this answer the kernel stops asking.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.service().close(ino.0, handle.0), reply);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, data_only: bool, reply: ReplyEmpty) {
        empty(self.service().fsync(ino.0, data_only), reply);
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.service().open_directory(ino.0) {
            Ok(()) => reply.opened(NO_HANDLE, FopenFlags::empty()),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.service().readdir(ino.0, offset, |number, kind, name, next| {
            !reply.add(INodeNo(number), next, file_type(kind), OsStr::from_bytes(name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed =
            self.service().readdir_with_attributes(ino.0, offset, |NamedAttr { name, found, next }| {
                let attr = self.attr(&found.attr);
                let name = OsStr::from_bytes(&name);
                !reply.add(attr.ino, next, name, &self.ttl_of_found(&found), &attr, generation(&found.attr))
            });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        empty(self.service().release(ino.0), reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, data_only: bool, reply: ReplyEmpty) {
        empty(self.service().fsync(ino.0, data_only), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK_BYTES);
        match self.service().statfs() {
            Ok(stat) => reply.statfs(
                blocks(stat.total_bytes),
                blocks(stat.free_bytes),
                blocks(stat.available_bytes),
                stat.inodes,
                stat.free_inodes,
                STATFS_BLOCK_BYTES,
                stat.name_bytes_max,
                STATFS_BLOCK_BYTES,
            ),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            0 => XattrMode::Set,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        // fuser 0.18 panics at the longer request with which the kernel would say what becomes of set-group-id.
        let (caller, set_group_id) = (caller(request), SetGroupId::ByFirstGroup);
        empty(self.service().setxattr(ino.0, name.as_bytes(), value, mode, caller, set_group_id), reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        sized(self.service().getxattr(ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        sized(self.service().listxattr(ino.0, caller(request)), size, reply);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.service().removexattr(ino.0, name.as_bytes()), reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: IoctlFlags,
        command: u32,
        data: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        match self.service().ioctl(ino.0, handle.0, command, data, caller(request)) {
            Ok(answer) => reply.ioctl(0, &answer),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        // Files are always ready; after this answer the kernel assumes that and stops asking.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty(self.service().fallocate(ino.0, offset, len, mode, caller(request)), reply);
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.service().seek(ino.0, handle.0, offset, whence) {
            Ok(found) => reply.offset(found as i64),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((from.0, from_offset), (to.0, to_offset));
        match self.service().copy_range(from, to, len.min(COPY_BYTES_MAX), caller(request)) {
            Ok(bytes) => reply.written(bytes as u32),
            Err(errno) => reply.error(errno.into()),
        }
    }
}
