//! A checkpoint that cannot be loaded, put together from what can be read of its segments: for salvage, which writes
//! nothing.
//!
//! The superblock says where the root lies, even if that cannot be read. Records of the map are written one after the
//! other, so epoch, generation and offset order them, and those before the root's place are of its checkpoint or of
//! earlier ones.
//!
//! 1. *The index* is as the parts say that can be read. Without a root these are the records right before its place.
//! 2. *Where a part of it is missing, leaves stand in for it.* Spans of leaves that are in force do not overlap, and
//!    one that is written anew overlaps all that it replaces. So those leaves count over which none was written later,
//!    nor one that a part of the index names. Among them are leaves that an edit emptied, if nothing was written there
//!    again: what was trimmed may be back. So may what a power cut had voided. A chunk's checksum detects places that
//!    were used again.
//! 3. *The counters* are those of the leaves that can be read, as the map's sums must be. Those of the checkpoint, or
//!    its root, tell how many extents are missing or too many. As many as there were may still be other ones: where
//!    leaves stand in for a part of the index and the newest one cannot be read, an older one counts.
//! 4. *Without a root* the index is that of the checkpoint if no more than the counters fit between it and the root's
//!    place; else it may be that of an earlier one. The map is that after the batch that the index names, or else the
//!    records before the root's place, and all of the epoch's log is replayed: batches after that one, and all
//!    relocations. Earlier ones of these are harmless by argument 3 of `recovery::replay`.

use std::collections::BTreeMap;

use zerocopy::FromBytes;

use super::load::{Loaded, Loader, counters, index_entries};
use crate::{
    Error, Seq,
    addr::{CHUNK_SECTORS, GRAIN, SegNo},
    format::{
        IndexEntry, LeafAddr, Life, Live, POSITIONS, Position, RECORD_HEADER_BYTES, RecordHeader,
        RecordHeaderRaw, RecordKind, Root, RootRef, SEGMENT_LIVE_BYTES, SegmentHeader, SegmentKind,
        Superblock,
    },
    map::{Absent, Leaf, Map},
    media::{
        Volume,
        scan::{Record, SegmentReader, for_each_readable},
    },
    mutant::{Rule, is_broken},
    paging::LeafReader,
    ranges::Cover,
    space::Space,
};

/// Leaves that are read together to be counted.
const LEAVES_AT_ONCE: usize = 1024;

/// When a record of the map was written, compared with others.
type Written = (u64, u64, u32);

fn written(life: Life, offset: u32) -> Written {
    (life.epoch, life.generation, offset)
}

/// A leaf that was found without an index.
struct FoundLeaf {
    entry: IndexEntry,
    /// Behind its last sector; chunks are whole, as in spans.
    end: u64,
}

/// A record of an index or of counters.
struct Part {
    record: Record,
    is_index: bool,
}

/// The parts of a checkpoint, in order; none where one is missing.
struct Parts<'a> {
    index: Vec<Option<&'a Part>>,
    counters: Vec<Option<&'a Part>>,
}

/// Part of an index.
#[derive(Default)]
struct KnownIndex {
    /// Each entry with the end of its span, if the next entry is known too.
    entries: Vec<(IndexEntry, Option<u64>)>,
    /// Whether no part is missing.
    is_complete: bool,
}

/// What can be read of a map.
#[derive(Default)]
struct Found {
    /// Leaves, by the place of their record, and in it.
    leaves: BTreeMap<(Written, u32), FoundLeaf>,
    parts: BTreeMap<Written, Part>,
    /// The newest record of leaves, or root.
    newest_other: Option<Written>,
    /// The newest record's batch.
    last_seq: Seq,
}

/// The checkpoint that `superblock` points to, where [`super::load`] fails because of damage, and what is known of its
/// completeness, as an error that names the root's place. `headers` are those of all segments.
pub(crate) fn rebuild(
    volume: &Volume,
    superblock: &Superblock,
    headers: &[Option<SegmentHeader>],
) -> (Loaded, Error) {
    let (space, epoch) = (volume.space(), superblock.epoch);
    let at = superblock.root.expect("without a root there is nothing that could be damaged");
    let found = Found::search(volume, epoch, at, headers);
    let root = Loader { volume, space, epoch }.root(at).ok();
    let parts = match &root {
        Some(root) => found.named_parts(root, epoch),
        None => found.last_parts(),
    };
    let known = KnownIndex::of(&parts.index, space);
    let is_complete = match &root {
        Some(root) => known.entries.len() == root.leaves as usize,
        None => known.is_complete,
    };
    let index = if is_complete { known.into_entries() } else { found.fill(known) };
    let (counted, out_of_use) = parts.counters(space);
    let extents = sum_extents(index.iter().map(|entry| &entry.live));
    let promised = root.as_ref().map(|root| root.extents).or(counted.as_deref().map(sum_extents));
    let is_own = is_complete && (root.is_some() || parts.lead_to(at, space));
    let promised = promised.or(is_own.then_some(extents));
    let counters = count(volume, &index);
    let own = match is_own {
        true => Own::All,
        false if counted.is_some_and(|all| !all.is_empty() && counters.starts_with(&all)) => Own::AsCounted,
        false => Own::Some,
    };

    let mut segments = vec![at.segment];
    segments.extend(parts.all().map(|part| part.record.header.life.segment));
    segments.extend(index.iter().map(|entry| entry.place.segment));
    segments.sort_unstable();
    segments.dedup();
    let remark = remark(extents, promised, own, root.is_some());
    let is_root_lost = root.is_none();
    let seq = |part: &Part| part.record.header.seq;
    let of_index = parts.index.iter().flatten().map(|part| seq(part)).max().filter(|_| is_complete);
    let root = root.unwrap_or(Root {
        start_seq: of_index.or(parts.all().map(seq).max()).unwrap_or(found.last_seq),
        start_move: Seq(0),
        generation_next: 0,
        extents,
        leaves: index.len() as u32,
        positions: [None; POSITIONS],
        records: Vec::new(),
    });
    let loaded = Loaded { map: Map::load(index, counters), root, segments, out_of_use, is_root_lost };
    (loaded, volume.corrupt("checkpoint", volume.offset(at.segment, at.offset as usize), remark))
}

/// Which leaves are those of the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    /// All, as its index says.
    All,
    /// Perhaps all: they have in each segment what it counted there.
    AsCounted,
    /// Perhaps not all.
    Some,
}

fn sum_extents<'l>(all: impl IntoIterator<Item = &'l Live>) -> u64 {
    all.into_iter().fold(0, |sum, live| sum.saturating_add(live.extents))
}

/// What to say of a map with `extents` extents, where there were `promised`, if that is known.
fn remark(extents: u64, promised: Option<u64>, own: Own, has_root: bool) -> String {
    let log = if has_root { "" } else { ", and its log from the segments" };
    let older = if own == Own::Some { "; some may be from before they were overwritten" } else { "" };
    let completeness = match promised {
        Some(promised) if promised == extents && own == Own::Some => {
            "as many extents as it had are there, though perhaps not the same ones".to_owned()
        }
        Some(promised) if promised == extents && own == Own::AsCounted => {
            "nothing of it seems to be missing".to_owned()
        }
        Some(promised) if promised == extents => "nothing of it is missing".to_owned(),
        Some(promised) if promised > extents => {
            format!("{} of its {promised} extents are missing and read as never written", promised - extents)
        }
        Some(promised) => format!(
            "{} extents are there beside its {promised}: what was trimmed or deleted may be back",
            extents - promised
        ),
        None => "whether extents are missing or too many is not known".to_owned(),
    };
    format!("put together from what can be read of the map{log}: {completeness}{older}")
}

impl Found {
    /// All records of the map before the root's place `at`.
    fn search(volume: &Volume, epoch: u64, at: RootRef, headers: &[Option<SegmentHeader>]) -> Found {
        let root = Life { segment: at.segment, generation: at.generation, epoch };
        let end = written(root, at.offset);
        let mut found = Found::default();
        for (segment, header) in (0..).map(SegNo).zip(headers).skip(1) {
            let life = match header {
                _ if segment == root.segment => Some(root),
                Some(header) => (header.kind == SegmentKind::Checkpoint).then(|| header.life()),
                None => first_life(volume, segment),
            };
            let Some(life) = life.filter(|life| written(*life, 0) < end) else { continue };
            for_each_readable(volume, life, |record| {
                if written(life, record.header.offset) < end {
                    found.note(record, volume.space());
                }
            });
        }
        found
    }

    fn note(&mut self, record: Record, space: Space) {
        let header = record.header;
        let at = written(header.life, header.offset);
        match header.kind {
            RecordKind::Map => self.note_leaves(&record, at, space),
            RecordKind::Index | RecordKind::Segments => {
                let is_index = header.kind == RecordKind::Index;
                self.parts.insert(at, Part { record, is_index });
            }
            RecordKind::Root => {}
            _ => return,
        }
        if !self.parts.contains_key(&at) {
            self.newest_other = self.newest_other.max(Some(at));
        }
        self.last_seq = self.last_seq.max(header.seq);
    }

    fn note_leaves(&mut self, record: &Record, at: Written, space: Space) {
        let (segment, start) =
            (record.header.life.segment, record.header.offset as usize + RECORD_HEADER_BYTES);
        let (body, mut offset) = (&record.body, 0);
        while offset < body.len() {
            let Some(bytes) = Leaf::first_in(&body[offset..]) else { return };
            let Ok((rows, live)) = Leaf::survey(bytes, space.segments as u32, space.segment_bytes) else {
                return;
            };
            let start_sector = rows.start / CHUNK_SECTORS * CHUNK_SECTORS;
            let end = rows.end.checked_next_multiple_of(CHUNK_SECTORS).unwrap_or(u64::MAX);
            let place = LeafAddr::of(bytes, segment, start + offset);
            let leaf = FoundLeaf { entry: IndexEntry { start: start_sector, live, place }, end };
            self.leaves.insert((at, offset as u32), leaf);
            offset = (offset + bytes.len()).next_multiple_of(GRAIN);
        }
    }

    /// The parts that `root` names.
    fn named_parts(&self, root: &Root, epoch: u64) -> Parts<'_> {
        let part = |place: &Position| self.parts.get(&(epoch, place.generation, place.offset));
        let all: Vec<_> = root.records.iter().map(part).collect();
        let is = |part: &Option<&Part>, is_index| part.is_some_and(|part| part.is_index == is_index);
        // What is missing between the last part of the one kind and the first of the other may be of either.
        let index_end = all.iter().position(|part| is(part, false)).unwrap_or(all.len());
        let counters_start = all.iter().rposition(|part| is(part, true)).map_or(0, |last| last + 1);
        let counters = all.get(counters_start..).unwrap_or_default().to_vec();
        Parts { index: all[..index_end].to_vec(), counters }
    }

    /// The parts right before the root's place: numbers descend from there, first those of the counters, then those of
    /// the index. No leaf and no other root lies between.
    fn last_parts(&self) -> Parts<'_> {
        let is_newest = |(at, _): &(&Written, &Part)| Some(**at) > self.newest_other;
        let mut rest = self.parts.iter().rev().take_while(is_newest).map(|(_, part)| part).peekable();
        let [counters, index] = [false, true].map(|is_index| {
            let (mut parts, mut above) = (Vec::new(), None);
            let number = |part: &Part| part.record.header.part;
            let is_next = |part: &&Part, above: Option<u32>| {
                part.is_index == is_index && above.is_none_or(|above| number(part) < above)
            };
            while let Some(part) = rest.next_if(|part| is_next(part, above)) {
                let follows = match above {
                    Some(above) => number(part) + 1 == above,
                    None => part.record.header.last_part,
                };
                parts.extend((!follows).then_some(None));
                parts.push(Some(part));
                above = Some(number(part));
            }
            parts.extend((above != Some(0)).then_some(None));
            parts.reverse();
            parts
        });
        Parts { index, counters }
    }

    /// What is `known` of an index, with the leaves that stand in for what is missing of it.
    fn fill(&self, known: KnownIndex) -> Vec<IndexEntry> {
        let place = |entry: &IndexEntry| (entry.place.segment, entry.place.grain);
        let ends: BTreeMap<_, _> = self.leaves.values().map(|leaf| (place(&leaf.entry), leaf.end)).collect();
        let mut cover = Cover::default();
        for (entry, end) in &known.entries {
            let end = end.or_else(|| ends.get(&place(entry)).copied());
            cover.add(entry.start..end.unwrap_or(0).max(entry.start + 1));
        }
        let mut leaves: Vec<_> = self.leaves.values().collect();
        if !is_broken(Rule::LaterLeafCounts) {
            leaves.reverse();
        }
        leaves.retain(|leaf| cover.add(leaf.entry.start..leaf.end));
        let mut index = known.into_entries();
        index.extend(leaves.into_iter().map(|leaf| leaf.entry));
        index.sort_unstable_by_key(|entry| entry.start);
        if let Some(first) = index.first_mut() {
            first.start = 0;
        }
        index
    }
}

impl KnownIndex {
    fn of(parts: &[Option<&Part>], space: Space) -> KnownIndex {
        let mut known = KnownIndex { is_complete: true, ..KnownIndex::default() };
        let mut follows = true;
        for part in parts {
            let read = part.and_then(|part| index_entries(&part.record, space).ok());
            let last = known.entries.last_mut();
            let starts = last.iter().map(|(last, _)| last.start).collect::<Vec<_>>();
            let is_sound = |entries: &Vec<IndexEntry>| {
                let starts = starts.iter().copied().chain(entries.iter().map(|entry| entry.start));
                !entries.is_empty() && starts.is_sorted_by(|one, next| one < next)
            };
            let Some(entries) = read.filter(is_sound) else {
                (known.is_complete, follows) = (false, false);
                continue;
            };
            if let Some((_, end)) = last
                && follows
            {
                *end = Some(entries[0].start);
            }
            let ends = entries.iter().skip(1).map(|next| Some(next.start)).chain([None]);
            known.entries.extend(entries.iter().copied().zip(ends));
            follows = true;
        }
        if let Some((_, end)) = known.entries.last_mut()
            && follows
        {
            *end = Some(u64::MAX);
        }
        known.is_complete &= known.entries.first().is_none_or(|(first, _)| first.start == 0);
        known
    }

    fn into_entries(self) -> Vec<IndexEntry> {
        self.entries.into_iter().map(|(entry, _)| entry).collect()
    }
}

impl Parts<'_> {
    /// Those that are there.
    fn all(&self) -> impl Iterator<Item = &Part> {
        self.index.iter().chain(&self.counters).copied().flatten()
    }

    /// Whether they are of one checkpoint, and nothing but counters can have been between them and its root at `at`.
    fn lead_to(&self, at: RootRef, space: Space) -> bool {
        let Some(RecordHeader { seq, life, offset, total_bytes, .. }) =
            self.all().last().map(|part| part.record.header)
        else {
            return false;
        };
        let padded = |bytes: usize| bytes.next_multiple_of(space.block_bytes);
        let (root, end) = (at.offset as usize, padded((offset + total_bytes) as usize));
        let counters = match self.counters.iter().all(Option::is_some) {
            true => 0,
            false => padded(RECORD_HEADER_BYTES + space.segments * SEGMENT_LIVE_BYTES),
        };
        let is_next = match life.generation == at.generation {
            true => end + counters == root,
            // The root did not fit there.
            false => {
                counters == 0
                    && root == space.checkpoint_start()
                    && end + at.bytes as usize > space.segment_bytes
            }
        };
        is_next && self.all().all(|part| part.record.header.seq == seq)
    }

    /// By segment, what it counts, if all counters can be read; and whether it is out of use.
    fn counters(&self, space: Space) -> (Option<Vec<Live>>, Vec<bool>) {
        let read = |part: &Option<&Part>| part.and_then(|part| counters(&part.record, space).ok());
        let read: Option<Vec<_>> = self.counters.iter().map(read).collect();
        // Without all of them it is not known which segments the others are about.
        let read: Option<(Vec<_>, Vec<_>)> = read.map(|parts| parts.into_iter().flatten().unzip());
        let (counted, out_of_use) = read.unzip();
        let mut out_of_use: Vec<_> = out_of_use.unwrap_or_default();
        out_of_use.resize(space.segments, false);
        (counted, out_of_use)
    }
}

/// The life that the first record of a checkpoint's segment claims.
fn first_life(volume: &Volume, segment: SegNo) -> Option<Life> {
    let mut reader = SegmentReader::new(volume, segment);
    let head = reader.bytes(volume.space().checkpoint_start(), RECORD_HEADER_BYTES).ok()?;
    RecordHeaderRaw::read_from_bytes(head).ok()?.claimed_life().filter(|life| life.segment == segment)
}

/// Sums over the extents of the leaves that can be read, by segment.
fn count(volume: &Volume, index: &[IndexEntry]) -> Vec<Live> {
    let ends = index.iter().skip(1).map(|next| next.start).chain([u64::MAX]);
    let span = |(entry, end): (&IndexEntry, u64)| Absent {
        span: entry.start..end,
        live: entry.live,
        place: entry.place,
    };
    let leaves: Vec<_> = index.iter().zip(ends).map(span).collect();
    let mut counters = vec![Live::default(); volume.space().segments];
    for leaves in leaves.chunks(LEAVES_AT_ONCE) {
        let mut read = BTreeMap::new();
        LeafReader::new(volume)
            .read_each(leaves, |absent, leaf| drop(read.insert(absent.span.start, leaf.ok())));
        for leaf in read.into_values().flatten() {
            leaf.count(&mut counters);
        }
    }
    counters
}
