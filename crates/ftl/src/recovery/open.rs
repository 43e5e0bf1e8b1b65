//! From superblock to map and log.

use std::{collections::HashSet, sync::Arc};

use lacuna_device::BlockDevice;

use crate::{
    Error, Options, Result, Seq,
    addr::SegNo,
    checkpoint,
    format::{COUNTER_MAX, LogHeader, Marks, SegmentHeader, Superblock},
    log::{Checkpoints, Coverage, Damaged, Log, Recovered, Segment, State},
    map::{MISCOUNTED, Map},
    media::{
        Volume, keys,
        ring::Ring,
        starts::{Headers, read_headers},
        superblock,
    },
    paging::LeafReader,
    recovery::{
        log_device::{Attached, attach},
        lost_headers::{judge, unknown_headers},
        replay::Replay,
        retained::RetainedSummaries,
        salvage::Losses,
    },
    space::Space,
};

/// A store as it was read into memory.
pub(crate) struct Opened {
    pub(crate) volume: Volume,
    pub(crate) superblock: Superblock,
    pub(crate) log: Log,
    pub(crate) map: Map,
    /// Segments whose first block could not be read, in order.
    pub(crate) lost_headers: Vec<SegNo>,
    /// The log device to go on with, and the newest header on it.
    pub(crate) ring: Option<(Ring, LogHeader)>,
}

/// Reads the store on `device` into memory, apart from damage that `losses` lets pass.
pub(crate) fn open(device: Arc<dyn BlockDevice>, options: &Options, losses: &Losses) -> Result<Opened> {
    if !options.read_only {
        device.sync()?;
    }
    let superblock = superblock::load(&*device, !options.read_only)?;
    let cipher = keys::unlock(&*device, &superblock, &options.key)?;
    let mut log_device = attach(device.name(), &superblock, options, losses)?;
    let device = log_device.apply(device, &superblock, options.read_only, losses)?;
    let volume = Volume::new(device, &superblock, options, cipher);
    let space = volume.space();
    if space.limits(0).is_none() {
        let reason = "the store has too few segments".into();
        return Err(Error::Geometry { device: volume.name(), reason });
    }
    let mut headers = read_headers(&volume)?;
    let loaded = losses.pass(checkpoint::load(&volume, &superblock).map(Some), None)?;
    let loaded = match loaded {
        Some(loaded) => loaded,
        None => {
            let (loaded, remark) = checkpoint::rebuild(&volume, &superblock, &headers.found);
            losses.pass(Err(remark), ())?;
            loaded
        }
    };
    let checkpoint::Loaded { mut map, root, segments: mut root_segments, out_of_use, is_root_lost } = loaded;
    let copy = superblock.copy_segment;
    headers.unreadable.retain(|segment| Some(*segment) != copy);
    if copy.is_some_and(|copy| map.live(copy).extents > 0) {
        return Err(volume.corrupt("checkpoint index", 0, "it maps data into the superblock's copy"));
    }
    let mut retained = RetainedSummaries::read(&volume, &superblock, &headers.found, losses)?;
    let is_known =
        |segment: SegNo| out_of_use[segment.0 as usize] || root_segments.binary_search(&segment).is_ok();
    let unknown = unknown_headers(&volume, (&root, superblock.epoch), &retained, is_known, &mut headers);
    let Headers { found: headers, unreadable: lost_headers } = headers;

    let weight_loaded = map.weight(0);
    let leaves = LeafReader::new(&volume);
    let map_memory = options.map_memory;
    let epoch = superblock.epoch;
    let replay =
        Replay { volume: &volume, epoch, are_moves_known: !is_root_lost, leaves, map_memory, losses };
    let marks = durable(&superblock, &headers).max(retained.durable).max(log_device.durable());
    let durable = marks.max(replay.marks_without_header(&root, &headers)?);
    let sources = replay.sources(&root, &headers, &mut retained);
    let replayed = sources.and_then(|sources| Ok((replay.run(&sources, &root, durable, &mut map)?, sources)));
    let (mut outcome, sources) = judge(&volume, &unknown, &map, replayed, losses)?;
    outcome.resync.join(retained.resync);
    if !options.read_only {
        outcome.resync.settle(&volume, &superblock)?;
    }
    root_segments.extend(&retained.segments);
    root_segments.sort_unstable();
    root_segments.dedup();
    losses.pass(check_uses(&volume, &map, &root_segments), ())?;
    let in_place = sources.iter().filter(|source| source.retained_records.is_none());
    let replayed = in_place.map(|source| source.life.segment).collect();
    let state =
        States { copy, root_segments: &root_segments, lost_headers: &lost_headers, replayed, map: &map };
    let segments: Vec<Segment> =
        (0..).map(SegNo).zip(&headers).map(|(no, header)| segment(state.of(no), header)).collect();
    let seen = headers.iter().flatten();
    let epoch_next = seen.clone().map(|header| header.epoch).max().unwrap_or(0).max(superblock.epoch) + 1;
    let epoch = if options.read_only { superblock.epoch } else { epoch_next };
    let generations =
        seen.map(|header| header.generation).chain(sources.iter().map(|source| source.life.generation));
    let generation_next = (generations.max().unwrap_or(0) + 1).max(root.generation_next);
    let last = Marks { batches: outcome.last_seq, moves: outcome.last_move };
    let counters = [superblock.sequence, epoch_next, generation_next, last.batches.0, last.moves.0];
    losses.pass(check_left(&volume, counters), ())?;
    let log = Log::new(Recovered {
        space,
        salt: volume.salt(),
        epoch,
        generation_next,
        last,
        segments,
        checkpoints: Checkpoints::recovered(Coverage::of(&root), root_segments),
        replayed_batches: outcome.last_seq.0 - root.start_seq.0,
        weight: weight_loaded.max(map.weight(0)),
        live_cost: Space::cost(map.total()),
        footprint: options.footprint.or_default(volume.is_sparse()),
        summary_memory: options.summary_memory,
    });
    let Attached { ring, log: log_ref, .. } = log_device;
    let superblock = Superblock { log: log_ref, ..superblock };
    Ok(Opened { volume, superblock, log, map, lost_headers, ring })
}

/// Refuses a map that leads to more in a segment than was counted there, or to data in one of `root_segments`. Only a
/// forged one does.
fn check_uses(volume: &Volume, map: &Map, root_segments: &[SegNo]) -> Result<()> {
    let miscounted = map.miscounted().map(|segment| (segment, MISCOUNTED));
    let both = root_segments.iter().find(|segment| map.live(**segment).extents > 0);
    match miscounted.or(both.map(|segment| (*segment, "holds data, and a part of the map"))) {
        None => Ok(()),
        Some((segment, reason)) => {
            Err(volume.corrupt(&format!("segment {}", segment.0), volume.offset(segment, 0), reason))
        }
    }
}

/// Refuses a store of which a counter is so near its end that what it writes itself would be refused.
fn check_left(volume: &Volume, counters: [u64; 5]) -> Result<()> {
    match counters.into_iter().max().filter(|greatest| *greatest > COUNTER_MAX / 2) {
        None => Ok(()),
        Some(greatest) => {
            let reason = format!("one has come to {greatest}, near its end: the store can only be salvaged");
            Err(volume.corrupt("counters of the superblock", 0, reason))
        }
    }
}

/// The evidence that decides the states of segments.
struct States<'a> {
    copy: Option<SegNo>,
    /// Sorted, as the next.
    root_segments: &'a [SegNo],
    lost_headers: &'a [SegNo],
    replayed: HashSet<SegNo>,
    map: &'a Map,
}

impl States<'_> {
    fn of(&self, segment: SegNo) -> State {
        if segment.0 == 0 || Some(segment) == self.copy {
            State::Superblock
        } else if self.root_segments.binary_search(&segment).is_ok() {
            State::Checkpoint
        } else if self.lost_headers.binary_search(&segment).is_ok() {
            State::Damaged(Damaged::Unreadable)
        } else if self.map.live(segment).extents > 0 || self.replayed.contains(&segment) {
            State::Sealed
        } else {
            State::Free
        }
    }
}

fn segment(state: State, header: &Option<SegmentHeader>) -> Segment {
    let unused = Segment::unused(state);
    let Some(SegmentHeader { generation, epoch, opened_seq, class, .. }) = *header else { return unused };
    Segment { generation, epoch, opened_seq, class, ..unused }
}

/// The newest marks in the superblock and the segment headers: what was durable.
fn durable(superblock: &Superblock, headers: &[Option<SegmentHeader>]) -> Marks {
    let known = Marks { batches: superblock.flushed_seq, moves: Seq(0) };
    // A recovery that a power cut interrupted has left headers of a later epoch, which are void.
    let headers = headers.iter().flatten().filter(|header| header.epoch == superblock.epoch);
    headers.fold(known, |known, header| known.max(header.durable))
}
