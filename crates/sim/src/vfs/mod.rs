//! A simulated directory: a VFS that is not ordered, and atomic at most in single writes.
//!
//! It stands for a directory of ext4 or XFS at its worst, without atomic writes or with them. For every file it owns two images,
//! `medium` (the content that survives any power cut) and `cache` (the content that reads see); `pending` lists the
//! content changes of all files since they were synced, oldest first, and `pending_names` the changes of names since
//! the last sync of the VFS. A power cut
//!
//! 1. keeps, drops, tears (at sectors) or reorders each pending write and hole; it never tears an atomic write;
//! 2. gives each file any length that it had since it was synced, with zeros where data was lost;
//! 3. keeps a prefix of the pending name changes (journalling file systems keep these in order), and
//!    so forgets files whose creation was lost, synced or not.
//!
//! A sync of a file makes all its changes durable, also those of a process that was killed. A sync of the VFS makes names
//! durable, and the files that the present process has changed: what a killed one left in other files stays pending.
//!
//! Handles opened before a power cycle are dead after it: they return [`Error::PowerCut`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lacuna_device::{
    AtomicWrites, BatchOp, Error, File, FileId, FileProps, Result, SECTOR, StreamHint, Vfs, VfsStats,
    check_file_name, mem::FileImage,
};
use parking_lot::Mutex;

use crate::{
    SeededRng,
    crash::{Kept, plan_crash},
    power::{Power, Verdict, injected, power_controls},
};

const NAME: &str = "simulated directory";

const PROPS: FileProps = FileProps {
    atomic_bytes_max: 0,
    atomic_align: 0,
    atomic_writes: None,
    hole_unit: 4096,
    io_align: SECTOR as u32,
    ordered: false,
};

/// A seeded in-memory [`Vfs`] without atomicity and order, whose power can be cut.
pub struct SimVfs {
    state: Arc<Mutex<State>>,
}

#[derive(Clone)]
struct State {
    names: BTreeMap<String, FileId>,
    medium_names: BTreeMap<String, FileId>,
    pending_names: Vec<NameChange>,
    files: BTreeMap<FileId, Content>,
    pending: Vec<Pending>,
    /// Files that this life has changed and not synced since: a sync of the VFS syncs these, as a directory does that
    /// knows nothing of an ended process.
    dirty: BTreeSet<FileId>,
    next_id: u64,
    /// Number of power cycles; handles of earlier ones are dead.
    life: u64,
    power: Power,
    rng: SeededRng,
    stats: VfsStats,
    props: FileProps,
}

#[derive(Clone, Default)]
struct Content {
    medium: FileImage,
    cache: FileImage,
    /// Lengths that the file took on since it was synced, oldest first.
    pending_lens: Vec<u64>,
}

#[derive(Clone)]
enum NameChange {
    Create { name: String, id: FileId },
    Remove { name: String },
    Rename { from: String, to: String },
}

#[derive(Clone)]
struct Pending {
    file: FileId,
    offset: u64,
    len: u64,
    change: Change,
    /// It is kept as a whole or not at all.
    is_atomic: bool,
}

#[derive(Clone)]
enum Change {
    Write(Vec<u8>),
    Punch,
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, FileId>) {
        match self {
            NameChange::Create { name, id } => {
                names.insert(name.clone(), *id);
            }
            NameChange::Remove { name } => {
                names.remove(name);
            }
            NameChange::Rename { from, to } => {
                let id = names.remove(from).expect("a renamed file has a name");
                names.insert(to.clone(), id);
            }
        }
    }
}

impl Pending {
    /// Parts that a power cut may keep without the others.
    fn parts(&self) -> u64 {
        if self.is_atomic { 1 } else { self.len / SECTOR as u64 }
    }

    /// Applies the kept parts to the bytes of `image`, not to its length.
    fn apply(&self, image: &mut FileImage, kept: &Kept) {
        let part_bytes = if self.is_atomic { self.len } else { SECTOR as u64 };
        for (first, count) in kept.runs(self.parts()) {
            let start = first * part_bytes;
            let len = count * part_bytes;
            match &self.change {
                Change::Write(data) => {
                    image.bytes.write(self.offset + start, &data[start as usize..(start + len) as usize]);
                }
                Change::Punch => image.bytes.zero(self.offset + start, len),
            }
        }
    }
}

impl Content {
    /// Makes everything durable, given that all pending changes were applied to the medium.
    fn sync_len(&mut self) {
        if let Some(len) = self.pending_lens.pop() {
            self.pending_lens.clear();
            self.medium.set_len(len);
        }
    }

    /// Gives the medium one of the lengths that the file had since it was synced.
    fn resolve_len(&mut self, rng: &mut SeededRng) {
        let lens = std::mem::take(&mut self.pending_lens);
        let chosen = match rng.below(3) {
            0 => None,
            1 => lens.last(),
            _ if lens.is_empty() => None,
            _ => lens.get(rng.below(lens.len() as u64) as usize),
        };
        // Kept data past the chosen end is lost with it.
        let len = chosen.copied().unwrap_or(self.medium.len);
        self.medium.bytes.zero(len, u64::MAX / 2 / SECTOR as u64 * SECTOR as u64 - len);
        self.medium.len = len;
    }
}

impl State {
    fn id_of(&self, name: &str) -> Result<FileId> {
        self.names.get(name).copied().ok_or_else(|| Error::NotFound { name: name.to_owned() })
    }

    fn content(&mut self, id: FileId) -> Result<&mut Content> {
        let missing = || Error::NotFound { name: format!("file number {}", id.0) };
        self.files.get_mut(&id).ok_or_else(missing)
    }

    /// Makes a change of names visible and leaves it to the next sync of the VFS or crash.
    fn change_names(&mut self, verdict: Verdict, change: NameChange) -> Result<()> {
        change.apply(&mut self.names);
        self.pending_names.push(change);
        finish(verdict)
    }

    fn write(&mut self, file: FileId, offset: u64, data: &[u8], is_atomic: bool) -> Result<()> {
        self.content(file)?;
        let verdict = self.power.tick()?;
        self.dirty.insert(file);
        let outcome = self.power.check_write(NAME);
        if matches!(outcome, Err(Error::Full { .. })) {
            return outcome;
        }
        let content = self.content(file)?;
        content.cache.write(offset, data);
        // Less than the cache's length after a failed sync: data written again then reaches the medium, with the
        // length.
        let len = content.pending_lens.last().copied().unwrap_or(content.medium.len);
        let end = offset + data.len() as u64;
        if len < end {
            content.pending_lens.push(end);
        }
        let change = Change::Write(data.to_vec());
        self.pending.push(Pending { file, offset, len: data.len() as u64, change, is_atomic });
        finish(verdict)?;
        outcome?;
        self.stats.device_written_bytes += data.len() as u64;
        Ok(())
    }

    fn punch(&mut self, file: FileId, offset: u64, len: u64) -> Result<()> {
        self.content(file)?;
        let verdict = self.power.tick()?;
        self.dirty.insert(file);
        let content = self.content(file)?;
        content.cache.bytes.zero(offset, len);
        // The length is kept, so there are no bytes past it to lose.
        let len = len.min(content.cache.len.saturating_sub(offset));
        self.pending.push(Pending { file, offset, len, change: Change::Punch, is_atomic: false });
        finish(verdict)
    }

    fn set_len(&mut self, file: FileId, len: u64) -> Result<()> {
        self.content(file)?;
        let verdict = self.power.tick()?;
        self.dirty.insert(file);
        let content = self.content(file)?;
        let len_before = content.cache.len;
        content.cache.set_len(len);
        content.pending_lens.push(len);
        if len < len_before {
            let (offset, len) = (len, len_before - len);
            self.pending.push(Pending { file, offset, len, change: Change::Punch, is_atomic: false });
        }
        finish(verdict)
    }

    /// Makes all changes of one file durable, or those of all files that this life has changed.
    fn sync_files(&mut self, only: Option<FileId>) {
        let files = match only {
            Some(file) => BTreeSet::from([file]),
            None => self.dirty.clone(),
        };
        let chosen = |id: FileId| files.contains(&id);
        for change in self.pending.extract_if(.., |change| chosen(change.file)) {
            let content = self.files.get_mut(&change.file).expect("a changed file has content");
            change.apply(&mut content.medium, &Kept::All);
        }
        for (_, content) in self.files.iter_mut().filter(|(id, _)| chosen(**id)) {
            content.sync_len();
        }
        self.dirty.retain(|id| !files.contains(id));
    }

    fn sync(&mut self, only: Option<FileId>) -> Result<()> {
        if self.power.tick()? == Verdict::CutInFlight {
            return Err(Error::PowerCut);
        }
        if self.power.fails_sync() {
            self.resolve_contents();
            return Err(injected(NAME));
        }
        self.sync_files(only);
        if only.is_none() {
            self.medium_names = self.names.clone();
            self.pending_names.clear();
            let named: Vec<FileId> = self.names.values().copied().collect();
            self.files.retain(|id, _| named.contains(id));
            self.pending.retain(|change| named.contains(&change.file));
        }
        self.stats.device_syncs += 1;
        Ok(())
    }

    fn start_life(&mut self) {
        self.life += 1;
        self.dirty.clear();
        self.power.switch_on();
    }

    /// Decides by chance which of the pending contents and lengths reach the medium, and applies them.
    fn resolve_contents(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let parts: Vec<u64> = pending.iter().map(Pending::parts).collect();
        for step in plan_crash(&mut self.rng, &parts) {
            let change = &pending[step.index];
            let content = self.files.get_mut(&change.file).expect("a changed file has content");
            change.apply(&mut content.medium, &step.kept);
        }
        for content in self.files.values_mut() {
            content.resolve_len(&mut self.rng);
        }
    }

    fn resolve_names(&mut self) {
        let kept = self.rng.below(self.pending_names.len() as u64 + 1) as usize;
        for change in self.pending_names.drain(..).take(kept) {
            change.apply(&mut self.medium_names);
        }
    }
}

fn finish(verdict: Verdict) -> Result<()> {
    match verdict {
        Verdict::Go => Ok(()),
        Verdict::CutInFlight => Err(Error::PowerCut),
    }
}

power_controls!(SimVfs);

impl SimVfs {
    /// An empty VFS; `seed` drives all chance.
    pub fn new(seed: u64) -> Arc<SimVfs> {
        SimVfs::with_props(seed, PROPS)
    }

    /// The same, with files that take these atomic writes.
    pub fn with_atomic_writes(seed: u64, writes: AtomicWrites) -> Arc<SimVfs> {
        SimVfs::with_props(seed, FileProps { atomic_writes: Some(writes), ..PROPS })
    }

    fn with_props(seed: u64, props: FileProps) -> Arc<SimVfs> {
        let state = State {
            names: BTreeMap::new(),
            medium_names: BTreeMap::new(),
            pending_names: Vec::new(),
            files: BTreeMap::new(),
            pending: Vec::new(),
            dirty: BTreeSet::new(),
            next_id: 1,
            life: 0,
            power: Power::default(),
            rng: SeededRng::new(seed),
            stats: VfsStats::default(),
            props,
        };
        Arc::new(SimVfs { state: Arc::new(Mutex::new(state)) })
    }

    /// An independent VFS in the same state, driven by `seed` from here on.
    pub fn fork(&self, seed: u64) -> Arc<SimVfs> {
        let mut state = self.state.lock().clone();
        state.rng = SeededRng::new(seed);
        Arc::new(SimVfs { state: Arc::new(Mutex::new(state)) })
    }

    /// Applies the effects that a power cut may have on everything unsynced, then switches the power on. All handles
    /// are dead. A cut that was set and did not happen is cancelled. Injected failures stay.
    pub fn power_cycle(&self) {
        let mut state = self.state.lock();
        state.resolve_contents();
        state.resolve_names();
        let named: Vec<FileId> = state.medium_names.values().copied().collect();
        state.files.retain(|id, _| named.contains(id));
        for content in state.files.values_mut() {
            content.cache = content.medium.clone();
        }
        state.names = state.medium_names.clone();
        state.start_life();
    }

    /// Ends the process that used the VFS, without a power cut; if the power is off, switches it on as if only the
    /// process had ended. All handles are dead, and unsynced changes stay in the cache, where a later cut may drop
    /// them. A cut that was set and did not happen is cancelled. Injected failures stay.
    pub fn kill(&self) {
        self.state.lock().start_life();
    }

    /// Flips bit `bit % 8` of byte `offset` of the file `name`. Call it on synced files: pending changes are not
    /// touched.
    ///
    /// # Panics
    /// When there is no such file or byte.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u8) {
        let mut state = self.state.lock();
        let id = state.id_of(name).expect("no such file");
        let content = state.content(id).expect("a named file has content");
        assert!(offset < content.cache.len, "no byte {offset} to flip");
        let sector_start = offset / SECTOR as u64 * SECTOR as u64;
        for image in [&mut content.medium, &mut content.cache] {
            let mut sector = [0; SECTOR];
            image.bytes.read(sector_start, &mut sector);
            sector[(offset - sector_start) as usize] ^= 1 << (bit % 8);
            image.bytes.write(sector_start, &sector);
        }
    }

    fn handle(&self, state: &State, id: FileId) -> Arc<dyn File> {
        Arc::new(SimFile { id, life: state.life, props: state.props, state: Arc::clone(&self.state) })
    }
}

impl Vfs for SimVfs {
    fn name(&self) -> &str {
        NAME
    }

    fn props(&self) -> FileProps {
        self.state.lock().props
    }

    fn open(&self, name: &str, _hint: StreamHint) -> Result<Arc<dyn File>> {
        check_file_name(name)?;
        let state = self.state.lock();
        state.power.check()?;
        let id = state.id_of(name)?;
        Ok(self.handle(&state, id))
    }

    fn create(&self, name: &str, _hint: StreamHint) -> Result<Arc<dyn File>> {
        check_file_name(name)?;
        let mut state = self.state.lock();
        state.power.check()?;
        if state.names.contains_key(name) {
            return Err(Error::Exists { name: name.to_owned() });
        }
        let verdict = state.power.tick()?;
        let id = FileId(state.next_id);
        state.next_id += 1;
        state.files.insert(id, Content::default());
        state.change_names(verdict, NameChange::Create { name: name.to_owned(), id })?;
        Ok(self.handle(&state, id))
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_file_name(name)?;
        let mut state = self.state.lock();
        state.power.check()?;
        state.id_of(name)?;
        let verdict = state.power.tick()?;
        state.change_names(verdict, NameChange::Remove { name: name.to_owned() })
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_file_name(from)?;
        check_file_name(to)?;
        let mut state = self.state.lock();
        state.power.check()?;
        state.id_of(from)?;
        let verdict = state.power.tick()?;
        state.change_names(verdict, NameChange::Rename { from: from.to_owned(), to: to.to_owned() })
    }

    fn list(&self) -> Result<Vec<String>> {
        let state = self.state.lock();
        state.power.check()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> Result<()> {
        for op in ops {
            let (offset, len) = op.range();
            PROPS.check_range(NAME, offset, len)?;
        }
        for op in ops {
            let mut state = self.state.lock();
            match *op {
                BatchOp::Write { file, offset, data } => state.write(file, offset, data, false)?,
                BatchOp::Punch { file, offset, len } => state.punch(file, offset, len)?,
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.state.lock().sync(None)
    }

    fn stats(&self) -> Result<VfsStats> {
        let state = self.state.lock();
        state.power.check()?;
        let named = |id: &FileId| state.names.values().any(|name_id| name_id == id);
        let live = state.files.iter().filter(|(id, _)| named(id));
        let allocated_bytes = live.map(|(_, content)| content.cache.bytes.allocated(0, u64::MAX)).sum();
        Ok(VfsStats { allocated_bytes, store_bytes: allocated_bytes, ..state.stats })
    }
}

struct SimFile {
    id: FileId,
    life: u64,
    props: FileProps,
    state: Arc<Mutex<State>>,
}

impl SimFile {
    /// The state, if this handle is of its present life and the power is on.
    fn alive(&self) -> Result<parking_lot::MutexGuard<'_, State>> {
        let state = self.state.lock();
        state.power.check()?;
        if state.life == self.life { Ok(state) } else { Err(Error::PowerCut) }
    }
}

impl File for SimFile {
    fn id(&self) -> FileId {
        self.id
    }

    fn props(&self) -> FileProps {
        self.props
    }

    fn len(&self) -> Result<u64> {
        Ok(self.alive()?.content(self.id)?.cache.len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        PROPS.check_range(NAME, 0, len)?;
        self.alive()?.set_len(self.id, len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        PROPS.check_range(NAME, offset, buf.len() as u64)?;
        let mut state = self.alive()?;
        state.content(self.id)?.cache.bytes.read(offset, buf);
        state.stats.device_read_bytes += buf.len() as u64;
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        PROPS.check_range(NAME, offset, data.len() as u64)?;
        self.alive()?.write(self.id, offset, data, false)
    }

    fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()> {
        if !self.props.atomic_writes.is_some_and(|writes| writes.can_write(offset, data.len() as u64)) {
            return Err(Error::Unsupported { what: NAME.into(), operation: "atomic write" });
        }
        self.alive()?.write(self.id, offset, data, true)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        PROPS.check_range(NAME, offset, len)?;
        self.alive()?.punch(self.id, offset, len)
    }

    fn allocated(&self, offset: u64, len: u64) -> Result<u64> {
        Ok(self.alive()?.content(self.id)?.cache.bytes.allocated(offset, len))
    }

    fn sync(&self) -> Result<()> {
        self.alive()?.sync(Some(self.id))
    }
}

#[cfg(test)]
mod tests;
