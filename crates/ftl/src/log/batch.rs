//! From a caller's batch to the bytes that are written: chunks, checksums, zero tails, and the place of each in a
//! segment. Pure: values in, values out.

use std::{borrow::Cow, collections::BTreeMap, mem, ops::Range};

use lacuna_codec::Algorithm;
use lacuna_crc::crc32c;

use crate::{
    Error, Lba, Op, Result, SECTOR, Seq,
    addr::{BLOCK, CHUNK_BYTES, GRAIN, PhysAddr, SegNo},
    encoding::{EncodedChunk, chunks, stored_bytes},
    format::{
        Entry, EntryKind, PACKED_ENTRY_BYTES_MAX, Packing, RECORD_HEADER_BYTES, RECORDS_START, SUMMARY_BYTES,
        SUMMARY_RECORD_BYTES_MAX, is_blocks,
    },
    media::cipher::Cipher,
    mutant::{Rule, is_broken},
    ranges::merged,
    space::{MAP_EXTENT_BYTES, Space},
};

/// One change on its way into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    pub(crate) kind: EntryKind,
    pub(crate) lba: Lba,
    pub(crate) sectors: u64,
    /// Payload; whole grains. The rest of `sectors` is zeros.
    pub(crate) payload: &'a [u8],
    pub(crate) crc: u32,
    /// The batch that wrote a relocated extent; 0 otherwise.
    pub(crate) birth: Seq,
    /// How the payload is encoded; then it is the data of all sectors.
    pub(crate) encoding: Algorithm,
}

impl<'a> Item<'a> {
    fn end(&self) -> u64 {
        self.lba.0 + self.sectors
    }

    /// The sectors that the item changes.
    pub(crate) fn range(&self) -> Range<u64> {
        self.lba.0..self.end()
    }

    /// The entry for it in a record that has its payload at `phys`.
    pub(crate) fn entry(&self, phys: PhysAddr) -> Entry {
        let Item { kind, lba, sectors, birth, crc, encoding, .. } = *self;
        let stored = u16::try_from(self.payload.len()).expect("a chunk is at most 16 KiB");
        let sectors = if kind == EntryKind::Trim && is_broken(Rule::TrimsLogged) { 1 } else { sectors };
        Entry { kind, lba, sectors, birth, phys, stored, crc, encoding }
    }

    /// Two items that do the same, the first with this many bytes of the payload, whole sectors.
    fn cut_at(&self, bytes: usize) -> (Self, Self) {
        let (head, tail) = self.payload.split_at(bytes);
        let sectors = (bytes / SECTOR) as u64;
        let (behind, rest) = (Lba(self.lba.0 + sectors), self.sectors - sectors);
        (
            Item { sectors, payload: head, crc: crc32c(head), ..*self },
            Item { lba: behind, sectors: rest, payload: tail, crc: crc32c(tail), ..*self },
        )
    }

    /// Whether the payload can be read without a neighbour's bytes when it is aligned.
    fn is_blocks(&self) -> bool {
        is_blocks(self.payload.len())
    }

    /// Bytes that its entry takes in a record behind those that `packing` has seen.
    fn entry_bytes(&self, packing: &mut Packing) -> usize {
        packing.len(&self.entry(PhysAddr { segment: SegNo(0), grain: 0 }))
    }
}

/// A batch that is ready to be numbered.
pub(crate) struct Batch<'a> {
    pub(crate) items: Vec<Item<'a>>,
    /// Bytes that the caller handed in.
    pub(crate) host_bytes: u64,
    /// Payload bytes of all items.
    pub(crate) payload_bytes: u64,
    /// Items with payload.
    pub(crate) writes: u64,
    /// Whether the payload of any is encoded.
    pub(crate) is_encoded: bool,
}

impl<'a> Batch<'a> {
    /// Cuts `ops` into chunks, drops their trailing zeros if `elide`, and takes their checksums.
    pub(crate) fn prepare(ops: &[Op<'a>], elide: bool) -> Result<Batch<'a>> {
        Batch::cut(ops, elide, |_, stored| stored)
    }

    /// As [`Batch::prepare`], with the ciphertext of the chunks, which takes as many bytes of `space` as they have.
    pub(crate) fn encrypt(
        ops: &[Op<'_>],
        elide: bool,
        cipher: &Cipher,
        space: &'a mut [u8],
    ) -> Result<Batch<'a>> {
        let mut rest = space;
        Batch::cut(ops, elide, |lba, stored| {
            let (out, behind) = mem::take(&mut rest).split_at_mut(stored.len());
            rest = behind;
            out.copy_from_slice(stored);
            cipher.encrypt(lba, out);
            out
        })
    }

    /// Cuts `ops` into chunks, and asks `payload` for what is stored of each of them.
    fn cut<'o>(
        ops: &[Op<'o>],
        elide: bool,
        mut payload: impl FnMut(Lba, &'o [u8]) -> &'a [u8],
    ) -> Result<Batch<'a>> {
        let mut batch = Batch {
            items: Vec::with_capacity(ops.len()),
            host_bytes: 0,
            payload_bytes: 0,
            writes: 0,
            is_encoded: false,
        };
        for (op, encodes) in ops.iter().zip(encodes(ops, elide)) {
            match *op {
                Op::Write { lba, data } => {
                    batch.note_host_bytes(lba, data)?;
                    for (lba, chunk) in chunks(lba, data) {
                        batch.push_plain(lba, chunk, elide, &mut payload);
                    }
                }
                Op::Encoded(encoded) => {
                    batch.note_host_bytes(encoded.lba(), encoded.data())?;
                    for (lba, chunk, encoded) in encoded.chunks() {
                        match encoded.filter(|_| encodes) {
                            Some(encoded) => batch.push_encoded(lba, chunk, encoded, &mut payload),
                            None => batch.push_plain(lba, chunk, elide, &mut payload),
                        }
                    }
                }
                Op::Trim { lba, sectors } => {
                    if lba.0.checked_add(sectors).is_none() {
                        return Err(Error::BadRange { lba, len: sectors.saturating_mul(SECTOR as u64) });
                    }
                    batch.push_trim(lba, sectors);
                }
            }
        }
        Ok(batch)
    }

    fn note_host_bytes(&mut self, lba: Lba, data: &[u8]) -> Result<()> {
        let sectors = (data.len() / SECTOR) as u64;
        if !data.len().is_multiple_of(SECTOR) || lba.0.checked_add(sectors).is_none() {
            return Err(Error::BadRange { lba, len: data.len() as u64 });
        }
        self.host_bytes += data.len() as u64;
        Ok(())
    }

    fn push_plain<'o>(
        &mut self,
        lba: Lba,
        chunk: &'o [u8],
        elide: bool,
        payload: &mut impl FnMut(Lba, &'o [u8]) -> &'a [u8],
    ) {
        let stored = if elide { stored_bytes(chunk) } else { chunk.len() };
        let sectors = (chunk.len() / SECTOR) as u64;
        match stored {
            0 => self.push_trim(lba, sectors),
            _ => self.push_payload(lba, sectors, payload(lba, &chunk[..stored]), Algorithm::None),
        }
    }

    fn push_encoded<'o>(
        &mut self,
        lba: Lba,
        chunk: &[u8],
        encoded: EncodedChunk<'o>,
        payload: &mut impl FnMut(Lba, &'o [u8]) -> &'a [u8],
    ) {
        let EncodedChunk { encoding, sectors, payload: stored } = encoded;
        self.push_payload(lba, sectors, payload(lba, stored), encoding);
        self.push_trim(Lba(lba.0 + sectors), (chunk.len() / SECTOR) as u64 - sectors);
        self.is_encoded = true;
    }

    fn push_payload(&mut self, lba: Lba, sectors: u64, payload: &'a [u8], encoding: Algorithm) {
        let (crc, kind) = (crc32c(payload), EntryKind::Write);
        self.items.push(Item { kind, lba, sectors, payload, crc, birth: Seq(0), encoding });
        self.payload_bytes += payload.len() as u64;
        self.writes += 1;
    }

    fn push_trim(&mut self, lba: Lba, sectors: u64) {
        if sectors == 0 {
            return;
        }
        if let Some(last) = self.items.last_mut()
            && last.kind == EntryKind::Trim
            && last.end() == lba.0
        {
            last.sectors += sectors;
            return;
        }
        let (kind, encoding) = (EntryKind::Trim, Algorithm::None);
        self.items.push(Item { kind, lba, sectors, payload: &[], crc: 0, birth: Seq(0), encoding });
    }

    /// The most that the batch takes of the space that a full store keeps for batches: its bytes in the log, and what
    /// the extents that it cuts, one at either end of each item, add to two checkpoints (`reserve`).
    pub(crate) fn bytes(&self) -> u64 {
        self.log_bytes() + self.items.len() as u64 * 2 * 2 * MAP_EXTENT_BYTES as u64
    }

    /// Bytes that the batch takes in the log at most, summaries included and alignment aside.
    pub(crate) fn log_bytes(&self) -> u64 {
        let record = (RECORD_HEADER_BYTES + SUMMARY_RECORD_BYTES_MAX) as u64;
        let entry = 2 * PACKED_ENTRY_BYTES_MAX as u64;
        record + self.items.len() as u64 * entry + self.payload_bytes
    }

    /// The sectors that the batch changes, sorted and without overlap.
    pub(crate) fn touched(&self) -> Vec<Range<u64>> {
        merged(self.items.iter().map(Item::range).collect())
    }
}

/// Which of `ops` are stored encoded: those that were encoded and change no sector that another one changes too. The
/// batch is the birth of both, and a relocation of the chunk that was written first, which names sectors and birth, would
/// bring that back.
fn encodes(ops: &[Op<'_>], elide: bool) -> Vec<bool> {
    let mut encodes: Vec<bool> = ops.iter().map(|op| elide && matches!(op, Op::Encoded(_))).collect();
    if !encodes.contains(&true) || is_broken(Rule::EncodedOnce) {
        return encodes;
    }
    let mut ranges: Vec<_> = ops.iter().map(Op::range).enumerate().collect();
    ranges.retain(|(_, range)| !range.is_empty());
    ranges.sort_unstable_by_key(|(_, range)| range.start);
    // The op that reaches farthest so far. Others that reach as far as the next one overlap it.
    let mut farthest = (0, Lba(0));
    for (index, range) in ranges {
        if range.start < farthest.1 {
            (encodes[index], encodes[farthest.0]) = (false, false);
        }
        if range.end > farthest.1 {
            farthest = (index, range.end);
        }
    }
    encodes
}

/// Bytes that `ops` leave stored in the sectors that they change.
pub(crate) fn stored_after(ops: &[Op<'_>], elide: bool) -> u64 {
    let mut stored = 0;
    let mut later = BTreeMap::<u64, u64>::new(); // the sectors of the ops behind: starts and ends
    for (op, encodes) in ops.iter().zip(encodes(ops, elide)).rev() {
        let (lba, data) = match *op {
            Op::Encoded(encoded) if encodes => {
                let payload = |(_, chunk, encoded): (Lba, &[u8], Option<EncodedChunk<'_>>)| {
                    encoded.map_or(stored_bytes(chunk), |encoded| encoded.payload.len()) as u64
                };
                stored += encoded.chunks().map(payload).sum::<u64>();
                continue;
            }
            Op::Write { lba, data } => (lba, data),
            Op::Encoded(encoded) => (encoded.lba(), encoded.data()),
            Op::Trim { lba, .. } => (lba, &[][..]),
        };
        let mut range = op.range().start.0..op.range().end.0;
        stored += stored_in(lba, data, range.clone(), elide);
        while let Some((&start, &end)) = later.range(..range.end).next_back()
            && end > range.start
        {
            stored -= stored_in(lba, data, start..end, elide);
            later.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        later.insert(range.start, range.end);
    }
    stored
}

/// Bytes that a write of `data` at `lba` stores for the sectors in `part`.
fn stored_in(lba: Lba, data: &[u8], part: Range<u64>, elide: bool) -> u64 {
    let of_chunk = |(lba, chunk): (Lba, &[u8])| {
        let bytes = if elide { stored_bytes(chunk) } else { chunk.len() } as u64;
        let before = |sector: u64| bytes.min(sector.saturating_sub(lba.0).saturating_mul(SECTOR as u64));
        before(part.end) - before(part.start)
    };
    chunks(lba, data).map(of_chunk).sum()
}

/// Least payload of a part of a chunk.
const PART_BYTES_MIN: usize = 1024;
/// From this many aligned bytes in one record on, alignment to [`BLOCK`] costs little (at most 1/16).
const BLOCK_ALIGNED_FROM: usize = 16 * BLOCK;

/// Where the first items of a list go in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// How many items the part takes.
    pub(crate) items: usize,
    /// Offset of the first payload in the segment; the others follow without gaps, in
    /// [`payload_order`].
    pub(crate) payload: usize,
    /// End of the part in the segment.
    pub(crate) end: usize,
}

/// Space left in a segment for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceLeft {
    space: Space,
    /// Where the next record starts.
    at: usize,
    /// Bytes that the records before it take in the summary.
    summary_bytes: usize,
}

impl SpaceLeft {
    pub(crate) fn new(space: Space, at: usize, summary_bytes: usize) -> SpaceLeft {
        SpaceLeft { space, at, summary_bytes }
    }

    /// Of a segment without a record.
    fn of_empty(space: Space) -> SpaceLeft {
        SpaceLeft::new(space, RECORDS_START, 0)
    }

    /// Where records must have ended when the next ones take `more_bytes` in the summary. A block's
    /// boundary, so a flush may pad up to it.
    fn end(&self, more_bytes: usize) -> usize {
        let summary = SUMMARY_BYTES + self.summary_bytes + more_bytes;
        self.space.segment_bytes.saturating_sub(summary) / self.space.block_bytes * self.space.block_bytes
    }

    /// Bytes for records, as if they took nothing in the summary.
    pub(crate) fn bytes(&self) -> usize {
        self.end(0).saturating_sub(self.at)
    }
}

/// Places as many of `items` as fit into one record in `left`; none if not even one does.
///
/// Payloads of whole 4 KiB multiples come first, so that one alignment to 4 KiB serves them all, if they are many and
/// fresh. A few lie back to back like the others: aligning a 16 KiB page even to a sector would cost 3% of the log, and
/// of the store's space, to save a read one sector of 33. Moved payloads also lie back to back: aligning them would
/// take half a percent of the space that collection wins.
pub(crate) fn place(items: &[Item<'_>], left: SpaceLeft) -> Option<Placement> {
    let mut best = None;
    let (mut blocks, mut packed, mut body_bytes) = (0, 0, 0);
    let mut packing = Packing::default();
    for (index, item) in items.iter().enumerate() {
        if item.is_blocks() {
            blocks += item.payload.len();
        } else {
            packed += item.payload.len();
        }
        body_bytes += item.entry_bytes(&mut packing);
        let align = match blocks {
            0..BLOCK_ALIGNED_FROM => GRAIN,
            _ if item.kind == EntryKind::Relocate => GRAIN,
            _ => BLOCK,
        };
        let payload = (left.at + RECORD_HEADER_BYTES + body_bytes).next_multiple_of(align);
        let end = payload + blocks + packed;
        if end > left.end(SUMMARY_RECORD_BYTES_MAX + body_bytes) {
            break;
        }
        best = Some(Placement { items: index + 1, payload, end });
    }
    best
}

/// Returns `items`. The first item that does not fit whole into `left`, if it is a whole chunk, is cut in two so that
/// its first part fits; otherwise half a chunk would be lost at the end of each segment: at 80% live of 1 GiB that
/// costs 4.5% more writes, under Zipf 0.99 3% (`cargo run --release -p lacuna-ftl --example amplification`). A part has
/// at least
/// [`PART_BYTES_MIN`] and is not cut again: a chunk lies in two segments at most. Of the items left for other segments
/// only the first became shorter, so they need no additional segment; collection relies on that.
pub(crate) fn cut_to_fit<'i, 'a>(items: &'i [Item<'a>], left: SpaceLeft) -> Cow<'i, [Item<'a>]> {
    let fits = place(items, left).map_or(0, |part| part.items);
    let Some(next) = items.get(fits).filter(|next| next.payload.len() == CHUNK_BYTES) else {
        return Cow::Borrowed(items);
    };
    let mut cut = items[..=fits].to_vec();
    for bytes in (PART_BYTES_MIN..=CHUNK_BYTES - PART_BYTES_MIN).rev().step_by(SECTOR) {
        cut[fits].payload = &next.payload[..bytes];
        if place(&cut, left).is_some_and(|part| part.items > fits) {
            let (head, tail) = next.cut_at(bytes);
            cut[fits] = head;
            cut.push(tail);
            cut.extend_from_slice(&items[fits + 1..]);
            return Cow::Owned(cut);
        }
    }
    Cow::Borrowed(items)
}

/// Indexes of `items` in the order in which their payloads lie in a record.
pub(crate) fn payload_order<'a>(items: &'a [Item<'_>]) -> impl Iterator<Item = usize> + 'a {
    let blocks = (0..items.len()).filter(|index| items[*index].is_blocks());
    let packed = (0..items.len()).filter(|index| !items[*index].is_blocks());
    blocks.chain(packed)
}

/// Fresh segments of `space` that `items` need beside what fits into `open`.
pub(crate) fn segments_needed(items: &[Item<'_>], open: Option<SpaceLeft>, space: Space) -> usize {
    let placed = open.and_then(|left| place(items, left)).map_or(0, |part| part.items);
    let (mut rest, mut fresh) = (&items[placed..], 0);
    while !rest.is_empty() {
        let part = place(rest, SpaceLeft::of_empty(space)).expect("an item fits into an empty segment");
        rest = &rest[part.items..];
        fresh += 1;
    }
    fresh
}

// Beside the summary's block, which is at most 16 KiB.
const _: () =
    assert!(RECORDS_START + CHUNK_BYTES + BLOCK + RECORD_HEADER_BYTES + PACKED_ENTRY_BYTES_MAX < 32 << 10);

#[cfg(test)]
mod tests {
    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;
    use crate::{Codec, Encoded};

    const SPACE: Space = Space {
        segments: 64,
        segment_bytes: 64 << 10,
        block_bytes: 512,
        block_bytes_max: 512,
        superblock_segments: 1,
    };

    /// Behind `at`, nothing in the summary yet.
    fn left(at: usize) -> SpaceLeft {
        SpaceLeft::new(SPACE, at, 0)
    }

    fn prepare<'a>(ops: &[Op<'a>]) -> Batch<'a> {
        Batch::prepare(ops, true).unwrap()
    }

    fn shape(batch: &Batch<'_>) -> Vec<(EntryKind, u64, u64, usize)> {
        batch.items.iter().map(|item| (item.kind, item.lba.0, item.sectors, item.payload.len())).collect()
    }

    #[test]
    fn writes_are_cut_at_chunk_boundaries() {
        let data = vec![1; 40 * SECTOR];
        let batch = prepare(&[Op::Write { lba: Lba(30), data: &data }]);
        let write = EntryKind::Write;
        assert_eq!(shape(&batch), [(write, 30, 2, 1024), (write, 32, 32, 16384), (write, 64, 6, 3072)]);
    }

    #[test]
    fn zero_tails_are_not_stored_and_zero_chunks_are_trims() {
        let mut data = vec![0; 64 * SECTOR];
        data[4999] = 1;
        let batch = prepare(&[Op::Write { lba: Lba(0), data: &data }, Op::Trim { lba: Lba(64), sectors: 9 }]);
        assert_eq!(shape(&batch), [(EntryKind::Write, 0, 32, 5008), (EntryKind::Trim, 32, 41, 0)]);
        let plain = Batch::prepare(&[Op::Write { lba: Lba(0), data: &data }], false).unwrap();
        assert_eq!(shape(&plain), [(EntryKind::Write, 0, 32, 16384), (EntryKind::Write, 32, 32, 16384)]);
    }

    #[test]
    fn bad_ranges_are_refused() {
        assert!(Batch::prepare(&[Op::Write { lba: Lba(0), data: &[0; 100] }], true).is_err());
        assert!(Batch::prepare(&[Op::Write { lba: Lba(u64::MAX), data: &[1; 512] }], true).is_err());
        assert!(Batch::prepare(&[Op::Trim { lba: Lba(2), sectors: u64::MAX }], true).is_err());
    }

    #[test]
    fn only_what_a_batch_changes_once_is_encoded() {
        let data = [7; 8 * SECTOR];
        for_each_seed(200, |seed| {
            let mut rng = SeededRng::new(seed);
            let mut any = || (Lba(rng.below(150)), rng.below(9));
            let ranges: Vec<_> = (0..10).map(|_| any()).collect();
            let all: Vec<_> = ranges
                .iter()
                .map(|(lba, sectors)| {
                    let data = &data[..*sectors as usize * SECTOR];
                    Encoded::new(*lba, data, Codec { algorithm: Algorithm::Lz4, level: 0 })
                })
                .collect();
            let op = |(index, encoded)| match (index % 3, ranges[index]) {
                (0, (lba, sectors)) => Op::Trim { lba, sectors },
                _ => Op::Encoded(encoded),
            };
            let ops: Vec<_> = all.iter().enumerate().map(op).collect();
            let overlaps =
                |one: &Range<Lba>, other: &Range<Lba>| one.start.max(other.start) < one.end.min(other.end);
            let is_alone = |index: usize| {
                let others = ops.iter().enumerate().filter(|(other, _)| *other != index);
                others.into_iter().all(|(_, other)| !overlaps(&ops[index].range(), &other.range()))
            };
            let expected: Vec<_> = (0..10).map(|index| index % 3 > 0 && is_alone(index)).collect();
            for (index, encodes) in encodes(&ops, true).into_iter().enumerate() {
                let is_empty = ops[index].range().is_empty();
                assert!(encodes == expected[index] || is_empty, "{index} of {ranges:?}");
            }
            assert!(!encodes(&ops, false).contains(&true));
        });
    }

    #[test]
    fn touched_ranges_are_merged() {
        let data = [1; 1024];
        let batch = prepare(&[
            Op::Trim { lba: Lba(100), sectors: 10 },
            Op::Write { lba: Lba(4), data: &data },
            Op::Write { lba: Lba(5), data: &data },
            Op::Trim { lba: Lba(110), sectors: 1 },
        ]);
        assert_eq!(batch.touched(), [4..7, 100..111]);
    }

    #[test]
    fn a_small_append_is_packed() {
        let data = vec![1; 4096];
        let batch = prepare(&[Op::Write { lba: Lba(0), data: &data }]);
        let part = place(&batch.items, left(512)).unwrap();
        assert_eq!(part, Placement { items: 1, payload: 592, end: 592 + 4096 });
    }

    #[test]
    fn many_blocks_are_aligned_to_4_kib_and_odd_ones_are_packed() {
        let data = vec![1; 32 * SECTOR];
        let mut odd = vec![0; 32 * SECTOR];
        odd[5002] = 1;
        let many: Vec<_> = (0..4).map(|chunk| Op::Write { lba: Lba(chunk * 32), data: &data }).collect();
        let part = place(
            &prepare(&many).items,
            SpaceLeft { space: Space { segment_bytes: 1 << 20, ..SPACE }, ..left(512) },
        );
        let part = part.unwrap();
        assert_eq!(part, Placement { items: 4, payload: 4096, end: 4096 + 4 * 16384 });

        let mixed = [
            Op::Write { lba: Lba(0), data: &odd },
            Op::Write { lba: Lba(32), data: &data },
            Op::Write { lba: Lba(64), data: &odd },
        ];
        let batch = prepare(&mixed);
        let part = place(&batch.items, left(512)).unwrap();
        assert_eq!(part, Placement { items: 3, payload: 608, end: 608 + 16384 + 2 * 5008 });
        assert_eq!(payload_order(&batch.items).collect::<Vec<_>>(), [1, 0, 2]);
    }

    #[test]
    fn large_batches_need_several_segments() {
        let data = vec![1; 8 * 16384];
        let batch = prepare(&[Op::Write { lba: Lba(0), data: &data }]);
        assert_eq!(segments_needed(&batch.items, None, SPACE), 3);
        assert_eq!(segments_needed(&batch.items, Some(left(512)), SPACE), 2);
        assert_eq!(segments_needed(&batch.items, Some(left(48 << 10)), SPACE), 3);
        assert_eq!(segments_needed(&[], None, SPACE), 0);
        assert!(place(&batch.items, left(48 << 10)).is_none());
    }

    /// The result of cutting `items` when there is space for this many bytes of payload, and the entry of a part.
    fn cut<'a>(items: &[Item<'a>], bytes: usize) -> Vec<Item<'a>> {
        const ENTRY_BYTES: usize = 10;
        let end = (SPACE.segment_bytes - SUMMARY_BYTES - SUMMARY_RECORD_BYTES_MAX - ENTRY_BYTES) / 512 * 512;
        let left = left(end - bytes - RECORD_HEADER_BYTES - ENTRY_BYTES);
        let cut = cut_to_fit(items, left);
        let fit = place(&cut, left).map_or(0, |part| part.items);
        assert_eq!(fit, usize::from(cut.len() > items.len()), "the first part fits, nothing else does");
        cut.into_owned()
    }

    #[test]
    fn a_chunk_that_does_not_fit_is_cut_in_two() {
        let data: Vec<u8> = (0..2 * CHUNK_BYTES as u32).map(|at| (at * 31 / 7) as u8 | 1).collect();
        let batch = prepare(&[Op::Write { lba: Lba(64), data: &data }]);
        for (left, sectors) in [(16368, 30), (12288, 24), (10000, 19), (1536, 3), (1024, 2)] {
            let items = cut(&batch.items, left);
            let ranges: Vec<_> = items.iter().map(Item::range).collect();
            assert_eq!(ranges, [64..64 + sectors, 64 + sectors..96, 96..128]);
            assert_eq!(items.iter().map(|item| item.payload).collect::<Vec<_>>().concat(), data);
            assert!(items.iter().all(|item| item.crc == crc32c(item.payload)));
        }
        assert_eq!(cut(&batch.items, 1008), batch.items, "a part would be too small");
        let part = prepare(&[Op::Write { lba: Lba(64), data: &data[..CHUNK_BYTES - SECTOR] }]);
        assert_eq!(cut(&part.items, 10000), part.items, "it is not a whole chunk");
        let fitting = cut_to_fit(&batch.items, left(512));
        assert!(matches!(fitting, Cow::Borrowed(items) if items == batch.items));
    }

    #[test]
    fn moved_chunks_are_packed() {
        let data = vec![1; 8 * CHUNK_BYTES];
        let batch = prepare(&[Op::Write { lba: Lba(0), data: &data }]);
        let space = Space { segment_bytes: 1 << 20, ..SPACE };
        let moved: Vec<_> = batch
            .items
            .iter()
            .map(|item| Item { kind: EntryKind::Relocate, birth: Seq(1), ..*item })
            .collect();
        let payload = |items| place(items, SpaceLeft::new(space, 512, 0)).unwrap().payload;
        assert_eq!((payload(&batch.items), payload(&moved)), (4096, 640));
    }

    #[test]
    fn records_leave_room_for_their_copies() {
        let data = vec![1; 1024];
        let batch = prepare(&[Op::Write { lba: Lba(0), data: &data }, Op::Trim { lba: Lba(9), sectors: 9 }]);
        // The entries take 8 and 3 bytes.
        let copies = SUMMARY_RECORD_BYTES_MAX + 11;
        let end = SPACE.segment_bytes - 512;
        let exact = SpaceLeft::new(SPACE, end - 1024 - 80, 512 - SUMMARY_BYTES - copies);
        let part = place(&batch.items, exact).unwrap();
        assert_eq!((part.items, part.end), (2, end));
        let less = SpaceLeft { summary_bytes: exact.summary_bytes + 1, ..exact };
        assert_eq!(place(&batch.items, less).unwrap().items, 1, "the trim's copy takes another block");
        let full = SpaceLeft { summary_bytes: exact.summary_bytes + 4, ..exact };
        assert_eq!(place(&batch.items, full), None);
        assert_eq!(SpaceLeft::new(SPACE, end, 512).bytes(), 0);
    }
}
