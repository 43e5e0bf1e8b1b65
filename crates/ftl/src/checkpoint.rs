//! Checkpoints: the whole map on the device, and the root from which recovery starts.
//!
//! A checkpoint begins by noting, at one instant (log and map locked): the last batch `S`, the append
//! offsets, the next generation, and which sealed segments are dead. Then it walks the map a few
//! thousand extents at a time while batches go on. What it collects may therefore be newer than `S`,
//! and that is harmless: replay from `S` rewrites every sector that a batch after `S` changed, and a
//! sector that none changed was collected as it was at `S`, wherever collection has moved it since.
//!
//! Order of writes, which is all that the crash argument needs:
//!
//! 1. map records and root record, into free segments;
//! 2. all append points' tails; then a sync: now everything collected is durable;
//! 3. the superblock, into one slot, then a sync: now the new root is in force; then the same for the
//!    other slot, so that nothing leads to the old root any more;
//! 4. only now the old checkpoint's segments become free, and dead ones that the new checkpoint covers
//!    (`reuse`).

use lacuna_device::{AlignedBuf, BlockDevice};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Result, Seq,
    addr::SegNo,
    format::{
        Life, MAP_ENTRY_BYTES, MapEntryRaw, POSITIONS, Place, RECORD_HEADER_BYTES, RecordHeader, RecordKind,
        Root, RootRef, Salt, SegmentHeader, SegmentKind, Superblock,
    },
    log::State,
    map::Map,
    reuse::Coverage,
    scan::{Scan, SegmentReader, corrupt, read_header},
    space::{MAP_RECORD_ENTRIES, Space},
    store::Store,
    superblock,
};

/// What is noted when a checkpoint begins.
struct Beginning {
    start_seq: Seq,
    start_move: Seq,
    coverage: Coverage,
    /// Segments of the old checkpoint.
    old: Vec<SegNo>,
    log_bytes: u64,
}

impl Store {
    /// See [`crate::Ftl::checkpoint`].
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.must_write()?;
        let _turn = self.maintenance.lock();
        self.checkpoint_in_turn()
    }

    /// A checkpoint, with `maintenance` held.
    pub(crate) fn checkpoint_in_turn(&self) -> Result<()> {
        let beginning = self.begin_checkpoint()?;
        let mut writer = Writer::new(self, beginning.start_seq);
        let root = match self.write_map(&mut writer, &beginning) {
            Ok(root) => root,
            Err(error) => {
                writer.abandon();
                return Err(error);
            }
        };
        self.flush_all()?;
        self.switch_root(root)?;
        self.finish_checkpoint(writer, beginning);
        Ok(())
    }

    fn begin_checkpoint(&self) -> Result<Beginning> {
        let log = self.log.lock();
        self.check_poison(&log)?;
        Ok(Beginning {
            start_seq: log.last_seq,
            start_move: log.last_move,
            coverage: Coverage { generation_next: log.generation_next, positions: log.positions() },
            old: log.checkpoint_segments.clone(),
            log_bytes: log.bytes_since_checkpoint,
        })
    }

    /// Writes map and root records; returns where the root is.
    fn write_map(&self, writer: &mut Writer<'_>, beginning: &Beginning) -> Result<RootRef> {
        let (mut cursor, mut extents) = (Some(0), 0);
        while let Some(from) = cursor {
            let mut entries = Vec::with_capacity(MAP_RECORD_ENTRIES);
            cursor = self.map.read().walk(from, MAP_RECORD_ENTRIES, &mut entries);
            extents += entries.len() as u64;
            writer.push(entries, cursor.is_none())?;
        }
        writer.push_root(beginning, extents)
    }

    /// Puts the root in force; everything it needs is durable.
    fn switch_root(&self, root: RootRef) -> Result<()> {
        let (flushed_seq, epoch) = {
            let log = self.log.lock();
            (log.flushed_seq, log.epoch)
        };
        let next = {
            let now = self.superblock.lock();
            Superblock { sequence: now.sequence + 1, epoch, flushed_seq, root: Some(root), ..now.clone() }
        };
        let switched = superblock::write(&*self.device, &next);
        let mut log = self.log.lock();
        match switched {
            Ok(bytes) => log.counters.checkpoint_bytes += bytes,
            Err(error) => return Err(self.poison(&mut log, error)),
        }
        drop(log);
        *self.superblock.lock() = next;
        Ok(())
    }

    fn finish_checkpoint(&self, writer: Writer<'_>, beginning: Beginning) {
        {
            let mut log = self.log.lock();
            log.coverage = beginning.coverage;
            log.checkpoint_segments = writer.places.iter().map(|place| place.segment).collect();
            log.checkpoint_taken = 0;
            log.bytes_since_checkpoint -= beginning.log_bytes;
            log.counters.checkpoints += 1;
        }
        for segment in beginning.old {
            self.free_segment(segment);
        }
        self.free_reusable();
    }
}

/// Writes records into segments of its own, each record on whole blocks.
struct Writer<'a> {
    store: &'a Store,
    seq: Seq,
    /// Segments taken, in order; the last is being filled.
    places: Vec<Place>,
    offset: usize,
    records: u32,
    entries: Vec<MapEntryRaw>,
}

impl<'a> Writer<'a> {
    fn new(store: &'a Store, seq: Seq) -> Writer<'a> {
        let offset = store.space.segment_bytes;
        Writer { store, seq, places: Vec::new(), offset, records: 0, entries: Vec::new() }
    }

    fn room(&self) -> usize {
        (self.store.space.segment_bytes - self.offset).saturating_sub(RECORD_HEADER_BYTES)
    }

    /// Adds map entries; writes those that fill a record, and at the `end` all.
    fn push(&mut self, entries: Vec<MapEntryRaw>, end: bool) -> Result<()> {
        self.entries.extend(entries);
        loop {
            let fits = (self.room() / MAP_ENTRY_BYTES).min(MAP_RECORD_ENTRIES);
            if self.entries.is_empty() || (!end && fits > 0 && self.entries.len() < fits) {
                return Ok(());
            }
            if fits == 0 {
                self.open_segment()?;
                continue;
            }
            let rest = self.entries.split_off(fits.min(self.entries.len()));
            let body = std::mem::replace(&mut self.entries, rest);
            self.put(RecordKind::Map, body.as_bytes(), false)?;
            self.records += 1;
        }
    }

    fn push_root(&mut self, beginning: &Beginning, extents: u64) -> Result<RootRef> {
        if self.room() < Root::bytes_for(self.places.len()) {
            self.open_segment()?;
        }
        let body = Root {
            start_seq: beginning.start_seq,
            start_move: beginning.start_move,
            generation_next: beginning.coverage.generation_next,
            extents,
            map_records: self.records,
            positions: beginning.coverage.positions,
            segments: self.places.clone(),
        }
        .to_bytes();
        let Place { segment, generation, .. } = *self.places.last().expect("room was made in it");
        let root = RootRef {
            segment,
            generation,
            offset: self.offset as u32,
            bytes: (RECORD_HEADER_BYTES + body.len()) as u32,
        };
        self.put(RecordKind::Root, &body, true)?;
        Ok(root)
    }

    fn life(&self) -> Life {
        let Place { segment, generation, .. } = *self.places.last().expect("a segment is open");
        Life { segment, generation, epoch: self.store.log.lock().epoch }
    }

    fn put(&mut self, kind: RecordKind, body: &[u8], last_part: bool) -> Result<()> {
        let header = RecordHeader {
            kind,
            last_part,
            life: self.life(),
            seq: self.seq,
            flushed_seq: Seq(0),
            part: self.records,
            offset: self.offset as u32,
            body_bytes: body.len() as u32,
            total_bytes: (RECORD_HEADER_BYTES + body.len()) as u32,
        };
        let sealed = header.seal(self.store.log.lock().salt, body);
        self.write(&sealed)
    }

    /// Writes `bytes` at the current offset, padded to whole blocks.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut buf = AlignedBuf::zeroed(bytes.len().next_multiple_of(self.store.space.block_bytes));
        buf[..bytes.len()].copy_from_slice(bytes);
        let segment = self.places.last().expect("a segment is open").segment;
        let done = self.store.device.write_at(self.store.device_offset(segment, self.offset), &buf);
        let mut log = self.store.log.lock();
        log.counters.checkpoint_bytes += buf.len() as u64;
        self.offset += buf.len();
        done.map_err(|error| self.store.poison(&mut log, error))
    }

    fn open_segment(&mut self) -> Result<()> {
        let life = {
            let mut log = self.store.log.lock();
            let Some(life) = log.take_free(State::Checkpoint) else {
                return Err(self.store.full(&log, &self.store.map.read()));
            };
            log.checkpoint_taken += 1;
            life
        };
        let Life { segment, generation, epoch } = life;
        self.places.push(Place { segment, generation, offset: 0 });
        self.offset = 0;
        let (salt, durable) = {
            let log = self.store.log.lock();
            (log.salt, log.durable())
        };
        let (kind, opened_seq) = (SegmentKind::Checkpoint, self.seq);
        let header = SegmentHeader { kind, segment, generation, epoch, opened_seq, durable };
        self.write(header.to_raw(salt).as_bytes())?;
        self.offset = self.store.space.checkpoint_start();
        Ok(())
    }

    /// Gives the segments of a checkpoint back that did not come into force.
    fn abandon(self) {
        let mut log = self.store.log.lock();
        for place in self.places {
            log.give_back(place.segment);
        }
        log.checkpoint_taken = 0;
    }
}

/// The map and the root that `superblock` points to. An empty store has none yet.
pub(crate) fn load(
    device: &dyn BlockDevice,
    space: Space,
    salt: Salt,
    superblock: &Superblock,
) -> Result<(Map, Root)> {
    let segments = space.segments as u32;
    let map = Map::new(segments);
    let Some(at) = superblock.root else {
        let root = Root {
            start_seq: Seq(0),
            start_move: Seq(0),
            generation_next: 1,
            extents: 0,
            map_records: 0,
            positions: [None; POSITIONS],
            segments: Vec::new(),
        };
        return Ok((map, root));
    };
    let life = Life { segment: at.segment, generation: at.generation, epoch: superblock.epoch };
    let mut reader = SegmentReader::new(device, space, at.segment);
    let place = reader.device_offset(at.offset as usize);
    let record = reader.record(at.offset as usize, salt, life)?;
    let record = record
        .filter(|record| record.header.kind == RecordKind::Root && record.header.total_bytes == at.bytes);
    let record =
        record.ok_or_else(|| corrupt(device, "checkpoint root", place, "not a valid root record"))?;
    let root = Root::parse(&record.body, segments, space.segment_bytes)
        .map_err(|flaw| corrupt(device, "checkpoint root", place, flaw))?;
    let mut loaded = Loaded { records: 0, extents: 0, map };
    for place in &root.segments {
        let life = Life { segment: place.segment, generation: place.generation, epoch: superblock.epoch };
        load_segment(device, space, salt, life, &mut loaded)?;
    }
    let Loaded { records, extents, map } = loaded;
    if records != root.map_records || extents != root.extents {
        let reason = format!(
            "root promises {} extents in {} records, {extents} in {records} are there",
            root.extents, root.map_records
        );
        return Err(corrupt(device, "checkpoint", place, reason));
    }
    if root.segments.iter().any(|place| map.live(place.segment).extents > 0) {
        return Err(corrupt(device, "checkpoint", place, "it maps data into its own segments"));
    }
    Ok((map, root))
}

/// What was read of a checkpoint so far.
struct Loaded {
    records: u32,
    /// Entries read. Where the walk met an extent that had grown over its cursor they may overlap.
    extents: u64,
    map: Map,
}

fn load_segment(
    device: &dyn BlockDevice,
    space: Space,
    salt: Salt,
    life: Life,
    loaded: &mut Loaded,
) -> Result<()> {
    let header = read_header(device, space, salt, life.segment)?;
    let reader = SegmentReader::new(device, space, life.segment);
    let is_it = |header: SegmentHeader| {
        header.kind == SegmentKind::Checkpoint && header.generation == life.generation
    };
    if !header.is_some_and(is_it) {
        return Err(corrupt(
            device,
            "checkpoint",
            reader.device_offset(0),
            "segment header is not the checkpoint's",
        ));
    }
    let mut scan = Scan::new(reader, salt, life, space.checkpoint_start());
    while let Some(record) = scan.next_record()? {
        let at = scan.reader.device_offset(record.header.offset as usize);
        if record.header.kind != RecordKind::Map {
            continue;
        }
        if record.header.part != loaded.records || !record.body.len().is_multiple_of(MAP_ENTRY_BYTES) {
            return Err(corrupt(device, "checkpoint", at, "map record out of order"));
        }
        loaded.records += 1;
        for bytes in record.body.chunks_exact(MAP_ENTRY_BYTES) {
            let raw = MapEntryRaw::read_from_bytes(bytes).expect("chunk of that size");
            let (lba, extent) = raw
                .verify(space.segments as u32, space.segment_bytes)
                .map_err(|flaw| corrupt(device, "checkpoint", at, flaw))?;
            loaded.map.restore(lba, extent);
            loaded.extents += 1;
        }
    }
    Ok(())
}
