//! Space of the file system that holds a store file: made ready before use, given back when it is not needed.

use lacuna_device::AlignedBuf;

use crate::{
    Result,
    log::{Claim, Log},
    maintenance::Maintenance,
};

/// Bytes of untouched segments that are made ready together and kept ready; at least one segment.
const READY_BYTES: usize = 32 << 20;
/// Bytes written at a time while a segment is made ready.
const ZEROS_BYTES: usize = 1 << 20;

impl Maintenance {
    /// Untouched segments that should be made ready now.
    pub(crate) fn to_make_ready(&self, log: &Log) -> usize {
        let at_once =
            (READY_BYTES / self.volume.space().segment_bytes).min(log.target_segments() / 16).max(1);
        if !self.volume.is_sparse() || self.host.gave_up(log.touched()) || 2 * log.free().touched() > at_once
        {
            return 0;
        }
        let spare = log.free().len().saturating_sub(log.left_by(Claim::Fresh) + self.ahead(log));
        let wished = log.target_segments().saturating_sub(log.touched());
        at_once.min(spare).min(wished).min(log.free().untouched())
    }

    /// Free segments that should be given back to the host now.
    pub(crate) fn to_release(&self, log: &Log) -> usize {
        let wished = log.target_segments();
        match log.touched() > wished + wished / 8 + log.swing() {
            true => self.to_release_all(log),
            false => 0,
        }
    }

    /// The same, if the store is not used soon.
    fn to_release_all(&self, log: &Log) -> usize {
        let beyond = log.touched().saturating_sub(log.target_segments());
        let have_space = log.free().touched();
        if self.volume.is_sparse() { beyond.min(have_space) } else { 0 }
    }

    /// Makes untouched segments ready. The maintenance lock is held.
    ///
    /// # Errors
    /// When the sync fails, which poisons the store. Segments for which the host has no space stay untouched.
    pub(crate) fn make_ready(&self) -> Result<()> {
        let lent = {
            let mut log = self.journal.lock();
            let count = self.to_make_ready(&log);
            log.free_mut().lend_untouched(count)
        };
        let zeros = AlignedBuf::zeroed(ZEROS_BYTES.min(self.volume.space().segment_bytes));
        let offsets = (0..self.volume.space().segment_bytes).step_by(zeros.len());
        let all = lent
            .iter()
            .flat_map(|segment| offsets.clone().map(|offset| self.volume.offset(*segment, offset)));
        let written = all.into_iter().try_for_each(|at| self.volume.device().write_if_space(at, &zeros));
        let synced = self.volume.device().sync();
        let mut log = self.journal.lock();
        match &written {
            Ok(()) => {
                log.free_mut().are_ready();
                log.counters_mut().prepared_bytes += (lent.len() * self.volume.space().segment_bytes) as u64;
            }
            Err(_) => {
                log.free_mut().are_untouched();
                self.host.give_up(log.touched());
            }
        }
        synced.map_err(|error| self.journal.poison(&mut log, error))
    }

    /// Gives back all that is beyond the wish, because the store is closed.
    pub(crate) fn release_all(&self) {
        let _turn = self.journal.turn();
        self.release(Maintenance::to_release_all);
    }

    /// Gives as many segments back to the host as `count` says. The maintenance lock is held.
    pub(crate) fn release(&self, count: impl Fn(&Maintenance, &Log) -> usize) {
        let lent = {
            let mut log = self.journal.lock();
            let count = count(self, &log);
            log.free_mut().lend_touched(count)
        };
        for run in lent.chunk_by(|left, right| left.0 + 1 == right.0) {
            // Only advice to the device; a refusal is not retried.
            let bytes = (run.len() * self.volume.space().segment_bytes) as u64;
            let _ = self.volume.device().discard(self.volume.offset(run[0], 0), bytes);
        }
        self.journal.lock().free_mut().are_untouched();
    }
}
