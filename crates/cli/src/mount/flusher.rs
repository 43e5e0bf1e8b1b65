//! Syncs the store every few seconds, for programs that do not.
//!
//! The kernel passes fsync on to a FUSE file system, but neither sync(2) nor periodic writeback: without this, a power
//! cut would lose all data written since the last fsync of any program, however long ago.

use std::{
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use lacuna_nvmfs::{Nvmfs, Result};

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
            let mut turns = Turns::default();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(INTERVAL) {
                turns.turn(fs.ftl().stats().batches, || fs.posix().sync());
            }
        })?;
        Ok(Flusher { stop: Some(stop), thread: Some(thread) })
    }
}

/// The batches that were synced, and the outcome. Batches are counted from the opening of the store on: data written
/// before this thread began is new, too.
#[derive(Default)]
struct Turns {
    batches_synced: u64,
    is_failing: bool,
}

impl Turns {
    /// Syncs if there is new data, or data whose last sync failed. A device may recover; until then the failure is
    /// logged once.
    fn turn(&mut self, batches: u64, sync: impl FnOnce() -> Result<()>) {
        if batches == self.batches_synced {
            return;
        }
        match sync() {
            Ok(()) => *self = Turns { batches_synced: batches, is_failing: false },
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    log::error!("what nobody synced is not synced: {error}");
                }
            }
        }
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

#[cfg(test)]
mod tests {
    use lacuna_nvmfs::Refusal;

    use super::*;

    #[test]
    fn what_is_new_is_synced_until_that_goes_well() {
        let mut turns = Turns::default();
        for (batches, outcome, expected) in [
            (0, Ok(()), 0),
            (5, Ok(()), 1),
            (5, Ok(()), 0),
            (6, Ok(()), 1),
            (6, Ok(()), 0),
            (7, Err(Refusal::NoSpace), 1),
            (7, Err(Refusal::NoSpace), 1),
            (7, Ok(()), 1),
            (7, Ok(()), 0),
        ] {
            let mut syncs = 0;
            turns.turn(batches, || {
                syncs += 1;
                outcome.map_err(Into::into)
            });
            assert_eq!(syncs, expected, "{batches} batches, {outcome:?}");
        }
    }
}
