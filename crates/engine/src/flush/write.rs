//! One consumer: copies, compresses and writes the pages of a job.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, BatchOp, Error as DeviceError};
use lacuna_page::{Algorithm, Codec, Encoder, Meta, PAGE_BYTES_MAX};

use super::{Due, JOB_PAGES, LONG_JOB_PAGES, protection::Protection, stats::Cause};
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
    types::{Lsn, PageNo, Result, TxnId},
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
    /// Memory for an image that is tried beside another.
    trial: AlignedBuf,
    /// Images, each on a sector.
    images: AlignedBuf,
    /// Compressed images name no lesser transaction (`horizon`).
    horizon: TxnId,
    /// Leaves are packed.
    packs: bool,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer {
            encoder: Encoder::new(),
            copy: AlignedBuf::zeroed(PAGE_BYTES_MAX),
            packed: AlignedBuf::zeroed(PAGE_BYTES_MAX),
            trial: AlignedBuf::zeroed(PAGE_BYTES_MAX),
            images: AlignedBuf::zeroed(BATCH_BYTES + PAGE_BYTES_MAX),
            horizon: TxnId::NONE,
            packs: true,
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
    /// Bytes that are written in its place, zeros behind it included.
    write_bytes: usize,
    lsn: Lsn,
    is_plain: bool,
    is_encrypted: bool,
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

    fn offset(&self) -> u64 {
        self.space.offset(self.page())
    }

    /// The part of the page's range on the device that an older, longer image still takes, or that was written with
    /// this one to fill it up, by the granularity of holes.
    fn stale(&self) -> Option<(u64, u64)> {
        let unit = u64::from(self.space.file().props().hole_unit);
        let taken = self.frame.taken_bytes().unwrap_or_else(|| match self.frame.disk_bytes() {
            bytes if bytes > 0 && self.is_encrypted => self.space.page_bytes(),
            bytes => bytes,
        });
        let taken = taken.max(self.write_bytes) as u64;
        // Blocks lie side by side.
        if self.space.blocks().is_some() || unit == 0 || taken <= self.bytes as u64 {
            return None;
        }
        let from = (self.bytes as u64).next_multiple_of(unit);
        let to = taken.next_multiple_of(unit).min(self.space.page_bytes() as u64);
        (from < to).then(|| (self.offset() + from, to - from))
    }

    /// By how much less it takes than the image before it.
    fn shrunk(&self) -> u64 {
        let unit = (self.space.file().props().hole_unit as usize).max(SECTOR);
        let before = if self.is_hole { 0 } else { self.frame.image_bytes() };
        before.next_multiple_of(unit).saturating_sub(self.bytes.next_multiple_of(unit)) as u64
    }

    /// The hole that comes with it: all of a free page, else the part behind the image that is stale.
    fn hole(&self) -> Option<(u64, u64)> {
        if self.is_hole { Some((self.offset(), self.space.slot_bytes() as u64)) } else { self.stale() }
    }

    /// Bytes from its start on in which nothing older may stay, as far as no hole takes it away. Behind an encrypted image
    /// there may be plaintext of the time before.
    fn covered_bytes(&self, flusher: &Flusher) -> usize {
        if !self.is_encrypted || is_broken(Rule::TailsCovered) {
            return self.bytes;
        }
        let page_bytes = self.space.page_bytes();
        let taken = self.frame.taken_bytes().map_or(page_bytes, |bytes| bytes.next_multiple_of(SECTOR));
        let hole_from = match self.space.file().props().hole_unit as usize {
            unit if unit != 0 && flusher.may_punch() => self.bytes.next_multiple_of(unit),
            _ => page_bytes,
        };
        taken.min(hole_from).min(page_bytes).max(self.bytes)
    }

    /// Whether nothing lies behind it once it is written, and its hole made.
    fn is_all(&self) -> bool {
        let was_known = self.frame.taken_bytes().is_some();
        let is_covered = self.frame.disk_bytes() > 0 || self.write_bytes == self.space.page_bytes();
        self.is_encrypted && (was_known || is_covered)
    }

    /// Whether an older image lies in the stale part, which readers need as long as this one may be lost.
    fn was_longer(&self) -> bool {
        let unit = (self.space.file().props().hole_unit as usize).max(1);
        !self.is_hole && self.frame.disk_bytes() > self.bytes.next_multiple_of(unit)
    }
}

impl Writer {
    /// Takes over what images depend on.
    fn prepare(&mut self, flusher: &Flusher) {
        self.horizon = flusher.horizon();
        self.packs = flusher.options.packing;
    }

    /// Writes those pages that are still due and not being changed. A failure poisons the store.
    pub(super) fn write(&mut self, flusher: &Flusher, due: &Due) -> Result<()> {
        assert!(due.frames.len() <= LONG_JOB_PAGES);
        self.prepare(flusher);
        let pin = |frame: &Arc<Frame>| {
            // Pages of a dropped table are never written.
            let space = flusher.spaces.get(frame.id().table)?.pin_for_flush()?;
            if flusher.may_lack_key(&space) {
                return None;
            }
            let protection = flusher.protection(&space);
            Some((frame.clone(), space, protection))
        };
        let mut pages: Vec<_> = due.frames.iter().filter_map(pin).collect();
        pages.sort_by_key(|(.., protection)| protection.rank());
        let mut batch = Batch::default();
        for (frame, space, protection) in pages {
            let is_full = batch.used > BATCH_BYTES
                || protection == Protection::Batch
                    && (batch.used + space.slot_bytes()) as u64 > space.file().props().atomic_bytes_max;
            if is_full || batch.protection.is_some_and(|others| others != protection) {
                self.write_images(flusher, &std::mem::take(&mut batch), due.cause)?;
            }
            batch.protection = Some(protection);
            self.encoder.set_checksums(flusher.options.checksums || !protection.is_never_torn());
            let Some(mut image) = self.take(flusher, due, &frame, space, batch.used) else { continue };
            if !image.is_hole {
                image.write_bytes = protection.write_bytes(image.covered_bytes(flusher));
                self.images[image.start + image.bytes..image.start + image.write_bytes].fill(0);
            }
            batch.used += image.write_bytes;
            batch.newest = batch.newest.max(image.lsn);
            batch.images.push(image);
        }
        self.write_images(flusher, &batch, due.cause)
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
                write_bytes: 0,
                lsn,
                is_plain: false,
                is_encrypted: false,
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
            flusher.note_taken(bytes.saturating_sub(frame.image_bytes()));
            let frame = frame.clone();
            let write_bytes = bytes;
            return Some(Image {
                frame,
                space,
                start,
                bytes,
                write_bytes,
                lsn,
                is_plain: false,
                is_encrypted: false,
                is_hole: false,
            });
        }
        let on_disk = frame.disk_bytes();
        let codec = codec_of(&space, &page, codec_for(due.cause, &space, on_disk));
        if !flusher.pager.pool().dirty().take_off(&page, due.before) {
            return None;
        }
        self.copy(&page, codec);
        drop(page);
        let lsn = ops::lsn(&self.copy[..space.page_bytes()]);
        let (mut bytes, mut is_plain) = self.encode(&space, codec, start);
        let before = frame.image_bytes();
        let grows = before > 0 && bytes > before.next_multiple_of(SECTOR);
        if grows && due.cause != Cause::Rest && flusher.is_short_of_space() {
            (bytes, is_plain) = self.encode_as_before(frame, &space, codec, (bytes, is_plain), start);
        }
        let unit = (space.file().props().hole_unit as usize).max(SECTOR);
        flusher.note_taken(bytes.next_multiple_of(unit).saturating_sub(before.next_multiple_of(unit)));
        let (frame, write_bytes) = (frame.clone(), bytes);
        let is_encrypted = lacuna_page::is_encrypted(&self.images[start..]);
        Some(Image { frame, space, start, bytes, write_bytes, lsn, is_plain, is_encrypted, is_hole: false })
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
        self.encoder.set_cipher(space.write_cipher());
        let page = &mut self.copy[..space.page_bytes()];
        let out = &mut self.images[start..start + space.page_bytes()];
        let encoded = if is_compressed_node(page, codec) {
            node::forget_writers(page, self.horizon);
            let packed = &mut self.packed[..space.page_bytes()];
            let leaf = if self.packs { node::pack(page, packed) } else { None };
            let is_sure = leaf.is_some_and(|leaf| !node::breaks_repeats(page, leaf));
            match leaf.and_then(|leaf| self.encoder.encode_packed(page, leaf, codec, SECTOR, out)) {
                Some(image) if is_sure => image,
                image => {
                    copy_tidied(page, packed);
                    let trial = &mut self.trial[..space.page_bytes()];
                    let alone = self.encoder.encode(packed, codec, SECTOR, trial);
                    match image {
                        Some(image) if image.image_bytes <= alone.image_bytes => image,
                        _ => {
                            out.copy_from_slice(trial);
                            alone
                        }
                    }
                }
            }
        } else {
            self.encoder.encode(page, codec, SECTOR, out)
        };
        let bytes = encoded.image_bytes.next_multiple_of(SECTOR);
        (bytes, encoded.algorithm == Algorithm::None)
    }

    /// Makes the image of the copied page anew by the algorithm of the one on the device, and packed, where `codec` made
    /// a longer one, of so many bytes; the shortest one stays. No image tells its level. The greatest one takes long, so it
    /// is left to images that would become longer by more than an eighth.
    fn encode_as_before(
        &mut self,
        frame: &Frame,
        space: &Space,
        codec: Codec,
        made: (usize, bool),
        start: usize,
    ) -> (usize, bool) {
        let mut header = AlignedBuf::zeroed(SECTOR);
        let offset = space.offset(frame.id().page);
        let Ok(()) = space.file().read_at(offset, &mut header) else { return made };
        let Ok((algorithm, _)) = lacuna_page::image_form(&header) else { return made };
        if !algorithm.is_built_in() {
            return made;
        }
        let before = frame.image_bytes().next_multiple_of(SECTOR);
        let of_table = if algorithm == codec.algorithm { codec } else { Codec::fast(algorithm) };
        let greatest = Codec { algorithm, level: *algorithm.levels().end() };
        let packs = std::mem::replace(&mut self.packs, true);
        // The last one is in the buffer.
        let (mut best, mut last) = ((made, codec, packs), (codec, packs));
        for (codec, enough) in
            [(of_table, before), (Codec::fast(algorithm), before), (greatest, before / 8 * 9)]
        {
            if best.0.0 <= enough || last == (codec, true) {
                continue;
            }
            last = (codec, true);
            let again = self.encode(space, codec, start);
            if again.0 < best.0.0 {
                best = (again, codec, true);
            }
        }
        let (made, codec, packed) = best;
        if last != (codec, packed) {
            self.packs = packed;
            self.encode(space, codec, start);
        }
        self.packs = packs;
        made
    }

    /// Whether the new image of an unchanged page would differ from the one on the device. The page must not be written
    /// meanwhile.
    pub(super) fn would_change(
        &mut self,
        flusher: &Flusher,
        page: &ReadGuard,
        space: &Space,
        cause: Cause,
    ) -> Result<bool> {
        self.prepare(flusher);
        let is_never_torn = flusher.protection(space).is_never_torn();
        self.encoder.set_checksums(flusher.options.checksums || !is_never_torn);
        let on_disk = page.frame().disk_bytes();
        let codec = codec_of(space, page, codec_for(cause, space, on_disk));
        self.copy(page, codec);
        let (bytes, _) = self.encode(space, codec, 0);
        // Behind others it may stay.
        let is_encrypted = lacuna_page::is_encrypted(&self.images);
        let has_more = is_encrypted && page.frame().taken_bytes().is_some_and(|taken| taken > bytes);
        if on_disk.next_multiple_of(SECTOR) != bytes || has_more {
            return Ok(true);
        }
        let old = &mut self.copy[..bytes];
        space.file().read_at(space.offset(page.id().page), old)?;
        Ok(*old != self.images[..bytes])
    }

    fn write_images(&mut self, flusher: &Flusher, batch: &Batch, cause: Cause) -> Result<()> {
        let Batch { images, newest, .. } = batch;
        let Some(protection) = batch.protection.filter(|_| !images.is_empty()) else { return Ok(()) };
        let newest = *newest;
        if !is_broken(Rule::LogBeforePages) {
            flusher.pager.log().reach(newest, Until::Written)?;
        }
        flusher.pager.pool().note_written(newest);
        if is_broken(Rule::NotesFollowImages) {
            log_page_writes(flusher, images)?;
        }
        let write_bytes = self.write_out(flusher, images, protection)?;
        log_page_writes(flusher, images)?;
        let (mut written, mut again, mut bytes) = (0, 0, 0);
        if flusher.may_punch() {
            flusher.owed().note_shrunk(images.iter().map(Image::shrunk).sum());
        }
        for image in images {
            note_rest(flusher, image, cause);
            let was_written = image.frame.note_written(image.bytes, !image.is_hole, image.is_all());
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
        flusher.stats.lock().count_batch(cause, written, again, (bytes, write_bytes));
        let frames: Vec<_> = images.iter().map(|image| image.frame.clone()).collect();
        flusher.pager.pool().dirty().land(&frames);
        Ok(())
    }

    /// Writes images and holes; on return the pages may leave the list of dirty ones (flush invariant 2). A failure
    /// poisons the store. Returns the bytes written in place.
    fn write_out(&mut self, flusher: &Flusher, images: &[Image], protection: Protection) -> Result<u64> {
        let poisoned = |e| flusher.poison.set(e);
        if let Protection::Single(_) = protection {
            if let Some(refusal) = self.write_singly(flusher, images).map_err(poisoned)? {
                flusher.note_refused_atomic_write(&refusal);
                // These may be torn, and were made for writes that never are.
                for image in images.iter().filter(|image| !image.is_hole && image.space.blocks().is_none()) {
                    lacuna_page::add_checksum(&mut self.images[image.start..image.start + image.bytes]);
                }
                self.write_twice(flusher, images)?;
            }
        } else if protection == Protection::Twice {
            self.write_twice(flusher, images)?;
        } else {
            self.write_in_place(flusher, images).map_err(poisoned)?;
        }
        Ok(images.iter().map(|image| image.write_bytes as u64).sum())
    }

    /// A failure poisons the store before the region with the images is free.
    fn write_twice(&self, flusher: &Flusher, images: &[Image]) -> Result<()> {
        let poisoned = |e| flusher.poison.set(e);
        let file = flusher.doublewrite().map_err(poisoned)?;
        for images in images.chunks(JOB_PAGES) {
            let mut region = None;
            if images.iter().any(|image| !image.is_hole) {
                let (held, bytes) = file.write(images, &self.images, flusher).map_err(poisoned)?;
                flusher.stats.lock().doublewrite_bytes += bytes;
                region = Some(held);
            }
            let written = self.write_in_place(flusher, images).map_err(poisoned);
            drop(region);
            written?;
        }
        Ok(())
    }

    /// Writes each image by one atomic write. Returns the error of a write that the VFS refused; then some are written.
    fn write_singly(&self, flusher: &Flusher, images: &[Image]) -> Result<Option<DeviceError>> {
        for image in images.iter().filter(|image| !image.is_hole) {
            let data = &self.images[image.start..image.start + image.write_bytes];
            let written = match is_broken(Rule::PagesWhole) {
                true => image.space.file().write_at(image.offset(), data),
                false => image.space.file().write_atomic(image.offset(), data),
            };
            match written {
                Err(error @ (DeviceError::Unsupported { .. } | DeviceError::Full { .. })) => {
                    return Ok(Some(error));
                }
                other => other?,
            }
        }
        // The end of a longer old image is needed until the new one is synced. What lies behind both, and pages that
        // are free, nobody needs.
        let has_old_end = |image: &&Image| image.was_longer() && !is_broken(Rule::OldEndsKept);
        let (late, early): (Vec<&Image>, Vec<&Image>) = images.iter().partition(has_old_end);
        punch_all(flusher, &early)?;
        sync_files(images.iter())?;
        if punch_all(flusher, &late)? {
            // The page may be written anew at once, and a hole must not come after that.
            sync_files(late.into_iter())?;
        }
        Ok(None)
    }

    fn write_in_place(&self, flusher: &Flusher, images: &[Image]) -> Result<()> {
        let props = flusher.vfs.props();
        let is_atomic = props.atomic_bytes_max > 0;
        let may_punch = flusher.may_punch();
        let mut batch = Vec::with_capacity(2 * images.len());
        let mut holes = Vec::new();
        for image in images {
            let (file, offset) = (image.space.file().id(), image.offset());
            if !image.is_hole {
                let data = &self.images[image.start..image.start + image.write_bytes];
                batch.push(BatchOp::Write { file, offset, data });
            }
            if !is_atomic {
                holes.push(image);
            } else if let Some((offset, len)) = image.hole().filter(|_| image.is_hole || may_punch) {
                batch.push(BatchOp::Punch { file, offset, len });
                punched(flusher, image);
            }
        }
        flusher.vfs.write_batch(&batch)?;
        punch_all(flusher, &holes)?;
        if !props.ordered {
            sync_files(images.iter())?;
        }
        Ok(())
    }
}

/// Images that are written together.
#[derive(Default)]
struct Batch {
    images: Vec<Image>,
    /// Theirs; none as long as there are none.
    protection: Option<Protection>,
    /// Bytes of the buffer that they take.
    used: usize,
    /// The newest of their LSNs.
    newest: Lsn,
}

/// Makes the holes that come with these images, each by a request of its own; returns whether any was made, or zeros
/// written instead, which is to be synced.
fn punch_all(flusher: &Flusher, images: &[&Image]) -> Result<bool> {
    let mut is_made = false;
    for image in images {
        let Some((offset, len)) = image.hole() else { continue };
        let hole = BatchOp::Punch { file: image.space.file().id(), offset, len };
        if punch(flusher, image, hole)? {
            is_made = true;
        } else if image.is_hole {
            write_hole(image)?;
            is_made = true;
        } else if image.is_encrypted && image.offset() + (image.write_bytes as u64) < offset + len {
            image.space.file().write_at(offset, &AlignedBuf::zeroed(len as usize))?;
            is_made = true;
        }
    }
    Ok(is_made)
}

/// The codec of a page that is written for that cause, and whose image on the device takes `on_disk` bytes.
fn codec_for(cause: Cause, space: &Space, on_disk: usize) -> Codec {
    match cause {
        // No writer waits for space, and it may be the page's last image for long.
        Cause::Asked | Cause::Wake => space.codec(on_disk),
        Cause::Rest => space.rest_codec(on_disk),
        Cause::Eviction | Cause::Log | Cause::Dirty => {
            space.codec(on_disk).after(on_disk, space.page_bytes())
        }
    }
}

/// Notes of a page of an adaptive table how its image was made (`space::rest`).
fn note_rest(flusher: &Flusher, image: &Image, cause: Cause) {
    let space = &image.space;
    match cause {
        _ if !space.is_adaptive() => {}
        Cause::Rest => {
            space.rest_notes().note_rested(image.page().0);
            space.count_written(|flushed| flushed.rested_pages += 1);
        }
        _ => {
            space.rest_notes().note_written(image.page().0, flusher.pager.log().end_hint());
            space.count_written(|flushed| flushed.woken_pages += u64::from(cause == Cause::Wake));
        }
    }
}

/// Syncs the files of these images, each once.
fn sync_files<'a>(images: impl Iterator<Item = &'a Image>) -> Result<()> {
    if is_broken(Rule::PagesSynced) {
        return Ok(());
    }
    let mut spaces: Vec<_> = images.map(|image| &image.space).collect();
    spaces.sort_by_key(|space| space.id());
    spaces.dedup_by_key(|space| space.id());
    for space in spaces {
        space.file().sync()?;
    }
    Ok(())
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
        // Whatever the system's reason: a failing device fails the sync as well.
        Err(
            error @ (DeviceError::Unsupported { .. } | DeviceError::Full { .. } | DeviceError::Io { .. }),
        ) => {
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
    flusher.makes_holes(space) && ops::kind(page) == Some(PageKind::Hole)
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
