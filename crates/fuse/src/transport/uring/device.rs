//! `/dev/fuse`: the mount, its handshake, and requests that come one by one.

use std::{
    fs::File,
    io::{self, IoSlice},
    os::fd::AsFd,
    path::Path,
};

use rustix::io::Errno as Os;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    answer::answer,
    request,
    wire::{self, InHeader, InitIn, InitOut, OutHeader, init, opcode},
};
use crate::{
    PageCache, Service,
    service::Errno,
    transport::{
        BACKGROUND_MAX, MountOptions, READ_BYTES, REQUEST_BYTES_MAX,
        invalidator::{Cached, Invalidator},
        kernel_mount::{KernelMount, ending, shaking_hands},
    },
};

/// Unit of [`InitOut`]'s `max_pages`.
const PAGE_BYTES: u32 = 4096;

/// Capabilities to request from the kernel, where it offers them.
const CAPABILITIES: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::CACHE_SYMLINKS
    // Without it the kernel asks for capabilities before every fallocate.
    | init::HANDLE_KILLPRIV_V2
    // Files that are open for direct I/O can be mapped into memory.
    | init::DIRECT_IO_ALLOW_MMAP
    // An abort is distinguished from an unmount.
    | init::ABORT_ERROR
    // File handles outlive the kernel's caches, for open_by_handle_at and NFS.
    | init::EXPORT_SUPPORT
    // The kernel checks access control lists.
    | init::POSIX_ACL;
/// Capabilities that the kernel must offer. All but the last are older than it: the umask is left to us, because a
/// default access control list takes its place, and who sets a list says whether set-group-id goes.
const NEEDED: u64 =
    init::MAX_PAGES | init::INIT_EXT | init::DONT_MASK | init::SETXATTR_EXT | init::OVER_IO_URING;

/// Has the kernel drop what it has cached of an inode.
pub(super) fn drop_cached(device: &File, number: u64, what: &Cached) -> io::Result<()> {
    let (off, len) = what.offset_and_len();
    let order = wire::InvalInodeOut { ino: number, off, len };
    let len = (size_of::<OutHeader>() + size_of_val(&order)) as u32;
    let header = OutHeader { len, error: wire::NOTIFY_INVAL_INODE, unique: 0 };
    rustix::io::writev(device, &[IoSlice::new(header.as_bytes()), IoSlice::new(order.as_bytes())])?;
    Ok(())
}

/// A mount, and the device through which the kernel talks about it.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) device: File,
    pub(super) mount: KernelMount,
}

impl Mounted {
    /// See [`KernelMount::new`].
    pub(super) fn new(dir: &Path, options: &MountOptions) -> io::Result<Mounted> {
        let (device, mount) = KernelMount::new(dir, options)?;
        Ok(Mounted { device, mount })
    }

    /// Answers the kernel's first request.
    pub(super) fn shake_hands(&self, cache: PageCache) -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        let bytes =
            retry(|| rustix::io::read(&self.device, &mut buffer)).map_err(|e| shaking_hands(e.into()))?;
        let (header, init) = InHeader::read_from_prefix(&buffer[..bytes])
            .ok()
            .filter(|(header, _)| header.opcode == opcode::INIT)
            .ok_or_else(|| io::Error::other("the kernel's first request is not INIT"))?;
        let reply = InitIn::read_from_prefix(init).ok().and_then(|(init, _)| agree(&init, cache));
        let reply = reply.ok_or_else(|| {
            // Report the error to the kernel, too, so that it does not wait for ever.
            let _ = self.send(header.unique, Err(Os::PROTO.into()));
            io::Error::new(io::ErrorKind::Unsupported, "this kernel's FUSE offers no io_uring")
        })?;
        Ok(self.send(header.unique, Ok(reply.as_bytes()))?)
    }

    fn send(&self, unique: u64, answer: Result<&[u8], Errno>) -> Result<(), Os> {
        let payload = answer.unwrap_or_default();
        let header = out_header(unique, answer.map(<[u8]>::len));
        // One write is one answer: nothing is written in part.
        rustix::io::writev(&self.device, &[IoSlice::new(header.as_bytes()), IoSlice::new(payload)])?;
        Ok(())
    }

    /// Serves requests that come through the device until the mount ends; an error where it was aborted.
    pub(super) fn serve(&self, service: &Service, invalidator: &Invalidator) -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        let mut out = vec![0; REQUEST_BYTES_MAX as usize];
        loop {
            let bytes = match retry(|| rustix::io::read(&self.device, &mut buffer)) {
                Err(error) => return Ok(ending(self.device.as_fd(), error)?),
                Ok(bytes) => bytes,
            };
            let (header, argument, payload) = request::split(&buffer[..bytes])
                .ok_or_else(|| io::Error::other("a request that is shorter than it says"))?;
            // None of these has an answer. No request waits for so long that it would have to be interrupted.
            if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) {
                service.forget_many(&request::forgotten(&header, payload).collect::<Vec<_>>());
                continue;
            }
            let answered = answer((service, invalidator), &header, argument, payload, &mut out);
            match self.send(header.unique, answered.map(|len| &out[..len])) {
                // The program was killed, or the mount is gone, which the next read reports.
                Ok(()) | Err(Os::NOENT | Os::NODEV) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Our side of the handshake; `None` where the kernel lacks a needed capability.
fn agree(kernel: &InitIn, cache: PageCache) -> Option<InitOut> {
    let offered = u64::from(kernel.flags) | u64::from(kernel.flags2) << 32;
    let needed = NEEDED | if cache == PageCache::WriteBack { init::WRITEBACK_CACHE } else { 0 };
    if kernel.major != wire::MAJOR || kernel.minor < wire::MINOR_MIN || offered & needed != needed {
        return None;
    }
    let flags = needed | CAPABILITIES & offered;
    Some(InitOut {
        major: wire::MAJOR,
        minor: kernel.minor.min(wire::MINOR),
        max_readahead: kernel.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX / 4 * 3,
        max_write: REQUEST_BYTES_MAX,
        // Nanoseconds.
        time_gran: 1,
        max_pages: (REQUEST_BYTES_MAX / PAGE_BYTES) as u16,
        ..InitOut::default()
    })
}

/// The header of an answer with this many bytes, or of an error in its place.
pub(super) fn out_header(unique: u64, answered: Result<usize, Errno>) -> OutHeader {
    let bytes = answered.unwrap_or_default();
    OutHeader {
        len: (size_of::<OutHeader>() + bytes) as u32,
        error: answered.err().map_or(0, |errno| -errno.0),
        unique,
    }
}

/// Repeats the read where that is permitted: a request was withdrawn, or a signal arrived.
fn retry(mut read: impl FnMut() -> Result<usize, Os>) -> Result<usize, Os> {
    loop {
        match read() {
            Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_takes_what_is_offered_and_needs_rings() {
        let offer = |major, minor, flags: u64| InitIn {
            major,
            minor,
            max_readahead: 5,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            ..InitIn::default()
        };
        let all = agree(&offer(7, 99, u64::MAX), PageCache::WriteThrough).expect("a newer kernel will do");
        let flags = |agreed: InitOut| u64::from(agreed.flags) | u64::from(agreed.flags2) << 32;
        assert_eq!(flags(all), NEEDED | CAPABILITIES);
        let back = agree(&offer(7, 45, u64::MAX), PageCache::WriteBack).expect("it is offered");
        assert_eq!(flags(back), NEEDED | CAPABILITIES | init::WRITEBACK_CACHE);
        assert_eq!(agree(&offer(7, 45, !init::WRITEBACK_CACHE), PageCache::WriteBack), None);
        assert_eq!((all.minor, all.max_write, all.max_pages, all.max_readahead), (45, 1 << 20, 256, 5));
        let least = agree(&offer(7, 42, NEEDED), PageCache::Off).expect("what must be is there");
        assert_eq!((least.minor, least.flags2), (42, 1 << 9));
        for refused in [
            offer(7, 35, u64::MAX),
            offer(8, 0, u64::MAX),
            offer(7, 45, !init::OVER_IO_URING),
            offer(7, 45, !init::MAX_PAGES),
            offer(7, 45, !init::DONT_MASK),
            offer(7, 45, !init::SETXATTR_EXT),
        ] {
            assert_eq!(agree(&refused, PageCache::WriteThrough), None, "{refused:?}");
        }
    }

    #[test]
    fn failures_are_negative_and_bring_nothing() {
        assert_eq!(out_header(3, Ok(8)), OutHeader { len: 24, error: 0, unique: 3 });
        assert_eq!(out_header(3, Err(Os::NOENT.into())), OutHeader { len: 16, error: -2, unique: 3 });
    }
}
