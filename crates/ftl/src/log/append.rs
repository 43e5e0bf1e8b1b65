//! Records into open segments: batches and relocations, summaries and headers.

use zerocopy::IntoBytes;

use crate::{
    addr::{GRAIN, PhysAddr, SegNo},
    format::{EntryKind, Life, Position, RECORDS_START, RecordHeader, RecordKind, SegmentHeader, pack},
    log::{
        Log,
        batch::{Item, payload_order, place},
        fill::{Appended, RecordSpace},
        points::AppendPoint,
        queue::DeviceWrite,
        reserve::Claim,
        segments::State,
        state::Restoring,
        tail::{Piece, Pieces, Tail},
    },
    sync::atomic::Ordering,
};

impl Log {
    /// Appends `items` as records of `kind`. Returns where the payload of each lies, and the space that the caller
    /// has to fill without the lock (`fill`), whatever happens. A batch is the last one
    /// accepted; relocation records are numbered here, one by one (invariant 2). Opens segments as needed;
    /// the caller has made sure that there are enough.
    pub(crate) fn append(&mut self, point: AppendPoint, kind: RecordKind, items: &[Item<'_>]) -> Appended {
        let mut appended = Appended::new(self.salt, items.len());
        let (mut rest, mut part) = (items, 0);
        while !rest.is_empty() {
            let Some(found) = self.space_left(point).and_then(|left| place(rest, left)) else {
                self.reopen(point);
                continue;
            };
            let place = self.streams.position(point, &self.segments);
            let Position { segment, offset, .. } = place.expect("a part was placed in it");
            let (now, later) = rest.split_at(found.items);
            rest = later;
            let is_move = kind == RecordKind::Relocation;
            if is_move {
                self.last.moves = self.last.moves.next();
            }
            // The packed body does not contain the payload's place.
            let body = pack(now.iter().map(|item| item.entry(PhysAddr { segment, grain: 0 })));
            let header = RecordHeader {
                kind,
                last_part: rest.is_empty() || is_move,
                life: self.life(segment),
                seq: if is_move { self.last.moves } else { self.last.batches },
                flushed_seq: if is_move { self.durable.moves } else { self.durable.batches },
                part: if is_move { 0 } else { part },
                offset,
                body_bytes: body.len() as u32,
                total_bytes: found.end as u32 - offset,
            };
            self.append_record(point, (header, body), now, found.payload, &mut appended);
            part += 1;
        }
        appended.has_pending = self.queue.has_ready();
        appended
    }

    fn append_record(
        &mut self,
        point: AppendPoint,
        (header, body): (RecordHeader, Vec<u8>),
        items: &[Item<'_>],
        payload: usize,
        appended: &mut Appended,
    ) {
        let Life { segment, .. } = header.life;
        let first = appended.placed.len();
        appended.placed.resize(first + items.len(), PhysAddr { segment, grain: 0 });
        let placed = &mut appended.placed[first..];
        let mut offset = payload;
        for index in payload_order(items) {
            if items[index].kind != EntryKind::Trim {
                placed[index].grain = (offset / GRAIN) as u32;
                offset += items[index].payload.len();
            }
        }
        let end = (header.offset + header.total_bytes) as usize;
        assert_eq!(offset, end, "payload does not end where it was placed");
        self.streams.summary_mut(point).note(&header, &body);
        let mut parts = Vec::with_capacity(1);
        let len = header.total_bytes as usize;
        self.append_bytes(segment, point, |tail, pieces| tail.reserve(len, pieces, |part| parts.push(part)));
        appended.records.push(RecordSpace {
            header,
            body,
            items: first..first + items.len(),
            payload,
            parts,
        });
        self.checkpoints.note_appended(header.total_bytes.into());
    }

    /// Seals the segment that is open at `point`, if any, with its summary at the end, and opens a fresh one.
    fn reopen(&mut self, point: AppendPoint) {
        if let Some((segment, summary)) = self.streams.close(point) {
            let summary = summary.seal(self.salt, self.life(segment));
            let start = self.space.segment_bytes - summary.len();
            self.append_bytes(segment, point, |tail, pieces| {
                // Less than a chunk is left before it, and seldom half of one.
                tail.append_zeros(start, pieces);
                tail.append(&summary, pieces);
                tail.pad_and_freeze(pieces);
            });
            self.summary_cache.keep(self.life(segment), &summary);
            self.segments.seal(segment);
        }
        let claim = match (point.is_fresh(), self.restoring) {
            (true, _) => Claim::Fresh,
            (false, Restoring::No) => Claim::Collection,
            (false, step) => {
                assert_eq!(step, Restoring::MayOpen, "a step opens one segment");
                self.begin_epoch();
                Claim::Regain
            }
        };
        let life = self.take_free(State::Open, claim).expect("admission left too few free segments");
        let Life { segment, generation, epoch } = life;
        self.written[segment.0 as usize].store(0, Ordering::Release);
        self.segments.set_class(segment, point.class());
        let header = SegmentHeader {
            kind: point.kind(),
            segment,
            generation,
            epoch,
            class: point.class(),
            opened_seq: self.last.batches,
            durable: self.durable,
        };
        let mut tail = Tail::new(self.space.segment_bytes, self.space.block_bytes);
        let mut pieces = Pieces::new(&self.buffers, self.queue.outstanding_bytes());
        tail.append(header.to_raw(self.salt).as_bytes(), &mut pieces);
        tail.append_zeros(RECORDS_START, &mut pieces);
        assert!(pieces.frozen.is_empty(), "a segment header fills no piece");
        self.streams.open(point, segment, tail);
        if point.is_fresh() {
            self.list_appended(segment, 0);
        }
    }

    /// Segments opened from here on become valid once the superblock names the new epoch (`gc::restore`).
    fn begin_epoch(&mut self) {
        assert!(self.streams.is_nothing_open(), "a segment of the old epoch is open");
        self.restoring = Restoring::HasOpened;
        self.segments.begin_epoch();
        self.checkpoints.set_position(None);
    }

    /// Hands all that was appended at `point` out to be written.
    pub(super) fn freeze(&mut self, point: AppendPoint) {
        if let Some(segment) = self.streams.open_at(point) {
            self.append_bytes(segment, point, |tail, pieces| tail.pad_and_freeze(pieces));
        }
    }

    /// Queues the pieces that are cut off the tail of a segment while `append` changes it.
    fn append_bytes(
        &mut self,
        segment: SegNo,
        point: AppendPoint,
        append: impl FnOnce(&mut Tail, &mut Pieces<'_>),
    ) {
        let mut pieces = Pieces::new(&self.buffers, self.queue.outstanding_bytes());
        let tail = self.streams.tail_mut(segment);
        let offset = tail.end();
        append(tail, &mut pieces);
        let frozen: Vec<Piece> = pieces.frozen;
        if point.is_fresh() {
            self.list_appended(segment, offset);
        }
        self.queue.push(segment, point, frozen);
    }

    /// The last part of a frozen piece is filled, the one at `at`: the piece can be written.
    pub(super) fn filled(&mut self, segment: SegNo, at: usize) {
        let (start, bytes) = self.streams.tail_mut(segment).filled(at);
        self.queue.fill(segment, start, bytes);
    }

    /// `write`, which has ended, is on the device.
    pub(super) fn complete(&mut self, write: &DeviceWrite) {
        self.queue.complete(write);
        self.counters.note_written(write.point, write.piece.len as u64);
        let tail = self.streams.tail_mut(write.segment);
        tail.complete(write.piece.start);
        self.written[write.segment.0 as usize].store(tail.written() as u32, Ordering::Release);
        if tail.is_written() && self.segment(write.segment).state != State::Open {
            self.streams.forget(write.segment);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use super::*;
    use crate::{Lba, Op, Stream, store::test_store};

    /// Writes until a segment is sealed; into how many pieces it was cut.
    fn pieces_of_a_segment(page_bytes: usize) -> u64 {
        let store = test_store::store(64 << 20, Some(1 << 20));
        let data = vec![7; page_bytes];
        let before = store.volume.device().stats().writes;
        for page in 0.. {
            if store.journal.lock().in_state(State::Sealed).next().is_some() {
                return store.volume.device().stats().writes - before;
            }
            store
                .writer
                .write_batch(&[Op::Write { lba: Lba(page * 32), data: &data }], Stream::Data)
                .unwrap();
        }
        unreachable!("a segment is full some time")
    }

    #[test]
    fn a_summary_is_written_with_what_lies_before_it() {
        assert_eq!(pieces_of_a_segment(16 << 10), 4, "pieces of 256 KiB");
        assert_eq!(pieces_of_a_segment(15 << 10), 4, "a gap of 12 KiB is filled");
    }
}
