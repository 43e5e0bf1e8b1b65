//! The cipher of sectors: AES-256 in XTS mode (IEEE 1619-2018, NIST SP 800-38E), in data units of a sector.
//!
//! The tweak of a data unit is the address of its sector. A unit may be cut short at a multiple of 16 bytes, where the
//! stored data of a chunk ends; then its blocks are the first ones of the whole unit, so ciphertext stealing never
//! occurs.
//!
//! The block cipher is that of the crate `aes`. The mode around it, two exclusive ors and a doubling in GF(2^128) for
//! each block, is here because it must hand the cipher many blocks at a time: the crate `xts-mode` hands it one, which
//! takes twice the time (1.26 instead of 2.58 GB/s: `cargo run --release -p lacuna-crypt --example speed`). It is held
//! against vectors of IEEE 1619 and, at random, against that crate.

use aes::{
    Aes256, Block,
    cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit},
};

use crate::secret::{VOLUME_KEY_BYTES, VolumeKey};

/// Bytes of a block of the cipher: the data of a sector may end at a multiple of these.
pub const BLOCK: usize = 16;
/// Bytes of a data unit.
const UNIT: usize = 512;
/// Data units whose tweaks are encrypted at a time.
const UNITS: usize = 32;

/// Encrypts and decrypts sectors. Its keys are cleared when it is dropped.
pub struct SectorCipher {
    data: Aes256,
    tweaks: Aes256,
}

impl VolumeKey {
    /// The cipher with this key.
    pub fn cipher(&self) -> SectorCipher {
        let (data, tweaks) = self.0.split_at(VOLUME_KEY_BYTES / 2);
        let key = |key: &[u8]| Aes256::new(key.try_into().expect("half of a volume key is a key of AES-256"));
        SectorCipher { data: key(data), tweaks: key(tweaks) }
    }
}

impl SectorCipher {
    /// Encrypts `data`, which begins with sector `first`, in place.
    ///
    /// # Panics
    /// When `data` is not whole blocks of 16 bytes.
    pub fn encrypt(&self, first: u64, data: &mut [u8]) {
        self.each_unit(first.into(), data, |blocks| self.data.encrypt_blocks(blocks));
    }

    /// Decrypts `data`, which begins with sector `first`, in place.
    ///
    /// # Panics
    /// When `data` is not whole blocks of 16 bytes.
    pub fn decrypt(&self, first: u64, data: &mut [u8]) {
        self.each_unit(first.into(), data, |blocks| self.data.decrypt_blocks(blocks));
    }

    /// Encrypts `data` in place: data units of 512 bytes, the first one with `tweak`, each further one with the next
    /// number. No other data may ever be encrypted with these tweaks, unless it replaces this.
    ///
    /// # Panics
    /// When `data` is not whole blocks of 16 bytes.
    pub fn encrypt_units(&self, tweak: u128, data: &mut [u8]) {
        self.each_unit(tweak, data, |blocks| self.data.encrypt_blocks(blocks));
    }

    /// Decrypts in place what [`SectorCipher::encrypt_units`] made with the same `tweak`.
    ///
    /// # Panics
    /// When `data` is not whole blocks of 16 bytes.
    pub fn decrypt_units(&self, tweak: u128, data: &mut [u8]) {
        self.each_unit(tweak, data, |blocks| self.data.decrypt_blocks(blocks));
    }

    fn each_unit(&self, first: u128, data: &mut [u8], crypt: impl Fn(&mut [Block])) {
        assert!(data.len().is_multiple_of(BLOCK), "{} bytes are not whole blocks", data.len());
        let mut number = first;
        for units in data.chunks_mut(UNITS * UNIT) {
            let mut tweaks = [Block::default(); UNITS];
            let tweaks = &mut tweaks[..units.len().div_ceil(UNIT)];
            for tweak in &mut *tweaks {
                *tweak = Array(number.to_le_bytes());
                number = number.wrapping_add(1);
            }
            self.tweaks.encrypt_blocks(tweaks);
            for (unit, tweak) in units.chunks_mut(UNIT).zip(tweaks) {
                let (blocks, _) = unit.as_chunks_mut();
                let masks = masks(u128::from_le_bytes(tweak.0));
                mask(blocks, &masks);
                crypt(Array::cast_slice_from_core_mut(blocks));
                mask(blocks, &masks);
            }
        }
    }
}

/// What each block of a unit is masked with: the encrypted tweak, times x^0, x^1, ... in GF(2^128).
fn masks(tweak: u128) -> [u128; UNIT / BLOCK] {
    let mut next = tweak;
    std::array::from_fn(|_| {
        let mask = next;
        // Reduced by x^128 + x^7 + x^2 + x + 1, without a branch.
        next = mask << 1 ^ ((mask as i128 >> 127) as u128 & 0x87);
        mask
    })
}

fn mask(blocks: &mut [[u8; BLOCK]], masks: &[u128]) {
    for (block, mask) in blocks.iter_mut().zip(masks) {
        *block = (u128::from_le_bytes(*block) ^ mask).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use aes::cipher::{KeyInit, consts::U32};
    use proptest::{array::uniform32, collection::vec, prelude::*};
    use xts_mode::{Xts128, get_tweak_default};

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn cipher(data: &str, tweaks: &str) -> SectorCipher {
        let key = [hex(data), hex(tweaks)].concat();
        VolumeKey(Box::new(key.try_into().unwrap())).cipher()
    }

    const DATA: &str = "2718281828459045235360287471352662497757247093699959574966967627";
    const TWEAKS: &str = "3141592653589793238462643383279502884197169399375105820974944592";

    /// Vectors 10 to 14 of IEEE 1619-2018, annex B (AES-256, units of 512 bytes): number of the unit, and the first and
    /// the last 32 bytes of what the bytes 0 to 255, twice, become.
    #[test]
    fn vectors_of_ieee_1619() {
        let vectors = [
            (
                0xff,
                "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b",
                "773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151",
            ),
            (
                0xffff,
                "77a31251618a15e6b92d1d66dffe7b50b50bad552305ba0217a610688eff7e11",
                "54fbff89eeaeea791f4a7ab1f9868294a4f9e27b42af8100cb9d59cef9645803",
            ),
            (
                0xff_ffff,
                "e387aaa58ba483afa7e8eb469778317ecf4cf573aa9d4eac23f2cdf914e4e200",
                "ed242c8900dd1fa965bc950dfce09b132263a1eef52dd6888c309f5a7d712826",
            ),
            (
                0xffff_ffff,
                "bf53d2dade78e822a4d949a9bc6766b01b06a8ef70d26748c6a7fc36d80ae4c5",
                "f6516139420fcff3b7361d86322c4bd84c82f335abb152c4a93411373aaa8220",
            ),
            (
                0xff_ffff_ffff,
                "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed23",
                "6975be5e0b4efce51cd3e70c25a1fbbbd609d273ad5b0d59631c531f6a0a57b9",
            ),
        ];
        let cipher = cipher(DATA, TWEAKS);
        let plain: Vec<u8> = (0..512).map(|at| at as u8).collect();
        for (unit, start, end) in vectors {
            let mut data = plain.clone();
            cipher.encrypt(unit, &mut data);
            assert_eq!((&data[..32], &data[480..]), (&hex(start)[..], &hex(end)[..]), "unit {unit:#x}");
            cipher.decrypt(unit, &mut data);
            assert_eq!(data, plain);
        }
    }

    proptest! {
        #[test]
        fn it_is_the_mode_that_others_implement(
            keys in [uniform32(any::<u8>()), uniform32(any::<u8>())],
            first in any::<u64>(),
            blocks in 1..1100_usize,
            seed in any::<u8>(),
        ) {
            let plain: Vec<u8> = (0..blocks * BLOCK).map(|at| (at * 7) as u8 ^ seed).collect();
            let cipher = VolumeKey(Box::new(keys.concat().try_into().unwrap())).cipher();
            let others = keys.map(|key| Aes256::new(&Array::<u8, U32>::from(key)));
            let [data, tweaks] = others;
            let other = Xts128::new(data, tweaks);

            let first = first.min(u64::MAX - 100);
            let (mut ours, mut theirs) = (plain.clone(), plain.clone());
            cipher.encrypt(first, &mut ours);
            other.encrypt_area(&mut theirs, UNIT, first.into(), get_tweak_default);
            prop_assert_eq!(&ours, &theirs);
            cipher.decrypt(first, &mut ours);
            prop_assert_eq!(&ours, &plain);
        }

        /// So fragments of a chunk are decrypted by themselves, and collection moves them without a key.
        #[test]
        fn sectors_do_not_depend_on_each_other(data in vec(any::<u8>(), 1024), at in 0..2_usize, len in 1..32_usize) {
            let cipher = cipher(DATA, TWEAKS);
            let mut whole = data.clone();
            cipher.encrypt(9, &mut whole);
            let mut part = whole[at * UNIT..][..len * BLOCK].to_vec();
            cipher.decrypt(9 + at as u64, &mut part);
            prop_assert_eq!(&part[..], &data[at * UNIT..][..len * BLOCK]);
        }
    }
}
