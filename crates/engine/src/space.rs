//! Table files: what is open, and where their pages lie.
//!
//! A table is one file whose name tells its number and page size, so that recovery can apply the
//! log before it can read the catalog. Page `n` lies at byte `n * page_bytes`, as an image of the
//! `page` crate followed by a hole.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use lacuna_device::File;
use lacuna_page::{Algorithm, Codec};
use parking_lot::{Mutex, RwLock};

use crate::{
    error::Result,
    ids::{PageNo, TableId},
};

/// Least and greatest step by which a table's file is extended, in bytes.
const EXTEND_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// An open table file.
pub(crate) struct Space {
    pub(crate) id: TableId,
    pub(crate) file: Arc<dyn File>,
    pub(crate) page_bytes: usize,
    /// How pages are written from now on: algorithm in the high half, level in the low one.
    codec: AtomicU64,
    file_bytes: Mutex<u64>,
    pub(crate) flushed: Flushed,
}

/// Pages written since the store was opened.
#[derive(Default)]
pub(crate) struct Flushed {
    pub(crate) pages: AtomicU64,
    pub(crate) image_bytes: AtomicU64,
    pub(crate) plain_pages: AtomicU64,
    pub(crate) punches: AtomicU64,
}

impl Space {
    pub(crate) fn new(id: TableId, file: Arc<dyn File>, page_bytes: usize) -> Result<Space> {
        let file_bytes = Mutex::new(file.len()?);
        let space =
            Space { id, file, page_bytes, codec: AtomicU64::new(0), file_bytes, flushed: Flushed::default() };
        space.set_codec(Codec::PLAIN);
        Ok(space)
    }

    pub(crate) fn offset(&self, page: PageNo) -> u64 {
        // A number from a damaged page may be anything: no file takes the offset that it gets here.
        page.0.saturating_mul(self.page_bytes as u64)
    }

    pub(crate) fn codec(&self) -> Codec {
        let word = self.codec.load(Ordering::Relaxed);
        let algorithm = Algorithm::try_from((word >> 32) as u8).expect("set_codec stored it");
        Codec { algorithm, level: word as u32 as i32 }
    }

    pub(crate) fn set_codec(&self, codec: Codec) {
        let word = (codec.algorithm as u64) << 32 | u64::from(codec.level as u32);
        self.codec.store(word, Ordering::Relaxed);
    }

    /// Sees to it that writing `page` will not have to extend the file. Once for many pages this
    /// changes the file's length, under the caller's latches and a lock that only allocation takes.
    pub(crate) fn reserve(&self, page: PageNo) -> Result<()> {
        let end = self.offset(PageNo(page.0 + 1));
        let mut file_bytes = self.file_bytes.lock();
        if end > *file_bytes {
            let step = (end / 8).clamp(*EXTEND_BYTES.start(), *EXTEND_BYTES.end());
            let unit = self.page_bytes as u64;
            let target = (end + step).next_multiple_of(unit);
            self.file.set_len(target)?;
            *file_bytes = target;
        }
        Ok(())
    }
}

/// All open table files.
#[derive(Default)]
pub(crate) struct Spaces {
    by_id: RwLock<HashMap<TableId, Arc<Space>>>,
}

impl Spaces {
    pub(crate) fn get(&self, id: TableId) -> Option<Arc<Space>> {
        self.by_id.read().get(&id).cloned()
    }

    pub(crate) fn insert(&self, space: Arc<Space>) {
        self.by_id.write().insert(space.id, space);
    }

    pub(crate) fn remove(&self, id: TableId) {
        self.by_id.write().remove(&id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Space>> {
        let mut all: Vec<_> = self.by_id.read().values().cloned().collect();
        all.sort_by_key(|space| space.id);
        all
    }
}

/// Name of a table's file.
pub(crate) fn file_name(id: TableId, page_bytes: usize) -> String {
    format!("t{:08}.{}k", id.0, page_bytes / 1024)
}

/// Table and page size of a file of that name; `None` when it is no table's.
pub(crate) fn parse_file_name(name: &str) -> Option<(TableId, usize)> {
    let (number, kib) = name.strip_prefix('t')?.strip_suffix('k')?.split_once('.')?;
    let (id, kib): (u32, usize) = (number.parse().ok()?, kib.parse().ok()?);
    let known = [4, 8, 16, 32, 64].contains(&kib) && file_name(TableId(id), kib * 1024) == name;
    known.then_some((TableId(id), kib * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_read_back() {
        let name = file_name(TableId(17), 16 << 10);
        assert_eq!(name, "t00000017.16k");
        assert_eq!(parse_file_name(&name), Some((TableId(17), 16 << 10)));
        for other in ["wal", "t1.16k", "t00000017.17k", "t00000017", "x00000017.16k"] {
            assert_eq!(parse_file_name(other), None, "{other}");
        }
    }
}
