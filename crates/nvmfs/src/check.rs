//! Proof of the file system's invariants (numbers as in `fs.rs`).

use std::collections::BTreeMap;

use lacuna_device::{Place, SECTOR, StreamHint};
use lacuna_ftl::{self as ftl, CheckDepth, Finding, Lba};

use crate::{
    Error, Nvmfs, Result,
    addr::Ino,
    directory::{self, Bucket, Buckets, Held},
    format::Inode,
    fs::Shared,
};

/// Result of [`Nvmfs::check`].
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong, in the file system and in the store below; empty when all is sound.
    pub findings: Vec<Finding>,
    /// Files seen.
    pub files: u64,
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

    /// Makes damage a finding; other failures end the check.
    fn catch<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ (Error::Corrupt { .. } | Error::Ftl(ftl::Error::Corrupt { .. }))) => {
                self.add(error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// An inode, and the directory entries that name it.
struct Seen {
    inode: Inode,
    entries: u32,
}

type SeenInodes = BTreeMap<Ino, Seen>;

impl Nvmfs {
    /// Proves that names, inodes and data fit each other, and checks the store below. Nothing should
    /// change names or lengths meanwhile: what is half seen would be reported.
    ///
    /// # Errors
    /// Only what kept it from looking. What it saw is in the report.
    pub fn check(&self, depth: CheckDepth) -> Result<Report> {
        let shared = &self.shared;
        let below = shared.ftl.check(depth)?;
        let mut report = Report {
            findings: below.findings,
            extents: below.extents,
            verified_bytes: below.verified_bytes,
            files: 0,
        };
        let mut seen = shared.check_inodes(&mut report)?;
        shared.check_directory(&mut seen, &mut report)?;
        for (ino, seen) in &seen {
            let expected = u32::from(seen.inode.is_file());
            if seen.entries != expected || (seen.inode.is_file() && seen.inode.nlink.get() != expected) {
                report.add(format!("invariant 1: inode {} has {} names", ino.0, seen.entries));
            }
        }
        shared.check_regions(&seen, &mut report)?;
        report.files = seen.values().filter(|seen| seen.inode.is_file()).count() as u64;
        Ok(report)
    }
}

impl Nvmfs {
    /// What the sector `lba` of the store below belongs to, for people: a file by name, if it can be
    /// found, or one of the file system's own tables.
    pub fn owner_of(&self, lba: Lba) -> String {
        let (ino, sector) = Ino::of(lba);
        let table = match ino {
            Ino::SUPERBLOCK => "the file system's superblock",
            Ino::TABLE => "the inode table",
            Ino::ROOT => "the directory",
            _ => {
                let is_it = |name: &String| {
                    let file = self.open(name, StreamHint::Data);
                    file.is_ok_and(|file| file.id().0 as u32 == ino.0)
                };
                let name = self.list().unwrap_or_default().into_iter().find(is_it);
                let file = name.map_or_else(|| format!("file {}", ino.0), |name| format!("file {name:?}"));
                return format!("{file} at byte {}", sector * SECTOR as u64);
            }
        };
        table.into()
    }
}

impl Shared {
    /// Reads every inode.
    fn check_inodes(&self, report: &mut Report) -> Result<SeenInodes> {
        let mut seen = SeenInodes::new();
        let mut rest = Ino::TABLE.region();
        while let Some(run) = self.ftl.mapped(rest.clone())? {
            for lba in run.start.0..run.end.0 {
                let number = Ino::of(Lba(lba)).1;
                if number > u64::from(Ino::LAST.0) {
                    report.add(format!("invariant 2: sector {number} behind the inode table"));
                    continue;
                }
                let ino = Ino(number as u32);
                if let Some(inode) = report.catch(self.read_inode(ino))? {
                    let is_misplaced = inode.is_file() == (ino < Ino::FIRST);
                    if is_misplaced {
                        report.add(format!("inode {} is of a kind that does not belong there", ino.0));
                    }
                    seen.insert(ino, Seen { inode, entries: 0 });
                }
            }
            rest.start = run.end;
        }
        Ok(seen)
    }

    /// Reads every directory entry; counts those of each inode (invariant 1).
    fn check_directory(&self, seen: &mut SeenInodes, report: &mut Report) -> Result<()> {
        let mut rest = Ino::ROOT.region();
        // The run of used buckets that the last bucket belongs to.
        let (mut run_start, mut run_end) = (0, 0);
        let mut ends_in_tombstone = false;
        while let Some(run) = self.ftl.mapped(rest.clone())? {
            for bucket in run.start.0..run.end.0 {
                let bucket = Bucket(bucket - Ino::ROOT.lba(0).0);
                if bucket.0 != run_end {
                    if ends_in_tombstone {
                        report.add(format!("directory invariant 3: tombstone in bucket {}", run_end - 1));
                    }
                    run_start = bucket.0;
                }
                run_end = bucket.0 + 1;
                let held = report.catch(self.get(bucket))?;
                ends_in_tombstone = matches!(held, Some(Held::Tombstone));
                let Some(Held::Entry(entry)) = held else { continue };
                let home = directory::home(entry.hash());
                let is_reachable = (run_start..=bucket.0).contains(&home.0);
                if !is_reachable || entry.hash() != self.hash_name(entry.name()) {
                    report.add(format!("directory invariant 1: {:?} cannot be found", entry.name()));
                }
                match seen.get_mut(&entry.ino()) {
                    Some(seen) if seen.inode.generation.get() == entry.generation() => seen.entries += 1,
                    _ => report.add(format!("invariant 1: {:?} has no inode", entry.name())),
                }
            }
            rest.start = run.end;
        }
        if ends_in_tombstone {
            report.add(format!("directory invariant 3: tombstone in bucket {}", run_end - 1));
        }
        Ok(())
    }

    /// Looks for data where no file has any (invariant 2).
    fn check_regions(&self, seen: &SeenInodes, report: &mut Report) -> Result<()> {
        let space_end = Ino::LAST.region().end;
        let mut rest = Lba(0)..space_end;
        while let Some(run) = self.ftl.mapped(rest.clone())? {
            let (ino, _) = Ino::of(run.start);
            let region = ino.region();
            rest.start = region.end;
            let first_free = match seen.get(&ino) {
                _ if ino == Ino::SUPERBLOCK => 1,
                _ if ino == Ino::TABLE || ino == Ino::ROOT => continue, // looked at already
                Some(seen) => seen.inode.size().div_ceil(SECTOR as u64),
                None => 0,
            };
            let free = Lba(region.start.0 + first_free)..region.end;
            if let Some(stray) = self.ftl.mapped(free)? {
                let (_, sector) = Ino::of(stray.start);
                let whose = if seen.contains_key(&ino) { "past its end" } else { "and no inode" };
                report.add(format!("invariant 2: file number {} has sector {sector} {whose}", ino.0));
            }
        }
        if let Some(run) = self.ftl.mapped(space_end..Lba(u64::MAX))? {
            report.add(format!("invariant 2: sector {} is mapped, behind all files", run.start.0));
        }
        Ok(())
    }
}
