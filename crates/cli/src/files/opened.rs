//! Stores opened for the length of a command, each once, and paths in them.

use std::{
    cell::{Cell, RefCell},
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use lacuna_nvmfs::{Ino, Nvmfs, OpenedVfs, VfsOptions, posix::Posix};

use crate::keys::open_vfs;

use crate::log_device;

/// The stores that a command uses.
pub(super) struct OpenStores {
    /// Those that are opened from now on.
    read_only: Cell<bool>,
    stores: RefCell<Vec<(PathBuf, Arc<Nvmfs>)>>,
}

impl OpenStores {
    pub(super) fn read_only() -> OpenStores {
        OpenStores { read_only: Cell::new(true), stores: RefCell::default() }
    }

    pub(super) fn writable() -> OpenStores {
        OpenStores { read_only: Cell::new(false), stores: RefCell::default() }
    }

    /// What is not open yet is only read.
    pub(super) fn read_the_rest(&self) {
        self.read_only.set(true);
    }

    /// `STORE:PATH`.
    pub(super) fn parse_path(&self, text: &Path) -> Result<StorePath> {
        self.path_in(Named::parse(text)?)
    }

    /// `STORE:PATH`, or none if no file has the name before a colon.
    pub(super) fn parse_any(&self, text: &Path) -> Result<Option<StorePath>> {
        Named::parse_any(text).map(|named| self.path_in(named)).transpose()
    }

    /// What is `named`, in an open store.
    pub(super) fn path_in(&self, named: Named) -> Result<StorePath> {
        let fs = self.open(&named.store)?;
        Ok(StorePath::new(&fs, named))
    }

    fn open(&self, store: &Path) -> Result<Arc<Nvmfs>> {
        let key = store.canonicalize().with_context(|| store.display().to_string())?;
        let mut stores = self.stores.borrow_mut();
        if let Some((_, fs)) = stores.iter().find(|(open, _)| *open == key) {
            return Ok(Arc::clone(fs));
        }
        let options = VfsOptions { read_only: self.read_only.get(), ..log_device::vfs_options() };
        match open_vfs(store, &options)? {
            OpenedVfs::Store(fs) => {
                stores.push((key, Arc::clone(&fs)));
                Ok(fs)
            }
            _ => bail!("{}: a directory, not a store", store.display()),
        }
    }

    /// Makes all changes durable, those before a failure too.
    pub(super) fn close_after(self, outcome: Result<()>) -> Result<()> {
        let closed = self.close();
        outcome.and(closed)
    }

    /// Makes all changes durable.
    pub(super) fn close(self) -> Result<()> {
        for (_, fs) in self.stores.into_inner() {
            fs.close()?;
        }
        Ok(())
    }
}

/// A store, and a path in it.
pub(super) struct Named {
    pub(super) store: PathBuf,
    pub(super) parts: Vec<Vec<u8>>,
}

impl Named {
    /// `STORE:PATH`.
    pub(super) fn parse(text: &Path) -> Result<Named> {
        match Named::parse_any(text) {
            Some(named) => Ok(named),
            None => bail!("{}: not STORE:PATH with a store that exists", text.display()),
        }
    }

    /// `STORE` or `STORE:PATH`.
    pub(super) fn parse_store_or_path(text: &Path) -> Result<Named> {
        match text.exists() {
            true => Ok(Named { store: text.to_owned(), parts: Vec::new() }),
            false => Named::parse(text),
        }
    }

    fn parse_any(text: &Path) -> Option<Named> {
        let bytes = text.as_os_str().as_bytes();
        bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').find_map(|(at, _)| {
            let store = PathBuf::from(OsString::from_vec(bytes[..at].to_vec()));
            let parts = bytes[at + 1..].split(|byte| *byte == b'/');
            let parts = parts.filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec);
            (store.exists() && !store.is_dir()).then(|| Named { store, parts: parts.collect() })
        })
    }
}

/// A path in an open store.
pub(super) struct StorePath {
    named: Named,
    posix: Posix,
    fs: Arc<Nvmfs>,
}

impl StorePath {
    pub(super) fn new(fs: &Arc<Nvmfs>, named: Named) -> StorePath {
        StorePath { named, posix: fs.posix(), fs: Arc::clone(fs) }
    }

    /// As the user wrote it, more or less.
    pub(super) fn name(&self) -> String {
        let path = self.named.parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>();
        format!("{}:/{}", self.named.store.display(), path.join("/"))
    }

    /// The last part; none for the root.
    pub(super) fn file_name(&self) -> Option<&[u8]> {
        self.named.parts.last().map(Vec::as_slice)
    }

    /// The open store.
    pub(super) fn fs(&self) -> &Arc<Nvmfs> {
        &self.fs
    }

    /// The inode it names.
    pub(super) fn resolve(&self) -> Result<(Posix, Ino)> {
        let ino = self.walk(&self.named.parts)?;
        Ok((self.posix.clone(), ino))
    }

    /// The directory that its last part is in, and that part; none for the root.
    pub(super) fn resolve_parent(&self) -> Result<(Posix, Ino, Option<Vec<u8>>)> {
        match self.named.parts.split_last() {
            Some((name, parents)) => Ok((self.posix.clone(), self.walk(parents)?, Some(name.clone()))),
            None => Ok((self.posix.clone(), Ino::ROOT, None)),
        }
    }

    fn walk(&self, parts: &[Vec<u8>]) -> Result<Ino> {
        parts.iter().try_fold(Ino::ROOT, |ino, part| {
            Ok(self.posix.lookup(ino, part).with_context(|| self.name())?.ino)
        })
    }
}
