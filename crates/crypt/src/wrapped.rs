//! Keys wrapped by keys: XChaCha20-Poly1305 with the first 32 bytes of the wrapping key.
//!
//! 1. *A key that wraps encrypts no data*, so no ciphertext of the one use tells anything about the other.
//! 2. *A nonce is never used twice*: 24 random bytes for each wrapping.
//! 3. *A wrapped key is of no use elsewhere*: what it is for (`context`) is authenticated.

use chacha20poly1305::{Key, KeyInit, Tag, XChaCha20Poly1305, XNonce, aead::AeadInOut};

use crate::{
    error::Result,
    secret::{VOLUME_KEY_BYTES, VolumeKey, random},
};

const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Bytes of a wrapped key: nonce, key, and the tag of Poly1305.
pub const WRAPPED_KEY_BYTES: usize = NONCE_BYTES + VOLUME_KEY_BYTES + TAG_BYTES;

impl VolumeKey {
    fn wrapping(&self) -> XChaCha20Poly1305 {
        let key: &[u8; 32] = self.0[..32].try_into().expect("its length");
        XChaCha20Poly1305::new(<&Key>::from(key))
    }

    /// Wraps `key`, which is for `context` and nothing else.
    ///
    /// # Errors
    /// [`crate::Error::Random`].
    pub fn wrap(&self, key: &VolumeKey, context: &[u8]) -> Result<[u8; WRAPPED_KEY_BYTES]> {
        let mut wrapped = [0; WRAPPED_KEY_BYTES];
        let (nonce, sealed) = wrapped.split_at_mut(NONCE_BYTES);
        random(nonce)?;
        sealed[..VOLUME_KEY_BYTES].copy_from_slice(&key.0[..]);
        let (data, tag) = sealed.split_at_mut(VOLUME_KEY_BYTES);
        let nonce = XNonce::try_from(&*nonce).expect("its length");
        let made = self.wrapping().encrypt_inout_detached(&nonce, context, data.into());
        tag.copy_from_slice(&made.expect("the length of a key"));
        Ok(wrapped)
    }

    /// The key that was wrapped by this one for `context`; `None` when that is not what `wrapped` is.
    pub fn unwrap(&self, wrapped: &[u8; WRAPPED_KEY_BYTES], context: &[u8]) -> Option<VolumeKey> {
        let (nonce, sealed) = wrapped.split_at(NONCE_BYTES);
        let (data, tag) = sealed.split_at(VOLUME_KEY_BYTES);
        let mut key = VolumeKey(Box::new(data.try_into().expect("its length")));
        let nonce = XNonce::try_from(nonce).expect("its length");
        let tag = Tag::try_from(tag).expect("its length");
        let data = key.0[..].as_mut().into();
        let opened = self.wrapping().decrypt_inout_detached(&nonce, context, data, &tag);
        opened.is_ok().then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_key_opens_for_its_context_alone() {
        let [root, other, key] = [(); 3].map(|()| VolumeKey::random().expect("random"));
        let wrapped = root.wrap(&key, b"table 16").expect("wrap");
        assert!(root.unwrap(&wrapped, b"table 16").is_some_and(|found| found.0 == key.0));
        assert!(root.unwrap(&wrapped, b"table 17").is_none(), "another context");
        assert!(other.unwrap(&wrapped, b"table 16").is_none(), "another key");
        for at in 0..wrapped.len() {
            let mut forged = wrapped;
            forged[at] ^= 1;
            assert!(root.unwrap(&forged, b"table 16").is_none(), "byte {at}");
        }
        assert_ne!(root.wrap(&key, b"table 16").expect("wrap")[..], wrapped[..], "invariant 2");
    }
}
