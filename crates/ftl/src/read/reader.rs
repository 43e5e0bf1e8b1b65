//! Reads by address.

use std::{ops::Range, sync::Arc};

use lacuna_device::AlignedBuf;

use super::cache::{CacheUse, ChunkCache, Key, READ_BYTES_MAX};
use super::decoded::Decoded;
use super::found::{Lost, Mapped, Remains};
use super::pinned::Pinned;
use super::runs::runs;
use super::stored::Stored;
use crate::{
    Error, Lba, Result, SECTOR,
    encoding::Undecodable,
    format::Extent,
    log::Journal,
    map::SharedMap,
    media::{Volume, cipher::Cipher},
    mutant::{Rule, is_broken},
    paging::{Base, PagedMap, leaves_ahead},
};

/// A gap of at most this many bytes between two wanted chunks does not end a run: reading it takes less time than
/// another run.
const GAP_BYTES: usize = 4 << 10;

/// The same for scattered sectors of which many are wanted: reading the gap takes a device about as long as another
/// read.
pub(crate) const NEAR_BYTES: usize = 16 << 10;

/// About the size of an extent where there are many: it determines how many to look up ahead.
const EXTENT_BYTES: usize = 4 << 10;

/// Sectors that are looked for while the map is locked.
const LOOKS_MAX: usize = 1024;

/// Reads mapped data.
pub(crate) struct Reader {
    pub(super) volume: Arc<Volume>,
    pub(super) map: Arc<SharedMap>,
    pub(super) journal: Arc<Journal>,
    pub(super) pages: Arc<PagedMap>,
    cache: Option<Arc<ChunkCache>>,
}

impl Reader {
    pub(crate) fn new(base: Base, cache: Option<Arc<ChunkCache>>) -> Reader {
        let Base { volume, map, journal, pages } = base;
        Reader { volume, map, journal, pages, cache }
    }

    /// Counters of the cache of stored chunks, all 0 without one.
    pub(crate) fn cache_use(&self) -> CacheUse {
        self.cache.as_ref().map(|cache| cache.counters()).unwrap_or_default()
    }

    pub(crate) fn map(&self) -> &SharedMap {
        &self.map
    }

    pub(crate) fn pages(&self) -> &PagedMap {
        &self.pages
    }

    /// Generation of the segment that is opened next; see [`Reader::pin_unchanged`].
    pub(crate) fn generation_next(&self) -> u64 {
        self.journal.lock().generation_next()
    }

    /// See [`crate::Ftl::read`].
    pub(crate) fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<()> {
        let sectors = (buf.len() / SECTOR) as u64;
        let Some(end) = lba.0.checked_add(sectors).filter(|_| buf.len().is_multiple_of(SECTOR)) else {
            return Err(Error::BadRange { lba, len: buf.len() as u64 });
        };
        self.volume.must_have_key()?;
        let pinned = self.pin_some(lba.0..end, usize::MAX)?;
        if let Some(cache) = self.cache.as_ref().filter(|_| buf.len() <= READ_BYTES_MAX) {
            return self.read_cached(cache, lba, pinned.extents(), buf);
        }
        if let Some(start) = self.start_of_image(lba, pinned.extents(), buf) {
            let read = self.read_image(start, pinned.extents(), buf);
            if read.is_err() && !is_broken(Rule::FailedReadCleared) {
                buf.fill(0);
            }
            return read;
        }
        let mut filled = 0;
        self.read_extents(pinned.extents(), GAP_BYTES, |at, stored| {
            let start = (at.0 - lba.0) as usize * SECTOR;
            buf[filled..start].fill(0);
            filled = start + stored.len();
            stored.copy_to(&mut buf[start..filled]);
        })?;
        buf[filled..].fill(0);
        Ok(())
    }

    /// Fills `buf` with pinned `extents` from `lba` on: from the cache what it holds, and the rest, which it then holds,
    /// from the device.
    fn read_cached(
        &self,
        cache: &ChunkCache,
        lba: Lba,
        extents: &[(Lba, Extent)],
        buf: &mut [u8],
    ) -> Result<()> {
        buf.fill(0);
        let mut put = |at: Lba, stored: &Stored<'_>| {
            let start = (at.0 - lba.0) as usize * SECTOR;
            stored.copy_to(&mut buf[start..start + stored.len()]);
        };
        let (mut missing, mut decoded) = (Vec::new(), Decoded::default());
        for found in extents.iter().filter(|(_, extent)| extent.bytes() > 0) {
            match cache.get(&Key::of(found.0.0, &found.1)) {
                Some(chunk) => put(found.0, &self.part_of(found, &chunk.bytes(), &mut decoded)?),
                None => missing.push(*found),
            }
        }
        let mut outcome = Ok(());
        self.read_chunks(&missing, GAP_BYTES, |found, chunk| {
            let read = chunk.and_then(|chunk| {
                put(found.0, &self.part_of(found, chunk, &mut decoded)?);
                cache.put(Key::of(found.0.0, &found.1), chunk);
                Ok(())
            });
            if outcome.is_ok() {
                outcome = read;
            }
        });
        outcome
    }

    /// The byte on the device at which `extents`, read from `lba` on, begin, if the device holds them in the layout of
    /// `buf` and can read them straight into it.
    fn start_of_image(&self, lba: Lba, extents: &[(Lba, Extent)], buf: &[u8]) -> Option<u64> {
        let first = extents.first()?.1.phys;
        let (segment, offset) = (first.segment, first.offset());
        let mut bytes = 0;
        let is_image = extents.iter().all(|(at, extent)| {
            let follows = at.0 == lba.0 + (bytes / SECTOR) as u64
                && extent.phys.segment == segment
                && extent.phys.offset() == offset + bytes
                && extent.is_whole_plain_chunk();
            bytes += usize::from(extent.stored);
            follows
        });
        let is_on_grid =
            [offset, buf.len()].iter().all(|at| at.is_multiple_of(self.volume.space().block_bytes))
                && buf.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN);
        let can_be = is_image
            && bytes == buf.len()
            && is_on_grid
            && self.journal.is_on_device(segment, offset + bytes);
        can_be.then(|| self.volume.offset(segment, offset))
    }

    /// Fills `buf` with pinned `extents` from byte `start` of the device on, and verifies them. On an error `buf` may
    /// contain bytes that were not verified.
    fn read_image(&self, start: u64, extents: &[(Lba, Extent)], buf: &mut [u8]) -> Result<()> {
        self.volume.device().read_at(start, buf)?;
        let mut rest = buf;
        for (lba, extent) in extents {
            let (chunk, behind) = rest.split_at_mut(extent.stored.into());
            rest = behind;
            self.verify(extent, chunk)?;
            self.volume.cipher().decrypt(*lba, chunk);
        }
        Ok(())
    }

    /// Reads the chunks of pinned `extents`, verifies each, and passes the part that belongs to its extent to `take`.
    /// Between chunks that are read at once lie at most `gap` bytes. Fails with the first of them that is damaged, in
    /// their order.
    fn read_extents(
        &self,
        extents: &[(Lba, Extent)],
        gap: usize,
        mut take: impl FnMut(Lba, Stored<'_>),
    ) -> Result<()> {
        let mut outcome = Ok(());
        self.read_each(extents, gap, |(lba, _), stored| match stored {
            Ok(stored) => take(*lba, stored),
            Err(error) if outcome.is_ok() => outcome = Err(error),
            Err(_) => {}
        });
        outcome
    }

    /// As [`Reader::read_extents`], but continues past damage: `take` gets the bytes of each extent, or why they cannot
    /// be read. Chunks that cannot be read together are read one by one, because the unreadable block may belong to
    /// another chunk, or lie between chunks.
    pub(crate) fn read_each(
        &self,
        extents: &[(Lba, Extent)],
        gap: usize,
        mut take: impl FnMut(&(Lba, Extent), Result<Stored<'_>>),
    ) {
        let mut decoded = Decoded::default();
        self.read_chunks(extents, gap, |found, chunk| match chunk {
            Ok(chunk) => take(found, self.part_of(found, chunk, &mut decoded)),
            Err(error) => take(found, Err(error)),
        });
    }

    /// As [`Reader::read_each`], with the whole chunk of each extent, which is not verified yet.
    fn read_chunks(
        &self,
        extents: &[(Lba, Extent)],
        gap: usize,
        mut take: impl FnMut(&(Lba, Extent), Result<&[u8]>),
    ) {
        let mut rest = extents;
        while !rest.is_empty() {
            let runs = runs(&mut rest, gap);
            let Ok(read) = self.read_runs(&runs) else {
                for found in runs.iter().flat_map(|run| run.extents) {
                    let (_, Extent { phys, stored, .. }) = found;
                    let chunk = self.read_bytes(phys.segment, phys.offset(), usize::from(*stored));
                    match chunk {
                        Ok(chunk) => take(found, Ok(&chunk)),
                        Err(error) => take(found, Err(error)),
                    }
                }
                continue;
            };
            for (run, chunks) in runs.iter().zip(read) {
                for found in run.extents {
                    let (_, extent) = found;
                    take(
                        found,
                        Ok(&chunks[extent.phys.offset() - run.offset..][..usize::from(extent.stored)]),
                    );
                }
            }
        }
    }

    /// The part of `chunk`, as read, that belongs to an extent, if the chunk is what was written.
    fn part_of<'a>(
        &'a self,
        found: &(Lba, Extent),
        chunk: &'a [u8],
        decoded: &'a mut Decoded,
    ) -> Result<Stored<'a>> {
        let ((lba, extent), cipher) = (found, self.volume.cipher());
        self.verify(extent, chunk)?;
        match (extent.is_encoded(), cipher) {
            (false, _) => {
                let part = &chunk[usize::from(extent.skip) * SECTOR..][..extent.bytes()];
                Ok(Stored::new(*lba, part, cipher))
            }
            // Nobody looks at data without a key.
            (true, Cipher::Locked) => Ok(Stored::new(*lba, chunk, cipher)),
            (true, Cipher::None | Cipher::Sectors(_)) => match decoded.part(found, chunk, cipher) {
                Ok(data) => Ok(Stored::new(*lba, data, &Cipher::None)),
                Err(Undecodable::NotBuiltIn(algorithm)) => {
                    Err(Error::NotBuiltIn { device: self.volume.name(), algorithm })
                }
                Err(Undecodable::Flaw(flaw)) => Err(self.corrupt(extent, flaw)),
            },
        }
    }

    /// See [`crate::Ftl::read_sectors`].
    pub(crate) fn read_sectors(&self, lbas: &[Lba]) -> Result<Vec<(Lba, [u8; SECTOR])>> {
        self.volume.must_have_key()?;
        let mut read = Vec::with_capacity(lbas.len());
        let pinned = self.pin_each(lbas.iter().map(|lba| lba.0..lba.0.saturating_add(1)).collect())?;
        self.read_extents(pinned.extents(), self.volume.space().block_bytes, |lba, stored| {
            read.push((lba, stored.sector()));
        })?;
        read.sort_unstable_by_key(|(lba, _)| *lba);
        Ok(read)
    }

    /// See [`crate::Ftl::visit_sectors`].
    pub(crate) fn visit_sectors(
        &self,
        lbas: &[Lba],
        mut visit: impl FnMut(Lba, Result<&[u8; SECTOR]>),
    ) -> Result<()> {
        self.volume.must_have_key()?;
        let pinned = self.pin_each(lbas.iter().map(|lba| lba.0..lba.0.saturating_add(1)).collect())?;
        self.read_each(pinned.extents(), NEAR_BYTES, |(lba, _), stored| match stored {
            Ok(stored) => visit(*lba, Ok(&stored.sector())),
            Err(error) => visit(*lba, Err(error)),
        });
        Ok(())
    }

    /// Pins all extents in `ranges`, in the order in which they lie on the device.
    pub(crate) fn pin_each(&self, ranges: Vec<Range<u64>>) -> Result<Pinned<'_>> {
        let mut kept = Vec::new();
        for ranges in ranges.chunks(LOOKS_MAX) {
            kept.extend(self.pages.fault_ahead(|map| map.absent_of(ranges.iter().map(|range| range.start)))?);
        }
        let mut pinned = Pinned::new(&self.map);
        self.pages.visit_extents_of_each(ranges, |_, lba, extent| pinned.pin(lba, extent))?;
        pinned.sort_by_place();
        Ok(pinned)
    }

    /// Pins those of `extents`, which were mapped, whose segments were not opened since: of `generation_next` or a
    /// later generation. Also returns the others, including those in segments in which nothing is mapped any more. A
    /// pinned extent may be mapped elsewhere by now, but its bytes are unchanged.
    pub(crate) fn pin_unchanged(
        &self,
        extents: Vec<(Lba, Extent)>,
        generation_next: u64,
    ) -> (Pinned<'_>, Vec<(Lba, Extent)>) {
        let log = self.journal.lock();
        let map = self.map.read();
        let (same, others): (Vec<_>, _) = extents.into_iter().partition(|(_, extent)| {
            let segment = extent.phys.segment;
            // A segment with a live extent is not about to be reused.
            log.segment(segment).generation < generation_next && map.live(segment).extents > 0
        });
        let mut pinned = Pinned::new(&self.map);
        same.into_iter().for_each(|(lba, extent)| pinned.pin(lba, extent));
        (pinned, others)
    }

    /// Pins the first `extents_max` extents in `range`.
    pub(crate) fn pin_some(&self, range: Range<u64>, extents_max: usize) -> Result<Pinned<'_>> {
        let mut pinned = Pinned::new(&self.map);
        self.pages.visit_extents(range, |lba, extent| {
            pinned.pin(lba, extent);
            pinned.extents().len() < extents_max
        })?;
        Ok(pinned)
    }

    /// Pins the extents in `range` from its start on, up to about `bytes_max` bytes but at least one extent. Also
    /// returns the end of the part that was looked at. Passes each part that a leaf maps which cannot be read to
    /// `lost`, which decides whether to go on.
    fn pin_up_to(
        &self,
        range: Range<u64>,
        bytes_max: usize,
        mut lost: impl FnMut(Range<u64>, Error) -> Result<()>,
    ) -> Result<(Pinned<'_>, u64)> {
        let mut pinned = Pinned::new(&self.map);
        let (mut bytes, mut at, mut end) = (0, range.start, range.end);
        while at < end {
            let visited = self.pages.visit_extents(at..range.end, |lba, extent| {
                bytes += usize::from(extent.sectors) * SECTOR;
                if bytes > bytes_max && !pinned.extents().is_empty() {
                    end = lba.0;
                    return false;
                }
                pinned.pin(lba, extent);
                at = lba.0 + u64::from(extent.sectors);
                true
            });
            let Err(error) = visited else { break };
            // The leaf that cannot be read follows the visited part.
            let Some(Err(absent)) = self.map.read().extents(at..range.end).next() else { return Err(error) };
            let span = absent.span.start.max(at)..absent.span.end.min(range.end);
            at = span.end;
            lost(span, error)?;
        }
        Ok((pinned, end))
    }

    /// See [`crate::Ftl::read_mapped`].
    pub(crate) fn read_mapped(&self, range: Range<u64>, bytes_max: usize) -> Result<Mapped> {
        self.volume.must_have_key()?;
        let _kept = self
            .pages
            .fault_ahead(|map| map.absent_ahead(range.clone(), leaves_ahead(bytes_max / EXTENT_BYTES)))?;
        let (mut pinned, end) = self.pin_up_to(range, bytes_max, |_, error| Err(error))?;
        let mut mapped = Mapped::zeroed(pinned.extents(), Lba(end));
        pinned.sort_by_place();
        self.read_extents(pinned.extents(), GAP_BYTES, |lba, stored| mapped.put(lba, stored))?;
        Ok(mapped)
    }

    /// See [`crate::Ftl::read_past_damage`].
    pub(crate) fn read_past_damage(&self, range: Range<u64>, bytes_max: usize) -> Result<Remains> {
        self.volume.must_have_key()?;
        let mut lost = Vec::new();
        let (mut pinned, end) = self.pin_up_to(range, bytes_max, |span, error| {
            lost.push(Lost { range: Lba(span.start)..Lba(span.end), error });
            Ok(())
        })?;
        pinned.sort_by_place();
        let mut read = Vec::with_capacity(pinned.extents().len());
        self.read_each(pinned.extents(), GAP_BYTES, |found, stored| match stored {
            Ok(stored) => {
                let mut data = vec![0; stored.len()];
                stored.copy_to(&mut data);
                read.push((*found, data));
            }
            Err(error) => {
                let (lba, extent) = found;
                lost.push(Lost { range: *lba..Lba(lba.0 + u64::from(extent.sectors)), error });
            }
        });
        read.sort_unstable_by_key(|((lba, _), _)| *lba);
        lost.sort_unstable_by_key(|lost| lost.range.start);
        let extents: Vec<_> = read.iter().map(|(found, _)| *found).collect();
        let mut mapped = Mapped::zeroed(&extents, Lba(end));
        for ((lba, _), data) in &read {
            mapped.space(*lba, data.len()).copy_from_slice(data);
        }
        Ok(Remains { mapped, lost })
    }
}
