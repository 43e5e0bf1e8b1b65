//! The I/O engines, which carry out concurrent requests: an io_uring, or a pool of threads that make ordinary calls.
//!
//! Both end every [`Request`] exactly once, also when they are dropped. Neither is started before the first request.
//! Single reads and writes that are waited for need no engine: an ordinary call is faster.

mod threads;
mod uring;

use std::sync::Arc;

use self::{threads::Threads, uring::Uring};
use super::request::Request;
use crate::{Error, Result, positional::PositionalFile};

/// The I/O engine for requests that are in flight together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockIo {
    /// The engine that the environment variable `LACUNA_IO` names (`uring`, `threads`); without it an io_uring, or
    /// threads where the system refuses one.
    #[default]
    Auto,
    /// An io_uring, or an error.
    Uring,
    /// A pool of threads that make ordinary calls.
    Threads,
}

/// A running engine.
pub(super) enum Engine {
    Uring(Uring),
    Threads(Threads),
}

/// The engine to start, given the options and the environment variable `LACUNA_IO`.
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
    /// Starts the engine `wanted`.
    ///
    /// # Errors
    /// When an io_uring is asked for by name and the system refuses it.
    pub(super) fn start(wanted: BlockIo, file: &Arc<PositionalFile>) -> Result<Engine> {
        let threads = || Engine::Threads(Threads::start(file));
        match wanted {
            BlockIo::Threads => Ok(threads()),
            // Old kernels lack io_uring and containers forbid it.
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

#[cfg(test)]
mod tests;
