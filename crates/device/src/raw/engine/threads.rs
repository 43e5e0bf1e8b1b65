//! A pool of threads that make ordinary calls: for systems without io_uring.

use std::{collections::VecDeque, sync::Arc, thread::JoinHandle};

use parking_lot::{Condvar, Mutex};

use crate::{
    positional::PositionalFile,
    prompt::run_promptly,
    raw::request::{AbortOnPanic, Request},
};

/// Requests that are carried out at a time.
const THREADS: usize = 8;

/// See the module documentation. Dropping it waits for all requests.
pub(crate) struct Threads {
    inbox: Arc<Inbox>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    stopped: bool,
}

impl Threads {
    pub(super) fn start(file: &Arc<PositionalFile>) -> Threads {
        let inbox = Arc::new(Inbox::default());
        let spawn = |number| {
            let (inbox, file) = (Arc::clone(&inbox), Arc::clone(file));
            std::thread::Builder::new()
                .name(format!("device-io-{number}"))
                .spawn(move || inbox.serve(&file))
                .expect("the system has no thread left")
        };
        Threads { threads: (0..THREADS).map(spawn).collect(), inbox }
    }

    pub(super) fn submit(&self, requests: Vec<Request>) {
        let count = requests.len();
        self.inbox.state.lock().requests.extend(requests);
        for _ in 0..count.min(THREADS) {
            self.inbox.changed.notify_one();
        }
    }
}

impl Inbox {
    fn serve(&self, file: &PositionalFile) {
        let _abort = AbortOnPanic;
        run_promptly();
        while let Some(request) = self.next() {
            request.finish(file, 0);
        }
    }

    /// The next request; none when there will be no more.
    fn next(&self) -> Option<Request> {
        let mut state = self.state.lock();
        loop {
            if let Some(request) = state.requests.pop_front() {
                return Some(request);
            }
            if state.stopped {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.inbox.state.lock().stopped = true;
        self.inbox.changed.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("a panic there aborts");
        }
    }
}
