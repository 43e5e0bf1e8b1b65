//! Secrets in memory: never printed, cleared when they are dropped.
//!
//! They are not locked in memory: swap, core dumps and hibernation can hold them (docs/SECURITY.md).

use std::{fmt, sync::Arc};

use zeroize::{ZeroizeOnDrop, Zeroizing};

use crate::{
    error::{Error, Result},
    limits::SECRET_BYTES_MAX,
};

/// What opens a key slot: a passphrase, the content of a key file, or the output of a command.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// The secret of `bytes`, which are cleared with it if they are handed over as a vector.
    ///
    /// # Errors
    /// [`Error::SecretLength`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Secret> {
        let bytes = Zeroizing::new(bytes.into());
        match bytes.len() {
            1..=SECRET_BYTES_MAX => Ok(Secret(Arc::new(bytes))),
            bytes => Err(Error::SecretLength { bytes }),
        }
    }

    /// Its bytes, for handing them on. They must not be printed, stored or kept.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Bytes of a [`VolumeKey`]: the key of data, then that of tweaks.
pub(crate) const VOLUME_KEY_BYTES: usize = 64;

/// The key that encrypts all data of a store.
#[derive(ZeroizeOnDrop)]
pub struct VolumeKey(pub(crate) Box<[u8; VOLUME_KEY_BYTES]>);

impl VolumeKey {
    /// A new key.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn random() -> Result<VolumeKey> {
        let mut key = VolumeKey(Box::new([0; VOLUME_KEY_BYTES]));
        random(&mut key.0[..])?;
        Ok(key)
    }
}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VolumeKey(..)")
    }
}

/// Fills `out` from the system's source of randomness.
pub(crate) fn random(out: &mut [u8]) -> Result<()> {
    getrandom::fill(out).map_err(|error| Error::Random { reason: error.to_string() })
}
