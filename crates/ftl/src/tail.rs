//! The end of an open segment: bytes that were appended and are not all on the device yet.
//!
//! Invariants:
//! 1. Bytes below `written` are on the device (not necessarily durable); all others up to the append
//!    offset are in memory, in `pieces` and then in `buf`.
//! 2. Pieces start and end on device blocks and are handed out to be written exactly once: a block
//!    that was handed out is never touched again.

use std::{collections::VecDeque, sync::Arc};

use lacuna_device::AlignedBuf;

/// Bytes that are collected before they are written without being asked for.
const PIECE_BYTES: usize = 256 << 10;

/// A frozen part of the segment, on its way to the device.
pub(crate) struct Piece {
    /// Offset in the segment.
    pub(crate) start: usize,
    pub(crate) data: Arc<AlignedBuf>,
}

struct Frozen {
    piece: Piece,
    done: bool,
}

/// See the module documentation.
pub(crate) struct Tail {
    segment_bytes: usize,
    block_bytes: usize,
    written: usize,
    pieces: VecDeque<Frozen>,
    buf: AlignedBuf,
    /// Offset of `buf` in the segment; a multiple of the block.
    base: usize,
    fill: usize,
}

impl Tail {
    /// The tail of an empty segment.
    pub(crate) fn new(segment_bytes: usize, block_bytes: usize) -> Tail {
        Tail {
            segment_bytes,
            block_bytes,
            written: 0,
            pieces: VecDeque::new(),
            buf: AlignedBuf::zeroed(PIECE_BYTES.min(segment_bytes)),
            base: 0,
            fill: 0,
        }
    }

    /// Where the next byte goes.
    pub(crate) fn append_offset(&self) -> usize {
        self.base + self.fill
    }

    /// Bytes below this are on the device.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Whether all that was appended is on the device.
    pub(crate) fn is_written(&self) -> bool {
        self.written == self.append_offset()
    }

    /// Appends `bytes`; pieces that became full are added to `full`.
    pub(crate) fn append(&mut self, mut bytes: &[u8], full: &mut Vec<Piece>) {
        assert!(self.append_offset() + bytes.len() <= self.segment_bytes, "append beyond the segment");
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.buf.len() - self.fill));
            self.buf[self.fill..self.fill + now.len()].copy_from_slice(now);
            self.fill += now.len();
            bytes = later;
            if self.fill == self.buf.len() {
                full.extend(self.freeze());
            }
        }
    }

    /// Appends zeros up to `offset`.
    pub(crate) fn append_zeros(&mut self, offset: usize, full: &mut Vec<Piece>) {
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.append_offset() < offset {
            self.append(&ZEROS[..(offset - self.append_offset()).min(ZEROS.len())], full);
        }
    }

    /// Pads to the next block and freezes all that was appended.
    pub(crate) fn pad_and_freeze(&mut self, full: &mut Vec<Piece>) {
        self.append_zeros(self.append_offset().next_multiple_of(self.block_bytes), full);
        full.extend(self.freeze());
    }

    fn freeze(&mut self) -> Option<Piece> {
        if self.fill == 0 {
            return None;
        }
        let start = self.base;
        let rest = self.segment_bytes - start - self.fill;
        let data = if self.fill >= self.buf.len() / 4 {
            let fresh = AlignedBuf::zeroed(PIECE_BYTES.min(rest));
            self.take_filled(fresh)
        } else {
            let mut copy = AlignedBuf::zeroed(self.fill);
            copy.copy_from_slice(&self.buf[..self.fill]);
            copy
        };
        self.base += self.fill;
        self.fill = 0;
        if self.buf.len() > rest {
            self.buf = AlignedBuf::zeroed(rest);
        }
        let data = Arc::new(data);
        self.pieces.push_back(Frozen { piece: Piece { start, data: data.clone() }, done: false });
        Some(Piece { start, data })
    }

    /// Puts `fresh` in the buffer's place and returns the filled part of the old one.
    fn take_filled(&mut self, fresh: AlignedBuf) -> AlignedBuf {
        let old = std::mem::replace(&mut self.buf, fresh);
        if old.len() == self.fill {
            return old;
        }
        let mut exact = AlignedBuf::zeroed(self.fill);
        exact.copy_from_slice(&old[..self.fill]);
        exact
    }

    /// The piece that starts at `start` is on the device.
    pub(crate) fn complete(&mut self, start: usize) {
        let frozen = self.pieces.iter_mut().find(|frozen| frozen.piece.start == start);
        frozen.expect("completion of a piece that was not handed out").done = true;
        while self.pieces.front().is_some_and(|frozen| frozen.done) {
            let frozen = self.pieces.pop_front().expect("just seen");
            self.written = frozen.piece.start + frozen.piece.data.len();
        }
    }

    /// Copies what is in memory of the bytes at `offset` into the end of `out`; returns how many
    /// bytes at its start are on the device instead.
    pub(crate) fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        assert!(offset + out.len() <= self.append_offset(), "read beyond what was appended");
        let on_device = self.written.saturating_sub(offset).min(out.len());
        let frozen = self.pieces.iter().map(|frozen| (frozen.piece.start, &frozen.piece.data[..]));
        for (start, data) in frozen.chain([(self.base, &self.buf[..self.fill])]) {
            let from = start.max(offset + on_device);
            let to = (start + data.len()).min(offset + out.len());
            if from < to {
                out[from - offset..to - offset].copy_from_slice(&data[from - start..to - start]);
            }
        }
        on_device
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
                tail.append(&bytes, &mut handed_out);
                model.extend_from_slice(&bytes);
                if rng.chance(30) {
                    tail.pad_and_freeze(&mut handed_out);
                    model.resize(model.len().next_multiple_of(4096), 0);
                }
                assert_eq!(tail.append_offset(), model.len());
                while !handed_out.is_empty() && rng.chance(50) {
                    let piece = handed_out.swap_remove(rng.below(handed_out.len() as u64) as usize);
                    assert!(piece.start.is_multiple_of(4096) && piece.data.len().is_multiple_of(4096));
                    assert!(
                        device[piece.start..piece.start + piece.data.len()].iter().all(|byte| *byte == 0)
                    );
                    device[piece.start..piece.start + piece.data.len()].copy_from_slice(&piece.data);
                    tail.complete(piece.start);
                }
                let offset = rng.below(model.len() as u64 + 1) as usize;
                let len = rng.below((model.len() - offset) as u64 + 1) as usize;
                let mut out = vec![0; len];
                let on_device = tail.copy_to(offset, &mut out);
                out[..on_device].copy_from_slice(&device[offset..offset + on_device]);
                assert_eq!(out, model[offset..offset + len]);
            }
        });
    }
}
