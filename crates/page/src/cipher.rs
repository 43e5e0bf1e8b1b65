//! Encryption, the last link of the transform chain.
//!
//! What is encrypted is all of an image behind its header: so checksum, address and length are verified without a key.
//! The caller brings the cipher; it takes whole blocks of 16 bytes, so a compressed body gets up to 15 zeros at its end,
//! which the header counts.
//!
//! The tweak is the address of the page and its LSN: `lsn << 64 | page_no << 7 | sector of the image`. Of a page no two
//! states have one LSN, so equal bytes of two images are not seen to be equal.

use std::sync::Arc;

use crate::{
    Error, Result,
    format::{CIPHER_BLOCK, ENCRYPTED, HEADER_BYTES, Header},
};

/// Encrypts the images of a table, in data units of 512 bytes. The key is the table's own.
pub trait PageCipher: Send + Sync {
    /// Encrypts `data`, whole blocks of 16 bytes, in place; its first unit with `tweak`, each further one with the next
    /// number.
    fn encrypt(&self, tweak: u128, data: &mut [u8]);
    /// Decrypts in place what [`PageCipher::encrypt`] made with the same `tweak`.
    fn decrypt(&self, tweak: u128, data: &mut [u8]);
}

/// A cipher that may be there.
#[derive(Clone, Default)]
pub(crate) struct Link(pub(crate) Option<Arc<dyn PageCipher>>);

fn tweak(header: &Header) -> u128 {
    // The longest image has 128 sectors.
    u128::from(header.lsn.get()) << 64 | u128::from(header.page_no.get() << 7)
}

impl Link {
    /// Encrypts the `stored_bytes` after the header in `out`, and puts into `header` what says so.
    pub(crate) fn encrypt(&self, header: &mut Header, out: &mut [u8]) {
        let Some(cipher) = &self.0 else { return };
        let stored = header.stored_bytes.get() as usize;
        let padded = stored.next_multiple_of(CIPHER_BLOCK);
        header.flags |= ENCRYPTED;
        header.padding = (padded - stored) as u8;
        header.stored_bytes = (padded as u32).into();
        let data = &mut out[HEADER_BYTES..HEADER_BYTES + padded];
        data[stored..].fill(0);
        cipher.encrypt(tweak(header), data);
    }
}

/// Decrypts what `stored` holds into `plain`; its length without padding.
pub(crate) fn decrypt(
    header: &Header,
    stored: &[u8],
    cipher: Option<&dyn PageCipher>,
    plain: &mut Vec<u8>,
) -> Result<usize> {
    let cipher = cipher.ok_or(Error::Encrypted)?;
    plain.clear();
    plain.extend_from_slice(stored);
    cipher.decrypt(tweak(header), plain);
    Ok(stored.len() - usize::from(header.padding))
}

/// Whether the lengths of an image fit its being encrypted, or not.
pub(crate) fn is_sound(header: &Header) -> bool {
    let (stored, padding) = (header.stored_bytes.get() as usize, usize::from(header.padding));
    match header.flags & ENCRYPTED {
        0 => padding == 0,
        _ => stored.is_multiple_of(CIPHER_BLOCK) && padding < CIPHER_BLOCK && padding <= stored,
    }
}
