//! Answers to the kernel, as bytes. Pure.

use lacuna_nvmfs::{
    Timestamp,
    posix::{Attr, FileKind, StatFs},
};
use rustix::io::Errno as Os;
use zerocopy::{Immutable, IntoBytes};

use super::wire;
use crate::{
    Found, Opening, Service, ServiceOptions,
    mutant::{Rule, is_broken},
    service::Errno,
    transport::{STATFS_BLOCK_BYTES, TTL, ttl, ttl_of_attr},
};

/// Entries of directories start at multiples of this.
const DIRENT_ALIGN: usize = 8;

/// An answer that grows in a buffer of fixed length.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Reply<'a> {
    pub(super) fn new(buffer: &'a mut [u8]) -> Reply<'a> {
        Reply { buffer, len: 0 }
    }

    /// Bytes put so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// # Errors
    /// EIO where the buffer is too small, which happens only for requests that no kernel makes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.space(bytes.len())?[..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    pub(super) fn put(&mut self, value: &(impl IntoBytes + Immutable)) -> Result<(), Errno> {
        self.bytes(value.as_bytes())
    }

    /// Lets `fill` write up to `len` bytes in place and say how many it wrote.
    pub(super) fn fill(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let filled = fill(self.space(len)?)?;
        assert!(filled <= len, "more was filled than fits");
        self.len += filled;
        Ok(())
    }

    fn space(&mut self, len: usize) -> Result<&mut [u8], Errno> {
        self.buffer[self.len..].get_mut(..len).ok_or_else(|| Os::IO.into())
    }

    /// One entry of a directory, `before` and all, if the answer stays within `limit` bytes.
    fn entry(
        &mut self,
        limit: usize,
        before: &[u8],
        dirent: (u64, u64, FileKind),
        name: &[u8],
    ) -> Result<bool, Errno> {
        let (ino, off, kind) = dirent;
        let end = self.len + before.len() + size_of::<wire::Dirent>() + name.len();
        let padded = end.next_multiple_of(DIRENT_ALIGN);
        if padded > limit.min(self.buffer.len()) {
            return Ok(false);
        }
        self.bytes(before)?;
        // `d_type` is the upper bits of a mode.
        let kind = kind.mode_bits() >> 12;
        self.put(&wire::Dirent { ino, off, namelen: name.len() as u32, kind })?;
        self.bytes(name)?;
        self.bytes(&[0; DIRENT_ALIGN][..padded - end])?;
        Ok(true)
    }

    /// An entry of READDIR; false if it does not fit any more.
    pub(super) fn dirent(
        &mut self,
        limit: usize,
        (ino, next, kind): (u64, u64, FileKind),
        name: &[u8],
    ) -> Result<bool, Errno> {
        self.entry(limit, &[], (ino, next, kind), name)
    }

    /// An entry of READDIRPLUS; false if it does not fit any more.
    pub(super) fn dirent_plus(
        &mut self,
        limit: usize,
        entry: &wire::EntryOut,
        (next, kind): (u64, FileKind),
        name: &[u8],
    ) -> Result<bool, Errno> {
        self.entry(limit, entry.as_bytes(), (entry.nodeid, next, kind), name)
    }

    /// The protocol of extended attributes: length 0 asks for the length.
    pub(super) fn sized(&mut self, value: &[u8], len: u32) -> Result<(), Errno> {
        match len as usize {
            0 => self.put(&wire::GetXattrOut { size: value.len() as u32, _padding: 0 }),
            len if value.len() > len => Err(Os::RANGE.into()),
            _ => self.bytes(value),
        }
    }
}

/// Attributes as the kernel takes them.
pub(super) fn attr(attr: &Attr, block_bytes: u32) -> wire::Attr {
    let Timestamp { seconds: atime, nanoseconds: atimensec } = attr.accessed;
    let Timestamp { seconds: mtime, nanoseconds: mtimensec } = attr.modified;
    let Timestamp { seconds: ctime, nanoseconds: ctimensec } = attr.changed;
    wire::Attr {
        ino: Service::number(attr.ino),
        size: attr.size,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: attr.kind.mode_bits() | u32::from(attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's 32 bits, as it gave them.
        rdev: attr.rdev as u32,
        blksize: block_bytes,
        flags: 0,
    }
}

/// The inode that a name stands for, which the kernel must not cache if it is damaged.
pub(super) fn found(found: &Found, options: &ServiceOptions) -> wire::EntryOut {
    let mut entry = entry(&found.attr, options);
    if found.is_damaged {
        (entry.entry_valid, entry.attr_valid) = (0, 0);
    }
    entry
}

/// The inode that a name stands for.
pub(super) fn entry(found: &Attr, options: &ServiceOptions) -> wire::EntryOut {
    wire::EntryOut {
        nodeid: Service::number(found.ino),
        generation: found.generation.into(),
        entry_valid: ttl(found).as_secs(),
        attr_valid: ttl_of_attr(found, options).as_secs(),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attr(found, options.block_bytes),
    }
}

/// A name that stands for nothing, until the kernel gives it to something.
pub(super) fn absent() -> wire::EntryOut {
    wire::EntryOut { entry_valid: TTL.as_secs(), ..wire::EntryOut::default() }
}

/// Attributes with the time of creation.
pub(super) fn statx(found: &Attr, options: &ServiceOptions) -> wire::StatxOut {
    let time = |Timestamp { seconds, nanoseconds }| wire::StatxTime { seconds, nanoseconds, _reserved: 0 };
    let attr = attr(found, options.block_bytes);
    wire::StatxOut {
        attr_valid: ttl_of_attr(found, options).as_secs(),
        mask: wire::STATX_MASK,
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(found.accessed),
        btime: time(found.created),
        ctime: time(found.changed),
        mtime: time(found.modified),
        // The kernel puts them together again as it took `rdev` apart (`new_encode_dev`).
        rdev_major: attr.rdev >> 8 & 0xfff,
        rdev_minor: attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00,
        ..wire::StatxOut::default()
    }
}

pub(super) fn attr_out(found: &Attr, options: &ServiceOptions) -> wire::AttrOut {
    wire::AttrOut {
        attr_valid: ttl_of_attr(found, options).as_secs(),
        attr_valid_nsec: 0,
        _dummy: 0,
        attr: attr(found, options.block_bytes),
    }
}

/// An opening of a file with the flags `asked`.
pub(super) fn opened(opening: Opening, asked: i32) -> wire::OpenOut {
    let open_flags = match opening {
        Opening::Direct if is_broken(Rule::ParallelDirectWrites) => wire::FOPEN_DIRECT_IO,
        Opening::Direct => wire::FOPEN_DIRECT_IO | wire::FOPEN_PARALLEL_DIRECT_WRITES,
        Opening::Cached => wire::FOPEN_KEEP_CACHE,
        Opening::CachedAnew => 0,
    };
    wire::OpenOut { fh: opening.handle(asked), open_flags, _backing_id: 0 }
}

pub(super) fn stat_fs(stat: &StatFs) -> wire::StatFsOut {
    let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK_BYTES);
    wire::StatFsOut {
        blocks: blocks(stat.total_bytes),
        bfree: blocks(stat.free_bytes),
        bavail: blocks(stat.available_bytes),
        files: stat.inodes,
        ffree: stat.free_inodes,
        bsize: STATFS_BLOCK_BYTES,
        namelen: stat.name_bytes_max,
        frsize: STATFS_BLOCK_BYTES,
        ..wire::StatFsOut::default()
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    #[test]
    fn entries_of_a_directory_are_aligned_and_stay_within_the_limit() {
        for name_bytes in 1..=255 {
            let name = vec![b'n'; name_bytes];
            let one = (size_of::<wire::Dirent>() + name_bytes).next_multiple_of(8);
            let mut buffer = [0xff; 4096];
            let mut reply = Reply::new(&mut buffer);
            let limit = 3 * one + one - 1;
            let mut entries = 0;
            while reply.dirent(limit, (7, entries + 1, FileKind::Symlink), &name).unwrap() {
                entries += 1;
            }
            assert_eq!((entries, reply.len()), (3, 3 * one), "names of {name_bytes} bytes");
            let second = &buffer[one..2 * one];
            let (dirent, rest) = wire::Dirent::read_from_prefix(second).unwrap();
            let expected = wire::Dirent { ino: 7, off: 2, namelen: name_bytes as u32, kind: 0o12 };
            assert_eq!(dirent, expected);
            assert_eq!(rest[..name_bytes], name[..]);
            assert!(rest[name_bytes..].iter().all(|byte| *byte == 0), "padding is zero");
        }
    }

    #[test]
    fn the_buffer_ends_a_directory_even_where_the_limit_does_not() {
        let mut buffer = [0; 100];
        let mut reply = Reply::new(&mut buffer);
        let entry = wire::EntryOut { nodeid: 9, ..wire::EntryOut::default() };
        assert!(!reply.dirent_plus(4096, &entry, (1, FileKind::File), b"name").unwrap());
        assert_eq!(reply.len(), 0, "nothing of an entry that does not fit");
        assert!(reply.dirent(4096, (9, 1, FileKind::File), b"name").unwrap());
        assert_eq!(reply.len(), 32);
        assert_eq!(reply.bytes(&[0; 69]), Err(Os::IO.into()));
        assert_eq!(reply.fill(69, |_| unreachable!("there is no space")), Err(Os::IO.into()));
    }

    #[test]
    fn extended_attributes_tell_their_length_first() {
        for (len, expected) in [(0, Ok(8)), (4, Err(Os::RANGE.into())), (5, Ok(5)), (4096, Ok(5))] {
            let mut buffer = [0; 16];
            let mut reply = Reply::new(&mut buffer);
            let put = reply.sized(b"value", len).map(|()| reply.len());
            assert_eq!(put, expected, "{len}");
        }
    }
}
