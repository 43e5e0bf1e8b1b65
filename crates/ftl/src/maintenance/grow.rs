//! Growing a store, while it is in use, to the size of its enlarged device, or less.
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
//! 5. *The copies of superblock and keys behind the old end are gone* before the new size counts: no later owner of these bytes,
//!    and no smaller device, can make it a superblock again. Until then a power cut leaves a store that lacks this copy,
//!    which opening restores (`media::superblock::settle`).
//! 6. *A host without space for the new end is met before anything changes*: a superblock that names an end which cannot
//!    be written would keep the store from being opened for writing. Only the file is longer then, by a hole.

use lacuna_device::AlignedBuf;

use crate::{
    Error, Result,
    addr::SegNo,
    format::{RECORD_HEADER_BYTES, RECORDS_START, Superblock},
    maintenance::Maintenance,
    media::{keys, superblock},
    mutant::{Rule, is_broken},
    space::{GC_SEGMENTS, Space},
};

impl Maintenance {
    /// See [`crate::Ftl::grow`].
    pub(crate) fn grow(&self, capacity_bytes: Option<u64>) -> Result<u64> {
        self.volume.must_write()?;
        let _turn = self.journal.turn();
        let device = self.volume.device();
        let now = self.checkpointer.superblock();
        let wanted = match capacity_bytes {
            Some(bytes) => bytes,
            None => self.device_bytes(&now)?,
        };
        if wanted == now.capacity_bytes {
            return Ok(wanted);
        }
        // Before the device is changed.
        let (before, after) = self.check_growth(&now, wanted)?;
        let found = device.grow(wanted)?.capacity_bytes;
        if found < wanted {
            return self.refuse(format!("it has {found} bytes, and cannot be made {wanted}"));
        }
        let next = Superblock { capacity_bytes: wanted, sequence: now.sequence + 1, ..now.clone() };
        superblock::reserve_end_copy(device, &next)?; // invariant 6
        self.wipe(&now, before, after)?;
        self.checkpointer.put_superblock(next.clone())?;
        {
            let mut log = self.journal.lock();
            let mut map = self.map.write();
            log.grow(after);
            self.map.grow(&mut map, after.segments);
            self.volume.grow(after.segments);
        }
        match keys::settle(device, &next) {
            Err(Error::Device(error)) => Err(self.journal.poison(&mut self.journal.lock(), error)),
            settled => settled.map(|()| wanted),
        }
    }

    /// See [`crate::Ftl::capacity_max`].
    pub(crate) fn capacity_max(&self) -> Result<u64> {
        // Not in turn: whoever only asks must not wait for a host without space.
        let now = self.checkpointer.superblock();
        let found = self.device_bytes(&now)?;
        let may_grow = found > now.capacity_bytes && self.check_growth(&now, found).is_ok();
        Ok(if may_grow { found } else { now.capacity_bytes })
    }

    /// Whole blocks of the device, which may have become larger since it was opened.
    fn device_bytes(&self, now: &Superblock) -> Result<u64> {
        let (found, block) = (self.volume.device().grow(0)?.capacity_bytes, u64::from(now.block_bytes));
        // Not even a block more than it was, or less: then it was cut short under the store.
        Ok(if found.saturating_sub(now.capacity_bytes) < block {
            now.capacity_bytes
        } else {
            found / block * block
        })
    }

    fn refuse<T>(&self, reason: String) -> Result<T> {
        Err(Error::Geometry { device: self.volume.name(), reason })
    }

    /// The sizes of the store now, and with `wanted` bytes.
    fn check_growth(&self, now: &Superblock, wanted: u64) -> Result<(Space, Space)> {
        if wanted < now.capacity_bytes {
            let capacity = now.capacity_bytes;
            return self.refuse(format!("the store has {capacity} bytes, and does not become smaller"));
        }
        if !wanted.is_multiple_of(now.block_bytes.into()) {
            return self.refuse(format!("{wanted} bytes are not a multiple of {}", now.block_bytes));
        }
        let before = self.volume.space();
        let grown = Superblock { capacity_bytes: wanted, ..now.clone() };
        let after = Space { segments: grown.segments() as usize, ..before };
        let most = before.segments_max() as u64;
        if grown.segments() > most {
            let (each, bytes) = (after.segment_bytes, most * after.segment_bytes as u64);
            return self.refuse(format!(
                "too many segments of {each} bytes; it can have {bytes} bytes: for more, copy its files to a new store"
            ));
        }
        let weight = self.journal.lock().peak_weight();
        let more = after.checkpoint_segments(weight).saturating_sub(before.checkpoint_segments(weight));
        let needed = 2 * more + GC_SEGMENTS;
        let missing = needed.saturating_sub(after.segments - before.segments);
        if missing > 0 {
            let bytes = (before.segments + needed + 1) as u64 * after.segment_bytes as u64;
            return self.refuse(format!("grown by too little; at least {bytes} bytes in all"));
        }
        Ok((before, after))
    }

    /// Makes the first blocks of the new segments zeros, where they are not, and wipes the copy of the superblock that
    /// lies among them: last, so that a device that fails in its new part leaves the store as it was.
    fn wipe(&self, now: &Superblock, before: Space, after: Space) -> Result<()> {
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
        if !is_broken(Rule::OldEndWiped) {
            superblock::wipe_end_copy(self.volume.device(), now)?;
            keys::wipe_end(self.volume.device(), now)?;
        }
        let synced = self.volume.device().sync();
        let mut log = self.journal.lock();
        synced.map_err(|error| self.journal.poison(&mut log, error))
    }
}
