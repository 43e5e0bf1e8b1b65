//! Where a directory is mounted from, the system's counters of the block device below it, and the space that its files
//! take.

use std::{
    ffi::OsString,
    fs,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::fs::{major, minor};

/// The traffic of a block device since the system started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Times that its cache was flushed.
    pub flushes: u64,
}

impl DeviceTraffic {
    /// The traffic since `before`.
    pub fn since(self, before: DeviceTraffic) -> DeviceTraffic {
        DeviceTraffic {
            read_bytes: self.read_bytes - before.read_bytes,
            written_bytes: self.written_bytes - before.written_bytes,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// Reads the counters of a block device.
///
/// # Errors
/// When it is none, or has no counters.
pub fn device_traffic(device: &Path) -> Result<DeviceTraffic> {
    let named = || device.display().to_string();
    let number = fs::metadata(device).with_context(named)?.rdev();
    if number == 0 {
        bail!("{}: not a block device", device.display());
    }
    let path = format!("/sys/dev/block/{}:{}/stat", major(number), minor(number));
    let text = fs::read_to_string(&path).with_context(|| format!("{}: {path}", device.display()))?;
    parse_stat(&text).with_context(|| format!("{path}: {text:?}"))
}

/// Sectors of 512 bytes stand in the third and the seventh column, flushes in the sixteenth
/// (Documentation/block/stat.rst); Linux counts these from 5.5 on.
fn parse_stat(text: &str) -> Option<DeviceTraffic> {
    let columns: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    Some(DeviceTraffic {
        read_bytes: columns.get(2)? * 512,
        written_bytes: columns.get(6)? * 512,
        flushes: columns.get(15).copied().unwrap_or(0),
    })
}

/// Space that all files below a directory take, in bytes; `None` when it cannot be listed.
pub fn tree_bytes(directory: &Path) -> Option<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).ok()? {
        let entry = entry.ok()?;
        // A database may remove its files meanwhile.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += metadata.blocks() * 512;
        if metadata.is_dir() {
            bytes += tree_bytes(&entry.path())?;
        }
    }
    Some(bytes)
}

/// The mount that contains a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Directory that it is mounted on.
    pub point: PathBuf,
    /// Type of the file system, such as `ext4` or `fuse.lacuna`.
    pub file_system: String,
    /// The mounted device or store.
    pub source: PathBuf,
}

impl Mount {
    /// Its block device, if the source is one.
    pub(crate) fn device(&self) -> Option<PathBuf> {
        device_traffic(&self.source).is_ok().then(|| self.source.clone())
    }
}

/// Finds the mount of a path.
pub(crate) fn mount_of(path: &Path) -> Option<Mount> {
    let path = fs::canonicalize(path).ok()?;
    mount_in(&fs::read_to_string("/proc/self/mountinfo").ok()?, &path)
}

/// The block device that a directory's file system is on: by the source of its mount, or by its number
/// where that source is but a name (`/dev/root`).
pub(crate) fn device_under(directory: &Path) -> Option<PathBuf> {
    if let Some(device) = mount_of(directory).and_then(|mount| mount.device()) {
        return Some(device);
    }
    let number = fs::metadata(directory).ok()?.dev();
    let target = fs::read_link(format!("/sys/dev/block/{}:{}", major(number), minor(number))).ok()?;
    let device = Path::new("/dev").join(target.file_name()?);
    device_traffic(&device).is_ok().then_some(device)
}

/// The mount with the longest point above `path`, the last of several on one point.
fn mount_in(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(parse_mount).filter(|mount| path.starts_with(&mount.point));
    mounts.max_by_key(|mount| mount.point.as_os_str().len())
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let point = unescape(left.split(' ').nth(4)?);
    let mut right = right.split(' ');
    Some(Mount { point, file_system: right.next()?.to_owned(), source: unescape(right.next()?) })
}

/// The kernel writes blanks and backslashes as `\040`.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| byte == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &behind[3..];
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_devices_are_read() {
        let text = "     1010      44   8000   8 5 6 24 8 9 10 11 12 13 14 15 16 17\n";
        let traffic = parse_stat(text).unwrap();
        assert_eq!(traffic, DeviceTraffic { read_bytes: 8000 * 512, written_bytes: 24 * 512, flushes: 16 });
        assert_eq!(parse_stat("1 2 3 4 5 6 7").unwrap().flushes, 0);
        assert_eq!(parse_stat("1 2 3"), None);
    }

    #[test]
    fn the_nearest_and_last_mount_counts() {
        let mounts = "20 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      30 20 0:41 / /a\\040b rw - fuse.lacuna /dev/loop1 rw\n\
                      31 20 0:42 / /a\\040b rw shared:1 - fuse.lacuna /dev/loop2 rw\n";
        let found = mount_in(mounts, Path::new("/a b/c")).unwrap();
        assert_eq!((found.source, found.file_system), ("/dev/loop2".into(), "fuse.lacuna".to_owned()));
        assert_eq!(mount_in(mounts, Path::new("/a")).unwrap().source, Path::new("/dev/vda"));
        assert!(mount_of(Path::new("/proc/self")).is_some_and(|mount| mount.file_system == "proc"));
    }
}
