//! Syncs the store every few seconds, for programs that do not.
//!
//! The kernel passes fsync on to a FUSE file system, but neither sync(2) nor periodic writeback: without this, a power
//! cut would lose all data written since the last fsync of any program, however long ago.

use std::{io, sync::Arc, time::Duration};

use lacuna_nvmfs::{Nvmfs, Result};

use super::worker::Worker;

/// As ext4's default.
const INTERVAL: Duration = Duration::from_secs(5);

/// Syncs now and then, until the thread is dropped.
pub(super) fn start(fs: Arc<Nvmfs>) -> io::Result<Worker> {
    Worker::start("flusher", move |pauses| {
        let mut turns = Turns::default();
        while pauses.wait(INTERVAL) {
            turns.turn(fs.ftl().stats().batches, || fs.posix().sync());
        }
    })
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
