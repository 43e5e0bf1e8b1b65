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
    opened::{End, StorePath},
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
            Operand::Outside(_) if self.end() == End::Dot => None,
            Operand::Outside(path) => path.file_name().map(OsStr::as_bytes),
        }
    }

    fn end(&self) -> End {
        match self {
            Operand::Inside(path) => path.end(),
            Operand::Outside(path) => End::of(path.as_os_str().as_bytes()),
        }
    }

    /// The object to be copied. As in cp(1), symbolic links are followed unless the copy `is_recursive`.
    pub(super) fn source(&self, is_recursive: bool) -> Result<Box<dyn Source>> {
        match self {
            Operand::Inside(path) => {
                let (_, ino) = if is_recursive { path.resolve() } else { path.follow() }?;
                Ok(Box::new(Inside::new(path.fs(), ino)))
            }
            Operand::Outside(path) => {
                let open = if is_recursive { LocalSource::open } else { LocalSource::open_followed };
                Ok(Box::new(open(path).with_context(|| path.display().to_string())?))
            }
        }
    }

    /// Where a copy of `from` goes: to this name; or to its own name in this, if it is a directory. What has no name of
    /// its own (a root, `.`, `..`) is a directory, whose entries go there.
    pub(super) fn target(&self, from: &Operand, source: &dyn Source) -> Result<Target> {
        // A directory may be made under a name with a slash.
        if self.end() != End::Nothing && !source.kept().is_ok_and(|kept| kept.kind == FileKind::Directory) {
            let is_there = match self {
                Operand::Outside(path) => path.is_dir(),
                Operand::Inside(path) => path.resolve().is_ok_and(|(posix, ino)| {
                    posix.getattr(ino).is_ok_and(|attr| attr.kind == FileKind::Directory)
                }),
            };
            if !is_there {
                bail!("{}: not a directory", self.name());
            }
        }
        match self {
            Operand::Outside(path) => {
                let (directory, entry, path) = if path.is_dir() {
                    let entry = from.file_name();
                    let path_of = |entry| path.join(OsStr::from_bytes(entry));
                    (path.as_path(), entry, entry.map_or(path.clone(), path_of))
                } else {
                    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                    let entry =
                        self.file_name().with_context(|| format!("{}: not a directory", self.name()))?;
                    (parent.unwrap_or(Path::new(".")), Some(entry), path.clone())
                };
                let opened =
                    LocalDirectory::open(directory).with_context(|| directory.display().to_string())?;
                Ok(Target {
                    directory: Box::new(opened),
                    entry: entry.map(<[u8]>::to_vec),
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
                        let entry = from.file_name().map(<[u8]>::to_vec);
                        let name = path.name().trim_end_matches('/').to_owned();
                        let name_of = |entry: &Vec<u8>| format!("{name}/{}", String::from_utf8_lossy(entry));
                        let name = entry.as_ref().map_or(name.clone(), name_of);
                        (attr.ino, entry, name)
                    }
                    (_, Some(entry)) => (parent, Some(entry), path.name()),
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
    /// Its name in the directory; none if it is the directory.
    pub(super) entry: Option<Vec<u8>>,
    /// As the user calls it.
    pub(super) name: String,
}

impl Target {
    /// Whether `source` has this name, or is a directory that contains it: a copy would then overwrite its own source.
    pub(super) fn is_within(&self, source: &dyn Source) -> Result<bool> {
        let source = source.identity();
        let has_name = match &self.entry {
            Some(entry) => self.directory.find(entry)? == Some(source),
            None => false,
        };
        Ok(has_name || self.directory.ancestors()?.contains(&source))
    }
}
