use snap::raw::{Decoder, Encoder, max_compress_len};

use super::{Transform, by_way_of};

/// Snappy's raw format.
pub(super) struct Snappy {
    encoder: Encoder,
    whole: Vec<u8>,
}

impl Default for Snappy {
    fn default() -> Snappy {
        Snappy { encoder: Encoder::new(), whole: Vec::new() }
    }
}

impl Transform for Snappy {
    fn compress(&mut self, body: &[u8], _: i32, out: &mut [u8]) -> Option<usize> {
        by_way_of(&mut self.whole, max_compress_len(body.len()), out, |whole| {
            self.encoder.compress(body, whole).ok()
        })
    }

    fn decompress(&mut self, stored: &[u8], body: &mut [u8]) -> Option<usize> {
        Decoder::new().decompress(stored, body).ok()
    }
}
