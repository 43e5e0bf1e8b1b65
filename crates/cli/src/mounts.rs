//! Lacuna's file systems in the kernel's table of mounts.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// One of them.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    dir: PathBuf,
    source: PathBuf,
    /// Whether nobody may change anything through this mount, and by no mount.
    read_only: (bool, bool),
}

/// The kernel's table, which can be polled for changes.
pub(crate) const PATH: &str = "/proc/self/mountinfo";

/// The store that is mounted on `dir`.
pub(crate) fn store_mounted_on(dir: &Path) -> Result<Option<PathBuf>> {
    // The last of those on one directory is the one on top.
    Ok(mounts()?.into_iter().rev().find(|mount| mount.dir == dir).map(|mount| mount.source))
}

/// The store that is mounted on the directory `path`, if a command may mean that one: tables in the directory go first.
pub(crate) fn store_meant(path: &Path) -> Option<PathBuf> {
    let dir = path.is_dir().then(|| path.canonicalize().ok())??;
    store_mounted_on(&dir).ok()?.filter(|_| !dir.join("control").exists())
}

/// A directory that `store` is mounted on.
pub(crate) fn dir_of(store: &Path) -> Result<Option<PathBuf>> {
    Ok(mounts()?.into_iter().find(|mount| mount.source == store).map(|mount| mount.dir))
}

/// Whether the kernel lets nobody change anything through the mount of `store` on `dir`, and by no mount of it; none if
/// there is none.
pub(crate) fn read_only(dir: &Path, store: &Path) -> Result<Option<(bool, bool)>> {
    let mut mounts = mounts()?.into_iter().filter(|mount| mount.dir == dir && mount.source == store);
    Ok(mounts.next().map(|mount| mount.read_only))
}

fn mounts() -> Result<Vec<Mounted>> {
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
    Some(Mounted { dir: path(4)?, source: path(separator + 2)?, read_only })
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
            let expected = Mounted { dir: "/mnt/a b".into(), source: r"/tmp/st\ore".into(), read_only };
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
