//! Data as it lies on the device.

use crate::{Lba, SECTOR, addr::CHUNK_BYTES, media::cipher::Cipher};

/// The stored bytes of an extent, which are what was written: ciphertext, if the store is encrypted.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a> {
    bytes: &'a [u8],
    lba: Lba,
    cipher: &'a Cipher,
}

impl<'a> Stored<'a> {
    pub(super) fn new(lba: Lba, bytes: &'a [u8], cipher: &'a Cipher) -> Stored<'a> {
        Stored { bytes, lba, cipher }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Puts the data that is stored into `out`, which has its length.
    pub(super) fn copy_to(&self, out: &mut [u8]) {
        out.copy_from_slice(self.bytes);
        self.cipher.decrypt(self.lba, out);
    }

    /// The data that is stored, decrypted into `space` where need be.
    pub(crate) fn data<'b>(&self, space: &'b mut [u8; CHUNK_BYTES]) -> &'b [u8]
    where
        'a: 'b,
    {
        if matches!(self.cipher, Cipher::None) {
            return self.bytes;
        }
        let out = &mut space[..self.bytes.len()];
        self.copy_to(out);
        out
    }

    /// The data of a single sector, with its trailing zeros.
    pub(super) fn sector(&self) -> [u8; SECTOR] {
        let mut sector = [0; SECTOR];
        self.copy_to(&mut sector[..self.bytes.len()]);
        sector
    }
}
