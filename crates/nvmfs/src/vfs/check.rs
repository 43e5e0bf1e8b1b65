//! The check of a file system, and which file a sector of the store belongs to.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use lacuna_device::{SECTOR, StreamHint, Vfs};
use lacuna_ftl::{CheckDepth, Lba, Progress};

use crate::{
    check::{self, Report},
    error::Result,
    format::Ino,
    vfs::Nvmfs,
};

impl Nvmfs {
    /// Checks that names, inodes, attributes and data are consistent, and checks the store below. It may be called on a
    /// file system in use: the store below is checked as it changes, and then operations that change names or inodes
    /// (lengths, attributes) wait while these are read. Reads, and writes within the lengths of files, continue.
    ///
    /// # Errors
    /// Only failures of the check itself. All findings are in the report.
    pub fn check(&self, depth: CheckDepth) -> Result<Report> {
        self.check_reporting(depth, |_| ControlFlow::Continue(()))
    }

    /// As [`Nvmfs::check`], and periodically reports progress, which may end it. `report` must not use the file system.
    ///
    /// # Errors
    /// As [`Nvmfs::check`]; [`lacuna_ftl::Error::Interrupted`] if `report` ends it.
    pub fn check_reporting(
        &self,
        depth: CheckDepth,
        mut report: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Report> {
        check::check(self.layers.inodes(), depth, &mut report)
    }
}

impl Nvmfs {
    /// The owner of each of the sectors `lbas` of the store below, in words for people: a file by name, if it is in the
    /// root directory, or one of the file system's own tables. That directory is read once, if at all.
    pub fn owners_of(&self, lbas: &[Lba]) -> Vec<String> {
        let is_file = |ino: &Ino| !matches!(*ino, Ino::SUPERBLOCK | Ino::TABLE | Ino::ROOT);
        let names = self.names_of(lbas.iter().map(|lba| Ino::of(*lba).0).filter(is_file).collect());
        let owner = |lba: &Lba| {
            let (ino, sector) = Ino::of(*lba);
            match ino {
                Ino::SUPERBLOCK => "the file system's superblock".into(),
                Ino::TABLE => "the inode table".into(),
                Ino::ROOT => "the directory".into(),
                _ => {
                    let file = names.get(&ino);
                    let file =
                        file.map_or_else(|| format!("file {}", ino.0), |name| format!("file {name:?}"));
                    format!("{file} at byte {}", sector * SECTOR as u64)
                }
            }
        };
        lbas.iter().map(owner).collect()
    }

    /// Those of `files` that are found in the root directory.
    fn names_of(&self, files: BTreeSet<Ino>) -> BTreeMap<Ino, String> {
        if files.is_empty() {
            return BTreeMap::new();
        }
        let wanted = |name: String| {
            let ino = Ino(self.open(&name, StreamHint::Data).ok()?.id().0 as u32);
            files.contains(&ino).then_some((ino, name))
        };
        self.list().unwrap_or_default().into_iter().filter_map(wanted).collect()
    }
}
