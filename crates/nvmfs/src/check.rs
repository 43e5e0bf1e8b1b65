//! Proof of the file system's invariants (numbers as in `fs.rs`).
//!
//! It reads the inode table from front to back, then each directory, and compares. Memory: 48 bytes an
//! inode. Damage to an inode is one finding, whatever else follows from it; so is a leak that it left.

use std::collections::BTreeMap;

use lacuna_device::{Place, SECTOR, StreamHint};
use lacuna_ftl::{CheckDepth, Finding, Lba};

use crate::{
    Error, Nvmfs, Result,
    addr::{Ino, XATTR_SECTORS},
    directory::{self, Bucket, Held},
    format::{Dirent, Inode, SectorBytes},
    fs::Shared,
    posix::FileKind,
};

/// Sectors that are read together.
const SECTORS_AT_ONCE: usize = 1024;

/// Result of [`Nvmfs::check`].
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong, in the file system and in the store below; empty when all is sound.
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

    /// Makes damage a finding; other failures end the check.
    fn catch<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_damage() => {
                self.add(error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// What the check remembers of an inode.
struct Seen {
    ino: Ino,
    generation: u32,
    kind: FileKind,
    nlink: u32,
    /// Of a directory: the one that it says to lie in.
    parent: Ino,
    /// Entries that name it.
    entries: u32,
    /// Of a directory: directories in it.
    subdirectories: u32,
    /// Sectors that its data may take; of its attributes in their region.
    sectors: u64,
    xattr_sectors: u64,
    is_orphan: bool,
    /// Of a directory: its parents lead to the root, or do not.
    hangs: Option<bool>,
}

const _: () = assert!(size_of::<Seen>() <= 48);

impl Seen {
    fn new(inode: &Inode) -> Seen {
        let is_directory = inode.is_directory();
        let has_data = inode.inline_target().is_none();
        Seen {
            ino: inode.ino(),
            generation: inode.generation(),
            kind: inode.kind(),
            nlink: inode.nlink(),
            parent: if is_directory { inode.parent() } else { Ino::ROOT },
            entries: 0,
            subdirectories: 0,
            sectors: if has_data { inode.size().div_ceil(SECTOR as u64) } else { 0 },
            xattr_sectors: if inode.has_xattrs_outside() {
                crate::xattr::sectors(inode.xattr_bytes())
            } else {
                0
            },
            is_orphan: false,
            hangs: (inode.ino() == Ino::ROOT).then_some(true),
        }
    }

    fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// What is wrong with the number of its names.
    fn link_flaw(&self) -> Option<String> {
        let Seen { ino, nlink, entries, .. } = self;
        if (*nlink == 0) != self.is_orphan {
            let what = if self.is_orphan { "is an orphan" } else { "is no orphan" };
            return Some(format!("invariant 3: inode {} has {nlink} links and {what}", ino.0));
        }
        let expected_entries = match self.kind {
            FileKind::Directory => u32::from(*ino != Ino::ROOT && *nlink > 0),
            _ => *nlink,
        };
        if *entries != expected_entries {
            return Some(format!("invariant 1: inode {} has {entries} names and {nlink} links", ino.0));
        }
        if self.is_directory() && *nlink > 0 && *nlink != 2 + self.subdirectories {
            let inside = self.subdirectories;
            return Some(format!("invariant 1: directory {} has {inside} in it and {nlink} links", ino.0));
        }
        None
    }
}

/// What the check remembers of an inode that cannot be read.
struct Damaged {
    error: Error,
    /// One of its names, and the directory that it is in.
    name: Option<(String, Ino)>,
}

/// The inodes seen.
#[derive(Default)]
struct SeenInodes {
    /// By number.
    sound: Vec<Seen>,
    damaged: BTreeMap<Ino, Damaged>,
}

impl SeenInodes {
    fn index(&self, ino: Ino) -> Option<usize> {
        self.sound.binary_search_by_key(&ino, |seen| seen.ino).ok()
    }

    fn get(&self, ino: Ino) -> Option<&Seen> {
        self.index(ino).map(|index| &self.sound[index])
    }

    fn get_mut(&mut self, ino: Ino) -> Option<&mut Seen> {
        self.index(ino).map(|index| &mut self.sound[index])
    }

    /// Finds the directories that hang from the root, and returns those that do not.
    fn loose_directories(&mut self) -> Vec<Ino> {
        let mut loose = Vec::new();
        for index in 0..self.sound.len() {
            if !self.sound[index].is_directory() || self.sound[index].nlink == 0 {
                continue;
            }
            let mut path = Vec::new();
            let mut at = Some(index);
            // A chain that is longer than there are inodes is a circle.
            while let Some(next) =
                at.filter(|at| self.sound[*at].hangs.is_none() && path.len() <= self.sound.len())
            {
                path.push(next);
                at = self.index(self.sound[next].parent).filter(|parent| self.sound[*parent].is_directory());
            }
            let hangs = at.is_some_and(|at| self.sound[at].hangs == Some(true));
            path.iter().for_each(|index| self.sound[*index].hangs = Some(hangs));
            if self.sound[index].hangs == Some(false) {
                loose.push(self.sound[index].ino);
            }
        }
        loose
    }
}

impl Nvmfs {
    /// Proves that names, inodes, attributes and data fit each other, and checks the store below. It may
    /// be called on a file system in use: the store below is checked as it changes, and then what changes
    /// names or inodes (lengths, attributes) waits while these are read. Reads, and writes within the
    /// lengths of files, go on.
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
            ..Report::default()
        };
        let _structure = shared.structure.write();
        let mut seen = shared.check_inodes(depth, &mut report)?;
        for index in 0..seen.sound.len() {
            if seen.sound[index].is_directory() {
                shared.check_directory(seen.sound[index].ino, &mut seen, &mut report)?;
            }
        }
        shared.report_damaged(&seen, &mut report)?;
        shared.check_orphans(&mut seen, &mut report)?;
        seen.sound.iter().filter_map(Seen::link_flaw).for_each(|flaw| report.add(flaw));
        for ino in seen.loose_directories() {
            report.add(format!("invariant 1: directory {} does not hang from the root", ino.0));
        }
        shared.check_regions(&seen, &mut report)?;
        let count = |kind| seen.sound.iter().filter(|seen| seen.kind == kind).count() as u64;
        report.files = count(FileKind::File);
        report.directories = count(FileKind::Directory);
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
    /// Reads every inode, with its attributes.
    fn check_inodes(&self, depth: CheckDepth, report: &mut Report) -> Result<SeenInodes> {
        let mut seen = SeenInodes::default();
        self.for_each_mapped(Ino::TABLE, |sector, bytes| {
            let Some(ino) = Ino::new(sector) else {
                report.add(format!("invariant 2: sector {sector} of the inode table has no inode"));
                return Ok(());
            };
            let inode = match bytes.and_then(|bytes| self.verify_inode(ino, bytes)) {
                Err(error) if error.is_damage() => {
                    seen.damaged.insert(ino, Damaged { error, name: None });
                    return Ok(());
                }
                inode => inode?,
            };
            report.catch(self.read_xattrs(&inode).map(drop))?;
            if depth == CheckDepth::Payload {
                report.catch(self.check_last_sector(&inode))?;
            }
            if ino == Ino::ROOT && (!inode.is_directory() || inode.nlink() == 0) {
                report.add("the root is not a directory".to_owned());
            }
            seen.sound.push(Seen::new(&inode));
            Ok(())
        })?;
        if seen.get(Ino::ROOT).is_none() {
            report.add("there is no root directory".to_owned());
        }
        Ok(seen)
    }

    /// A line for each damaged inode: what leads to it, or what it keeps for ever.
    fn report_damaged(&self, seen: &SeenInodes, report: &mut Report) -> Result<()> {
        for (ino, Damaged { error, name }) in &seen.damaged {
            let number = ino.number();
            if let Some((name, directory)) = name {
                let place = format!("{name:?} in directory {}", directory.0);
                report.add(format!("inode {number}, called {place}, is damaged: {error}"));
                continue;
            }
            let xattrs = ino.xattr_lba()..Lba(ino.xattr_lba().0 + XATTR_SECTORS);
            let bytes = self.ftl.allocated(ino.region())? + self.ftl.allocated(xattrs)?;
            let kept = format!("nothing frees the {bytes} bytes that it keeps");
            report.add(format!("inode {number} is damaged and has no name, {kept}: {error}"));
        }
        Ok(())
    }

    /// Calls `visit` for each mapped sector of a region, with what it holds. Many are read at a time.
    fn for_each_mapped(
        &self,
        region: Ino,
        mut visit: impl FnMut(u64, Result<&SectorBytes>) -> Result<()>,
    ) -> Result<()> {
        let mut rest = region.region();
        loop {
            let lbas = self.ftl.mapped_sectors(rest.clone(), SECTORS_AT_ONCE)?;
            let Some(last) = lbas.last() else { return Ok(()) };
            rest.start = Lba(last.0 + 1);
            if let Ok(sectors) = self.ftl.read_sectors(&lbas) {
                sectors.iter().try_for_each(|(lba, bytes)| visit(Ino::of(*lba).1, Ok(bytes)))?;
                continue;
            }
            // One of them is damaged: it is found one by one.
            for lba in lbas {
                let mut bytes = [0; SECTOR];
                let read = self.ftl.read(lba, &mut bytes).map(|()| &bytes);
                visit(Ino::of(lba).1, read.map_err(Error::from))?;
            }
        }
    }

    /// Looks at the bytes behind the end of a file (invariant 2).
    fn check_last_sector(&self, inode: &Inode) -> Result<()> {
        let used = (inode.size() % SECTOR as u64) as usize;
        if used == 0 || inode.inline_target().is_some() {
            return Ok(());
        }
        let last = inode.size() / SECTOR as u64;
        let mut bytes = [0; SECTOR];
        self.ftl.read(inode.ino().lba(last), &mut bytes)?;
        if bytes[used..].iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        Err(self.corrupt(&format!("file number {}", inode.ino().0), last, "invariant 2: data behind its end"))
    }

    /// Reads every entry of a directory; counts those of each inode (invariant 1).
    fn check_directory(&self, directory: Ino, seen: &mut SeenInodes, report: &mut Report) -> Result<()> {
        // The run of used buckets that the last bucket belongs to.
        let (mut run_start, mut run_end) = (0, 0);
        let mut ends_in_tombstone = false;
        self.for_each_mapped(directory, |sector, bytes| {
            let bucket = Bucket(sector);
            if bucket.0 != run_end {
                if ends_in_tombstone {
                    report.add(stray_tombstone(directory, run_end - 1));
                }
                run_start = bucket.0;
            }
            run_end = bucket.0 + 1;
            let parse = |bytes| directory::parse_bucket(&self.store, directory, bucket, bytes);
            let held = report.catch(bytes.and_then(parse))?;
            ends_in_tombstone = matches!(held, Some(Held::Tombstone));
            let Some(Held::Entry(entry)) = held else { return Ok(()) };
            let home = directory::home(entry.hash());
            let is_reachable = (run_start..=bucket.0).contains(&home.0);
            let name = String::from_utf8_lossy(entry.name());
            if !is_reachable || entry.hash() != self.hash_name(entry.name()) {
                report.add(format!("directory invariant 1: {name:?} cannot be found"));
            }
            if let Some(damaged) = seen.damaged.get_mut(&entry.ino()) {
                damaged.name.get_or_insert_with(|| (name.into_owned(), directory));
                let within = seen.get_mut(directory).filter(|_| entry.kind() == FileKind::Directory);
                within.into_iter().for_each(|directory| directory.subdirectories += 1);
            } else if let Some(flaw) = check_entry(directory, &entry, seen) {
                report.add(format!("invariant 1: {name:?} in directory {} {flaw}", directory.0));
            }
            Ok(())
        })?;
        if ends_in_tombstone {
            report.add(stray_tombstone(directory, run_end - 1));
        }
        Ok(())
    }

    /// Reads the region of orphans (invariant 3).
    fn check_orphans(&self, seen: &mut SeenInodes, report: &mut Report) -> Result<()> {
        self.for_each_mapped(Ino::ORPHANS, |sector, _| {
            let named = match Ino::new(sector) {
                None => None,
                Some(ino) if seen.damaged.contains_key(&ino) => return Ok(()), // reported
                Some(ino) => match report.catch(self.read_orphan(ino))? {
                    None => return Ok(()),
                    Some(orphan) => seen.get_mut(ino).filter(|seen| orphan.is_of(ino, seen.generation)),
                },
            };
            match named {
                Some(seen) => seen.is_orphan = true,
                None => report.add(format!("invariant 3: sector {sector} of the orphans has no inode")),
            }
            Ok(())
        })
    }

    /// Looks for data where no file has any (invariant 2).
    fn check_regions(&self, seen: &SeenInodes, report: &mut Report) -> Result<()> {
        let space_end = Ino::LAST.region().end;
        let mut rest = Lba(0)..space_end;
        while let Some(run) = self.ftl.mapped(rest.clone())? {
            let (ino, _) = Ino::of(run.start);
            let region = ino.region();
            rest.start = region.end;
            let first_free = match seen.get(ino) {
                _ if ino == Ino::SUPERBLOCK => 1,
                _ if ino == Ino::TABLE || ino == Ino::ORPHANS => continue, // looked at already
                _ if ino == Ino::XATTRS => {
                    self.check_xattr_region(seen, report)?;
                    continue;
                }
                Some(seen) if seen.is_directory() => continue, // looked at already
                Some(seen) => seen.sectors,
                None if seen.damaged.contains_key(&ino) => continue, // nobody knows
                None => 0,
            };
            let free = Lba(region.start.0 + first_free)..region.end;
            if let Some(stray) = self.ftl.mapped(free)? {
                let (_, sector) = Ino::of(stray.start);
                let whose = if seen.get(ino).is_some() { "past its end" } else { "and no inode" };
                report.add(format!("invariant 2: file number {} has sector {sector} {whose}", ino.0));
            }
        }
        if let Some(run) = self.ftl.mapped(space_end..Lba(u64::MAX))? {
            report.add(format!("invariant 2: sector {} is mapped, behind all files", run.start.0));
        }
        Ok(())
    }

    /// Looks for attributes that no inode has (invariant 2).
    fn check_xattr_region(&self, seen: &SeenInodes, report: &mut Report) -> Result<()> {
        let mut rest = Ino::XATTRS.region();
        while let Some(run) = self.ftl.mapped(rest.clone())? {
            let (_, sector) = Ino::of(run.start);
            let (number, index) = (sector / XATTR_SECTORS, sector % XATTR_SECTORS);
            let own = match Ino::new(number) {
                Some(ino) if seen.damaged.contains_key(&ino) => XATTR_SECTORS, // nobody knows
                ino => ino.and_then(|ino| seen.get(ino)).map_or(0, |seen| seen.xattr_sectors),
            };
            if index >= own {
                report.add(format!("invariant 2: sector {sector} of the attributes is no inode's"));
            }
            let next_sector = if index < own { number * XATTR_SECTORS + own } else { sector + 1 };
            rest.start = Lba(Ino::XATTRS.region().start.0 + next_sector);
        }
        Ok(())
    }
}

fn stray_tombstone(directory: Ino, bucket: u64) -> String {
    format!("directory invariant 3: tombstone in bucket {bucket} of directory {}", directory.0)
}

/// Counts an entry with its inode. What is wrong with it.
fn check_entry(directory: Ino, entry: &Dirent, seen: &mut SeenInodes) -> Option<&'static str> {
    let named = seen.get_mut(entry.ino()).filter(|seen| seen.generation == entry.generation());
    let Some(named) = named else { return Some("has no inode") };
    named.entries += 1;
    if named.kind != entry.kind() {
        return Some("has another type than its inode");
    }
    if !named.is_directory() {
        return None;
    }
    let parent = named.parent;
    if let Some(directory) = seen.get_mut(directory) {
        directory.subdirectories += 1;
    }
    (parent != directory).then_some("has another parent")
}
