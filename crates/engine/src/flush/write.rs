//! One consumer: copies, compresses and writes the pages of a job.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, BatchOp, Error as DeviceError};
use lacuna_page::{Algorithm, Codec, Encoder, Meta, PAGE_BYTES_MAX};

use super::{Due, JOB_PAGES, stats::Cause};
use crate::{
    flush::Flusher,
    mutant::{Rule, is_broken},
    page::{
        node,
        ops::{self, PageKind, PageOp},
        overflow,
        scratch::Scratch,
        undo,
    },
    pool::{Frame, ReadGuard},
    space::{SYSTEM_CODEC, Space, pins::TablePin},
    types::{Error, Lsn, PageNo, Result, TxnId},
    wal::{Until, page_writes},
};

/// Images are cut to this unit, the finest that any VFS knows.
const SECTOR: usize = 512;
/// Images of a batch take this many bytes at most; larger jobs go in several batches.
const BATCH_BYTES: usize = 1 << 20;

/// A consumer's buffers.
pub(super) struct Writer {
    encoder: Encoder,
    /// A copy of the page that is being compressed.
    copy: AlignedBuf,
    /// Memory for its packed form, which is compressed instead of it.
    packed: AlignedBuf,
    /// Images, each on a sector.
    images: AlignedBuf,
    /// Compressed images name no lesser transaction (`horizon`).
    horizon: TxnId,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer {
            encoder: Encoder::new(),
            copy: AlignedBuf::zeroed(PAGE_BYTES_MAX),
            packed: AlignedBuf::zeroed(PAGE_BYTES_MAX),
            images: AlignedBuf::zeroed(BATCH_BYTES + PAGE_BYTES_MAX),
            horizon: TxnId::NONE,
        }
    }
}

/// A page's image in the buffer.
pub(super) struct Image {
    pub(super) frame: Arc<Frame>,
    pub(super) space: TablePin,
    /// Where it lies in the buffer.
    pub(super) start: usize,
    /// Its length in whole sectors.
    pub(super) bytes: usize,
    lsn: Lsn,
    is_plain: bool,
    /// There is nothing to write: the page's range of the file is to be a hole.
    is_hole: bool,
}

impl Image {
    pub(super) fn is_hole(&self) -> bool {
        self.is_hole
    }

    pub(super) fn page(&self) -> PageNo {
        self.frame.id().page
    }

    /// The part of the page's range on the device that an older, longer image still takes, by the granularity of holes.
    fn stale(&self) -> Option<(u64, u64)> {
        let unit = u64::from(self.space.file().props().hole_unit);
        let on_disk = self.frame.disk_bytes() as u64;
        // Blocks lie side by side.
        if self.space.blocks().is_some() || unit == 0 || on_disk <= self.bytes as u64 {
            return None;
        }
        let from = (self.bytes as u64).next_multiple_of(unit);
        let to = on_disk.next_multiple_of(unit).min(self.space.page_bytes() as u64);
        (from < to).then(|| (self.space.offset(self.page()) + from, to - from))
    }
}

impl Writer {
    /// Writes those pages that are still due and not being changed. A failure poisons the store.
    pub(super) fn write(&mut self, flusher: &Flusher, due: &Due) -> Result<()> {
        assert!(due.frames.len() <= JOB_PAGES);
        let mut images = Vec::with_capacity(due.frames.len());
        let mut used = 0;
        let mut newest = Lsn(0);
        self.horizon = flusher.horizon();
        for frame in &due.frames {
            // Pages of a dropped table are never written.
            let Some(space) = flusher.spaces.get(frame.id().table).and_then(|space| space.pin_for_flush())
            else {
                continue;
            };
            let Some(image) = self.take(flusher, due, frame, space, used) else { continue };
            used += image.bytes;
            newest = newest.max(image.lsn);
            images.push(image);
            if used > BATCH_BYTES {
                self.write_images(flusher, &std::mem::take(&mut images), newest, due.cause)?;
                used = 0;
            }
        }
        self.write_images(flusher, &images, newest, due.cause)
    }

    /// Takes a page off the list of dirty ones and makes its image at `start` of the buffer.
    fn take(
        &mut self,
        flusher: &Flusher,
        due: &Due,
        frame: &Arc<Frame>,
        space: TablePin,
        start: usize,
    ) -> Option<Image> {
        let page = frame.try_read()?;
        if is_hole(flusher, &space, &page) {
            let (frame, lsn) = (frame.clone(), ops::lsn(&page));
            let is_due = flusher.pager.pool().dirty().take_off(&page, due.before);
            return is_due.then_some(Image {
                frame,
                space,
                start,
                bytes: 0,
                lsn,
                is_plain: false,
                is_hole: true,
            });
        }
        if let Some(blocks) = space.blocks() {
            let out = &mut self.images[start..start + blocks.block_bytes()];
            if !flusher.pager.pool().dirty().take_off(&page, due.before) {
                return None;
            }
            out.copy_from_slice(page.block());
            let meta = lacuna_page::read_meta(&page);
            drop(page);
            lacuna_page::seal_block(out, &meta, space.page_bytes());
            let (bytes, lsn) = (blocks.block_bytes(), Lsn(meta.lsn));
            let frame = frame.clone();
            return Some(Image { frame, space, start, bytes, lsn, is_plain: false, is_hole: false });
        }
        let on_disk = frame.disk_bytes();
        let codec = match due.cause {
            // No writer waits for space, and it may be the page's last image for long.
            Cause::Asked => space.codec(on_disk),
            Cause::Eviction | Cause::Log | Cause::Dirty => {
                space.codec(on_disk).after(on_disk, space.page_bytes())
            }
        };
        let codec = codec_of(&space, &page, codec);
        if !flusher.pager.pool().dirty().take_off(&page, due.before) {
            return None;
        }
        self.copy(&page, codec);
        drop(page);
        let lsn = ops::lsn(&self.copy[..space.page_bytes()]);
        let (bytes, is_plain) = self.encode(&space, codec, start);
        Some(Image { frame: frame.clone(), space, start, bytes, lsn, is_plain, is_hole: false })
    }

    /// Copies a latched page for [`Writer::encode`].
    fn copy(&mut self, page: &[u8], codec: Codec) {
        let copy = &mut self.copy[..page.len()];
        // Packing also leaves out free space.
        if is_compressed_node(page, codec) { copy.copy_from_slice(page) } else { copy_tidied(page, copy) }
    }

    /// Makes an image of the copied page at `start` of the buffer; returns its length in whole sectors, and
    /// whether it is not compressed.
    fn encode(&mut self, space: &Space, codec: Codec, start: usize) -> (usize, bool) {
        let page = &mut self.copy[..space.page_bytes()];
        let out = &mut self.images[start..start + space.page_bytes()];
        let encoded = if is_compressed_node(page, codec) {
            node::forget_writers(page, self.horizon);
            let packed = &mut self.packed[..space.page_bytes()];
            let leaf = node::pack(page, packed);
            let image = leaf.and_then(|leaf| self.encoder.encode_packed(page, leaf, codec, SECTOR, out));
            image.unwrap_or_else(|| {
                copy_tidied(page, packed);
                self.encoder.encode(packed, codec, SECTOR, out)
            })
        } else {
            self.encoder.encode(page, codec, SECTOR, out)
        };
        let bytes = encoded.image_bytes.next_multiple_of(SECTOR);
        (bytes, encoded.algorithm == Algorithm::None)
    }

    /// Whether the new image of an unchanged page would differ from the one on the device. The page must not be written
    /// meanwhile.
    pub(super) fn would_change(
        &mut self,
        flusher: &Flusher,
        page: &ReadGuard,
        space: &Space,
    ) -> Result<bool> {
        self.horizon = flusher.horizon();
        let on_disk = page.frame().disk_bytes();
        let codec = codec_of(space, page, space.codec(on_disk));
        self.copy(page, codec);
        let (bytes, _) = self.encode(space, codec, 0);
        if on_disk.next_multiple_of(SECTOR) != bytes {
            return Ok(true);
        }
        let old = &mut self.copy[..bytes];
        space.file().read_at(space.offset(page.id().page), old)?;
        Ok(*old != self.images[..bytes])
    }

    fn write_images(&self, flusher: &Flusher, images: &[Image], newest: Lsn, cause: Cause) -> Result<()> {
        if images.is_empty() {
            return Ok(());
        }
        if !is_broken(Rule::LogBeforePages) {
            flusher.pager.log().reach(newest, Until::Written)?;
        }
        flusher.pager.pool().note_written(newest);
        if is_broken(Rule::NotesFollowImages) {
            log_page_writes(flusher, images)?;
        }
        self.write_out(flusher, images)?;
        log_page_writes(flusher, images)?;
        let (mut written, mut again, mut bytes) = (0, 0, 0);
        for image in images {
            let was_written = image.frame.note_written(image.bytes, !image.is_hole);
            if image.is_hole {
                continue;
            }
            written += 1;
            again += u64::from(was_written);
            bytes += image.bytes as u64;
            image.space.count_written(|flushed| {
                flushed.pages += 1;
                flushed.image_bytes += image.bytes as u64;
                flushed.plain_pages += u64::from(image.is_plain);
            });
        }
        flusher.stats.lock().count_batch(cause, written, again, bytes);
        let frames: Vec<_> = images.iter().map(|image| image.frame.clone()).collect();
        flusher.pager.pool().dirty().land(&frames);
        Ok(())
    }

    /// Writes images and holes; on return the pages may leave the list of dirty ones (flush
    /// invariant 2). A failure poisons the store before the region with their images is free.
    fn write_out(&self, flusher: &Flusher, images: &[Image]) -> Result<(), Error> {
        let poisoned = |e| flusher.poison.set(e);
        let mut region = None;
        let has_data = images.iter().any(|image| !image.is_hole);
        if let Some(file) = flusher.doublewrite.as_ref().filter(|_| has_data) {
            let (held, bytes) = file.write(images, &self.images, &flusher.poison).map_err(poisoned)?;
            flusher.stats.lock().doublewrite_bytes += bytes;
            region = Some(held);
        }
        let written = self.write_in_place(flusher, images).map_err(poisoned);
        drop(region);
        written
    }

    fn write_in_place(&self, flusher: &Flusher, images: &[Image]) -> Result<(), Error> {
        let props = flusher.vfs.props();
        let is_atomic = props.atomic_bytes_max > 0;
        let may_punch = flusher.may_punch();
        let mut batch = Vec::with_capacity(2 * images.len());
        let mut holes = Vec::new();
        for image in images {
            let (file, offset) = (image.space.file().id(), image.space.offset(image.page()));
            let hole = if image.is_hole {
                Some((offset, image.space.slot_bytes() as u64))
            } else {
                let data = &self.images[image.start..image.start + image.bytes];
                batch.push(BatchOp::Write { file, offset, data });
                image.stale().filter(|_| may_punch)
            };
            let Some((offset, len)) = hole else { continue };
            let hole = BatchOp::Punch { file, offset, len };
            if is_atomic {
                batch.push(hole);
                punched(flusher, image);
            } else {
                holes.push((image, hole));
            }
        }
        flusher.vfs.write_batch(&batch)?;
        for (image, hole) in holes {
            if !punch(flusher, image, hole)? && image.is_hole {
                write_hole(image)?;
            }
        }
        if !props.ordered && !is_broken(Rule::PagesSynced) {
            let mut spaces: Vec<_> = images.iter().map(|image| &image.space).collect();
            spaces.sort_by_key(|space| space.id());
            spaces.dedup_by_key(|space| space.id());
            for space in spaces {
                space.file().sync()?;
            }
        }
        Ok(())
    }
}

/// Notes in the log that these images are on the device (`page_writes`).
fn log_page_writes(flusher: &Flusher, images: &[Image]) -> Result<()> {
    let mut records = Scratch::new();
    for image in images {
        page_writes::encode(image.frame.id(), image.lsn, &mut records);
    }
    flusher.pager.log().append_page_writes(&records)
}

/// The codec for the image of a page whose table uses `codec`: a long value's last page is compressed, where the part
/// that the value does not fill can be left out. Otherwise a value a little longer than a leaf takes would take a page.
fn codec_of(space: &Space, page: &[u8], codec: Codec) -> Codec {
    let unit = space.file().props().hole_unit as usize;
    let is_plain = codec.algorithm == Algorithm::None && unit != 0;
    if !is_plain || ops::kind(page) != Some(PageKind::Overflow) {
        return codec;
    }
    let unused =
        overflow::Link::parse(page).map_or(0, |link| overflow::part_bytes_max(page.len()) - link.part.len());
    if unused >= unit { SYSTEM_CODEC } else { codec }
}

/// Whether it is a node of which a compressed image is to be made.
fn is_compressed_node(page: &[u8], codec: Codec) -> bool {
    codec.algorithm != Algorithm::None && ops::kind(page) == Some(PageKind::Node)
}

/// Punches the space that an older, longer image took beyond this one, on a VFS that makes holes apart from writes. A
/// refusal costs space and nothing else: readers go by the image's own length. Returns whether it did.
fn punch(flusher: &Flusher, image: &Image, hole: BatchOp<'_>) -> Result<bool> {
    if !flusher.may_punch() {
        return Ok(false);
    }
    match flusher.vfs.write_batch(&[hole]) {
        Ok(()) => {
            punched(flusher, image);
            Ok(true)
        }
        Err(error @ (DeviceError::Unsupported { .. } | DeviceError::Full { .. })) => {
            image.space.count_written(|flushed| flushed.refused_punches += 1);
            let refused = {
                let mut stats = flusher.stats.lock();
                stats.refused_punches += 1;
                stats.refused_punches
            };
            if refused == 1 {
                log::warn!("{error}; no more holes are asked for until the store is reopened");
            }
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the page is to be a hole in its file (`alloc`, invariant 2).
fn is_hole(flusher: &Flusher, space: &Space, page: &[u8]) -> bool {
    // In blocks shorter than a hole there is none.
    let unit = space.file().props().hole_unit as usize;
    let has_holes = unit != 0 && space.slot_bytes().is_multiple_of(unit) && flusher.may_punch();
    has_holes && ops::kind(page) == Some(PageKind::Hole)
}

/// Writes the image of a page of which no hole could be made: the image on the device must not be older than its
/// page-write record.
fn write_hole(image: &Image) -> Result<()> {
    let space = &image.space;
    let page_no = image.page().0;
    let meta = Meta { kind: PageKind::Hole as u8, table: space.id().0, page_no, lsn: image.lsn.0 };
    let mut out = AlignedBuf::zeroed(space.slot_bytes());
    if space.blocks().is_some() {
        let mut blank = Vec::new();
        PageOp::Blank { kind: PageKind::Hole }.encode_in_block(&mut blank);
        lacuna_page::reset_block(&mut out);
        assert!(lacuna_page::append_to_block(&mut out, &blank), "an empty block has space");
        lacuna_page::seal_block(&mut out, &meta, space.page_bytes());
    } else {
        lacuna_page::write_meta(&mut out, &meta);
        let page = out.to_vec();
        Encoder::new().encode(&page, Codec::PLAIN, SECTOR, &mut out);
    }
    Ok(space.file().write_at(space.offset(image.page()), &out)?)
}

fn punched(flusher: &Flusher, image: &Image) {
    image.space.count_written(|flushed| flushed.punches += 1);
    flusher.stats.lock().punches += 1;
}

/// Copies a page with its unused bytes zeroed, so that its image compresses well.
fn copy_tidied(page: &[u8], out: &mut [u8]) {
    match ops::kind(page) {
        Some(PageKind::Node) => node::copy_tidied(page, out),
        Some(PageKind::Undo) => undo::copy_tidied(page, out),
        _ => out.copy_from_slice(page),
    }
}
