//! Checking the file system's invariants (numbers as in `lib.rs`).
//!
//! It reads the inode table from front to back, with the sectors that belong to each inode outside of it; then the
//! entries of each directory; and compares. Damage to an inode is one finding, whatever its consequences; so is a leak
//! that it left.
//!
//! 1. *Few reads.* Sectors are read very many at a time, as they lie on the device ([`SECTORS_AT_ONCE`]), whichever
//!    inodes or directories they belong to. Entries of directories do not lie in the order of their addresses; so all
//!    of them are visited in the order of the device (`Ftl::sweep_sectors`), and each part of it is read about once.
//! 2. *The order of findings* is that of the objects they concern, not that of the device: findings about sectors that
//!    were read together are sorted by address. So the order does not depend on how many sectors are read together.
//! 3. *Memory.* `seen` holds everything that is kept: 20 bytes for an inode, 16 more for a directory, some hundred for
//!    a damaged one. The other fields of an inode are dropped with its window: [`SECTORS_AT_ONCE`] times some 130 bytes
//!    at most. Names take less than half of that, and up to a byte and a half each. 10,000,000 files take 200 MB and,
//!    while they are read, up to 140 MB. Findings come on top.
//!
//! Inodes are read in windows by their numbers. These come in the order in which inodes lie, unless they were changed
//! in another: with 10,000,000 of them changed at random, each of ten windows reads all segments.

mod inodes;
mod names;
mod seen;

use std::{cell::Cell, ops::ControlFlow};

use lacuna_ftl::{CheckDepth, Finding, Lba, Progress};

use self::seen::{Damaged, SeenInodes};
use crate::{
    error::Result,
    format::{FileKind, Ino, XATTR_SECTORS},
    inodes::Inodes,
    volume::Volume,
};

/// Inodes that are read together, and names that are planned together.
const SECTORS_AT_ONCE: usize = 1 << 20;

/// Receives reports of progress.
type OnProgress<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

fn unless_ended(told: ControlFlow<()>) -> Result<()> {
    if told.is_continue() { Ok(()) } else { Err(lacuna_ftl::Error::Interrupted.into()) }
}

/// Result of [`Nvmfs::check`](crate::Nvmfs::check).
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The findings, in the store below and in the file system; empty when both are sound.
    pub findings: Vec<Finding>,
    /// Regular files seen.
    pub files: u64,
    /// Directories seen, the root included.
    pub directories: u64,
    /// Extents of the store.
    pub extents: u64,
    /// Bytes read and verified in the store.
    pub verified_bytes: u64,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn add(&mut self, message: String) {
        self.findings.push(Finding { message });
    }
}

/// See [`crate::Nvmfs::check_reporting`].
pub(crate) fn check(inodes: &Inodes, depth: CheckDepth, progress: OnProgress<'_>) -> Result<Report> {
    let below = inodes.volume().ftl().check_with_progress(depth, &mut *progress)?;
    let mut report = Report {
        findings: below.findings,
        extents: below.extents,
        verified_bytes: below.verified_bytes,
        ..Report::default()
    };
    match check_files(inodes, depth, SECTORS_AT_ONCE, &mut report, progress) {
        // A part of the map is damaged, which is among the findings. The sectors that it maps are unknown, so
        // consistency cannot be checked.
        Err(error) if error.is_damage() => {
            report.add(format!("not all names and inodes could be looked at: {error}"));
        }
        checked => checked?,
    }
    match inodes.check_quotas() {
        Err(error) if error.is_damage() => report.add(format!("not all quotas could be looked at: {error}")),
        findings => findings?.into_iter().for_each(|finding| report.add(finding)),
    }
    Ok(report)
}

/// Checks names and inodes, `at_once` sectors at a time.
fn check_files(
    inodes: &Inodes,
    depth: CheckDepth,
    at_once: usize,
    report: &mut Report,
    progress: OnProgress<'_>,
) -> Result<()> {
    let _quiesced = inodes.quiesce();
    Checker { volume: inodes.volume(), searched: Cell::new(0) }.check(depth, at_once, report, progress)
}

/// Reads the volume, whose names and inodes do not change meanwhile.
struct Checker<'a> {
    volume: &'a Volume,
    /// Buckets in which names were searched.
    searched: Cell<u64>,
}

impl Checker<'_> {
    fn check(
        &self,
        depth: CheckDepth,
        at_once: usize,
        report: &mut Report,
        progress: OnProgress<'_>,
    ) -> Result<()> {
        let (mut seen, strays) = self.check_inodes(depth, at_once, report, progress)?;
        let count = |kind| seen.sound.iter().filter(|seen| seen.kind == kind).count() as u64;
        report.files = count(FileKind::File);
        report.directories = count(FileKind::Directory);
        self.check_names(at_once, &mut seen, report, progress)?;
        self.report_damaged(&seen, report)?;
        self.check_orphans(at_once, &mut seen, report)?;
        seen.link_flaws().for_each(|flaw| report.add(flaw));
        for ino in seen.loose_directories() {
            report.add(format!("invariant 1: directory {} does not hang from the root", ino.0));
        }
        strays.into_iter().for_each(|stray| report.add(stray));
        Ok(())
    }

    /// Reports a line for each damaged inode: the name that leads to it, or the space that it leaks.
    fn report_damaged(&self, seen: &SeenInodes, report: &mut Report) -> Result<()> {
        for (ino, Damaged { error, name, .. }) in &seen.damaged {
            let number = ino.number();
            if let Some((lba, name)) = name {
                let (directory, _) = Ino::of(*lba);
                let path = format!("{name:?} in directory {}", directory.0);
                report.add(format!("inode {number}, called {path}, is damaged: {error}"));
                continue;
            }
            let xattrs = ino.xattr_lba()..Lba(ino.xattr_lba().0 + XATTR_SECTORS);
            let bytes = self.volume.ftl().allocated(ino.region())? + self.volume.ftl().allocated(xattrs)?;
            let kept = format!("nothing frees the {bytes} bytes that it keeps");
            report.add(format!("inode {number} is damaged and has no name, {kept}: {error}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
