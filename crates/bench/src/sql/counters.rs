//! The system's counters of a server on this machine: its writes, its processor time.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, bail};

use crate::block_stat::{device_traffic, device_under, mount_of};

/// The counter that measures bytes written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The first of the following that can be had: the device under the data directory, the process of
    /// the server, its own counter. Never stays after a database was opened.
    Auto,
    /// The counters of a block device, which count the writes of all processes.
    Device(PathBuf),
    /// `write_bytes` in `/proc/PID/io` of the server and the processes that it started. Does not count direct writes through FUSE.
    Process(u32),
    /// The server's own counter.
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
            Written::Status => write!(f, "the counter of the server"),
        }
    }
}

impl Written {
    /// Resolves `Auto` and the server's process; an error when the requested counter is not available.
    pub(super) fn resolve(self, data_directory: &Path, process: Option<u32>) -> Result<Written> {
        let of_process = process.map(Written::Process).filter(|written| written.bytes().is_ok());
        match self {
            Written::Auto => {
                let device = device_under(data_directory).map(Written::Device);
                let device = device.filter(|written| written.bytes().is_ok());
                // Writes through FUSE are not counted as the process's.
                let is_fuse = mount_of(data_directory).is_some_and(|m| m.file_system.starts_with("fuse"));
                Ok(device.or(of_process.filter(|_| !is_fuse)).unwrap_or(Written::Status))
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
            // Those of processes that have ended are counted with the one that started them.
            Written::Process(pid) => {
                let of_children = children(*pid).into_iter().filter_map(|child| process_written(child).ok());
                Ok(process_written(*pid)? + of_children.sum::<u64>())
            }
            Written::Auto | Written::Status => bail!("only the server knows"),
        }
    }
}

/// Bytes that a process made the system write.
fn process_written(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/io");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).with_context(|| format!("{path}: no write_bytes"))
}

/// The first numbers in `/proc/PID/stat` behind the name, which is in brackets and may hold anything; the first is the
/// process that started it.
fn stat(pid: u32) -> Option<Vec<i64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = text.rsplit_once(')')?;
    behind.split_whitespace().skip(1).take(14).map(|field| field.parse().ok()).collect()
}

/// The running processes that a process started.
fn children(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&child| stat(child).is_some_and(|stat| stat.first() == Some(&i64::from(pid)))).collect()
}

/// Processor time that a server used: its process, and those that it started.
pub(super) fn processor_seconds(pid: u32) -> Option<f64> {
    // Ticks of user and system time, then those of processes that it started and that have ended.
    let ticks = |pid: u32, fields: usize| Some(stat(pid)?.get(10..10 + fields)?.iter().sum::<i64>());
    let of_children: i64 = children(pid).into_iter().filter_map(|child| ticks(child, 2)).sum();
    Some((ticks(pid, 4)? + of_children) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_some_time() {
        assert!(processor_seconds(std::process::id()).is_some());
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let is_child = children(std::process::id()).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_child);
        assert_eq!("status".parse(), Ok(Written::Status));
        assert!("loop0".parse::<Written>().is_err());
    }
}
