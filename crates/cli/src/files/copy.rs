//! Copies of files, links and directories that keep holes, extended attributes and, within one copy, hard links.
//!
//! What cannot be copied is said in a line, counted and left out, and the copy goes on; only a target that takes
//! nothing more ends it.
//!
//! 1. Nothing recurses, and the number of open directories is bounded: a tree may be as deep as it likes.
//! 2. An object of a store is entered once, however many names lead to it: a forged directory may contain itself.
//! 3. A copy has no two objects under one name: the second is left out, before anything of it is made.

use std::{borrow::Cow, collections::HashMap, io, vec};

use anyhow::{Context, Error, Result, bail};
use lacuna_nvmfs::{self as nvmfs, FILE_BYTES_MAX, Remains, posix::FileKind};
use rustix::io::Errno;

use super::contents::{Directory, Entry, First, Identity, Kept, Made, SET_ID, Source, Writer, Xattrs};
use crate::{complain, note, progress::Shown};

/// Smallest unit that outside file systems store; a run of zeros of this size is left out.
const HOLE_BYTES: usize = 4096;

/// Levels of a tree that are kept open. Those above are opened again from below, which needs the right to search the
/// directories below.
const OPEN_LEVELS: usize = 100;

/// Longest path that Linux takes.
const PATH_BYTES_MAX: usize = 4096;

/// Longest path that is shown as it is.
const SHOWN_BYTES_MAX: usize = 1024;

/// How to copy.
#[derive(Clone, Debug)]
pub(super) struct CopyOptions {
    pub(super) recursive: bool,
    /// Leave out bits and attributes that give a file the rights of somebody else.
    pub(super) withholds_privileges: bool,
    /// Show progress.
    pub(super) shows: bool,
    /// What outside this copy goes into, a store and its log device: it would read what it writes.
    pub(super) left_out: Vec<Identity>,
}

/// The names of a copy, for lines about it.
pub(super) struct Names {
    pub(super) from: String,
    pub(super) to: String,
    /// The path of the target below the directory in which the copies begin.
    pub(super) top: Vec<u8>,
}

/// Copies that share their hard links, and what became of them.
pub(super) struct Copy {
    options: CopyOptions,
    names: Names,
    /// The path below both names, each part behind a slash.
    path: Vec<u8>,
    /// Objects that may have several names; and of files and links, the first.
    seen: HashMap<Identity, Option<First>>,
    copied: u64,
    /// Lines of losses that were not printed yet: a copy of one object returns them.
    lines: Vec<String>,
    losses: u64,
    /// Objects without their privileges.
    withheld: u64,
    shown: Shown,
}

/// A directory whose entries are being copied.
struct Frame {
    /// Of both, `None` only far above the newest frame.
    source: Option<Box<dyn Source>>,
    target: Option<Box<dyn Directory>>,
    identities: (Identity, Identity),
    kept: Option<Kept>,
    entries: vec::IntoIter<Entry>,
    /// Whether this copy made the target.
    is_new: bool,
    path_bytes: usize,
}

impl Copy {
    pub(super) fn new(options: CopyOptions, names: Names) -> Copy {
        Copy {
            options,
            names,
            path: Vec::new(),
            seen: HashMap::new(),
            copied: 0,
            lines: Vec::new(),
            losses: 0,
            withheld: 0,
            shown: Shown::default(),
        }
    }

    /// The next object to be copied has other names.
    pub(super) fn rename(&mut self, names: Names) {
        self.names = names;
    }

    /// Counts something that is not in the copy.
    pub(super) fn lose(&mut self, line: String) {
        self.losses += 1;
        match self.options.recursive {
            true => complain(&line),
            false => self.lines.push(line),
        }
    }

    /// Whether an object was copied, or found to be impossible to copy under any name.
    pub(super) fn has_seen(&self, identity: Identity) -> bool {
        self.seen.contains_key(&identity)
    }

    /// Copies `source` to `name` in a directory: contents, holes, permissions, times, extended attributes, and which
    /// names stand for one file; the owner where that is allowed.
    pub(super) fn copy(&mut self, source: Box<dyn Source>, to: &dyn Directory, name: &[u8]) -> Result<()> {
        match self.copy_object(source, to, name, false)? {
            Some(frame) => self.copy_below(frame),
            None => Ok(()),
        }
    }

    /// Copies all that is in the directory `source` to a new directory.
    pub(super) fn copy_into(&mut self, source: Box<dyn Source>, to: Box<dyn Directory>) -> Result<()> {
        self.seen.insert(source.identity(), None);
        let frame = self.frame(source, (to, true), None);
        self.copy_below(frame)
    }

    /// Copies all that is in the directory `source` to one that may hold something; its attributes too if `keeps` them.
    pub(super) fn merge(
        &mut self,
        source: Box<dyn Source>,
        to: Box<dyn Directory>,
        keeps: bool,
    ) -> Result<()> {
        if !self.options.recursive {
            bail!("{}: is a directory (see --recursive)", self.from());
        }
        let kept = if keeps { self.read("length, owner and times", source.kept()) } else { None };
        self.seen.insert(source.identity(), None);
        let frame = self.frame(source, (to, false), kept);
        self.copy_below(frame)
    }

    /// Gives a directory that was made for it the attributes of `source`.
    pub(super) fn copy_attributes(&mut self, source: &dyn Source, to: &dyn Directory) {
        let kept = self.read("length, owner and times", source.kept());
        self.keep(source, to, kept);
    }

    /// What is said at the end.
    pub(super) fn finish(self) -> Result<()> {
        if self.withheld > 0 {
            let (to, withheld) = (&self.names.to, self.withheld);
            complain(&format!(
                "{to}: {withheld} without set-user-id, set-group-id, or security and trusted attributes (see --privileged)"
            ));
        }
        match self.losses {
            0 => Ok(()),
            _ if !self.options.recursive => bail!("{}", self.lines.join("; ")),
            losses => {
                let (from, copied) = (self.names.from.trim_end_matches(':'), self.copied);
                bail!("{from}: {losses} losses, {copied} files and directories copied")
            }
        }
    }

    fn from(&self) -> String {
        format!("{}{}", self.names.from, shortened(&self.path))
    }

    fn to(&self) -> String {
        format!("{}{}", self.names.to, shortened(&self.path))
    }

    /// What was read of the source, if it could be read.
    fn read<T>(&mut self, what: &str, part: Result<T>) -> Option<T> {
        part.inspect_err(|error| self.lose(format!("{}: {what}: {error:#}", self.from()))).ok()
    }

    /// What was made of the target, if it could be made. Only a target that takes nothing more is an error.
    fn made<T>(&mut self, part: Result<T>) -> Result<Option<T>> {
        match part {
            Ok(made) => Ok(Some(made)),
            Err(error) if takes_nothing_more(&error) => Err(error.context(self.to())),
            Err(error) => {
                self.lose(format!("{}: {error:#}", self.to()));
                Ok(None)
            }
        }
    }

    /// Copies everything below a directory.
    fn copy_below(&mut self, first: Frame) -> Result<()> {
        let mut frames = vec![first];
        while let Some(frame) = frames.last_mut() {
            self.path.truncate(frame.path_bytes);
            let Some(entry) = frame.entries.next() else {
                let done = frames.pop().expect("it is the last");
                // Before it has its permissions, which may forbid it.
                if let Some(above) = frames.last_mut() {
                    above.reopen(&done).with_context(|| self.to())?;
                }
                let (source, target) = done.open();
                self.keep(source, target, done.kept);
                continue;
            };
            self.path.push(b'/');
            self.path.extend(&entry.name);
            let (source, target) = frame.open();
            let Some(object) = self.read("open", source.entry(&entry)) else { continue };
            if let Some(below) = self.copy_object(object, target, &entry.name, frame.is_new)? {
                frames.push(below);
                if let Some(far) = frames.len().checked_sub(OPEN_LEVELS + 1) {
                    frames[far].close(); // invariant 1
                }
            }
        }
        Ok(())
    }

    fn frame(
        &mut self,
        source: Box<dyn Source>,
        (target, is_new): (Box<dyn Directory>, bool),
        kept: Option<Kept>,
    ) -> Frame {
        let remains = self.read("entries", source.entries());
        let Remains { found: mut entries, lost } = remains.unwrap_or(Remains { found: vec![], lost: vec![] });
        for (_, error) in lost {
            self.lose(format!("{}: entries: {error}", self.from()));
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut again = Vec::new();
        entries.dedup_by(|next, entry| {
            let is_again = next.name == entry.name;
            again.extend(is_again.then(|| next.name.clone()));
            is_again
        });
        for name in again {
            let name = String::from_utf8_lossy(&name);
            self.lose(format!("{}/{name}: the directory has this name twice: left out", self.from())); // invariant 3
        }
        Frame {
            identities: (source.identity(), target.identity()),
            source: Some(source),
            target: Some(target),
            kept,
            entries: entries.into_iter(),
            is_new,
            path_bytes: self.path.len(),
        }
    }

    /// Copies one object; of a directory, everything but its entries and attributes.
    fn copy_object(
        &mut self,
        source: Box<dyn Source>,
        to: &dyn Directory,
        name: &[u8],
        is_new: bool,
    ) -> Result<Option<Frame>> {
        if self.options.shows && self.shown.is_due() {
            note(&format!("{} copied; {}", self.copied, self.from()));
        }
        let kept = self.read("length, owner and times", source.kept());
        let Some(kind) = kept.map(|kept| kept.kind).or(source.kind()) else { return Ok(None) };
        if self.options.left_out.contains(&source.identity()) {
            self.lose(format!("{}: cannot be copied into itself", self.from()));
            return Ok(None);
        }
        let identity = kept.is_none_or(|kept| kept.is_shared).then(|| source.identity());
        let seen = identity.and_then(|identity| self.seen.get(&identity)).cloned();
        match (seen, kind) {
            (Some(_), FileKind::Directory) => {
                self.lose(format!("{}: leads to a directory that has another name", self.from())); // invariant 2
                return Ok(None);
            }
            (Some(Some(first)), _) => match to.link(name, &first, is_new) {
                Ok(()) => return Ok(None),
                Err(error) => self.lose(format!("{}: copied again, not linked: {error:#}", self.to())),
            },
            _ => {}
        }
        let made: Box<dyn Made> = match kind {
            FileKind::Directory => {
                if !self.options.recursive {
                    bail!("{}: is a directory (see --recursive)", self.from());
                }
                let Some(made) = self.made(to.make_directory(name, is_new))? else { return Ok(None) };
                self.copied += 1;
                identity.map(|identity| self.seen.insert(identity, None));
                return Ok(Some(self.frame(source, made, kept)));
            }
            FileKind::File => {
                let Some(writer) = self.made(to.create(name, is_new))? else { return Ok(None) };
                let is_whole = self.copy_data(&*source, &*writer, kept.and_then(|kept| kept.size))?;
                // What is left of one file is worth nothing to who asked for that file.
                if !is_whole && !self.options.recursive {
                    return Ok(None);
                }
                let has_attributes = self.keep(&*source, &*writer, kept);
                if self.made(writer.publish(is_whole && has_attributes))?.is_some() {
                    self.see(identity, &*writer);
                    self.copied += 1;
                }
                return Ok(None);
            }
            FileKind::Symlink => {
                identity.map(|identity| self.seen.entry(identity).or_insert(None));
                let Some(link) = self.read("target", source.link_target()) else { return Ok(None) };
                let Some(made) = self.made(to.make_link(name, &link))? else { return Ok(None) };
                self.see(identity, &*made);
                made
            }
            _ => {
                identity.map(|identity| self.seen.insert(identity, None));
                let line = format!("{}: neither file, directory nor symbolic link: left out", self.from());
                match self.options.recursive {
                    true => complain(&line), // it has no data: nothing is lost
                    false => self.lose(line),
                }
                return Ok(None);
            }
        };
        self.copied += 1;
        self.keep(&*source, &*made, kept);
        Ok(None)
    }

    /// Notes a copy of what may have other names.
    fn see(&mut self, identity: Option<Identity>, made: &dyn Made) {
        let path = [&self.names.top[..], &self.path].concat();
        let path = path.strip_prefix(b"/").unwrap_or(&path);
        // Longer ones lead nowhere, and those of a deep tree would fill the memory.
        let path = if path.len() < PATH_BYTES_MAX { path.to_vec() } else { Vec::new() };
        let first = First { path, identity: made.identity() };
        identity.map(|identity| self.seen.insert(identity, Some(first)));
    }

    /// Gives a copy the attributes of its source. Returns whether all of these could be read.
    fn keep(&mut self, source: &dyn Source, made: &dyn Made, kept: Option<Kept>) -> bool {
        let Some(mut kept) = kept else { return false };
        let xattrs = self.read("attributes", source.xattrs());
        let is_whole = xattrs.is_some();
        if !is_whole {
            // Its list, if it had one, might keep out anybody else.
            kept.perm &= !0o077;
        }
        let (kept, xattrs) = self.without_privileges(kept, xattrs.unwrap_or_default());
        let left_out = made.keep(&kept, &xattrs);
        if !left_out.is_empty() {
            self.lose(format!("{}: without {}", self.to(), left_out.join(", ")));
        }
        is_whole
    }

    fn without_privileges(&mut self, mut kept: Kept, mut xattrs: Xattrs) -> (Kept, Xattrs) {
        if !self.options.withholds_privileges {
            return (kept, xattrs);
        }
        let is_harmless = |name: &[u8]| !name.starts_with(b"security.") && !name.starts_with(b"trusted.");
        let found = xattrs.len();
        xattrs.retain(|(name, _)| is_harmless(name));
        // On a directory set-group-id only says which group its files have.
        let bits = if kept.kind == FileKind::Directory { 0 } else { kept.perm & SET_ID };
        kept.perm &= !bits;
        self.withheld += u64::from(bits != 0 || xattrs.len() < found);
        (kept, xattrs)
    }

    /// Copies the data of a file, whose length may be unknown. Many runs are read and written at once: the cost of a
    /// file with holes is its bytes, not its runs. Returns whether nothing was lost.
    fn copy_data(&mut self, source: &dyn Source, writer: &dyn Writer, size: Option<u64>) -> Result<bool> {
        let size_max = size.unwrap_or(FILE_BYTES_MAX);
        let losses = self.losses;
        let (mut offset, mut end) = (0, 0);
        let mut has_length = true;
        while offset < size_max {
            let from = format!("bytes from {offset} on");
            let Some(Remains { found, lost }) = self.read(&from, source.read_runs(offset)) else {
                has_length = false;
                break;
            };
            for (range, error) in lost.into_iter().filter(|(range, _)| range.start < size_max) {
                let (from, end) = (self.from(), range.end.min(size_max));
                self.lose(format!("{from}: bytes {} to {end}: {error}", range.start));
            }
            let inside = |at: u64, data: &[u8]| size_max.saturating_sub(at).min(data.len() as u64) as usize;
            let runs = found.runs.iter().map(|(at, data)| (*at, &data[..inside(*at, data)]));
            let runs: Vec<_> = runs
                .flat_map(|(at, data)| runs_of_data(data).map(move |(skip, data)| (at + skip as u64, data)))
                .collect();
            if self.made(writer.write_runs(&runs).context(from))?.is_none() {
                return Ok(false); // with what was written
            }
            end = found.runs.last().map_or(end, |(at, data)| at + data.len() as u64);
            if found.end <= offset {
                end = offset; // shorter than it was
                has_length = false;
                break;
            }
            offset = found.end;
        }
        let size = size.filter(|_| has_length).unwrap_or(end);
        if let Err(error) = writer.finish(size) {
            self.lose(format!("{}: its length of {size} bytes: {error:#}", self.to()));
            self.made(writer.finish(end.min(size)))?;
        }
        Ok(self.losses == losses)
    }
}

/// A path as it is shown: of the path of a very deep tree, its start and its end.
fn shortened(path: &[u8]) -> Cow<'_, str> {
    if path.len() <= SHOWN_BYTES_MAX {
        return String::from_utf8_lossy(path);
    }
    let (start, end) = (&path[..SHOWN_BYTES_MAX / 2], &path[path.len() - SHOWN_BYTES_MAX / 2..]);
    format!("{}[...]{}", String::from_utf8_lossy(start), String::from_utf8_lossy(end)).into()
}

/// Whether everything else would fail in the same way.
fn takes_nothing_more(error: &Error) -> bool {
    use lacuna_ftl::Error::{Full, Poisoned, ReadOnly};
    if let Some(error) = error.downcast_ref() {
        return matches!(error, nvmfs::Error::Ftl(Full { .. } | Poisoned { .. } | ReadOnly { .. }));
    }
    let of_system = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
    let errno = error.downcast_ref().copied().or(of_system);
    matches!(errno, Some(Errno::NOSPC | Errno::DQUOT | Errno::ROFS))
}

impl Frame {
    fn open(&self) -> (&dyn Source, &dyn Directory) {
        let source = self.source.as_deref().expect("the newest frame is open");
        (source, self.target.as_deref().expect("the newest frame is open"))
    }

    fn close(&mut self) {
        (self.source, self.target) = (None, None);
    }

    /// Opens it again from a directory in it, if it was closed.
    fn reopen(&mut self, below: &Frame) -> Result<()> {
        if self.source.is_none() {
            let (source, target) = below.open();
            self.source = Some(source.parent(self.identities.0)?);
            self.target = Some(target.parent(self.identities.1)?);
        }
        Ok(())
    }
}

/// The parts of `piece` between long runs of zeros, and where each starts.
fn runs_of_data(piece: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let is_hole = |at: usize| piece[at..].iter().take(HOLE_BYTES).all(|byte| *byte == 0);
        while at < piece.len() && is_hole(at) {
            at += HOLE_BYTES;
        }
        let start = at.min(piece.len());
        while at < piece.len() && !is_hole(at) {
            at += HOLE_BYTES;
        }
        at = at.min(piece.len());
        (start < at).then(|| (start, &piece[start..at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_shown_by_their_ends() {
        assert_eq!(shortened(b"/a/b"), "/a/b");
        let shown = shortened(&b"/abcdefg".repeat(1000)).into_owned();
        assert!(shown.len() < 1100 && shown.starts_with("/abcdefg/") && shown.ends_with("/abcdefg"));
    }

    #[test]
    fn zeros_are_left_out_and_nothing_else() {
        let mut piece = vec![0; 10 * HOLE_BYTES + 100];
        assert_eq!(runs_of_data(&piece).count(), 0);
        piece[3 * HOLE_BYTES + 5] = 1;
        piece[4 * HOLE_BYTES] = 1;
        *piece.last_mut().expect("not empty") = 1;
        let runs: Vec<_> = runs_of_data(&piece).map(|(at, data)| (at, data.len())).collect();
        assert_eq!(runs, [(3 * HOLE_BYTES, 2 * HOLE_BYTES), (10 * HOLE_BYTES, 100)]);
        assert_eq!(runs_of_data(&[]).count(), 0);
    }
}
