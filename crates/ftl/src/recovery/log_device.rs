//! The log device, before anything else is recovered.
//!
//! Superblock and log device name each other. What the frames hold that count is written to the flash and synced; then
//! recovery goes on over the flash alone, as if the flushes that wrote the frames had written there.
//!
//! 1. *It is the same bytes in the same place.* A frame holds bytes of a segment as they were appended, so whatever of
//!    them is on the flash already stays what it is. Blocks at the ends of a run keep their other bytes: those may be
//!    durable there, because a flush of the flash goes on behind what was logged.
//! 2. *Nothing else was written there.* A segment is reused only after a flush of the flash since it was dead, and that
//!    moved the mark past all frames of its life (`log::flush`), durably. As a second line the segment's header must
//!    name the frame's life, wherever the frame does not hold that header itself.
//! 3. *It may be done again.* Until the superblock names the epoch of this opening, a power cut leads to the same frames,
//!    and to 1. A recovery that was cut off has written its checkpoint into segments that it did not replay; those of
//!    frames are replayed. Afterwards the frames are void: their epoch is over.
//! 4. *What is acknowledged is known.* A group of frames, and the mark, say up to which batch all is durable. If recovery
//!    ends below, it reports corruption, as for marks on the flash.
//! 5. *An older copy of it is refused.* Its newest header names an opening before that of the superblock, whose epoch may
//!    have acknowledged what it lacks. A power cut in an opening leaves none: the opening is in the header first.
//! 6. *Who goes on without its log device does so for good.* Then the superblock names none, or another one, before a
//!    batch is accepted. So the old one can never be applied to what came later.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, BlockDevice, LogDevice};
use zerocopy::FromBytes;

use crate::{
    Error, LogDeviceUse, Options, Result, Seq,
    format::{Life, LogHeader, LogRef, Marks, Salt, SegmentHeader, SegmentHeaderRaw, Superblock},
    media::{
        creation,
        overlay::Overlay,
        ring::{self, Logged, Ring, Run},
    },
    mutant::{Rule, is_broken},
    recovery::Losses,
};

/// The log device of a store that is being opened.
#[derive(Default)]
pub(crate) struct Attached {
    /// The one to go on with, and the newest header on it.
    pub(crate) ring: Option<(Ring, LogHeader)>,
    /// What the superblock says about it from now on.
    pub(crate) log: Option<LogRef>,
    logged: Logged,
}

/// Finds the log device that `superblock` and `options` name.
pub(crate) fn attach(
    store: &str,
    superblock: &Superblock,
    options: &Options,
    losses: &Losses,
) -> Result<Attached> {
    let refuse = |reason: &str| Err(Error::LogDevice { device: store.to_owned(), reason: reason.to_owned() });
    match (&options.log_device, superblock.log) {
        (LogDeviceUse::None, None) => Ok(Attached::default()),
        (LogDeviceUse::None, Some(_)) => refuse(
            "the store has one, which may hold what is not in the store yet; name it (--log-device), or, if it is lost, \
             open the store as it was at some moment before (--without-log-device)",
        ),
        (LogDeviceUse::Device(_), None) => refuse("the store has none"),
        (LogDeviceUse::Device(device), Some(log)) => open(Arc::clone(device), superblock, log, losses),
        (LogDeviceUse::Without, _) => Ok(Attached::default()),
        (LogDeviceUse::New(_), _) if options.read_only => refuse("a store that is only read gets no new one"),
        (LogDeviceUse::New(_), Some(_)) => refuse(
            "the store has one, which may hold what is not in the store yet; open the store with it (--log-device), unless \
             it is lost, and then once without (--without-log-device), before it gets a new one",
        ),
        (LogDeviceUse::New(device), None) => {
            let was_left = ring::was_left(&**device, superblock.uuid, superblock.log)?;
            let log = ring::format(&**device, superblock.uuid, creation::random_uuid(), was_left)?;
            let (ring, header) = ring::load(Arc::clone(device), superblock.uuid, log)?;
            let logged = Logged::default();
            Ok(Attached { ring: Some((ring, header)), log: Some(log), logged })
        }
    }
}

fn open(
    device: Arc<dyn LogDevice>,
    superblock: &Superblock,
    log: LogRef,
    losses: &Losses,
) -> Result<Attached> {
    let (ring, header) = ring::load(device, superblock.uuid, log)?;
    if header.epoch > superblock.epoch {
        let reason = "it belongs to a later state of this store: an old copy of the store is here".into();
        return Err(Error::LogDevice { device: ring.name(), reason });
    }
    let is_older = |opening| header.epoch < superblock.epoch && opening < superblock.epoch;
    if header.opening.is_some_and(is_older) {
        let reason = "it is an older copy: the store was opened since".into();
        return Err(Error::LogDevice { device: ring.name(), reason });
    }
    let logged = match header.epoch == superblock.epoch || is_broken(Rule::LogEpochCounts) {
        true => {
            let (logged, intact) =
                ring.read(&header, superblock.segments(), superblock.segment_bytes as usize);
            losses.pass(intact, ())?;
            logged
        }
        false => Logged::default(),
    };
    Ok(Attached { ring: Some((ring, header)), log: Some(log), logged })
}

impl Attached {
    /// What was durable according to it.
    pub(crate) fn durable(&self) -> Marks {
        let counts = !is_broken(Rule::LogAcknowledgedCounts);
        Marks { batches: if counts { self.logged.acknowledged } else { Seq(0) }, moves: Seq(0) }
    }

    /// Brings what it holds to `device`, durably; or returns a device that reads so, if the store must not be changed.
    /// Bytes of another life of their segment are left out where `losses` lets that pass.
    pub(crate) fn apply(
        &mut self,
        device: Arc<dyn BlockDevice>,
        superblock: &Superblock,
        read_only: bool,
        losses: &Losses,
    ) -> Result<Arc<dyn BlockDevice>> {
        let mut runs = Vec::with_capacity(self.logged.runs.len());
        for run in std::mem::take(&mut self.logged.runs) {
            let checked = self.check(&*device, superblock, &run).map(|()| true);
            if losses.pass(checked, false)? {
                runs.push(run);
            }
        }
        if runs.is_empty() {
            return Ok(device);
        }
        let segment_bytes = u64::from(superblock.segment_bytes);
        let at = |run: &Run| u64::from(run.segment.0) * segment_bytes + run.start as u64;
        if read_only {
            let patches = runs.into_iter().map(|run| (at(&run), run.bytes)).collect();
            return Ok(Arc::new(Overlay::new(device, patches)));
        }
        for run in &runs {
            write(&*device, at(run), &run.bytes)?;
        }
        // The checkpoint of this opening would sync them too, before the frames are void; but what is read from here on
        // is then durable, as without a log device.
        device.sync()?;
        Ok(device)
    }

    /// By 2: `run` is of the life that its segment has on the flash, or begins it.
    fn check(&self, device: &dyn BlockDevice, superblock: &Superblock, run: &Run) -> Result<()> {
        let (salt, epoch) = (Salt::of(&superblock.uuid), superblock.epoch);
        let own = Life { segment: run.segment, generation: run.generation, epoch };
        let start = u64::from(run.segment.0) * u64::from(superblock.segment_bytes);
        let block = device.geometry().block_bytes as usize;
        let mut first = AlignedBuf::zeroed(size_of::<SegmentHeaderRaw>().next_multiple_of(block));
        match device.read_at(start, &mut first) {
            // It holds the header itself.
            Err(_) if run.start == 0 => first.fill(0),
            read => read?,
        }
        let header = |bytes: &[u8]| -> Option<SegmentHeader> {
            SegmentHeaderRaw::read_from_prefix(bytes).ok()?.0.verify(salt, run.segment).ok()
        };
        let there = header(&first);
        let fits = match run.start {
            0 => {
                let is_later =
                    |there: SegmentHeader| there.epoch == epoch && there.generation > own.generation;
                header(&run.bytes).is_some_and(|header| header.life() == own) && !there.is_some_and(is_later)
            }
            _ => there.is_some_and(|header| header.life() == own),
        };
        if fits && Some(run.segment) != superblock.copy_segment {
            return Ok(());
        }
        let ring = self.ring.as_ref().map(|(ring, _)| ring.name()).unwrap_or_default();
        Err(Error::Corrupt {
            what: format!("{}, segment header", device.name()),
            at: start,
            reason: format!("not of the life of segment {} that {ring} has bytes of", run.segment.0),
        })
    }
}

/// Writes `bytes` at byte `at`, and leaves the rest of their first and last blocks as it is.
fn write(device: &dyn BlockDevice, at: u64, bytes: &[u8]) -> Result<()> {
    let block = u64::from(device.geometry().block_bytes);
    let (start, end) = (at / block * block, (at + bytes.len() as u64).next_multiple_of(block));
    let mut blocks = AlignedBuf::zeroed((end - start) as usize);
    let is_covered = |edge: u64| at <= edge && edge + block <= at + bytes.len() as u64;
    for edge in [start, end - block].into_iter().filter(|edge| !is_covered(*edge)) {
        device.read_at(edge, &mut blocks[(edge - start) as usize..][..block as usize])?;
    }
    blocks[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    Ok(device.write_at(start, &blocks)?)
}
