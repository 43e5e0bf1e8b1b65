//! Batches into the log and the map.

use std::borrow::Cow;

use crate::{
    Error, Op, Result, Seq, Stream,
    format::{EntryKind, RecordKind},
    log::batch::{Batch, Item, cut_to_fit},
    log::fill::Appended,
    log::lifetime::{Expected, MeanExpected},
    log::reserve::Claim,
    log::{AppendPoint, Log},
    maintenance::DIRTY_SHARE,
    map::Map,
    space::{EXTENT_BYTES, Space},
    store::Store,
    sync::RwLockUpgradableReadGuard,
};

/// Items of a batch that are looked at for its class.
const LOOKED_AT_MAX: usize = 8;

impl Store {
    /// See [`crate::Ftl::write_batch`].
    pub(crate) fn write_batch(&self, ops: &[Op<'_>], stream: Stream) -> Result<Seq> {
        Ok(self.accept(ops, stream, true)?.expect("leaves are brought in"))
    }

    /// Writes a batch. Unless it `may_fault`, the answer is nothing when leaves of the map must be read.
    pub(crate) fn accept(&self, ops: &[Op<'_>], stream: Stream, may_fault: bool) -> Result<Option<Seq>> {
        self.volume.must_write()?;
        let _sentinel = self.sentinel();
        let batch = Batch::prepare(ops, self.options.elide_zero_tails)?;
        let bytes_max = self.volume.space().batch_bytes_max();
        if batch.bytes() > bytes_max {
            return Err(Error::BatchTooLarge { bytes: batch.bytes(), bytes_max });
        }
        self.buffers.stock(batch.payload_bytes as usize);
        if self.options.map_memory.is_some() {
            self.limit_dirty_leaves()?;
        }
        if batch.items.len() > 1 {
            self.map.read().load_ahead(batch.items.iter().map(Item::range)); // before the log is locked
        }
        // In memory before the log is locked, and kept there until the batch is applied.
        let mut leaves = Vec::new();
        let (seq, items, appended, is_due, owed) = loop {
            let mut log = self.log.lock();
            self.check_failure(&mut log)?;
            let map = self.map.upgradable_read();
            if !map.is_all_resident() && !map.absent(&batch.touched()).is_empty() {
                drop((map, log));
                if !may_fault {
                    return Ok(None);
                }
                leaves = self.fault_in(&batch.touched())?;
                continue;
            }
            self.check_limits(&log, &map, &batch)?;
            let expected = expected_of(&log, &map, &batch);
            let point = self.append_point(&log, &map, stream, &batch, expected);
            let mut items = self.cut(&log, &map, point, &batch.items);
            let mut missing = self.missing_segments(&log, &map, point, &items);
            if missing > 0 && matches!(items, Cow::Owned(_)) {
                items = Cow::Borrowed(&batch.items); // for which room is made
                missing = self.missing_segments(&log, &map, point, &items);
            }
            if missing == 0 {
                // Shared leaves would be copied to be changed.
                drop(leaves);
                let mut map = RwLockUpgradableReadGuard::upgrade(map);
                let (seq, appended) = self.apply(&mut log, &mut map, point, &batch, &items);
                log.note_expected(point, expected, items.len());
                let is_due = self.is_due(&log) || self.is_write_back_due(&map, DIRTY_SHARE);
                break (seq, items, appended, is_due, self.owe(&mut log, point, batch.log_bytes()));
            }
            drop((map, log));
            self.make_room(|log, map| self.missing_segments(log, map, point, &batch.items))?;
        };
        self.fill(&items, appended)?;
        self.relieve();
        if is_due {
            self.background.kick();
        }
        if let Some(target) = owed {
            self.pay(target);
        }
        Ok(Some(seq))
    }

    /// Where the batch goes: with data of its lifetime where that pays, unless that takes a segment that is not
    /// to spare and others have room.
    fn append_point(
        &self,
        log: &Log,
        map: &Map,
        stream: Stream,
        batch: &Batch<'_>,
        expected: Expected,
    ) -> AppendPoint {
        if stream == Stream::Log {
            return AppendPoint::Log;
        }
        let is_grouped = log.wished_space().groups(log.live_cost);
        let expected = if is_grouped { expected } else { Expected::UNKNOWN };
        let own = AppendPoint::Data(log.classes(map.total().bytes).class(expected));
        if self.missing_segments(log, map, own, &batch.items) == 0 {
            return own;
        }
        let with_room = AppendPoint::data().find(|point| log.segments_needed(*point, &batch.items) == 0);
        with_room.unwrap_or(own)
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
        let (bytes, extents) = map.freed_by(&batch.touched()).expect("invariant 4 of the map: all is there");
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
            device: self.volume.name(),
            live_bytes: Space::cost(map.total()),
            limit_bytes: self.limits(log).grow,
        }
    }

    /// `items` that go to `point`, one of them perhaps cut in two, so that the segment open there is filled. An
    /// extent more is worth that only where it takes no room that others count on: neither what may be live
    /// is exceeded, nor must a segment more be kept for checkpoints.
    pub(crate) fn cut<'i, 'a>(
        &self,
        log: &Log,
        map: &Map,
        point: AppendPoint,
        items: &'i [Item<'a>],
    ) -> Cow<'i, [Item<'a>]> {
        let room = match log.open_room(point) {
            Some(room) if log.segments_needed(point, items) > 0 => room,
            _ => return Cow::Borrowed(items),
        };
        let fresh = items.iter().filter(|item| item.kind == EntryKind::Write);
        let fresh_cost: u64 = fresh.map(|item| item.payload.len() as u64 + EXTENT_BYTES).sum();
        let cost = Space::cost(map.total()) + fresh_cost + EXTENT_BYTES;
        let weight = log.peak.weight();
        let more = weight + 1 + map.weight(1) - map.weight(0);
        let takes_a_segment = log.checkpoint_reserve(more) > log.checkpoint_reserve(weight);
        match cost > self.limits(log).grow || takes_a_segment {
            true => Cow::Borrowed(items),
            false => cut_to_fit(items, room),
        }
    }

    /// How many more segments must be free before a batch of `items` may be applied (invariant 2 of
    /// [`crate::log::reserve`]).
    fn missing_segments(&self, log: &Log, map: &Map, point: AppendPoint, items: &[Item<'_>]) -> usize {
        let fresh = log.segments_needed(point, items);
        let count = items.len() as u64;
        let before = log.checkpoint_reserve(log.peak.weight());
        let after = log.checkpoint_reserve(log.peak.weight_after(count, map.weight(count)));
        Space::missing(fresh, log.free.len(), before, after)
    }

    /// Numbers the batch and puts it, as `items`, into log and map, where its room is to be filled next. No I/O,
    /// no failure.
    fn apply(
        &self,
        log: &mut Log,
        map: &mut Map,
        point: AppendPoint,
        batch: &Batch<'_>,
        items: &[Item<'_>],
    ) -> (Seq, Appended) {
        if items.is_empty() {
            return (log.last_seq, Appended::new(log.salt, 0));
        }
        let seq = log.last_seq.next();
        log.last_seq = seq;
        let (free, kept) = (log.free.len(), log.left_by(Claim::Fresh));
        log.peak.charge(items.len() as u64);
        let appended = log.append(point, RecordKind::Batch, items, &self.written);
        log.counters.note_batch(point, batch.host_bytes);
        log.mean_batch.note(if point == AppendPoint::Log { 0 } else { batch.payload_bytes });
        for (item, phys) in items.iter().zip(&appended.placed) {
            match item.kind {
                EntryKind::Trim => map.trim(item.range()),
                _ => map.write(item.lba, item.sectors, *phys, item.payload.len() as u16, item.crc, seq),
            }
        }
        log.peak.note(map.weight(0));
        let (left, keeps) = (log.free.len(), log.left_by(Claim::Fresh));
        assert!(
            (left == free && keeps <= kept) || left >= keeps,
            "invariant 2 of the reserve: {left} of {keeps}"
        );
        log.live_cost = Space::cost(map.total());
        (seq, appended)
    }
}

/// How long what the batch writes is expected to live, from a look at some of it.
fn expected_of(log: &Log, map: &Map, batch: &Batch<'_>) -> Expected {
    let classes = log.classes(map.total().bytes);
    let mut mean = MeanExpected::default();
    let step = batch.items.len().div_ceil(LOOKED_AT_MAX).max(1);
    for item in batch.items.iter().step_by(step).filter(|item| item.kind == EntryKind::Write) {
        let expected = match map.extents(item.range()).next() {
            // Leaves are in memory here; a hint would not be worth waiting for one.
            None | Some(Err(_)) => Expected::UNKNOWN,
            Some(Ok((_, old))) => {
                let interval = log.last_seq.0 - old.birth.0;
                classes.overwritten(log.expected(old.phys.segment), interval)
            }
        };
        mean.note(expected, item.payload.len());
    }
    mean.get().unwrap_or(Expected::UNKNOWN)
}

#[cfg(all(test, not(feature = "shuttle")))] // Shuttle's locks work in its own threads only.
mod tests {
    use std::thread;

    use super::*;
    use crate::{Lba, store::test_store};

    const LBA: Lba = Lba(32);

    fn store() -> Store {
        test_store::store(64 << 20, None)
    }

    /// Accepts `batch`, whose room is not filled yet.
    fn reserve(store: &Store, batch: &Batch<'_>) -> (Seq, Appended) {
        store.apply(&mut store.log.lock(), &mut store.map.write(), AppendPoint::Data(0), batch, &batch.items)
    }

    #[test]
    fn who_reads_what_is_being_filled_waits_for_it() {
        let (store, data) = (store(), vec![7; 20_480]);
        let batch = Batch::prepare(&[Op::Write { lba: LBA, data: &data }], true).unwrap();
        let (_, appended) = reserve(&store, &batch);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut back = vec![0; data.len()];
                store.read(LBA, &mut back).unwrap();
                back
            });
            // Woken in vain, it waits again.
            for _ in 0..2 {
                while !store.awaited.filled.notify_one() {
                    assert!(!reader.is_finished(), "it did not wait");
                    thread::yield_now();
                }
            }
            store.fill(&batch.items, appended).unwrap();
            assert!(reader.join().unwrap() == data);
        });
    }

    #[test]
    fn a_flush_waits_for_what_is_being_filled() {
        let (store, data) = (store(), vec![7; 20_480]);
        let batch = Batch::prepare(&[Op::Write { lba: LBA, data: &data }], true).unwrap();
        let (seq, appended) = reserve(&store, &batch);
        thread::scope(|scope| {
            let flusher = scope.spawn(|| store.flush().unwrap());
            for _ in 0..2 {
                while store.io_done.notify_all() == 0 {
                    assert!(!flusher.is_finished(), "it did not wait");
                    thread::yield_now();
                }
            }
            assert!(store.log.lock().flushed_seq < seq);
            store.fill(&batch.items, appended).unwrap();
            flusher.join().unwrap();
            assert_eq!(store.log.lock().flushed_seq, seq);
        });
    }
}
