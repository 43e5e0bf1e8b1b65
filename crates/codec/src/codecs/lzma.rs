use std::io::{Read, Write};

use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter};

use super::Transform;
use crate::BODY_BYTES_MAX;

/// An LZMA stream without a header that ends in a marker.
pub(super) struct Lzma;

impl Transform for Lzma {
    fn compress(&mut self, body: &[u8], level: i32, out: &mut [u8]) -> Option<usize> {
        let mut options = LzmaOptions::with_preset(level.clamp(0, 9) as u32);
        options.dict_size = BODY_BYTES_MAX as u32;
        let out_bytes = out.len();
        let mut writer = LzmaWriter::new_no_header(out, &options, true).ok()?;
        writer.write_all(body).ok()?;
        let left = writer.finish().ok()?;
        Some(out_bytes - left.len())
    }

    fn decompress(&mut self, stored: &[u8], body: &mut [u8]) -> Option<usize> {
        let (lc, lp, pb) = (LzmaOptions::LC_DEFAULT, LzmaOptions::LP_DEFAULT, LzmaOptions::PB_DEFAULT);
        let mut reader = LzmaReader::new(stored, u64::MAX, lc, lp, pb, BODY_BYTES_MAX as u32, None).ok()?;
        let mut bytes = 0;
        while bytes < body.len() {
            match reader.read(&mut body[bytes..]).ok()? {
                0 => break,
                read => bytes += read,
            }
        }
        let is_end = reader.read(&mut [0]).ok()? == 0;
        let (unread, unused) = reader.into_parts();
        (is_end && unread.is_empty() && unused.is_empty()).then_some(bytes)
    }
}
