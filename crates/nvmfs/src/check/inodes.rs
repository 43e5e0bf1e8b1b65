//! The inode table, the sectors that belong to each inode outside of it, and sectors that belong to no inode.

use std::{collections::BTreeMap, ops::Range};

use lacuna_device::SECTOR;
use lacuna_ftl::{CheckDepth, Lba, Progress};

use super::{
    Checker, OnProgress, Report,
    seen::{Damaged, Seen, SeenInodes},
    unless_ended,
};
use crate::{
    error::{Error, Result},
    format::{ACL, Acl, Compression, FileKind, Ino, Inode, Marks, SectorBytes, XATTR_SECTORS, Xattrs},
    volume::StoredXattrs,
};

/// Sectors outside of the table, of attributes and targets, that are kept at a time.
const OUTSIDE_AT_ONCE: usize = 16 << 10;

/// Mapped sectors that are looked for at a time, where one for each file is enough.
const LOOKS_AT_ONCE: usize = 1 << 10;

/// An inode of the window, with the facts that are not needed after the window.
struct InWindow {
    seen: Seen,
    /// The parent of a directory.
    parent: Option<Ino>,
    /// Sectors that its data may take; and those that its attributes take in their region.
    sectors: u64,
    xattr_sectors: u64,
}

/// Sectors that belong to an inode, all of which must be there.
struct Outside {
    start: Lba,
    sectors: u64,
    ino: Ino,
    what: What,
}

enum What {
    Xattrs(StoredXattrs),
    /// The target of a symbolic link, with its length in bytes.
    Target(usize),
}

/// Inodes that are checked together.
#[derive(Default)]
struct Window {
    /// By number.
    inodes: Vec<InWindow>,
    /// In order of address.
    outside: Vec<Outside>,
    /// Last sectors of files, in order, and how many of their bytes belong to the file.
    tails: Vec<(Lba, usize)>,
    /// Findings, by sector of the table.
    found: Vec<(u64, String)>,
}

impl Window {
    fn push(&mut self, inode: &Inode) {
        let ino = inode.ino();
        let has_data = inode.inline_target().is_none();
        let sectors = if has_data { inode.size().div_ceil(SECTOR as u64) } else { 0 };
        let stored = StoredXattrs::of(inode);
        let xattr_sectors = if inode.has_xattrs_outside() { stored.sectors() } else { 0 };
        if xattr_sectors > 0 {
            let what = What::Xattrs(stored);
            self.outside.push(Outside { start: ino.xattr_lba(), sectors: xattr_sectors, ino, what });
        }
        if inode.kind() == FileKind::Symlink && has_data {
            let what = What::Target(inode.size() as usize);
            self.outside.push(Outside { start: ino.lba(0), sectors, ino, what });
        }
        let used = (inode.size() % SECTOR as u64) as usize;
        if inode.kind() == FileKind::File && used > 0 {
            self.tails.push((ino.lba(inode.size() / SECTOR as u64), used));
        }
        let parent = inode.is_directory().then(|| inode.parent());
        self.inodes.push(InWindow { seen: Seen::new(inode), parent, sectors, xattr_sectors });
    }

    /// Inodes arrive in the order of the device.
    fn sort(&mut self) {
        self.inodes.sort_unstable_by_key(|inode| inode.seen.ino);
        self.outside.sort_unstable_by_key(|outside| outside.start);
        self.tails.sort_unstable();
    }

    fn get(&self, ino: Ino) -> Option<&InWindow> {
        let index = self.inodes.binary_search_by_key(&ino, |inode| inode.seen.ino).ok()?;
        Some(&self.inodes[index])
    }
}

impl Checker<'_> {
    /// Reads every inode, and everything that belongs to one except its names. Returns the inodes, and findings about
    /// sectors that belong to none.
    pub(super) fn check_inodes(
        &self,
        depth: CheckDepth,
        at_once: usize,
        report: &mut Report,
        progress: OnProgress<'_>,
    ) -> Result<(SeenInodes, Vec<String>)> {
        let mut seen = SeenInodes::default();
        let mut strays = Vec::new();
        let mut rest = Ino::TABLE.region();
        // The sectors of the table before it are done.
        let mut first = 0;
        let expected = self.volume.ftl().extents(rest.clone())?;
        loop {
            let done = seen.sound.len() as u64;
            unless_ended(progress(Progress { what: "inodes", done, expected }))?;
            let lbas = self.next_sectors(&mut rest, at_once)?;
            let is_last = lbas.len() < at_once;
            let until = lbas.last().filter(|_| !is_last).map_or(u64::MAX, |last| Ino::of(*last).1 + 1);
            let mut window = self.read_inodes(&lbas, &mut seen)?;
            drop(lbas);
            self.check_outside(&mut window)?;
            if depth == CheckDepth::Payload {
                self.check_tails(&mut window)?;
            }
            window.found.sort_by_key(|(sector, _)| *sector);
            window.found.drain(..).for_each(|(_, message)| report.add(message));
            self.check_regions(first..until, &window, &seen, &mut strays)?;
            window.inodes.into_iter().for_each(|inode| seen.push(inode.seen, inode.parent));
            first = until;
            if is_last {
                break;
            }
        }
        if seen.get(Ino::ROOT).is_none() {
            report.add("there is no root directory".to_owned());
        }
        let space_end = Ino::LAST.region().end;
        if let Some(stray) = self.volume.first_mapped(space_end..Lba(u64::MAX))? {
            strays.push((stray, format!("invariant 2: sector {} is mapped, behind all files", stray.0)));
        }
        strays.sort_unstable();
        Ok((seen, strays.into_iter().map(|(_, message)| message).collect()))
    }

    /// Reads these sectors of the table.
    fn read_inodes(&self, lbas: &[Lba], seen: &mut SeenInodes) -> Result<Window> {
        let (mut window, mut outcome) = (Window::default(), Ok(()));
        self.volume.ftl().visit_sectors(lbas, |lba, bytes| {
            let (_, sector) = Ino::of(lba);
            let Some(ino) = Ino::new(sector) else {
                let message = format!("invariant 2: sector {sector} of the inode table has no inode");
                window.found.push((sector, message));
                return;
            };
            match bytes.map_err(Error::from).and_then(|bytes| self.volume.verify_inode(ino, bytes)) {
                Ok(inode) => self.check_inode(&inode, &mut window),
                Err(error) if error.is_damage() => drop(seen.damaged.insert(ino, Damaged::new(error))),
                Err(error) => outcome = Err(error),
            }
        })?;
        window.sort();
        outcome.map(|()| window)
    }

    /// Checks the fields of an inode.
    fn check_inode(&self, inode: &Inode, window: &mut Window) {
        let sector = inode.ino().number();
        let stored = StoredXattrs::of(inode);
        let inline = inode.inline_xattrs().map(|bytes| self.volume.parse_xattrs(&stored, bytes));
        if let Some(error) = inline.and_then(|xattrs| self.flaw_of_xattrs(&stored, xattrs)) {
            window.found.push((sector, error.to_string()));
        }
        if inode.ino() == Ino::ROOT && (!inode.is_directory() || inode.nlink() == 0) {
            window.found.push((sector, "the root is not a directory".to_owned()));
        } else if inode.ino() == Ino::ROOT && inode.parent() != Ino::ROOT {
            let parent = inode.parent().0;
            window.found.push((sector, format!("invariant 1: the root lies in directory {parent}")));
        }
        if inode.compression() != Compression::Default && !self.volume.has_compression() {
            let what = format!("invariant 8: inode {sector} has a compression");
            window.found.push((sector, format!("{what} and the superblock does not say that one may")));
        }
        window.push(inode);
    }

    /// Checks the sectors that belong to inodes and lie outside of them.
    fn check_outside(&self, window: &mut Window) -> Result<()> {
        let Window { outside, found, .. } = window;
        let mut rest = &outside[..];
        while !rest.is_empty() {
            let mut sectors = 0;
            let fits = |outside: &&Outside| {
                sectors += outside.sectors as usize;
                sectors <= OUTSIDE_AT_ONCE
            };
            let (some, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = later;
            let lbas =
                some.iter().flat_map(|outside| (0..outside.sectors).map(|at| Lba(outside.start.0 + at)));
            let lbas: Vec<Lba> = lbas.collect();
            let mut bytes = vec![[0; SECTOR]; lbas.len()];
            let mut failed = BTreeMap::new();
            self.volume.ftl().visit_sectors(&lbas, |lba, sector| match sector {
                Ok(sector) => bytes[lbas.binary_search(&lba).expect("one of them")] = *sector,
                Err(error) => drop(failed.insert(lba, Error::from(error))),
            })?;
            let mut bytes = &bytes[..];
            for Outside { start, sectors, ino, what } in some {
                let (own, others) = bytes.split_at(*sectors as usize);
                bytes = others;
                let end = Lba(start.0 + sectors);
                let flaw = match failed.range(*start..end).next().map(|(lba, _)| *lba) {
                    Some(lba) => failed.remove(&lba),
                    None => self.flaw_outside(*ino, what, own),
                };
                if let Some(error) = flaw {
                    if !error.is_damage() {
                        return Err(error);
                    }
                    found.push((ino.number(), error.to_string()));
                }
            }
        }
        Ok(())
    }

    fn flaw_outside(&self, ino: Ino, what: &What, sectors: &[SectorBytes]) -> Option<Error> {
        let bytes = sectors.as_flattened();
        match what {
            What::Xattrs(stored) => {
                self.flaw_of_xattrs(stored, self.volume.parse_xattr_sectors(stored, bytes))
            }
            What::Target(len) => {
                let (target, behind) = bytes.split_at(*len);
                let reason = match target.contains(&0) {
                    true => "its target is not there as a whole",
                    false if behind.iter().any(|byte| *byte != 0) => "invariant 2: data behind its end",
                    false => return None,
                };
                Some(self.volume.corrupt(&format!("symbolic link {}", ino.number()), 0, reason))
            }
        }
    }

    /// The flaw in stored attributes; the inode says whether they include one that operations depend on, and has the
    /// permissions that its access control list says.
    fn flaw_of_xattrs(&self, stored: &StoredXattrs, xattrs: Result<Xattrs>) -> Option<Error> {
        let xattrs = match xattrs {
            Ok(xattrs) => xattrs,
            Err(error) => return Some(error),
        };
        let acl = xattrs.get(ACL).and_then(|value| Acl::parse(value));
        let reason = if Marks::of(&xattrs) != stored.marks {
            "a capability or an access control list, or the mark of one, is missing"
        } else if acl.is_some_and(|acl| acl.mode() != stored.permissions & 0o777) {
            "the access control list and the mode disagree"
        } else {
            return None;
        };
        Some(self.volume.corrupt("attributes of inode", stored.ino.number(), reason))
    }

    /// Looks at the bytes behind the ends of files (invariant 2).
    fn check_tails(&self, window: &mut Window) -> Result<()> {
        let Window { tails, found, .. } = window;
        let lbas: Vec<Lba> = tails.iter().map(|(lba, _)| *lba).collect();
        let mut outcome = Ok(());
        self.volume.ftl().visit_sectors(&lbas, |lba, bytes| {
            let used = tails[lbas.binary_search(&lba).expect("one of them")].1;
            let (ino, sector) = Ino::of(lba);
            let error = match bytes.map_err(Error::from) {
                Ok(bytes) if bytes[used..].iter().all(|byte| *byte == 0) => return,
                Ok(_) => {
                    let what = format!("file number {}", ino.0);
                    self.volume.corrupt(&what, sector, "invariant 2: data behind its end")
                }
                Err(error) => error,
            };
            match error.is_damage() {
                true => found.push((ino.number(), error.to_string())),
                false => outcome = Err(error),
            }
        })?;
        outcome
    }

    /// Looks for data where no file has any (invariant 2): in the regions of these numbers, of which `window` has
    /// the inodes.
    fn check_regions(
        &self,
        numbers: Range<u64>,
        window: &Window,
        seen: &SeenInodes,
        strays: &mut Vec<(Lba, String)>,
    ) -> Result<()> {
        let numbers = numbers.start..numbers.end.min(Ino::LAST.number() + 1);
        if numbers.is_empty() {
            return Ok(());
        }
        let region = |number: u64| Ino(number as u32).region();
        let mut rest = region(numbers.start).start..region(numbers.end - 1).end;
        loop {
            let mapped = self.volume.ftl().mapped_sectors(rest.clone(), LOOKS_AT_ONCE)?;
            let Some(last) = mapped.last() else { break };
            rest.start = Ino::of(*last).0.region().end;
            for of_ino in mapped.chunk_by(|a, b| Ino::of(*a).0 == Ino::of(*b).0) {
                let (ino, _) = Ino::of(of_ino[0]);
                let Some(first_free) = first_free(ino, window, seen) else { continue };
                let first_free = Lba(ino.region().start.0 + first_free);
                let stray = match of_ino.iter().find(|lba| **lba >= first_free) {
                    None if of_ino.last() == Some(last) => {
                        self.volume.first_mapped(first_free.max(Lba(last.0 + 1))..ino.region().end)?
                    }
                    found => found.copied(),
                };
                let Some(stray) = stray else { continue };
                strays.push((stray, stray_data(stray, window.get(ino).map(|inode| &inode.seen))));
            }
        }
        self.check_xattr_region(numbers, window, seen, strays)
    }

    /// Looks for attributes that no inode of these numbers has (invariant 2).
    fn check_xattr_region(
        &self,
        numbers: Range<u64>,
        window: &Window,
        seen: &SeenInodes,
        strays: &mut Vec<(Lba, String)>,
    ) -> Result<()> {
        let start = Ino::XATTRS.region().start;
        let mut rest =
            Lba(start.0 + numbers.start * XATTR_SECTORS)..Lba(start.0 + numbers.end * XATTR_SECTORS);
        loop {
            let mapped = self.volume.ftl().mapped_sectors(rest.clone(), LOOKS_AT_ONCE)?;
            let Some(last) = mapped.last() else { return Ok(()) };
            rest.start = Lba(last.0 + 1);
            for lba in mapped {
                let (_, sector) = Ino::of(lba);
                let (number, index) = (sector / XATTR_SECTORS, sector % XATTR_SECTORS);
                let own = match Ino::new(number) {
                    Some(ino) if seen.damaged.contains_key(&ino) => XATTR_SECTORS, // the length is unknown
                    ino => ino.and_then(|ino| window.get(ino)).map_or(0, |inode| inode.xattr_sectors),
                };
                if index >= own {
                    let message = format!("invariant 2: sector {sector} of the attributes is no inode's");
                    strays.push((lba, message));
                }
            }
        }
    }
}

/// The first sector of the region of `ino` from which on nothing may be mapped; `None` if the region is checked
/// elsewhere, or if that is unknown.
fn first_free(ino: Ino, window: &Window, seen: &SeenInodes) -> Option<u64> {
    match window.get(ino) {
        _ if ino == Ino::SUPERBLOCK => Some(1),
        _ if [Ino::TABLE, Ino::ORPHANS, Ino::XATTRS, Ino::LIMITS].contains(&ino) => None,
        Some(inode) if inode.seen.is_directory() => (inode.seen.nlink == 0).then_some(0),
        Some(inode) => Some(inode.sectors),
        None if seen.damaged.contains_key(&ino) => None,
        None => Some(0),
    }
}

fn stray_data(lba: Lba, whose: Option<&Seen>) -> String {
    let (ino, sector) = Ino::of(lba);
    match whose {
        Some(seen) if seen.is_directory() => {
            format!("invariant 3: directory {} has no links and something in it", ino.0)
        }
        Some(_) => format!("invariant 2: file number {} has sector {sector} past its end", ino.0),
        None => format!("invariant 2: file number {} has sector {sector} and no inode", ino.0),
    }
}
