//! `lacuna rescue`: copies the readable files of a damaged store elsewhere.
//!
//! It follows names from the root, and then takes the inodes that got no name in the copy, which go to `lost+found`:
//! the store has lost their names, or the target cannot have them. Data that has lost its inode goes there, too.
//! Everything unreadable, and everything that the target does not take, is reported in a line of its own, and left out;
//! in files it becomes a hole.

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_device::Error as DeviceError;
use lacuna_ftl::Error as FtlError;
use lacuna_nvmfs::{
    Error, Ino, Nvmfs, Options, RemainingInode, Remains,
    posix::{FileKind, Runs},
};
use rustix::io::Errno;

use crate::log_device;

use super::{
    contents::{Directory, Entry, Identity, Kept, Source, Xattrs},
    copy::{Copy, CopyOptions, Names},
    inside::Inside,
    local::LocalDirectory,
};
use crate::keys::salvage_store;

/// The directory for inodes without a name.
const LOST_AND_FOUND: &str = "lost+found";

/// Copy what is left of a damaged store; holes stay holes, what cannot be read becomes one
#[derive(Args)]
pub(crate) struct RescueArguments {
    /// A store file or block device; it is only read
    store: PathBuf,
    /// A directory outside, new or empty
    directory: PathBuf,
    /// Keep set-user-id and set-group-id bits, and security and trusted attributes: of a store that you trust
    #[arg(long)]
    privileged: bool,
}

/// What to do about a damaged store.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    let of_ftl = |error: &FtlError| match error {
        FtlError::Corrupt { .. } => true,
        FtlError::Device(DeviceError::Io { source, .. }) => {
            let errno = source.raw_os_error().map(Errno::from_raw_os_error);
            matches!(errno, Some(Errno::IO | Errno::NODATA))
        }
        _ => false,
    };
    let is_damage = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref() {
        Some(Error::Corrupt { .. }) => true,
        Some(Error::Ftl(error)) => of_ftl(error),
        _ => cause.downcast_ref().is_some_and(of_ftl),
    };
    error.chain().any(is_damage).then(|| " (lacuna rescue STORE DIR copies what is left)".to_owned())
}

pub(crate) fn rescue(arguments: &RescueArguments) -> Result<()> {
    let RescueArguments { store, directory, privileged } = arguments;
    let mut options = Options::default();
    options.ftl.log_device = log_device::chosen().opened(true)?;
    let (fs, damage) = salvage_store(store, &options)?;
    let to = make_directory(directory).with_context(|| directory.display().to_string())?;
    let names = |top: &str| {
        let below = if top.is_empty() { String::new() } else { format!("/{top}") };
        let (from, to) = (format!("{}:{below}", store.display()), format!("{}{below}", directory.display()));
        Names { from, to, top: top.as_bytes().to_vec() }
    };
    let options =
        CopyOptions { recursive: true, withholds_privileges: !privileged, shows: true, left_out: Vec::new() };
    let mut copy = Copy::new(options, names(""));
    damage.into_iter().for_each(|line| copy.lose(line));
    let root = Salvaged::new(&fs, Ino::ROOT, FileKind::Directory);
    copy.copy_into(Box::new(root), Box::new(to.again()?))?;
    Nameless { store: store.display().to_string(), fs: &fs, to: &to, copy: &mut copy, names: &names }
        .copy_all()?;
    copy.rename(names(""));
    copy.copy_attributes(&Salvaged::new(&fs, Ino::ROOT, FileKind::Directory), &to);
    copy.finish()
}

/// A directory that is there and empty, or a new one.
fn make_directory(path: &Path) -> Result<LocalDirectory> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let directory = LocalDirectory::open(path)?;
    if !directory.is_empty()? {
        bail!("not empty");
    }
    Ok(directory)
}

/// An object of a damaged store, of which some may be left.
struct Salvaged {
    fs: Arc<Nvmfs>,
    ino: Ino,
    kind: FileKind,
    inside: Inside,
}

impl Salvaged {
    fn new(fs: &Arc<Nvmfs>, ino: Ino, kind: FileKind) -> Salvaged {
        Salvaged { fs: Arc::clone(fs), ino, kind, inside: Inside::new(fs, ino) }
    }
}

impl Source for Salvaged {
    fn identity(&self) -> Identity {
        Source::identity(&self.inside)
    }

    fn kind(&self) -> Option<FileKind> {
        Some(self.kind)
    }

    /// Its number of names says nothing about how many there are.
    fn kept(&self) -> Result<Kept> {
        Ok(Kept { is_shared: true, ..self.inside.kept()? })
    }

    fn xattrs(&self) -> Result<Xattrs> {
        self.inside.xattrs()
    }

    fn link_target(&self) -> Result<Vec<u8>> {
        self.inside.link_target()
    }

    fn entries(&self) -> Result<Remains<Vec<Entry>>> {
        let Remains { found, lost } = self.fs.remaining_entries(self.ino)?;
        let entry = |(name, ino, kind)| Entry { name, inode: Some((ino, kind)) };
        let found = found.into_iter().map(|of| entry((of.name, of.ino, of.kind))).collect();
        Ok(Remains { found, lost })
    }

    fn entry(&self, entry: &Entry) -> Result<Box<dyn Source>> {
        let (ino, kind) = entry.inode.expect("it is of this store");
        Ok(Box::new(Salvaged::new(&self.fs, ino, kind)))
    }

    fn parent(&self, (_, number): Identity) -> Result<Box<dyn Source>> {
        let ino = Ino::new(number).expect("it was one");
        Ok(Box::new(Salvaged::new(&self.fs, ino, FileKind::Directory)))
    }

    fn read_runs(&self, offset: u64) -> Result<Remains<Runs>> {
        Ok(self.fs.remaining_data(self.ino, offset)?)
    }
}

/// The inodes that no name in the copy leads to.
struct Nameless<'a> {
    store: String,
    fs: &'a Arc<Nvmfs>,
    to: &'a LocalDirectory,
    copy: &'a mut Copy,
    names: &'a dyn Fn(&str) -> Names,
}

impl Nameless<'_> {
    /// Copies them: directories first, from the top, as their entries lead to others.
    fn copy_all(mut self) -> Result<()> {
        let remains = self.fs.remaining_inodes()?;
        for (range, error) in remains.lost {
            let (first, end) = (range.start / SECTOR, range.end / SECTOR);
            self.copy.lose(format!("{}: inodes {first} to {}: {error}", self.store, end - 1));
        }
        let (mut directories, mut files): (Vec<_>, Vec<_>) =
            remains.found.into_iter().partition(|inode| inode.kind == FileKind::Directory);
        self.retain_uncopied(&mut directories);
        self.retain_uncopied(&mut files);
        if directories.is_empty() && files.is_empty() {
            return Ok(());
        }
        let mut name = LOST_AND_FOUND.to_owned();
        while self.to.find(name.as_bytes())?.is_some() {
            name.push('-'); // the store has a file of that name
        }
        let (to, _) = self.to.make_directory(name.as_bytes(), true).with_context(|| name.clone())?;
        while !directories.is_empty() {
            self.retain_uncopied(&mut directories);
            let nameless: HashSet<Ino> = directories.iter().map(|inode| inode.ino).collect();
            let is_top =
                |inode: &RemainingInode| inode.parent.is_none_or(|parent| !nameless.contains(&parent));
            let (mut tops, below): (Vec<_>, Vec<_>) = directories.into_iter().partition(is_top);
            directories = below;
            // Directories that contain each other in a cycle have no top.
            tops.extend(if tops.is_empty() { directories.pop() } else { None });
            tops.iter().try_for_each(|inode| self.copy_inode(inode, &name, &*to))?;
        }
        files.iter().try_for_each(|inode| self.copy_inode(inode, &name, &*to))
    }

    fn retain_uncopied(&self, inodes: &mut Vec<RemainingInode>) {
        inodes.retain(|inode| {
            let salvaged = Salvaged::new(self.fs, inode.ino, inode.kind);
            !self.copy.has_seen(salvaged.identity())
        });
    }

    /// Copies an inode to a name of its number, unless it was copied.
    fn copy_inode(&mut self, inode: &RemainingInode, directory: &str, to: &dyn Directory) -> Result<()> {
        let source = Salvaged::new(self.fs, inode.ino, inode.kind);
        if self.copy.has_seen(source.identity()) {
            return Ok(());
        }
        let entry = format!("#{}", inode.ino.number());
        self.copy.lose(format!("{}: inode {} has lost its name", self.store, inode.ino.number()));
        self.copy.rename((self.names)(&format!("{directory}/{entry}")));
        self.copy.copy(Box::new(source), to, entry.as_bytes())
    }
}

/// Bytes of a sector: inodes are one each.
const SECTOR: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// A bad block was reported by its place alone.
    #[test]
    fn unreadable_stores_are_to_be_rescued() {
        let device = |errno: Errno| FtlError::Device(DeviceError::io("read at byte 0", errno.into()));
        for (error, hints) in [
            (anyhow::Error::from(device(Errno::IO)), true),
            (Error::Ftl(device(Errno::NODATA)).into(), true),
            (Error::Ftl(device(Errno::NOENT)).into(), false),
            (DeviceError::io("a directory outside", Errno::IO.into()).into(), false),
        ] {
            assert_eq!(hint(&error).is_some(), hints, "{error}");
        }
    }
}
