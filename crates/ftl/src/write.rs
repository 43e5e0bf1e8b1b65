//! Batches into the log and the map.

use std::{borrow::Cow, sync::Arc};

use lacuna_device::Error as DeviceError;

use crate::{
    Effect, Error, Op, Result, Seq, Spare, Stream,
    checkpoint::Checkpointer,
    format::EntryKind,
    log::{AppendPoint, Batch, Expected, Item, Journal, Log, MeanExpected, stored_after},
    maintenance::Maintenance,
    map::{Map, SharedMap},
    media::{
        Volume,
        cipher::{Cipher, Ciphertext},
    },
    mutant::{Rule, is_broken},
    paging::{Base, DIRTY_SHARE, PagedMap},
    ranges::merged,
    read::ChunkCache,
    sync::{
        RwLockUpgradableReadGuard,
        atomic::{AtomicBool, Ordering},
    },
};

/// Items of a batch that are sampled for its class.
const LOOKED_AT_MAX: usize = 8;

/// Accepts batches.
pub(crate) struct Writer {
    volume: Arc<Volume>,
    map: Arc<SharedMap>,
    journal: Arc<Journal>,
    pages: Arc<PagedMap>,
    maintenance: Arc<Maintenance>,
    checkpointer: Arc<Checkpointer>,
    /// See [`crate::Options::elide_zero_tails`].
    elides: bool,
    cache: Option<Arc<ChunkCache>>,
    /// The superblock says durably that there may be encoded chunks.
    has_encodings: AtomicBool,
}

impl Writer {
    pub(crate) fn new(
        base: Base,
        maintenance: Arc<Maintenance>,
        checkpointer: Arc<Checkpointer>,
        elides: bool,
        cache: Option<Arc<ChunkCache>>,
    ) -> Writer {
        let Base { volume, map, journal, pages } = base;
        let has_encodings = AtomicBool::new(false);
        Writer { volume, map, journal, pages, maintenance, checkpointer, elides, cache, has_encodings }
    }

    /// See [`crate::Ftl::write_batch`].
    pub(crate) fn write_batch(&self, ops: &[Op<'_>], stream: Stream) -> Result<Seq> {
        Ok(self.accept(ops, stream, Spare::Nothing, true)?.expect("leaves are brought in"))
    }

    /// Writes a batch. Unless it `may_fault`, returns nothing when leaves of the map must be read.
    pub(crate) fn accept(
        &self,
        ops: &[Op<'_>],
        stream: Stream,
        spare: Spare,
        may_fault: bool,
    ) -> Result<Option<Seq>> {
        self.volume.must_write()?;
        let _sentinel = self.journal.sentinel();
        let mut ciphertext = Ciphertext::default();
        let batch = self.prepare(ops, &mut ciphertext)?;
        let bytes_max = self.volume.space().batch_bytes_max();
        if batch.bytes() > bytes_max {
            return Err(Error::BatchTooLarge { bytes: batch.bytes(), bytes_max });
        }
        if batch.is_encoded && !self.has_encodings.load(Ordering::Acquire) {
            self.checkpointer.name_encodings()?;
            self.has_encodings.store(true, Ordering::Release);
        }
        self.journal.stock(batch.payload_bytes as usize);
        if self.pages.is_limited() {
            self.maintenance.limit_dirty_leaves()?;
        }
        if batch.items.len() > 1 {
            self.map.read().load_ahead(batch.items.iter().map(Item::range)); // before the log is locked
        }
        // The leaves are read before the log is locked, and kept in memory until the batch is applied.
        let mut leaves = Vec::new();
        // Another class's segment is taken only when no space can be made: data that lives longer or shorter there
        // would cost collection more than the wait.
        let mut may_mix = is_broken(Rule::ClassesWait);
        let (seq, items, appended, is_due, owed) = loop {
            let mut log = self.journal.lock();
            self.journal.check_failure(&mut log)?;
            let map = self.map.upgradable_read();
            if !map.is_all_resident() && !map.absent(&batch.touched()).is_empty() {
                drop((map, log));
                if !may_fault {
                    return Ok(None);
                }
                leaves = self.pages.fault_in(&batch.touched())?;
                continue;
            }
            let device_has_space = !self.volume.device().waits_for_space();
            let limits = log.limits().leaving(spare);
            if !log.admits(&map, &batch, limits, device_has_space) {
                return Err(match device_has_space {
                    true => self.journal.full(&map, limits),
                    false => Error::Device(DeviceError::Full { what: self.volume.name() }),
                });
            }
            let expected = expected_of(&log, &map, &batch);
            let mut point = self.append_point(&log, &map, stream, expected);
            if may_mix {
                point = with_space(&log, point, &batch).unwrap_or(point);
            }
            let mut items = log.cut(&map, point, &batch.items);
            let mut missing = log.missing_segments(&map, point, &items);
            if missing > 0 && matches!(items, Cow::Owned(_)) {
                items = Cow::Borrowed(&batch.items); // for which space is made
                missing = log.missing_segments(&map, point, &items);
            }
            if missing == 0 {
                // Shared leaves would be copied to be changed.
                drop(leaves);
                let mut map = RwLockUpgradableReadGuard::upgrade(map);
                let (seq, appended) = log.accept(&mut map, point, &batch, &items);
                log.note_expected(point, expected, items.len());
                let is_due = self.maintenance.is_due(&log) || self.pages.is_write_back_due(&map, DIRTY_SHARE);
                break (
                    seq,
                    items,
                    appended,
                    is_due,
                    self.maintenance.owe(&mut log, point, batch.log_bytes()),
                );
            }
            drop((map, log));
            match self.maintenance.make_space(|log, map| log.missing_segments(map, point, &batch.items)) {
                Err(Error::Full { .. }) if !may_mix => may_mix = true,
                result => result?,
            }
        };
        self.journal.fill(&items, appended)?;
        if let Some(cache) = self.cache.as_ref().filter(|_| stream == Stream::Data) {
            cache.put_batch(seq, &items);
        }
        self.pages.evict_excess();
        if is_due {
            self.maintenance.kick();
        }
        if let Some(target) = owed {
            self.maintenance.pay(target);
        }
        Ok(Some(seq))
    }

    /// The batch of `ops`, encrypted if the store is.
    fn prepare<'a>(&self, ops: &[Op<'a>], ciphertext: &'a mut Ciphertext) -> Result<Batch<'a>> {
        let cipher = self.volume.cipher();
        let bytes = |op: &Op<'_>| match *op {
            Op::Write { data, .. } => data.len(),
            Op::Encoded(encoded) => encoded.data().len(),
            Op::Trim { .. } => 0,
        };
        let bytes = ops.iter().map(bytes).sum();
        match cipher {
            Cipher::Sectors(_) => Batch::encrypt(ops, self.elides, cipher, ciphertext.of_len(bytes)),
            Cipher::Locked if bytes > 0 => Err(Error::Locked { device: self.volume.name() }),
            Cipher::None | Cipher::Locked => Batch::prepare(ops, self.elides),
        }
    }

    /// See [`crate::Ftl::effect_in_memory`].
    pub(crate) fn effect_in_memory(&self, ops: &[Op<'_>]) -> Option<Effect> {
        let touched = merged(ops.iter().map(Op::range).map(|range| range.start.0..range.end.0).collect());
        let before_bytes = self.pages.in_memory(|map| Ok(map.freed_by(&touched)?.0))?;
        Some(Effect { before_bytes, after_bytes: stored_after(ops, self.elides) })
    }

    /// The append point for a batch: that of its lifetime class where grouping pays.
    fn append_point(&self, log: &Log, map: &Map, stream: Stream, expected: Expected) -> AppendPoint {
        if stream == Stream::Log {
            return AppendPoint::Log;
        }
        let is_grouped = log.target_space().groups(log.live_cost()) && !is_broken(Rule::LifetimesGroup);
        let expected = if is_grouped { expected } else { Expected::UNKNOWN };
        AppendPoint::Data(log.classes(map.total().bytes).class(expected))
    }
}

/// The append point for data whose class is nearest to that of `own` and whose open segment has space for the batch.
fn with_space(log: &Log, own: AppendPoint, batch: &Batch<'_>) -> Option<AppendPoint> {
    if own == AppendPoint::Log {
        return None;
    }
    let with_space = AppendPoint::data().filter(|point| log.segments_needed(*point, &batch.items) == 0);
    with_space.min_by_key(|point| point.class().abs_diff(own.class()))
}

/// How long the batch's data is expected to live, from a sample of its items.
fn expected_of(log: &Log, map: &Map, batch: &Batch<'_>) -> Expected {
    let classes = log.classes(map.total().bytes);
    let mut mean = MeanExpected::default();
    let step = batch.items.len().div_ceil(LOOKED_AT_MAX).max(1);
    for item in batch.items.iter().step_by(step).filter(|item| item.kind == EntryKind::Write) {
        let expected = match map.extents(item.range()).next() {
            // Leaves are normally in memory here; a hint would not be worth a read.
            None | Some(Err(_)) => Expected::UNKNOWN,
            Some(Ok((_, old))) => {
                let interval = log.last_seq().0.saturating_sub(old.birth.0);
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
    use crate::{
        Lba,
        log::Appended,
        store::test_store::{self, Parts},
    };

    const LBA: Lba = Lba(32);

    fn store() -> Parts {
        test_store::store(64 << 20, None)
    }

    /// Accepts `batch`, whose space is not filled yet.
    fn reserve(store: &Parts, batch: &Batch<'_>) -> (Seq, Appended) {
        store.journal.lock().accept(&mut store.map.write(), AppendPoint::Data(0), batch, &batch.items)
    }

    #[test]
    fn who_reads_what_is_being_filled_waits_for_it() {
        let (store, data) = (store(), vec![7; 20_480]);
        let batch = Batch::prepare(&[Op::Write { lba: LBA, data: &data }], true).unwrap();
        let (_, appended) = reserve(&store, &batch);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut back = vec![0; data.len()];
                store.reader.read(LBA, &mut back).unwrap();
                back
            });
            // A spurious wake-up makes it wait again.
            for _ in 0..2 {
                while !store.journal.wake_reader() {
                    assert!(!reader.is_finished(), "it did not wait");
                    thread::yield_now();
                }
            }
            store.journal.fill(&batch.items, appended).unwrap();
            assert!(reader.join().unwrap() == data);
        });
    }

    #[test]
    fn a_flush_waits_for_what_is_being_filled() {
        let (store, data) = (store(), vec![7; 20_480]);
        let batch = Batch::prepare(&[Op::Write { lba: LBA, data: &data }], true).unwrap();
        let (seq, appended) = reserve(&store, &batch);
        thread::scope(|scope| {
            let flusher = scope.spawn(|| store.journal.flush().unwrap());
            for _ in 0..2 {
                while store.journal.wake_flushers() == 0 {
                    assert!(!flusher.is_finished(), "it did not wait");
                    thread::yield_now();
                }
            }
            assert!(store.journal.lock().durable().batches < seq);
            store.journal.fill(&batch.items, appended).unwrap();
            flusher.join().unwrap();
            assert_eq!(store.journal.lock().durable().batches, seq);
        });
    }
}
