//! The code common to all io_urings here: making and entering one, and decoding its completions.

use std::io;

use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

/// Longest transfer that one entry asks for, in bytes. The kernel's own limit is a little below 2 GiB.
pub(super) const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// A ring for reads and writes, to be used by the calling thread alone.
pub(super) fn make_ring(entries: u32) -> io::Result<IoUring> {
    // The kernel processes completions when this thread asks for them, instead of interrupting it.
    let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    let ring = match modern {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => IoUring::new(entries)?,
        made => made?,
    };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if ![opcode::Read::CODE, opcode::Write::CODE].into_iter().all(|code| probe.is_supported(code)) {
        return Err(Errno::NOSYS.into());
    }
    Ok(ring)
}

/// Submits the pushed entries and waits for up to `completions` completions.
pub(super) fn enter(ring: &IoUring, completions: usize) {
    if let Err(error) = ring.submit_and_wait(completions) {
        match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => std::thread::yield_now(),
            // The ring is unusable, and the memory that it holds cannot be recovered.
            _ => panic!("io_uring_enter: {error}"),
        }
    }
}

/// The result of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// This many bytes are done; the rest must be requested again.
    Rest(usize),
    Failed(Errno),
}

/// Decodes the result of a request for `asked` bytes.
pub(super) fn outcome(result: i32, asked: usize) -> Outcome {
    match usize::try_from(result) {
        Ok(bytes) if bytes >= asked => Outcome::Done,
        Ok(bytes) => Outcome::Rest(bytes),
        Err(_) => match Errno::from_raw_os_error(result.saturating_neg()) {
            Errno::INTR | Errno::AGAIN | Errno::CANCELED => Outcome::Rest(0),
            errno => Outcome::Failed(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_as_the_kernel_means_them() {
        let errno = |errno: Errno| -errno.raw_os_error();
        for (result, expected) in [
            (4096, Outcome::Done),
            (512, Outcome::Rest(512)),
            (0, Outcome::Rest(0)),
            (errno(Errno::INTR), Outcome::Rest(0)),
            (errno(Errno::AGAIN), Outcome::Rest(0)),
            (errno(Errno::CANCELED), Outcome::Rest(0)),
            (errno(Errno::IO), Outcome::Failed(Errno::IO)),
            (errno(Errno::NOSPC), Outcome::Failed(Errno::NOSPC)),
            (errno(Errno::INVAL), Outcome::Failed(Errno::INVAL)),
        ] {
            assert_eq!(outcome(result, 4096), expected);
        }
    }
}
