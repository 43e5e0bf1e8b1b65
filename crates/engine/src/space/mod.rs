//! Table files, and the offsets of their pages.
//!
//! A table is one file whose name has its number, page size and block size, so that recovery can
//! apply the log before it can read the catalog. Page `n` lies at byte `n * page_bytes`, as an image of
//! the `page` crate followed by a hole; in a row-compressed table at byte `n * block_bytes`, as a block.

pub(crate) mod lineage;
pub(crate) mod pins;
pub(crate) mod rest;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use lacuna_device::File;
use lacuna_page::{Algorithm, Codec, Error as PageError, PageCipher};

use crate::{
    keys::{DataCipher, Keys},
    mutant::{Rule, is_broken},
    page::{node, overflow},
    row::Blocks,
    space::{
        lineage::Lineage,
        pins::{Pins, TablePin},
        rest::RestNotes,
    },
    sync::{
        Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    types::{Doublewrite, Error, Layout, PageNo, Result, TableId, TableKind, may_have_blocks},
};

/// Catalog and undo pages are always compressed: users have no setting for them.
pub(crate) const SYSTEM_CODEC: Codec = system_codec();

/// LZ4, or where that is not built in the first algorithm that is.
const fn system_codec() -> Codec {
    let mut number = 1;
    while number < Algorithm::ALL.len() {
        let algorithm = Algorithm::ALL[number];
        if algorithm.is_built_in() {
            return Codec { algorithm, level: 0 };
        }
        number += 1;
    }
    Codec::PLAIN
}

/// No codec: the table's catalog row was not read yet.
const UNKNOWN: u64 = u64::MAX;

/// Least and greatest step by which a table's file is extended, in bytes.
const EXTEND_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// Pages freed before the file is checked for truncation: so many, and one in this many of the file's.
const CUT_PAGES_MIN: u64 = 16;
const CUT_SHARE: u64 = 16;

/// An open table file.
pub(crate) struct Space {
    id: TableId,
    file: Arc<dyn File>,
    page_bytes: usize,
    /// The blocks of a row-compressed table.
    blocks: Option<Arc<Blocks>>,
    /// How pages are written from now on: algorithm in the high half, level in the low one; or [`UNKNOWN`].
    codec: AtomicU64,
    /// How pages that rest are written, in the same way; [`UNKNOWN`] where all are written alike.
    rest_codec: AtomicU64,
    rest_notes: RestNotes,
    /// The table's own setting, a [`Doublewrite`].
    doublewrite: AtomicU8,
    /// Its own key, if it has one: some of its images may be encrypted.
    cipher: OnceLock<Arc<DataCipher>>,
    /// Images are encrypted from now on. While recovery cannot read the catalog yet: if there is a key.
    is_encrypted: AtomicBool,
    file_bytes: Mutex<u64>,
    /// Pages freed since the file was last checked for truncation.
    freed_pages: AtomicU64,
    /// Held by the thread that truncates the file.
    truncating: Mutex<()>,
    flushed: Mutex<Flushed>,
    pub(super) pins: Pins,
    lineage: Lineage,
    /// Times that bounds of its leaves changed (`btree::finger`).
    restructured: AtomicU64,
    /// Nodes split since the store was opened.
    splits: AtomicU64,
}

/// Counts of what was written of a table since the store was opened.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flushed {
    pub(crate) pages: u64,
    pub(crate) image_bytes: u64,
    pub(crate) plain_pages: u64,
    pub(crate) rested_pages: u64,
    pub(crate) woken_pages: u64,
    pub(crate) punches: u64,
    pub(crate) refused_punches: u64,
}

impl Space {
    /// # Errors
    /// [`Error::NotBuiltIn`] for blocks without zlib: replay could not go on in the middle of one.
    pub(crate) fn new(id: TableId, file: Arc<dyn File>, layout: Layout) -> Result<Space> {
        if layout.block_bytes.is_some() && !Algorithm::Zlib.is_built_in() {
            return Err(Error::NotBuiltIn { what: file_name(id, layout), algorithm: Algorithm::Zlib });
        }
        let file_bytes = Mutex::new(file.len()?);
        Ok(Space {
            id,
            file,
            page_bytes: layout.page_bytes,
            blocks: layout
                .block_bytes
                .map(|block_bytes| Arc::new(Blocks::new(block_bytes, layout.page_bytes))),
            codec: AtomicU64::new(UNKNOWN),
            rest_codec: AtomicU64::new(UNKNOWN),
            rest_notes: RestNotes::default(),
            doublewrite: AtomicU8::new(Doublewrite::Auto as u8),
            cipher: OnceLock::new(),
            is_encrypted: AtomicBool::new(false),
            file_bytes,
            freed_pages: AtomicU64::new(0),
            truncating: Mutex::default(),
            flushed: Mutex::default(),
            pins: Pins::default(),
            lineage: Lineage::default(),
            restructured: AtomicU64::new(0),
            splits: AtomicU64::new(0),
        })
    }

    /// The sizes of its pages and blocks.
    pub(crate) fn layout(&self) -> Layout {
        Layout {
            page_bytes: self.page_bytes,
            block_bytes: self.blocks.as_ref().map(|blocks| blocks.block_bytes()),
        }
    }

    pub(crate) fn id(&self) -> TableId {
        self.id
    }

    pub(crate) fn file(&self) -> &dyn File {
        &*self.file
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The blocks of a row-compressed table.
    pub(crate) fn blocks(&self) -> Option<&Arc<Blocks>> {
        self.blocks.as_ref()
    }

    /// The file's name.
    pub(crate) fn name(&self) -> String {
        file_name(self.id, self.layout())
    }

    /// Why the image of a page could not be decoded.
    pub(crate) fn bad_image(&self, page: PageNo, error: &PageError) -> Error {
        if *error == PageError::Encrypted {
            return Error::TableLocked { id: self.id };
        }
        let PageError::NotBuiltIn(algorithm) = *error else {
            let at = format!("page {}", page.0);
            return Error::Corrupt { what: self.name(), at, reason: error.to_string() };
        };
        Error::NotBuiltIn { what: format!("{}: page {}", self.name(), page.0), algorithm }
    }

    /// Bytes that a page takes in the file.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.layout().slot_bytes()
    }

    /// Bytes that a page takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.page_bytes + self.blocks.as_ref().map_or(0, |blocks| blocks.block_bytes())
    }

    /// Longest key in bytes.
    pub(crate) fn key_bytes_max(&self) -> usize {
        node::key_bytes_max(self.slot_bytes())
    }

    /// Longest value that stays in the leaf with a key of `key_bytes`, in bytes. A leaf always takes two
    /// records, and a block as well.
    pub(crate) fn value_bytes_max(&self, key_bytes: usize) -> usize {
        let of_page = node::value_bytes_max(self.page_bytes);
        self.blocks.as_ref().map_or(of_page, |blocks| of_page.min(blocks.record_bytes_max() - key_bytes))
    }

    /// Bytes of a long value that a page takes.
    pub(crate) fn part_bytes_max(&self) -> usize {
        let of_page = overflow::part_bytes_max(self.page_bytes);
        self.blocks.as_ref().map_or(of_page, |blocks| of_page.min(blocks.part_bytes_max()))
    }

    /// Makes pages be written by that kind's settings from now on.
    pub(crate) fn set_kind(&self, kind: TableKind) {
        self.set_codec(kind.codec());
        self.rest_codec.store(kind.rest_codec().map_or(UNKNOWN, word_of), Ordering::Relaxed);
        if let (Some(blocks), TableKind::RowCompressed { algorithm, level, .. }) = (&self.blocks, kind) {
            blocks.set_codec(Codec { algorithm, level });
        }
    }

    /// Whether its pages are written twice; automatic while recovery cannot read the catalog yet.
    pub(crate) fn doublewrite(&self) -> Doublewrite {
        Doublewrite::from_byte(self.doublewrite.load(Ordering::Relaxed)).expect("set_doublewrite stored it")
    }

    pub(crate) fn set_doublewrite(&self, setting: Doublewrite) {
        self.doublewrite.store(setting as u8, Ordering::Relaxed);
    }

    /// Gives the table its key; from now on its images are encrypted. A key never changes.
    pub(crate) fn set_cipher(&self, cipher: Arc<DataCipher>) {
        assert!(self.cipher.set(cipher).is_ok(), "a table's key never changes");
        self.set_encrypted(true);
    }

    /// Whether images are encrypted from now on.
    pub(crate) fn set_encrypted(&self, is_encrypted: bool) {
        self.is_encrypted.store(is_encrypted, Ordering::Relaxed);
    }

    /// For images that were made at any time; none when the table has no key.
    pub(crate) fn cipher(&self) -> Option<&dyn PageCipher> {
        self.cipher.get().map(|cipher| &**cipher as &dyn PageCipher)
    }

    /// What images are encrypted with from now on.
    pub(crate) fn write_cipher(&self) -> Option<Arc<dyn PageCipher>> {
        let is_encrypted = self.is_encrypted.load(Ordering::Relaxed) && !is_broken(Rule::PagesEncrypted);
        let cipher = self.cipher.get().filter(|_| is_encrypted)?;
        Some(Arc::clone(cipher) as Arc<dyn PageCipher>)
    }

    /// Whether it is to be encrypted, and has no key: then its pages are neither read nor written.
    pub(crate) fn is_locked(&self) -> bool {
        self.is_encrypted.load(Ordering::Relaxed) && self.cipher.get().is_none()
    }

    pub(crate) fn offset(&self, page: PageNo) -> u64 {
        // A number from a damaged page may be anything: no file takes the offset that it gets here.
        page.0.saturating_mul(self.slot_bytes() as u64)
    }

    /// For a page whose image on the device takes `disk_bytes`, 0 if it has none. While recovery replays, before it
    /// can read the catalog, a page that was written uncompressed stays so, and others are compressed: a VFS filled by
    /// compressed tables would otherwise have no space for them. Of tables that may lack their key none is written.
    pub(crate) fn codec(&self, disk_bytes: usize) -> Codec {
        let word = self.codec.load(Ordering::Relaxed);
        if word == UNKNOWN {
            return if disk_bytes == self.page_bytes { Codec::PLAIN } else { SYSTEM_CODEC };
        }
        codec_of(word)
    }

    /// Whether its settings are known.
    pub(crate) fn is_known(&self) -> bool {
        self.codec.load(Ordering::Relaxed) != UNKNOWN
    }

    /// The same for a page that rests.
    pub(crate) fn rest_codec(&self, disk_bytes: usize) -> Codec {
        match self.rest_codec.load(Ordering::Relaxed) {
            UNKNOWN => self.codec(disk_bytes),
            word => codec_of(word),
        }
    }

    /// Whether pages that rest are written in another way.
    pub(crate) fn is_adaptive(&self) -> bool {
        self.rest_codec.load(Ordering::Relaxed) != UNKNOWN
    }

    pub(crate) fn rest_notes(&self) -> &RestNotes {
        &self.rest_notes
    }

    /// Notes that a page was read from the device for a user.
    pub(crate) fn note_read(&self, page: PageNo) {
        if self.is_adaptive() {
            self.rest_notes.note_read(page.0);
        }
    }

    /// Pages for which the file has space.
    pub(crate) fn pages_in_file(&self) -> u64 {
        *self.file_bytes.lock() / self.slot_bytes() as u64
    }

    pub(crate) fn set_codec(&self, codec: Codec) {
        self.codec.store(word_of(codec), Ordering::Relaxed);
    }

    /// Ensures that writing `page` will not have to extend the file. Once for many pages this changes the file's
    /// length, under the caller's latches and a lock that only allocation takes.
    pub(crate) fn reserve(&self, page: PageNo) -> Result<()> {
        let end = self.offset(PageNo(page.0 + 1));
        let mut file_bytes = self.file_bytes.lock();
        if end > *file_bytes {
            let step = (end / 8).clamp(*EXTEND_BYTES.start(), *EXTEND_BYTES.end());
            let unit = self.slot_bytes() as u64;
            let target = (end + step).next_multiple_of(unit);
            self.file.set_len(target)?;
            *file_bytes = target;
        }
        Ok(())
    }

    /// Truncates the file to its first `pages`. The caller keeps others from being allocated.
    pub(crate) fn cut(&self, pages: u64) -> Result<()> {
        let end = self.offset(PageNo(pages));
        let mut file_bytes = self.file_bytes.lock();
        if end < *file_bytes {
            self.file.set_len(end)?;
            *file_bytes = end;
        }
        Ok(())
    }

    /// Notes that a page was freed.
    pub(crate) fn note_freed(&self) {
        self.freed_pages.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins to truncate the file, one caller at a time. Pages freed before no longer count.
    pub(crate) fn begin_to_truncate(&self) -> MutexGuard<'_, ()> {
        let guard = self.truncating.lock();
        self.freed_pages.store(0, Ordering::Relaxed);
        guard
    }

    /// Times that bounds of the table's leaves changed (`btree::finger`).
    pub(crate) fn restructured(&self) -> u64 {
        self.restructured.load(Ordering::Acquire)
    }

    /// Notes that bounds of leaves change.
    pub(crate) fn note_restructured(&self) {
        self.restructured.fetch_add(1, Ordering::AcqRel);
    }

    /// Nodes split since the store was opened.
    pub(crate) fn splits(&self) -> u64 {
        self.splits.load(Ordering::Relaxed)
    }

    pub(crate) fn count_split(&self) {
        self.splits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts something that was written.
    pub(crate) fn count_written(&self, count: impl FnOnce(&mut Flushed)) {
        count(&mut self.flushed.lock());
    }

    /// Counts since the store was opened.
    pub(crate) fn flushed(&self) -> Flushed {
        *self.flushed.lock()
    }

    /// Whether so much was freed since the last look that the file's end may be free.
    pub(crate) fn wants_cut(&self) -> bool {
        let freed = self.freed_pages.load(Ordering::Relaxed);
        freed >= CUT_PAGES_MIN && freed * CUT_SHARE * self.slot_bytes() as u64 >= *self.file_bytes.lock()
    }
}

fn word_of(codec: Codec) -> u64 {
    (codec.algorithm as u64) << 32 | u64::from(codec.level as u32)
}

fn codec_of(word: u64) -> Codec {
    let algorithm = Algorithm::try_from((word >> 32) as u8).expect("word_of made it");
    Codec { algorithm, level: word as u32 as i32 }
}

/// An error that names a page.
pub(crate) fn corrupt(space: &Space, page: PageNo, reason: impl Into<String>) -> Error {
    Error::Corrupt { what: space.name(), at: format!("page {}", page.0), reason: reason.into() }
}

/// All open table files.
#[derive(Default)]
pub(crate) struct Spaces {
    by_id: RwLock<HashMap<TableId, Arc<Space>>>,
    /// Of a store with encrypted tables.
    keys: Option<Keys>,
}

impl Spaces {
    /// No files yet, of a store with these keys.
    pub(crate) fn with_keys(keys: Option<Keys>) -> Spaces {
        Spaces { keys, ..Spaces::default() }
    }

    pub(crate) fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    pub(crate) fn get(&self, id: TableId) -> Option<Arc<Space>> {
        self.by_id.read().get(&id).cloned()
    }

    /// A pin of the table by the store's own work; `None` when there is no such table.
    pub(crate) fn pin_for_work(&self, id: TableId) -> Option<TablePin> {
        self.get(id)?.pin_for_work()
    }

    /// Adds a table's file; returns the one that the table had before.
    pub(crate) fn insert(&self, space: Arc<Space>) -> Option<Arc<Space>> {
        self.by_id.write().insert(space.id, space)
    }

    pub(crate) fn remove(&self, id: TableId) {
        self.by_id.write().remove(&id);
    }

    /// All, by number.
    pub(crate) fn all(&self) -> Vec<Arc<Space>> {
        self.all_that(|_| true)
    }

    /// Those of adaptive tables, by number.
    pub(crate) fn adaptive(&self) -> Vec<Arc<Space>> {
        self.all_that(Space::is_adaptive)
    }

    fn all_that(&self, is_meant: impl Fn(&Space) -> bool) -> Vec<Arc<Space>> {
        let mut all: Vec<_> = self.by_id.read().values().filter(|space| is_meant(space)).cloned().collect();
        all.sort_by_key(|space| space.id);
        all
    }
}

/// Name of a table's file.
pub(crate) fn file_name(id: TableId, layout: Layout) -> String {
    let pages = format!("t{:08}.{}k", id.0, layout.page_bytes / 1024);
    match layout.block_bytes {
        None => pages,
        Some(block_bytes) => format!("{pages}.{}k", block_bytes / 1024),
    }
}

/// Table and sizes of a file of that name; `None` when it is no table's.
pub(crate) fn parse_file_name(name: &str) -> Option<(TableId, Layout)> {
    let mut parts = name.strip_prefix('t')?.split('.');
    let id = TableId(parts.next()?.parse().ok()?);
    let mut kib = || parts.next().map(|part| Some(part.strip_suffix('k')?.parse::<usize>().ok()? * 1024));
    let page_bytes = kib()??;
    let block_bytes = match kib() {
        None => None,
        Some(block_bytes) => Some(block_bytes?),
    };
    let layout = Layout { page_bytes, block_bytes };
    let known = [4, 8, 16, 32, 64].contains(&(page_bytes / 1024))
        && block_bytes.is_none_or(|bytes| may_have_blocks(bytes, page_bytes))
        && file_name(id, layout) == name;
    known.then_some((id, layout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_read_back() {
        let pages = Layout::of_pages(16 << 10);
        for (layout, want) in [
            (pages, "t00000017.16k"),
            (Layout { block_bytes: Some(8 << 10), ..pages }, "t00000017.16k.8k"),
            (Layout { block_bytes: Some(4 << 10), ..pages }, "t00000017.16k.4k"),
            (Layout { block_bytes: Some(1 << 10), ..pages }, "t00000017.16k.1k"),
            (Layout { block_bytes: Some(16 << 10), ..pages }, "t00000017.16k.16k"),
            (Layout { block_bytes: Some(16 << 10), page_bytes: 64 << 10 }, "t00000017.64k.16k"),
        ] {
            let name = file_name(TableId(17), layout);
            assert_eq!(name, want);
            assert_eq!(parse_file_name(&name), Some((TableId(17), layout)));
        }
        for other in [
            "t00000017.16k.32k",
            "t00000017.32k.32k",
            "t00000017.64k.8k",
            "t00000017.16k.",
            "t00000017.16k.8k.8k",
            "wal",
            "t1.16k",
            "t00000017.17k",
            "t00000017",
            "x00000017.16k",
        ] {
            assert_eq!(parse_file_name(other), None, "{other}");
        }
    }
}
