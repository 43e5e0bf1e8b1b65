//! A device that knows what the store was doing when its power was cut.
//!
//! It derives that from the bytes alone (docs/FORMAT.md): a segment's header names its use, and a write to its first
//! block begins a new life of it.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use lacuna_device::{BlockDevice, DeviceStats, Error, Geometry, Result};
use lacuna_sim::SimDevice;
use parking_lot::Mutex;

use super::SEGMENT_BYTES;

/// The activity whose operation the power cut hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Batch,
    Collection,
    Checkpoint,
    /// Leaves of the map that are written so that they can be evicted.
    WriteBack,
    RetainedSummary,
    /// The first write to a segment that was used before.
    Reuse,
    Discard,
    /// Zeros, so that the host allocates space for a segment.
    MakeReady,
    Sync,
    /// Opening after a cut.
    Recovery,
    /// Opening a store that was closed.
    Open,
    Growth,
    /// An operation of the log device.
    LogDevice,
}

const PLACES: [Place; 13] = [
    Place::Batch,
    Place::Collection,
    Place::Checkpoint,
    Place::WriteBack,
    Place::RetainedSummary,
    Place::Reuse,
    Place::Discard,
    Place::MakeReady,
    Place::Sync,
    Place::Recovery,
    Place::Open,
    Place::Growth,
    Place::LogDevice,
];

/// How many cuts fell in each place.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    cuts: u64,
    places: [u64; PLACES.len()],
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.cuts += other.cuts;
        self.places.iter_mut().zip(other.places).for_each(|(sum, more)| *sum += more);
    }

    pub(crate) fn of(&self, place: Place) -> u64 {
        self.places[place as usize]
    }

    /// At least `min` cuts fell in each of `places`.
    pub(crate) fn assert_each(&self, min: u64, places: &[Place]) {
        for place in places {
            assert!(self.of(*place) >= min, "too few cuts in {place:?}:\n{self}");
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>8} cuts, of these in", self.cuts)?;
        PLACES.iter().try_for_each(|place| writeln!(f, "{:>8} {place:?}", self.of(*place)))
    }
}

/// What the harness is doing with the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Work,
    Recovery,
    Open,
    Growth,
}

#[derive(Clone, Default)]
struct Seen {
    phase: Phase,
    /// Kind of each segment, as its header names it, and lives begun.
    segments: Vec<(u8, u64)>,
    /// Classes of lifetime of the segments of data.
    classes: BTreeSet<u8>,
    /// Where the last write went.
    last: Option<Place>,
    /// The power was cut here since [`Watch::note_cut`].
    was_cut: bool,
    tally: Tally,
}

/// A [`SimDevice`] under observation.
pub(crate) struct Watch {
    device: Arc<SimDevice>,
    is_sparse: bool,
    /// Segments when it was made.
    segments: u64,
    /// Size of its blocks for the store, at least those of the simulated device.
    block_bytes: AtomicU32,
    seen: Mutex<Seen>,
}

impl Watch {
    pub(crate) fn new(device: Arc<SimDevice>, is_sparse: bool) -> Arc<Watch> {
        let segments = (device.geometry().capacity_bytes / u64::from(SEGMENT_BYTES)) as usize;
        let seen = Seen { segments: vec![(0, 0); segments], ..Seen::default() };
        let block_bytes = AtomicU32::new(device.geometry().block_bytes);
        Arc::new(Watch { device, is_sparse, segments: segments as u64, block_bytes, seen: Mutex::new(seen) })
    }

    /// See [`SimDevice::fork`].
    pub(crate) fn fork(&self, seed: u64) -> Arc<Watch> {
        let seen = Mutex::new(self.seen.lock().clone());
        let Watch { is_sparse, segments, .. } = *self;
        let block_bytes = AtomicU32::new(self.geometry().block_bytes);
        Arc::new(Watch { device: self.device.fork(seed), is_sparse, segments, block_bytes, seen })
    }

    /// The store's bytes are on a device with blocks of `block_bytes` from its next opening on.
    pub(crate) fn set_block_bytes(&self, block_bytes: u32) {
        self.block_bytes.store(block_bytes, Ordering::Relaxed);
    }

    pub(crate) fn sim(&self) -> &SimDevice {
        &self.device
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.seen.lock().phase = phase;
    }

    /// Lives of segments begun, per segment of the store: how often the log wrapped.
    pub(crate) fn wraps(&self) -> u64 {
        let seen = self.seen.lock();
        seen.segments.iter().map(|(_, lives)| lives).sum::<u64>() / self.segments
    }

    /// How many classes of lifetime segments of data had.
    pub(crate) fn classes(&self) -> usize {
        self.seen.lock().classes.len()
    }

    pub(crate) fn tally(&self) -> Tally {
        self.seen.lock().tally
    }

    /// The power is off: if no operation of this device met that, the cut hit the log device beside it.
    pub(crate) fn note_cut(&self) {
        let mut seen = self.seen.lock();
        if !std::mem::take(&mut seen.was_cut) {
            seen.tally.cuts += 1;
            seen.tally.places[Place::LogDevice as usize] += 1;
        }
    }

    /// Passes an operation on and notes whether the power was cut in it.
    fn observe(&self, places: &[Place], operation: impl FnOnce() -> Result<()>) -> Result<()> {
        let was_off = self.device.is_off();
        let result = operation();
        if !was_off && matches!(result, Err(Error::PowerCut)) {
            let mut seen = self.seen.lock();
            let whole = match seen.phase {
                Phase::Work => places,
                Phase::Recovery => &[Place::Recovery],
                Phase::Open => &[Place::Open],
                Phase::Growth => &[Place::Growth],
            };
            seen.was_cut = true;
            seen.tally.cuts += 1;
            whole.iter().for_each(|place| seen.tally.places[*place as usize] += 1);
        }
        result
    }

    /// The activity that a write belongs to, and whether it begins a new life of a used segment.
    fn classify(&self, offset: u64, data: &[u8]) -> (Place, bool) {
        const KIND_AT: usize = 10;
        let mut seen = self.seen.lock();
        if data.starts_with(b"LACUNAFT") {
            seen.last = Some(Place::Checkpoint);
            return (Place::Checkpoint, false);
        }
        let number = (offset / u64::from(SEGMENT_BYTES)) as usize;
        let segment = &mut seen.segments[number];
        let begins = number > 0 && offset.is_multiple_of(u64::from(SEGMENT_BYTES));
        if begins && data.iter().all(|byte| *byte == 0) {
            return (Place::MakeReady, false);
        }
        let reuse = begins && segment.1 > 0;
        if begins {
            *segment = (data[KIND_AT], segment.1 + 1);
        }
        let record = (&data[..4] == b"LREC").then(|| (data[8], data[48..52] == [0; 4]));
        let place = match (number, segment.0) {
            (_, 4..) if record == Some((3, true)) => Place::WriteBack,
            (_, 4..) if record.is_some_and(|(kind, _)| kind == 7) => Place::RetainedSummary,
            (0, _) | (_, 4..) => Place::Checkpoint,
            (_, 3) => Place::Collection,
            _ => Place::Batch,
        };
        if begins && data[KIND_AT] == 1 {
            seen.classes.insert(data[KIND_AT + 1]);
        }
        seen.last = Some(place);
        (place, reuse)
    }
}

impl BlockDevice for Watch {
    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: self.block_bytes.load(Ordering::Relaxed), ..self.device.geometry() }
    }

    fn grow(&self, capacity_bytes: u64) -> Result<Geometry> {
        let segments = self.device.grow(capacity_bytes)?.capacity_bytes / u64::from(SEGMENT_BYTES);
        self.seen.lock().segments.resize(segments as usize, (0, 0));
        Ok(self.geometry())
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry().check_range(self.name(), offset, buf.len() as u64)?;
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.geometry().check_range(self.name(), offset, data.len() as u64)?;
        let (place, reuse) = self.classify(offset, data);
        let places = [place, Place::Reuse];
        self.observe(&places[..1 + usize::from(reuse)], || self.device.write_at(offset, data))
    }

    fn sync(&self) -> Result<()> {
        let last = self.seen.lock().last;
        let of_map = last.filter(|last| matches!(last, Place::Checkpoint | Place::RetainedSummary));
        let places = [Place::Sync, of_map.unwrap_or(Place::Sync)];
        self.observe(&places[..1 + usize::from(of_map.is_some())], || self.device.sync())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.observe(&[Place::Discard], || self.device.discard(offset, len))
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }
}
