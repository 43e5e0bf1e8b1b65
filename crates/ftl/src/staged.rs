//! Bytes on their way into the log, copied out of the caller's memory once.
//!
//! Copying is done before the log's lock is taken, so a batch of megabytes does not hold up small ones.
//! Under the lock only these handles are passed on; whoever gathers them for the device, or reads what
//! is not on the device yet, copies without the lock again.

use std::{ops::Range, sync::Arc};

/// A range of shared bytes that never change, or zeros.
#[derive(Clone)]
pub(crate) enum Staged {
    Zeros(usize),
    Bytes { all: Arc<Vec<u8>>, range: Range<usize> },
}

impl From<Arc<Vec<u8>>> for Staged {
    fn from(all: Arc<Vec<u8>>) -> Staged {
        Staged::Bytes { range: 0..all.len(), all }
    }
}

impl From<Vec<u8>> for Staged {
    fn from(bytes: Vec<u8>) -> Staged {
        Arc::new(bytes).into()
    }
}

impl Staged {
    pub(crate) fn len(&self) -> usize {
        match self {
            Staged::Zeros(len) => *len,
            Staged::Bytes { range, .. } => range.len(),
        }
    }

    /// The bytes of `within`.
    pub(crate) fn slice(&self, within: Range<usize>) -> Staged {
        assert!(within.start <= within.end && within.end <= self.len(), "slice beyond what is staged");
        match self {
            Staged::Zeros(_) => Staged::Zeros(within.len()),
            Staged::Bytes { all, range } => {
                let range = range.start + within.start..range.start + within.end;
                Staged::Bytes { all: Arc::clone(all), range }
            }
        }
    }

    /// Grows by `next`, if that lies right behind in the same memory; else returns it.
    pub(crate) fn join(&mut self, next: Staged) -> Option<Staged> {
        match (self, next) {
            (Staged::Bytes { all, range }, Staged::Bytes { all: other, range: behind })
                if Arc::ptr_eq(all, &other) && range.end == behind.start =>
            {
                range.end = behind.end;
                None
            }
            (_, next) => Some(next),
        }
    }

    /// Copies all of it to the beginning of `out`; returns what of `out` is behind it.
    pub(crate) fn copy_to<'a>(&self, out: &'a mut [u8]) -> &'a mut [u8] {
        let (now, behind) = out.split_at_mut(self.len());
        match self {
            Staged::Zeros(_) => now.fill(0),
            Staged::Bytes { all, range } => now.copy_from_slice(&all[range.clone()]),
        }
        behind
    }
}
