//! Encoded chunks, decoded.

use crate::{
    Lba, SECTOR,
    addr::PhysAddr,
    encoding::{Undecodable, decode},
    format::Extent,
    media::cipher::Cipher,
};

/// The chunk that was decoded last: its parts are read one after the other.
#[derive(Default)]
pub(super) struct Decoded {
    of: Option<PhysAddr>,
    payload: Vec<u8>,
    data: Vec<u8>,
}

impl Decoded {
    /// The data of `extent`, at `lba`, which is a part of an encoded chunk; its payload was verified.
    pub(super) fn part(
        &mut self,
        (lba, extent): &(Lba, Extent),
        payload: &[u8],
        cipher: &Cipher,
    ) -> Result<&[u8], Undecodable> {
        if self.of != Some(extent.phys) {
            self.of = None;
            self.payload.clear();
            self.payload.extend_from_slice(payload);
            cipher.decrypt(Lba(extent.whole_encoded(lba.0).0), &mut self.payload);
            self.data.resize(usize::from(extent.chunk_sectors) * SECTOR, 0);
            decode(extent.encoding, &self.payload, &mut self.data)?;
            self.of = Some(extent.phys);
        }
        Ok(&self.data[usize::from(extent.skip) * SECTOR..][..extent.bytes()])
    }
}
