use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::{Transform, by_way_of};

/// A raw deflate stream: zlib's without its header and checksum.
#[derive(Default)]
pub(super) struct Zlib {
    compressor: Option<(u32, Compress)>,
    decompressor: Option<Decompress>,
    whole: Vec<u8>,
}

impl Transform for Zlib {
    fn compress(&mut self, body: &[u8], level: i32, out: &mut [u8]) -> Option<usize> {
        let level = if level == 0 { 6 } else { level.clamp(1, 9) as u32 };
        if self.compressor.as_ref().is_none_or(|(at, _)| *at != level) {
            self.compressor = Some((level, Compress::new(Compression::new(level), false)));
        }
        let (_, compressor) = self.compressor.as_mut().expect("just made");
        compressor.reset();
        // Space for the longest output: reset leaves a part of the pending output (zlib-rs 0.6.8), and after some
        // streams that were cut off the compressor would panic.
        by_way_of(&mut self.whole, 2 * body.len() + 64, out, |whole| {
            let outcome = compressor.compress(body, whole, FlushCompress::Finish);
            assert!(matches!(outcome, Ok(Status::StreamEnd)), "no page grows to twice its length");
            Some(compressor.total_out() as usize)
        })
    }

    fn decompress(&mut self, stored: &[u8], body: &mut [u8]) -> Option<usize> {
        let decompressor = self.decompressor.get_or_insert_with(|| Decompress::new(false));
        decompressor.reset(false);
        let outcome = decompressor.decompress(stored, body, FlushDecompress::Finish);
        let is_whole =
            matches!(outcome, Ok(Status::StreamEnd)) && decompressor.total_in() == stored.len() as u64;
        is_whole.then_some(decompressor.total_out() as usize)
    }
}
