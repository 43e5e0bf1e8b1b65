//! Memory in which pieces of the log are built.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, Blank, Home};

use crate::{space::Space, sync::Mutex};

/// The longest piece of the log.
pub(super) const PIECE_BYTES_MAX: usize = 1 << 20;

/// No further write is begun while this many bytes are in flight: twice what a raw device hands to the system at a
/// time. Between the end of a write and the start of the write that waited for it, two threads must be scheduled one
/// after the other. Where all processors are busy that takes 3 ms, in which a fast device writes the other half.
pub(super) const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

/// Memory that is kept for later pieces: as much as returns at once when many writes end together.
const IDLE_BYTES_MAX: usize = IN_FLIGHT_BYTES_MAX;

/// Memory in which pieces are built, recycled.
pub(crate) struct Buffers {
    len: usize,
    idle: Mutex<Vec<AlignedBuf>>,
}

impl Buffers {
    pub(crate) fn new(space: Space) -> Buffers {
        Buffers { len: PIECE_BYTES_MAX.min(space.segment_bytes), idle: Mutex::default() }
    }

    /// Allocates memory for a batch of `bytes` in advance, so that it is not allocated with the log locked: that would
    /// take longer than everything else that is done under the lock.
    pub(crate) fn stock(&self, bytes: usize) {
        self.keep(bytes / self.len);
    }

    /// As [`Buffers::stock`], for the next caller that needs memory, however little.
    pub(crate) fn stock_one(&self) {
        self.keep(1);
    }

    fn keep(&self, count: usize) {
        if count == 0 {
            return;
        }
        let lacking = count.saturating_sub(self.idle.lock().len());
        let mut made = Vec::new();
        while made.len() < lacking {
            made.extend(AlignedBuf::for_long_use(self.len));
        }
        if lacking > 0 {
            self.idle.lock().extend(made);
        }
    }

    pub(crate) fn take(self: &Arc<Self>) -> Blank {
        let idle = self.idle.lock().pop();
        let memory = idle.unwrap_or_else(|| {
            let mut made = AlignedBuf::for_long_use(self.len);
            let taken = made.pop().expect("at least one");
            self.idle.lock().extend(made);
            taken
        });
        Blank::lent(memory, Arc::clone(self) as Arc<dyn Home>)
    }
}

impl Home for Buffers {
    fn take_back(&self, memory: AlignedBuf) {
        let mut idle = self.idle.lock();
        if idle.len() * self.len < IDLE_BYTES_MAX {
            idle.push(memory);
        }
    }
}

#[cfg(test)]
impl Buffers {
    /// How many are idle.
    pub(crate) fn idle(&self) -> usize {
        self.idle.lock().len()
    }
}
