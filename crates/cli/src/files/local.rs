//! Both ends of a copy outside of stores.
//!
//! Others may write where a copy reads or writes, and a store may be forged. So, below the directory that the user
//! names:
//!
//! 1. Every step is one component, relative to an open directory, and follows no link.
//! 2. Every object that a copy makes is new when it is opened (`O_EXCL`), and for its user alone until its attributes
//!    are set, permissions last.
//! 3. Attributes are set on open objects, never by name.
//! 4. What a copy replaces stays until the copy is whole: that has a hidden name before, and none if it is broken off.

use std::{
    fs::File,
    io::{self, Read},
    ops::Range,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
    rc::Rc,
};

use anyhow::{Result, bail};
use lacuna_ftl::Ftl;
use lacuna_nvmfs::{
    Remains, Timestamp,
    posix::{FileKind, Runs},
};
use rustix::{
    fs::{
        AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags,
        chownat, fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, fstat, fsync, futimens,
        getxattr, linkat, listxattr, mkdirat, open, openat, openat2, readlinkat, renameat, seek, setxattr,
        statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
    path::Arg,
    process::{Gid, Uid, geteuid},
};

use super::{
    contents::{
        ACCESS_ACL, DEFAULT_ACL, Directory, Entry, First, Identity, Kept, Made, NOT_WHOLE, SET_ID, Source,
        Writer, Xattrs, perm_without_acl,
    },
    temporary::Temporary,
};

/// Bytes of one call: files of the kernel refuse more than its memory has in one piece.
const ONE_READ_BYTES: usize = 1 << 20;
/// Bytes that are read at a time.
const READ_BYTES: u64 = 8 << 20;

/// How much of a file shows whether it is a store.
const STORE_START_BYTES: u64 = 64 << 10;

/// Longest list of names, and longest value, that Linux has.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Longest name of an entry that Linux has.
const NAME_BYTES_MAX: usize = 255;

/// How objects are opened: without following links, for this process alone, and without waiting for a fifo.
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const READ_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(SAFE);

/// Refuses what is no name of an entry, wherever it comes from: a path would lead elsewhere.
fn check_name(name: &[u8]) -> Result<&[u8]> {
    let is_reserved = matches!(name, b"" | b"." | b"..");
    if is_reserved || name.len() > NAME_BYTES_MAX || name.contains(&b'/') || name.contains(&0) {
        bail!("not a name of a file");
    }
    Ok(name)
}

/// Of a block device the device's, which may have many nodes.
fn identity(stat: &Stat) -> Identity {
    match kind(stat) {
        FileKind::BlockDevice => (u64::MAX, stat.st_rdev),
        _ => (stat.st_dev, stat.st_ino),
    }
}

/// That of what a path leads to.
pub(super) fn identity_at(path: &Path) -> Option<Identity> {
    statat(CWD, path, AtFlags::empty()).ok().map(|stat| identity(&stat))
}

fn kind(stat: &Stat) -> FileKind {
    FileKind::of_mode(stat.st_mode).unwrap_or(FileKind::Socket) // a type that only its own programs know
}

/// An object outside.
pub(super) struct LocalSource {
    /// A file or directory that can be read; anything else is only referred to.
    object: File,
    stat: Stat,
    /// Whether it is copied as a file, though it may be something else that can be read.
    is_read: bool,
}

impl LocalSource {
    /// Links are followed on the way to the last component, which the user named.
    pub(super) fn open(path: &Path) -> Result<LocalSource> {
        LocalSource::open_at(CWD, path)
    }

    /// The directory, or what can be read there, that a path leads to: a pipe (`/dev/stdin`) or a device too.
    pub(super) fn open_followed(path: &Path) -> Result<LocalSource> {
        let found = statat(CWD, path, AtFlags::empty())?;
        // A pipe without data is waited for.
        let waits = !matches!(kind(&found), FileKind::File | FileKind::Directory);
        let flags = OFlags::RDONLY | SAFE.difference(OFlags::NOFOLLOW);
        let flags = if waits { flags.difference(OFlags::NONBLOCK) } else { flags };
        let object = File::from(openat(CWD, path, flags, Mode::empty())?);
        let stat = fstat(&object)?;
        if kind(&stat) != kind(&found) {
            bail!("replaced while it was copied");
        }
        Ok(LocalSource { object, stat, is_read: kind(&stat) != FileKind::Directory })
    }

    fn open_at(directory: impl AsFd, name: impl Arg + Copy) -> Result<LocalSource> {
        let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let access = match kind(&found) {
            FileKind::File | FileKind::Directory => OFlags::RDONLY,
            _ => OFlags::PATH,
        };
        let object = File::from(openat(&directory, name, access | SAFE, Mode::empty())?);
        let stat = fstat(&object)?;
        if kind(&stat) != kind(&found) {
            bail!("replaced while it was copied");
        }
        Ok(LocalSource { object, stat, is_read: false })
    }

    /// The next run of data at or after `offset`.
    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        // Of these the kernel's answers mean nothing: many a file of its own claims to be empty.
        if self.is_stream() || self.stat.st_size == 0 && kind(&self.stat) == FileKind::File {
            return Ok(Some(offset..u64::MAX));
        }
        match seek(&self.object, SeekFrom::Data(offset)) {
            Ok(start) => Ok(Some(start..seek(&self.object, SeekFrom::Hole(start))?)),
            Err(Errno::NXIO) => Ok(None),
            // It has no holes that could be found: a file of the kernel, or a device.
            Err(Errno::INVAL | Errno::SPIPE | Errno::OPNOTSUPP) => Ok(Some(offset..u64::MAX)),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it has no places, and yields its bytes once.
    fn is_stream(&self) -> bool {
        matches!(kind(&self.stat), FileKind::Fifo | FileKind::CharDevice)
    }

    /// Up to `bytes_max` bytes from `offset` on; fewer only at the end of the file.
    fn read(&self, offset: u64, bytes_max: u64) -> io::Result<Vec<u8>> {
        let (mut data, mut filled) = (vec![0; bytes_max as usize], 0);
        while filled < data.len() {
            let end = data.len().min(filled + ONE_READ_BYTES);
            let read = match self.is_stream() {
                true => (&self.object).read(&mut data[filled..end]),
                false => self.object.read_at(&mut data[filled..end], offset + filled as u64),
            };
            match read {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        data.truncate(filled);
        Ok(data)
    }
}

impl Source for LocalSource {
    fn identity(&self) -> Identity {
        identity(&self.stat)
    }

    fn kept(&self) -> Result<Kept> {
        let stat = &self.stat;
        let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        Ok(Kept {
            kind: if self.is_read { FileKind::File } else { kind(stat) },
            perm: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: (stat.st_size > 0).then_some(stat.st_size as u64),
            accessed: time(stat.st_atime, stat.st_atime_nsec as u32),
            modified: time(stat.st_mtime, stat.st_mtime_nsec as u32),
            is_shared: stat.st_nlink > 1 && kind(stat) != FileKind::Directory,
        })
    }

    fn xattrs(&self) -> Result<Xattrs> {
        let (mut list, mut value) = (vec![0; XATTR_BYTES_MAX], vec![0; XATTR_BYTES_MAX]);
        let path = of_proc(&self.object);
        let is_link = kind(&self.stat) == FileKind::Symlink;
        let len = match is_link {
            true => listxattr(&path, &mut list[..]),
            false => flistxattr(&self.object, &mut list[..]),
        };
        let len = match len {
            Err(Errno::NOTSUP) => 0, // a file system without attributes
            len => len?,
        };
        let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        names
            .map(|name| {
                let len = match is_link {
                    true => getxattr(&path, name, &mut value[..])?,
                    false => fgetxattr(&self.object, name, &mut value[..])?,
                };
                Ok((name.to_vec(), value[..len].to_vec()))
            })
            .collect()
    }

    fn link_target(&self) -> Result<Vec<u8>> {
        Ok(readlinkat(&self.object, "", Vec::new())?.into_bytes())
    }

    fn entries(&self) -> Result<Remains<Vec<Entry>>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.object)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                found.push(Entry { name, inode: None });
            }
        }
        Ok(Remains { found, lost: Vec::new() })
    }

    fn entry(&self, entry: &Entry) -> Result<Box<dyn Source>> {
        Ok(Box::new(LocalSource::open_at(&self.object, check_name(&entry.name)?)?))
    }

    fn parent(&self, identity: Identity) -> Result<Box<dyn Source>> {
        let parent = LocalSource::open_at(&self.object, "..")?;
        if parent.identity() != identity {
            bail!("moved while it was copied");
        }
        Ok(Box::new(parent))
    }

    fn read_runs(&self, offset: u64) -> Result<Remains<Runs>> {
        let (mut runs, mut end, mut left) = (Vec::new(), offset, READ_BYTES);
        while left > 0 {
            let Some(run) = self.next_data(end)? else {
                end = self.object.metadata()?.len().max(end);
                break;
            };
            let want = left.min(run.end - run.start);
            let data = self.read(run.start, want)?;
            end = run.start + data.len() as u64;
            left -= want;
            if data.is_empty() {
                break;
            }
            runs.push((run.start, data));
        }
        Ok(Remains { found: Runs { runs, end }, lost: Vec::new() })
    }
}

/// The path of an object that is open as a mere reference, for calls that take nothing else.
fn of_proc(object: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", object.as_fd().as_raw_fd())
}

/// A directory outside.
pub(super) struct LocalDirectory {
    directory: OwnedFd,
    identity: Identity,
    /// The one that the copy began in.
    top: Rc<OwnedFd>,
}

impl LocalDirectory {
    /// Links are followed: the user named them.
    pub(super) fn open(path: &Path) -> Result<LocalDirectory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty())?;
        let (identity, top) = (identity(&fstat(&directory)?), Rc::new(directory.try_clone()?));
        Ok(LocalDirectory { directory, identity, top })
    }

    /// The same directory, opened once more.
    pub(super) fn again(&self) -> Result<LocalDirectory> {
        Ok(LocalDirectory { directory: self.directory.try_clone()?, top: Rc::clone(&self.top), ..*self })
    }

    pub(super) fn is_empty(&self) -> Result<bool> {
        for entry in Dir::read_from(&self.directory)? {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn below(&self, name: impl Arg) -> Result<LocalDirectory> {
        let directory = match openat(&self.directory, name, READ_DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => bail!("exists already, and is not a directory"),
            directory => directory?,
        };
        Ok(LocalDirectory { identity: identity(&fstat(&directory)?), directory, top: Rc::clone(&self.top) })
    }

    /// The file that has a name and would make way; anything else there is refused. No store makes way, which is named
    /// instead of a place in it by leaving out a colon, and may be mounted, or open in this process.
    fn replaced(&self, name: &[u8]) -> Result<Option<Identity>> {
        let existing = match statat(&self.directory, check_name(name)?, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            existing => existing?,
        };
        match kind(&existing) {
            FileKind::File => {}
            FileKind::Symlink => bail!("exists already, as a symbolic link"),
            _ => bail!("exists already"),
        }
        if self.is_store(name) {
            bail!("exists already, and is a Lacuna store (a place in it is STORE:PATH)");
        }
        Ok(Some(identity(&existing)))
    }

    /// Whether a file looks like a store, as far as it can be read.
    fn is_store(&self, name: &[u8]) -> bool {
        let Ok(file) = openat(&self.directory, name, OFlags::RDONLY | SAFE, Mode::empty()) else {
            return false;
        };
        let mut start = Vec::new();
        let read = File::from(file).take(STORE_START_BYTES).read_to_end(&mut start);
        read.is_ok() && Ftl::looks_like_a_store(&start)
    }
}

impl Made for LocalDirectory {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn keep(&self, kept: &Kept, xattrs: &Xattrs) -> Vec<String> {
        keep(&self.directory, kept, xattrs)
    }
}

impl Directory for LocalDirectory {
    fn find(&self, name: &[u8]) -> Result<Option<Identity>> {
        match statat(&self.directory, check_name(name)?, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(identity(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn ancestors(&self) -> Result<Vec<Identity>> {
        let (mut found, mut directory) = (vec![self.identity], self.directory.try_clone()?);
        loop {
            directory = openat(&directory, "..", OFlags::PATH | OFlags::DIRECTORY | SAFE, Mode::empty())?;
            let above = identity(&fstat(&directory)?);
            if found.last() == Some(&above) {
                return Ok(found); // the root, which is its own parent
            }
            found.push(above);
        }
    }

    fn parent(&self, identity: Identity) -> Result<Box<dyn Directory>> {
        let parent = self.below("..")?;
        if parent.identity != identity {
            bail!("moved while it was copied");
        }
        Ok(Box::new(parent))
    }

    fn create(&self, name: &[u8], is_new: bool) -> Result<Box<dyn Writer>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | SAFE;
        let make = |name: &[u8]| openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR);
        if is_new {
            let file = match make(check_name(name)?) {
                Err(Errno::EXIST) => bail!("exists already"),
                made => made?,
            };
            return Ok(Box::new(LocalFile {
                identity: identity(&fstat(&file)?),
                file: file.into(),
                place: None,
            }));
        }
        self.replaced(name)?;
        let temporary = Temporary::new(&self.directory)?;
        let file = make(temporary.name())?;
        let place = Some((self.again()?, name.to_vec(), temporary));
        Ok(Box::new(LocalFile { identity: identity(&fstat(&file)?), file: file.into(), place }))
    }

    fn make_directory(&self, name: &[u8], is_new: bool) -> Result<(Box<dyn Directory>, bool)> {
        let is_made = match mkdirat(&self.directory, check_name(name)?, Mode::RWXU) {
            Err(Errno::EXIST) if is_new => bail!("exists already"),
            Err(Errno::EXIST) => false,
            made => made.map(|()| true)?,
        };
        Ok((Box::new(self.below(name)?), is_made))
    }

    fn make_link(&self, name: &[u8], target: &[u8]) -> Result<Box<dyn Made>> {
        let is_found = match symlinkat(target, &self.directory, check_name(name)?) {
            Err(Errno::EXIST) => true,
            made => made.map(|()| false)?,
        };
        let link = openat(&self.directory, name, OFlags::PATH | SAFE, Mode::empty())?;
        let stat = fstat(&link)?;
        match kind(&stat) {
            FileKind::Symlink if !is_found => {}
            FileKind::Symlink if readlinkat(&link, "", Vec::new())?.as_bytes() == target => {}
            _ if is_found => bail!("exists already"),
            _ => bail!("replaced while it was copied"),
        }
        Ok(Box::new(LocalLink { identity: identity(&stat), link, is_found }))
    }

    fn link(&self, name: &[u8], first: &First, is_new: bool) -> Result<()> {
        let split = first.path.iter().rposition(|byte| *byte == b'/');
        let (directory, last) = match split {
            Some(at) => {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let path = &first.path[..at];
                (&openat2(&*self.top, path, flags, Mode::empty(), resolve)?, &first.path[at + 1..])
            }
            None => (&*self.top, &first.path[..]),
        };
        match linkat(directory, last, &self.directory, check_name(name)?, AtFlags::empty()) {
            Err(Errno::EXIST) if is_new => bail!("exists already"),
            Err(Errno::EXIST) => {
                if self.find(name)? == Some(first.identity) {
                    return Ok(());
                }
                self.replaced(name)?;
                let temporary = Temporary::new(&self.directory)?;
                linkat(directory, last, &self.directory, temporary.name(), AtFlags::empty())?;
                if self.find(temporary.name())? != Some(first.identity) {
                    bail!(REPLACED);
                }
                return Ok(renameat(&self.directory, temporary.name(), &self.directory, name)?);
            }
            linked => linked?,
        }
        if self.find(name)? != Some(first.identity) {
            unlinkat(&self.directory, name, AtFlags::empty())?;
            bail!(REPLACED);
        }
        Ok(())
    }
}

const REPLACED: &str = "its other name was replaced meanwhile";

/// A file that a copy made.
struct LocalFile {
    file: File,
    identity: Identity,
    /// Where it belongs, if it has another name yet.
    place: Option<(LocalDirectory, Vec<u8>, Temporary)>,
}

impl Made for LocalFile {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn keep(&self, kept: &Kept, xattrs: &Xattrs) -> Vec<String> {
        keep(&self.file, kept, xattrs)
    }
}

impl Writer for LocalFile {
    fn write_runs(&self, runs: &[(u64, &[u8])]) -> Result<()> {
        Ok(runs.iter().try_for_each(|(offset, data)| self.file.write_all_at(data, *offset))?)
    }

    fn finish(&self, size: u64) -> Result<()> {
        Ok(self.file.set_len(size)?)
    }

    fn publish(&self, is_whole: bool) -> Result<()> {
        self.file.sync_all()?;
        let Some((directory, name, temporary)) = &self.place else { return Ok(()) };
        if directory.replaced(name)?.is_some() && !is_whole {
            bail!(NOT_WHOLE);
        }
        if directory.find(temporary.name())? != Some(self.identity) {
            bail!("replaced while it was copied");
        }
        renameat(&directory.directory, temporary.name(), &directory.directory, name)?;
        match fsync(&directory.directory) {
            Err(Errno::INVAL) => Ok(()), // a file system that has no such thing
            synced => Ok(synced?),
        }
    }
}

/// A symbolic link that a copy made.
struct LocalLink {
    link: OwnedFd,
    identity: Identity,
    /// It was there, as an earlier copy left it, or somebody else, and stays as it is.
    is_found: bool,
}

impl Made for LocalLink {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn keep(&self, kept: &Kept, xattrs: &Xattrs) -> Vec<String> {
        let mut left_out = LeftOut::default();
        if self.is_found {
            return left_out.0;
        }
        let (uid, gid) = owner(kept);
        if geteuid().is_root() {
            left_out.note("its owner", chownat(&self.link, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH));
        } else {
            let _ = chownat(&self.link, "", None, Some(gid), AtFlags::EMPTY_PATH);
        }
        for (name, value) in xattrs {
            left_out.note_xattr(name, setxattr(of_proc(&self.link), &name[..], value, XattrFlags::empty()));
        }
        left_out.note("its times", utimensat(&self.link, "", &times(kept), AtFlags::EMPTY_PATH));
        left_out.0
    }
}

/// What an object cannot have, and why.
#[derive(Default)]
struct LeftOut(Vec<String>);

impl LeftOut {
    fn note(&mut self, what: &str, set: rustix::io::Result<()>) -> bool {
        let set = set.map_err(|errno| self.0.push(format!("{what} ({})", io::Error::from(errno))));
        set.is_ok()
    }

    fn note_xattr(&mut self, name: &[u8], set: rustix::io::Result<()>) -> bool {
        self.note(&format!("the attribute {}", String::from_utf8_lossy(name)), set)
    }
}

fn owner(kept: &Kept) -> (Uid, Gid) {
    (Uid::from_raw(kept.uid), Gid::from_raw(kept.gid))
}

fn times(kept: &Kept) -> Timestamps {
    let spec = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: spec(kept.accessed), last_modification: spec(kept.modified) }
}

/// Owner (only root may give files away, others to their groups), extended attributes, permissions and times of a file or directory.
fn keep(object: &impl AsFd, kept: &Kept, xattrs: &Xattrs) -> Vec<String> {
    let mut left_out = LeftOut::default();
    let (uid, gid) = owner(kept);
    if geteuid().is_root() {
        left_out.note("its owner", fchown(object, Some(uid), Some(gid)));
    } else {
        let _ = fchown(object, None, Some(gid));
    }
    let mut perm = kept.perm;
    // A list that the directory passed on would let in whom the source keeps out.
    for acl in [ACCESS_ACL, DEFAULT_ACL] {
        if !xattrs.iter().any(|(name, _)| name == acl) {
            let _ = fremovexattr(object, acl); // most have none
        }
    }
    // A change of owner takes capabilities away, and permissions may forbid to set attributes.
    for (name, value) in xattrs {
        let is_set = left_out.note_xattr(name, fsetxattr(object, &name[..], value, XattrFlags::empty()));
        if name == ACCESS_ACL && !is_set {
            perm = perm_without_acl(perm, value);
        }
    }
    let is_owner = |stat: &Stat| (stat.st_uid, stat.st_gid) == (kept.uid, kept.gid);
    if perm & SET_ID != 0 && !fstat(object).is_ok_and(|stat| is_owner(&stat)) {
        perm &= !SET_ID;
        left_out.0.push("its set-user-id and set-group-id bits (another owner)".into());
    }
    left_out.note("its permissions", fchmod(object, Mode::from_raw_mode(perm)));
    // Some file systems take permissions that they cannot store without an error.
    let found = fstat(object).map(|stat| stat.st_mode & 0o7777);
    if let Ok(found) = found
        && found != perm
    {
        left_out.0.push(format!("its permissions {perm:o} (it has {found:o})"));
    }
    left_out.note("its times", futimens(object, &times(kept)));
    left_out.0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Even if the copy is interrupted, and whatever the umask, which is the process's: only this test changes it.
    #[test]
    fn nobody_else_can_read_a_copy_before_it_is_whole() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = LocalDirectory::open(scratch.path()).unwrap();
        let mode = |name: &str| {
            std::fs::symlink_metadata(scratch.path().join(name)).unwrap().permissions().mode() & 0o7777
        };
        std::fs::write(scratch.path().join("file"), "an older one").unwrap();
        let before = rustix::process::umask(Mode::empty());
        let file = directory.create(b"file", false).unwrap();
        let (below, is_made) = directory.make_directory(b"directory", true).unwrap();
        rustix::process::umask(before);
        assert!(is_made);
        let temporary = std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let temporary: Vec<_> =
            temporary.filter(|name| name.to_string_lossy().starts_with(".lacuna-")).collect();
        assert_eq!(temporary.len(), 1);
        let temporary = temporary[0].to_string_lossy().into_owned();
        assert_eq!((mode(&temporary), mode("directory")), (0o600, 0o700));
        let kept = LocalSource::open(scratch.path()).unwrap().kept().unwrap();
        file.keep(&Kept { perm: 0o644, ..kept }, &Xattrs::new());
        file.publish(true).unwrap();
        below.keep(&Kept { perm: 0o755, ..kept }, &Xattrs::new());
        assert_eq!((mode("file"), mode("directory")), (0o644, 0o755));
    }

    /// As by cp(1): who is in a group may give it files, and set-group-id goes where the group does not come along.
    #[test]
    fn set_group_id_comes_with_the_group() {
        if !geteuid().is_root() {
            return eprintln!("SKIPPED: only root can be somebody else");
        }
        let (user, own, other, strange) = (65534, 65534, 12345, 54321);
        let as_user = |keep: &(dyn Fn() -> Vec<String> + Sync)| {
            let keep = || {
                rustix::thread::set_thread_groups(&[Gid::from_raw(other)]).unwrap();
                let user = Uid::from_raw(user);
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                keep()
            };
            std::thread::scope(|scope| scope.spawn(keep).join().unwrap())
        };
        let copy = |gid: u32| {
            let file = tempfile::tempfile().unwrap();
            fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(own))).unwrap();
            let kept = LocalSource::open(Path::new("/")).unwrap().kept().unwrap();
            let kept = Kept { kind: FileKind::File, perm: 0o2750, uid: user, gid, ..kept };
            let left_out = as_user(&|| keep(&file, &kept, &Xattrs::new()));
            let stat = fstat(&file).unwrap();
            (stat.st_gid, stat.st_mode & 0o7777, left_out)
        };
        let copy_of_link = |gid: u32| {
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path().join("link");
            std::os::unix::fs::symlink("target", &path).unwrap();
            let link = openat(CWD, &path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap();
            let owner = (Some(Uid::from_raw(user)), Some(Gid::from_raw(own)));
            chownat(&link, "", owner.0, owner.1, AtFlags::EMPTY_PATH).unwrap();
            let identity = identity(&fstat(&link).unwrap());
            let made = LocalLink { link, identity, is_found: false };
            let kept = LocalSource::open(&path).unwrap().kept().unwrap();
            as_user(&|| made.keep(&Kept { gid, ..kept }, &Xattrs::new()));
            fstat(&made.link).unwrap().st_gid
        };
        assert_eq!((copy_of_link(other), copy_of_link(strange)), (other, own));
        assert_eq!(copy(other), (other, 0o2750, vec![]));
        let lost = "its set-user-id and set-group-id bits (another owner)".to_owned();
        assert_eq!(copy(strange), (own, 0o750, vec![lost]));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b", &[b'x'; 256]] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b"\xff", &[b'x'; 255]] {
            assert_eq!(check_name(name).unwrap(), name);
        }
    }
}
