//! The threads of an open store.

use std::{sync::Arc, time::Duration};

use crate::{pool::read_ahead, sync::thread, txn::TxnEngine};

/// How often a store that is closed looks for threads that still write.
const WRITER_CHECK: Duration = Duration::from_millis(1);

/// A thread's name, and what it does.
type Part = (&'static str, fn(&TxnEngine));

/// Starts them; they run until [`stop`]. When one cannot be started the others have ended, and the store is closed.
pub(super) fn start(engine: &Arc<TxnEngine>) -> std::io::Result<Vec<thread::JoinHandle<()>>> {
    let ahead: Part = ("lacuna-ahead", |engine| engine.read_ahead().run());
    let write: Part = ("lacuna-write", |engine| engine.flusher().consume());
    let one_each: [Part; 2] =
        [("lacuna-flush", |engine| engine.flusher().produce()), ("lacuna-purge", TxnEngine::purge_loop)];
    let parts = one_each.into_iter().chain([ahead; read_ahead::THREADS]);
    let parts = parts.chain(std::iter::repeat_n(write, engine.flush_threads()));
    engine.flusher().start();
    let mut threads = Vec::new();
    for (name, body) in parts {
        match thread::Builder::new().name(name.into()).spawn({
            let engine = engine.clone();
            move || body(&engine)
        }) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                stop(engine, threads.into_iter());
                close(engine);
                return Err(error);
            }
        }
    }
    Ok(threads)
}

/// Returns once nothing is written to the VFS any more, nor will be. The caller writes nothing.
pub(super) fn close(engine: &TxnEngine) {
    engine.poison().close();
    while engine.poison().is_writing() {
        thread::yield_now(); // the tests' scheduler has no time
        thread::sleep(WRITER_CHECK);
    }
}

/// Asks the threads to end once they have finished their current work, and waits for that.
pub(super) fn stop(engine: &TxnEngine, threads: impl Iterator<Item = thread::JoinHandle<()>>) {
    engine.flusher().stop();
    engine.wake_purge();
    engine.read_ahead().stop();
    for thread in threads {
        // A panic in it is caught, and stops the store.
        thread.join().expect("a store's thread does not panic");
    }
}
