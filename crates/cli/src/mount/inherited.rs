//! Descriptors that the process that serves a mount gets from its caller.
//!
//! A file with a lock (`flock`), a pipe that somebody reads to its end: all would stay open for as long as the mount
//! lives.

use std::fs;

use anyhow::{Context, Result};

/// Where a process sees its own descriptors.
const DESCRIPTORS: &str = "/proc/self/fd";

/// Closes all descriptors but standard input, output and error. Called before this process has opened any of its own.
pub(crate) fn close_all() -> Result<()> {
    let listed = fs::read_dir(DESCRIPTORS).context(DESCRIPTORS)?;
    let names: Vec<_> = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    for descriptor in names.iter().filter_map(|name| name.parse::<i32>().ok()).filter(|number| *number > 2) {
        // That of the listing itself is closed already.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(())
}
