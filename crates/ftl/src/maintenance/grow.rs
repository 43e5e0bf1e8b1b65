//! Growing a store, while it is in use, to the size of its enlarged device.
//!
//! Invariants:
//! 1. *Nothing in the new segments is taken for records.* An older copy of the same store may have been there, with
//!    headers that would pass for this store's. So the first blocks of all new segments are zeros, durably, before the
//!    superblock names the new size; a power cut before that leaves the store as it was, and one after it leaves the
//!    store grown.
//! 2. *A segment that is known has counters.* They exist before the volume's size changes, which happens with the locks
//!    of log and map held. The maintenance lock is held all the time: collection, checkpoints and the choice of victims
//!    see one size from beginning to end.
//! 3. *The counters of the checkpoint in force are fewer* than the segments, until the next one: those behind them hold
//!    nothing (`checkpoint::load`).
//! 4. *The reserve holds.* A checkpoint becomes longer by the counters of the new segments, but by far fewer segments
//!    than there are new ones; otherwise the growth is refused.

use lacuna_device::AlignedBuf;

use crate::{
    Error, Result,
    addr::SegNo,
    format::{RECORD_HEADER_BYTES, RECORDS_START, Superblock},
    maintenance::Maintenance,
    media::superblock,
    mutant::{Rule, is_broken},
    space::{GC_SEGMENTS, Space},
};

impl Maintenance {
    /// See [`crate::Ftl::grow`].
    pub(crate) fn grow(&self, capacity_bytes: Option<u64>) -> Result<u64> {
        self.volume.must_write()?;
        let _turn = self.journal.turn();
        let geometry = self
            .volume
            .device()
            .grow(capacity_bytes.unwrap_or(self.volume.device().geometry().capacity_bytes))?;
        if let Some(wanted) = capacity_bytes.filter(|wanted| *wanted > geometry.capacity_bytes) {
            let reason = format!("it has {} bytes, and cannot be made {wanted}", geometry.capacity_bytes);
            return Err(Error::Geometry { device: self.volume.name(), reason });
        }
        let now = self.checkpointer.superblock();
        let (capacity_bytes, sequence) = (geometry.capacity_bytes, now.sequence + 1);
        let next = Superblock { capacity_bytes, sequence, ..now.clone() };
        let before = self.volume.space();
        let after = superblock::space(&next);
        if after.segments <= before.segments {
            return Ok(now.capacity_bytes);
        }
        self.check_growth(before, after)?;
        self.wipe_starts(before, after)?;
        self.checkpointer.put_superblock(next)?;

        let mut log = self.journal.lock();
        let mut map = self.map.write();
        log.grow(after);
        self.map.grow(&mut map, after.segments);
        self.volume.grow(after.segments);
        Ok(geometry.capacity_bytes)
    }

    fn check_growth(&self, before: Space, after: Space) -> Result<()> {
        let refuse = |reason: String| Err(Error::Geometry { device: self.volume.name(), reason });
        if after.segments > u32::MAX as usize || !after.root_fits() {
            return refuse(format!("too many segments of {} bytes", after.segment_bytes));
        }
        let weight = self.journal.lock().peak_weight();
        let more = after.checkpoint_segments(weight).saturating_sub(before.checkpoint_segments(weight));
        let needed = 2 * more + GC_SEGMENTS;
        if after.segments - before.segments < needed {
            let bytes = (before.segments + needed) as u64 * after.segment_bytes as u64;
            return refuse(format!("grown by too little; at least {bytes} bytes in all"));
        }
        Ok(())
    }

    /// Makes the first blocks of the new segments zeros, where they are not.
    fn wipe_starts(&self, before: Space, after: Space) -> Result<()> {
        let len = (RECORDS_START + RECORD_HEADER_BYTES).next_multiple_of(after.block_bytes);
        let (mut start, zeros) = (AlignedBuf::zeroed(len), AlignedBuf::zeroed(len));
        for segment in (before.segments as u32..after.segments as u32).map(SegNo) {
            let at = self.volume.offset(segment, 0);
            // A block that cannot be read may still be written, and can be read afterwards.
            let is_clean = self.volume.device().read_at(at, &mut start).is_ok() && start[..] == zeros[..];
            if !is_clean && !is_broken(Rule::GrowthWipes) {
                self.volume.device().write_at(at, &zeros)?;
            }
        }
        let synced = self.volume.device().sync();
        let mut log = self.journal.lock();
        synced.map_err(|error| self.journal.poison(&mut log, error))
    }
}
