//! The public handle of an open store.

use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

use lacuna_device::BlockDevice;

use super::parts::Store;
#[cfg(doc)]
use crate::Error;
use crate::{
    CheckDepth, Cold, Effect, FormatOptions, KeyChange, KeyInfo, Lba, Mapped, Op, Options, Progress, Remains,
    Report, ResidentLeaves, Result, Room, SECTOR, Scrub, Secret, Seq, Spare, Stats, Stream, Work,
    media::{cipher::Cipher, creation, keys},
    read,
    recovery::Losses,
    sync::{Mutex, thread::JoinHandle},
};

/// An open store. Shared by reference or `Arc` among threads.
///
/// Dropping it leaves the device as a power cut would, except that unflushed bytes that are already written are not
/// lost; [`Ftl::close`] makes all durable and the next open fast.
pub struct Ftl {
    pub(super) store: Store,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Ftl {
    /// Makes an empty store on `device`.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] when the device holds anything and `force` is off, [`Error::Geometry`]
    /// when it is too small or the segment size is not a possible one.
    pub fn format(device: Arc<dyn BlockDevice>, options: &FormatOptions) -> Result<()> {
        creation::format(&*device, options)
    }

    /// Opens the store on `device`, recovers it, and unless it is read-only makes the recovery
    /// permanent before it returns.
    ///
    /// # Errors
    /// [`Error::NotAStore`], [`Error::Version`], [`Error::Features`] and [`Error::Geometry`] name
    /// what keeps the device from being opened; [`Error::Corrupt`] names what is damaged.
    pub fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Ftl> {
        let store = Store::open(device, &options, &Losses::REFUSED)?;
        if options.read_only {
            return Ok(Ftl { store, thread: Mutex::new(None) });
        }
        store.settle()?;
        let thread = options.background.then(|| store.maintenance.spawn());
        Ok(Ftl { store, thread: Mutex::new(thread) })
    }

    /// Opens the remains of a store for reading only, even where [`Ftl::open`] refuses because of damage, and returns a
    /// list of that damage, one line for each place; it is empty where `open` would not refuse. If a flushed batch is
    /// missing, the space is as the batches before it left it. Reading a damaged sector is an error. Where the list says
    /// that a checkpoint was put together from the rest of its map, sectors may be missing from the space, or be back, and
    /// where it says so, be as they were before they were overwritten.
    ///
    /// # Errors
    /// As [`Ftl::open`], if all superblocks are damaged, or it is no store.
    pub fn salvage(device: Arc<dyn BlockDevice>, options: Options) -> Result<(Ftl, Vec<String>)> {
        let options = Options { read_only: true, ..options };
        let refusal = match Ftl::open(device.clone(), options.clone()) {
            Ok(ftl) => return Ok((ftl, Vec::new())),
            Err(refusal) => refusal,
        };
        let losses = Losses::noted();
        losses.pass(Err(refusal), ())?;
        let store = Store::open(device, &options, &losses)?;
        Ok((Ftl { store, thread: Mutex::new(None) }, losses.into_messages()))
    }

    /// Whether a file or device that begins with `start` (64 KiB of it are enough) looks like a store.
    pub fn looks_like_a_store(start: &[u8]) -> bool {
        creation::looks_like_a_store(start)
    }

    /// The keys that open the encrypted store on `device`, which need not be open.
    ///
    /// # Errors
    /// [`Error::NotEncrypted`], [`Error::Corrupt`]; as [`Ftl::open`] if it is no store.
    pub fn keys(device: &dyn BlockDevice) -> Result<Vec<KeyInfo>> {
        keys::list(device)
    }

    /// Changes the keys of the encrypted store on `device`, which `secret` opens and which must not be open; returns
    /// the slot that changed. Data stays as it is: whoever knew the old key and has a copy of the store as it was can
    /// go on reading that copy, and, with what the copy tells, the store. A power cut leaves the old keys or the new
    /// ones.
    ///
    /// # Errors
    /// [`Error::Key`] says why not; as [`Ftl::keys`]; a failed device write or sync.
    pub fn change_keys(device: &dyn BlockDevice, secret: &Secret, change: &KeyChange<'_>) -> Result<usize> {
        keys::change(device, secret, change)
    }

    /// Applies `ops` in order, whole or not at all across a crash, and returns the batch's number.
    /// They are visible to reads at once and durable after [`Ftl::flush`].
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::BatchTooLarge`], [`Error::BadRange`]: nothing was applied. A failed
    /// device write poisons the store; the batch is then visible but may be lost.
    pub fn write_batch(&self, ops: &[Op<'_>], stream: Stream) -> Result<Seq> {
        self.must_not_be_forked()?;
        self.store.writer.write_batch(ops, stream)
    }

    /// As [`Ftl::write_batch`], for callers that hold locks which must not wait for reads: none, and nothing is done,
    /// if a part of the map must be read first. Then release the locks and [`Ftl::load_leaves`] the ranges that the batch
    /// changes. It may still wait for space.
    ///
    /// # Errors
    /// As [`Ftl::write_batch`]; [`Error::Full`] also if the batch adds live data and leaves less than `spare`.
    pub fn try_write_batch(&self, ops: &[Op<'_>], stream: Stream, spare: Spare) -> Result<Option<Seq>> {
        self.must_not_be_forked()?;
        self.store.writer.accept(ops, stream, spare, false)
    }

    /// Every batch accepted before this call survives a power cut after it. Concurrent calls share
    /// one flush of the device.
    ///
    /// # Errors
    /// A failed device write or sync poisons the store.
    pub fn flush(&self) -> Result<()> {
        if self.store.base.volume.is_read_only() {
            return Ok(());
        }
        self.must_not_be_forked()?;
        self.store.base.journal.flush()
    }

    /// Every batch up to `seq`, which was accepted, survives a power cut after this call. Does nothing if it is durable
    /// already, and only waits if another thread's flush is about to make it so.
    ///
    /// # Errors
    /// As [`Ftl::flush`], also where nothing had to be done.
    pub fn flush_through(&self, seq: Seq) -> Result<()> {
        if self.store.base.volume.is_read_only() {
            return Ok(());
        }
        self.must_not_be_forked()?;
        self.store.base.journal.flush_through(seq)
    }

    /// Number of the last batch that was accepted.
    pub fn last_seq(&self) -> Seq {
        self.store.base.journal.lock().last_seq()
    }

    /// Fills `buf`, whole sectors, from `lba`; unmapped sectors read as zeros.
    ///
    /// A chunk of the space, the [`CHUNK_SECTORS`](crate::CHUNK_SECTORS) sectors from a multiple of that on, is read as
    /// it was at one moment. Of a batch that another thread writes meanwhile, one chunk may have the changes and another
    /// one not.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when stored bytes are not what was written; `buf` then holds no part of the damaged chunk,
    /// but other parts of it may be filled.
    pub fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<()> {
        self.store.reader.read(lba, buf)
    }

    /// The first run of mapped sectors in `range`, cut to it. Sectors of zeros at the end of a write are not mapped.
    ///
    /// # Errors
    /// When a part of the map that is not in memory cannot be read.
    pub fn mapped(&self, range: Range<Lba>) -> Result<Option<Range<Lba>>> {
        let mut run: Option<Range<Lba>> = None;
        self.store.base.pages.visit_extents(range.start.0..range.end.0, |lba, extent| {
            let end = Lba(lba.0 + u64::from(extent.sectors));
            let (start, follows) = run.as_ref().map_or((lba, true), |run| (run.start, run.end == lba));
            if follows {
                run = Some(start..end);
            }
            follows
        })?;
        Ok(run)
    }

    /// Whether the sector is mapped; see [`Ftl::mapped`].
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn is_mapped(&self, lba: Lba) -> Result<bool> {
        Ok(self.mapped(lba..Lba(lba.0.saturating_add(1)))?.is_some())
    }

    /// Stored bytes of `range`, at a cost that does not depend on its length. All of an encoded chunk counts where its
    /// first mapped sector is.
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn allocated(&self, range: Range<Lba>) -> Result<u64> {
        Ok(self.store.base.pages.with_map(|map| map.live_in(range.start.0..range.end.0))?.bytes)
    }

    /// As [`Ftl::allocated`], without a read from the device; `None` if that would take one. Then [`Ftl::load_leaves`]
    /// both ends of the range.
    pub fn allocated_in_memory(&self, range: Range<Lba>) -> Option<u64> {
        Some(self.store.base.pages.in_memory(|map| map.live_in(range.start.0..range.end.0))?.bytes)
    }

    /// What [`Ftl::allocated`] counts in `range`, by encoding. It looks at each extent, so it is for people who ask. While
    /// others write, parts of the range may be looked at at different moments.
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn room(&self, range: Range<Lba>) -> Result<Room> {
        read::room(&self.store.base.pages, range.start.0..range.end.0)
    }

    /// Chunks of the space in `range`, whole ones, that were last written by one of the batches `births` and hold data
    /// that is not compressed with zstd. About `extents_max` extents are looked at.
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn cold_chunks(&self, range: Range<Lba>, births: &Range<Seq>, extents_max: usize) -> Result<Cold> {
        read::cold_chunks(&self.store.base.pages, range.start.0..range.end.0, births, extents_max)
    }

    /// The mapped sectors of `range`, each run with the batch that wrote it. As long as these stay the same, so does
    /// what they hold.
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn births(&self, range: Range<Lba>) -> Result<Vec<(Range<Lba>, Seq)>> {
        let mut births = Vec::new();
        self.store.base.pages.visit_extents(range.start.0..range.end.0, |lba, extent| {
            births.push((lba..Lba(lba.0 + u64::from(extent.sectors)), extent.birth));
            true
        })?;
        Ok(births)
    }

    /// What [`Ftl::allocated`] of the sectors that `ops` change is now, and would be after them. `None` as for
    /// [`Ftl::allocated_in_memory`].
    pub fn effect_in_memory(&self, ops: &[Op<'_>]) -> Option<Effect> {
        self.store.writer.effect_in_memory(ops)
    }

    /// Extents of `range`, at a cost that does not depend on its length. A write of a single sector is one
    /// extent, until it is overwritten or trimmed.
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn extents(&self, range: Range<Lba>) -> Result<u64> {
        Ok(self.store.base.pages.with_map(|map| map.live_in(range.start.0..range.end.0))?.extents)
    }

    /// The first `sectors_max` mapped sectors in `range`, in order. Parts of the map that are not in memory
    /// are read at the same time.
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn mapped_sectors(&self, range: Range<Lba>, sectors_max: usize) -> Result<Vec<Lba>> {
        self.store.base.pages.mapped_sectors(range.start.0..range.end.0, sectors_max)
    }

    /// Those of the sectors `lbas` that are mapped, with their contents, in order of their addresses. They are read at
    /// the same time, wherever they lie.
    ///
    /// # Errors
    /// As [`Ftl::read`].
    pub fn read_sectors(&self, lbas: &[Lba]) -> Result<Vec<(Lba, [u8; SECTOR])>> {
        self.store.reader.read_sectors(lbas)
    }

    /// Calls `visit` with those of the sectors `lbas` that are mapped, and their contents or the error, in the order of
    /// the device: for very many sectors, some of which lie near each other. Those are read together, with the bytes
    /// between them. It takes some 70 bytes of memory for each, and keeps their segments from being used again
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn visit_sectors(&self, lbas: &[Lba], visit: impl FnMut(Lba, Result<&[u8; SECTOR]>)) -> Result<()> {
        self.store.reader.visit_sectors(lbas, visit)
    }

    /// Calls `visit` with all mapped sectors of some ranges, and their contents or the error, roughly in the order of
    /// the device, each part of which is read about once: for reading a whole store. `ranges` returns the first range
    /// that ends behind an address; the ranges are ordered and do not overlap.
    ///
    /// Each sector that stays mapped is visited; exactly once, if everything in the ranges was written sector by sector
    /// and no sector there becomes mapped or unmapped meanwhile. A sector that changes meanwhile is visited as it was
    /// or as it became. It takes 24 bytes of memory for each extent that is planned at a time, about `plan_extents` of
    /// them, and, where there are more, up to 1.5 bytes for each.
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn sweep_sectors(
        &self,
        ranges: impl Fn(Lba) -> Option<Range<Lba>>,
        plan_extents: usize,
        visit: impl FnMut(Lba, Result<&[u8; SECTOR]>),
    ) -> Result<()> {
        let ranges = |at| ranges(Lba(at)).map(|range| range.start.0..range.end.0);
        self.store.verifier.sweep_sectors(&ranges, plan_extents, visit)
    }

    /// The mapped data in `range` from its start on, up to about `bytes_max` bytes but at least one extent; all of it
    /// is read at the same time, wherever it lies.
    ///
    /// # Errors
    /// As [`Ftl::read`].
    pub fn read_mapped(&self, range: Range<Lba>, bytes_max: usize) -> Result<Mapped> {
        self.store.reader.read_mapped(range.start.0..range.end.0, bytes_max)
    }

    /// As [`Ftl::read_mapped`], but continues past damage.
    ///
    /// # Errors
    /// Only damage to the map that has disappeared when it is read again.
    pub fn read_past_damage(&self, range: Range<Lba>, bytes_max: usize) -> Result<Remains> {
        self.store.reader.read_past_damage(range.start.0..range.end.0, bytes_max)
    }

    /// Brings the parts of the map into memory that changes of `ranges` need, and keeps them there.
    ///
    /// # Errors
    /// As [`Ftl::mapped`].
    pub fn load_leaves(&self, ranges: &[Range<Lba>]) -> Result<ResidentLeaves> {
        self.store.base.pages.load_leaves(ranges)
    }

    /// Largest batch that this store takes, in bytes: payload and 200 bytes per chunk or trim.
    pub fn batch_bytes_max(&self) -> u64 {
        self.store.base.volume.space().batch_bytes_max()
    }

    /// Writes a checkpoint now. Everything accepted before the call is durable after it.
    ///
    /// # Errors
    /// As [`Ftl::flush`]; [`Error::ReadOnly`].
    pub fn checkpoint(&self) -> Result<()> {
        self.must_not_be_forked()?;
        self.store.checkpointer.checkpoint()
    }

    /// Does one piece of background work; false when there was none to do.
    ///
    /// # Errors
    /// As [`Ftl::flush`]; [`Error::ReadOnly`].
    pub fn step(&self, work: Work) -> Result<bool> {
        self.must_not_be_forked()?;
        self.store.maintenance.step(work)
    }

    /// Checks the store's invariants against a recount, on the live store.
    ///
    /// # Errors
    /// Only when the device cannot be read at all; all findings are in the report.
    pub fn check(&self, depth: CheckDepth) -> Result<Report> {
        self.check_with_progress(depth, |_| ControlFlow::Continue(()))
    }

    /// As [`Ftl::check`], and periodically reports its progress, which may end it.
    ///
    /// # Errors
    /// As [`Ftl::check`]; [`Error::Interrupted`] if `report` ends it.
    pub fn check_with_progress(
        &self,
        depth: CheckDepth,
        mut report: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Report> {
        self.store.verifier.check(depth, &mut report)
    }

    /// Reads and verifies everything live: data, map, checkpoint and superblock, while all else goes on.
    /// After every few reads `go_on` is called, and may wait, or stop it.
    ///
    /// ```
    /// # use std::{ops::ControlFlow, sync::Arc};
    /// # use lacuna_device::{BlockDevice, MemDevice};
    /// # use lacuna_ftl::{FormatOptions, Ftl, Options};
    /// # fn main() -> lacuna_ftl::Result<()> {
    /// # let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    /// # Ftl::format(device.clone(), &FormatOptions::default())?;
    /// # let ftl = Ftl::open(device, Options::default())?;
    /// let scrub = ftl.scrub(|so_far| {
    ///     println!("{} of {} bytes", so_far.verified_bytes, so_far.expected_bytes);
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert!(scrub.is_complete && scrub.damage.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Only when scrubbing itself fails; damage and failed reads are in the result.
    pub fn scrub(&self, go_on: impl FnMut(&Scrub) -> ControlFlow<()>) -> Result<Scrub> {
        self.store.verifier.scrub(go_on)
    }

    /// Makes the store `capacity_bytes` large, a multiple of 4096, or by default as large as its device. A shorter store
    /// file is made that long; a block device has a fixed size. Returns the capacity in bytes. May be called while all
    /// else goes on. A power cut leaves the old or the new size.
    ///
    /// # Errors
    /// [`Error::Geometry`] when that is less than the store has, more than the device can have, more by too little, or
    /// by more segments than a store may have; [`lacuna_device::Error::Full`] when the file system of a store file has no
    /// space for its new end. The store is as it was, and its file longer at most.
    pub fn grow(&self, capacity_bytes: Option<u64>) -> Result<u64> {
        self.must_not_be_forked()?;
        self.store.maintenance.grow(capacity_bytes)
    }

    /// Whether its data is encrypted.
    pub fn is_encrypted(&self) -> bool {
        !matches!(self.store.base.volume.cipher(), Cipher::None)
    }

    /// Why the store has stopped, if it has: the first failed write or sync, or a panic. See [`Error::Poisoned`].
    pub fn failure(&self) -> Option<String> {
        self.store.base.journal.failure()
    }

    /// Whether the device waits for space of its host: see [`BlockDevice::waits_for_space`]. Until then batches that add
    /// live data fail with [`lacuna_device::Error::Full`], and flushes wait.
    pub fn waits_for_space(&self) -> bool {
        self.store.base.volume.device().waits_for_space()
    }

    /// Waits for space of the device's host no longer: writes that still find none stop the store as a failure does.
    /// Without it a store whose host stays full cannot be closed.
    pub fn stop_waiting_for_space(&self) {
        self.store.base.volume.device().stop_waiting();
    }

    /// The capacity in bytes that [`Ftl::grow`] would give the store by default: more than it has, if its device is
    /// larger by enough.
    ///
    /// # Errors
    /// When the device cannot be measured.
    pub fn capacity_max(&self) -> Result<u64> {
        self.store.maintenance.capacity_max()
    }

    /// State and traffic.
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Flushes and writes a checkpoint, so that the next open replays nothing, and ends the
    /// background thread. The handle stays usable.
    ///
    /// # Errors
    /// As [`Ftl::flush`].
    pub fn close(&self) -> Result<()> {
        self.must_not_be_forked()?;
        self.stop_thread();
        if self.store.base.volume.is_read_only() {
            return Ok(());
        }
        self.store.close()
    }

    /// Fails in a process that was forked from the one that opened the store. It has a copy of what is in memory, with
    /// locks that other threads held, and not these threads; and it would write what the other process does not know of.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn must_not_be_forked(&self) -> Result<()> {
        if self.store.process.is_current() {
            return Ok(());
        }
        Err(crate::Error::Forked { device: self.store.base.volume.name() })
    }

    fn stop_thread(&self) {
        if let Some(thread) = self.thread.lock().take() {
            self.store.maintenance.stop();
            thread.join().expect("background thread panicked");
        }
    }
}

impl Drop for Ftl {
    fn drop(&mut self) {
        if self.must_not_be_forked().is_err() {
            // Their ends would wait for threads of the other process.
            return std::mem::forget(self.store.base.clone());
        }
        if let Some(thread) = self.thread.lock().take() {
            self.store.maintenance.stop();
            // The thread's panic was already reported; a second one here would abort.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Ftl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ftl").field("device", &self.store.base.volume.device().name()).finish_non_exhaustive()
    }
}
