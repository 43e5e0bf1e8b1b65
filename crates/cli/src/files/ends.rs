//! The two ends of a copy, each inside a store or outside.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use lacuna_nvmfs::{
    Error, Ino, Nvmfs, Refusal,
    posix::{Caller, FileKind, Posix, Runs, SetAttr, SetTime, XattrMode},
};

use super::{
    contents::{Kept, Reader, Writer, Xattrs},
    entries,
    local::{self, LocalFile},
    opened::StorePath,
};

/// A source or target that the user names.
pub(super) enum Operand {
    Inside(StorePath),
    Outside(PathBuf),
}

impl Operand {
    pub(super) fn file_name(&self) -> Option<Vec<u8>> {
        match self {
            Operand::Inside(path) => path.file_name().map(<[u8]>::to_vec),
            Operand::Outside(path) => path.file_name().map(|name| name.as_bytes().to_vec()),
        }
    }

    /// The file to be copied.
    pub(super) fn source(&self) -> Result<Source> {
        match self {
            Operand::Inside(path) => {
                let (posix, ino) = path.resolve()?;
                Ok(Source::Inside { fs: Arc::clone(path.fs()), posix, ino, name: path.name() })
            }
            Operand::Outside(path) => Ok(Source::Outside(path.clone())),
        }
    }
}

/// Something to be copied.
pub(super) enum Source {
    Inside { fs: Arc<Nvmfs>, posix: Posix, ino: Ino, name: String },
    Outside(PathBuf),
}

impl Source {
    pub(super) fn name(&self) -> String {
        match self {
            Source::Inside { name, .. } => name.clone(),
            Source::Outside(path) => path.display().to_string(),
        }
    }

    pub(super) fn kept(&self) -> Result<Kept> {
        match self {
            Source::Inside { fs, posix, ino, .. } => {
                let attr = posix.getattr(*ino)?;
                let is_one_of_several = attr.nlink > 1 && attr.kind != FileKind::Directory;
                let store = Arc::as_ptr(fs).addr() as u64;
                Ok(Kept {
                    identity: is_one_of_several.then_some((store, ino.number())),
                    kind: attr.kind,
                    perm: attr.perm.into(),
                    uid: attr.uid,
                    gid: attr.gid,
                    size: attr.size,
                    accessed: attr.accessed,
                    modified: attr.modified,
                })
            }
            Source::Outside(path) => Ok(local::kept(&fs::symlink_metadata(path)?)),
        }
    }

    /// Extended attributes, of a symbolic link its own.
    pub(super) fn xattrs(&self) -> Result<Xattrs> {
        match self {
            Source::Outside(path) => local::xattrs(path),
            Source::Inside { posix, ino, .. } => {
                let names = posix.listxattr(*ino)?;
                let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
                names.map(|name| Ok((name.to_vec(), posix.getxattr(*ino, name)?))).collect()
            }
        }
    }

    pub(super) fn link_target(&self) -> Result<Vec<u8>> {
        match self {
            Source::Inside { posix, ino, .. } => Ok(posix.readlink(*ino)?),
            Source::Outside(path) => Ok(fs::read_link(path)?.into_os_string().into_vec()),
        }
    }

    /// The entries of a directory, by name.
    pub(super) fn entries(&self) -> Result<Vec<(Vec<u8>, Source)>> {
        match self {
            Source::Inside { fs, posix, ino, name } => {
                let each = |(entry, ino): (Vec<u8>, Ino)| {
                    let name = format!("{name}/{}", String::from_utf8_lossy(&entry));
                    (entry, Source::Inside { fs: Arc::clone(fs), posix: posix.clone(), ino, name })
                };
                Ok(entries(posix, *ino)?.into_iter().map(each).collect())
            }
            Source::Outside(path) => {
                let mut found = Vec::new();
                for entry in fs::read_dir(path)? {
                    let entry = entry?;
                    found.push((entry.file_name().into_vec(), Source::Outside(entry.path())));
                }
                found.sort_by(|a, b| a.0.cmp(&b.0));
                Ok(found)
            }
        }
    }

    pub(super) fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(match self {
            Source::Inside { posix, ino, .. } => Box::new(InsideFile { posix: posix.clone(), ino: *ino }),
            Source::Outside(path) => Box::new(LocalFile::open(path)?),
        })
    }
}

/// The target name of a copy.
#[derive(Clone)]
pub(super) enum Target {
    Inside { fs: Arc<Nvmfs>, posix: Posix, parent: Ino, entry: Vec<u8>, name: String },
    Outside(PathBuf),
}

impl Target {
    /// The name itself; or one in it, if it is a directory: that of the source, `file_name`.
    pub(super) fn new(to: &Operand, file_name: Option<Vec<u8>>) -> Result<Target> {
        let needed = || file_name.clone().context("a name is needed for the copy");
        match to {
            Operand::Outside(path) if path.is_dir() => {
                Ok(Target::Outside(path.join(OsStr::from_bytes(&needed()?))))
            }
            Operand::Outside(path) => Ok(Target::Outside(path.clone())),
            Operand::Inside(path) => {
                let (posix, parent, entry) = path.resolve_parent()?;
                let existing = match &entry {
                    Some(entry) => posix.lookup(parent, entry).ok(),
                    None => Some(posix.getattr(Ino::ROOT)?),
                };
                let inside = |parent, entry| Target::Inside {
                    fs: Arc::clone(path.fs()),
                    posix: posix.clone(),
                    parent,
                    entry,
                    name: path.name(),
                };
                match (existing, entry) {
                    (Some(attr), _) if attr.kind == FileKind::Directory => Ok(inside(attr.ino, needed()?)),
                    (_, Some(entry)) => Ok(inside(parent, entry)),
                    (_, None) => bail!("{}: not a directory", path.name()),
                }
            }
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Target::Inside { name, .. } => name.clone(),
            Target::Outside(path) => path.display().to_string(),
        }
    }

    /// Whether `source` has this name, or is a directory that contains it: a copy would then overwrite its own source.
    pub(super) fn is_within(&self, source: &Source) -> Result<bool> {
        match (self, source) {
            (
                Target::Inside { fs, posix, parent, entry, .. },
                Source::Inside { fs: source_fs, ino: source, .. },
            ) if Arc::ptr_eq(fs, source_fs) => {
                if posix.lookup(*parent, entry).is_ok_and(|attr| attr.ino == *source) {
                    return Ok(true);
                }
                let mut directory = *parent;
                while directory != Ino::ROOT && directory != *source {
                    directory = posix.lookup(directory, b"..")?.ino;
                }
                Ok(directory == *source)
            }
            (Target::Outside(path), Source::Outside(source)) => {
                let canonical = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
                let source = canonical(source)?;
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let parent = canonical(parent.unwrap_or(Path::new(".")))?;
                let path = path.file_name().map_or(parent.clone(), |name| parent.join(name));
                Ok(path.canonicalize().unwrap_or(path).starts_with(source))
            }
            _ => Ok(false),
        }
    }

    /// The name of an entry, once this is a directory.
    pub(super) fn entry(&self, entry: &[u8]) -> Result<Target> {
        match self {
            Target::Inside { fs, posix, parent, entry: own, name } => Ok(Target::Inside {
                fs: Arc::clone(fs),
                posix: posix.clone(),
                parent: posix.lookup(*parent, own)?.ino,
                entry: entry.to_vec(),
                name: format!("{name}/{}", String::from_utf8_lossy(entry)),
            }),
            Target::Outside(path) => Ok(Target::Outside(path.join(OsStr::from_bytes(entry)))),
        }
    }

    /// Makes the directory, unless it is there.
    pub(super) fn make_directory(&self) -> Result<()> {
        match self {
            Target::Outside(path) if path.is_dir() => Ok(()),
            Target::Outside(path) => Ok(fs::create_dir(path)?),
            Target::Inside { posix, parent, entry, .. } => match posix.lookup(*parent, entry) {
                Ok(attr) if attr.kind == FileKind::Directory => Ok(()),
                _ => posix.mkdir(*parent, entry, 0o700, Caller::default()).map(drop).map_err(Into::into),
            },
        }
    }

    pub(super) fn make_link(&self, target: &[u8]) -> Result<()> {
        match self {
            Target::Outside(path) => Ok(std::os::unix::fs::symlink(OsStr::from_bytes(target), path)?),
            Target::Inside { posix, parent, entry, .. } => {
                posix.symlink(*parent, entry, target, Caller::default())?;
                Ok(())
            }
        }
    }

    /// Makes this another name of the copy at `first`, on the same side. A file that had the name is replaced.
    pub(super) fn link_to(&self, first: &Target) -> Result<()> {
        match (self, first) {
            (Target::Outside(path), Target::Outside(first)) => {
                match fs::remove_file(path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
                Ok(fs::hard_link(first, path)?)
            }
            (
                Target::Inside { posix, parent, entry, .. },
                Target::Inside { parent: first_parent, entry: first, .. },
            ) => {
                let ino = posix.lookup(*first_parent, first)?.ino;
                if posix.lookup(*parent, entry).is_ok() {
                    posix.unlink(*parent, entry)?;
                }
                posix.link(ino, *parent, entry)?;
                Ok(())
            }
            _ => bail!("one copy has one target"),
        }
    }

    /// An empty file to write; an existing one is replaced.
    pub(super) fn writer(&self) -> Result<Box<dyn Writer>> {
        match self {
            Target::Outside(path) => Ok(Box::new(LocalFile::create(path)?)),
            Target::Inside { posix, parent, entry, .. } => {
                let mode = FileKind::File.mode_bits() | 0o600;
                let ino = match posix.lookup(*parent, entry) {
                    Ok(attr) => {
                        posix.setattr(attr.ino, &SetAttr { size: Some(0), ..SetAttr::default() })?.ino
                    }
                    Err(_) => posix.mknod(*parent, entry, mode, 0, Caller::default())?.ino,
                };
                Ok(Box::new(InsideFile { posix: posix.clone(), ino }))
            }
        }
    }

    /// Owner (where allowed), extended attributes, permissions and times of the source.
    pub(super) fn set_kept(&self, kept: &Kept, xattrs: &Xattrs) -> Result<()> {
        match self {
            Target::Outside(path) => local::set_kept(path, kept, xattrs),
            Target::Inside { posix, parent, entry, .. } => {
                let ino = posix.lookup(*parent, entry)?.ino;
                let is_link = kept.kind == FileKind::Symlink;
                let changes = SetAttr {
                    mode: (!is_link).then_some(kept.perm),
                    uid: Some(kept.uid),
                    gid: Some(kept.gid),
                    accessed: Some(SetTime::At(kept.accessed)),
                    modified: Some(SetTime::At(kept.modified)),
                    ..SetAttr::default()
                };
                // A change of owner takes set-user-id away, so permissions come again after it.
                posix.setattr(ino, &changes)?;
                posix.setattr(ino, &SetAttr { mode: changes.mode, ..SetAttr::default() })?;
                for (name, value) in xattrs {
                    match posix.setxattr(ino, name, value, XattrMode::Set) {
                        Err(Error::Refused(Refusal::NotSupported)) => local::left_out(&self.name(), name),
                        set => set?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// A file in a store.
struct InsideFile {
    posix: Posix,
    ino: Ino,
}

impl Reader for InsideFile {
    fn read_runs(&self, offset: u64) -> Result<Runs> {
        Ok(self.posix.read_runs(self.ino, offset)?)
    }
}

impl Writer for InsideFile {
    fn write_runs(&self, runs: &[(u64, &[u8])]) -> Result<()> {
        Ok(self.posix.write_runs(self.ino, runs)?)
    }

    fn finish(&self, size: u64) -> Result<()> {
        self.posix.setattr(self.ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        Ok(())
    }
}
