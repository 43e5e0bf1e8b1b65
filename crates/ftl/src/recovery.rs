//! From the bytes on a device to an open store.
//!
//! Superblock -> checkpoint -> replay of all batches after it, in order, up to the first that is not
//! there whole, and of the relocations (`replay`). Nothing is written here: [`crate::Ftl::open`]
//! follows with a checkpoint under a new epoch, before it accepts a batch.
//!
//! Until that checkpoint's superblock is durable, a second power cut leads to the same recovery again:
//!
//! 1. Before anything is read, the device is synced. What an ended process left in the device's cache
//!    is then durable, so a second recovery reads what this one read, and comes to the same map.
//! 2. The checkpoint goes only into segments that this recovery did not replay and to which its map does
//!    not lead. The old checkpoint's map may lead there: what it had there has been overwritten or
//!    moved by records that are replayed.
//!
//! Once it is durable, no record of an older epoch is ever replayed again, so what lies past the cut is
//! void for ever, although its numbers are given out anew.

use std::sync::Arc;

use lacuna_device::BlockDevice;

use crate::{
    Error, Options, Result, Seq,
    addr::SegNo,
    background::Background,
    checkpoint,
    copies::Awaited,
    epitaph::Epitaphs,
    fault::LeafReader,
    format::{Marks, Salt, SegmentHeader, Superblock},
    lifetime::{COLDEST, MeanExpected},
    log::{Log, Segment, State},
    replay::{Replay, Source},
    reuse::Coverage,
    scan::read_headers,
    space::Space,
    store::Store,
    superblock,
    sync::{
        Mutex, RwLock,
        atomic::{AtomicU32, AtomicU64},
    },
};

/// Reads the store on `device` into memory.
pub(crate) fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Store> {
    if !options.read_only {
        device.sync()?;
    }
    let superblock = superblock::load(&*device)?;
    let space = superblock::space(&superblock, options.reserve_percent);
    if space.limits(0).is_none() {
        let reason = "the store has too few segments".into();
        return Err(Error::Geometry { device: device.name().into(), reason });
    }
    let salt = Salt::of(&superblock.uuid);
    let checkpoint::Loaded { mut map, root, segments: mut root_segments } =
        checkpoint::load(&*device, space, salt, &superblock)?;
    let headers = read_headers(&*device, space, salt)?;

    let weight_loaded = map.weight(0);
    let leaves = LeafReader { device: &*device, space };
    let map_memory = options.map_memory;
    let replay = Replay { device: &*device, space, salt, epoch: superblock.epoch, leaves, map_memory };
    let mut epitaphs = Epitaphs::read(&*device, space, salt, &superblock, &headers)?;
    let sources = replay.sources(&root, &headers, &mut epitaphs)?;
    let marks = durable(&superblock, &headers).max(epitaphs.durable);
    let durable = marks.max(replay.marks_without_header(&root, &headers)?);
    let outcome = replay.run(&sources, &root, durable, &mut map)?;
    let mut needed: Vec<bool> =
        (0..space.segments).map(|no| map.live(SegNo(no as u32)).extents > 0).collect();
    for Source { life, .. } in sources.iter().filter(|source| source.told.is_none()) {
        needed[life.segment.0 as usize] = true;
    }
    root_segments.extend(epitaphs.segments);
    root_segments.sort_unstable();
    root_segments.dedup();

    let segments = headers.iter().zip(&needed).enumerate().map(|(no, (header, needed))| {
        let in_root = root_segments.binary_search(&SegNo(no as u32)).is_ok();
        let state = match (no, in_root, needed) {
            (0, _, _) => State::Superblock,
            (_, true, _) => State::Checkpoint,
            (_, _, true) => State::Sealed,
            _ => State::Free,
        };
        let (generation, epoch) = header.map_or((0, 0), |header| (header.generation, header.epoch));
        let opened_seq = header.map_or(Seq(0), |header| header.opened_seq);
        let class = header.map_or(COLDEST, |header| header.class);
        let expected = MeanExpected::default();
        Segment {
            state,
            generation,
            epoch,
            opened_seq,
            class,
            expected,
            death_is_durable: false,
            has_epitaph: false,
        }
    });
    let seen = headers.iter().flatten();
    let epoch_next = seen.clone().map(|header| header.epoch).max().unwrap_or(0).max(superblock.epoch) + 1;
    let epoch = if options.read_only { superblock.epoch } else { epoch_next };
    let mut log = Log::new(space, salt, epoch, outcome.last_seq, segments.collect());
    (log.last_move, log.flushed_move) = (outcome.last_move, outcome.last_move);
    log.coverage = Coverage::of(&root);
    let generations =
        seen.map(|header| header.generation).chain(sources.iter().map(|source| source.life.generation));
    log.generation_next = (generations.max().unwrap_or(0) + 1).max(root.generation_next);
    log.root_segments = root_segments;
    log.peak.note(weight_loaded.max(map.weight(0)));
    log.live_cost = Space::cost(map.total());
    log.counters.replayed_batches = outcome.last_seq.0 - root.start_seq.0;

    let segment_bytes = space.segment_bytes as u32;
    let buffers = Arc::clone(&log.buffers);
    Ok(Store {
        device,
        options,
        space,
        superblock: Mutex::new(superblock),
        maintenance: Mutex::default(),
        log: Arc::new(Mutex::new(log)),
        map: RwLock::new(map),
        map_faults: AtomicU64::new(0),
        map_evictions: AtomicU64::new(0),
        pins: (0..space.segments).map(|_| AtomicU32::new(0)).collect(),
        written: (0..space.segments).map(|_| AtomicU32::new(segment_bytes)).collect(),
        io_done: Arc::default(),
        may_begin: Arc::default(),
        awaited: Awaited::default(),
        buffers,
        background: Background::default(),
    })
}

/// What superblock and segment headers say to have been durable.
fn durable(superblock: &Superblock, headers: &[Option<SegmentHeader>]) -> Marks {
    let known = Marks { batches: superblock.flushed_seq, moves: Seq(0) };
    // A recovery that was itself cut has left headers of a later epoch, which are void.
    let headers = headers.iter().flatten().filter(|header| header.epoch == superblock.epoch);
    headers.fold(known, |known, header| known.max(header.durable))
}
