//! Short scheduler slices for the threads that carry out requests.
//!
//! Such a thread does little and then waits for the device. When it wakes on a machine whose processors are all busy,
//! it queues behind computing threads for milliseconds; meanwhile the device is idle, and soon the computing threads
//! wait as well. A thread that asks for short slices gets no larger share of a processor, but gets it at once when it
//! wakes.
//!
//! It suits only threads that do very little before the device works again. Threads that serve a mount do not ask for
//! short slices: each of their wake-ups took the processor from the database that waits for other answers as well, and
//! MariaDB lost 7 to 16% of its requests on two processors.
//!
//! Benchmark: `bench/mariadb-compare` on a mount, 1.10 times the requests (two rounds in turns). Random writes of
//! `lacuna iobench` from four threads on two processors gain nothing: 0.98 times (0.96 to 1.01; 26 pairs in turns).
//!
//! See the kernel's documentation of its EEVDF scheduler: from Linux 6.12 on the `sched_runtime` that `sched_setattr`
//! takes is the slice of an ordinary thread, and a waking thread with a shorter slice preempts one with a longer slice.

#![allow(unsafe_code)] // Two system calls that no library wraps.

use std::{io, mem::size_of};

use libc::{SCHED_BATCH, SCHED_OTHER, SYS_sched_getattr, SYS_sched_setattr, sched_attr, syscall};

/// The shortest slice that the kernel accepts.
const SLICE_NANOS: u64 = 100_000;

/// Lets the calling thread, and threads that it starts from now on, run soon after they wake. Priorities stay as they
/// are. Does nothing where the system refuses it or is too old.
pub(crate) fn run_promptly() {
    let _ = ask_for(SLICE_NANOS); // a hint: nothing depends on it
}

fn ask_for(slice_nanos: u64) -> io::Result<()> {
    let mut attributes = attributes()?;
    // For other policies, such as real-time, the field means something else.
    if [SCHED_OTHER, SCHED_BATCH].map(|policy| policy as u32).contains(&attributes.sched_policy) {
        attributes.sched_runtime = slice_nanos;
        // SAFETY: the kernel reads `attributes.size` bytes of a structure of that size. 0 is this thread.
        result_of(unsafe { syscall(SYS_sched_setattr, 0, &raw const attributes, 0) })?;
    }
    Ok(())
}

/// The scheduling attributes of this thread.
fn attributes() -> io::Result<sched_attr> {
    // SAFETY: a structure of integers, for which zeros are valid.
    let mut attributes: sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the given size, that of the structure. 0 is this thread.
    result_of(unsafe { syscall(SYS_sched_getattr, 0, &raw mut attributes, size_of::<sched_attr>(), 0) })?;
    Ok(attributes)
}

fn result_of(returned: libc::c_long) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(all(test, not(miri)))] // there is no scheduler to ask
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_and_those_it_starts_ask_for_short_slices_and_keep_their_priority() {
        let before = attributes().unwrap();
        let change = || {
            run_promptly();
            let started = thread::spawn(|| attributes().unwrap());
            [attributes().unwrap(), started.join().unwrap()]
        };
        for after in thread::spawn(change).join().unwrap() {
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
            // Kernels before 6.12 have no slices and report none.
            if before.sched_runtime != 0 {
                assert_eq!(after.sched_runtime, SLICE_NANOS);
            }
        }
        assert_eq!(
            attributes().unwrap().sched_runtime,
            before.sched_runtime,
            "other threads stay as they are"
        );
    }
}
