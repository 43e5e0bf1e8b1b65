//! Bytes in memory that take space only where they were written.

use std::collections::BTreeMap;

use crate::SECTOR;

const PAGE: usize = 4096;
const SECTORS_PER_PAGE: usize = PAGE / SECTOR;

#[derive(Clone)]
struct Page {
    /// Bit n: sector n of the page was written and not zeroed since.
    present: u8,
    bytes: [u8; PAGE],
}

/// A sparse byte space, addressed in whole sectors. Bytes that were never written read as zeros.
#[derive(Clone, Default)]
pub struct SparseBytes {
    pages: BTreeMap<u64, Box<Page>>,
}

/// The part of a request that falls into one page.
struct Part {
    page: u64,
    start: usize,
    len: usize,
}

impl Part {
    fn mask(&self) -> u8 {
        let first = self.start / SECTOR;
        let count = self.len / SECTOR;
        if count == SECTORS_PER_PAGE { u8::MAX } else { ((1u8 << count) - 1) << first }
    }
}

/// Cuts a sector-aligned range at page boundaries.
fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    assert!(
        offset.is_multiple_of(SECTOR as u64) && len.is_multiple_of(SECTOR as u64),
        "unaligned range {offset}+{len}"
    );
    let end = offset.checked_add(len).expect("range overflows");
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let page = at / PAGE as u64;
        let start = (at % PAGE as u64) as usize;
        let len = (end - at).min((PAGE - start) as u64) as usize;
        at += len as u64;
        Some(Part { page, start, len })
    })
}

impl SparseBytes {
    /// Fills `buf` from `offset`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        let mut done = 0;
        for part in parts(offset, buf.len() as u64) {
            let into = &mut buf[done..done + part.len];
            match self.pages.get(&part.page) {
                Some(page) => into.copy_from_slice(&page.bytes[part.start..part.start + part.len]),
                None => into.fill(0),
            }
            done += part.len;
        }
    }

    /// Stores `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        for part in parts(offset, data.len() as u64) {
            let page = self
                .pages
                .entry(part.page)
                .or_insert_with(|| Box::new(Page { present: 0, bytes: [0; PAGE] }));
            page.bytes[part.start..part.start + part.len].copy_from_slice(&data[done..done + part.len]);
            page.present |= part.mask();
            done += part.len;
        }
    }

    /// Makes a range read as zeros and frees its space.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.checked_add(len).expect("range overflows");
        let pages: Vec<u64> = self.pages_within(offset, end).collect();
        for number in pages {
            let page_start = number * PAGE as u64;
            let from = offset.max(page_start);
            let to = end.min(page_start + PAGE as u64);
            let page = self.pages.get_mut(&number).expect("page was just listed");
            for part in parts(from, to - from) {
                page.bytes[part.start..part.start + part.len].fill(0);
                page.present &= !part.mask();
            }
            if page.present == 0 {
                self.pages.remove(&number);
            }
        }
    }

    /// Bytes of the range that take space.
    pub fn allocated(&self, offset: u64, len: u64) -> u64 {
        let end = offset.saturating_add(len);
        self.pages_within(offset, end)
            .map(|number| {
                let page_start = number * PAGE as u64;
                let from = offset.max(page_start);
                let to = end.min(page_start + PAGE as u64);
                let mask = parts(from, to - from).next().map_or(0, |part| part.mask());
                u64::from((self.pages[&number].present & mask).count_ones()) * SECTOR as u64
            })
            .sum()
    }

    fn pages_within(&self, offset: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let last = end.div_ceil(PAGE as u64);
        let first = (offset / PAGE as u64).min(last);
        self.pages.range(first..last).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_was_written_across_pages() {
        let mut bytes = SparseBytes::default();
        let data: Vec<u8> = (0..3 * PAGE).map(|i| i as u8 | 1).collect();
        bytes.write(3584, &data);
        let mut back = vec![9; data.len() + 1024];
        bytes.read(3072, &mut back);
        assert_eq!(&back[..512], &[0; 512]);
        assert_eq!(&back[512..512 + data.len()], &data[..]);
        assert_eq!(&back[512 + data.len()..], &[0; 512]);
    }

    #[test]
    fn zeroed_sectors_take_no_space() {
        let mut bytes = SparseBytes::default();
        bytes.write(0, &[1; 4 * PAGE]);
        bytes.zero(512, 2 * PAGE as u64);
        assert_eq!(bytes.allocated(0, u64::MAX), 2 * PAGE as u64);
        assert_eq!(bytes.allocated(0, 1024), 512);
        assert_eq!(bytes.allocated(512, 2 * PAGE as u64), 0);
        let mut back = [9; 1024];
        bytes.read(0, &mut back);
        assert_eq!((back[0], back[511], back[512], back[1023]), (1, 1, 0, 0));
        bytes.zero(0, 1 << 50);
        assert!(bytes.pages.is_empty());
    }
}
