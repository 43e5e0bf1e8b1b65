//! Makes what no program synced durable every few seconds.
//!
//! The kernel passes fsync on to a FUSE file system, but neither sync(2) nor the passing of time: without
//! this, a power cut would take all that was written since anybody's last fsync, however long ago.

use std::{
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use lacuna_nvmfs::Nvmfs;

/// As ext4's default.
const INTERVAL: Duration = Duration::from_secs(5);

/// A thread that syncs now and then, until this is dropped.
pub(super) struct Flusher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    pub(super) fn start(fs: Arc<Nvmfs>) -> std::io::Result<Flusher> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new().name("flusher".into()).spawn(move || {
            let mut batches_synced = fs.ftl().stats().batches;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(INTERVAL) {
                let batches = fs.ftl().stats().batches;
                if batches == batches_synced {
                    continue;
                }
                match fs.posix().sync() {
                    Ok(()) => batches_synced = batches,
                    // Nothing is written any more; whoever tries hears of it.
                    Err(error) => return log::error!("{error}"),
                }
            }
        })?;
        Ok(Flusher { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
