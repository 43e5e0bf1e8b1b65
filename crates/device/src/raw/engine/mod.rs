//! Requests that go on while their caller does something else, and who carries them out.
//!
//! A [`Request`] owns its memory until it has ended, so nobody has to wait for it lest the memory goes
//! away. Two engines carry requests out, an io_uring and a pool of threads that make ordinary calls;
//! both end every request exactly once, also when they are dropped. Neither is started before the
//! first request. Single reads and writes that are waited for need no engine: an ordinary call is
//! faster.

use std::sync::Arc;

use super::{threads::Threads, uring::Uring};
use crate::{AlignedBuf, BlockIo, Error, Filled, Result, positional::PositionalFile};

/// Called once when a request has ended, with its outcome and its memory. It runs in the engine's
/// thread: it must neither wait for requests nor drop the device.
pub(super) type Done = Box<dyn FnOnce(Result<()>, Memory) + Send>;

/// What is read into, or written.
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
    /// None of a read.
    pub(super) fn written_bytes(&self) -> usize {
        match &self.memory {
            Memory::Read(_) => 0,
            Memory::Write(data) => data.len(),
        }
    }

    /// Does by ordinary calls what is left when the first `bytes_done` bytes are done, and ends it.
    pub(super) fn finish(mut self, file: &PositionalFile, bytes_done: usize) {
        // Direct I/O cannot go on in the middle of a block.
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

/// Ends the process when it is dropped by a panic. A panic in an engine's thread is a broken invariant
/// of ours; without that thread, all who wait for requests would wait for ever.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// See the module documentation.
pub(super) enum Engine {
    Uring(Uring),
    Threads(Threads),
}

/// What is wanted, given the options and the environment variable `LACUNA_IO`.
pub(super) fn wanted(options: BlockIo, variable: Option<&str>) -> Result<BlockIo> {
    match (options, variable) {
        (BlockIo::Auto, Some("uring")) => Ok(BlockIo::Uring),
        (BlockIo::Auto, Some("threads")) => Ok(BlockIo::Threads),
        (BlockIo::Auto, Some(other)) if !["", "auto"].contains(&other) => {
            let operation = "a value of LACUNA_IO other than auto, uring and threads";
            Err(Error::Unsupported { what: other.to_owned(), operation })
        }
        _ => Ok(options),
    }
}

impl Engine {
    /// Starts what is wanted.
    ///
    /// # Errors
    /// When an io_uring is asked for by name and the system refuses it.
    pub(super) fn start(wanted: BlockIo, file: &Arc<PositionalFile>) -> Result<Engine> {
        let threads = || Engine::Threads(Threads::start(file));
        match wanted {
            BlockIo::Threads => Ok(threads()),
            // Old kernels lack it, containers forbid it.
            BlockIo::Auto => Ok(Uring::start(file).map_or_else(|_| threads(), Engine::Uring)),
            BlockIo::Uring => {
                let uring = Uring::start(file);
                Ok(Engine::Uring(uring.map_err(|error| file.error("start of an io_uring", error))?))
            }
        }
    }

    /// Begins `requests`, in any order.
    pub(super) fn submit(&self, requests: Vec<Request>) {
        match self {
            Engine::Uring(uring) => uring.submit(requests),
            Engine::Threads(threads) => threads.submit(requests),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Engine::Uring(_) => "io_uring",
            Engine::Threads(_) => "threads",
        }
    }
}
