//! Entry points for fuzz/: raw pages, pages at the offset that they claim, and with a valid checksum. Not a stable
//! interface.

use crate::innodb::implied_trim as decide;
pub use crate::transport::uring::parse as request;

const PAGE_NO: usize = 4;
const PAGE_TYPE: usize = 24;
/// Unit of the payload's length in the page type of a full_crc32 page.
const UNIT: usize = 256;
const BLOCK_BYTES: usize = 512;

/// The first byte chooses the size of the pages, the others are the data written.
pub fn implied_trim(bytes: &[u8]) {
    let Some((choice, page)) = bytes.split_first() else { return };
    let mut page = page.to_vec();
    page.resize(page.len().next_multiple_of(BLOCK_BYTES), 0);
    hold(0, &page);
    let Some(number) = page.get(PAGE_NO..).and_then(<[u8]>::first_chunk::<4>) else { return };
    let offset = u64::from(u32::from_be_bytes(*number)) * (4096 << (choice % 4));
    hold(offset, &page);
    sign(&mut page);
    hold(offset, &page);
}

/// A trim begins no earlier than the write ends, and ends with the page.
fn hold(offset: u64, page: &[u8]) {
    if let Ok(end) = decide(offset, page) {
        let page_bytes = end - offset;
        assert!(end > offset + page.len() as u64, "a trim of what is written");
        assert!((4096..=32768).contains(&page_bytes) && page_bytes.is_power_of_two());
        assert!(offset.is_multiple_of(page_bytes), "a trim across pages");
    }
}

/// Makes a full_crc32 page of it, as far as that goes.
fn sign(page: &mut [u8]) {
    page[PAGE_TYPE] = 0x80;
    let end = usize::from(page[PAGE_TYPE + 1]) * UNIT;
    if let Some(payload) = page.get_mut(..end)
        && let Some((covered, checksum)) = payload.split_last_chunk_mut::<4>()
        && covered.len() > PAGE_TYPE + 1
    {
        *checksum = lacuna_crc::crc32c(covered).to_be_bytes();
    }
}
