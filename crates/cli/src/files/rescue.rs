//! `lacuna rescue`: copies the readable files of a damaged store elsewhere.
//!
//! It follows names from the root, and then takes the inodes without a name, which go to `lost+found`. Everything
//! unreadable is reported in a line of its own, and left out; in files it becomes a hole.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_nvmfs::{
    FILE_BYTES_MAX, Ino, Nvmfs, Options, RemainingInode,
    posix::{FileKind, Posix},
    salvage_store,
};

use super::{
    contents::Kept,
    copy::runs_of_data,
    ends::{Source, Target},
};
use crate::{complain, progress::Shown};

/// The directory for inodes without a name.
const LOST_AND_FOUND: &str = "lost+found";

/// Copy what is left of a damaged store; holes stay holes, what cannot be read becomes one
#[derive(Args)]
pub(crate) struct RescueArguments {
    /// A store file or block device; it is only read
    store: PathBuf,
    /// A directory outside, new or empty
    directory: PathBuf,
}

pub(crate) fn rescue(arguments: &RescueArguments) -> Result<()> {
    let RescueArguments { store, directory } = arguments;
    let (fs, damage) = salvage_store(store, Options::default())?;
    let name = || directory.display().to_string();
    fs::create_dir_all(directory).with_context(name)?;
    if fs::read_dir(directory).with_context(name)?.next().is_some() {
        bail!("{}: not empty", directory.display());
    }
    let mut rescue = Rescue {
        posix: fs.posix(),
        fs,
        store: store.display().to_string(),
        copied: HashMap::new(),
        losses: 0,
        shown: Shown::default(),
    };
    damage.iter().for_each(|line| rescue.lose(line));
    rescue.copy(Ino::ROOT, FileKind::Directory, String::new(), &Target::Outside(directory.clone()))?;
    let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    let mut to = directory.join(LOST_AND_FOUND);
    while !is_free(&to) {
        to.as_mut_os_string().push("-");
    }
    rescue.copy_nameless(&to)?;
    let copied = rescue.copied.len();
    match rescue.losses {
        0 => Ok(()),
        losses => {
            bail!("{}: damaged: {losses} losses, {copied} files and directories copied", store.display())
        }
    }
}

struct Rescue {
    fs: Arc<Nvmfs>,
    posix: Posix,
    store: String,
    /// The copied inodes and their targets.
    copied: HashMap<Ino, Target>,
    losses: u64,
    shown: Shown,
}

impl Rescue {
    fn lose(&mut self, line: &str) {
        self.losses += 1;
        complain(line);
    }

    /// The value of `part` if it could be read; otherwise reports the failure for `name`.
    fn read<T>(&mut self, name: &str, what: &str, part: Result<T>) -> Option<T> {
        part.inspect_err(|error| self.lose(&format!("{name}: {what}: {error:#}"))).ok()
    }

    /// Copies an inode, with all entries of a directory, to `target`. `path` is its path in the store.
    fn copy(&mut self, ino: Ino, kind: FileKind, path: String, target: &Target) -> Result<()> {
        let name = format!("{}:{path}", self.store);
        if let Some(first) = self.copied.get(&ino) {
            if kind == FileKind::Directory {
                self.lose(&format!("{name}: leads to a directory that has another name"));
                return Ok(());
            }
            return target.link_to(first).with_context(|| target.name());
        }
        if self.shown.is_due() {
            eprintln!("{} copied; {name}", self.copied.len());
        }
        let source =
            Source::Inside { fs: Arc::clone(&self.fs), posix: self.posix.clone(), ino, name: name.clone() };
        let kept = self.read(&name, "length, owner and times", source.kept());
        match kept.map_or(kind, |kept| kept.kind) {
            FileKind::File => {
                self.copied.insert(ino, target.clone());
                self.copy_data(ino, kept.as_ref(), &name, target).with_context(|| target.name())?;
            }
            FileKind::Symlink => {
                let Some(link) = self.read(&name, "target", source.link_target()) else { return Ok(()) };
                self.copied.insert(ino, target.clone());
                target.make_link(&link).with_context(|| target.name())?;
            }
            FileKind::Directory => {
                self.copied.insert(ino, target.clone());
                target.make_directory().with_context(|| target.name())?;
                self.copy_entries(ino, &path, &name, target)?;
            }
            _ => {
                self.lose(&format!("{name}: neither file, directory nor symbolic link: left out"));
                return Ok(());
            }
        }
        let Some(kept) = kept else { return Ok(()) };
        let xattrs = self.read(&name, "attributes", source.xattrs()).unwrap_or_default();
        target.set_kept(&kept, &xattrs).with_context(|| target.name())
    }

    fn copy_entries(&mut self, directory: Ino, path: &str, name: &str, target: &Target) -> Result<()> {
        let remains = self.fs.remaining_entries(directory)?;
        for (_, error) in remains.lost {
            self.lose(&format!("{name}: entries: {error}"));
        }
        let entries: BTreeMap<_, _> =
            remains.found.into_iter().map(|entry| (entry.name, (entry.ino, entry.kind))).collect();
        for (entry, (ino, kind)) in entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry));
            self.copy(ino, kind, path, &target.entry(&entry)?)?;
        }
        Ok(())
    }

    fn copy_data(&mut self, ino: Ino, kept: Option<&Kept>, name: &str, target: &Target) -> Result<()> {
        let writer = target.writer()?;
        let size_max = kept.map_or(FILE_BYTES_MAX, |kept| kept.size);
        let (mut offset, mut end) = (0, 0);
        while offset < size_max {
            let remains = self.fs.remaining_data(ino, offset)?;
            for (Range { start, end }, error) in
                remains.lost.into_iter().filter(|(lost, _)| lost.start < size_max)
            {
                self.lose(&format!("{name}: bytes {start} to {}: {error}", end.min(size_max)));
            }
            let inside =
                |(at, data): &(u64, Vec<u8>)| size_max.saturating_sub(*at).min(data.len() as u64) as usize;
            let runs = remains.found.runs.iter().map(|run| (run.0, &run.1[..inside(run)]));
            let runs: Vec<_> = runs
                .flat_map(|(at, data)| runs_of_data(data).map(move |(skip, data)| (at + skip as u64, data)))
                .collect();
            writer.write_runs(&runs)?;
            end = remains.found.runs.last().map_or(end, |(at, data)| at + data.len() as u64);
            offset = remains.found.end;
        }
        writer.finish(kept.map_or(end, |kept| kept.size))
    }

    /// Copies inodes without a name: directories first, from the top, as their entries lead to others.
    fn copy_nameless(&mut self, to: &Path) -> Result<()> {
        let remains = self.fs.remaining_inodes()?;
        for (range, error) in remains.lost {
            let (first, end) = (range.start / SECTOR, range.end / SECTOR);
            self.lose(&format!("{}: inodes {first} to {}: {error}", self.store, end - 1));
        }
        let (mut directories, files): (Vec<_>, Vec<_>) =
            remains.found.into_iter().partition(|inode| inode.kind == FileKind::Directory);
        while !directories.is_empty() {
            directories.retain(|inode| !self.copied.contains_key(&inode.ino));
            let nameless: HashSet<Ino> = directories.iter().map(|inode| inode.ino).collect();
            let is_top =
                |inode: &RemainingInode| inode.parent.is_none_or(|parent| !nameless.contains(&parent));
            let (mut tops, below): (Vec<_>, Vec<_>) = directories.into_iter().partition(is_top);
            directories = below;
            // Directories that contain each other in a cycle have no top.
            tops.extend(if tops.is_empty() { directories.pop() } else { None });
            tops.iter().try_for_each(|inode| self.copy_inode(inode, to))?;
        }
        files.iter().try_for_each(|inode| self.copy_inode(inode, to))
    }

    /// Copies an inode to a name of its number, unless it was copied.
    fn copy_inode(&mut self, inode: &RemainingInode, to: &Path) -> Result<()> {
        if self.copied.contains_key(&inode.ino) {
            return Ok(());
        }
        fs::create_dir_all(to).with_context(|| to.display().to_string())?;
        let entry = format!("#{}", inode.ino.number());
        self.lose(&format!("{}: inode {} has lost its name", self.store, inode.ino.number()));
        self.copy(
            inode.ino,
            inode.kind,
            format!("/{LOST_AND_FOUND}/{entry}"),
            &Target::Outside(to.join(&entry)),
        )
    }
}

/// Bytes of a sector: inodes are one each.
const SECTOR: u64 = 512;
