//! Files in memory.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};

use super::FileImage;
use crate::{
    BatchOp, Error, File, FileId, FileProps, Result, SECTOR, StreamHint, Vfs, VfsStats, check_file_name,
};

const NAME: &str = "memory";

const PROPS: FileProps = FileProps {
    atomic_bytes_max: 8 << 20,
    atomic_align: SECTOR as u32,
    atomic_writes: None,
    hole_unit: SECTOR as u32,
    io_align: SECTOR as u32,
    ordered: true,
};

/// A [`Vfs`] in memory that offers all that a VFS can. Its files are gone when it and their handles are dropped.
///
/// Lock order: `names`, then `files`, then one file's `image`; no two images at a time.
#[derive(Default)]
pub struct MemVfs {
    names: Mutex<Names>,
    files: RwLock<HashMap<FileId, Arc<MemFile>>>,
    traffic: Arc<Mutex<VfsStats>>,
}

#[derive(Default)]
struct Names {
    ids: BTreeMap<String, FileId>,
    next_id: u64,
}

struct MemFile {
    id: FileId,
    image: RwLock<FileImage>,
    traffic: Arc<Mutex<VfsStats>>,
}

impl MemVfs {
    /// A VFS without files.
    pub fn new() -> Arc<MemVfs> {
        Arc::default()
    }

    fn file(&self, id: FileId) -> Result<Arc<MemFile>> {
        let missing = || Error::NotFound { name: format!("file number {}", id.0) };
        self.files.read().get(&id).cloned().ok_or_else(missing)
    }
}

impl Vfs for MemVfs {
    fn name(&self) -> &str {
        NAME
    }

    fn props(&self) -> FileProps {
        PROPS
    }

    fn open(&self, name: &str, _hint: StreamHint) -> Result<Arc<dyn File>> {
        check_file_name(name)?;
        let names = self.names.lock();
        let id = *names.ids.get(name).ok_or_else(|| Error::NotFound { name: name.to_owned() })?;
        Ok(self.file(id)?)
    }

    fn create(&self, name: &str, _hint: StreamHint) -> Result<Arc<dyn File>> {
        check_file_name(name)?;
        let mut names = self.names.lock();
        if names.ids.contains_key(name) {
            return Err(Error::Exists { name: name.to_owned() });
        }
        let id = FileId(names.next_id);
        names.next_id += 1;
        names.ids.insert(name.to_owned(), id);
        let file = Arc::new(MemFile { id, image: RwLock::default(), traffic: Arc::clone(&self.traffic) });
        self.files.write().insert(id, Arc::clone(&file));
        Ok(file)
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_file_name(name)?;
        let mut names = self.names.lock();
        let id = names.ids.remove(name).ok_or_else(|| Error::NotFound { name: name.to_owned() })?;
        self.files.write().remove(&id);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_file_name(from)?;
        check_file_name(to)?;
        let mut names = self.names.lock();
        let id = names.ids.remove(from).ok_or_else(|| Error::NotFound { name: from.to_owned() })?;
        if let Some(replaced) = names.ids.insert(to.to_owned(), id) {
            self.files.write().remove(&replaced);
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.names.lock().ids.keys().cloned().collect())
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> Result<()> {
        let bytes: u64 = ops.iter().map(BatchOp::data_bytes).sum();
        if bytes > PROPS.atomic_bytes_max {
            return Err(Error::BatchTooLarge { bytes, bytes_max: PROPS.atomic_bytes_max });
        }
        for op in ops {
            let (offset, len) = op.range();
            PROPS.check_range(NAME, offset, len)?;
            self.file(op.file())?;
        }
        for op in ops {
            let file = self.file(op.file())?;
            match *op {
                BatchOp::Write { offset, data, .. } => file.write_at(offset, data)?,
                BatchOp::Punch { offset, len, .. } => file.punch(offset, len)?,
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.traffic.lock().device_syncs += 1;
        Ok(())
    }

    fn stats(&self) -> Result<VfsStats> {
        let files: Vec<_> = self.files.read().values().cloned().collect();
        let allocated_bytes = files.iter().map(|file| file.image.read().bytes.allocated(0, u64::MAX)).sum();
        Ok(VfsStats { allocated_bytes, store_bytes: allocated_bytes, ..*self.traffic.lock() })
    }
}

impl File for MemFile {
    fn id(&self) -> FileId {
        self.id
    }

    fn props(&self) -> FileProps {
        PROPS
    }

    fn len(&self) -> Result<u64> {
        Ok(self.image.read().len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        PROPS.check_range(NAME, 0, len)?;
        self.image.write().set_len(len);
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        PROPS.check_range(NAME, offset, buf.len() as u64)?;
        self.image.read().bytes.read(offset, buf);
        self.traffic.lock().device_read_bytes += buf.len() as u64;
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        PROPS.check_range(NAME, offset, data.len() as u64)?;
        self.image.write().write(offset, data);
        self.traffic.lock().device_written_bytes += data.len() as u64;
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        PROPS.check_range(NAME, offset, len)?;
        self.image.write().bytes.zero(offset, len);
        Ok(())
    }

    fn allocated(&self, offset: u64, len: u64) -> Result<u64> {
        Ok(self.image.read().bytes.allocated(offset, len))
    }

    fn sync(&self) -> Result<()> {
        self.traffic.lock().device_syncs += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_names_holes_and_lengths() {
        let vfs = MemVfs::new();
        let file = vfs.create("a", StreamHint::Data).unwrap();
        assert!(matches!(vfs.create("a", StreamHint::Data), Err(Error::Exists { .. })));
        file.write_at(1024, &[5; 1024]).unwrap();
        assert_eq!((file.len().unwrap(), file.allocated(0, u64::MAX).unwrap()), (2048, 1024));
        file.punch(1024, 512).unwrap();
        file.set_len(4096).unwrap();
        let mut back = [1; 3072];
        vfs.open("a", StreamHint::Data).unwrap().read_at(1024, &mut back).unwrap();
        assert_eq!((back[0], back[512], back[1024]), (0, 5, 0));
        assert_eq!(vfs.stats().unwrap().allocated_bytes, 512);

        vfs.create("b", StreamHint::Log).unwrap();
        vfs.rename("a", "b").unwrap();
        assert_eq!(vfs.list().unwrap(), ["b"]);
        assert_eq!(vfs.open("b", StreamHint::Data).unwrap().len().unwrap(), 4096);
        vfs.remove("b").unwrap();
        assert!(matches!(vfs.open("b", StreamHint::Data), Err(Error::NotFound { .. })));
    }

    #[test]
    fn a_batch_is_refused_before_anything_is_applied() {
        let vfs = MemVfs::new();
        let file = vfs.create("a", StreamHint::Data).unwrap();
        let good = BatchOp::Write { file: file.id(), offset: 0, data: &[1; 512] };
        let bad = BatchOp::Punch { file: file.id(), offset: 1, len: 512 };
        assert!(matches!(vfs.write_batch(&[good, bad]), Err(Error::BadRange { .. })));
        let gone = BatchOp::Punch { file: FileId(99), offset: 0, len: 512 };
        assert!(matches!(vfs.write_batch(&[good, gone]), Err(Error::NotFound { .. })));
        assert!(file.is_empty().unwrap());
        vfs.write_batch(&[good, good]).unwrap();
        assert_eq!(file.len().unwrap(), 512);
    }
}
