//! Flushing: bringing changed pages to the device, many at a time, by many threads.
//!
//! One producer decides which pages are due, from the space left in the log and from the pages that block eviction, and
//! fills a queue of jobs; consumers copy the pages of a job under a shared latch, compress the copies outside of it,
//! and write them in one batch. Foreground threads never compress: a caller that wants all pages written, or a table
//! optimized, submits jobs and waits. (The multi-threaded flush of Lindström et al., "NVM aware MariaDB database
//! system", NVMSA 2015, with targets instead of a fixed scan depth.)
//!
//! Invariants:
//!
//! 1. A page is written only when the log up to its LSN is: *written* before it where the VFS is
//!    `ordered`, flushed before it elsewhere.
//! 2. A page leaves the flush list only when its image can no longer be lost unless the log after it is too: on an
//!    ordered VFS when it is written, elsewhere when it is synced.
//! 3. A page is replaced whole or not at all across a crash (`protection`): by the VFS's atomic batches, or by one
//!    atomic write; elsewhere its image is synced in the doublewrite file before the page is overwritten. Where writes
//!    and holes are not one batch, the end of a longer old image is punched only once the new one is synced.
//! 4. The control file names a checkpoint before the log up to it is freed.
//! 5. A job writes those of its pages that are dirty since before the log offset that it names. A caller that
//!    wants all changes up to an offset on the device names that offset; pages that were written since, and changed
//!    again, are not part of it.
//!
//! 6. The image of a page that is listed as free is a hole (`alloc`, invariant 2), which obeys all these.
//!
//! No latch is held while a page is compressed and written, and none is waited for: a page that is being
//! changed is left for the next round. Only rewriting (`rewrite`) waits for latches as other threads do; no thread
//! waits for a job with a page latched.
//!
//! `queue` holds the jobs. `threads` decides which are due and runs them; `write`, `protection`, `doublewrite` and
//! `rewrite` write a page to the device; `rest` finds pages that rest; `checkpoint` frees log space; `throttle` and `capacity` slow and refuse writers,
//! `owed` what rollbacks may need; `horizon` knows
//! which writers images still have to name.

mod capacity;
mod checkpoint;
mod doublewrite;
mod horizon;
mod owed;
mod protection;
mod queue;
mod rest;
mod rewrite;
mod stats;
mod threads;
mod throttle;
mod write;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lacuna_device::{Error as DeviceError, FileProps, Vfs};

pub(crate) use capacity::{Claim, history_bytes, log_bytes};
#[cfg(test)]
pub(crate) use doublewrite::LAYOUT as DOUBLEWRITE_LAYOUT;
#[cfg(feature = "fuzzing")]
pub(crate) use doublewrite::fuzz_doublewrite;
pub(crate) use doublewrite::restore;
pub(crate) use queue::Work;
use queue::{Due, Queue, into_work};
pub(crate) use rewrite::Rewrite;
pub use stats::FlushStats;

use crate::{
    alloc::{truncate, truncate_all},
    mtr::Pager,
    mutant::{Rule, is_broken},
    poison::Poison,
    pool::Frame,
    space::{Space, Spaces},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    types::{Doublewrite, Lsn, Result, StoreOptions, TableId},
    wal::control::Control,
};
use capacity::Capacity;
use doublewrite::DoublewriteFile;
use horizon::Horizon;
pub(crate) use horizon::Transactions;
pub(crate) use owed::{Amount, Debt, Owed};
use protection::{Protection, without_atomic_writes};
use rest::Rests;

/// Pages in a job, at most, and in a region of the doublewrite file.
const JOB_PAGES: usize = 32;
/// The same where pages are written singly: XFS journals each sync, and shares blocks of its trees among the pages that
/// it covers. With 32 pages it journals 1.7 KiB for each.
const LONG_JOB_PAGES: usize = 128;
/// Pages that a round of the producer asks for, at most.
const ROUND_PAGES: usize = 512;
/// How often the producer checks for work when it is not woken.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

/// Writes pages to the device, and moves the checkpoint.
pub(crate) struct Flusher {
    vfs: Arc<dyn Vfs>,
    spaces: Arc<Spaces>,
    pager: Arc<Pager>,
    control: Control,
    transactions: Arc<dyn Transactions>,
    options: StoreOptions,
    poison: Arc<Poison>,
    queue: Mutex<Queue>,
    /// Jobs were queued, or it is time to stop.
    work: Condvar,
    /// A job was done.
    done: Condvar,
    /// Opened when it is first needed.
    doublewrite: Mutex<Option<Arc<DoublewriteFile>>>,
    /// One checkpoint at a time.
    checkpointing: Mutex<()>,
    is_running: AtomicBool,
    /// When the log was last synced for its age.
    log_synced: Mutex<Instant>,
    capacity: Capacity,
    owed: Owed,
    horizon: Horizon,
    rests: Rests,
    stats: Mutex<FlushStats>,
}

impl Flusher {
    pub(crate) fn new(
        (vfs, vfs_bytes): (Arc<dyn Vfs>, u64),
        options: &StoreOptions,
        spaces: Arc<Spaces>,
        pager: Arc<Pager>,
        control: Control,
        transactions: Arc<dyn Transactions>,
        poison: Arc<Poison>,
    ) -> Result<Flusher> {
        let flusher = Flusher {
            vfs,
            spaces,
            pager,
            control,
            transactions,
            options: options.clone(),
            poison,
            queue: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            doublewrite: Mutex::default(),
            checkpointing: Mutex::new(()),
            is_running: AtomicBool::new(false),
            log_synced: Mutex::new(Instant::now()),
            capacity: Capacity::new(options, vfs_bytes),
            owed: Owed::default(),
            horizon: Horizon::default(),
            rests: Rests::default(),
            stats: Mutex::default(),
        };
        if flusher.writes_twice() {
            // While there is space for it.
            flusher.doublewrite()?;
        }
        // Unless the VFS fails here: the producer measures again.
        let _ = flusher.measure_capacity();
        Ok(flusher)
    }

    pub(crate) fn stats(&self) -> FlushStats {
        *self.stats.lock()
    }

    /// Whether holes are asked for: until the VFS refuses one.
    fn may_punch(&self) -> bool {
        self.options.trim && self.stats.lock().refused_punches == 0
    }

    /// Whether free pages of the table become holes. In blocks shorter than a hole there is none.
    fn makes_holes(&self, space: &Space) -> bool {
        let unit = space.file().props().hole_unit as usize;
        unit != 0 && space.slot_bytes().is_multiple_of(unit) && self.may_punch()
    }

    /// Whether the table may be one whose key is lost: as long as replay does not know the catalog. Its pages are not
    /// written, since nobody can encrypt them.
    pub(crate) fn may_lack_key(&self, space: &Space) -> bool {
        let is_known = space.is_known() || is_broken(Rule::KeysKnown);
        !is_known && space.cipher().is_none() && self.spaces.keys().is_some()
    }

    /// Whether pages of tables without a setting of their own are written twice.
    pub(crate) fn writes_twice(&self) -> bool {
        let props = self.usable(self.vfs.props());
        Protection::choose(props, lacuna_page::PAGE_BYTES_MIN, self.options.doublewrite) == Protection::Twice
    }

    /// How pages of a table are kept whole from now on.
    fn protection(&self, space: &Space) -> Protection {
        let setting = match space.doublewrite() {
            Doublewrite::Auto => self.options.doublewrite,
            own => own,
        };
        let offered = space.file().props();
        let props = self.usable(offered);
        let is_refused = props.atomic_writes != offered.atomic_writes && self.options.atomic_writes;
        match (Protection::choose(props, space.slot_bytes(), setting), is_refused) {
            // Who turned doublewriting off may have counted on what the system refuses.
            (Protection::Bare, true) => Protection::Twice,
            (chosen, _) => chosen,
        }
    }

    /// Pages in a job, at most.
    fn job_pages(&self) -> usize {
        let props = self.usable(self.vfs.props());
        match Protection::choose(props, lacuna_page::PAGE_BYTES_MIN, self.options.doublewrite) {
            Protection::Single(_) => LONG_JOB_PAGES,
            Protection::Batch | Protection::Twice | Protection::Bare => JOB_PAGES,
        }
    }

    /// Jobs that write those of these pages that are dirty since before `before`.
    fn jobs(&self, frames: Vec<Arc<Frame>>, before: Lsn, cause: stats::Cause) -> Vec<Work> {
        into_work(frames, before, cause, self.job_pages())
    }

    /// The properties of a file without those that are switched off, or were refused.
    fn usable(&self, props: FileProps) -> FileProps {
        if !self.options.atomic_writes {
            return without_atomic_writes(props);
        }
        let is_refused = self.stats.lock().refused_atomic_writes > 0;
        FileProps { atomic_writes: props.atomic_writes.filter(|_| !is_refused), ..props }
    }

    fn doublewrite(&self) -> Result<Arc<DoublewriteFile>> {
        let mut doublewrite = self.doublewrite.lock();
        if let Some(file) = &*doublewrite {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(DoublewriteFile::open(&*self.vfs)?);
        *doublewrite = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Notes that the VFS refused an atomic write. The batch, and after this one all, are written twice.
    fn note_refused_atomic_write(&self, error: &DeviceError) {
        let refused = {
            let mut stats = self.stats.lock();
            stats.refused_atomic_writes += 1;
            stats.refused_atomic_writes
        };
        if refused == 1 {
            log::warn!("{error}; pages are written twice until the store is reopened");
        }
    }
}

impl Flusher {
    /// From now on threads run [`Flusher::produce`] and [`Flusher::consume`], until [`Flusher::stop`].
    pub(crate) fn start(&self) {
        self.queue.lock().stop = false;
        self.is_running.store(true, Ordering::Release);
    }

    /// Asks the threads to end once they have finished their current work.
    pub(crate) fn stop(&self) {
        self.is_running.store(false, Ordering::Release);
        self.queue.lock().stop = true;
        self.work.notify_all();
        self.done.notify_all();
        self.pager.pool().ask_for_flush();
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    /// Truncates the free end of a table's file, also finishing a truncation that a crash interrupted.
    pub(crate) fn truncate(&self, space: &Arc<Space>) -> Result<()> {
        truncate(&self.pager, space, true, self.options.log_bytes)
    }

    /// Truncates the files in which many pages were freed lately.
    fn truncate_all(&self) -> Result<()> {
        truncate_all(&self.pager, &self.spaces, self.options.log_bytes, Space::wants_cut)
    }

    /// Truncates the table's file where it makes no holes, however few of its pages were freed.
    pub(crate) fn truncate_without_holes(&self, table: TableId) -> Result<()> {
        let chosen = |space: &Space| space.id() == table && !self.makes_holes(space);
        truncate_all(&self.pager, &self.spaces, self.options.log_bytes, chosen)
    }

    /// What transactions owe.
    pub(crate) fn owed(&self) -> &Owed {
        &self.owed
    }

    /// Where recovery would start now.
    pub(crate) fn checkpoint_lsn(&self) -> Lsn {
        self.control.root().checkpoint
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    pub(crate) fn vfs(&self) -> &dyn Vfs {
        &*self.vfs
    }
}

#[cfg(test)]
mod tests {
    use lacuna_device::MemVfs;

    use super::{stats::Cause, *};

    /// Otherwise the recovery after the next would read it again (replay invariant 4).
    #[test]
    fn what_is_on_the_device_is_noted_again_when_the_log_lost_the_note() {
        let vfs = MemVfs::new();
        let open = || {
            let options = StoreOptions { background: false, ..StoreOptions::default() };
            crate::Store::open(vfs.clone(), options).expect("open")
        };
        let store = open();
        let table = store.create_table("t", crate::TableOptions::default()).expect("table");
        let flusher = table.engine().flusher().clone();
        let until = flusher.pager.log().next();
        let due =
            flusher.jobs(flusher.pager.pool().dirty().oldest_pages(until, ROUND_PAGES), until, Cause::Asked);
        flusher.carry_out(due).expect("flush");
        // The page-write records are still in memory, and end there.
        flusher.poison.close();
        drop((table, store, flusher));
        let recovered = [0; 3].map(|_| open().stats().expect("stats").recovery);
        assert!(recovered[0].pages > 3 && recovered[0].applied == 0, "{recovered:?}");
        // Opening changes a page of its own.
        assert!(recovered[1..].iter().all(|did| did.pages <= 1 && did.on_device > 3), "{recovered:?}");
    }
}
