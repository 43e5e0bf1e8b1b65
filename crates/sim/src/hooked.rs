use std::sync::Arc;

use lacuna_device::{BatchOp, File, FileId, FileProps, Result, StreamHint, Vfs, VfsStats};

/// A test's code that runs around the calls of a [`HookedVfs`], in the caller's thread.
pub trait Hooks: Send + Sync {
    /// The properties that the VFS and its files report, given the real ones.
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

    /// Called before an atomic write of a file. If it fails, nothing is written.
    fn before_atomic_write(&self) -> Result<()> {
        Ok(())
    }

    /// Called before a hole is punched in one file. If it fails, no hole is made.
    fn before_punch(&self) -> Result<()> {
        Ok(())
    }

    /// Called before a sync of a file or the VFS. If it fails, nothing is synced.
    fn before_sync(&self) -> Result<()> {
        Ok(())
    }

    /// Free bytes to report instead of those of the VFS.
    fn free_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// A VFS that calls [`Hooks`] and passes everything on to the VFS within.
pub struct HookedVfs<H> {
    vfs: Arc<dyn Vfs>,
    hooks: Arc<H>,
}

struct HookedFile<H> {
    file: Arc<dyn File>,
    hooks: Arc<H>,
}

impl<H: Hooks + 'static> HookedVfs<H> {
    /// Wraps `vfs` with `hooks`.
    pub fn new(vfs: Arc<dyn Vfs>, hooks: Arc<H>) -> Arc<HookedVfs<H>> {
        Arc::new(HookedVfs { vfs, hooks })
    }

    fn hooked(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(HookedFile { file, hooks: Arc::clone(&self.hooks) })
    }
}

impl<H: Hooks + 'static> Vfs for HookedVfs<H> {
    fn name(&self) -> &str {
        self.vfs.name()
    }

    fn identity(&self) -> (usize, u64) {
        self.vfs.identity()
    }

    fn props(&self) -> FileProps {
        self.hooks.props(self.vfs.props())
    }

    fn open(&self, name: &str, hint: StreamHint) -> Result<Arc<dyn File>> {
        Ok(self.hooked(self.vfs.open(name, hint)?))
    }

    fn create(&self, name: &str, hint: StreamHint) -> Result<Arc<dyn File>> {
        Ok(self.hooked(self.vfs.create(name, hint)?))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.vfs.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.vfs.rename(from, to)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.vfs.list()
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> Result<()> {
        self.hooks.before_batch(ops)?;
        self.vfs.write_batch(ops)?;
        self.hooks.after_batch(ops)
    }

    fn sync(&self) -> Result<()> {
        self.hooks.before_sync()?;
        self.vfs.sync()
    }

    fn stats(&self) -> Result<VfsStats> {
        self.vfs.stats()
    }

    fn log_bytes_max(&self) -> Option<u64> {
        self.vfs.log_bytes_max()
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        match self.hooks.free_bytes()? {
            Some(bytes) => Ok(Some(bytes)),
            None => self.vfs.free_bytes(),
        }
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

    fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.hooks.before_atomic_write()?;
        self.file.write_atomic(offset, data)
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
