use std::sync::Arc;

use lacuna_device::{BatchOp, File, FileId, FileProps, Place, PlaceStats, Result, StreamHint};

/// What a test does around the calls of a [`HookedPlace`], in the caller's thread.
pub trait Hooks: Send + Sync {
    /// The properties that the place and its files report, given the real ones.
    fn props(&self, props: FileProps) -> FileProps {
        props
    }

    /// Called before a batch. If it fails, the batch fails and nothing of it is done.
    fn before_batch(&self, _ops: &[BatchOp<'_>]) -> Result<()> {
        Ok(())
    }

    /// Called after a batch that was done. If it fails, the batch returns that error although it was done.
    fn after_batch(&self, _ops: &[BatchOp<'_>]) -> Result<()> {
        Ok(())
    }

    /// Called before a hole is punched in one file. If it fails, no hole is made.
    fn before_punch(&self) -> Result<()> {
        Ok(())
    }

    /// Called before a sync of a file or the place. If it fails, nothing is synced.
    fn before_sync(&self) -> Result<()> {
        Ok(())
    }
}

/// A place that calls [`Hooks`] and passes everything on to the place within.
pub struct HookedPlace<H> {
    place: Arc<dyn Place>,
    hooks: Arc<H>,
}

struct HookedFile<H> {
    file: Arc<dyn File>,
    hooks: Arc<H>,
}

impl<H: Hooks + 'static> HookedPlace<H> {
    /// Wraps `place` with `hooks`.
    pub fn new(place: Arc<dyn Place>, hooks: Arc<H>) -> Arc<HookedPlace<H>> {
        Arc::new(HookedPlace { place, hooks })
    }

    fn hooked(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(HookedFile { file, hooks: Arc::clone(&self.hooks) })
    }
}

impl<H: Hooks + 'static> Place for HookedPlace<H> {
    fn name(&self) -> &str {
        self.place.name()
    }

    fn identity(&self) -> (usize, u64) {
        self.place.identity()
    }

    fn props(&self) -> FileProps {
        self.hooks.props(self.place.props())
    }

    fn open(&self, name: &str, hint: StreamHint) -> Result<Arc<dyn File>> {
        Ok(self.hooked(self.place.open(name, hint)?))
    }

    fn create(&self, name: &str, hint: StreamHint) -> Result<Arc<dyn File>> {
        Ok(self.hooked(self.place.create(name, hint)?))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.place.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.place.rename(from, to)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.place.list()
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> Result<()> {
        self.hooks.before_batch(ops)?;
        self.place.write_batch(ops)?;
        self.hooks.after_batch(ops)
    }

    fn sync(&self) -> Result<()> {
        self.hooks.before_sync()?;
        self.place.sync()
    }

    fn stats(&self) -> Result<PlaceStats> {
        self.place.stats()
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        self.place.free_bytes()
    }
}

impl<H: Hooks> File for HookedFile<H> {
    fn id(&self) -> FileId {
        self.file.id()
    }

    fn props(&self) -> FileProps {
        self.hooks.props(self.file.props())
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file.write_at(offset, data)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.hooks.before_punch()?;
        self.file.punch(offset, len)
    }

    fn allocated(&self, offset: u64, len: u64) -> Result<u64> {
        self.file.allocated(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.hooks.before_sync()?;
        self.file.sync()
    }
}
