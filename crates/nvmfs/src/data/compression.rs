//! The compression of files, and rewriting what they hold under it.
//!
//! A change of a file's compression binds what is written from then on; a rewrite brings older data under it.
//!
//! Invariants of a rewrite:
//! 1. It holds the sectors of a piece from before it reads them until the ftl has accepted what it writes. Every other
//!    change of data holds its sectors too (`inodes/ranges.rs`), so none comes in between: what others write is either
//!    read and kept, or written behind the rewrite and stays.
//! 2. Each piece is one batch that leaves every sector as it was. So a crash, a full store, or a limit, which may end
//!    the rewrite at any piece, loses nothing.
//! 3. Neither times nor lengths change, nor does what is mapped, but for zeros at the ends of chunks.
//! 4. It takes memory for one piece, whatever the file's length, and looks at what is mapped only.

use std::sync::Arc;

use lacuna_ftl::{CHUNK_SECTORS, Op, Room};

use super::{CHUNK_BYTES, Data, end_of, must_be_file, sectors};
use crate::{
    error::{Refusal, Result},
    format::{Compression, FileKind, Ino, Privilege},
    inodes::{Author, Node, Target},
    mutant::{Rule, is_broken},
};

/// Most sectors that a rewrite holds at a time: 1 MiB.
const PIECE_SECTORS: u64 = 2048;

/// What a rewrite did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// Bytes that were looked at.
    pub read_bytes: u64,
    /// Bytes of these that were written again: not what was not compressed and stays that.
    pub written_bytes: u64,
}

impl Data {
    /// See [`crate::posix::Posix::compression`].
    pub(crate) fn compression(&self, ino: Ino) -> Result<(Compression, Compression)> {
        let node = self.inodes.node(ino)?;
        Ok((node.compression(), self.inodes.compression_of(&node)))
    }

    /// See [`crate::posix::Posix::set_compression`].
    pub(crate) fn set_compression(&self, ino: Ino, compression: Compression) -> Result<()> {
        let node = self.inodes.node(ino)?;
        if !matches!(node.kind(), FileKind::File | FileKind::Directory) {
            return Err(Refusal::Invalid.into());
        }
        if compression != Compression::Default {
            self.inodes.volume().name_compression()?;
        }
        let changed = self.change_inode(&node, None, |inode, update| {
            inode.set_compression(compression);
            let (accessed, modified, _) = inode.times();
            inode.set_times((accessed, modified, update.now()));
            true
        });
        changed.map(drop)
    }

    /// See [`crate::posix::Posix::room`].
    pub(crate) fn room(&self, ino: Ino) -> Result<Room> {
        let node = self.inodes.node(ino)?;
        let room = self.inodes.volume().ftl().room(ino.region())?;
        if node.is_removed() { Err(Refusal::Stale.into()) } else { Ok(room) }
    }

    /// See [`crate::posix::Posix::rewrite`].
    pub(crate) fn rewrite(&self, ino: Ino, offset: u64, len: u64, privilege: Privilege) -> Result<Rewritten> {
        let node = self.inodes.node(ino)?;
        must_be_file(&node)?;
        end_of(offset, len)?;
        let range = sectors(offset, len);
        let mut at = range.start / CHUNK_SECTORS * CHUNK_SECTORS;
        let end = range.end.next_multiple_of(CHUNK_SECTORS);
        let whole_chunks = self.piece_bytes() / CHUNK_BYTES * CHUNK_SECTORS;
        let piece_sectors = whole_chunks.clamp(CHUNK_SECTORS, PIECE_SECTORS);
        let mut rewritten = Rewritten::default();
        while at < end {
            let Some(first) = self.inodes.volume().first_mapped(ino.range(at..end))? else { break };
            at = at.max((first.0 - ino.lba(0).0) / CHUNK_SECTORS * CHUNK_SECTORS);
            let piece_end = end.min(at / CHUNK_SECTORS * CHUNK_SECTORS + piece_sectors);
            at = self.rewrite_piece(&node, at..piece_end, privilege, &mut rewritten)?;
        }
        Ok(rewritten)
    }

    /// Rewrites what is mapped in these sectors, as much as one batch takes; returns where it ended.
    fn rewrite_piece(
        &self,
        node: &Arc<Node>,
        sectors: std::ops::Range<u64>,
        privilege: Privilege,
        rewritten: &mut Rewritten,
    ) -> Result<u64> {
        let _held = (!is_broken(Rule::RewriteHolds)).then(|| node.lock_sectors(sectors.clone()));
        let mapped = self.mapped_runs(node, sectors.clone())?;
        let room = self.inodes.volume().ftl().room(node.ino().lba(sectors.start)..mapped.end)?;
        let is_plain = room.total().mapped_bytes == room.plain.mapped_bytes;
        let ops: Vec<_> = mapped.runs.iter().map(|(lba, data)| Op::Write { lba: *lba, data }).collect();
        let bytes: u64 = mapped.runs.iter().map(|(_, data)| data.len() as u64).sum();
        if !ops.is_empty() {
            let keeps_times = !is_broken(Rule::RewriteKeepsTimes);
            let by = Author { privilege, keeps_times, ..Author::default() };
            let target = Target { node: Arc::clone(node), end: 0, by };
            rewritten.read_bytes += bytes;
            if self.inodes.rewrite_data(&ops, target, is_plain)? {
                rewritten.written_bytes += bytes;
            }
        }
        Ok((mapped.end.0 - node.ino().lba(0).0).max(sectors.start + 1))
    }
}
