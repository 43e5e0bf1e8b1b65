use bzip2::{Action, Compress, Compression, Decompress, Status};

use super::Transform;

/// A bzip2 stream.
pub(super) struct Bzip2;

impl Transform for Bzip2 {
    fn compress(&mut self, body: &[u8], _: i32, out: &mut [u8]) -> Option<usize> {
        // Its smallest blocks, 100,000 bytes, are longer than any page.
        let mut compressor = Compress::new(Compression::fast(), 0);
        let outcome = compressor.compress(body, out, Action::Finish);
        matches!(outcome, Ok(Status::StreamEnd)).then_some(compressor.total_out() as usize)
    }

    fn decompress(&mut self, stored: &[u8], body: &mut [u8]) -> Option<usize> {
        let mut decompressor = Decompress::new(false);
        let outcome = decompressor.decompress(stored, body);
        let is_whole =
            matches!(outcome, Ok(Status::StreamEnd)) && decompressor.total_in() == stored.len() as u64;
        is_whole.then_some(decompressor.total_out() as usize)
    }
}
