//! How long a device takes for a read.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use rustix::fs::OFlags;

use super::measure;
use crate::{AlignedBuf, positional::PositionalFile};

const READS: u64 = 16;
const READ_BYTES: u64 = 4096;
/// After this no further read is timed.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long a store file or block device takes for a read of 4 KiB, with no other read beside it; `None` where it cannot
/// be read. It takes at most a fifth of a second and one read more, and no lock.
///
/// Holes, and what a device has in its memory, are answered at once. So half of the reads are of the beginning, which
/// holds data in every store, and the result is the upper quartile of all.
pub fn read_time(path: &Path) -> Option<Duration> {
    let file = PositionalFile::open(path, OFlags::RDONLY).ok()?;
    let blocks = measure(&file).ok()? / READ_BYTES;
    let mut buf = AlignedBuf::zeroed(READ_BYTES as usize);
    let begin = Instant::now();
    let mut times = Vec::new();
    for number in 0..READS {
        let block = if number % 2 == 0 { number / 2 } else { blocks / READS * number };
        let before = Instant::now();
        if before - begin > PATIENCE || block >= blocks {
            break;
        }
        file.read_exact_at(block * READ_BYTES, &mut buf).ok()?;
        times.push(before.elapsed());
    }
    times.sort();
    times.get(times.len() * 3 / 4).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_has_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        assert_eq!(read_time(&path), None);
        for (bytes, is_timed) in [(0, false), (4095, false), (4096, true), (1 << 20, true)] {
            std::fs::write(&path, vec![1; bytes]).unwrap();
            assert_eq!(read_time(&path).is_some(), is_timed, "{bytes} bytes");
        }
        assert_eq!(read_time(directory.path()), None);
    }
}
