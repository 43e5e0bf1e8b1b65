//! The end of an open segment: bytes that were appended and are not all on the device yet.
//!
//! Invariants:
//! 1. Bytes below `written` are on the device (not necessarily durable); all others up to `end` are in
//!    `parts`, in order and, what was skipped aside, without gaps.
//! 2. Pieces start and end on device blocks and are handed out to be written exactly once: what lies
//!    below `frozen` was handed out, or skipped, and is never touched again.

use std::{collections::VecDeque, ops::Range};

use crate::staged::Staged;

/// Bytes that are collected before they are written without being asked for.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// A frozen part of the segment, on its way to the device.
pub(crate) struct Piece {
    /// Offset in the segment.
    pub(crate) start: usize,
    pub(crate) len: usize,
    parts: Vec<Staged>,
}

impl Piece {
    /// Copies its bytes to the beginning of `out`.
    pub(crate) fn gather(&self, out: &mut [u8]) {
        let mut rest = &mut out[..self.len];
        for part in &self.parts {
            rest = part.copy_to(rest);
        }
        assert!(rest.is_empty(), "a piece is as long as its parts");
    }
}

/// A piece that was handed out.
struct Frozen {
    range: Range<usize>,
    done: bool,
}

/// See the module documentation.
pub(crate) struct Tail {
    segment_bytes: usize,
    block_bytes: usize,
    written: usize,
    frozen: usize,
    end: usize,
    /// With their offsets in the segment.
    parts: VecDeque<(usize, Staged)>,
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
            parts: VecDeque::new(),
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

    /// Appends `bytes`; pieces that became full are added to `full`.
    pub(crate) fn append(&mut self, bytes: Staged, full: &mut Vec<Piece>) {
        let len = bytes.len();
        assert!(self.end + len <= self.segment_bytes, "append beyond the segment");
        if len == 0 {
            return;
        }
        let apart = match self.parts.back_mut() {
            Some((_, last)) => last.join(bytes),
            None => Some(bytes),
        };
        self.parts.extend(apart.map(|bytes| (self.end, bytes)));
        self.end += len;
        while self.end - self.frozen >= PIECE_BYTES {
            full.push(self.freeze(self.frozen + PIECE_BYTES));
        }
    }

    /// Appends zeros up to `offset`.
    pub(crate) fn append_zeros(&mut self, offset: usize, full: &mut Vec<Piece>) {
        self.append(Staged::Zeros(offset - self.end), full);
    }

    /// Pads to the next block and freezes all that was appended.
    pub(crate) fn pad_and_freeze(&mut self, full: &mut Vec<Piece>) {
        self.append_zeros(self.end.next_multiple_of(self.block_bytes), full);
        if self.end > self.frozen {
            full.push(self.freeze(self.end));
        }
    }

    /// Goes on at `offset`, a block's boundary; all that was appended is frozen. What lies in between
    /// is not written, and counts as if it had been.
    pub(crate) fn skip_to(&mut self, offset: usize) {
        assert!(self.end == self.frozen && offset >= self.end, "skipped over what is to be written");
        assert!(offset.is_multiple_of(self.block_bytes), "invariant 2: a piece of whole blocks");
        if offset > self.end {
            self.pieces.push_back(Frozen { range: self.end..offset, done: true });
        }
        (self.frozen, self.end) = (offset, offset);
    }

    fn freeze(&mut self, end: usize) -> Piece {
        let range = self.frozen..end;
        assert!(
            range.start.is_multiple_of(self.block_bytes) && end.is_multiple_of(self.block_bytes),
            "invariant 2: a piece of whole blocks"
        );
        let piece = Piece { start: range.start, len: range.len(), parts: self.parts_of(range.clone()) };
        self.frozen = end;
        self.pieces.push_back(Frozen { range, done: false });
        piece
    }

    /// The piece that starts at `start` is on the device.
    pub(crate) fn complete(&mut self, start: usize) {
        let frozen = self.pieces.iter_mut().find(|frozen| frozen.range.start == start);
        frozen.expect("completion of a piece that was not handed out").done = true;
        while self.pieces.front().is_some_and(|frozen| frozen.done) {
            self.written = self.pieces.pop_front().expect("just seen").range.end;
        }
        while self.parts.front().is_some_and(|(at, part)| at + part.len() <= self.written) {
            self.parts.pop_front();
        }
    }

    /// What of the `len` bytes at `offset` is in memory: how many of them, at the beginning, are on the
    /// device instead, and the others.
    pub(crate) fn read(&self, offset: usize, len: usize) -> (usize, Vec<Staged>) {
        assert!(offset + len <= self.end, "read beyond what was appended");
        let on_device = self.written.saturating_sub(offset).min(len);
        (on_device, self.parts_of(offset + on_device..offset + len))
    }

    /// The bytes of `range`, all of which are in memory.
    fn parts_of(&self, range: Range<usize>) -> Vec<Staged> {
        let first = self.parts.partition_point(|(at, part)| *at + part.len() <= range.start);
        let overlapping = self.parts.range(first..).take_while(|(at, _)| *at < range.end);
        overlapping
            .map(|(at, part)| part.slice(range.start.max(*at) - at..range.end.min(at + part.len()) - at))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use lacuna_device::sim::{SeededRng, for_each_seed};

    use super::*;

    /// Appends, freezes and completes at random; memory and "device" together always read as the
    /// bytes that were appended.
    #[test]
    fn reads_see_what_was_appended() {
        for_each_seed(20, |seed| {
            let mut rng = SeededRng::new(seed);
            let segment_bytes = 1 << 20;
            let mut tail = Tail::new(segment_bytes, 4096);
            let (mut model, mut device) = (Vec::new(), vec![0; segment_bytes]);
            let mut handed_out = Vec::new();
            while model.len() + 40_000 < segment_bytes {
                let mut bytes = vec![0; rng.below(30_000) as usize];
                rng.fill(&mut bytes);
                model.extend_from_slice(&bytes);
                // In pieces of the same memory, as payloads are.
                let cut = rng.below(bytes.len() as u64 + 1) as usize;
                let staged = Staged::from(bytes);
                tail.append(staged.slice(0..cut), &mut handed_out);
                tail.append(staged.slice(cut..staged.len()), &mut handed_out);
                if rng.chance(30) {
                    tail.pad_and_freeze(&mut handed_out);
                    model.resize(model.len().next_multiple_of(4096), 0);
                }
                assert_eq!(tail.append_offset(), model.len());
                while !handed_out.is_empty() && rng.chance(50) {
                    let piece = handed_out.swap_remove(rng.below(handed_out.len() as u64) as usize);
                    assert!(piece.start.is_multiple_of(4096) && piece.len.is_multiple_of(4096));
                    let block = &mut device[piece.start..piece.start + piece.len];
                    assert!(block.iter().all(|byte| *byte == 0), "written twice");
                    piece.gather(block);
                    tail.complete(piece.start);
                }
                let offset = rng.below(model.len() as u64 + 1) as usize;
                let len = rng.below((model.len() - offset) as u64 + 1) as usize;
                let mut out = vec![0; len];
                let (on_device, parts) = tail.read(offset, len);
                out[..on_device].copy_from_slice(&device[offset..offset + on_device]);
                let mut rest = &mut out[on_device..];
                for part in parts {
                    rest = part.copy_to(rest);
                }
                assert!(rest.is_empty() && out == model[offset..offset + len]);
            }
        });
    }
    #[test]
    fn what_is_skipped_counts_as_written_once_all_before_it_is() {
        for gap in [0, 4096, 12288] {
            let mut tail = Tail::new(1 << 20, 4096);
            let mut full = Vec::new();
            tail.append(vec![1; 5000].into(), &mut full);
            tail.pad_and_freeze(&mut full);
            tail.skip_to(8192 + gap);
            tail.append(vec![2; 4096].into(), &mut full);
            tail.pad_and_freeze(&mut full);
            let starts: Vec<_> = full.iter().map(|piece| (piece.start, piece.len)).collect();
            assert_eq!(starts, [(0, 8192), (8192 + gap, 4096)]);
            tail.complete(8192 + gap);
            assert_eq!((tail.written(), tail.is_written()), (0, false));
            assert_eq!(tail.read(4096, 904).0, 0, "still in memory");
            tail.complete(0);
            assert_eq!((tail.written(), tail.is_written()), (8192 + gap + 4096, true));
        }
    }
}
