//! Whether the caller has closed standard output (`lacuna info STORE >&-`).
//!
//! Rust opens `/dev/null` in the place of a closed one before `main`, and what is written there counts as written. So that
//! is looked at before Rust does.

#![allow(unsafe_code)] // The C library calls a function before `main`.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use rustix::{io::Errno, stdio::stdout};

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: this section holds pointers to functions, which the C library calls one by one before `main`. This one needs
// nothing that is made later: it is one system call, and a store to memory that is there from the start.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    IS_CLOSED.store(rustix::io::fcntl_getfd(stdout()).is_err(), Relaxed);
}

/// # Errors
/// That of a write, where it is closed.
pub(crate) fn must_be_open() -> io::Result<()> {
    if IS_CLOSED.load(Relaxed) { Err(Errno::BADF.into()) } else { Ok(()) }
}
