use std::{ops::Range, sync::Arc};

use lacuna_device::BlockDevice;

use crate::{CheckDepth, FormatOptions, Lba, Op, Options, Report, Result, Seq, Stats, Stream, Work};

/// Largest batch of any store in bytes, data and bookkeeping; small stores take less, see
/// [`Ftl::batch_bytes_max`].
pub const BATCH_BYTES_MAX: u64 = 16 << 20;

/// An open store. Shared by reference or `Arc` among threads.
pub struct Ftl {
    _device: Arc<dyn BlockDevice>,
}

impl Ftl {
    /// Makes an empty store on `device`.
    pub fn format(_device: Arc<dyn BlockDevice>, _options: &FormatOptions) -> Result<()> {
        unimplemented!()
    }

    /// Opens the store on `device` and recovers it.
    pub fn open(_device: Arc<dyn BlockDevice>, _options: Options) -> Result<Ftl> {
        unimplemented!()
    }

    /// Applies `ops` in order, whole or not at all across a crash.
    pub fn write_batch(&self, _ops: &[Op<'_>], _stream: Stream) -> Result<Seq> {
        unimplemented!()
    }

    /// Every batch accepted before this call survives a power cut after it.
    pub fn flush(&self) -> Result<()> {
        unimplemented!()
    }

    /// Fills `buf`, whole sectors, from `lba`.
    pub fn read(&self, _lba: Lba, _buf: &mut [u8]) -> Result<()> {
        unimplemented!()
    }

    /// The first run of mapped sectors in `range`, cut to it.
    pub fn mapped(&self, _range: Range<Lba>) -> Option<Range<Lba>> {
        unimplemented!()
    }

    /// Whether the sector holds stored bytes.
    pub fn is_mapped(&self, _lba: Lba) -> bool {
        unimplemented!()
    }

    /// Stored bytes in `range`.
    pub fn allocated(&self, _range: Range<Lba>) -> u64 {
        unimplemented!()
    }

    /// Largest batch that this store takes, in bytes.
    pub fn batch_bytes_max(&self) -> u64 {
        unimplemented!()
    }

    /// Writes a checkpoint now.
    pub fn checkpoint(&self) -> Result<()> {
        unimplemented!()
    }

    /// Does one piece of background work; false when there was none to do.
    pub fn step(&self, _work: Work) -> Result<bool> {
        unimplemented!()
    }

    /// Proves the invariants.
    pub fn check(&self, _depth: CheckDepth) -> Result<Report> {
        unimplemented!()
    }

    /// State and traffic.
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }

    /// Flushes and writes a checkpoint, so that the next open replays nothing.
    pub fn close(&self) -> Result<()> {
        unimplemented!()
    }
}
