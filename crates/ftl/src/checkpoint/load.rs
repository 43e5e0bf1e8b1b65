//! From the superblock to the map of its checkpoint: root, index, counters. Leaves stay on the device until they are
//! needed.

use zerocopy::FromBytes;

use crate::{
    Result, Seq,
    addr::SegNo,
    format::{
        Flaw, IndexEntry, Life, Live, MAP_INDEX_BYTES, MapIndexRaw, POSITIONS, RecordKind, Root, RootRef,
        SEGMENT_LIVE_BYTES, SegmentLiveRaw, Superblock,
    },
    map::Map,
    media::{
        Volume,
        scan::{Record, SegmentReader},
    },
    space::Space,
};

/// A checkpoint, as read.
pub(crate) struct Loaded {
    pub(crate) map: Map,
    pub(crate) root: Root,
    /// Segments that it refers to for its map, sorted.
    pub(crate) segments: Vec<SegNo>,
    /// By segment, whether it says that it is out of use.
    pub(crate) out_of_use: Vec<bool>,
    /// The root could not be read: see [`super::rebuild()`].
    pub(crate) is_root_lost: bool,
}

/// The checkpoint that `superblock` points to. An empty store has none yet.
pub(crate) fn load(volume: &Volume, superblock: &Superblock) -> Result<Loaded> {
    let space = volume.space();
    let Some(at) = superblock.root else {
        let root = Root {
            start_seq: Seq(0),
            start_move: Seq(0),
            generation_next: 1,
            extents: 0,
            leaves: 0,
            positions: [None; POSITIONS],
            records: Vec::new(),
        };
        let (map, out_of_use) = (Map::new(space.segments as u32), vec![false; space.segments]);
        return Ok(Loaded { map, root, segments: Vec::new(), out_of_use, is_root_lost: false });
    };
    let loader = Loader { volume, space, epoch: superblock.epoch };
    let root = loader.root(at)?;
    let Tables { index, counters, out_of_use } = loader.tables(&root)?;
    let mut segments = vec![at.segment];
    segments.extend(root.records.iter().map(|place| place.segment));
    segments.extend(index.iter().map(|entry| entry.place.segment));
    segments.sort_unstable();
    segments.dedup();
    let place = volume.offset(at.segment, at.offset as usize);
    if let Err(reason) = check(&root, &index, &counters, &segments) {
        return Err(volume.corrupt("checkpoint", place, reason));
    }
    Ok(Loaded { map: Map::load(index, counters), root, segments, out_of_use, is_root_lost: false })
}

#[derive(Default)]
struct Tables {
    index: Vec<IndexEntry>,
    counters: Vec<Live>,
    out_of_use: Vec<bool>,
}

pub(super) struct Loader<'a> {
    pub(super) volume: &'a Volume,
    pub(super) space: Space,
    pub(super) epoch: u64,
}

impl Loader<'_> {
    /// The root at `at`.
    pub(super) fn root(&self, at: RootRef) -> Result<Root> {
        let life = Life { segment: at.segment, generation: at.generation, epoch: self.epoch };
        let mut reader = SegmentReader::new(self.volume, at.segment);
        let place = reader.device_offset(at.offset as usize);
        let flawed = |reason| self.volume.corrupt("checkpoint root", place, reason);
        let record = reader.record(at.offset as usize, life)?;
        let record = record
            .filter(|record| record.header.kind == RecordKind::Root && record.header.total_bytes == at.bytes)
            .ok_or_else(|| flawed("not a valid root record"))?;
        Root::parse(&record.body, self.space.segments as u32, self.space.segment_bytes).map_err(flawed)
    }

    fn tables(&self, root: &Root) -> Result<Tables> {
        let mut tables = Tables::default();
        let mut reader: Option<(SegNo, SegmentReader<'_>)> = None;
        for place in &root.records {
            if reader.as_ref().is_none_or(|(segment, _)| *segment != place.segment) {
                let open = SegmentReader::new(self.volume, place.segment);
                reader = Some((place.segment, open));
            }
            let (_, open) = reader.as_mut().expect("just set");
            let at = open.device_offset(place.offset as usize);
            let flawed = |reason| self.volume.corrupt("checkpoint index", at, reason);
            let life = Life { segment: place.segment, generation: place.generation, epoch: self.epoch };
            let record = open.record(place.offset as usize, life)?;
            let record = record.ok_or_else(|| flawed("not a valid record"))?;
            tables.add(&record, self.space).map_err(flawed)?;
        }
        // The store may have grown since.
        tables.counters.resize(self.space.segments, Live::default());
        tables.out_of_use.resize(self.space.segments, false);
        Ok(tables)
    }
}

impl Tables {
    /// Adds what the next of the checkpoint's records holds.
    fn add(&mut self, record: &Record, space: Space) -> Result<(), Flaw> {
        match record.header.kind {
            RecordKind::Index => {
                for entry in index_entries(record, space)? {
                    // Checked here, so that records named again and again are not read without end.
                    let is_next = self.index.last().map_or(entry.start == 0, |last| last.start < entry.start);
                    if !is_next {
                        return Err("the index is not in order");
                    }
                    self.index.push(entry);
                }
            }
            RecordKind::Segments => {
                for (live, is_out_of_use) in counters(record, space)? {
                    if self.counters.len() == space.segments {
                        return Err("counters of more segments than there are");
                    }
                    self.counters.push(live);
                    self.out_of_use.push(is_out_of_use);
                }
            }
            _ => return Err("neither index nor counters"),
        }
        Ok(())
    }
}

/// The entries of a part of an index.
pub(super) fn index_entries(record: &Record, space: Space) -> Result<Vec<IndexEntry>, Flaw> {
    let (entries, rest) = record.body.as_chunks::<MAP_INDEX_BYTES>();
    if !rest.is_empty() {
        return Err("neither index nor counters");
    }
    let entries = entries.iter().map(|bytes| {
        let raw = MapIndexRaw::read_from_bytes(bytes).expect("chunk of that size");
        raw.verify(space.segments as u32, space.segment_bytes)
    });
    entries.collect()
}

/// The counters of a part of them, each with whether the segment is out of use.
pub(super) fn counters(record: &Record, space: Space) -> Result<Vec<(Live, bool)>, Flaw> {
    let (counters, rest) = record.body.as_chunks::<SEGMENT_LIVE_BYTES>();
    if !rest.is_empty() {
        return Err("neither index nor counters");
    }
    let counters = counters.iter().map(|bytes| {
        let raw = SegmentLiveRaw::read_from_bytes(bytes).expect("chunk of that size");
        raw.verify(space.segment_bytes)
    });
    counters.collect()
}

/// Whether the parts of a checkpoint are consistent.
fn check(root: &Root, index: &[IndexEntry], counters: &[Live], segments: &[SegNo]) -> Result<(), String> {
    let sum = |all: &mut dyn Iterator<Item = Live>| {
        let mut sum = (0_u64, 0_u64);
        for live in all {
            sum = (sum.0.saturating_add(live.bytes), sum.1.saturating_add(live.extents));
        }
        sum
    };
    let in_leaves = sum(&mut index.iter().map(|entry| entry.live));
    let in_segments = sum(&mut counters.iter().copied());
    if index.len() != root.leaves as usize || in_leaves.1 != root.extents {
        let Root { extents, leaves, .. } = root;
        let found = (in_leaves.1, index.len());
        return Err(format!(
            "root promises {extents} extents in {leaves} leaves, the index has {} in {}",
            found.0, found.1
        ));
    }
    if in_leaves != in_segments {
        return Err(format!("leaves sum up to {in_leaves:?}, segments to {in_segments:?}"));
    }
    match segments.iter().find(|segment| counters[segment.0 as usize].extents > 0) {
        Some(segment) => Err(format!("it maps data into its own segment {}", segment.0)),
        None => Ok(()),
    }
}
