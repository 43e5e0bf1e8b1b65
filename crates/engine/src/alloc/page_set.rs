//! The pages that a check has met.

use std::collections::BTreeMap;

use crate::types::PageNo;

const PAGES: u64 = 64 * WORDS as u64;
const WORDS: usize = 64;

/// A set of pages: a bit for each, in memory by how many there are, whatever their numbers are.
#[derive(Default)]
pub(crate) struct PageSet {
    blocks: BTreeMap<u64, Box<[u64; WORDS]>>,
    len: u64,
}

impl PageSet {
    /// Adds a page; false if it was there.
    pub(crate) fn insert(&mut self, page: PageNo) -> bool {
        let block = self.blocks.entry(page.0 / PAGES).or_insert_with(|| Box::new([0; WORDS]));
        let word = &mut block[(page.0 % PAGES / 64) as usize];
        let bit = 1 << (page.0 % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        self.len += u64::from(is_new);
        is_new
    }

    pub(crate) fn contains(&self, page: PageNo) -> bool {
        let word =
            self.blocks.get(&(page.0 / PAGES)).map_or(0, |block| block[(page.0 % PAGES / 64) as usize]);
        word & 1 << (page.0 % 64) != 0
    }

    /// The first of `pages` pages that is not in it; all in it are among these.
    pub(crate) fn first_missing(&self, pages: u64) -> Option<PageNo> {
        if self.len == pages { None } else { (0..pages).map(PageNo).find(|page| !self.contains(*page)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_there_once() {
        let mut set = PageSet::default();
        for page in [0, 1, 63, 64, 4095, 4096, 1 << 50].map(PageNo) {
            assert!(!set.contains(page) && set.insert(page) && !set.insert(page) && set.contains(page));
        }
        assert_eq!(set.first_missing(1 << 51), Some(PageNo(2)));
        let mut all = PageSet::default();
        assert!((0..100).all(|page| all.insert(PageNo(page))));
        assert_eq!(all.first_missing(100), None);
    }
}
