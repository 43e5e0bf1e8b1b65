//! Batches into the log and the map, and from there to the device.

use lacuna_device as device;
use parking_lot::MutexGuard;

use crate::{
    Error, Op, Result, Seq, Stream,
    batch::Batch,
    format::{EntryKind, Marks, RecordKind},
    log::{AppendPoint, Log},
    map::Map,
    mutant::{Rule, is_broken},
    space::{GC_SEGMENTS, Space},
    store::Store,
};

/// What a flush makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cover {
    Batches,
    /// Relocations too.
    All,
}

impl Store {
    /// See [`crate::Ftl::write_batch`].
    pub(crate) fn write_batch(&self, ops: &[Op<'_>], stream: Stream) -> Result<Seq> {
        self.must_write()?;
        let batch = Batch::prepare(ops, self.options.elide_zero_tails)?;
        let bytes_max = self.space.batch_bytes_max();
        if batch.log_bytes() > bytes_max {
            return Err(Error::BatchTooLarge { bytes: batch.log_bytes(), bytes_max });
        }
        let point = AppendPoint::from(stream);
        let mut has_helped = false;
        let (seq, is_due) = loop {
            let mut log = self.log.lock();
            self.check_poison(&log)?;
            self.check_limits(&log, &self.map.read(), &batch)?;
            let fresh = log.segments_needed(point, &batch.items);
            if !has_helped && fresh > 0 && self.is_due(&log) {
                drop(log);
                self.help(fresh)?;
                has_helped = true;
                continue;
            }
            if self.missing_segments(&log, point, &batch) == 0 {
                break (self.apply(&mut log, point, &batch), self.is_due(&log));
            }
            drop(log);
            self.make_room(|log| self.missing_segments(log, point, &batch))?;
        };
        self.drain_writes()?;
        if is_due {
            self.background.kick();
        }
        Ok(seq)
    }

    /// `Full` when the batch would leave too much live.
    fn check_limits(&self, log: &Log, map: &Map, batch: &Batch<'_>) -> Result<()> {
        let limits = self.limits(log);
        let before = map.total();
        let mut after = before;
        after.bytes += batch.payload_bytes;
        after.extents += batch.writes;
        if Space::cost(after) <= limits.grow {
            return Ok(());
        }
        let (bytes, extents) = map.freed_by(&batch.touched());
        after.bytes -= bytes;
        after.extents = after.extents.saturating_add_signed(-extents);
        let cost = Space::cost(after);
        let same_size = after.bytes <= before.bytes && cost <= limits.hard;
        if cost <= limits.grow || cost <= Space::cost(before) || same_size {
            return Ok(());
        }
        Err(self.full(log, map))
    }

    /// The error for a batch that does not fit.
    pub(crate) fn full(&self, log: &Log, map: &Map) -> Error {
        Error::Full {
            device: self.device_name(),
            live_bytes: Space::cost(map.total()),
            limit_bytes: self.limits(log).grow,
        }
    }

    /// How many more segments must be free before the batch may be applied (rules 1 and 2 of
    /// [`crate::space`]).
    fn missing_segments(&self, log: &Log, point: AppendPoint, batch: &Batch<'_>) -> usize {
        let fresh = log.segments_needed(point, &batch.items);
        // Each item adds at most two extents: its own and the right part of a split one.
        let extents = log.peak.extents() + 2 * batch.items.len() as u64;
        let collection = if fresh > 0 { GC_SEGMENTS } else { 0 };
        let reserve = self.checkpoint_reserve(log, extents) + collection;
        (fresh + reserve).saturating_sub(log.free.len())
    }

    /// Free segments that belong to checkpoints (rule 1 of [`crate::space`]).
    pub(crate) fn checkpoint_reserve(&self, log: &Log, extents: u64) -> usize {
        self.space.checkpoint_reserve(extents, log.checkpoint_segments.len(), log.checkpoint_taken)
    }

    /// Numbers the batch and puts it into log and map. No I/O, no failure.
    fn apply(&self, log: &mut Log, point: AppendPoint, batch: &Batch<'_>) -> Seq {
        if batch.items.is_empty() {
            return log.last_seq;
        }
        let seq = log.last_seq.next();
        log.last_seq = seq;
        let placed = log.append(point, RecordKind::Batch, &batch.items, &self.written);
        log.counters.batches += 1;
        log.counters.host_bytes += batch.host_bytes;
        let mut map = self.map.write();
        for (item, phys) in batch.items.iter().zip(placed) {
            match item.kind {
                EntryKind::Trim => map.trim(item.range()),
                _ => map.write(item.lba, item.sectors, phys, item.payload.len() as u16, item.crc, seq),
            }
        }
        log.peak.note(map.total().extents);
        seq
    }

    /// Writes pieces to the device until none waits to be begun.
    pub(crate) fn drain_writes(&self) -> Result<()> {
        loop {
            let Some(write) = self.log.lock().next_write() else { return Ok(()) };
            let offset = self.device_offset(write.segment, write.piece.start);
            let done = self.device.write_at(offset, &write.piece.data);
            let mut log = self.log.lock();
            match done {
                Ok(()) => log.complete(&write, &self.written),
                Err(error) => return Err(self.poison(&mut log, error)),
            }
            self.io_done.notify_all();
        }
    }

    /// See [`crate::Ftl::flush`].
    pub(crate) fn flush(&self) -> Result<()> {
        let log = self.log.lock();
        let target = log.last_seq;
        self.flush_until(log, |log| log.flushed_seq >= target, Cover::Batches)
    }

    /// Makes everything durable that was written or appended so far, moved extents included, and
    /// notes the deaths of segments that it makes durable.
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.flush_until(self.log.lock(), |_| false, Cover::All)
    }

    /// Returns once `done`; until then leads a flush whenever nobody else does. One flush of one's
    /// own is always enough.
    fn flush_until(
        &self,
        mut log: MutexGuard<'_, Log>,
        done: impl Fn(&Log) -> bool,
        cover: Cover,
    ) -> Result<()> {
        loop {
            self.check_poison(&log)?;
            if done(&log) {
                return Ok(());
            }
            if !log.flushing {
                break;
            }
            self.io_done.wait(&mut log);
        }
        log.flushing = true;
        let result = self.lead_flush(log, cover);
        self.log.lock().flushing = false;
        self.io_done.notify_all();
        result
    }

    /// One flush: hand out all tails, wait until they and all earlier writes are on the device, sync.
    fn lead_flush(&self, mut log: MutexGuard<'_, Log>, cover: Cover) -> Result<()> {
        let durable = match cover {
            Cover::Batches => Marks { batches: log.last_seq, moves: log.flushed_move },
            Cover::All => Marks { batches: log.last_seq, moves: log.last_move },
        };
        let (extents, dead) = {
            let map = self.map.read();
            let dead = if cover == Cover::All { self.dead(&log, &map) } else { Vec::new() };
            (map.total().extents, dead)
        };
        log.peak.flush_begins(extents);
        for point in AppendPoint::all().filter(|point| cover == Cover::All || point.is_fresh()) {
            log.freeze(point);
        }
        let mark = log.write_mark();
        drop(log);
        self.drain_writes()?;
        let mut log = self.log.lock();
        while log.is_writing_below(mark) {
            self.check_poison(&log)?;
            self.io_done.wait(&mut log);
        }
        drop(log);
        let synced = if is_broken(Rule::FlushSyncs) { Ok(()) } else { self.device.sync() };
        let mut log = self.log.lock();
        if let Err(error) = synced {
            return Err(self.poison(&mut log, error));
        }
        assert!(log.durable().max(durable) == durable, "flushes went backwards");
        log.note_flushed(durable, &dead);
        log.counters.flushes += 1;
        Ok(())
    }

    /// Fails when an earlier write or sync did.
    pub(crate) fn check_poison(&self, log: &Log) -> Result<()> {
        match &log.poison {
            Some(reason) => Err(Error::Poisoned { device: self.device_name(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Stops all further writing: what reached the device is unknown from here on.
    pub(crate) fn poison(&self, log: &mut Log, error: device::Error) -> Error {
        log.poison.get_or_insert_with(|| error.to_string());
        self.io_done.notify_all();
        Error::Device(error)
    }
}
