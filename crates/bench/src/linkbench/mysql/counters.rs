//! What the system knows of a server on this machine: its writes, its processor time, its files.

use std::{
    fmt, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, bail};
use rustix::fs::{major, minor};

/// What bytes written are measured by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The first of the following that can be had: the device under the data directory, the process of
    /// the server, its own counter. Never stays after a database was opened.
    Auto,
    /// The counters of a block device, which tell about everybody who writes to it.
    Device(PathBuf),
    /// `write_bytes` in `/proc/PID/io` of the server. Knows nothing of direct writes through FUSE.
    Process(u32),
    /// The server's counter `Innodb_data_written`: pages, doublewrites and log as InnoDB sees them.
    Status,
}

impl FromStr for Written {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Written, &'static str> {
        match text {
            "auto" => Ok(Written::Auto),
            "process" => Ok(Written::Process(0)),
            "status" => Ok(Written::Status),
            path if path.starts_with('/') => Ok(Written::Device(path.into())),
            _ => Err("bytes are counted by auto, process, status, or a block device such as /dev/loop0"),
        }
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Written::Auto => write!(f, "auto"),
            Written::Device(path) => write!(f, "block device {}", path.display()),
            Written::Process(pid) => write!(f, "/proc/{pid}/io of the server"),
            Written::Status => write!(f, "Innodb_data_written of the server"),
        }
    }
}

impl Written {
    /// Settles `Auto` and the server's process; an error when what was asked for cannot be had.
    pub(super) fn resolve(self, data_directory: &Path, process: Option<u32>) -> Result<Written> {
        let of_process = process.map(Written::Process).filter(|written| written.bytes().is_ok());
        match self {
            Written::Auto => {
                let device = device_under(data_directory).map(Written::Device);
                let device = device.filter(|written| written.bytes().is_ok());
                Ok(device.or(of_process).unwrap_or(Written::Status))
            }
            Written::Process(_) => of_process.context("/proc/PID/io of the server cannot be read"),
            Written::Device(path) => {
                let written = Written::Device(path);
                written.bytes()?;
                Ok(written)
            }
            Written::Status => Ok(Written::Status),
        }
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> Result<u64> {
        match self {
            Written::Device(path) => Ok(device_traffic(path)?.written_bytes),
            Written::Process(pid) => {
                let path = format!("/proc/{pid}/io");
                let text = fs::read_to_string(&path).with_context(|| path.clone())?;
                let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
                line.and_then(|bytes| bytes.parse().ok()).with_context(|| format!("{path}: no write_bytes"))
            }
            Written::Auto | Written::Status => bail!("only the server knows"),
        }
    }
}

/// What a block device did since the system started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceTraffic {
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Reads the counters of a block device.
pub(crate) fn device_traffic(device: &Path) -> Result<DeviceTraffic> {
    let named = || device.display().to_string();
    let number = fs::metadata(device).with_context(named)?.rdev();
    if number == 0 {
        bail!("{}: not a block device", device.display());
    }
    let path = format!("/sys/dev/block/{}:{}/stat", major(number), minor(number));
    let text = fs::read_to_string(&path).with_context(|| format!("{}: {path}", device.display()))?;
    parse_stat(&text).with_context(|| format!("{path}: {text:?}"))
}

/// Sectors of 512 bytes stand in the third and the seventh column (Documentation/block/stat.rst).
fn parse_stat(text: &str) -> Option<DeviceTraffic> {
    let mut columns = text.split_whitespace().map(str::parse::<u64>);
    let read = columns.nth(2)?.ok()?;
    let written = columns.nth(3)?.ok()?;
    Some(DeviceTraffic { read_bytes: read * 512, written_bytes: written * 512 })
}

/// The block device that a directory's file system is on: by its number, or, where a file system has
/// none (btrfs, FUSE), by the source of its mount.
pub(crate) fn device_under(directory: &Path) -> Option<PathBuf> {
    let number = fs::metadata(directory).ok()?.dev();
    let link = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let by_number = fs::read_link(link).ok().and_then(|target| {
        let device = Path::new("/dev").join(target.file_name()?);
        device.exists().then_some(device)
    });
    by_number.or_else(|| {
        let source = mount_source(&fs::read_to_string("/proc/self/mountinfo").ok()?, number)?;
        device_traffic(&source).is_ok().then_some(source)
    })
}

/// The source in the last mount of a device number.
fn mount_source(mountinfo: &str, number: u64) -> Option<PathBuf> {
    let wanted = format!("{}:{}", major(number), minor(number));
    mountinfo.lines().rev().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        (left.split(' ').nth(2)? == wanted).then(|| right.split(' ').nth(1).map(PathBuf::from))?
    })
}

/// The process that a pid file names, if it is a server's.
pub(super) fn server_process(data_directory: &Path, pid_file: &Path) -> Option<u32> {
    let text = fs::read_to_string(data_directory.join(pid_file)).ok()?;
    let pid: u32 = text.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    ["mariadbd", "mysqld"].contains(&name.trim()).then_some(pid)
}

/// Processor time that a process used.
pub(super) fn processor_seconds(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything; ticks of user and system time are 12 and 13 behind it.
    let (_, behind) = text.rsplit_once(')')?;
    let mut columns = behind.split_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = columns.next()?.ok()? + columns.next()?.ok()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Room that all files below a directory take.
pub(super) fn tree_bytes(directory: &Path) -> Option<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).ok()? {
        let entry = entry.ok()?;
        // A server may remove its files meanwhile.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += metadata.blocks() * 512;
        if metadata.is_dir() {
            bytes += tree_bytes(&entry.path())?;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_devices_are_read() {
        let text = "     1010      44   8000   8 5 6 24 8 9 10 11 12 13 14 15 16 17\n";
        let traffic = parse_stat(text).unwrap();
        assert_eq!(traffic, DeviceTraffic { read_bytes: 8000 * 512, written_bytes: 24 * 512 });
        assert_eq!(parse_stat("1 2 3"), None);
    }

    #[test]
    fn the_last_mount_of_a_device_counts() {
        let mounts = "30 20 0:41 / /a rw - fuse.lacuna /dev/loop1 rw\n\
                      31 20 0:42 / /b rw shared:1 - fuse.lacuna /dev/loop2 rw\n";
        assert_eq!(mount_source(mounts, 42), Some("/dev/loop2".into()));
        assert_eq!(mount_source(mounts, 43), None);
    }

    #[test]
    fn this_process_has_used_some_time() {
        assert!(processor_seconds(std::process::id()).is_some());
        assert_eq!("status".parse(), Ok(Written::Status));
        assert!("loop0".parse::<Written>().is_err());
    }
}
