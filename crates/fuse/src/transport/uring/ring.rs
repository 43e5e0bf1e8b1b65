//! One entry of one of the kernel's queues, on an io_uring of its own: where a thread gets a request, answers it in
//! place and, with the same call that submits the answer, waits for the next.
//!
//! The entry's memory is a header, and a payload of the longest request. The kernel learns where they are when the
//! entry is registered; from then on ownership changes with each command:
//!
//! ```text
//!            register            completion: a request
//! (new) ──────────────► kernel's ──────────────────────► ours
//!                          ▲                               │
//!                          └───────────────────────────────┘
//!                              commit: an answer
//! ```
//!
//! **Invariants.**
//! 1. While the memory is the kernel's ([`Entry::is_armed`]) no reference into it exists, and it is neither
//!    moved nor freed: an entry that is dropped then leaks it. It is the kernel's from the push of a command
//!    to the submission queue until that command's completion.
//! 2. One command is in flight at a time, and every completion is that command's: neither queue overflows.
//! 3. A ring is used only by the thread that made it.
//!
//! A completion with an error gives the memory back for good: the kernel has dismantled the entry, or never
//! had it.

#![allow(unsafe_code)] // The kernel is given addresses, and writes there behind our back.

use std::{fs::File, io, mem::ManuallyDrop, os::fd::AsRawFd, sync::Arc};

use io_uring::{IoUring, cqueue, opcode::UringCmd80, squeue, types::Fd};
use lacuna_device::AlignedBuf;
use rustix::io::Errno as Os;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    device::out_header,
    wire::{self, InHeader, UringCmdReq, UringReqHeader},
};
use crate::{service::Errno, transport::REQUEST_BYTES_MAX};

/// Where the payload begins: it is aligned as the header is.
const PAYLOAD_AT: usize = AlignedBuf::ALIGN;
const PAYLOAD_BYTES: usize = REQUEST_BYTES_MAX as usize;
/// Where `len` is in an entry of the submission queue (`struct io_uring_sqe`).
const LEN_AT: usize = 24;
/// Entries of the ring; invariant 2 needs one.
const ENTRIES: u32 = 2;

type Command = squeue::Entry128;
const _: () = assert!(size_of::<Command>() == 128);
const _: () = assert!(size_of::<UringReqHeader>() <= PAYLOAD_AT);

/// See the module documentation.
pub(super) struct Entry {
    /// Declared, and thus closed, before the memory goes.
    ring: IoUring<Command, cqueue::Entry>,
    device: Arc<File>,
    queue: u16,
    memory: ManuallyDrop<AlignedBuf>,
    is_armed: bool,
}

/// A request, and where its answer goes.
pub(super) struct Request<'a> {
    pub(super) header: InHeader,
    /// Begins with the structure of the operation.
    pub(super) argument: [u8; 128],
    /// The first `payload_bytes` bytes came with the request; all may be written to.
    pub(super) payload: &'a mut [u8],
    pub(super) payload_bytes: usize,
}

impl Entry {
    /// Registers an entry with a queue of the kernel's; none once the mount is gone.
    ///
    /// # Errors
    /// The error with which the kernel refuses a ring or an entry.
    pub(super) fn register(device: Arc<File>, queue: u16) -> io::Result<Option<Entry>> {
        // Completions are processed when this thread asks for them, instead of interrupting it.
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)?;
        let memory = ManuallyDrop::new(AlignedBuf::zeroed(PAYLOAD_AT + PAYLOAD_BYTES));
        let mut entry = Entry { ring, device, queue, memory, is_armed: false };
        let at = entry.memory.as_mut_ptr();
        // `struct iovec` twice. The kernel reads it while the command is submitted, below.
        let places = [at.addr(), size_of::<UringReqHeader>(), at.addr() + PAYLOAD_AT, PAYLOAD_BYTES];
        let places = places.map(usize::to_ne_bytes);
        at.expose_provenance();
        let command = entry.command(wire::URING_CMD_REGISTER, 0);
        let mut command = command.addr(Some(places.as_ptr().expose_provenance() as u64)).build();
        // SAFETY: a command is the kernel's structure of 128 bytes and nothing else (asserted above), any bytes of
        // which are valid; these 4 are the length, for which the builder has no method.
        unsafe { (&raw mut command).cast::<u8>().add(LEN_AT).cast::<u32>().write_unaligned(2) };
        entry.push(&command);
        entry.ring.submit()?;
        // A successful registration completes with the first request.
        match entry.completed() {
            Some(Err(error)) if is_gone(error) => Ok(None),
            Some(Err(error)) => Err(error.into()),
            _ => Ok(Some(entry)),
        }
    }

    /// Waits for a request; false once the mount is gone; the device knows why.
    pub(super) fn wait(&mut self) -> io::Result<bool> {
        loop {
            match self.completed() {
                Some(Ok(())) => return Ok(true),
                Some(Err(error)) if is_gone(error) => return Ok(false),
                Some(Err(error)) => return Err(error.into()),
                None => {
                    let Err(error) = self.ring.submit_and_wait(1) else { continue };
                    match Os::from_io_error(&error) {
                        Some(Os::INTR) => {}
                        // The kernel has no memory for it just now.
                        Some(Os::AGAIN | Os::BUSY | Os::NOMEM) => std::thread::yield_now(),
                        _ => return Err(error),
                    }
                }
            }
        }
    }

    /// The request that [`Entry::wait`] has waited for.
    pub(super) fn request(&mut self) -> Request<'_> {
        assert!(!self.is_armed, "invariant 1: the memory is the kernel's");
        let (head, payload) = self.memory.split_at_mut(PAYLOAD_AT);
        let (head, _) = UringReqHeader::read_from_prefix(head).expect("asserted above");
        let (header, _) = InHeader::read_from_prefix(&head.in_out).expect("it is 40 of 128 bytes");
        let payload_bytes = (head.ring_ent_in_out.payload_sz as usize).min(PAYLOAD_BYTES);
        Request { header, argument: head.op_in, payload, payload_bytes }
    }

    /// Answers the request, with this many bytes of the payload. The answer leaves with the next [`Entry::wait`].
    pub(super) fn commit(&mut self, answered: Result<usize, Errno>) {
        assert!(!self.is_armed, "invariant 1: the memory is the kernel's");
        let (head, _) = UringReqHeader::mut_from_prefix(&mut self.memory).expect("aligned and long enough");
        let (header, _) = InHeader::read_from_prefix(&head.in_out).expect("it is 40 of 128 bytes");
        let out = out_header(header.unique, answered);
        head.in_out[..size_of_val(&out)].copy_from_slice(out.as_bytes());
        head.ring_ent_in_out.payload_sz = answered.unwrap_or_default() as u32;
        let commit_id = head.ring_ent_in_out.commit_id;
        let command = self.command(wire::URING_CMD_COMMIT_AND_FETCH, commit_id).build();
        self.push(&command);
    }

    fn command(&self, number: u32, commit_id: u64) -> UringCmd80 {
        let request = UringCmdReq { flags: 0, commit_id, qid: self.queue, _padding: [0; 6] };
        let mut bytes = [0; 80];
        bytes[..size_of_val(&request)].copy_from_slice(request.as_bytes());
        UringCmd80::new(Fd(self.device.as_raw_fd()), number).cmd(bytes)
    }

    /// Hands the memory over.
    fn push(&mut self, command: &Command) {
        assert!(!self.is_armed, "invariant 2: one command at a time");
        self.is_armed = true;
        // SAFETY: the memory that the entry has been, or is now, registered with is the heap block of
        // `memory`, header and payload within its length. It was ours, is the kernel's from here on, and by
        // invariant 1 is left alone until it comes back. The list of the two places, which goes along with
        // a registration, outlives its submission in `register`, the only time that it is read.
        let pushed = unsafe { self.ring.submission().push(command) };
        pushed.expect("invariant 2: the submission queue has space");
    }

    /// Takes the memory back if the command has completed.
    fn completed(&mut self) -> Option<Result<(), Os>> {
        let completion = self.ring.completion().next()?;
        assert!(self.is_armed, "invariant 2: a command completes once");
        self.is_armed = false;
        match completion.result() {
            0.. => Some(Ok(())),
            error => Some(Err(Os::from_raw_os_error(-error))),
        }
    }
}

/// Whether a command failed because the mount was unmounted, or aborted through /sys/fs/fuse.
fn is_gone(error: Os) -> bool {
    matches!(error, Os::NOTCONN | Os::CONNABORTED)
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_armed {
            // SAFETY: dropped once, here, and not used after. By invariant 1 no other reference to it exists.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
