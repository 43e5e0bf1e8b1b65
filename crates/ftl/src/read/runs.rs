//! Chunks that are read together.

use std::cell::Cell;

use lacuna_device::AlignedBuf;

use crate::{Lba, addr::SegNo, format::Extent};

/// Chunks that lie in one run of at most this many bytes are read at once: with the rest of two blocks of 4 KiB, no more
/// than [`AlignedBuf::reused`] has memory for.
const RUN_BYTES: usize = (256 - 4) << 10;

/// Runs of about this many bytes are read at the same time.
pub(crate) const READ_BYTES: usize = 4 << 20;

/// Reads of at most this many bytes use memory that each thread keeps: allocating and clearing aligned memory costs
/// more than everything else that a short read does apart from the device. No caller sees what earlier reads left
/// there: [`Bytes`] expose only what the device has filled.
pub(super) const KEPT_BYTES: usize = 64 << 10;

thread_local! {
    pub(super) static KEPT: Cell<Option<AlignedBuf>> = const { Cell::new(None) };
}

/// Extents whose chunks lie in one run of a segment.
pub(crate) struct Run<'a> {
    pub(crate) extents: &'a [(Lba, Extent)],
    pub(super) segment: SegNo,
    pub(crate) offset: usize,
    pub(super) len: usize,
}

/// Takes the extents that are read at a time from the front of `rest`. In a run at most `gap` bytes lie between chunks.
pub(crate) fn runs<'a>(rest: &mut &'a [(Lba, Extent)], gap: usize) -> Vec<Run<'a>> {
    let (mut runs, mut bytes) = (Vec::new(), 0);
    while !rest.is_empty() && bytes < READ_BYTES {
        let (extents, later) = rest.split_at(run_length(rest, gap));
        let first = extents[0].1.phys;
        let last = &extents[extents.len() - 1].1;
        let len = last.phys.offset() + usize::from(last.stored) - first.offset();
        runs.push(Run { extents, segment: first.segment, offset: first.offset(), len });
        bytes += len;
        *rest = later;
    }
    runs
}

/// How many of `extents`, from the first, lie in one run.
fn run_length(extents: &[(Lba, Extent)], gap: usize) -> usize {
    let first = extents[0].1.phys;
    let mut end = first.offset() + usize::from(extents[0].1.stored);
    let follows = extents[1..].iter().take_while(|(_, extent)| {
        let near = extent.phys.segment == first.segment
            && ((end..=end + gap).contains(&extent.phys.offset())
                || extent.phys.offset() + usize::from(extent.stored) == end)
            && extent.phys.offset() + usize::from(extent.stored) - first.offset() <= RUN_BYTES;
        end = extent.phys.offset() + usize::from(extent.stored);
        near && extent.phys.offset() >= first.offset()
    });
    1 + follows.count()
}

/// Bytes read; derefs to exactly those asked for.
pub(crate) enum Bytes {
    Memory(Vec<u8>),
    Device { data: AlignedBuf, from: usize, len: usize },
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Bytes::Device { data, .. } = self
            && data.len() == KEPT_BYTES
        {
            let data = std::mem::replace(data, AlignedBuf::zeroed(0));
            let _ = KEPT.try_with(|kept| kept.set(Some(data))); // or the thread ends
        }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Memory(bytes) => bytes,
            Bytes::Device { data, from, len } => &data[*from..*from + *len],
        }
    }
}
