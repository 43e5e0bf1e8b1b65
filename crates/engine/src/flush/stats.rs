//! Counters of flushing.

/// Counters of flushing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushStats {
    /// Pages written: the three counts below, and pages written because all were to be, as by a checkpoint.
    pub pages: u64,
    /// Pages among them that blocked eviction.
    pub for_eviction: u64,
    /// Pages among them that did not, but whose oldest changes kept too much log.
    pub for_log: u64,
    /// Pages among them written for neither reason, but because too much of the pool was dirty.
    pub for_dirty: u64,
    /// Pages of all of them that had been written since they came into the pool, and changed again.
    pub again: u64,
    /// Bytes of their images.
    pub image_bytes: u64,
    /// Batches they were written in.
    pub batches: u64,
    /// Holes punched because an image became shorter.
    pub punches: u64,
    /// Holes that the VFS refused. After the first refusal the store punches no more until it is reopened; this costs
    /// only space.
    pub refused_punches: u64,
    /// Bytes written in their places, images and what fills atomic writes up to a power of two.
    pub written_bytes: u64,
    /// Atomic writes that the VFS refused. After the first refusal the store writes pages twice until it is reopened.
    pub refused_atomic_writes: u64,
    /// Bytes written to the doublewrite file.
    pub doublewrite_bytes: u64,
    /// Times that pages which are due were looked for.
    pub rounds: u64,
    /// Times a writer waited for the log or the pool.
    pub throttled: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

/// Why pages are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Eviction found them dirty.
    Eviction,
    /// Their oldest changes keep too much log.
    Log,
    /// Too much of the pool is dirty.
    Dirty,
    /// A caller asked for them to be written.
    Asked,
    /// They are written anew in the form of pages that rest: those of adaptive tables that do, and all of a table that is
    /// optimized.
    Rest,
    /// They are written anew in the form of others, as they are read often.
    Wake,
}

impl FlushStats {
    /// Counts a batch of `pages`, `again` of them not written for the first time, and the bytes of their images and of
    /// what was written in place for these.
    pub(super) fn count_batch(&mut self, cause: Cause, pages: u64, again: u64, bytes: (u64, u64)) {
        self.pages += pages;
        match cause {
            Cause::Eviction => self.for_eviction += pages,
            Cause::Log => self.for_log += pages,
            Cause::Dirty => self.for_dirty += pages,
            Cause::Asked | Cause::Rest | Cause::Wake => {}
        }
        self.again += again;
        self.image_bytes += bytes.0;
        self.written_bytes += bytes.1;
        self.batches += 1;
    }
}
