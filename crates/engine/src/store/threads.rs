//! The threads of an open store.

use std::sync::Arc;

use crate::{pool::read_ahead, sync::thread, txn::TxnEngine};

/// Starts them; they run until [`stop`].
pub(super) fn start(engine: &Arc<TxnEngine>) -> std::io::Result<Vec<thread::JoinHandle<()>>> {
    let mut threads = Vec::new();
    engine.flusher().start();
    let spawn = |name: &str, body: fn(&TxnEngine)| {
        let engine = engine.clone();
        thread::Builder::new().name(name.into()).spawn(move || body(&engine))
    };
    threads.push(spawn("lacuna-flush", |engine| engine.flusher().produce())?);
    threads.push(spawn("lacuna-purge", TxnEngine::purge_loop)?);
    for _ in 0..read_ahead::THREADS {
        threads.push(spawn("lacuna-ahead", |engine| engine.read_ahead().run())?);
    }
    for _ in 0..engine.flush_threads() {
        threads.push(spawn("lacuna-write", |engine| engine.flusher().consume())?);
    }
    Ok(threads)
}

/// Asks the threads to end once they have finished their current work.
pub(super) fn stop(engine: &TxnEngine) {
    engine.flusher().stop();
    engine.wake_purge();
    engine.read_ahead().stop();
}
