//! Lacuna's file systems in the kernel's table of mounts.

use std::{
    ffi::OsString,
    fs,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// One of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) dir: PathBuf,
    /// The path of its store when it was mounted. By now another store may have that name.
    pub(crate) store: PathBuf,
    /// The file system's number, `MAJOR:MINOR`, which its bind mounts have too, and no other that is mounted.
    pub(crate) device: String,
    /// Whether nobody may change anything through this mount, and by no mount.
    read_only: (bool, bool),
}

/// The kernel's table, which can be polled for changes.
pub(crate) const PATH: &str = "/proc/self/mountinfo";

/// What is mounted on `dir`, which is named as the kernel names it.
pub(crate) fn mounted_on(dir: &Path) -> Result<Option<Mounted>> {
    // The last of those on one directory is the one on top.
    Ok(all()?.into_iter().rev().find(|mount| mount.dir == dir))
}

/// What is mounted on the directory `path`. The file system is not asked, whose process may be stopped: to find what a
/// path names, its root answers for itself.
pub(crate) fn mounted_at(path: &Path) -> Option<Mounted> {
    mounted_on(&path.canonicalize().ok()?).ok()?
}

/// The mount that the directory `path` lies in.
pub(crate) fn mounted_around(path: &Path) -> Result<Option<Mounted>> {
    let device = path.metadata().with_context(|| path.display().to_string())?.dev();
    of_device(&format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// A mount of the file system with this number.
pub(crate) fn of_device(device: &str) -> Result<Option<Mounted>> {
    Ok(all()?.into_iter().find(|mount| mount.device == device))
}

/// Whether the kernel lets nobody change anything through the mount of `store` on `dir`, and by no mount of it; none if
/// there is none.
pub(crate) fn read_only(dir: &Path, store: &Path) -> Result<Option<(bool, bool)>> {
    let mut mounts = all()?.into_iter().filter(|mount| mount.dir == dir && mount.store == store);
    Ok(mounts.next().map(|mount| mount.read_only))
}

/// All of them.
pub(crate) fn all() -> Result<Vec<Mounted>> {
    let table = fs::read(PATH).context(PATH)?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse_mount).collect())
}

/// A line of mountinfo, if it is that of a Lacuna file system.
fn parse_mount(line: &[u8]) -> Option<Mounted> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    let path = |at: usize| Some(PathBuf::from(OsString::from_vec(unescape(fields.get(at)?))));
    let is_ours = *fields.get(separator + 1)? == b"fuse.lacuna";
    is_ours.then_some(())?;
    let is_read_only =
        |at: usize| Some(fields.get(at)?.split(|byte| *byte == b',').any(|option| option == b"ro"));
    let read_only = (is_read_only(5)?, is_read_only(separator + 3)?);
    let device = str::from_utf8(fields.get(2)?).ok()?.to_owned();
    Some(Mounted { dir: path(4)?, store: path(separator + 2)?, device, read_only })
}

/// Spaces and the like stand as backslash and three octal digits in mountinfo.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (*first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            (byte, _) => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
impl Mounted {
    pub(crate) fn for_test(device: &str) -> Mounted {
        let (dir, store) = (PathBuf::new(), PathBuf::new());
        Mounted { dir, store, device: device.to_owned(), read_only: (false, false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_is_understood() {
        let line = |through: &str, all: &str| {
            let line = format!(
                r"36 25 0:32 / /mnt/a\040b {through},nosuid shared:7 - fuse.lacuna /tmp/st\134ore {all},user_id=0"
            );
            parse_mount(line.as_bytes())
        };
        for (through, all) in [("rw", "rw"), ("ro", "rw"), ("rw", "ro"), ("ro", "ro")] {
            let read_only = (through == "ro", all == "ro");
            let (dir, store) = ("/mnt/a b".into(), r"/tmp/st\ore".into());
            let expected = Mounted { dir, store, device: "0:32".into(), read_only };
            assert_eq!(line(through, all), Some(expected));
        }
        for other in [
            &b"36 25 0:32 / /mnt/a rw - ext4 /dev/sda rw"[..],
            b"",
            b"-",
            b"36 25 0:32 / /mnt/a rw -",
            b"36 25 0:32 / /mnt/a rw - fuse.lacuna /tmp/store",
            b"a b c - fuse.lacuna",
        ] {
            assert_eq!(parse_mount(other), None);
        }
    }
}
