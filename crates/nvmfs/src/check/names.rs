//! The entries of all directories, and the orphans.

use std::{cell::Cell, ops::Range};

use lacuna_device::SECTOR;
use lacuna_ftl::{self as ftl, Lba, Progress};

use super::{Checker, OnProgress, Report, seen::SeenInodes, unless_ended};
use crate::{
    error::Result,
    format::{Bucket, Dirent, FileKind, Ino, Slot},
    names::hash_table::{self, Buckets, Search},
    volume::Volume,
};

/// Mapped sectors that are looked up at a time.
const LOOKS_AT_ONCE: usize = 1 << 16;

/// Buckets in which names are searched that lie behind that of their hash. Hardly any does, so a whole directory takes
/// few; names that somebody chose so that they collide take 65,536 each.
const SEARCHED_MAX: u64 = 1 << 22;

/// Entries between two reports of progress.
const REPORTED_AFTER: u64 = 1 << 16;

/// A sector as the ftl passes it.
type Read<'a> = ftl::Result<&'a [u8; SECTOR]>;

/// The buckets of a directory as they are stored.
struct StoredBuckets<'a> {
    volume: &'a Volume,
    directory: Ino,
    searched: &'a Cell<u64>,
}

impl Buckets for StoredBuckets<'_> {
    fn get(&self, bucket: Bucket) -> Result<Slot> {
        self.searched.set(self.searched.get() + 1);
        self.volume.read_bucket(self.directory, bucket)
    }
}

impl Checker<'_> {
    /// The next mapped sectors of `rest`, at most `at_once`; `rest` then begins after them.
    pub(super) fn next_sectors(&self, rest: &mut Range<Lba>, at_once: usize) -> Result<Vec<Lba>> {
        let mut all = Vec::new();
        while all.len() < at_once {
            let wanted = (at_once - all.len()).min(LOOKS_AT_ONCE);
            let some = self.volume.ftl().mapped_sectors(rest.clone(), wanted)?;
            let last = some.last().filter(|_| some.len() == wanted);
            rest.start = last.map_or(rest.end, |last| Lba(last.0 + 1));
            all.extend(some);
            if rest.is_empty() {
                break;
            }
        }
        Ok(all)
    }

    /// Reads the entries of all directories, also of damaged ones if a name leads to them; counts those of each inode
    /// (invariant 1). Each entry is visited once: operations that would add or remove entries wait, and collection does
    /// not matter (`sweep_sectors`).
    pub(super) fn check_names(
        &self,
        at_once: usize,
        seen: &mut SeenInodes,
        report: &mut Report,
        progress: OnProgress<'_>,
    ) -> Result<()> {
        let mut directories: Vec<Ino> = seen.directories.iter().map(|directory| directory.ino).collect();
        let mut done = 0;
        let expected = seen.names_expected();
        unless_ended(progress(Progress { what: "names", done, expected }))?;
        while !directories.is_empty() {
            let is_ended = Cell::new(false);
            let region = |at: Lba| {
                if is_ended.get() {
                    return None;
                }
                let next = directories.partition_point(|directory| directory.region().end <= at);
                directories.get(next).map(|directory| directory.region())
            };
            let (mut found, mut outcome) = (Vec::new(), Ok(()));
            let swept = self.volume.ftl().sweep_sectors(region, at_once, |lba, bytes| {
                if is_ended.get() {
                    return;
                }
                let checked = self.check_bucket(lba, bytes, seen, &mut |message| found.push((lba, message)));
                match checked {
                    Err(error) if error.is_damage() => found.push((lba, error.to_string())),
                    Err(error) => outcome = Err(error),
                    Ok(()) => {}
                }
                done += 1;
                if done % REPORTED_AFTER == 0 {
                    let told = progress(Progress { what: "names", done: done.min(expected), expected });
                    if let Err(error) = unless_ended(told) {
                        outcome = Err(error);
                        is_ended.set(true);
                    }
                }
            });
            // They arrived in the order of the device.
            found.sort_by_key(|(lba, _)| *lba);
            found.into_iter().for_each(|(_, message)| report.add(message));
            swept?;
            outcome?;
            directories = seen.take_damaged_directories();
        }
        if self.searched.get() > SEARCHED_MAX {
            report.add(
                "names collide as they do by chance in no directory; not all were searched for".to_owned(),
            );
        }
        Ok(())
    }

    fn check_bucket(
        &self,
        lba: Lba,
        bytes: Read<'_>,
        seen: &mut SeenInodes,
        found: &mut dyn FnMut(String),
    ) -> Result<()> {
        let (directory, sector) = Ino::of(lba);
        let bucket = Bucket(sector);
        let entry = match self.volume.parse_bucket(directory, bucket, bytes?)? {
            Slot::Entry(entry) => entry,
            Slot::Tombstone => {
                let next = Lba(lba.0 + 1);
                if next == directory.region().end || !self.volume.ftl().is_mapped(next)? {
                    let whose = directory.0;
                    found(format!(
                        "directory invariant 3: tombstone in bucket {sector} of directory {whose}"
                    ));
                }
                return Ok(());
            }
            Slot::Empty => return Ok(()),
        };
        let name = String::from_utf8_lossy(entry.name());
        match self.found_by_name(directory, bucket, &entry) {
            Err(error) if error.is_damage() => {} // that is found by itself
            Err(error) => return Err(error),
            Ok(None) => found(format!("directory invariant 1: {name:?} cannot be found")),
            Ok(Some(other)) if other != bucket => {
                found(format!("directory invariant 4: {name:?} is twice in directory {}", directory.0));
            }
            Ok(Some(_)) => {}
        }
        if let Some(damaged) = seen.damaged.get_mut(&entry.ino()) {
            damaged.named(lba, entry.name(), entry.kind());
            if entry.kind() == FileKind::Directory {
                seen.directory_mut(directory).into_iter().for_each(|within| within.subdirectories += 1);
            }
        } else if let Some(flaw) = check_entry(directory, &entry, seen) {
            found(format!("invariant 1: {name:?} in directory {} {flaw}", directory.0));
        }
        Ok(())
    }

    /// The bucket in which a search for the name of an entry ends. Most entries lie in the bucket of their hash.
    fn found_by_name(&self, directory: Ino, bucket: Bucket, entry: &Dirent) -> Result<Option<Bucket>> {
        let hash = self.volume.hash_name(entry.name());
        if entry.hash() != hash {
            return Ok(None);
        }
        if hash_table::home(hash) == bucket {
            return Ok(Some(bucket));
        }
        if self.searched.get() > SEARCHED_MAX {
            return Ok(Some(bucket)); // which is reported once
        }
        let buckets = StoredBuckets { volume: self.volume, directory, searched: &self.searched };
        Ok(match hash_table::search(&buckets, entry.name(), hash)? {
            Search::Found { bucket, .. } => Some(bucket),
            Search::Absent { .. } => None,
        })
    }

    /// Reads the region of orphans (invariant 3).
    pub(super) fn check_orphans(
        &self,
        at_once: usize,
        seen: &mut SeenInodes,
        report: &mut Report,
    ) -> Result<()> {
        let mut rest = Ino::ORPHANS.region();
        while rest.start < rest.end {
            let lbas = self.next_sectors(&mut rest, at_once)?;
            let (mut found, mut outcome) = (Vec::new(), Ok(()));
            self.volume.ftl().visit_sectors(&lbas, |lba, bytes| {
                match self.check_orphan(lba, bytes, seen) {
                    Err(error) if error.is_damage() => found.push((lba, error.to_string())),
                    Err(error) => outcome = Err(error),
                    Ok(None) => {}
                    Ok(Some(message)) => found.push((lba, message)),
                }
            })?;
            outcome?;
            found.sort_unstable();
            found.into_iter().for_each(|(_, message)| report.add(message));
        }
        Ok(())
    }

    fn check_orphan(&self, lba: Lba, bytes: Read<'_>, seen: &mut SeenInodes) -> Result<Option<String>> {
        let (_, sector) = Ino::of(lba);
        let has_none = format!("invariant 3: sector {sector} of the orphans has no inode");
        let Some(ino) = Ino::new(sector) else { return Ok(Some(has_none)) };
        if seen.damaged.contains_key(&ino) {
            return Ok(None); // reported
        }
        let orphan = self.volume.verify_orphan(ino, bytes?)?;
        match seen.get_mut(ino).filter(|seen| orphan.is_of(ino, seen.generation)) {
            Some(seen) => seen.is_orphan = true,
            None => return Ok(Some(has_none)),
        }
        Ok(None)
    }
}

/// Counts an entry with its inode. Returns what is wrong with it.
fn check_entry(directory: Ino, entry: &Dirent, seen: &mut SeenInodes) -> Option<&'static str> {
    let named = seen.get_mut(entry.ino()).filter(|seen| seen.generation == entry.generation());
    let Some(named) = named else { return Some("has no inode") };
    named.entries = named.entries.saturating_add(1);
    if named.kind != entry.kind() {
        return Some("has another type than its inode");
    }
    if !named.is_directory() {
        return None;
    }
    if let Some(within) = seen.directory_mut(directory) {
        within.subdirectories += 1;
    }
    let parent = seen.directory_mut(entry.ino()).map(|named| named.parent);
    (parent != Some(directory)).then_some("has another parent")
}
