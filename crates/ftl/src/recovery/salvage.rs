//! The damage that [`crate::Ftl::salvage`] passes over where [`crate::Ftl::open`] refuses.
//!
//! Salvage writes nothing, so nothing gets worse, and every sector that it reads holds what some batch left there:
//!
//! 1. A flushed batch that is missing ends the log. The map is then the result of the batches before it. Later writes
//!    may have reused the places to which this map leads; a chunk's checksum detects that.
//! 2. A relocation that is missing is passed over. The extents it moved are looked for in their old place, as in 1.
//! 3. A place in the log, or a retained summary, that cannot be read is as if it were not there: case 1 or 2. Records
//!    of a segment without a header name the life they belong to themselves.
//!    So is a frame of the log device that cannot be read, or whose segment is not of its life.
//! 4. No record is applied to a leaf of the map that cannot be read. A read that needs the leaf gets the error again.
//!
//! 5. A checkpoint of which root, index or counters cannot be read is put together from the rest (`checkpoint::rebuild`).
//!
//! Without a superblock there is nothing to begin with.

use std::ops::Range;

use lacuna_device as device;

use crate::{
    Error, Result,
    addr::SegNo,
    map::{Absent, Map},
    paging::LeafReader,
    sync::Mutex,
};

/// The losses so far; `None` where no loss is tolerated.
pub(crate) struct Losses(Option<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    /// One line for each loss.
    messages: Vec<String>,
    /// Leaves that cannot be read: segment and grain.
    leaves: Vec<(SegNo, u32)>,
}

impl Noted {
    fn note(&mut self, error: &Error) {
        let message = error.to_string();
        if !self.messages.contains(&message) {
            self.messages.push(message);
        }
    }

    fn has(&self, absent: &Absent) -> bool {
        self.leaves.contains(&(absent.place.segment, absent.place.grain))
    }
}

impl Losses {
    /// All damage is an error.
    pub(crate) const REFUSED: Losses = Losses(None);

    /// Damage is passed over and noted.
    pub(crate) fn noted() -> Losses {
        Losses(Some(Mutex::default()))
    }

    pub(crate) fn are_noted(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn into_messages(self) -> Vec<String> {
        self.0.map(|noted| std::mem::take(&mut noted.lock().messages)).unwrap_or_default()
    }

    /// `result`, or `instead` where it is damage that may be passed over.
    pub(crate) fn pass<T>(&self, result: Result<T>, instead: T) -> Result<T> {
        match (result, &self.0) {
            (Err(error @ (Error::Corrupt { .. } | Error::Device(device::Error::Io { .. }))), Some(noted)) => {
                noted.lock().note(&error);
                Ok(instead)
            }
            (result, _) => result,
        }
    }

    /// Brings in the leaves that a change of `range` needs, and passes `change` the parts of it that may be changed:
    /// all of it, but for leaves that cannot be read.
    pub(crate) fn change(
        &self,
        leaves: LeafReader<'_>,
        map: &mut Map,
        range: Range<u64>,
        mut change: impl FnMut(&mut Map, Range<u64>),
    ) -> Result<()> {
        let ranges = std::slice::from_ref(&range);
        let Some(noted) = &self.0 else {
            leaves.fault_in(map, ranges)?;
            change(map, range);
            return Ok(());
        };
        let lost = loop {
            let absent = map.absent(ranges);
            let (lost, missing): (Vec<_>, Vec<_>) =
                absent.into_iter().partition(|absent| noted.lock().has(absent));
            if missing.is_empty() {
                break lost;
            }
            for absent in missing {
                let (segment, grain) = (absent.place.segment, absent.place.grain);
                let install = |absent: &Absent, leaf| {
                    map.install(absent, leaf);
                };
                if let Err(error) = leaves.read(vec![absent], install) {
                    let mut noted = noted.lock();
                    noted.note(&error);
                    noted.leaves.push((segment, grain));
                }
            }
        };
        let mut start = range.start;
        for span in lost.into_iter().map(|absent| absent.span) {
            if start < span.start.min(range.end) {
                change(map, start..span.start.min(range.end));
            }
            start = start.max(span.end);
        }
        if start < range.end {
            change(map, start..range.end);
        }
        Ok(())
    }
}
