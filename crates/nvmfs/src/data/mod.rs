//! The data of files: one code path for all writes.
//!
//! A write holds its sectors (see `inodes/ranges.rs`), then the file's `record`: shared if it stays within the length,
//! so that writes go in parallel; alone if it changes the inode, which is then part of the batch. The bytes of a file's
//! last sector behind its end are always zeros: so a file may grow over them, and an operation that shortens a file
//! clears them.

mod attr;
mod cold;
mod compression;
mod runs;
mod xattr;

pub use cold::ColdPiece;
pub use compression::Rewritten;
pub use runs::Runs;
pub use xattr::XattrMode;

use std::{ops::Range, sync::Arc};

use lacuna_device::{FileProps, SECTOR};
use lacuna_ftl::{CHUNK_SECTORS, Encoded, Lba, Op};

use crate::{
    error::{Refusal, Result},
    format::{Caller, FILE_BYTES_MAX, FileKind, Ino, Privilege, REGION_SECTORS},
    inodes::{Author, HeldRanges, Inodes, Node, Target},
    mutant::{Rule, is_broken},
};

/// How to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The bytes between the written ones and this offset become a hole, in the same batch. Whole sectors only; the
    /// file does not grow by it.
    pub trim_to: Option<u64>,
    /// Take set-user-id and set-group-id away (`FUSE_WRITE_KILL_SUIDGID`), on behalf of this caller, who has no
    /// privilege to keep them.
    pub kill_privileges: Option<Caller>,
    /// A page of the kernel's cache is written back (`FUSE_WRITE_CACHE`), some time after it was changed: the file keeps
    /// privileges that it got since. All other writes take capabilities (`security.capability`) away, as Linux does.
    pub from_cache: bool,
    /// The file's times stay as they are: the kernel knows when the page was changed, and says so itself.
    pub keeps_times: bool,
}

impl WriteOptions {
    /// For whom `node` is written. A page that was changed in memory is written for nobody in particular, so it counts
    /// as written by the owner.
    fn author(&self, node: &Node, privilege: Privilege) -> Result<Author> {
        let is_roots = self.from_cache && node.live(|inode| inode.owner().0 == 0)?;
        let privilege = if is_roots { Privilege::Root } else { privilege };
        Ok(Author { kill_privileges: self.kill_privileges, privilege, keeps_times: self.keeps_times })
    }
}

/// The modes of [`fallocate`](crate::posix::Posix::fallocate). No mode reserves space: provisioning is thin. But the first
/// two fail where there is not as much space as the range lacks, so that who allocates before writing learns it in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Mode 0: the file reaches at least to the end of the range.
    Extend,
    /// `FALLOC_FL_KEEP_SIZE`: nothing but times.
    KeepSize,
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`: the range reads as zeros and takes no space.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`: as a hole; the file reaches at least to its end, unless `keep_size`.
    ZeroRange {
        /// With `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
}

/// The sector that a byte lies in.
pub(crate) fn sector(byte: u64) -> u64 {
    byte / SECTOR as u64
}

/// The sectors that a byte range touches.
pub(crate) fn sectors(offset: u64, len: u64) -> Range<u64> {
    sector(offset)..(offset + len).div_ceil(SECTOR as u64)
}

pub(crate) fn is_aligned(byte: u64) -> bool {
    byte.is_multiple_of(SECTOR as u64)
}

/// The end of `offset .. offset + len`, if a file can reach there.
pub(crate) fn end_of(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
    end.ok_or(Refusal::FileTooLarge.into())
}

pub(crate) fn must_be_file(node: &Node) -> Result<()> {
    match node.kind() {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Refusal::IsADirectory.into()),
        _ => Err(Refusal::Invalid.into()),
    }
}

/// Bytes that the ftl stores, and compresses, together.
const CHUNK_BYTES: u64 = CHUNK_SECTORS * SECTOR as u64;

/// Largest atomic write in bytes, where the store is large enough for it.
const ATOMIC_BYTES_MAX: u64 = 8 << 20;

/// The data of inodes: bytes, lengths, attributes.
pub(crate) struct Data {
    inodes: Arc<Inodes>,
    props: FileProps,
}

impl Data {
    pub(crate) fn new(inodes: Arc<Inodes>) -> Data {
        // The rest is for bookkeeping: in the worst case a batch of single sectors, with a changed inode for each.
        let batch_bytes_max = inodes.volume().ftl().batch_bytes_max();
        let atomic_bytes_max = ATOMIC_BYTES_MAX.min(batch_bytes_max / 3 / SECTOR as u64 * SECTOR as u64);
        let props = FileProps {
            atomic_bytes_max,
            atomic_align: SECTOR as u32,
            atomic_writes: None,
            hole_unit: SECTOR as u32,
            io_align: SECTOR as u32,
            ordered: true,
        };
        Data { inodes, props }
    }

    /// The guarantees of files.
    pub(crate) fn props(&self) -> FileProps {
        self.props
    }

    /// Holds all sectors from the one that contains byte `len`, or the file's end if that comes first. The length does
    /// not change meanwhile.
    pub(crate) fn hold_tail<'a>(&self, node: &'a Node, len: u64) -> HeldRanges<'a> {
        loop {
            let first = sector(node.size().min(len));
            let held = node.lock_sectors(first..REGION_SECTORS + 1);
            if sector(node.size().min(len)) >= first {
                return held;
            }
        }
    }

    /// Whole sectors with `data` at `offset`, and their old content around it. Their range is held.
    pub(crate) fn merge(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<Vec<u8>> {
        let range = sectors(offset, data.len() as u64);
        let mut bytes = vec![0; (range.end - range.start) as usize * SECTOR];
        let start = (offset % SECTOR as u64) as usize;
        let end = start + data.len();
        let last = bytes.len() - SECTOR;
        if start > 0 || (last == 0 && end < bytes.len()) {
            self.inodes.volume().ftl().read(ino.lba(range.start), &mut bytes[..SECTOR])?;
        }
        if last > 0 && end < bytes.len() {
            self.inodes.volume().ftl().read(ino.lba(range.end - 1), &mut bytes[last..])?;
        }
        bytes[start..end].copy_from_slice(data);
        Ok(bytes)
    }

    /// The change that clears `offset .. end`: the sectors that lie in it whole are trimmed, the parts of
    /// others that are stored are written as zeros. Their range is held.
    fn clear(&self, ino: Ino, offset: u64, end: u64) -> Result<Vec<OwnedOp>> {
        let mut ops = Vec::new();
        let whole = offset.div_ceil(SECTOR as u64)..sector(end);
        if whole.start < whole.end {
            ops.push(OwnedOp::Trim(ino.lba(whole.start), whole.end - whole.start));
        }
        let head = (!is_aligned(offset)).then(|| offset..end.min(whole.start * SECTOR as u64));
        let tail = (!is_aligned(end)).then(|| offset.max(whole.end * SECTOR as u64)..end);
        let parts = match (head, tail) {
            (Some(head), Some(tail)) if head == tail => [Some(head), None],
            parts => parts.into(),
        };
        for part in parts.into_iter().flatten() {
            let lba = ino.lba(sector(part.start));
            if self.inodes.volume().ftl().is_mapped(lba)? {
                let zeros = vec![0; (part.end - part.start) as usize];
                ops.push(OwnedOp::Write(lba, self.merge(ino, part.start, &zeros)?));
            }
        }
        Ok(ops)
    }

    /// See [`crate::posix::Posix::read`].
    pub(crate) fn read_bytes(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let node = self.inodes.node(ino)?;
        must_be_file(&node)?;
        let size = node.size();
        let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        let range = sectors(offset, len as u64);
        let whole = (range.end - range.start) as usize * SECTOR;
        if is_aligned(offset) && whole <= buf.len() {
            self.inodes.volume().ftl().read(ino.lba(range.start), &mut buf[..whole])?;
        } else {
            let mut bytes = vec![0; whole];
            self.inodes.volume().ftl().read(ino.lba(range.start), &mut bytes)?;
            let start = (offset % SECTOR as u64) as usize;
            buf[..len].copy_from_slice(&bytes[start..start + len]);
        }
        // Checked after the read: the number may have become another file's meanwhile.
        if node.is_removed() {
            return Err(Refusal::Stale.into());
        }
        self.inodes.touch_accessed(&node);
        Ok(len)
    }

    /// See [`crate::posix::Posix::write`].
    pub(crate) fn write_bytes(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
        privilege: Privilege,
    ) -> Result<usize> {
        let node = self.inodes.node(ino)?;
        must_be_file(&node)?;
        let end = end_of(offset, data.len() as u64)?;
        let by = options.author(&node, privilege)?;
        if !options.from_cache {
            self.drop_capability(&node)?;
        }
        let mut at = offset;
        while at < end {
            let piece_end = self.piece_end(at, end);
            let piece = &data[(at - offset) as usize..(piece_end - offset) as usize];
            let trim_to = options.trim_to.filter(|_| piece_end == end);
            let range = sector(at)..sectors(at, piece.len() as u64).end.max(sector(trim_to.unwrap_or(0)));
            let held = node.lock_sectors(range);
            match self.write_piece(&node, at, piece, trim_to, by) {
                Ok(()) => at = piece_end,
                // The kernel takes a short write of what it cached for a whole one.
                Err(error) if at == offset || options.from_cache => return Err(error),
                Err(_) => break,
            }
            drop(held);
        }
        Ok((at - offset) as usize)
    }

    /// The most that is written at once, from the start of a sector on.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.props.atomic_bytes_max
    }

    /// The end of what is written at once of `at .. end`. Chunks, which are compressed as they are written, are not cut
    /// where that can be.
    fn piece_end(&self, at: u64, end: u64) -> u64 {
        let reach = at / SECTOR as u64 * SECTOR as u64 + self.piece_bytes();
        match reach / CHUNK_BYTES * CHUNK_BYTES {
            _ if end <= reach => end,
            chunk_end if chunk_end > at => chunk_end,
            _ => reach,
        }
    }

    /// Writes `data` in one batch. The sectors are held.
    fn write_piece(
        &self,
        node: &Arc<Node>,
        offset: u64,
        data: &[u8],
        trim_to: Option<u64>,
        by: Author,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let merged;
        let bytes = match is_aligned(offset) && is_aligned(end) {
            true => data,
            false => {
                merged = self.merge(node.ino(), offset, data)?;
                &merged
            }
        };
        let mut ops = vec![Op::Write { lba: node.ino().lba(sector(offset)), data: bytes }];
        let hole = end.div_ceil(SECTOR as u64)..sector(trim_to.unwrap_or(0)).min(REGION_SECTORS);
        if hole.start < hole.end {
            ops.push(Op::Trim { lba: node.ino().lba(hole.start), sectors: hole.end - hole.start });
        }
        self.inodes.write_data(&ops, &[Target { node: Arc::clone(node), end, by }])
    }

    /// See [`crate::posix::Posix::append`].
    pub(crate) fn append_bytes(
        &self,
        ino: Ino,
        data: &[u8],
        options: WriteOptions,
        privilege: Privilege,
    ) -> Result<u64> {
        let node = self.inodes.node(ino)?;
        must_be_file(&node)?;
        if data.len() as u64 + SECTOR as u64 > self.piece_bytes() || options.trim_to.is_some() {
            return Err(Refusal::Invalid.into());
        }
        self.drop_capability(&node)?;
        let _held = self.hold_tail(&node, u64::MAX);
        let at = node.size();
        end_of(at, data.len() as u64)?;
        if !data.is_empty() {
            self.write_piece(&node, at, data, None, options.author(&node, privilege)?)?;
        }
        Ok(at)
    }

    /// The changes that cut a file's data to the new length. Its tail is held from the chunk of that on.
    pub(crate) fn shorten(&self, node: &Node, len: u64) -> Result<Vec<OwnedOp>> {
        if len >= node.size() {
            return Ok(Vec::new());
        }
        let mut ops = match self.compressed_tail(node, len)? {
            Some(tail) => tail,
            None => self.clear(node.ino(), len, len.next_multiple_of(SECTOR as u64))?,
        };
        let first = len.div_ceil(SECTOR as u64);
        if first < REGION_SECTORS {
            ops.push(OwnedOp::Trim(node.ino().lba(first), REGION_SECTORS - first));
        }
        Ok(ops)
    }

    /// What is left of a compressed chunk that is cut within a sector, compressed anew, if that then takes less. Otherwise
    /// the sector would be stored beside the chunk, all of which stays until its last sector goes: a full store has no
    /// space for that.
    fn compressed_tail(&self, node: &Node, len: u64) -> Result<Option<Vec<OwnedOp>>> {
        let Some(codec) = self.inodes.compression_of(node).codec().filter(|_| !is_aligned(len)) else {
            return Ok(None);
        };
        let last = sector(len);
        let start = last / CHUNK_SECTORS * CHUNK_SECTORS;
        let room = self.inodes.volume().ftl().room(node.ino().range(start..start + CHUNK_SECTORS))?;
        if room.total().mapped_bytes == room.plain.mapped_bytes {
            return Ok(None);
        }
        let mut mapped = match self.mapped_runs(node, start..last + 1) {
            // Less of it may be sound.
            Err(error) if error.is_damage() => return Ok(None),
            mapped => mapped?,
        };
        let is_all = mapped.end == node.ino().lba(last + 1);
        let Some((lba, data)) = mapped.runs.last_mut().filter(|_| is_all) else { return Ok(None) };
        let first_byte = (lba.0 - node.ino().lba(0).0) * SECTOR as u64;
        // Nothing where that lies in a hole.
        let Some(behind) = data.get_mut((len - first_byte) as usize..) else { return Ok(None) };
        behind.fill(0);
        let runs = mapped.runs.into_iter();
        let encoded: Vec<_> = runs.map(|(lba, data)| Encoded::new(lba, data, codec)).collect();
        let takes_less = encoded.iter().map(Encoded::stored_bytes).sum::<u64>() <= room.total().stored_bytes;
        Ok(takes_less.then(|| encoded.into_iter().map(OwnedOp::Encoded).collect()))
    }

    /// See [`crate::posix::Posix::fallocate`].
    pub(crate) fn fallocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        what: Allocate,
        by: Author,
    ) -> Result<()> {
        let node = self.inodes.node(ino)?;
        must_be_file(&node)?;
        if len == 0 {
            return Err(Refusal::Invalid.into());
        }
        let end = end_of(offset, len)?;
        if matches!(what, Allocate::Extend | Allocate::KeepSize) {
            self.must_have_space(ino, sectors(offset, len), by.privilege)?;
        }
        self.drop_capability(&node)?;
        let (is_hole, grows) = match what {
            Allocate::KeepSize => (false, false),
            Allocate::Extend => (false, true),
            Allocate::PunchHole => (true, false),
            Allocate::ZeroRange { keep_size } => (true, !keep_size),
        };
        let _held = node.lock_sectors(sectors(offset, len));
        let ops = if is_hole { self.clear(ino, offset, end)? } else { Vec::new() };
        let end = if grows { end } else { 0 };
        if ops.is_empty() && end <= node.size() {
            // As on other file systems of Linux, this still counts as a change.
            let changed = self.change_inode(&node, None, |inode, update| {
                if let Some(caller) = by.kill_privileges {
                    inode.drop_privileges(caller);
                }
                inode.set_times((inode.times().0, update.now(), update.now()));
                true
            });
            return changed.map(drop);
        }
        let ops: Vec<_> = ops.iter().map(OwnedOp::as_op).collect();
        // What stays of an encoded chunk is stored beside it.
        let effect = self.inodes.effect(&ops)?;
        let adds = effect.after_bytes > effect.before_bytes;
        let privilege = if adds { by.privilege } else { Privilege::Root };
        let target = Target { node: Arc::clone(&node), end, by: Author { privilege, ..by } };
        self.inodes.write_data(&ops, &[target])
    }

    /// Whether there is space for what these sectors lack now. What is written there later may still find none: nothing
    /// is reserved.
    fn must_have_space(&self, ino: Ino, sectors: Range<u64>, privilege: Privilege) -> Result<()> {
        let range_bytes = (sectors.end - sectors.start) * SECTOR as u64;
        let stored_bytes = self.inodes.volume().ftl().allocated(ino.range(sectors))?;
        let space = self.inodes.statfs()?;
        let left_bytes = match privilege {
            Privilege::User => space.available_bytes,
            Privilege::Root => space.free_bytes,
        };
        match range_bytes.saturating_sub(stored_bytes) <= left_bytes || is_broken(Rule::AllocationAsks) {
            true => Ok(()),
            false => Err(Refusal::NoSpace.into()),
        }
    }

    /// The first byte of data, or of a hole, at or behind `offset`.
    pub(crate) fn seek(&self, ino: Ino, offset: u64, data: bool) -> Result<u64> {
        let node = self.inodes.node(ino)?;
        must_be_file(&node)?;
        let size = node.size();
        if offset >= size {
            return Err(Refusal::NoSuchOffset.into());
        }
        let region = ino.region();
        let from = ino.lba(sector(offset));
        let byte = |lba: Lba| ((lba.0 - region.start.0) * SECTOR as u64).max(offset);
        let run = self.inodes.volume().ftl().mapped(from..region.end)?;
        // Checked after that: the number may have become another file's meanwhile.
        if node.is_removed() {
            return Err(Refusal::Stale.into());
        }
        if data {
            // It may have been shortened meanwhile.
            let first = run.map(|run| byte(run.start)).filter(|byte| *byte < size);
            return first.ok_or(Refusal::NoSuchOffset.into());
        }
        match run {
            Some(run) if run.start == from => Ok(byte(run.end).min(size)),
            _ => Ok(offset),
        }
    }
}

/// A change of data that owns its bytes.
pub(crate) enum OwnedOp {
    Write(Lba, Vec<u8>),
    Encoded(Encoded<'static>),
    Trim(Lba, u64),
}

impl OwnedOp {
    pub(crate) fn as_op(&self) -> Op<'_> {
        match self {
            OwnedOp::Write(lba, data) => Op::Write { lba: *lba, data },
            OwnedOp::Encoded(encoded) => Op::Encoded(encoded),
            OwnedOp::Trim(lba, sectors) => Op::Trim { lba: *lba, sectors: *sectors },
        }
    }
}
