//! The doublewrite file: a second copy of pages while they are overwritten in place.
//!
//! For VFSs that may tear a page. A consumer takes one of a few *regions* of the file, writes its
//! images and a header that names them, and syncs; only then the pages are written to their own
//! places and synced. A crash in between leaves each page whole in at least one of both. Recovery
//! puts every whole image of the file back whose own place holds none.
//!
//! Invariants:
//!
//! 1. A region is reused only when its pages are synced in place. When that fails the store is stopped before the
//!    region is free, and a job that takes a region of a stopped store leaves it as it is.
//! 2. Recovery frees all regions, so by its end their pages are synced in place too: a process may have ended, or its
//!    sync failed, between write and sync, so a page that reads well in place may be in a cache only. One of which a
//!    region has the very image is written again, and synced.
//!
//! Images stay in a region until it is reused, so some are older than the images in place. One with an LSN before the
//! checkpoint, or before that of an image of its page that a page-write record names, was synced in place long ago and
//! is left alone: damage in its place is no torn write, and putting it back would lose changes silently. Of all others
//! the log still holds every later change, and replay applies it.
//!
//! 3. An image in place without a checksum of all its bytes may be torn by a newer one and look whole: the newer image
//!    takes its place.
//! 4. Recovery writes a page in place only from a copy that is durable in this file. What it reads here may be in a cache
//!    only, so it writes the copy and the region's header again, and syncs them, before the page. A sound image with a
//!    checksum is left alone, unless the copy is the same: replay brings it up to date.
//! 5. Copies of pages that there is space for (`capacity`) have space too. One region takes all of its own when the file
//!    is opened. Others take more than before only while there is plenty: otherwise a job waits for one that took enough.

use std::{collections::BTreeSet, sync::Arc};

use lacuna_device::{AlignedBuf, File, StreamHint, Vfs};
use lacuna_page::{Decoder, Error as PageError, PAGE_BYTES_MAX};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{Flusher, JOB_PAGES, write::Image};
use crate::{
    mutant::{Rule, is_broken},
    page::node,
    space::{Space, Spaces},
    sync::{Condvar, Mutex},
    types::{Lsn, PageId, PageNo, Result, TableId},
    wal::page_writes::PageWrites,
};

const NAME: &str = "doublewrite";
const MAGIC: u32 = u32::from_le_bytes(*b"LcDW");
const REGIONS: u64 = 8;
const HEADER_BYTES: usize = 4096;
const REGION_BYTES: u64 = (HEADER_BYTES + JOB_PAGES * PAGE_BYTES_MAX) as u64;
/// Bytes of the file.
pub(super) const BYTES: u64 = REGIONS * REGION_BYTES;

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
    /// Each with the bytes that it took so far.
    free: Mutex<Vec<(u64, u64)>>,
    freed: Condvar,
}

/// A region in use; dropped once its pages are synced in place.
pub(super) struct Region<'a> {
    owner: &'a DoublewriteFile,
    number: u64,
    taken_bytes: u64,
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        self.owner.free.lock().push((self.number, self.taken_bytes));
        // Not each of those that wait may take it.
        self.owner.freed.notify_all();
    }
}

impl DoublewriteFile {
    pub(super) fn open(vfs: &dyn Vfs) -> Result<DoublewriteFile> {
        let file = match vfs.open(NAME, StreamHint::Log) {
            Err(lacuna_device::Error::NotFound { .. }) => {
                let file = vfs.create(NAME, StreamHint::Log)?;
                // Syncing the file alone does not keep its name.
                vfs.sync()?;
                file
            }
            other => other?,
        };
        file.set_len(BYTES)?;
        let mut free = Vec::new();
        for number in 0..REGIONS {
            free.push((number, file.allocated(number * REGION_BYTES, REGION_BYTES)?));
        }
        let (number, taken_bytes) = free.last_mut().expect("there are some");
        if *taken_bytes < REGION_BYTES && vfs.free_bytes()?.is_some() && !is_broken(Rule::CopiesHaveSpace) {
            match fill(&*file, *number * REGION_BYTES) {
                // Those who have no space at all may still read, and make some elsewhere.
                Ok(()) | Err(lacuna_device::Error::Full { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        *taken_bytes = REGION_BYTES;
        Ok(DoublewriteFile { file, free: Mutex::new(free), freed: Condvar::new() })
    }

    /// Makes the images durable here. The region is held until its pages are in place.
    pub(super) fn write(
        &self,
        images: &[Image],
        buffer: &[u8],
        flusher: &Flusher,
    ) -> Result<(Region<'_>, u64)> {
        let mut header = AlignedBuf::zeroed(HEADER_BYTES);
        let written = || images.iter().filter(|image| !image.is_hole());
        let first = written().next().expect("the caller looked").start;
        let last = written().next_back().expect("the caller looked");
        let data = &buffer[first..last.start + last.bytes];
        let bytes = (HEADER_BYTES + data.len()) as u64;
        let mut region = self.take(bytes, flusher.has_space_for_regions());
        flusher.poison.check()?; // invariant 1
        flusher.note_taken(bytes.saturating_sub(region.taken_bytes) as usize);
        region.taken_bytes = region.taken_bytes.max(bytes);
        for (i, image) in written().enumerate() {
            let entry = Entry {
                page: image.page().0.into(),
                table: image.space.id().0.into(),
                start: ((HEADER_BYTES + image.start - first) as u32).into(),
                bytes: (image.bytes as u32).into(),
                reserved: 0.into(),
            };
            let slot = size_of::<Header>() + i * size_of::<Entry>();
            header[slot..slot + size_of::<Entry>()].copy_from_slice(entry.as_bytes());
        }
        let mut head = Header {
            magic: MAGIC.into(),
            checksum: 0.into(),
            count: (written().count() as u32).into(),
            reserved: 0.into(),
        };
        header[..size_of::<Header>()].copy_from_slice(head.as_bytes());
        head.checksum = lacuna_crc::crc32c(&header).into();
        header[..size_of::<Header>()].copy_from_slice(head.as_bytes());
        let at = region.number * REGION_BYTES;
        self.file.write_at(at, &header)?;
        self.file.write_at(at + HEADER_BYTES as u64, data)?;
        self.file.sync()?;
        Ok((region, bytes))
    }

    /// A region for so many bytes, which it took before unless it `may_grow`.
    fn take(&self, bytes: u64, may_grow: bool) -> Region<'_> {
        let mut free = self.free.lock();
        loop {
            if let Some(at) = free.iter().rposition(|(_, taken_bytes)| may_grow || *taken_bytes >= bytes) {
                let (number, taken_bytes) = free.remove(at);
                return Region { owner: self, number, taken_bytes };
            }
            self.freed.wait(&mut free);
        }
    }
}

/// Makes the region at `start` take all of its space, in writes that no VFS finds too long.
fn fill(file: &dyn File, start: u64) -> lacuna_device::Result<()> {
    let mut bytes = AlignedBuf::zeroed(PAGE_BYTES_MAX);
    bytes.fill(!0); // zeros may take none
    for at in (0..REGION_BYTES).step_by(PAGE_BYTES_MAX) {
        let len = (REGION_BYTES - at).min(PAGE_BYTES_MAX as u64);
        file.write_at(start + at, &bytes[..len as usize])?;
    }
    Ok(())
}

/// Restores the pages that a crash tore. Returns how many. To be called before the log from `checkpoint` on is
/// replayed, except for the images that are `on_device`.
pub(crate) fn restore(
    vfs: &dyn Vfs,
    spaces: &Spaces,
    checkpoint: Lsn,
    on_device: &PageWrites,
) -> Result<u64> {
    let file = match vfs.open(NAME, StreamHint::Log) {
        Err(lacuna_device::Error::NotFound { .. }) => return Ok(0),
        other => other?,
    };
    let mut restored = 0;
    let mut written = BTreeSet::new();
    for region in 0..REGIONS {
        let at = region * REGION_BYTES;
        let mut header = AlignedBuf::zeroed(HEADER_BYTES);
        file.read_at(at, &mut header)?;
        let mut needed = Vec::new();
        for entry in parse(&mut header.to_vec()) {
            let (table, page) = (TableId(entry.table.get()), PageNo(entry.page.get()));
            let oldest = on_device.lsn(PageId { table, page }).map_or(checkpoint, |lsn| lsn.max(checkpoint));
            needed.extend(needed_copy(spaces, &*file, at, entry, oldest)?);
        }
        if needed.is_empty() {
            continue;
        }
        // Invariant 4.
        file.write_at(at, &header)?;
        for copy in &needed {
            file.write_at(at + u64::from(copy.entry.start.get()), &copy.image)?;
        }
        file.sync()?;
        for copy in needed {
            copy.space.file().write_at(copy.space.offset(PageNo(copy.entry.page.get())), &copy.image)?;
            written.insert(copy.space.id());
            restored += u64::from(copy.restores);
        }
    }
    for space in written.into_iter().filter_map(|table| spaces.get(table)) {
        space.file().sync()?;
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

/// A copy that is to be written in place.
struct Copy {
    space: Arc<Space>,
    entry: Entry,
    image: AlignedBuf,
    /// Otherwise it is what is there already (invariant 2).
    restores: bool,
}

/// The copy that `entry` names, if its page is to be written from it. `oldest` is the LSN of the oldest one that may be.
fn needed_copy(
    spaces: &Spaces,
    file: &dyn File,
    region: u64,
    entry: Entry,
    oldest: Lsn,
) -> Result<Option<Copy>> {
    let (table, page) = (TableId(entry.table.get()), PageNo(entry.page.get()));
    let bytes = entry.bytes.get() as usize;
    let Some(space) = spaces.get(table) else { return Ok(None) };
    if bytes > space.page_bytes()
        || (space.blocks().is_some() && bytes != space.slot_bytes())
        || u64::from(entry.start.get()) + bytes as u64 > REGION_BYTES
    {
        return Ok(None);
    }
    let mut decoder = Decoder::unpacking(node::unpack);
    let mut target = vec![0; space.page_bytes()];
    let mut open = |image: &mut [u8]| match space.blocks() {
        // The checksum covers all of a block; the copy is for the field that it is checked without.
        Some(_) => lacuna_page::open_block(&mut image.to_vec(), (table.0, page.0), space.page_bytes()),
        None => decoder.decode(image, (table.0, page.0), &mut target),
    };
    let mut in_place = AlignedBuf::zeroed(space.slot_bytes());
    space.file().read_at(space.offset(page), &mut in_place)?;
    let mut open = |image: &mut [u8]| match open(image) {
        // It is whole and of this page, and can be written without being decrypted and decompressed.
        Err(PageError::NotBuiltIn(_) | PageError::Encrypted) => Ok(lacuna_page::read_meta(image)),
        opened => opened,
    };
    let found = open(&mut in_place).ok().map(|meta| Lsn(meta.lsn));
    let unchecked = found.is_some() && was_unchecked(&space, &in_place);
    if found.is_some_and(|lsn| lsn < oldest) && !unchecked {
        return Ok(None); // or the checkpoint would not have passed it
    }
    let mut image = AlignedBuf::zeroed(bytes);
    file.read_at(region + u64::from(entry.start.get()), &mut image)?;
    // None that is old, or torn itself: then its pages were not touched yet.
    let Some(copied) = open(&mut image).ok().map(|meta| Lsn(meta.lsn)).filter(|lsn| *lsn >= oldest) else {
        return Ok(None);
    };
    let restores = match found {
        None => true,
        Some(lsn) if lsn == copied && in_place[..bytes] == image[..] => false,
        // Invariant 3; and one that is sound is replay's, or says the same in another form.
        Some(lsn) if lsn <= copied && unchecked => true,
        Some(_) => return Ok(None),
    };
    Ok(Some(Copy { space, entry, image, restores }))
}

/// Whether a sound image in place has no checksum of all its bytes.
fn was_unchecked(space: &Space, image: &[u8]) -> bool {
    space.blocks().is_none() && lacuna_page::is_unchecked(image) && !is_broken(Rule::UncheckedSuspected)
}

/// The header of a region as it is, and under a valid checksum; see the module fuzz.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_doublewrite(bytes: &[u8]) {
    let mut header = vec![0; HEADER_BYTES];
    let len = bytes.len().min(HEADER_BYTES);
    header[..len].copy_from_slice(&bytes[..len]);
    parse(&mut header.to_vec());
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

#[cfg(test)]
mod tests;
