//! Files that a program in the serving process reads and writes past the kernel.
//!
//! A request through FUSE wakes a thread that serves, and its answer wakes the program again. A program that has the
//! store in its own process needs neither. It opens a file as any program does and then claims that opening.
//!
//! **Invariants.**
//! 1. A claim is good only while everybody who has the file open is a claimant, and nobody has it mapped: then the kernel
//!    keeps none of its pages, and there is nobody who could see an old one. Whoever else opens it waits until what is
//!    under way past the kernel is done; from then on each call goes through the kernel again, until that opening is
//!    closed (invariant 5 of `open_files.rs`).
//! 2. What the kernel knows of a file stays right. Its length: a write that would make the file longer goes through the
//!    kernel. Its times and the space that it takes: the kernel asks for them each time
//!    ([`ServiceOptions::claims`](crate::ServiceOptions::claims)).
//!
//! **Locks.** The gate of the file is held during each call, before any other. The caller's memory must not be a mapped
//! file of this mount, whose pages would be asked for meanwhile.

use std::sync::Arc;

use lacuna_nvmfs::{Ino, posix::Caller};
use rustix::fs::OFlags;

use crate::{
    Service, WriteRequest,
    mutant::{Rule, is_broken},
    open_files::Gate,
    service::Errno,
};

/// An opening of a regular file by a program in this process. Dropped before the file is closed.
///
/// Each call returns `None` where it must be made through the kernel (invariants 1 and 2).
pub struct Claim {
    service: Arc<Service>,
    number: u64,
    ino: Ino,
    open_flags: i32,
    caller: Caller,
    gate: Arc<Gate>,
}

impl Service {
    /// Claims an opening, which was made with these flags by this caller. `None` if there is none that is direct and was
    /// not claimed yet.
    pub fn claim(self: &Arc<Self>, number: u64, open_flags: i32, caller: Caller) -> Option<Claim> {
        let ino = Self::ino(number).ok().filter(|_| self.options().claims)?;
        let gate = self.open_files.claim(ino)?;
        Some(Claim { service: Arc::clone(self), number, ino, open_flags, caller, gate })
    }

    /// Must be called before a program in this process maps a file.
    pub fn map(&self, number: u64) {
        if let Ok(ino) = Self::ino(number) {
            self.open_files.map(ino);
        }
    }
}

impl Claim {
    /// As [`Service::read`].
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Option<Result<usize, Errno>> {
        let gate = self.gate.read();
        (*gate && self.access() != OFlags::WRONLY).then(|| self.service.read(self.number, offset, buf))
    }

    /// As [`Service::write`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Option<Result<usize, Errno>> {
        let gate = self.gate.read();
        if !*gate || self.access() == OFlags::RDONLY || !self.keeps_length(offset, data.len()) {
            return None;
        }
        let request = WriteRequest {
            offset,
            data,
            open_flags: self.open_flags,
            kill_privileges: (self.caller.uid != 0).then_some(self.caller),
            is_direct: true,
            from_cache: false,
            caller: self.caller,
        };
        Some(self.service.write(self.number, request))
    }

    /// As [`Service::fsync`].
    pub fn fsync(&self, data_only: bool) -> Option<Result<(), Errno>> {
        let gate = self.gate.read();
        (*gate).then(|| self.service.fsync(self.number, data_only))
    }

    fn access(&self) -> OFlags {
        OFlags::from_bits_retain(self.open_flags as u32) & OFlags::ACCMODE
    }

    /// Whether the file is at least as long before a write.
    fn keeps_length(&self, offset: u64, len: usize) -> bool {
        let end = offset.checked_add(len as u64);
        let size = || self.service.getattr(self.number).map_or(0, |attr| attr.size);
        end.is_some_and(|end| end <= size()) || is_broken(Rule::ClaimsKeepLength)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.service.open_files.disclaim(self.ino, &self.gate);
    }
}
