//! Reads or writes that are waited for together, on a ring of the calling thread's own.
//!
//! One system call begins all of them and returns when all have ended; of very many, one begins some and returns when
//! half of those have ended. So the caller sleeps once and no other thread is woken, whereas the engine's thread costs
//! two wake-ups for each request.
//!
//! Invariants:
//! 1. [`carry_out`] returns only when all entries that it has pushed have completed; a panic before that aborts the
//!    process. So the kernel knows of memory only while it is borrowed here, and leaves no request behind for the end
//!    of the thread, which would cancel it.
//! 2. No more than [`IN_FLIGHT_MAX`] entries are in flight, so neither queue overflows.

#![allow(unsafe_code)] // Entries of the ring carry addresses; the kernel writes behind our back.

use std::{cell::RefCell, os::fd::AsRawFd};

use io_uring::{IoUring, opcode, squeue, types};

use super::{
    request::AbortOnPanic,
    ring::{Outcome, TRANSFER_BYTES_MAX, enter, make_ring, outcome},
};
use crate::{Result, positional::PositionalFile};

/// Requests that are in flight at a time.
pub(super) const IN_FLIGHT_MAX: usize = 64;

thread_local! {
    /// The ring of this thread, once one was wanted; none in it if the system refuses one.
    static RING: RefCell<Option<Option<IoUring>>> = const { RefCell::new(None) };
}

/// One request.
pub(super) struct Transfer<'a> {
    offset: u64,
    memory: Memory<'a>,
}

enum Memory<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl<'a> Transfer<'a> {
    /// Fills `buf` from byte `offset`.
    pub(super) fn read(offset: u64, buf: &'a mut [u8]) -> Transfer<'a> {
        Transfer { offset, memory: Memory::Read(buf) }
    }

    /// Writes `data` at byte `offset`.
    pub(super) fn write(offset: u64, data: &'a [u8]) -> Transfer<'a> {
        Transfer { offset, memory: Memory::Write(data) }
    }

    fn len(&self) -> usize {
        match &self.memory {
            Memory::Read(buf) => buf.len(),
            Memory::Write(data) => data.len(),
        }
    }

    fn entry(&mut self, file: &PositionalFile) -> squeue::Entry {
        let (at, len) = (self.offset, self.len().min(TRANSFER_BYTES_MAX) as u32);
        let file = types::Fd(file.file.as_raw_fd());
        match &mut self.memory {
            Memory::Read(buf) => opcode::Read::new(file, buf.as_mut_ptr(), len).offset(at).build(),
            Memory::Write(data) => opcode::Write::new(file, data.as_ptr(), len).offset(at).build(),
        }
    }

    /// Ends a request that has completed with `result`. The rest of it is done by ordinary calls.
    fn end(&mut self, file: &PositionalFile, result: i32) -> Result<()> {
        let outcome = outcome(result, self.len());
        let offset = self.offset;
        match (outcome, &mut self.memory) {
            (Outcome::Done, _) => Ok(()),
            (Outcome::Rest(done), memory) => {
                let from = done / file.io_align as usize * file.io_align as usize;
                match memory {
                    Memory::Read(buf) => file.read_exact_at(offset + from as u64, &mut buf[from..]),
                    Memory::Write(data) => file.write_at(offset + from as u64, &data[from..]),
                }
            }
            (Outcome::Failed(errno), Memory::Read(_)) => Err(file.read_error(offset, errno.into())),
            (Outcome::Failed(errno), Memory::Write(_)) => Err(file.write_error(offset, errno.into())),
        }
    }
}

/// Does all `transfers` in any order, and waits for all. None, and nothing is done, if the system refuses rings.
///
/// # Errors
/// The first failure in the order of the transfers.
pub(super) fn carry_out(file: &PositionalFile, transfers: Vec<Transfer<'_>>) -> Option<Result<()>> {
    RING.with_borrow_mut(|ring| {
        let ring = ring.get_or_insert_with(|| make_ring(IN_FLIGHT_MAX as u32).ok()).as_mut()?;
        Some(carry_out_on(ring, file, transfers))
    })
}

fn carry_out_on(ring: &mut IoUring, file: &PositionalFile, mut transfers: Vec<Transfer<'_>>) -> Result<()> {
    let abort = AbortOnPanic;
    let mut results = vec![None; transfers.len()];
    let (mut begun, mut ended) = (0, 0);
    while ended < transfers.len() {
        while begun < transfers.len() && begun - ended < IN_FLIGHT_MAX {
            let entry = transfers[begun].entry(file).user_data(begun as u64);
            // SAFETY: the entry's memory is that which the transfer borrows, mutably where the kernel writes, and its
            // length at most that of the memory. By invariant 1 it stays borrowed, and no thread accesses it, until
            // the kernel has completed the entry.
            let pushed = unsafe { ring.submission().push(&entry) };
            pushed.expect("invariant 2: the submission queue has space");
            begun += 1;
        }
        let in_flight = begun - ended;
        enter(ring, if begun < transfers.len() { in_flight / 2 } else { in_flight });
        for entry in ring.completion() {
            let result = results[entry.user_data() as usize].replace(entry.result());
            assert_eq!(result, None, "a request completes once");
            ended += 1;
        }
    }
    drop(abort);
    let mut ended = transfers.iter_mut().zip(results.into_iter().flatten());
    ended.try_for_each(|(transfer, result)| transfer.end(file, result))
}
