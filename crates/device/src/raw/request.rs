//! An asynchronous read or write.
//!
//! A [`Request`] owns its memory until it has ended, so no caller has to wait for it to keep the memory alive.

use crate::{AlignedBuf, Filled, Result, positional::PositionalFile};

/// Called once when a request has ended, with its outcome and its memory. It runs in the engine's
/// thread: it must neither wait for requests nor drop the device.
pub(super) type Done = Box<dyn FnOnce(Result<()>, Memory) + Send>;

/// The memory of a request: read into, or written.
pub(super) enum Memory {
    Read(AlignedBuf),
    Write(Filled),
}

impl Memory {
    pub(super) fn len(&self) -> usize {
        match self {
            Memory::Read(buf) => buf.len(),
            Memory::Write(data) => data.len(),
        }
    }

    pub(super) fn into_read(self) -> AlignedBuf {
        match self {
            Memory::Read(buf) => buf,
            Memory::Write(_) => unreachable!("a request ends with its own memory"),
        }
    }

    pub(super) fn into_write(self) -> Filled {
        match self {
            Memory::Write(data) => data,
            Memory::Read(_) => unreachable!("a request ends with its own memory"),
        }
    }
}

/// A read or write of all of `memory`, at byte `offset`.
pub(super) struct Request {
    pub(super) offset: u64,
    pub(super) memory: Memory,
    pub(super) done: Done,
}

impl Request {
    /// Bytes of a write; 0 of a read.
    pub(super) fn written_bytes(&self) -> usize {
        match &self.memory {
            Memory::Read(_) => 0,
            Memory::Write(data) => data.len(),
        }
    }

    /// Does the rest after the first `bytes_done` bytes by ordinary calls, and ends the request.
    pub(super) fn finish(mut self, file: &PositionalFile, bytes_done: usize) {
        // Direct I/O cannot resume in the middle of a block.
        let from = bytes_done / file.io_align as usize * file.io_align as usize;
        let at = self.offset + from as u64;
        let outcome = match &mut self.memory {
            Memory::Read(buf) => file.read_exact_at(at, &mut buf[from..]),
            Memory::Write(data) => file.write_at(at, &data[from..]),
        };
        self.end(outcome);
    }

    pub(super) fn end(self, outcome: Result<()>) {
        (self.done)(outcome, self.memory);
    }
}

/// Aborts the process when a panic drops it. A panic in an engine's thread is a broken invariant of ours, and without
/// that thread every waiter would wait for ever.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
