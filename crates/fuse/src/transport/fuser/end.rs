//! What ends a mount when threads that serve it do.

use std::{
    cell::OnceCell,
    fs::File,
    io::Write,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use parking_lot::Mutex;

use super::super::kernel_mount::{A_MOMENT, has_ended};

/// Ends a mount when a thread that serves it panics, or the last one could not read a request.
pub(super) struct End {
    pub(super) device: OwnedFd,
    /// That serve, or have not served yet.
    pub(super) threads: AtomicUsize,
    /// What ends the connection, where fuser unmounts.
    pub(super) aborts: Option<File>,
    pub(super) unmount: Mutex<Box<dyn FnMut() + Send>>,
    pub(super) has_come: AtomicBool,
}

/// In each thread that serves a mount, from its first request on.
struct Thread(Arc<OnceLock<End>>);

impl Drop for Thread {
    fn drop(&mut self) {
        let Some(end) = self.0.get() else { return };
        let are_left = end.threads.fetch_sub(1, SeqCst) > 1;
        if end.has_come.load(SeqCst) || has_ended(end.device.as_fd(), A_MOMENT).unwrap_or(false) {
            return;
        }
        log::error!("a thread that serves requests could not read one, and has ended");
        if !are_left && let Some(mut aborts) = end.aborts.as_ref() {
            let _ = aborts.write_all(b"1");
        }
    }
}

thread_local! {
    static THREAD: OnceCell<Thread> = const { OnceCell::new() };
}

/// This thread serves the mount from now on.
pub(super) fn note_thread(end: &Arc<OnceLock<End>>) {
    THREAD.with(|thread| _ = thread.get_or_init(|| Thread(Arc::clone(end))));
}
