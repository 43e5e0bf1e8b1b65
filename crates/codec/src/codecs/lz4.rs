use lz4::block::CompressionMode;

use super::Transform;

/// LZ4's block format, by the C library.
pub(super) struct Lz4;

impl Transform for Lz4 {
    fn compress(&mut self, body: &[u8], level: i32, out: &mut [u8]) -> Option<usize> {
        let mode = match level {
            2.. => CompressionMode::HIGHCOMPRESSION(level.min(12)),
            0 | 1 => CompressionMode::DEFAULT,
            _ => CompressionMode::FAST(level.saturating_neg()),
        };
        lz4::block::compress_to_buffer(body, Some(mode), false, out).ok()
    }

    fn decompress(&mut self, stored: &[u8], body: &mut [u8]) -> Option<usize> {
        lz4::block::decompress_to_buffer(stored, Some(body.len() as i32), body).ok()
    }
}
