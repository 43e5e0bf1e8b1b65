//! Flushes into the log device.
//!
//! With a log device there are two levels of durable. What a flush has *logged* is on the log device; what is *settled*
//! is on the flash, written and synced, as a flush without a log device leaves it. A caller's flush ends when all its
//! batches are either. Everything inside the store relies on what is settled alone: marks in records and headers, deaths
//! of segments, checkpoints, reuse. So what is on the flash is always a store for itself, as if the flushes that were
//! only logged had not been called.
//!
//! Bytes that are appended for batches are listed until they are logged or settled. A flush takes all of the list, in
//! the order in which they were appended, and writes them to the ring as one group. Meanwhile pieces go to the flash as
//! always, when they are full; tails are padded and written only by a flush that settles.
//!
//! Invariants:
//! 1. Of all bytes appended for batches, each is settled, or logged in the ring behind the mark, or in a group that is
//!    being written, or in the list; or the list has been dropped since, and then flushes settle until one has ended
//!    that began later.
//! 2. Groups are written one after the other, and batches count as logged when theirs is durable: so at that moment the
//!    ring and the flash together hold every batch up to the last one in the list when the group was taken.
//! 3. A flush that settles moves the mark past all groups that were taken when it froze the tails, because all of their
//!    bytes had been appended by then. The mark is durable before the flush notes deaths, and it notes none of a segment
//!    of which a part was still listed, because a group may have taken that since: so no segment is reused whose bytes
//!    are behind the mark.
//! 4. The list is short: where more has been appended than is worth writing twice, it is dropped.
//! 5. A group goes only where the ring is free: between its end and the mark that is durable.
//!
//! A failed write or fence of the log device poisons the store, as one of the device does.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use crate::{
    Result, Seq,
    addr::SegNo,
    format::{FRAME_BYTES, Life, LogHeader},
    log::{Log, flushes::Flushes, journal::Journal, tail::AppendedPart},
    media::ring::{Mark, Part, Place, Ring},
    mutant::{Rule, is_broken},
    sync::MutexGuard,
};

/// Bytes that are listed at most; beyond that a flush of the flash costs less than writing them twice.
const LISTED_BYTES_MAX: u64 = 4 << 20;
/// Bytes in the ring from which on the store settles by itself: opening after a power cut brings so many to the flash.
const LOGGED_BYTES_DUE: u64 = 64 << 20;

/// A part of a segment that is neither logged nor settled.
struct Listed {
    life: Life,
    part: AppendedPart,
}

/// What a flush writes to the ring.
pub(super) struct Group {
    listed: Vec<Listed>,
    place: Place,
}

/// What a flush that settles covers, as of the moment at which it froze the tails.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Parts listed before.
    parts: u64,
    position: u64,
    frame_next: u64,
}

/// State of the log device, part of the log's.
pub(super) struct Logging {
    pub(super) ring: Arc<Ring>,
    listed: VecDeque<Listed>,
    /// Parts that were listed before those in the list.
    gone: u64,
    /// Bytes in the list.
    bytes: u64,
    /// Parts that were in the list when it was dropped last, or before; and those that are settled.
    dropped: u64,
    settled: u64,
    /// Where the next group goes, and the number of its first frame.
    end: Place,
    /// As it is on the log device.
    mark: Mark,
    /// Led one at a time (2).
    pub(super) flushes: Flushes,
    /// Every batch up to this one is logged or settled.
    logged: Seq,
    /// Number of the frame behind those of the last group that is durable.
    frames: u64,
    pub(super) counters: LogCounters,
}

/// Traffic of the log device since open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogCounters {
    pub(crate) flushes: u64,
    pub(crate) bytes: u64,
}

impl Logging {
    fn list(&mut self, listed: Listed) {
        self.bytes += listed.part.len() as u64;
        self.listed.push_back(listed);
        if self.bytes > LISTED_BYTES_MAX.min(self.ring.bytes() / 4) {
            self.gone += self.listed.len() as u64;
            self.listed.clear();
            self.bytes = 0;
            self.dropped = if is_broken(Rule::LogListDropped) { self.dropped } else { self.gone };
        }
    }

    /// Whether a group of all that is listed can be written.
    fn has_space(&self) -> bool {
        let bytes_max = self.bytes + (self.listed.len() * FRAME_BYTES) as u64;
        let (_, end) = self.ring.place(self.end.position, bytes_max);
        end - self.mark.position <= self.ring.bytes()
    }

    fn is_complete(&self) -> bool {
        self.settled >= self.dropped
    }

    fn take(&mut self) -> Group {
        let listed: Vec<Listed> = self.listed.drain(..).collect();
        (self.gone, self.bytes) = (self.gone + listed.len() as u64, 0);
        let mut lives: Vec<(Life, usize)> = Vec::new();
        let (mut frames, mut bytes) = (0, 0);
        for Listed { life, part } in &listed {
            bytes += part.len() as u64;
            match lives.iter_mut().find(|(seen, end)| seen == life && *end == part.at()) {
                Some((_, end)) => *end += part.len(),
                None => {
                    frames += 1;
                    lives.push((*life, part.at() + part.len()));
                }
            }
        }
        let (position, end) = self.ring.place(self.end.position, bytes + frames * FRAME_BYTES as u64);
        let place = Place { position, number: self.end.number };
        if frames > 0 {
            self.end = Place { position: end, number: place.number + frames };
        }
        Group { listed, place }
    }

    fn used(&self) -> u64 {
        self.end.position - self.mark.position
    }
}

/// Numbers of the log device; see [`crate::Stats`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogUse {
    pub(crate) capacity_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) flushes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) is_volatile: bool,
}

impl Log {
    /// Every batch up to this one is durable, on the flash or on the log device.
    pub(crate) fn acknowledged(&self) -> Seq {
        self.logging.as_ref().map_or(self.durable.batches, |logging| logging.logged.max(self.durable.batches))
    }

    /// The log device, for display.
    pub(crate) fn log_use(&self) -> Option<LogUse> {
        self.logging.as_ref().map(|logging| LogUse {
            capacity_bytes: logging.ring.bytes(),
            used_bytes: logging.used(),
            flushes: logging.counters.flushes,
            written_bytes: logging.counters.bytes,
            is_volatile: logging.ring.is_volatile(),
        })
    }

    /// Whether what is logged should be settled, so that the ring does not fill up and opening stays fast.
    pub(crate) fn is_settling_due(&self) -> bool {
        let due = |logging: &Logging| logging.used() > (logging.ring.bytes() / 2).min(LOGGED_BYTES_DUE);
        self.logging.as_ref().is_some_and(due)
    }

    /// Whether a flush of batches can be logged. Otherwise it settles.
    pub(super) fn can_log(&self) -> bool {
        self.logging.as_ref().is_some_and(|logging| logging.is_complete() && logging.has_space())
    }

    /// Lists what was appended to a segment from `offset` on.
    pub(super) fn list_appended(&mut self, segment: SegNo, offset: usize) {
        if self.logging.is_none() {
            return;
        }
        let life = self.life(segment);
        let parts: Vec<_> = self.streams.tail_mut(segment).parts_from(offset).collect();
        let logging = self.logging.as_mut().expect("just seen");
        parts.into_iter().for_each(|part| logging.list(Listed { life, part }));
    }

    /// Takes off `dead` the segments of which a part is listed (3); nothing is when the next flush that settles begins.
    pub(super) fn leave_out_listed(&self, dead: &mut Vec<SegNo>) {
        let is_kept = !dead.is_empty() && !is_broken(Rule::ListedNotDead);
        let Some(logging) = self.logging.as_ref().filter(|_| is_kept) else { return };
        let listed: HashSet<_> = logging.listed.iter().map(|listed| listed.life.segment).collect();
        dead.retain(|segment| !listed.contains(segment));
    }

    /// A flush that settles has frozen the tails.
    pub(super) fn cut_log(&self) -> Option<Cut> {
        let logging = self.logging.as_ref()?;
        Some(Cut {
            parts: logging.gone + logging.listed.len() as u64,
            position: logging.end.position,
            frame_next: logging.end.number,
        })
    }
}

impl Journal {
    /// Says on the log device, with the newest `header`, that `epoch` is about to begin.
    pub(crate) fn announce(&self, ring: &Ring, header: &mut LogHeader, epoch: u64) -> Result<()> {
        let mut log = self.lock();
        let put = MutexGuard::unlocked(&mut log, || ring.announce(header, epoch));
        put.map_err(|error| self.poison(&mut log, error))
    }

    /// From now on flushes go to `ring`, whose newest header has number `sequence`. Makes headers of this epoch durable
    /// first, so that no frame of an older one counts.
    pub(crate) fn begin_logging(&self, ring: Ring, sequence: u64) -> Result<()> {
        let ring = Arc::new(ring);
        let mut log = self.lock();
        self.check_failure(&mut log)?;
        assert_eq!(log.durable.batches, log.last.batches, "invariant 1: all is settled when logging begins");
        let (epoch, settled_seq) = (log.epoch(), log.last.batches);
        let mark = Mark { sequence: sequence + 2, epoch, settled_seq, ..Mark::default() };
        // Both, so that damage to one of them does not void this epoch's frames.
        let put = MutexGuard::unlocked(&mut log, || {
            ring.put_mark(Mark { sequence: sequence + 1, ..mark })?;
            ring.put_mark(mark)
        });
        if let Err(error) = put {
            return Err(self.poison(&mut log, error));
        }
        log.logging = Some(Logging {
            ring,
            listed: VecDeque::new(),
            gone: 0,
            bytes: 0,
            dropped: 0,
            settled: 0,
            end: Place { position: 0, number: 0 },
            mark,
            flushes: Flushes::new(1),
            logged: log.durable.batches,
            frames: 0,
            counters: LogCounters::default(),
        });
        Ok(())
    }

    /// One flush into the log device: takes what is listed, waits until it is filled, and makes it durable there.
    pub(super) fn lead_logged_flush(&self, mut log: MutexGuard<'_, Log>) -> Result<()> {
        let (batches, epoch) = (log.last_seq(), log.epoch());
        let logging = log.logging.as_mut().expect("the caller has looked");
        logging.flushes.begin(batches);
        let (group, ring) = (logging.take(), Arc::clone(&logging.ring));
        let filled = |_: &Log| -> Option<Vec<Part>> {
            let part = |Listed { life, part }: &Listed| {
                let Life { segment, generation, .. } = *life;
                part.bytes().map(|bytes| Part { segment, generation, start: part.at(), bytes: bytes.clone() })
            };
            group.listed.iter().map(part).collect()
        };
        let Some(parts) = self.signals.fills.wait(&mut log, filled) else {
            self.check_failure(&mut log)?;
            drop(log);
            return self.must_not_be_stopped();
        };
        let bytes: u64 = parts.iter().map(|part| part.bytes.len() as u64).sum();
        let number = group.place.number;
        let written = match parts.is_empty() {
            true => Ok(0),
            false => MutexGuard::unlocked(&mut log, || ring.write(group.place, epoch, &parts, batches)),
        };
        let frames = match written {
            Ok(frames) => frames,
            Err(error) => return Err(self.poison(&mut log, error)),
        };
        self.check_failure(&mut log)?;
        let logging = log.logging.as_mut().expect("it stays");
        (logging.logged, logging.frames) = (batches, number + frames);
        logging.counters.flushes += 1;
        logging.counters.bytes += bytes;
        logging.flushes.end(batches);
        Ok(())
    }

    /// What is wrong with the log device: nothing, unless it was changed behind the store's back, or has lost something.
    pub(crate) fn check_log_device(&self) -> Option<String> {
        let state = |log: &Log| {
            let logging = log.logging.as_ref()?;
            Some((Arc::clone(&logging.ring), logging.mark, logging.frames))
        };
        let (ring, mark, frames) = state(&self.lock())?;
        let space = self.volume.space();
        let found = ring.check(mark, frames, space.segments as u64, space.segment_bytes);
        // A flush that settled meanwhile has freed what was read.
        let (_, mark_now, _) = state(&self.lock())?;
        found.err().filter(|_| mark_now == mark).map(|error| error.to_string())
    }

    /// Moves the mark to `cut`: what was logged before is settled, and so are all batches up to `batches`. It is the
    /// calling flush's turn, so no other one moves it.
    pub(super) fn settle_to(&self, log: &mut MutexGuard<'_, Log>, cut: Cut, batches: Seq) -> Result<()> {
        let epoch = log.epoch();
        let logging = log.logging.as_mut().expect("it was cut");
        let Cut { position, frame_next, .. } = cut;
        if frame_next > logging.mark.frame_next {
            let sequence = logging.mark.sequence + 1;
            let mark = Mark { sequence, epoch, frame_next, position, settled_seq: batches };
            let ring = Arc::clone(&logging.ring);
            let put = match is_broken(Rule::LogMarkDurable) {
                true => Ok(()),
                false => MutexGuard::unlocked(log, || ring.put_mark(mark)),
            };
            if let Err(error) = put {
                return Err(self.poison(log, error));
            }
            log.logging.as_mut().expect("it stays").mark = mark;
        }
        let logging = log.logging.as_mut().expect("it stays");
        let settled = cut.parts.saturating_sub(logging.gone).min(logging.listed.len() as u64) as usize;
        let bytes: u64 = logging.listed.drain(..settled).map(|listed| listed.part.len() as u64).sum();
        logging.bytes -= bytes;
        logging.gone += settled as u64;
        logging.settled = logging.settled.max(cut.parts);
        Ok(())
    }
}
