//! What callers choose when they make, open, drive and inspect a store.

use std::{fmt, ops::Range, str::FromStr, sync::Arc};

use lacuna_crypt::{Secret, SlotOptions};
use lacuna_device::{DeviceStats, LogDevice};

use crate::{
    addr::{Lba, SECTOR},
    encoding::Encoded,
};

/// One element of a batch; see [`crate::Ftl::write_batch`].
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Write `data`, a whole number of sectors, at `lba`.
    Write {
        /// First sector.
        lba: Lba,
        /// The bytes; a multiple of 512.
        data: &'a [u8],
    },
    /// Write data that was encoded. It is stored plain if the batch changes any of its sectors twice, and without
    /// [`Options::elide_zero_tails`].
    Encoded(&'a Encoded<'a>),
    /// Make `sectors` sectors at `lba` read as zeros and give their space back.
    Trim {
        /// First sector.
        lba: Lba,
        /// Number of sectors.
        sectors: u64,
    },
}

impl Op<'_> {
    /// The sectors that it changes.
    pub fn range(&self) -> Range<Lba> {
        let (lba, sectors) = match *self {
            Op::Write { lba, data } => (lba, (data.len() / SECTOR) as u64),
            Op::Encoded(encoded) => (encoded.lba(), (encoded.data().len() / SECTOR) as u64),
            Op::Trim { lba, sectors } => (lba, sectors),
        };
        lba..Lba(lba.0.saturating_add(sectors))
    }
}

/// What a batch does to the space that its sectors take; see [`crate::Ftl::effect_in_memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Bytes stored in them before it that are not after it: of an encoded chunk of which a part stays, none.
    pub before_bytes: u64,
    /// Bytes that it stores in them.
    pub after_bytes: u64,
}

/// What is stored in one way; see [`Room`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomOf {
    /// Mapped sectors, in bytes.
    pub mapped_bytes: u64,
    /// Bytes that they take.
    pub stored_bytes: u64,
}

/// The room that a range takes, by encoding; see [`crate::Ftl::room`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// What is not encoded.
    pub plain: RoomOf,
    /// What is compressed with LZ4.
    pub lz4: RoomOf,
    /// What is compressed with zstd.
    pub zstd: RoomOf,
}

impl RoomOf {
    pub(crate) fn add(&mut self, sectors: u8, stored_bytes: u64) {
        self.mapped_bytes += u64::from(sectors) * SECTOR as u64;
        self.stored_bytes += stored_bytes;
    }
}

impl Room {
    /// All of it.
    pub fn total(&self) -> RoomOf {
        let all = [self.plain, self.lz4, self.zstd];
        RoomOf {
            mapped_bytes: all.iter().map(|of| of.mapped_bytes).sum(),
            stored_bytes: all.iter().map(|of| of.stored_bytes).sum(),
        }
    }
}

/// Space for live data that a batch which adds some leaves to others: to it, the store is so much smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spare {
    /// None.
    #[default]
    Nothing,
    /// Percent of what may be live.
    Percent(u8),
    /// Bytes.
    Bytes(u64),
}

impl Spare {
    /// Bytes of `limit_bytes`.
    pub fn of(self, limit_bytes: u64) -> u64 {
        match self {
            Spare::Nothing => 0,
            Spare::Percent(percent) => limit_bytes / 100 * u64::from(percent.min(100)),
            Spare::Bytes(bytes) => bytes.min(limit_bytes),
        }
    }
}

/// Append point for fresh data: batches of different expected lifetime lie in different segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Data that is overwritten in place.
    #[default]
    Data,
    /// A log: appended, then trimmed from the front.
    Log,
}

/// A key for a store.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// What it consists of.
    pub secret: Secret,
    /// How its slot is made.
    pub slot: SlotOptions,
}

/// What is known of the key of a store that is to be opened.
#[derive(Clone, Debug, Default)]
pub enum Key {
    /// Nothing: an encrypted store is refused.
    #[default]
    None,
    /// This opens it; a store that is not encrypted is refused.
    Secret(Secret),
    /// It is not needed: data will be neither read nor written. Everything else works without it, trims, collection,
    /// check and scrub included.
    Locked,
}

/// How [`crate::Ftl::format`] lays a store out.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// Segment size in bytes, a power of two from 64 KiB to 256 MiB; by default a 4096th of the
    /// capacity, at least 1 MiB and at most 64 MiB.
    pub segment_bytes: Option<u32>,
    /// Size of the store in bytes, a multiple of 4096; by default all of the device.
    pub capacity_bytes: Option<u64>,
    /// Overwrite whatever the device holds.
    pub force: bool,
    /// Identity of the store; by default random.
    pub uuid: Option<[u8; 16]>,
    /// Encrypt data with a new random key, which this key opens. By default data is not encrypted.
    pub key: Option<NewKey>,
    /// The store has this log device, which must hold nothing unless `force` is set.
    pub log_device: Option<Arc<dyn LogDevice>>,
}

/// The log device of a store that is opened.
///
/// What a flush makes durable goes there, and reaches the device of the store later in large pieces. A store that has
/// one can only be opened with it, because batches may be durable there alone.
#[derive(Clone, Debug, Default)]
pub enum LogDeviceUse {
    /// None: a store that has one is refused.
    #[default]
    None,
    /// This one, which must be the store's.
    Device(Arc<dyn LogDevice>),
    /// None, although the store may have had one: it opens as it was at some moment before, all batches of which are
    /// there, and has none from then on.
    Without,
    /// This one, which must hold nothing, for a store that has none, or none any more ([`LogDeviceUse::Without`]).
    New(Arc<dyn LogDevice>),
}

/// How much of its device a store uses, while that is enough. It does not change how much the store may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Footprint {
    /// All of a device of its own; of a store file, twice the live data plus 96 MiB.
    #[default]
    Auto,
    /// All of the device: collection has the least to move.
    Whole,
    /// Collection begins when more segments are in use than this.
    Live {
        /// Percent of the live data.
        percent: u32,
        /// Bytes beside that.
        plus_bytes: u64,
    },
}

/// Bytes that a store file uses beside a multiple of the live data: this much must be written before collection pays.
const PLUS_BYTES: u64 = 96 << 20;
/// Bytes that a store file uses, in percent of the live data.
const PERCENT: u32 = 200;
/// The minimum: with fewer than one segment of garbage to three of live data, the live data would be moved again and
/// again.
pub(crate) const FOOTPRINT_PERCENT_MIN: u32 = 133;

impl Footprint {
    /// Resolves `Auto`: `is_sparse` says whether the host may use the capacity that the store does not.
    pub(crate) fn or_default(self, is_sparse: bool) -> Footprint {
        match self {
            Footprint::Auto if is_sparse => Footprint::Live { percent: PERCENT, plus_bytes: PLUS_BYTES },
            Footprint::Auto => Footprint::Whole,
            wish => wish,
        }
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Footprint::Auto => f.write_str("auto"),
            Footprint::Whole => f.write_str("whole"),
            Footprint::Live { percent, .. } => write!(f, "{percent}"),
        }
    }
}

impl FromStr for Footprint {
    type Err = &'static str;

    /// `auto`, `whole`, or a percentage of the live data, to which 96 MiB are added.
    fn from_str(text: &str) -> std::result::Result<Footprint, &'static str> {
        let refused = "a footprint is auto, whole, or percent of what is live from 133 to 10000";
        match text {
            "auto" => Ok(Footprint::Auto),
            "whole" => Ok(Footprint::Whole),
            percent => match percent.parse() {
                Ok(percent @ FOOTPRINT_PERCENT_MIN..=10_000) => {
                    Ok(Footprint::Live { percent, plus_bytes: PLUS_BYTES })
                }
                _ => Err(refused),
            },
        }
    }
}

/// How [`crate::Ftl::open`] runs a store. None of it is stored.
#[derive(Clone, Debug)]
pub struct Options {
    /// Never write to the device, not even to make a recovery permanent.
    pub read_only: bool,
    /// How much of the device to use.
    pub footprint: Footprint,
    /// Run garbage collection and checkpoints in a thread. Without it they run in
    /// [`crate::Ftl::step`], and within writes, piece by piece, when free segments run short.
    pub background: bool,
    /// Do not store trailing zeros of a chunk.
    pub elide_zero_tails: bool,
    /// Discard freed segments on the device: each of them, or, in a store file, those beyond the footprint.
    pub discard: bool,
    /// Bytes of memory for the map; leaves that do not fit are read when they are needed. `None` keeps every leaf that
    /// was needed once. The upper levels of the map, a twentieth of it, are always in memory. A batch that changes more
    /// than fits, such as a trim of very many extents, and the replay of a log take more while they run.
    pub map_memory: Option<u64>,
    /// Bytes of memory for summaries of sealed segments, so that collection need not read them: about 20 for each write
    /// of up to 16 KiB.
    pub summary_memory: u64,
    /// Bytes of memory for chunks as they are stored: a short read of one that is there needs no device. 0 for none.
    pub chunk_cache: u64,
    /// The key, if the store is encrypted.
    pub key: Key,
    /// The store's log device.
    pub log_device: LogDeviceUse,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            footprint: Footprint::Auto,
            background: false,
            elide_zero_tails: true,
            discard: true,
            map_memory: None,
            summary_memory: 8 << 20,
            chunk_cache: 0,
            key: Key::None,
            log_device: LogDeviceUse::None,
        }
    }
}

/// The work that [`crate::Ftl::step`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Whatever is due, if anything is.
    Due,
    /// Collect a piece of a segment, about 256 KiB of its live data, even if plenty of segments are free.
    Gc,
    /// Write a checkpoint, even if none is due.
    Checkpoint,
}

/// How deep [`crate::Ftl::check`] looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckDepth {
    /// Map, segments and counters against each other; reads the leaves of the map that are not in memory.
    Structure,
    /// Also reads every mapped chunk and verifies its checksum.
    Payload,
}

/// Something that [`crate::Ftl::check`] found wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong, with the place.
    pub message: String,
}

/// How far one of the parts of a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being checked.
    pub what: &'static str,
    /// How much of it was checked.
    pub done: u64,
    /// About how much there is in all.
    pub expected: u64,
}

/// Result of [`crate::Ftl::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong; empty for a sound store.
    pub findings: Vec<Finding>,
    /// Extents looked at.
    pub extents: u64,
    /// Bytes read and verified.
    pub verified_bytes: u64,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Traffic of a [`Stream`] since open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Batches accepted.
    pub batches: u64,
    /// Bytes of data handed to `write_batch`.
    pub host_bytes: u64,
    /// Bytes written to the device for its batches, headers and padding included.
    pub written_bytes: u64,
}

/// State and traffic of a store. Traffic counts from open.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Size of the store in bytes; its device may be larger, see [`crate::Ftl::capacity_max`].
    pub capacity_bytes: u64,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// Segments of the device, the superblocks' included.
    pub segments: u64,
    /// Segments that hold nothing.
    pub free_segments: u64,
    /// Segments without live data that wait: for a flush, or for a reader to leave.
    pub waiting_for_flush: u64,
    /// Segments without live data that wait for a retained summary, or the next checkpoint.
    pub waiting_for_checkpoint: u64,
    /// Free segments that only checkpoints and collection may take.
    pub reserved_segments: u64,
    /// Segments that are open for appends.
    pub open_segments: u64,
    /// Bytes of open segments that are still free.
    pub open_free_bytes: u64,
    /// Bytes stored for mapped sectors: sum of the stored bytes of all extents.
    pub allocated_bytes: u64,
    /// All segments in use in bytes: live data, garbage, log, checkpoint.
    pub store_bytes: u64,
    /// Segments for which the host has allocated space, because they hold or held something, in bytes: the space that a
    /// store file takes of its file system. After opening, segments that were never used count as such.
    pub touched_bytes: u64,
    /// The segments that the store uses before collection begins, in bytes; see [`Footprint`].
    pub target_bytes: u64,
    /// Bytes that count against `live_limit_bytes`: stored bytes and bookkeeping of all extents.
    pub live_bytes: u64,
    /// Live bytes beyond which a batch that adds some is refused with `Full`.
    pub live_limit_bytes: u64,
    /// Extents in the map.
    pub extents: u64,
    /// Memory of the map in bytes, estimated.
    pub map_memory_bytes: u64,
    /// Leaves of the map: runs of up to 128 extents that are kept and read together.
    pub map_leaves: u64,
    /// Those that are in memory.
    pub map_leaves_resident: u64,
    /// Leaves read because they were needed.
    pub map_faults: u64,
    /// Memory of the summaries that are kept, in bytes; see [`Options::summary_memory`].
    pub summary_memory_bytes: u64,
    /// Memory of stored chunks that are kept for reads ([`Options::chunk_cache`]).
    pub chunk_cache_bytes: u64,
    /// Chunks that short reads found there.
    pub chunk_cache_hits: u64,
    /// Chunks that short reads did not find there.
    pub chunk_cache_misses: u64,
    /// Leaves dropped from memory, see [`Options::map_memory`].
    pub map_evictions: u64,
    /// Segments that hold leaves of the map and checkpoints.
    pub map_segments: u64,
    /// Of batches of [`Stream::Data`]; part of the totals below.
    pub data_stream: StreamStats,
    /// Of batches of [`Stream::Log`].
    pub log_stream: StreamStats,
    /// Bytes of data handed to `write_batch`.
    pub host_bytes: u64,
    /// Bytes written to the device for batches, headers and padding included.
    pub log_bytes: u64,
    /// Bytes written to the device by garbage collection.
    pub gc_bytes: u64,
    /// Bytes written to the device for the map: by checkpoints, superblocks included, for leaves evicted, for
    /// retained summaries.
    pub checkpoint_bytes: u64,
    /// Bytes of zeros written so that the host has space for a segment before it is used.
    pub prepared_bytes: u64,
    /// Batches accepted.
    pub batches: u64,
    /// Those that no flush has made durable yet.
    pub unflushed_batches: u64,
    /// Device flushes done for [`crate::Ftl::flush`].
    pub flushes: u64,
    /// Segments collected.
    pub gc_segments: u64,
    /// Segments that became free before a checkpoint, because a retained summary lists their records.
    pub retained: u64,
    /// Checkpoints written, that of open included.
    pub checkpoints: u64,
    /// Batches replayed by open.
    pub replayed_batches: u64,
    /// Chunks that garbage collection found damaged or could not read; their segments are kept out of use.
    pub corrupt_chunks: u64,
    /// Size of the ring on the log device in bytes; 0 without one.
    pub log_device_bytes: u64,
    /// Bytes of it that are not settled: that are not known to be on the device.
    pub log_device_used_bytes: u64,
    /// Bytes of the log written to it.
    pub log_device_written_bytes: u64,
    /// Flushes that ended there.
    pub log_device_flushes: u64,
    /// Whether the log device is ordinary memory, whose content is gone with the power.
    pub log_device_is_volatile: bool,
    /// The device's own counters, since it was opened.
    pub device: DeviceStats,
    /// The engine that performs the device's requests; see [`lacuna_device::BlockDevice::io_engine`].
    pub io_engine: &'static str,
}

impl Stats {
    /// Bytes that reached the device per byte of data handed in; 0 when none was.
    pub fn write_amplification(&self) -> f64 {
        if self.host_bytes == 0 {
            return 0.0;
        }
        (self.log_bytes + self.gc_bytes + self.checkpoint_bytes) as f64 / self.host_bytes as f64
    }
}
