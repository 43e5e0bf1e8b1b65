//! `liblacuna_preload.so`: what `lacuna run` has the dynamic linker load into a program before all other libraries.
//!
//! Before `main` it mounts the store, as the program `lacuna` does, and serves the mount with threads of its own, to this
//! program and to all others. The calls of the C library that `calls.rs` defines come here first: what the program opens
//! with `O_DIRECT` on the mount it claims (`lacuna_fuse::Claim`), and then reads, writes and syncs it by a call of a function.
//! Everything else goes through the kernel, as it would without this library.
//!
//! layers: descriptors, real < host < calls
//!
//! **Invariants.**
//! 1. A number in the table (`descriptors.rs`) stands for the file that the kernel knows by it. So each call by which a
//!    descriptor ends, or another file takes its number, takes it out of the table first.
//! 2. Only the process that mounted does anything of this: a forked child has none of the threads, so for it all calls go
//!    through the kernel from its first instruction on; a `vfork`ed one shares the table, and leaves it as it is.
//! 3. Data passes through memory of our own: what the program changes while it is written would have the wrong
//!    checksum, and a page that must be fetched from this mount could not be while locks of the store are held.
//! 4. The program cannot close what the mount lives on: its descriptors are refused.
//! 5. The threads of this library get no signals, which are the program's.
//! 6. The program's end closes the store: `exit` and `_exit` wait for that. What else ends it is for the store what a power
//!    cut is, of which `lacuna run`'s guard tells the kernel; `exec` makes everything durable first, and what comes after
//!    it mounts again.
//!
//! **Bounds.** A descriptor of a file opened with `O_DIRECT` must be closed through the C library: by a bare system call, or
//! by io_uring, its number would stay in the table. A handler of signals must not read or write such a file. Where a
//! buffer is no memory of the program, it is ended by SIGSEGV, and does not get EFAULT.

#![allow(unsafe_code)] // Functions of the C library are defined and called here.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("`pread` and `pread64` take the same arguments on machines of 64 bits only");

mod calls;
mod descriptors;
mod host;
mod real;
