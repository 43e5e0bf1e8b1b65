//! A thread beside those that serve a mount: it works now and then, until its owner drops it.

use std::{
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

/// The thread. To drop this ends it, as soon as it waits, and waits for that.
pub(super) struct Worker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// A thread of that name that does `work`, which ends once it need not go on.
    pub(super) fn start(name: &str, work: impl FnOnce(&Pauses) + Send + 'static) -> io::Result<Worker> {
        let (stop, pauses) = pauses();
        let thread = thread::Builder::new().name(name.into()).spawn(move || work(&pauses))?;
        Ok(Worker { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The pauses of a thread between its works.
pub(super) struct Pauses(Receiver<()>);

/// Pauses, and what ends them all when it is dropped.
pub(super) fn pauses() -> (Sender<()>, Pauses) {
    let (stop, stopped) = channel();
    (stop, Pauses(stopped))
}

impl Pauses {
    /// Waits; returns whether the thread goes on. It returns early when the thread is to end.
    pub(super) fn wait(&self, pause: Duration) -> bool {
        matches!(self.0.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    };

    use super::*;

    #[test]
    fn a_thread_works_until_it_is_dropped() {
        let turns = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&turns);
        let worker = Worker::start("test", move |pauses| {
            while pauses.wait(Duration::from_millis(1)) {
                counted.fetch_add(1, SeqCst);
            }
            assert!(!pauses.wait(Duration::from_secs(3600)), "no pause after the end");
        });
        let worker = worker.expect("a thread");
        while turns.load(SeqCst) < 3 {
            thread::yield_now();
        }
        drop(worker);
        let ended = turns.load(SeqCst);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(turns.load(SeqCst), ended);
    }
}
