//! The doublewrite file: a second home for pages while their first one is being overwritten.
//!
//! For places that may tear a page. A consumer takes one of a few *regions* of the file, writes its
//! images and a header that names them, and syncs; only then the pages are written to their own
//! places and synced. A crash in between leaves each page whole in at least one of both. Recovery
//! puts every whole image of the file back whose own place holds none.
//!
//! Images stay in a region until it is used anew, so some are older than what their places held. One
//! with an LSN before the checkpoint was synced in place long ago and is left alone: damage in its
//! place is no torn write, and putting it back would lose changes silently. Of all others the log
//! still holds every later change.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, File, Place, StreamHint};
use lacuna_page::{Decoder, PAGE_BYTES_MAX};
use parking_lot::{Condvar, Mutex};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{JOB_PAGES, write::Image};
use crate::{
    error::Result,
    ids::{Lsn, PageNo, TableId},
    node,
    space::Spaces,
};

const NAME: &str = "doublewrite";
const MAGIC: u32 = u32::from_le_bytes(*b"LcDW");
const REGIONS: u64 = 8;
const HEADER_BYTES: usize = 4096;
const REGION_BYTES: u64 = (HEADER_BYTES + JOB_PAGES * PAGE_BYTES_MAX) as u64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Header {
    magic: U32,
    /// CRC32C of header and entries with this field zero.
    checksum: U32,
    count: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Entry {
    page: U64,
    table: U32,
    /// Where the image starts in the region.
    start: U32,
    bytes: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<Header>() + JOB_PAGES * size_of::<Entry>() <= HEADER_BYTES);

/// The open file, and which of its regions are free.
pub(super) struct DoublewriteFile {
    file: Arc<dyn File>,
    free: Mutex<Vec<u64>>,
    freed: Condvar,
}

/// A region in use; dropped once its pages are synced in place.
pub(super) struct Region<'a> {
    owner: &'a DoublewriteFile,
    number: u64,
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        self.owner.free.lock().push(self.number);
        self.owner.freed.notify_one();
    }
}

impl DoublewriteFile {
    pub(super) fn open(place: &dyn Place) -> Result<DoublewriteFile> {
        let file = match place.open(NAME, StreamHint::Log) {
            Err(lacuna_device::Error::NotFound { .. }) => {
                let file = place.create(NAME, StreamHint::Log)?;
                // Syncing the file alone does not keep its name.
                place.sync()?;
                file
            }
            other => other?,
        };
        file.set_len(REGIONS * REGION_BYTES)?;
        Ok(DoublewriteFile { file, free: Mutex::new((0..REGIONS).collect()), freed: Condvar::new() })
    }

    /// Makes the images durable here. The region is held until its pages are in place.
    pub(super) fn write(&self, images: &[Image], buffer: &[u8]) -> Result<(Region<'_>, u64)> {
        let region = self.take();
        let at = region.number * REGION_BYTES;
        let mut header = AlignedBuf::zeroed(HEADER_BYTES);
        let mut used = HEADER_BYTES;
        for (i, image) in images.iter().enumerate() {
            let entry = Entry {
                page: image.page().0.into(),
                table: image.space.id.0.into(),
                start: (used as u32).into(),
                bytes: (image.bytes as u32).into(),
                reserved: 0.into(),
            };
            let slot = size_of::<Header>() + i * size_of::<Entry>();
            header[slot..slot + size_of::<Entry>()].copy_from_slice(entry.as_bytes());
            used += image.bytes;
        }
        let mut head = Header {
            magic: MAGIC.into(),
            checksum: 0.into(),
            count: (images.len() as u32).into(),
            reserved: 0.into(),
        };
        header[..size_of::<Header>()].copy_from_slice(head.as_bytes());
        head.checksum = lacuna_crc::crc32c(&header).into();
        header[..size_of::<Header>()].copy_from_slice(head.as_bytes());
        let first = images.first().expect("a batch has images").start;
        let last = images.last().expect("a batch has images");
        self.file.write_at(at, &header)?;
        self.file.write_at(at + HEADER_BYTES as u64, &buffer[first..last.start + last.bytes])?;
        self.file.sync()?;
        Ok((region, used as u64))
    }

    fn take(&self) -> Region<'_> {
        let mut free = self.free.lock();
        loop {
            if let Some(number) = free.pop() {
                return Region { owner: self, number };
            }
            self.freed.wait(&mut free);
        }
    }
}

/// Puts back the pages that a crash tore. Returns how many. To be called before the log is replayed
/// from `checkpoint`.
pub(crate) fn restore(place: &dyn Place, spaces: &Spaces, checkpoint: Lsn) -> Result<u64> {
    let file = match place.open(NAME, StreamHint::Log) {
        Err(lacuna_device::Error::NotFound { .. }) => return Ok(0),
        other => other?,
    };
    let mut restored = 0;
    for region in 0..REGIONS {
        let at = region * REGION_BYTES;
        let mut header = AlignedBuf::zeroed(HEADER_BYTES);
        file.read_at(at, &mut header)?;
        for entry in parse(&mut header) {
            restored += u64::from(restore_page(spaces, &*file, at, entry, checkpoint)?);
        }
    }
    for space in spaces.all() {
        if restored > 0 {
            space.file.sync()?;
        }
    }
    Ok(restored)
}

/// The entries of a region's header; none when it is torn.
fn parse(header: &mut [u8]) -> Vec<Entry> {
    let (mut head, _) = Header::read_from_prefix(header).expect("long enough");
    let want = head.checksum.get();
    let count = head.count.get() as usize;
    head.checksum = 0.into();
    header[..size_of::<Header>()].copy_from_slice(head.as_bytes());
    if head.magic != MAGIC || count > JOB_PAGES || lacuna_crc::crc32c(header) != want {
        return Vec::new();
    }
    let slots = header[size_of::<Header>()..].chunks_exact(size_of::<Entry>());
    slots.take(count).map(|slot| Entry::read_from_bytes(slot).expect("exact chunk")).collect()
}

fn restore_page(
    spaces: &Spaces,
    file: &dyn File,
    region: u64,
    entry: Entry,
    checkpoint: Lsn,
) -> Result<bool> {
    let (table, page) = (TableId(entry.table.get()), PageNo(entry.page.get()));
    let bytes = entry.bytes.get() as usize;
    let Some(space) = spaces.get(table) else { return Ok(false) };
    if bytes > space.page_bytes
        || (space.row.is_some() && bytes != space.slot_bytes())
        || u64::from(entry.start.get()) + bytes as u64 > REGION_BYTES
    {
        return Ok(false);
    }
    let mut decoder = Decoder::unpacking(node::unpack);
    let mut target = vec![0; space.page_bytes];
    let mut open = |image: &mut [u8]| match &space.row {
        // The checksum covers all of a block; the copy is for the field that it is checked without.
        Some(_) => lacuna_page::open_block(&mut image.to_vec(), (table.0, page.0), space.page_bytes),
        None => decoder.decode(image, (table.0, page.0), &mut target),
    };
    let mut image = AlignedBuf::zeroed(space.slot_bytes());
    space.file.read_at(space.offset(page), &mut image)?;
    if open(&mut image).is_ok() {
        return Ok(false);
    }
    let mut image = AlignedBuf::zeroed(bytes);
    file.read_at(region + u64::from(entry.start.get()), &mut image)?;
    match open(&mut image) {
        Ok(meta) if Lsn(meta.lsn) >= checkpoint => {}
        // Old, or torn itself: then its pages were not touched yet.
        _ => return Ok(false),
    }
    space.file.write_at(space.offset(page), &image)?;
    Ok(true)
}

/// The header of a region as it is, and under a valid checksum; see the module fuzz.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_doublewrite(bytes: &[u8]) {
    let mut header = vec![0; HEADER_BYTES];
    let len = bytes.len().min(HEADER_BYTES);
    header[..len].copy_from_slice(&bytes[..len]);
    parse(&mut header.clone());
    header[4..8].fill(0);
    let crc = lacuna_crc::crc32c(&header);
    header[4..8].copy_from_slice(&crc.to_le_bytes());
    assert!(parse(&mut header).len() <= JOB_PAGES);
}

/// Rows of FORMAT.md: structure, offset, bytes, field.
#[cfg(test)]
pub(crate) const LAYOUT: &[(&str, usize, usize, &str)] = &[
    ("doublewrite header", std::mem::offset_of!(Header, magic), 4, "magic"),
    ("doublewrite header", std::mem::offset_of!(Header, checksum), 4, "checksum"),
    ("doublewrite header", std::mem::offset_of!(Header, count), 4, "count"),
    ("doublewrite header", std::mem::offset_of!(Header, reserved), 4, "reserved"),
    ("doublewrite entry", std::mem::offset_of!(Entry, page), 8, "page"),
    ("doublewrite entry", std::mem::offset_of!(Entry, table), 4, "table"),
    ("doublewrite entry", std::mem::offset_of!(Entry, start), 4, "start"),
    ("doublewrite entry", std::mem::offset_of!(Entry, bytes), 4, "bytes"),
    ("doublewrite entry", std::mem::offset_of!(Entry, reserved), 4, "reserved"),
];
