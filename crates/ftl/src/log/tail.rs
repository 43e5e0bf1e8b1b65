//! The end of an open segment: bytes that were appended and are not all on the device yet.
//!
//! Space is reserved under the log's lock and filled without it, by the thread that reserved it. So bytes are copied
//! once, into the memory that the device writes from; and only the thread that fills the last part of a piece needs the
//! lock again.
//!
//! Invariants:
//! 1. Bytes below `written` are on the device (not necessarily durable); all others up to `end` are in `parts`, or are
//!    being filled; in order and without gaps.
//! 2. Pieces start and end on device blocks and are handed out to be written exactly once, when all of
//!    their parts are filled: what lies below `frozen` belongs to a piece, and nothing is added to it.
//! 3. The parts of a piece lie one behind the other in one memory, from a block's boundary on. So a piece
//!    ends where its memory does, if not before.
//! 4. A part is filled once and for good, before it is taken off the count of its piece. So the thread that brings the
//!    count to zero, by freezing the piece or by filling its last part, finds all of its bytes; exactly one thread
//!    does.
//!
//! Pieces are short while the device has little to do, so that it begins early, and longer when it is busy anyway: then
//! fewer requests save processor time. Bytes that are not frozen yet wait for more, or for a flush, however long the
//! piece.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use lacuna_device::{Blank, Filled};

use crate::{
    log::buffers::{Buffers, PIECE_BYTES_MAX},
    mutant::{Rule, is_broken},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Bytes that are collected before they are written without being asked for.
///
/// [`PIECE_BYTES_MAX`] while as many are in flight to the device.
const PIECE_BYTES: usize = 256 << 10;

/// A frozen part of the segment, to be written to the device.
pub(crate) struct Piece {
    /// Offset in the segment.
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// None until all of it is filled.
    pub(crate) bytes: Option<Filled>,
}

/// Where pieces come from while something is appended, and those that are frozen by it.
pub(crate) struct Pieces<'a> {
    buffers: &'a Arc<Buffers>,
    is_device_busy: bool,
    pub(crate) frozen: Vec<Piece>,
}

impl<'a> Pieces<'a> {
    /// None yet, made in `buffers` while `outstanding_bytes` are not on the device.
    pub(crate) fn new(buffers: &'a Arc<Buffers>, outstanding_bytes: usize) -> Pieces<'a> {
        Pieces { buffers, is_device_busy: outstanding_bytes >= PIECE_BYTES_MAX, frozen: Vec::new() }
    }
}

/// Reserved space, filled by the thread that reserved it.
pub(crate) struct Reserved {
    /// Offset in the segment.
    at: usize,
    blank: Blank,
    cell: Cell,
}

impl Reserved {
    /// Bytes that it has.
    pub(crate) fn len(&self) -> usize {
        self.blank.len()
    }

    /// Fills it. Returns its offset in the segment if its whole piece is now filled and frozen: then the caller must
    /// notify the log ([`crate::log::Log::filled`]).
    pub(crate) fn fill(self, fill: impl FnOnce(&mut [u8])) -> Option<usize> {
        let Reserved { at, blank, cell } = self;
        let piece = &cell.cells.piece;
        assert!(piece.is_left(), "invariant 4: a part of a piece that counts as filled");
        let counted_early = is_broken(Rule::FilledThenCounted).then(|| piece.is_last_of());
        cell.set(blank.fill(fill));
        counted_early.unwrap_or_else(|| piece.is_last_of()).then_some(at)
    }
}

/// How many parts of a piece are not filled, and one more until it is frozen.
struct Unfilled(AtomicUsize);

impl Unfilled {
    /// The count for a piece that is not frozen and has no part.
    fn new() -> Arc<Unfilled> {
        Arc::new(Unfilled(AtomicUsize::new(1)))
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn is_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Decrements the count; returns whether that was the last one.
    fn is_last_of(&self) -> bool {
        // The last thread sees what all others did before.
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A piece that was frozen.
struct Frozen {
    range: Range<usize>,
    done: bool,
}

/// Cells in which the threads that fill parts of a piece leave their bytes, several parts per allocation: one
/// allocation for each part took more time than the lock that it saved.
struct Cells {
    bytes: [OnceLock<Filled>; CELLS],
    piece: Arc<Unfilled>,
}

const CELLS: usize = 16;

/// One of them, shared by the tail and by the thread that fills the part.
#[derive(Clone)]
struct Cell {
    cells: Arc<Cells>,
    index: usize,
}

impl Cell {
    /// Nothing as long as the part is being filled.
    fn get(&self) -> Option<&Filled> {
        self.cells.bytes[self.index].get()
    }

    fn set(&self, bytes: Filled) {
        assert!(self.cells.bytes[self.index].set(bytes).is_ok(), "filled twice");
    }
}

struct TailPart {
    range: Range<usize>,
    cell: Cell,
}

/// A part of a tail, for a reader that keeps it longer than the tail does.
pub(crate) struct AppendedPart(TailPart);

impl AppendedPart {
    /// Offset in the segment.
    pub(crate) fn at(&self) -> usize {
        self.0.range.start
    }

    pub(crate) fn len(&self) -> usize {
        self.0.range.len()
    }

    /// Nothing as long as it is being filled.
    pub(crate) fn bytes(&self) -> Option<&Filled> {
        self.0.cell.get()
    }
}

/// See the module documentation.
pub(crate) struct Tail {
    segment_bytes: usize,
    block_bytes: usize,
    written: usize,
    frozen: usize,
    end: usize,
    /// Where the next bytes go.
    blank: Option<Blank>,
    parts: VecDeque<TailPart>,
    /// The one before that of the next part, if that belongs to the same piece.
    cell: Option<Cell>,
    /// In order, without gaps, from `written` to `frozen`.
    pieces: VecDeque<Frozen>,
}

impl Tail {
    /// The tail of an empty segment.
    pub(crate) fn new(segment_bytes: usize, block_bytes: usize) -> Tail {
        Tail {
            segment_bytes,
            block_bytes,
            written: 0,
            frozen: 0,
            end: 0,
            blank: None,
            parts: VecDeque::new(),
            cell: None,
            pieces: VecDeque::new(),
        }
    }

    /// Where the next byte goes.
    pub(crate) fn append_offset(&self) -> usize {
        self.end
    }

    /// Bytes below this are on the device.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Whether all that was appended is on the device.
    pub(crate) fn is_written(&self) -> bool {
        self.written == self.end
    }

    /// Reserves the next `len` bytes, in parts of which each lies in one memory and one piece.
    pub(crate) fn reserve(&mut self, len: usize, pieces: &mut Pieces<'_>, mut take: impl FnMut(Reserved)) {
        let mut left = len;
        while left > 0 {
            let reserved = self.reserve_part(left, pieces);
            left -= reserved.len();
            take(reserved);
        }
    }

    /// Reserves at most `len` of the next bytes, up to where a piece may end.
    fn reserve_part(&mut self, len: usize, pieces: &mut Pieces<'_>) -> Reserved {
        assert!(self.end + len <= self.segment_bytes, "append beyond the segment");
        let blank = self.blank.get_or_insert_with(|| pieces.buffers.take());
        let behind = (blank.len() - 1) / PIECE_BYTES * PIECE_BYTES;
        let taken = blank.split_to(len.min(blank.len() - behind));
        let (is_end, is_used_up) = (blank.len() == behind, blank.is_empty());
        let range = self.end..self.end + taken.len();
        self.end = range.end;
        let at = range.start;
        let cell = self.next_cell();
        self.parts.push_back(TailPart { range, cell: cell.clone() });
        if is_used_up {
            self.blank = None;
        }
        if is_used_up || (is_end && !pieces.is_device_busy) {
            let piece = self.freeze();
            pieces.frozen.push(piece);
        }
        Reserved { at, blank: taken, cell }
    }

    /// The cell for one more part of the piece that is not frozen.
    fn next_cell(&mut self) -> Cell {
        let cell = match self.cell.take() {
            Some(Cell { cells, index }) if index + 1 < CELLS => Cell { cells, index: index + 1 },
            before => {
                let piece = before.map_or_else(Unfilled::new, |cell| Arc::clone(&cell.cells.piece));
                Cell { cells: Arc::new(Cells { bytes: Default::default(), piece }), index: 0 }
            }
        };
        cell.cells.piece.add();
        self.cell = Some(cell.clone());
        cell
    }

    /// The frozen piece in which `at` lies, all of it filled: its start, and its bytes.
    pub(crate) fn filled(&self, at: usize) -> (usize, Filled) {
        let piece = self.pieces.iter().rev().find(|frozen| frozen.range.contains(&at));
        let range = piece.expect("what is filled is not written yet").range.clone();
        (range.start, self.bytes_of(range))
    }

    /// Appends `bytes`.
    pub(crate) fn append(&mut self, bytes: &[u8], pieces: &mut Pieces<'_>) {
        let mut left = bytes;
        self.append_by(bytes.len(), pieces, |out| {
            let (now, later) = left.split_at(out.len());
            out.copy_from_slice(now);
            left = later;
        });
    }

    /// Appends zeros up to `offset`.
    pub(crate) fn append_zeros(&mut self, offset: usize, pieces: &mut Pieces<'_>) {
        self.append_by(offset - self.end, pieces, |out| out.fill(0));
    }

    fn append_by(&mut self, len: usize, pieces: &mut Pieces<'_>, mut fill: impl FnMut(&mut [u8])) {
        let mut left = len;
        while left > 0 {
            let reserved = self.reserve_part(left, pieces);
            left -= reserved.len();
            if let Some(at) = reserved.fill(&mut fill) {
                let (start, bytes) = self.filled(at);
                let piece = pieces.frozen.iter_mut().rev().find(|piece| piece.start == start);
                piece.expect("a piece to which something is added was frozen just now").bytes = Some(bytes);
            }
        }
    }

    /// Pads to the next block and freezes all that was appended.
    pub(crate) fn pad_and_freeze(&mut self, pieces: &mut Pieces<'_>) {
        self.append_zeros(self.end.next_multiple_of(self.block_bytes), pieces);
        if self.end > self.frozen {
            let piece = self.freeze();
            pieces.frozen.push(piece);
        }
    }

    fn freeze(&mut self) -> Piece {
        let range = self.frozen..self.end;
        assert!(
            range.start.is_multiple_of(self.block_bytes) && range.end.is_multiple_of(self.block_bytes),
            "invariant 2: a piece of whole blocks"
        );
        let cell = self.cell.take().expect("a piece has a part");
        let bytes = cell.cells.piece.is_last_of().then(|| self.bytes_of(range.clone()));
        let piece = Piece { start: range.start, len: range.len(), bytes };
        self.frozen = self.end;
        self.pieces.push_back(Frozen { range, done: false });
        piece
    }

    /// The bytes of a piece that is filled, by invariants 3 and 4.
    fn bytes_of(&self, piece: Range<usize>) -> Filled {
        let first = self.parts.partition_point(|part| part.range.end <= piece.start);
        let parts = self.parts.range(first..).take_while(|part| part.range.start < piece.end);
        let mut bytes = parts.map(|part| part.cell.get().expect("invariant 4: no part is left to be filled"));
        let mut all = bytes.next().expect("invariant 1: parts up to the end").clone();
        bytes.for_each(|next| all.join(next));
        assert_eq!(all.len(), piece.len(), "invariant 3: parts and pieces end at the same places");
        all
    }

    /// The piece that starts at `start` is on the device.
    pub(crate) fn complete(&mut self, start: usize) {
        let frozen = self.pieces.iter_mut().find(|frozen| frozen.range.start == start);
        frozen.expect("completion of a piece that was not handed out").done = true;
        while self.pieces.front().is_some_and(|frozen| frozen.done) {
            self.written = self.pieces.pop_front().expect("just seen").range.end;
        }
        while self.parts.front().is_some_and(|part| part.range.end <= self.written) {
            self.parts.pop_front();
        }
    }

    /// Where the records end.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Reads those of the `len` bytes at `offset` that are in memory: returns how many of them, at the beginning, are
    /// on the device instead, and the other bytes. None while some of them are being filled.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Option<(usize, Vec<Filled>)> {
        assert!(offset + len <= self.end, "read beyond what was appended");
        let on_device = self.written.saturating_sub(offset).min(len);
        Some((on_device, self.parts_of(offset + on_device..offset + len)?))
    }

    /// The parts from `offset` on, where one begins.
    pub(crate) fn parts_from(&self, offset: usize) -> impl Iterator<Item = AppendedPart> + '_ {
        let first = self.parts.partition_point(|part| part.range.start < offset);
        let shared =
            |part: &TailPart| AppendedPart(TailPart { range: part.range.clone(), cell: part.cell.clone() });
        self.parts.range(first..).map(shared)
    }

    /// The bytes of `range`, all of which are in memory; none while some of them are being filled.
    fn parts_of(&self, range: Range<usize>) -> Option<Vec<Filled>> {
        let first = self.parts.partition_point(|part| part.range.end <= range.start);
        let overlapping = self.parts.range(first..).take_while(|part| part.range.start < range.end);
        let cut = |part: &TailPart| {
            let at = part.range.start;
            let within = range.start.max(at) - at..range.end.min(part.range.end) - at;
            part.cell.get().map(|bytes| bytes.slice(within))
        };
        overlapping.map(cut).collect()
    }
}

#[cfg(test)]
mod tests {
    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;
    use crate::space::Space;

    fn buffers(segment_bytes: u32) -> Arc<Buffers> {
        Arc::new(Buffers::new(Space {
            segments: 4,
            segment_bytes: segment_bytes as usize,
            block_bytes: 4096,
            block_bytes_max: 4096,
            superblock_segments: 1,
        }))
    }

    /// Reserves, fills, freezes and completes at random; memory and "device" together always read as the
    /// bytes that were appended, and what is being filled is read neither from one nor the other.
    #[test]
    fn reads_see_what_was_appended() {
        for_each_seed(20, |seed| {
            let mut rng = SeededRng::new(seed);
            let segment_bytes = 1 << 20;
            let end = if cfg!(miri) { 100_000 } else { segment_bytes - 40_000 };
            let buffers = buffers(segment_bytes as u32);
            let mut tail = Tail::new(segment_bytes, 4096);
            let (mut model, mut device) = (Vec::new(), vec![0; segment_bytes]);
            let (mut filling, mut handed_out) = (Vec::<Reserved>::new(), Vec::new());
            while model.len() < end {
                let mut bytes = vec![0; rng.below(30_000) as usize];
                rng.fill(&mut bytes);
                model.extend_from_slice(&bytes);
                let (now, later) = bytes.split_at(rng.below(bytes.len() as u64 + 1) as usize);
                let mut pieces = Pieces::new(&buffers, PIECE_BYTES_MAX * rng.below(2) as usize);
                tail.append(now, &mut pieces);
                tail.reserve(later.len(), &mut pieces, |reserved| filling.push(reserved));
                if rng.chance(if seed % 2 == 0 { 30 } else { 2 }) {
                    tail.pad_and_freeze(&mut pieces);
                    model.resize(model.len().next_multiple_of(4096), 0);
                }
                handed_out.append(&mut pieces.frozen);
                assert_eq!(tail.append_offset(), model.len());
                while !filling.is_empty() && rng.chance(60) {
                    let reserved = filling.swap_remove(rng.below(filling.len() as u64) as usize);
                    let bytes = &model[reserved.at..reserved.at + reserved.len()];
                    if let Some(at) = reserved.fill(|out| out.copy_from_slice(bytes)) {
                        let (start, bytes) = tail.filled(at);
                        let piece: &mut Piece =
                            handed_out.iter_mut().find(|piece: &&mut Piece| piece.start == start).unwrap();
                        assert!(piece.bytes.replace(bytes).is_none(), "handed out twice");
                    }
                }
                while let Some(index) = handed_out.iter().position(|piece| piece.bytes.is_some())
                    && rng.chance(50)
                {
                    let Piece { start, len, bytes } = handed_out.swap_remove(index);
                    assert!(start.is_multiple_of(4096) && len.is_multiple_of(4096));
                    let bytes = bytes.unwrap();
                    assert!(bytes.as_ptr().addr().is_multiple_of(4096), "direct I/O needs it aligned");
                    let block = &mut device[start..start + len];
                    assert!(*block == vec![0; len], "written twice");
                    block.copy_from_slice(&bytes);
                    tail.complete(start);
                }
                let offset = rng.below(model.len() as u64 + 1) as usize;
                let len = rng.below((model.len() - offset) as u64 + 1) as usize;
                let is_filling = |reserved: &Reserved| {
                    reserved.at < offset + len && reserved.at + reserved.len() > offset.max(tail.written())
                };
                let read = tail.read(offset, len);
                assert_eq!(read.is_none(), filling.iter().any(is_filling));
                let Some((on_device, parts)) = read else { continue };
                let mut out = device[offset..offset + on_device].to_vec();
                parts.iter().for_each(|part| out.extend_from_slice(part));
                assert!(out == model[offset..offset + len]);
            }
        });
    }

    #[test]
    fn pieces_are_longer_while_the_device_is_busy() {
        let (mut tail, buffers) = (Tail::new(4 << 20, 4096), buffers(4 << 20));
        let mut lengths = |outstanding_bytes: usize, bytes: usize| {
            let mut pieces = Pieces::new(&buffers, outstanding_bytes);
            tail.append(&vec![1; bytes], &mut pieces);
            pieces.frozen.iter().map(|piece| piece.len >> 10).collect::<Vec<usize>>()
        };
        assert_eq!(lengths(0, 600 << 10), [256, 256]);
        assert_eq!(lengths(PIECE_BYTES_MAX, 300 << 10), [0; 0], "more may come");
        assert_eq!(lengths(PIECE_BYTES_MAX - 1, 124 << 10), [512], "up to the end of its memory");
        assert_eq!(lengths(PIECE_BYTES_MAX, 2048 << 10), [1024, 1024]);
    }

    #[test]
    fn memory_is_used_again_in_whatever_order_its_writes_end() {
        for order in [[0, 1], [1, 0]] {
            let (mut tail, buffers) = (Tail::new(512 << 10, 4096), buffers(512 << 10));
            let mut pieces = Pieces::new(&buffers, 0);
            tail.append(&vec![1; 512 << 10], &mut pieces);
            assert_eq!((pieces.frozen.len(), buffers.idle()), (2, 3), "one of four is in use");
            let mut frozen = pieces.frozen.into_iter().map(Some).collect::<Vec<_>>();
            for piece in order {
                assert_eq!(buffers.idle(), 3);
                tail.complete(frozen[piece].take().unwrap().start);
            }
            assert_eq!(buffers.idle(), 4);
        }
    }
}
