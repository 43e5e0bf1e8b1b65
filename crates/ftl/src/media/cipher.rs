//! What data goes through between callers and the device.
//!
//! Data is encrypted sector by sector, with the sector's address as tweak, before its chunk gets a checksum. So
//! everything between the caller's thread and the device handles ciphertext: the log, collection, replay, check and
//! scrub need no key, a fragment of a chunk is decrypted without the rest, and a chunk may be cut and moved at will as
//! long as its address stays.

use std::cell::Cell;

use lacuna_crypt::SectorCipher;

use crate::{
    Lba,
    addr::GRAIN,
    mutant::{Rule, is_broken},
};

// Stored data of a sector ends on a grain, which must be whole blocks.
const _: () = assert!(GRAIN.is_multiple_of(lacuna_crypt::BLOCK));

/// What a store's data is encrypted with.
pub(crate) enum Cipher {
    /// Nothing: it lies on the device as it is.
    None,
    /// A key that nobody has given: data can be moved and dropped, but neither read nor written.
    Locked,
    /// This.
    Sectors(Box<SectorCipher>),
}

impl Cipher {
    /// Encrypts `data`, which is stored from the start of sector `lba` on.
    pub(crate) fn encrypt(&self, lba: Lba, data: &mut [u8]) {
        match self {
            Cipher::None => {}
            Cipher::Locked => unreachable!("data is refused without a key"),
            Cipher::Sectors(_) if is_broken(Rule::DataEncrypted) => {}
            Cipher::Sectors(cipher) => cipher.encrypt(lba.0, data),
        }
    }

    /// Decrypts `data`, which is stored from the start of sector `lba` on.
    pub(crate) fn decrypt(&self, lba: Lba, data: &mut [u8]) {
        match self {
            Cipher::None => {}
            Cipher::Locked => unreachable!("reads are refused without a key"),
            Cipher::Sectors(_) if is_broken(Rule::DataEncrypted) => {}
            Cipher::Sectors(cipher) => cipher.decrypt(lba.0, data),
        }
    }
}

/// Buffers of at most this many bytes are kept by their thread.
const KEPT_BYTES: usize = 1 << 20;

thread_local! {
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Memory for the ciphertext of a batch, which never holds anything else.
#[derive(Default)]
pub(crate) struct Ciphertext(Vec<u8>);

impl Ciphertext {
    /// Memory for `len` bytes; none of what earlier batches left there is read.
    pub(crate) fn of_len(&mut self, len: usize) -> &mut [u8] {
        let mut kept = KEPT.take();
        if kept.len() < len {
            kept.resize(len, 0);
        }
        self.0 = kept;
        &mut self.0[..len]
    }
}

impl Drop for Ciphertext {
    fn drop(&mut self) {
        if (1..=KEPT_BYTES).contains(&self.0.len()) {
            let kept = std::mem::take(&mut self.0);
            let _ = KEPT.try_with(|place| place.set(kept)); // or the thread ends
        }
    }
}
