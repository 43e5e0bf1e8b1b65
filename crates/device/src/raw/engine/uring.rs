//! Requests on an io_uring.
//!
//! One thread owns the ring, pushes all entries and takes all completions; others leave requests in
//! the inbox and ring a bell (an eventfd that the ring itself reads). So a request depends on no
//! other thread of the process: the kernel cancels requests when the thread that submitted them
//! ends, and delays their completion while it waits for something else.
//!
//! Invariants:
//! 1. Memory that was passed to the kernel stays in its slot, which is not touched, until the completion was taken from
//!    the ring. Slots are dropped only when no completion is outstanding; a panic before that aborts the process.
//! 2. No more than [`ENTRIES`] entries are in flight, the bell's included, so neither queue overflows.
//! 3. Every request ends once, and all of them before the thread does.
//!
//! The file is not registered with the ring: the kernel takes rings apart some time after their end,
//! and would keep the file open, and its lock, until then.
//!
//! Requests that complete short, or that were interrupted, cancelled or deferred, are finished by ordinary calls. They
//! are rare.

#![allow(unsafe_code)] // Entries of the ring carry addresses; the kernel writes behind our back.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::{
    AlignedBuf,
    positional::PositionalFile,
    prompt::run_promptly,
    raw::{
        request::{AbortOnPanic, Memory, Request},
        ring::{Outcome, TRANSFER_BYTES_MAX, enter, make_ring, outcome},
    },
};

/// Entries of the ring.
const ENTRIES: u32 = 128;
/// Requests in flight at a time: one entry is the bell's.
const SLOTS: usize = ENTRIES as usize - 1;
/// Bytes of writes in flight beyond which no further write starts, because reads would wait behind it. Virtual disks
/// complete together the requests that they received together, and then are idle: waiting writes follow at once.
const WRITING_BYTES_MAX: usize = 8 << 20;
/// Marks the bell's entry; others carry the number of their slot.
const BELL: u64 = u64::MAX;

/// See the module documentation. Dropping it waits for all requests.
pub(crate) struct Uring {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

struct Inbox {
    state: Mutex<State>,
    bell: OwnedFd,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    /// The bell was rung, and the thread has not looked since.
    rung: bool,
    stopped: bool,
}

impl Uring {
    /// # Errors
    /// The error with which the system refuses a ring, such as ENOSYS or EPERM.
    pub(super) fn start(file: &Arc<PositionalFile>) -> io::Result<Uring> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
        let inbox = Arc::new(Inbox { state: Mutex::default(), bell });
        let (ready, is_ready) = mpsc::channel();
        let thread = {
            let (inbox, file) = (Arc::clone(&inbox), Arc::clone(file));
            // The kernel lets the thread that made a ring submit to it, and no other.
            std::thread::Builder::new().name("device-io".into()).spawn(move || {
                run_promptly();
                match Ring::new(inbox, file) {
                    Ok(ring) => {
                        let _ = ready.send(Ok(())); // who asked waits for it
                        ring.run();
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            })?
        };
        is_ready.recv().expect("the thread answers before it ends")?;
        Ok(Uring { inbox, thread: Some(thread) })
    }

    pub(super) fn submit(&self, requests: Vec<Request>) {
        self.inbox.leave(|state| state.requests.extend(requests));
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.inbox.leave(|state| state.stopped = true);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a panic there aborts");
        }
    }
}

impl Inbox {
    /// Changes the inbox and notifies the thread.
    fn leave(&self, change: impl FnOnce(&mut State)) {
        let was_rung = {
            let mut state = self.state.lock();
            change(&mut state);
            std::mem::replace(&mut state.rung, true)
        };
        if !was_rung {
            let rung = rustix::io::retry_on_intr(|| rustix::io::write(&self.bell, &1_u64.to_ne_bytes()));
            rung.expect("an eventfd takes a small number");
        }
    }
}

/// Requests that were taken from the inbox and have no slot yet, in the order in which they start: that of their
/// arrival, except that reads overtake writes that wait for others to end.
#[derive(Default)]
struct Waiting {
    /// Writes that were overtaken.
    held: VecDeque<Request>,
    /// All that came after those.
    arrived: VecDeque<Request>,
    /// Bytes of the writes that started and have not ended.
    writing_bytes: usize,
}

impl Waiting {
    /// The next one that may go.
    fn next(&mut self) -> Option<Request> {
        let has_space = self.writing_bytes < WRITING_BYTES_MAX;
        let held = if has_space { self.held.pop_front() } else { None };
        let next = held.or_else(|| {
            loop {
                let request = self.arrived.pop_front()?;
                if has_space || request.written_bytes() == 0 {
                    return Some(request);
                }
                self.held.push_back(request);
            }
        })?;
        self.writing_bytes += next.written_bytes();
        Some(next)
    }

    fn has_ended(&mut self, request: &Request) {
        self.writing_bytes -= request.written_bytes();
    }
}

/// The ring and its requests. Used by its thread alone.
struct Ring {
    ring: IoUring,
    inbox: Arc<Inbox>,
    file: Arc<PositionalFile>,
    slots: Vec<Option<Request>>,
    free: Vec<usize>,
    waiting: Waiting,
    /// The buffer for the kernel's reads of the bell.
    bell_count: AlignedBuf,
    bell_is_armed: bool,
}

impl Ring {
    fn new(inbox: Arc<Inbox>, file: Arc<PositionalFile>) -> io::Result<Ring> {
        Ok(Ring {
            ring: make_ring(ENTRIES)?,
            inbox,
            file,
            slots: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS).rev().collect(),
            waiting: Waiting::default(),
            bell_count: AlignedBuf::zeroed(8),
            bell_is_armed: false,
        })
    }

    fn run(mut self) {
        let _abort = AbortOnPanic;
        loop {
            let stopped = self.empty_inbox();
            self.push_waiting();
            if !stopped {
                self.arm_bell();
            } else if self.free.len() == SLOTS && !self.bell_is_armed {
                return;
            }
            // A bell that is armed at the stop was or will be rung for it.
            self.wait();
        }
    }

    /// Takes the requests in the inbox; returns whether there will be no more.
    fn empty_inbox(&mut self) -> bool {
        let mut state = self.inbox.state.lock();
        if !self.bell_is_armed {
            state.rung = false;
        }
        self.waiting.arrived.extend(state.requests.drain(..));
        state.stopped
    }

    fn arm_bell(&mut self) {
        if self.bell_is_armed {
            return;
        }
        let (at, len) = (self.bell_count.as_mut_ptr(), self.bell_count.len() as u32);
        let entry = opcode::Read::new(types::Fd(self.inbox.bell.as_raw_fd()), at, len).build();
        self.push(entry.user_data(BELL));
        self.bell_is_armed = true;
    }

    fn push_waiting(&mut self) {
        while let Some(&slot) = self.free.last()
            && let Some(request) = self.waiting.next()
        {
            self.free.pop();
            let len = request.memory.len().min(TRANSFER_BYTES_MAX) as u32;
            let request = self.slots[slot].insert(request);
            let (file, at) = (types::Fd(self.file.file.as_raw_fd()), request.offset);
            let entry = match &mut request.memory {
                Memory::Read(buf) => opcode::Read::new(file, buf.as_mut_ptr(), len).offset(at).build(),
                Memory::Write(data) => opcode::Write::new(file, data.as_ptr(), len).offset(at).build(),
            };
            self.push(entry.user_data(slot as u64));
        }
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the entry's memory is the heap block of a buffer in a slot, or of `bell_count`, or memory that a
        // `Filled` in a slot keeps and that no thread writes to. By invariant 1 it is neither moved nor freed, nor
        // accessed where the kernel writes, until the kernel has completed the entry. Its length is at most that of the
        // memory.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("invariant 2: the submission queue has space");
    }

    /// Submits the pushed entries, waits for a completion, and ends the completed requests.
    fn wait(&mut self) {
        enter(&self.ring, 1);
        let completed: Vec<cqueue::Entry> = self.ring.completion().collect();
        let mut ended = Vec::with_capacity(completed.len());
        for entry in completed {
            if entry.user_data() == BELL {
                self.bell_is_armed = false;
                continue;
            }
            let slot = entry.user_data() as usize;
            let request = self.slots[slot].take().expect("invariant 3: a slot completes once");
            self.free.push(slot);
            self.waiting.has_ended(&request);
            ended.push((request, entry.result()));
        }
        // Callbacks take locks; the device must not wait for them.
        self.push_waiting();
        if !self.ring.submission().is_empty() {
            enter(&self.ring, 0);
        }
        ended.into_iter().for_each(|(request, result)| self.end(request, result));
    }

    fn end(&self, request: Request, result: i32) {
        match outcome(result, request.memory.len()) {
            Outcome::Done => request.end(Ok(())),
            Outcome::Rest(bytes_done) => request.finish(&self.file, bytes_done),
            Outcome::Failed(errno) => {
                let error = match &request.memory {
                    Memory::Read(_) => self.file.read_error(request.offset, errno.into()),
                    Memory::Write(_) => self.file.write_error(request.offset, errno.into()),
                };
                request.end(Err(error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_pass_writes_that_wait_and_none_is_passed_twice() {
        let request = |offset, memory| Request { offset, memory, done: Box::new(|_, _| ()) };
        let write = |offset, bytes| request(offset, Memory::Write(AlignedBuf::zeroed(bytes).into()));
        let read = |offset| request(offset, Memory::Read(AlignedBuf::zeroed(4096)));
        let mut waiting = Waiting::default();
        let next = |waiting: &mut Waiting| waiting.next().map(|request| (request.offset, request)).unzip();
        waiting.arrived.extend([write(1, WRITING_BYTES_MAX - 1), read(2), write(3, 4096), write(4, 4096)]);
        waiting.arrived.extend([read(5), write(6, 4096), read(7)]);
        let mut gone = Vec::new();
        for expected in [Some(1), Some(2), Some(3), Some(5), Some(7), None, None] {
            let (offset, request) = next(&mut waiting);
            assert_eq!(offset, expected);
            gone.extend(request);
        }
        waiting.arrived.extend([read(8), write(9, 4096)]);
        gone.iter().for_each(|request| waiting.has_ended(request));
        for expected in [4, 6, 8, 9] {
            assert_eq!(next(&mut waiting).0, Some(expected), "what was passed goes first");
        }
        assert_eq!(waiting.writing_bytes, 3 * 4096);
    }
}
