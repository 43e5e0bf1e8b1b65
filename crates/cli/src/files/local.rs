//! Files outside of stores.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt},
    path::Path,
};

use anyhow::Result;
use lacuna_nvmfs::{
    Timestamp,
    posix::{FileKind, Runs},
};
use rustix::{
    fs::{
        AtFlags, CWD, SeekFrom, Timespec, Timestamps, XattrFlags, chownat, lgetxattr, llistxattr, lsetxattr,
        seek, utimensat,
    },
    io::Errno,
    process::{Gid, Uid},
};

use super::contents::{Kept, Reader, Writer, Xattrs};

/// Bytes that are read at a time.
const READ_BYTES: u64 = 8 << 20;

/// A file of another file system.
pub(super) struct LocalFile(File);

impl LocalFile {
    pub(super) fn open(path: &Path) -> io::Result<LocalFile> {
        File::open(path).map(LocalFile)
    }

    pub(super) fn create(path: &Path) -> io::Result<LocalFile> {
        File::create(path).map(LocalFile)
    }
}

impl LocalFile {
    /// The next run of data at or after `offset`.
    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        match seek(&self.0, SeekFrom::Data(offset)) {
            Ok(start) => Ok(Some(start..seek(&self.0, SeekFrom::Hole(start))?)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Up to `bytes_max` bytes from `offset` on; fewer only at the end of the file.
    fn read(&self, offset: u64, bytes_max: u64) -> io::Result<Vec<u8>> {
        let (mut data, mut filled) = (vec![0; bytes_max as usize], 0);
        while filled < data.len() {
            match self.0.read_at(&mut data[filled..], offset + filled as u64) {
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

impl Reader for LocalFile {
    fn read_runs(&self, offset: u64) -> Result<Runs> {
        let (mut runs, mut end, mut left) = (Vec::new(), offset, READ_BYTES);
        while left > 0 {
            let Some(run) = self.next_data(end)? else {
                end = self.0.metadata()?.len().max(end);
                break;
            };
            let want = left.min(run.end - run.start);
            let data = self.read(run.start, want)?;
            end = run.start + data.len() as u64;
            left -= want;
            runs.push((run.start, data));
        }
        Ok(Runs { runs, end })
    }
}

impl Writer for LocalFile {
    fn write_runs(&self, runs: &[(u64, &[u8])]) -> Result<()> {
        Ok(runs.iter().try_for_each(|(offset, data)| self.0.write_all_at(data, *offset))?)
    }

    fn finish(&self, size: u64) -> Result<()> {
        self.0.set_len(size)?;
        Ok(self.0.sync_all()?)
    }
}

/// Longest list of names, and longest value, that Linux has.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Extended attributes; none where the file system has none.
pub(super) fn xattrs(path: &Path) -> Result<Xattrs> {
    let mut list = vec![0; XATTR_BYTES_MAX];
    let len = match llistxattr(path, &mut list[..]) {
        Err(Errno::NOTSUP) => 0,
        len => len?,
    };
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut value = vec![0; XATTR_BYTES_MAX];
    names
        .map(|name| {
            let len = lgetxattr(path, name, &mut value[..])?;
            Ok((name.to_vec(), value[..len].to_vec()))
        })
        .collect()
}

/// Warns that the target cannot hold an attribute.
pub(super) fn left_out(target: &str, name: &[u8]) {
    eprintln!("lacuna: {target}: without the attribute {}", String::from_utf8_lossy(name));
}

/// Owner (only root may give files away), extended attributes, permissions and times.
pub(super) fn set_kept(path: &Path, kept: &Kept, xattrs: &Xattrs) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(kept.uid), Gid::from_raw(kept.gid));
        chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    // A change of owner takes capabilities away, and permissions may forbid to set attributes.
    for (name, value) in xattrs {
        match lsetxattr(path, name.as_slice(), value, XattrFlags::empty()) {
            Err(Errno::NOTSUP | Errno::PERM) => left_out(&path.display().to_string(), name),
            set => set?,
        }
    }
    if kept.kind != FileKind::Symlink {
        fs::set_permissions(path, fs::Permissions::from_mode(kept.perm))?;
    }
    let spec =
        |time: lacuna_nvmfs::Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    let times = Timestamps { last_access: spec(kept.accessed), last_modification: spec(kept.modified) };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The attributes of a file that a copy keeps.
pub(super) fn kept(metadata: &fs::Metadata) -> Kept {
    let file_type = metadata.file_type();
    let kind = match () {
        () if file_type.is_dir() => FileKind::Directory,
        () if file_type.is_symlink() => FileKind::Symlink,
        () if file_type.is_fifo() => FileKind::Fifo,
        () if file_type.is_socket() => FileKind::Socket,
        () if file_type.is_char_device() => FileKind::CharDevice,
        () if file_type.is_block_device() => FileKind::BlockDevice,
        () => FileKind::File,
    };
    let is_one_of_several = metadata.nlink() > 1 && kind != FileKind::Directory;
    Kept {
        identity: is_one_of_several.then_some((metadata.dev(), metadata.ino())),
        kind,
        perm: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: metadata.size(),
        accessed: Timestamp { seconds: metadata.atime(), nanoseconds: metadata.atime_nsec() as u32 },
        modified: Timestamp { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() as u32 },
    }
}
