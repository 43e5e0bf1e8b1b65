//! Stores opened for the length of a command, each once, and paths in them.

use std::{
    cell::{Cell, RefCell},
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use lacuna_ftl::Secret;
use lacuna_nvmfs::{
    Ino, LogDevicePath, Nvmfs, OpenedVfs, VfsOptions,
    posix::{FileKind, Posix},
};

use super::{contents::Identity, local::identity_at};
use crate::keys::{open_vfs, open_vfs_with};

use crate::log_device;

/// The stores that a command uses.
pub(super) struct OpenStores {
    /// Those that are opened from now on.
    read_only: Cell<bool>,
    /// The key of the next one that is opened, if it has its own.
    key: RefCell<Option<Secret>>,
    stores: RefCell<Vec<(PathBuf, Arc<Nvmfs>)>>,
}

impl OpenStores {
    pub(super) fn read_only() -> OpenStores {
        OpenStores { read_only: Cell::new(true), key: RefCell::default(), stores: RefCell::default() }
    }

    pub(super) fn writable() -> OpenStores {
        OpenStores { read_only: Cell::new(false), ..OpenStores::read_only() }
    }

    /// What is not open yet is only read.
    pub(super) fn read_the_rest(&self) {
        self.read_only.set(true);
    }

    /// `STORE:PATH`, with the key of that store, or none if no file has the name before a colon.
    pub(super) fn parse_any_with(&self, text: &Path, key: Option<Secret>) -> Result<Option<StorePath>> {
        self.key.replace(key);
        let path = self.parse_any(text)?;
        if path.is_none() && self.key.take().is_some() {
            bail!("{}: not in a store, and needs no key", text.display());
        }
        Ok(path)
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
        let opened = match self.key.take() {
            Some(secret) => open_vfs_with(store, &options, secret)?,
            None => open_vfs(store, &options)?,
        };
        match opened {
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
    pub(super) end: End,
}

/// The end of a path, which is no part of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Nothing,
    /// A slash: only a directory can be meant.
    Slash,
    /// A dot behind a slash, or alone: a directory, which has no name of its own.
    Dot,
}

impl End {
    pub(super) fn of(path: &[u8]) -> End {
        match path {
            [.., b'/'] => End::Slash,
            [.., b'/', b'.'] | b"." => End::Dot,
            _ => End::Nothing,
        }
    }
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
            true => Ok(Named { store: text.to_owned(), parts: Vec::new(), end: End::Slash }),
            false => Named::parse(text),
        }
    }

    fn parse_any(text: &Path) -> Option<Named> {
        let bytes = text.as_os_str().as_bytes();
        bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').find_map(|(at, _)| {
            let store = PathBuf::from(OsString::from_vec(bytes[..at].to_vec()));
            let (parts, end) = (parts(&bytes[at + 1..]), End::of(&bytes[at + 1..]));
            (store.exists() && !store.is_dir()).then(|| Named { store, parts: parts.collect(), end })
        })
    }
}

/// The names of a path.
fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/');
    parts.filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec)
}

/// Refuses a path outside that looks like a place in a store: its name has a colon, and nothing says that it is a path.
pub(super) fn check_outside(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    match bytes.iter().position(|byte| matches!(byte, b':' | b'/')) {
        Some(at) if bytes[at] == b':' => {
            let (name, store) = (path.display(), String::from_utf8_lossy(&bytes[..at]));
            bail!("{name}: there is no store {store} (a file outside is written ./{name})")
        }
        _ => Ok(()),
    }
}

/// The same for a new file whose name has a colon behind a slash, where no other operand is in a store.
pub(super) fn check_no_store_is_meant(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    let is_path = bytes.starts_with(b"./") || bytes.starts_with(b"../");
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    let has_place = || path.parent().is_some_and(is_there);
    let is_in_name = path.file_name().is_none_or(|name| name.as_bytes().contains(&b':'));
    if bytes.contains(&b':') && !is_path && !is_there(path) && (is_in_name || !has_place()) {
        bail!("{}: there is no such store, nor such a file", path.display());
    }
    Ok(())
}

/// Most symbolic links on the way to a file, as on Linux.
const LINKS_MAX: usize = 40;

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

    /// The last part; none for the root, and for what ends with a dot.
    pub(super) fn file_name(&self) -> Option<&[u8]> {
        let named = self.named.parts.last().map(Vec::as_slice);
        named.filter(|name| self.named.end != End::Dot && *name != b"..")
    }

    /// Those of the store itself and of its log device.
    pub(super) fn identities_outside(&self) -> Vec<Identity> {
        let log_device = match log_device::chosen() {
            LogDevicePath::Path(path) | LogDevicePath::New(path) => Some(path),
            _ => None,
        };
        let paths = log_device.into_iter().chain([self.named.store.clone()]);
        paths.filter_map(|path| identity_at(&path)).collect()
    }

    /// The open store.
    pub(super) fn fs(&self) -> &Arc<Nvmfs> {
        &self.fs
    }

    pub(super) fn end(&self) -> End {
        self.named.end
    }

    /// The inode it leads to. Symbolic links are followed, and do not leave the store.
    pub(super) fn follow(&self) -> Result<(Posix, Ino)> {
        let (mut ino, mut links) = (Ino::ROOT, 0);
        let mut rest: Vec<Vec<u8>> = self.named.parts.iter().rev().cloned().collect();
        while let Some(part) = rest.pop() {
            if part == b".." && ino == Ino::ROOT {
                continue;
            }
            let attr = self.posix.lookup(ino, &part).with_context(|| self.name())?;
            if attr.kind != FileKind::Symlink {
                ino = attr.ino;
                continue;
            }
            links += 1;
            let target = self.posix.readlink(attr.ino).with_context(|| self.name())?;
            if links > LINKS_MAX {
                bail!("{}: too many symbolic links", self.name());
            }
            if target.starts_with(b"/") {
                let target = String::from_utf8_lossy(&target);
                bail!("{}: leads out of the store, to {target} (--recursive copies the link)", self.name());
            }
            rest.extend(parts(&target).rev());
        }
        Ok((self.posix.clone(), ino))
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
