//! Directories as [`Vfs`]s: the files in one by name. The file system itself is the VFS of its root.

use super::file::write_files;
use std::sync::Arc;

use lacuna_device::{
    BatchOp, Error as DeviceError, File, FileProps, Result as DeviceResult, StreamHint, Vfs, VfsStats,
    check_file_name,
};

use crate::{
    error::{Error, Refusal},
    format::{FileKind, Ino},
    names::{NewInode, Rename, RenameEnd},
    vfs::{
        Layers, Nvmfs,
        file::{NvmFile, named},
    },
};

/// A directory as a [`Vfs`]; see [`Nvmfs::directory`].
///
/// It keeps the directory's inode, with or without a name, as long as it lives: so renaming the directory changes
/// nothing, and a removed directory is empty, and nothing can be made in it. New files get the owner of the directory,
/// so that users who mount a store of their own can write to it.
pub struct Directory {
    layers: Arc<Layers>,
    name: String,
    ino: Ino,
}

impl Directory {
    /// The VFS of the root, which cannot be removed.
    pub(crate) fn root(layers: Arc<Layers>) -> Directory {
        Directory { name: layers.inodes().volume().name().to_owned(), layers, ino: Ino::ROOT }
    }

    /// The directory `name` in this one; made if it does not exist and `create` is set.
    fn enter(&self, name: &str, create: bool) -> DeviceResult<Directory> {
        check_file_name(name)?;
        let mode = FileKind::Directory.mode_bits() | 0o755;
        let path = format!("{}/{name}", self.name);
        let node = loop {
            // Look-up and open are one step, because the name may be replaced at any time.
            let opened = self.layers.names().lookup_with(self.ino, name.as_bytes(), |node| {
                let opened = if node.kind() == FileKind::Directory {
                    self.layers.inodes().open_loaded(node)
                } else {
                    Ok(())
                };
                opened.map(|()| Arc::clone(node))
            });
            match opened {
                Err(Error::Refused(Refusal::NotFound)) if create => {}
                opened => break named(&path, opened)?,
            }
            let new = NewInode { mode, open: true, ..NewInode::default() };
            match self.layers.names().create(self.ino, name.as_bytes(), &new) {
                // Another thread was faster; the next look-up shows what it made.
                Err(Error::Refused(Refusal::Exists)) => {}
                made => break named(&path, made)?.0,
            }
        };
        if node.kind() != FileKind::Directory {
            let operation = "this, on what is not a directory";
            return Err(DeviceError::Unsupported { what: path, operation });
        }
        Ok(Directory { layers: Arc::clone(&self.layers), name: path, ino: node.ino() })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.ino != Ino::ROOT && self.layers.inodes().volume().ftl().must_not_be_forked().is_ok() {
            // An inode that cannot be freed now is freed by the next open.
            let _ = self.layers.inodes().release(self.ino);
        }
    }
}

impl Nvmfs {
    /// The directory at `path`, names separated by slashes, as a VFS of its own: it opens, makes and lists the files in
    /// that directory. With `create`, it and those above it are made where they are missing. Symbolic links are not
    /// followed. Batches may span files of different directories.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`]; [`DeviceError::Unsupported`] for anything but a directory; [`DeviceError::BadName`].
    pub fn directory(&self, path: &str, create: bool) -> DeviceResult<Arc<Directory>> {
        let root = Directory::root(Arc::clone(&self.layers));
        let names = path.split('/').filter(|name| !name.is_empty());
        let found = names.into_iter().try_fold(root, |directory, name| directory.enter(name, create))?;
        Ok(Arc::new(found))
    }
}

impl Vfs for Directory {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> (usize, u64) {
        (Arc::as_ptr(&self.layers).addr(), self.ino.0.into())
    }

    fn props(&self) -> FileProps {
        self.layers.data().props()
    }

    fn open(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<dyn File>> {
        check_file_name(name)?;
        let node = named(name, self.layers.names().lookup(self.ino, name.as_bytes()))?;
        if node.kind() != FileKind::File {
            return named(name, Err(Refusal::Invalid.into()));
        }
        node.set_hint(hint);
        Ok(Arc::new(NvmFile::new(Arc::clone(&self.layers), node)))
    }

    fn create(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<dyn File>> {
        check_file_name(name)?;
        let mode = FileKind::File.mode_bits() | 0o600;
        let new = NewInode { mode, is_log: hint == StreamHint::Log, ..NewInode::default() };
        let (node, _) = named(name, self.layers.names().create(self.ino, name.as_bytes(), &new))?;
        node.set_hint(hint);
        Ok(Arc::new(NvmFile::new(Arc::clone(&self.layers), node)))
    }

    fn remove(&self, name: &str) -> DeviceResult<()> {
        check_file_name(name)?;
        named(name, self.layers.names().unlink(self.ino, name.as_bytes())).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> DeviceResult<()> {
        check_file_name(from)?;
        check_file_name(to)?;
        let end = |name| RenameEnd { parent: self.ino, name };
        named(
            from,
            self.layers.names().rename(end(from.as_bytes()), end(to.as_bytes()), Rename::Replace, None),
        )
        .map(drop)
    }

    /// The regular files of the directory whose names are UTF-8.
    fn list(&self) -> DeviceResult<Vec<String>> {
        let mut names = Vec::new();
        self.layers.names().readdir(self.ino, 0, &mut |entry| {
            if entry.kind == FileKind::File {
                names.extend(std::str::from_utf8(entry.name).map(str::to_owned));
            }
            true
        })?;
        Ok(names)
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> DeviceResult<()> {
        let open = |op: &BatchOp<'_>| {
            let node = self.layers.inodes().node_by_id(op.file()).ok_or(Refusal::Stale.into());
            named(&format!("{}: open file {}", self.layers.inodes().volume().name(), op.file().0), node)
        };
        let opened: DeviceResult<Vec<_>> = ops.iter().map(|op| Ok((open(op)?, *op))).collect();
        write_files(&self.layers, &opened?)
    }

    fn sync(&self) -> DeviceResult<()> {
        Ok(self.layers.inodes().volume().ftl().flush()?)
    }

    /// Statistics of the whole store.
    fn stats(&self) -> DeviceResult<VfsStats> {
        let stats = self.layers.inodes().volume().ftl().stats();
        Ok(VfsStats {
            device_written_bytes: stats.device.written_bytes,
            device_read_bytes: stats.device.read_bytes,
            device_syncs: stats.device.syncs,
            allocated_bytes: stats.allocated_bytes,
            store_bytes: stats.store_bytes,
        })
    }

    fn free_bytes(&self) -> DeviceResult<Option<u64>> {
        let stats = self.layers.inodes().volume().ftl().stats();
        Ok(Some(stats.live_limit_bytes.saturating_sub(stats.live_bytes)))
    }
}

/// The VFS of the root directory.
impl Vfs for Nvmfs {
    fn name(&self) -> &str {
        self.root.name()
    }

    fn identity(&self) -> (usize, u64) {
        self.root.identity()
    }

    fn props(&self) -> FileProps {
        self.root.props()
    }

    fn open(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<dyn File>> {
        self.root.open(name, hint)
    }

    fn create(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<dyn File>> {
        self.root.create(name, hint)
    }

    fn remove(&self, name: &str) -> DeviceResult<()> {
        self.root.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> DeviceResult<()> {
        self.root.rename(from, to)
    }

    fn list(&self) -> DeviceResult<Vec<String>> {
        self.root.list()
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> DeviceResult<()> {
        self.root.write_batch(ops)
    }

    fn sync(&self) -> DeviceResult<()> {
        self.root.sync()
    }

    fn stats(&self) -> DeviceResult<VfsStats> {
        self.root.stats()
    }

    fn free_bytes(&self) -> DeviceResult<Option<u64>> {
        self.root.free_bytes()
    }
}
