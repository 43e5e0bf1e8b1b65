//! The two ends of a copy that a user names, each inside a store or outside.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use lacuna_nvmfs::{Ino, posix::FileKind};

use super::{
    contents::{Directory, Source},
    inside::Inside,
    local::{LocalDirectory, LocalSource},
    opened::StorePath,
};

/// A source or target that the user names.
pub(super) enum Operand {
    Inside(StorePath),
    Outside(PathBuf),
}

impl Operand {
    pub(super) fn name(&self) -> String {
        match self {
            Operand::Inside(path) => path.name(),
            Operand::Outside(path) => path.display().to_string(),
        }
    }

    pub(super) fn is_inside(&self) -> bool {
        matches!(self, Operand::Inside(_))
    }

    fn file_name(&self) -> Option<&[u8]> {
        match self {
            Operand::Inside(path) => path.file_name(),
            Operand::Outside(path) => path.file_name().map(OsStr::as_bytes),
        }
    }

    /// The object to be copied.
    pub(super) fn source(&self) -> Result<Box<dyn Source>> {
        match self {
            Operand::Inside(path) => {
                let (_, ino) = path.resolve()?;
                Ok(Box::new(Inside::new(path.fs(), ino)))
            }
            Operand::Outside(path) => {
                Ok(Box::new(LocalSource::open(path).with_context(|| path.display().to_string())?))
            }
        }
    }

    /// Where a copy of `from` goes: to this name; or to its own name in this, if it is a directory.
    pub(super) fn target(&self, from: &Operand) -> Result<Target> {
        let needed = || {
            from.file_name().with_context(|| {
                format!("{}: has no name of its own: give the copy one, in {}", from.name(), self.name())
            })
        };
        match self {
            Operand::Outside(path) => {
                let (directory, entry, path) = if path.is_dir() {
                    let entry = needed()?;
                    (path.as_path(), entry, path.join(OsStr::from_bytes(entry)))
                } else {
                    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                    let entry =
                        self.file_name().with_context(|| format!("{}: not a directory", self.name()))?;
                    (parent.unwrap_or(Path::new(".")), entry, path.clone())
                };
                let opened =
                    LocalDirectory::open(directory).with_context(|| directory.display().to_string())?;
                Ok(Target {
                    directory: Box::new(opened),
                    entry: entry.to_vec(),
                    name: path.display().to_string(),
                })
            }
            Operand::Inside(path) => {
                let (posix, parent, entry) = path.resolve_parent()?;
                let existing = match &entry {
                    Some(entry) => posix.lookup(parent, entry).ok(),
                    None => Some(posix.getattr(Ino::ROOT)?),
                };
                let (directory, entry, name) = match (existing, entry) {
                    (Some(attr), _) if attr.kind == FileKind::Directory => {
                        let entry = needed()?;
                        let name = format!(
                            "{}/{}",
                            path.name().trim_end_matches('/'),
                            String::from_utf8_lossy(entry)
                        );
                        (attr.ino, entry.to_vec(), name)
                    }
                    (_, Some(entry)) => (parent, entry, path.name()),
                    (_, None) => bail!("{}: not a directory", path.name()),
                };
                Ok(Target { directory: Box::new(Inside::new(path.fs(), directory)), entry, name })
            }
        }
    }
}

/// The target of a copy.
pub(super) struct Target {
    pub(super) directory: Box<dyn Directory>,
    /// Its name in the directory.
    pub(super) entry: Vec<u8>,
    /// As the user calls it.
    pub(super) name: String,
}

impl Target {
    /// Whether `source` has this name, or is a directory that contains it: a copy would then overwrite its own source.
    pub(super) fn is_within(&self, source: &dyn Source) -> Result<bool> {
        let source = source.identity();
        Ok(self.directory.find(&self.entry)? == Some(source) || self.directory.ancestors()?.contains(&source))
    }
}
