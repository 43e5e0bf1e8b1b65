//! Compressing harder what nobody has written for long.
//!
//! Invariants:
//! 1. Data is read and compressed while nobody is kept from writing it. Then the sectors are held, and it is written only
//!    if they are mapped as before, to what the same batches wrote. Every other change of data holds its sectors too, and
//!    a batch has a number of its own: so what others wrote meanwhile stays.
//! 2. A chunk is written again only if that takes less, so that no writer of a full store is refused because of a walk.
//!    zstd does not always take less: noise with a few repetitions is shorter by LZ4. And what is left of a compressed
//!    chunk with holes in it takes as much as all of it did, until no sector of it is left; so all of the chunk is
//!    written, or nothing. Each piece is one batch that leaves every sector as it was.
//! 3. Neither times nor lengths change. Files whose own compression is `none` or zstd are left alone.

use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

use lacuna_ftl::{CHUNK_SECTORS, Codec, Encoded, Lba, Op, Seq};

use super::{CHUNK_BYTES, Data};
use crate::{
    error::{Refusal, Result, is_stale},
    format::{Compression, FileKind, Ino},
    inodes::{Author, Node, Target},
    mutant::{Rule, is_broken},
};

/// A piece of cold data that was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdPiece {
    /// Bytes that were tried.
    pub tried_bytes: u64,
    /// The file of which some take less now.
    pub smaller: Option<Ino>,
}

/// Chunks that are compressed together, unless a batch takes less.
const PIECE_CHUNKS: usize = 16;
/// Pieces of the map that are looked at together.
const EXTENTS_AT_ONCE: usize = 1 << 14;

impl Data {
    /// See [`crate::Nvmfs::compress_cold`].
    pub(crate) fn compress_cold(
        &self,
        compression: Compression,
        births: &Range<Seq>,
        mut go_on: impl FnMut(ColdPiece) -> ControlFlow<()>,
    ) -> Result<bool> {
        let codec = compression.codec().ok_or(Refusal::Invalid)?;
        let piece_chunks = PIECE_CHUNKS.min(self.piece_bytes() as usize / CHUNK_BYTES as usize).max(1);
        let (mut at, end) = (Ino::FIRST.region().start, Ino::LAST.region().end);
        while at < end {
            let cold = self.inodes.volume().ftl().cold_chunks(at..end, births, EXTENTS_AT_ONCE)?;
            at = cold.end;
            let is_next = |one: &Lba, other: &Lba| one.0 + CHUNK_SECTORS == other.0;
            let of_file =
                |one: &Lba, other: &Lba| Ino::of(*one).0 == Ino::of(*other).0 && is_next(one, other);
            for run in cold.chunks.chunk_by(of_file) {
                for piece in run.chunks(piece_chunks) {
                    let looked_at = match self.compress_piece(piece, codec) {
                        // What cannot be read is not for this walk to report.
                        Err(error) if error.is_damage() || is_stale(&error) => ColdPiece::default(),
                        done => done?,
                    };
                    if go_on(looked_at).is_break() {
                        return Ok(false);
                    }
                }
            }
            if cold.chunks.is_empty() && go_on(ColdPiece::default()).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Compresses chunks of a file, one behind the other.
    fn compress_piece(&self, chunks: &[Lba], codec: Codec) -> Result<ColdPiece> {
        let mut piece = ColdPiece::default();
        let (Some(first), Some(last)) = (chunks.first(), chunks.last()) else { return Ok(piece) };
        let (ino, first_sector) = Ino::of(*first);
        let node = self.inodes.node(ino)?;
        let is_left_alone = matches!(node.compression(), Compression::None | Compression::Zstd(_));
        if node.kind() != FileKind::File || is_left_alone {
            return Ok(piece);
        }
        let range = *first..Lba(last.0 + CHUNK_SECTORS);
        let sectors = first_sector..first_sector + (range.end.0 - range.start.0);
        let ftl = self.inodes.volume().ftl();
        let before = ftl.births(range.clone())?;
        let mapped = self.mapped_runs(&node, sectors.clone())?;
        let parts = mapped.runs.iter().flat_map(|(lba, data)| lacuna_ftl::chunks(*lba, data));
        let parts: Vec<_> = parts.filter(|(lba, _)| chunk_of(*lba).end <= mapped.end).collect();
        let mut encoded = Vec::with_capacity(parts.len());
        for of_chunk in parts.chunk_by(|one, other| chunk_of(one.0) == chunk_of(other.0)) {
            let harder: Vec<_> =
                of_chunk.iter().map(|(lba, data)| Encoded::new(*lba, *data, codec)).collect();
            let harder_bytes: u64 = harder.iter().map(Encoded::stored_bytes).sum();
            let stored_bytes = ftl.allocated(chunk_of(of_chunk[0].0))?;
            if harder_bytes < stored_bytes || is_broken(Rule::ColdTakesLess) {
                encoded.extend(harder);
            }
        }
        if !encoded.is_empty() {
            let _held = node.lock_sectors(sectors);
            if ftl.births(range)? == before || is_broken(Rule::ColdLookedAtAgain) {
                self.write_harder(&node, &encoded)?;
                piece.smaller = Some(ino);
            }
        }
        piece.tried_bytes = mapped.runs.iter().map(|(_, data)| data.len() as u64).sum();
        Ok(piece)
    }

    fn write_harder(&self, node: &Arc<Node>, encoded: &[Encoded<'_>]) -> Result<()> {
        let ops: Vec<_> = encoded.iter().map(Op::Encoded).collect();
        let by = Author { keeps_times: true, ..Author::default() };
        self.inodes.write_encoded(&ops, Target { node: Arc::clone(node), end: 0, by })?;
        self.inodes.note_recompressed(encoded);
        Ok(())
    }
}

/// The sectors of the chunk of the space that a sector lies in.
fn chunk_of(lba: Lba) -> Range<Lba> {
    let start = lba.0 / CHUNK_SECTORS * CHUNK_SECTORS;
    Lba(start)..Lba(start + CHUNK_SECTORS)
}
