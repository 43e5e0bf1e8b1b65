use lzokay::{compress, decompress};

use super::{Transform, by_way_of};

/// LZO1X.
#[derive(Default)]
pub(super) struct Lzo {
    dict: Option<Box<compress::Dict>>,
    whole: Vec<u8>,
}

impl Transform for Lzo {
    fn compress(&mut self, body: &[u8], _: i32, out: &mut [u8]) -> Option<usize> {
        let dict = self.dict.get_or_insert_with(compress::Dict::new);
        let bytes_max = compress::compress_worst_size(body.len());
        by_way_of(&mut self.whole, bytes_max, out, |whole| {
            compress::compress_no_alloc(body, whole, dict).ok()
        })
    }

    fn decompress(&mut self, stored: &[u8], body: &mut [u8]) -> Option<usize> {
        decompress::decompress(stored, body).ok()
    }
}
