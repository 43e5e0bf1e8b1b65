//! How much memory a mount spends on the map of its store by default.
//!
//! The users of a mount decide how many extents its store has: one byte in each sector makes thirty times as
//! many as ordinary files. So the memory for the map is bounded, and what does not fit is read again when it is needed.
//!
//! The bound is what the map of a full store takes when its extents are 4 KiB long on average, so that ordinary stores
//! are never short of it, but no more than an eighth of the memory that this process may use. The example `map_memory`
//! of the ftl measures both: an extent takes 14.5 bytes, and with a quarter of the memory that a map needs a store in
//! memory does half as many random overwrites (132,000 instead of 262,000 a second) and a third of the random reads.

use std::{fs, path::Path};

/// Memory for an extent in the map.
const EXTENT_BYTES: u64 = 16;
/// Average length of an extent below which leaves of the map leave memory, even where there is plenty.
const MEAN_EXTENT_BYTES: u64 = 4096;
/// Part of the memory that the map may take.
const MEMORY_SHARE: u64 = 8;
/// The least: less would not hold what one large batch changes.
const LEAST_BYTES: u64 = 32 << 20;

/// The bound for a store of this size.
pub(super) fn default_for(capacity_bytes: u64) -> u64 {
    bound(capacity_bytes, memory_bytes())
}

fn bound(capacity_bytes: u64, memory_bytes: u64) -> u64 {
    let wanted = capacity_bytes / MEAN_EXTENT_BYTES * EXTENT_BYTES;
    wanted.min(memory_bytes / MEMORY_SHARE).max(LEAST_BYTES)
}

/// The machine's memory, or less where the control group of this process (`MemoryMax=` of its unit) allows less.
fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = machine.totalram as u64 * u64::from(machine.mem_unit.max(1));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.min(group_limit(Path::new("/sys/fs/cgroup"), &groups).unwrap_or(u64::MAX))
}

/// The lowest limit of the control group that `groups`, a file as `/proc/self/cgroup`, names, and of those above it.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(group);
    let limit = |group: &Path| fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok();
    group.ancestors().take_while(|group| group.starts_with(root)).filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_follows_the_store_and_the_machine() {
        const GIB: u64 = 1 << 30;
        for (capacity, memory, expected) in [
            (GIB, 16 * GIB, LEAST_BYTES),
            (100 * GIB, 16 * GIB, 400 << 20),
            (4096 * GIB, 16 * GIB, 2 * GIB),
            (4096 * GIB, GIB, 128 << 20),
            (u64::MAX, 1 << 20, LEAST_BYTES),
        ] {
            assert_eq!(bound(capacity, memory), expected, "{capacity} bytes, {memory} of memory");
        }
    }

    #[test]
    fn the_group_and_those_above_it_limit_memory() {
        let root = tempfile::tempdir().expect("temporary directory");
        let below = root.path().join("system.slice/lacuna.service");
        fs::create_dir_all(&below).expect("groups");
        let limit = || group_limit(root.path(), "1:cpu:/x\n0::/system.slice/lacuna.service\n");
        assert_eq!(limit(), None);
        fs::write(below.join("memory.max"), "max\n").expect("written");
        assert_eq!(limit(), None);
        fs::write(root.path().join("system.slice/memory.max"), "4096\n").expect("written");
        assert_eq!(limit(), Some(4096));
        fs::write(below.join("memory.max"), "512\n").expect("written");
        assert_eq!(limit(), Some(512));
        assert_eq!(group_limit(root.path(), "4:memory:/a\n"), None, "the older kind of groups");
        assert!(memory_bytes() > 0);
    }
}
