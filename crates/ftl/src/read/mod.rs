//! Reads: from the device, or from memory for what is still on its way there.
//!
//! A read holds the map's lock only while it collects and pins. It verifies every chunk that it
//! touches, whole, before it copies any byte of it. Chunks that do not lie in one run are read at the same
//! time. What is mapped but not in the log's memory yet is waited for: its writer is filling its room (`copies`).
//!
//! What lies on the device just as it was asked for, as large batches of whole pages do, is read to where it is
//! wanted and verified there. Where that fails, the memory is cleared: bytes that were not verified are never seen.

use std::{cell::Cell, ops::Range, sync::Arc};

use lacuna_crc::crc32c;
use lacuna_device::AlignedBuf;

use crate::{
    Error, Lba, Result, SECTOR,
    addr::SegNo,
    format::Extent,
    log::Journal,
    map::SharedMap,
    media::Volume,
    mutant::{Rule, is_broken},
    paging::{Base, PagedMap, leaves_ahead},
};

/// Chunks that lie in one run of at most so many bytes are read at once.
const RUN_BYTES: usize = 256 << 10;

/// Runs of about so many bytes are read at the same time.
pub(crate) const READ_BYTES: usize = 4 << 20;

/// So many bytes between two chunks that are wanted anyway do not end a run: they are read sooner than a run
/// more is.
const GAP_BYTES: usize = 4 << 10;

/// As much for scattered sectors of which many are wanted: to read it takes a device about as long as a
/// read more.
pub(crate) const NEAR_BYTES: usize = 16 << 10;

/// Sectors that are looked for while the map is locked.
const LOOKS_MAX: usize = 1024;

/// About what an extent holds, where there are many: how many to look for ahead.
const EXTENT_BYTES: usize = 4 << 10;

/// Reads of so many bytes at most use the memory that each thread keeps: to get aligned memory, and to clear
/// it, costs more than all else that a short read does without the device. What earlier reads left there is
/// seen by nobody: [`Bytes`] show what the device has filled.
const KEPT_BYTES: usize = 64 << 10;

thread_local! {
    static KEPT: Cell<Option<AlignedBuf>> = const { Cell::new(None) };
}

/// What [`crate::Ftl::read_mapped`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Runs of mapped sectors and what they hold, in order; between two of them lies what is not mapped.
    pub runs: Vec<(Lba, Vec<u8>)>,
    /// Up to here was looked; the end of the range if there is no more.
    pub end: Lba,
}

impl Mapped {
    /// Room for what `extents` hold, in order of their addresses.
    fn zeroed(extents: &[(Lba, Extent)], end: Lba) -> Mapped {
        let mut runs: Vec<(Lba, Vec<u8>)> = Vec::with_capacity(extents.len());
        let mut lengths: Vec<usize> = Vec::with_capacity(extents.len());
        for (lba, extent) in extents {
            let bytes = usize::from(extent.sectors) * SECTOR;
            match (runs.last(), lengths.last_mut()) {
                (Some((start, _)), Some(len)) if start.0 + (*len / SECTOR) as u64 == lba.0 => *len += bytes,
                _ => {
                    runs.push((*lba, Vec::new()));
                    lengths.push(bytes);
                }
            }
        }
        for ((_, data), len) in runs.iter_mut().zip(lengths) {
            *data = vec![0; len];
        }
        Mapped { runs, end }
    }

    /// Puts in what is stored from `lba` on.
    fn put(&mut self, lba: Lba, stored: &[u8]) {
        let index = self.runs.partition_point(|(start, _)| *start <= lba) - 1;
        let (start, data) = &mut self.runs[index];
        let at = (lba.0 - start.0) as usize * SECTOR;
        data[at..at + stored.len()].copy_from_slice(stored);
    }
}

/// What [`crate::Ftl::read_past_damage`] found.
#[derive(Debug)]
pub struct Remains {
    /// What can be read.
    pub mapped: Mapped,
    /// What cannot, in order.
    pub lost: Vec<Lost>,
}

/// Sectors that cannot be read.
#[derive(Debug)]
pub struct Lost {
    /// Data, or where the map is damaged all that it may lead to.
    pub range: Range<Lba>,
    /// Why.
    pub error: Error,
}

/// Extents whose segments are pinned until it is dropped.
pub(crate) struct Pinned<'a> {
    reader: &'a Reader,
    extents: Vec<(Lba, Extent)>,
}

impl Pinned<'_> {
    pub(crate) fn extents(&self) -> &[(Lba, Extent)] {
        &self.extents
    }

    /// As they lie on the device: what shares a block, or nearly, is read at once.
    fn sort_by_place(&mut self) {
        self.extents.sort_unstable_by_key(|(_, extent)| (extent.phys.segment, extent.phys.offset()));
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        for (_, extent) in &self.extents {
            self.reader.map.unpin(extent.phys.segment);
        }
    }
}

/// Reads what is mapped.
pub(crate) struct Reader {
    volume: Arc<Volume>,
    map: Arc<SharedMap>,
    journal: Arc<Journal>,
    pages: Arc<PagedMap>,
}

impl Reader {
    pub(crate) fn new(base: Base) -> Reader {
        let Base { volume, map, journal, pages } = base;
        Reader { volume, map, journal, pages }
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
        let pinned = self.pin_some(lba.0..end, usize::MAX)?;
        if let Some(start) = self.start_of_image(lba, &pinned.extents, buf) {
            let read = self.read_image(start, &pinned.extents, buf);
            if read.is_err() && !is_broken(Rule::FailedReadCleared) {
                buf.fill(0);
            }
            return read;
        }
        let mut filled = 0;
        self.read_extents(&pinned.extents, 0, |at, stored| {
            let start = (at.0 - lba.0) as usize * SECTOR;
            buf[filled..start].fill(0);
            buf[start..start + stored.len()].copy_from_slice(stored);
            filled = start + stored.len();
        })?;
        buf[filled..].fill(0);
        Ok(())
    }

    /// Where `extents`, read from `lba` on, begin on the device, if it holds them just as they belong into `buf`,
    /// and can put them there.
    fn start_of_image(&self, lba: Lba, extents: &[(Lba, Extent)], buf: &[u8]) -> Option<u64> {
        let first = extents.first()?.1.phys;
        let (segment, offset) = (first.segment, first.offset());
        let mut bytes = 0;
        let is_image = extents.iter().all(|(at, extent)| {
            let follows = at.0 == lba.0 + (bytes / SECTOR) as u64
                && extent.phys.segment == segment
                && extent.phys.offset() == offset + bytes
                && extent.is_whole_chunk();
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

    /// Fills `buf` with pinned `extents` from byte `start` of the device on, and verifies them. On an error bytes may
    /// be in `buf` that were not verified.
    fn read_image(&self, start: u64, extents: &[(Lba, Extent)], buf: &mut [u8]) -> Result<()> {
        self.volume.device().read_at(start, buf)?;
        let mut rest = &*buf;
        extents.iter().try_for_each(|(_, extent)| {
            let (chunk, behind) = rest.split_at(extent.stored.into());
            rest = behind;
            self.verify(extent, chunk)
        })
    }

    /// Reads the chunks of pinned `extents`, verifies each, and passes what of it belongs to its extent to
    /// `take`. Between chunks that are read at once lie at most `gap` bytes. Fails with the first of them that is
    /// damaged, in their order.
    fn read_extents(
        &self,
        extents: &[(Lba, Extent)],
        gap: usize,
        mut take: impl FnMut(Lba, &[u8]),
    ) -> Result<()> {
        let mut outcome = Ok(());
        self.read_each(extents, gap, |(lba, _), stored| match stored {
            Ok(stored) => take(*lba, stored),
            Err(error) if outcome.is_ok() => outcome = Err(error),
            Err(_) => {}
        });
        outcome
    }

    /// As [`Reader::read_extents`], and goes on behind damage: `take` gets what belongs to each extent, or why
    /// not. What cannot be read together is read alone, as it may be another's, or lie between them.
    pub(crate) fn read_each(
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
                    match self.read_bytes(phys.segment, phys.offset(), usize::from(*stored)) {
                        Ok(chunk) => take(found, self.part_of(&found.1, &chunk)),
                        Err(error) => take(found, Err(error)),
                    }
                }
                continue;
            };
            for (run, chunks) in runs.iter().zip(read) {
                for found in run.extents {
                    let (_, extent) = found;
                    let chunk = &chunks[extent.phys.offset() - run.offset..][..usize::from(extent.stored)];
                    take(found, self.part_of(extent, chunk));
                }
            }
        }
    }

    /// What of `chunk`, as read, belongs to `extent`, if it is what was written.
    fn part_of<'a>(&self, extent: &Extent, chunk: &'a [u8]) -> Result<&'a [u8]> {
        self.verify(extent, chunk)?;
        Ok(&chunk[usize::from(extent.skip) * SECTOR..][..extent.bytes()])
    }

    /// See [`crate::Ftl::read_sectors`].
    pub(crate) fn read_sectors(&self, lbas: &[Lba]) -> Result<Vec<(Lba, [u8; SECTOR])>> {
        let mut read = Vec::with_capacity(lbas.len());
        let pinned = self.pin_each(lbas.iter().map(|lba| lba.0..lba.0.saturating_add(1)).collect())?;
        self.read_extents(&pinned.extents, self.volume.space().block_bytes, |lba, stored| {
            read.push((lba, sector_of(stored)));
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
        let pinned = self.pin_each(lbas.iter().map(|lba| lba.0..lba.0.saturating_add(1)).collect())?;
        self.read_each(&pinned.extents, NEAR_BYTES, |(lba, _), stored| match stored {
            Ok(stored) => visit(*lba, Ok(&sector_of(stored))),
            Err(error) => visit(*lba, Err(error)),
        });
        Ok(())
    }

    /// See [`crate::Ftl::read_mapped`].
    pub(crate) fn read_mapped(&self, range: Range<u64>, bytes_max: usize) -> Result<Mapped> {
        let mut pinned = Pinned { reader: self, extents: Vec::new() };
        let _kept = self
            .pages
            .fault_ahead(|map| map.absent_ahead(range.clone(), leaves_ahead(bytes_max / EXTENT_BYTES)))?;
        let (mut bytes, mut end) = (0, range.end);
        self.pages.visit_extents(range, |lba, extent| {
            bytes += usize::from(extent.sectors) * SECTOR;
            if bytes > bytes_max && !pinned.extents.is_empty() {
                end = lba.0;
                return false;
            }
            self.map.pin(extent.phys.segment);
            pinned.extents.push((lba, extent));
            true
        })?;
        let mut mapped = Mapped::zeroed(&pinned.extents, Lba(end));
        pinned.sort_by_place();
        self.read_extents(&pinned.extents, GAP_BYTES, |lba, stored| mapped.put(lba, stored))?;
        Ok(mapped)
    }

    /// See [`crate::Ftl::read_past_damage`].
    pub(crate) fn read_past_damage(&self, range: Range<u64>, bytes_max: usize) -> Result<Remains> {
        let mut pinned = Pinned { reader: self, extents: Vec::new() };
        let (mut lost, mut bytes, mut at, mut end) = (Vec::new(), 0, range.start, range.end);
        while at < end {
            let visited = self.pages.visit_extents(at..range.end, |lba, extent| {
                bytes += usize::from(extent.sectors) * SECTOR;
                if bytes > bytes_max && !pinned.extents.is_empty() {
                    end = lba.0;
                    return false;
                }
                self.map.pin(extent.phys.segment);
                pinned.extents.push((lba, extent));
                at = lba.0 + u64::from(extent.sectors);
                true
            });
            let Err(error) = visited else { break };
            // Behind what was visited lies the leaf that cannot be read.
            let Some(Err(absent)) = self.map.read().extents(at..range.end).next() else { return Err(error) };
            let span = absent.span.start.max(at)..absent.span.end.min(range.end);
            at = span.end;
            lost.push(Lost { range: Lba(span.start)..Lba(span.end), error });
        }
        pinned.sort_by_place();
        let mut read = Vec::with_capacity(pinned.extents.len());
        self.read_each(&pinned.extents, GAP_BYTES, |found, stored| match stored {
            Ok(stored) => read.push((*found, stored.to_vec())),
            Err(error) => {
                let (lba, extent) = found;
                lost.push(Lost { range: *lba..Lba(lba.0 + u64::from(extent.sectors)), error });
            }
        });
        read.sort_unstable_by_key(|((lba, _), _)| *lba);
        lost.sort_unstable_by_key(|lost| lost.range.start);
        let extents: Vec<_> = read.iter().map(|(found, _)| *found).collect();
        let mut mapped = Mapped::zeroed(&extents, Lba(end));
        read.iter().for_each(|((lba, _), stored)| mapped.put(*lba, stored));
        Ok(Remains { mapped, lost })
    }

    /// Pins all extents in `ranges`, in the order in which they lie on the device.
    pub(crate) fn pin_each(&self, ranges: Vec<Range<u64>>) -> Result<Pinned<'_>> {
        let mut kept = Vec::new();
        for ranges in ranges.chunks(LOOKS_MAX) {
            kept.extend(self.pages.fault_ahead(|map| map.absent_of(ranges.iter().map(|range| range.start)))?);
        }
        let mut pinned = Pinned { reader: self, extents: Vec::with_capacity(ranges.len()) };
        self.pages.visit_extents_of_each(ranges, |_, lba, extent| {
            self.map.pin(extent.phys.segment);
            pinned.extents.push((lba, extent));
        })?;
        pinned.sort_by_place();
        Ok(pinned)
    }

    /// Pins those of `extents`, which were mapped, whose segments were not opened since: of `generation_next` or a
    /// later generation. Returns the others too: also those in segments that nothing is mapped in any more. What is
    /// pinned may be mapped elsewhere by now, but its bytes are as they were.
    pub(crate) fn pin_unchanged(
        &self,
        extents: Vec<(Lba, Extent)>,
        generation_next: u64,
    ) -> (Pinned<'_>, Vec<(Lba, Extent)>) {
        let log = self.journal.lock();
        let map = self.map.read();
        let (same, others) = extents.into_iter().partition(|(_, extent)| {
            let segment = extent.phys.segment;
            // With something live in it, it is not about to be used again.
            log.segment(segment).generation < generation_next && map.live(segment).extents > 0
        });
        let pinned = Pinned { reader: self, extents: same };
        pinned.extents.iter().for_each(|(_, extent)| self.map.pin(extent.phys.segment));
        (pinned, others)
    }

    /// Pins the first `extents_max` extents in `range`.
    pub(crate) fn pin_some(&self, range: Range<u64>, extents_max: usize) -> Result<Pinned<'_>> {
        let mut pinned = Pinned { reader: self, extents: Vec::new() };
        self.pages.visit_extents(range, |lba, extent| {
            self.map.pin(extent.phys.segment);
            pinned.extents.push((lba, extent));
            pinned.extents.len() < extents_max
        })?;
        Ok(pinned)
    }

    /// Bytes of a segment that is pinned or cannot be freed now.
    pub(crate) fn read_bytes(&self, segment: SegNo, offset: usize, len: usize) -> Result<Bytes> {
        if self.journal.is_on_device(segment, offset + len) {
            return self.read_device(segment, offset, len);
        }
        let (on_device, parts) = self.journal.read(segment, offset, len)?;
        let mut out = vec![0; len];
        let (device, mut memory) = out.split_at_mut(on_device);
        for part in parts {
            let (now, behind) = memory.split_at_mut(part.len());
            now.copy_from_slice(&part);
            memory = behind;
        }
        if on_device > 0 {
            device.copy_from_slice(&self.read_device(segment, offset, on_device)?);
        }
        Ok(Bytes::Memory(out))
    }

    /// The bytes of all `runs`, which are pinned or cannot be freed now; those on the device are read at the
    /// same time.
    pub(crate) fn read_runs(&self, runs: &[Run<'_>]) -> Result<Vec<Bytes>> {
        if let [Run { segment, offset, len, .. }] = *runs {
            return Ok(vec![self.read_bytes(segment, offset, len)?]);
        }
        let mut all = Vec::with_capacity(runs.len());
        let (mut reads, mut places) = (Vec::new(), Vec::new());
        for (index, Run { segment, offset, len, .. }) in runs.iter().enumerate() {
            if self.journal.is_on_device(*segment, offset + len) {
                let blocks = self.blocks(*offset, *len);
                let buf = AlignedBuf::zeroed(blocks.len());
                reads.push((self.volume.offset(*segment, blocks.start), buf));
                places.push((index, offset - blocks.start));
                all.push(Bytes::Memory(Vec::new())); // until it is read
            } else {
                all.push(self.read_bytes(*segment, *offset, *len)?);
            }
        }
        self.volume.device().read_many(&mut reads)?;
        for ((index, from), (_, data)) in places.into_iter().zip(reads) {
            all[index] = Bytes::Device { data, from, len: runs[index].len };
        }
        Ok(all)
    }

    /// The device's blocks around `len` bytes at `offset` of a segment.
    fn blocks(&self, offset: usize, len: usize) -> Range<usize> {
        let block = self.volume.space().block_bytes;
        offset / block * block..(offset + len).next_multiple_of(block)
    }

    fn read_device(&self, segment: SegNo, offset: usize, len: usize) -> Result<Bytes> {
        let blocks = self.blocks(offset, len);
        let kept = (blocks.len() <= KEPT_BYTES)
            .then(|| KEPT.take().unwrap_or_else(|| AlignedBuf::zeroed(KEPT_BYTES)));
        let mut data = kept.unwrap_or_else(|| AlignedBuf::zeroed(blocks.len()));
        self.volume.device().read_at(self.volume.offset(segment, blocks.start), &mut data[..blocks.len()])?;
        Ok(Bytes::Device { data, from: offset - blocks.start, len })
    }

    /// Whether `chunk`, as read, is what `extent` says was written.
    pub(crate) fn verify(&self, extent: &Extent, chunk: &[u8]) -> Result<()> {
        if crc32c(chunk) == extent.crc || is_broken(Rule::ReadVerifies) {
            return Ok(());
        }
        Err(Error::Corrupt {
            what: format!("{}, chunk written by batch {}", self.volume.device().name(), extent.birth.0),
            at: self.volume.offset(extent.phys.segment, extent.phys.offset()),
            reason: "checksum does not match".into(),
        })
    }
}

/// A sector with its trailing zeros, of which `stored` is stored.
pub(crate) fn sector_of(stored: &[u8]) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector[..stored.len()].copy_from_slice(stored);
    sector
}

/// Extents whose chunks lie in one run of a segment.
pub(crate) struct Run<'a> {
    pub(crate) extents: &'a [(Lba, Extent)],
    segment: SegNo,
    pub(crate) offset: usize,
    len: usize,
}

/// Takes from the front of `rest` what is read at a time. In a run at most `gap` bytes lie between chunks.
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
