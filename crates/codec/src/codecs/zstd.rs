use zstd::bulk::{Compressor, Decompressor};

use super::Transform;

/// A zstd frame without content size and checksum, by the C library.
#[derive(Default)]
pub(super) struct Zstd {
    compressor: Option<(i32, Compressor<'static>)>,
    decompressor: Option<Decompressor<'static>>,
}

impl Zstd {
    fn at_level(&mut self, level: i32) -> Option<&mut Compressor<'static>> {
        // zstd itself takes 0 as 3, a quarter slower for no smaller pages of a database.
        let level = if level == 0 { 1 } else { level.clamp(-7, 22) };
        if self.compressor.as_ref().is_none_or(|(at, _)| *at != level) {
            let mut compressor = Compressor::new(level).ok()?;
            // The header of the image knows both already: eight bytes a page saved.
            compressor.include_contentsize(false).ok()?;
            compressor.include_checksum(false).ok()?;
            self.compressor = Some((level, compressor));
        }
        self.compressor.as_mut().map(|(_, compressor)| compressor)
    }
}

impl Transform for Zstd {
    fn compress(&mut self, body: &[u8], level: i32, out: &mut [u8]) -> Option<usize> {
        self.at_level(level)?.compress_to_buffer(body, out).ok()
    }

    fn decompress(&mut self, stored: &[u8], body: &mut [u8]) -> Option<usize> {
        if self.decompressor.is_none() {
            self.decompressor = Some(Decompressor::new().ok()?);
        }
        self.decompressor.as_mut()?.decompress_to_buffer(stored, body).ok()
    }
}
