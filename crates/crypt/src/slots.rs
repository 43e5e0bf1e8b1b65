//! Key slots: the volume key, wrapped by several secrets.
//!
//! A secret opens a slot in two steps. Argon2id makes a key of 32 bytes of the secret and the slot's salt, at a cost in
//! memory and time that each guess takes anew. XChaCha20-Poly1305 then decrypts the volume key with it, and fails
//! unless the secret, the slot, the store and the cipher all are those with which it was wrapped.
//!
//! 1. *A nonce is never used twice with a key.* Each wrapping draws a new salt and a new nonce, and a wrapping is never
//!    changed: rotation makes another one. Even the same secret in two slots gives different keys.
//! 2. *A slot does not move between stores*: the store's uuid is authenticated.
//! 3. *The last slot stays*: what is removed is opened by none, and somebody knows a secret that opens what is left.
//! 4. *A forged block costs bounded work*: memory and passes have maxima ([`Cost`]), and there are eight slots at most.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::{Key, KeyInit, Tag, XChaCha20Poly1305, XNonce, aead::AeadInOut};
use zeroize::Zeroizing;

use crate::{
    error::{Error, Result},
    format::{Content, KEY_BLOCK_BYTES, SEALED_BYTES, SEQUENCE_MAX, Slot},
    limits::{LABEL_BYTES_MAX, SLOTS},
    secret::{Secret, VOLUME_KEY_BYTES, VolumeKey, random},
};

/// What a guess of a secret costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Memory of Argon2id in KiB: 8 to 1,048,576.
    pub memory_kib: u32,
    /// Its passes over that memory: 1 to 64. At most 4 GiB are passed over in all.
    pub passes: u32,
}

impl Cost {
    /// The least that Argon2id takes: for tests, and for nothing else.
    pub const MIN: Cost = Cost { memory_kib: 8, passes: 1 };

    fn check(self) -> Result<Params> {
        let Cost { memory_kib, passes } = self;
        let is_bounded =
            memory_kib <= 1 << 20 && passes <= 64 && u64::from(memory_kib) * u64::from(passes) <= 4 << 20;
        let params = Params::new(memory_kib, passes, 1, Some(32)).ok().filter(|_| is_bounded);
        params.ok_or(Error::Cost { memory_kib, passes })
    }
}

impl Default for Cost {
    /// 128 MiB, three passes: twice the memory that RFC 9106 recommends where memory is scarce; about half a second.
    fn default() -> Cost {
        Cost { memory_kib: 128 << 10, passes: 3 }
    }
}

/// Where a slot's secret came from: a hint for people, which nothing depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// A passphrase that somebody typed.
    #[default]
    Passphrase,
    /// The content of a file.
    File,
    /// The output of a command.
    Command,
    /// A source that this version does not know.
    Unknown,
}

impl Source {
    fn to_raw(self) -> u8 {
        match self {
            Source::Unknown => 0,
            Source::Passphrase => 1,
            Source::File => 2,
            Source::Command => 3,
        }
    }

    fn from_raw(raw: u8) -> Source {
        let known = [Source::Passphrase, Source::File, Source::Command];
        known.into_iter().find(|source| source.to_raw() == raw).unwrap_or(Source::Unknown)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Passphrase => "passphrase",
            Source::File => "file",
            Source::Command => "command",
            Source::Unknown => "unknown",
        })
    }
}

/// How a slot is made.
#[derive(Clone, Debug, Default)]
pub struct SlotOptions {
    /// Where the secret came from.
    pub source: Source,
    /// A name for people, which anybody can read.
    pub label: String,
    /// What a guess of the secret costs.
    pub cost: Cost,
}

/// A slot in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// Its number, from 0.
    pub slot: usize,
    /// Where its secret came from.
    pub source: Source,
    /// Its name.
    pub label: String,
    /// What a guess of its secret costs.
    pub cost: Cost,
}

/// The key slots of a store, which are changed as a whole: each change makes another block, with a higher number.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyBlock(Content);

impl fmt::Debug for KeyBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyBlock").field("sequence", &self.0.sequence).finish_non_exhaustive()
    }
}

/// A change of the secrets that open a key block.
#[derive(Clone, Debug)]
pub enum KeyChange<'a> {
    /// One more key.
    Add {
        /// The key.
        new: &'a Secret,
        /// How its slot is made.
        options: &'a SlotOptions,
    },
    /// One key fewer: not the one that the change is made with.
    Remove {
        /// Its slot.
        slot: usize,
    },
    /// Another key instead of the one that the change is made with.
    Rotate {
        /// The key.
        new: &'a Secret,
        /// How its slot is made.
        options: &'a SlotOptions,
    },
}

impl KeyBlock {
    /// A new volume key for the store `uuid`, and the block in which `secret` opens it.
    ///
    /// # Errors
    /// [`Error::Label`], [`Error::Cost`], [`Error::Memory`], [`Error::Random`].
    pub fn create(uuid: [u8; 16], secret: &Secret, options: &SlotOptions) -> Result<(KeyBlock, VolumeKey)> {
        let key = VolumeKey::random()?;
        let mut slots = [const { None }; SLOTS];
        slots[0] = Some(wrap(&uuid, &key, secret, options)?);
        Ok((KeyBlock(Content { uuid, sequence: 1, slots }), key))
    }

    /// The block in `bytes`, of which there may be more than a block.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn parse(bytes: &[u8]) -> Result<KeyBlock> {
        Content::parse(bytes).map(KeyBlock)
    }

    /// The block as it is stored.
    pub fn encode(&self) -> [u8; KEY_BLOCK_BYTES] {
        self.0.encode()
    }

    /// The store that it belongs to.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.uuid
    }

    /// Its number: of several blocks of a store the one with the highest number counts.
    pub fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// The slots in use.
    pub fn slots(&self) -> Vec<SlotInfo> {
        let used = self.used().map(|(number, slot)| SlotInfo {
            slot: number,
            source: Source::from_raw(slot.source),
            label: slot.label.clone(),
            cost: slot.cost(),
        });
        used.collect()
    }

    fn used(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.0.slots.iter().enumerate().filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    /// The volume key, and the number of the slot that `secret` opens. Each slot that it does not open takes its cost.
    ///
    /// # Errors
    /// [`Error::WrongKey`]; [`Error::Cost`] and [`Error::Memory`] where a slot asks for too much and no other opens.
    pub fn unlock(&self, secret: &Secret) -> Result<(usize, VolumeKey)> {
        self.unlock_but(None, secret)
    }

    fn unlock_but(&self, passed_over: Option<usize>, secret: &Secret) -> Result<(usize, VolumeKey)> {
        let mut failure = Error::WrongKey { used: self.used().count() };
        for (number, slot) in self.used().filter(|(number, _)| Some(*number) != passed_over) {
            match slot.unwrap(&self.0.uuid, secret) {
                Ok(Some(key)) => return Ok((number, key)),
                Ok(None) => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The block in which `new` opens the volume key too, which `secret` opens; and the number of the new slot.
    ///
    /// # Errors
    /// [`Error::NoFreeSlot`], [`Error::OpensAlready`]; as [`KeyBlock::unlock`] and [`KeyBlock::create`].
    pub fn add(&self, secret: &Secret, new: &Secret, options: &SlotOptions) -> Result<(KeyBlock, usize)> {
        let free = self.0.slots.iter().position(Option::is_none).ok_or(Error::NoFreeSlot)?;
        let (_, key) = self.unlock(secret)?;
        if let Ok((slot, _)) = self.unlock(new) {
            return Err(Error::OpensAlready { slot });
        }
        let slot = wrap(&self.0.uuid, &key, new, options)?;
        Ok((self.with(free, Some(slot))?, free))
    }

    /// The block without `slot`. `secret` must open another one (invariant 3).
    ///
    /// # Errors
    /// [`Error::UnusedSlot`], [`Error::KeyOfRemoved`], as [`KeyBlock::unlock`].
    pub fn remove(&self, secret: &Secret, slot: usize) -> Result<KeyBlock> {
        let removed = self.0.slots.get(slot).and_then(Option::as_ref).ok_or(Error::UnusedSlot { slot })?;
        match self.unlock_but(Some(slot), secret) {
            Ok(_) => self.with(slot, None),
            Err(Error::WrongKey { .. }) if removed.unwrap(&self.0.uuid, secret)?.is_some() => {
                Err(Error::KeyOfRemoved { slot })
            }
            Err(error) => Err(error),
        }
    }

    /// The block in which `new` opens the slot that `secret` opens, and `secret` opens none; and the slot's number.
    ///
    /// # Errors
    /// [`Error::OpensAlready`]; as [`KeyBlock::unlock`] and [`KeyBlock::create`]; [`Error::Cost`] and [`Error::Memory`] where a slot asks for too
    /// much, which `secret` may open as well.
    pub fn rotate(&self, secret: &Secret, new: &Secret, options: &SlotOptions) -> Result<(KeyBlock, usize)> {
        let (number, key) = self.unlock(secret)?;
        if let Ok((slot, _)) = self.unlock(new) {
            return Err(Error::OpensAlready { slot });
        }
        let slot = wrap(&self.0.uuid, &key, new, options)?;
        let mut rotated = self.with(number, Some(slot))?;
        for (other, slot) in self.used().filter(|(other, _)| *other != number) {
            // Programs of before gave a secret several slots.
            if slot.unwrap(&self.0.uuid, secret)?.is_some() {
                rotated.0.slots[other] = None;
            }
        }
        Ok((rotated, number))
    }

    /// The block after `change`, which `secret` allows, and the slot that changed.
    ///
    /// # Errors
    /// As [`KeyBlock::add`], [`KeyBlock::remove`] and [`KeyBlock::rotate`].
    pub fn change(&self, secret: &Secret, change: &KeyChange<'_>) -> Result<(KeyBlock, usize)> {
        match *change {
            KeyChange::Add { new, options } => self.add(secret, new, options),
            KeyChange::Remove { slot } => self.remove(secret, slot).map(|block| (block, slot)),
            KeyChange::Rotate { new, options } => self.rotate(secret, new, options),
        }
    }

    fn with(&self, number: usize, slot: Option<Slot>) -> Result<KeyBlock> {
        let mut content = self.0.clone();
        if content.sequence >= SEQUENCE_MAX {
            return Err(Error::Damaged("a key block with the last number that can be counted to"));
        }
        content.sequence += 1;
        content.slots[number] = slot;
        Ok(KeyBlock(content))
    }
}

/// A slot in which `secret` opens `key` of the store `uuid`.
fn wrap(uuid: &[u8; 16], key: &VolumeKey, secret: &Secret, options: &SlotOptions) -> Result<Slot> {
    let SlotOptions { source, label, cost } = options;
    if label.len() > LABEL_BYTES_MAX || label.contains(char::is_control) {
        return Err(Error::Label);
    }
    let mut slot = Slot {
        source: source.to_raw(),
        label: label.clone(),
        memory_kib: cost.memory_kib,
        passes: cost.passes,
        salt: [0; 32],
        nonce: [0; 24],
        sealed: [0; SEALED_BYTES],
    };
    random(&mut slot.salt)?;
    random(&mut slot.nonce)?;
    slot.seal(uuid, key, secret)?;
    Ok(slot)
}

impl Slot {
    fn cost(&self) -> Cost {
        Cost { memory_kib: self.memory_kib, passes: self.passes }
    }

    /// The cipher that wraps the volume key: its key is made of `secret`.
    fn wrapping(&self, secret: &Secret) -> Result<XChaCha20Poly1305> {
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, self.cost().check()?);
        let no_memory = || Error::Memory { memory_kib: self.memory_kib };
        // The key can be computed from what Argon2id leaves in its memory.
        let mut memory = Zeroizing::new(Vec::new());
        let blocks = argon2.params().block_count();
        memory.try_reserve_exact(blocks).map_err(|_| no_memory())?;
        memory.resize(blocks, argon2::Block::default());
        let mut key = Zeroizing::new([0; 32]);
        let (secret, salt) = (secret.expose(), &self.salt);
        let made = argon2.hash_password_into_with_memory(secret, salt, &mut key[..], &mut memory[..]);
        made.map_err(|_| no_memory())?;
        Ok(XChaCha20Poly1305::new(<&Key>::from(&*key)))
    }

    /// Wraps `key` with the salt and nonce of the slot.
    fn seal(&mut self, uuid: &[u8; 16], key: &VolumeKey, secret: &Secret) -> Result<()> {
        let cipher = self.wrapping(secret)?;
        let associated = self.associated(uuid);
        self.sealed[..VOLUME_KEY_BYTES].copy_from_slice(&key.0[..]);
        let (data, tag) = self.sealed.split_at_mut(VOLUME_KEY_BYTES);
        let nonce = XNonce::from(self.nonce);
        let made = cipher.encrypt_inout_detached(&nonce, &associated, data.into());
        tag.copy_from_slice(&made.expect("the length of a volume key"));
        Ok(())
    }

    /// The volume key, if `secret` opens the slot.
    fn unwrap(&self, uuid: &[u8; 16], secret: &Secret) -> Result<Option<VolumeKey>> {
        let cipher = self.wrapping(secret)?;
        let (data, tag) = self.sealed.split_at(VOLUME_KEY_BYTES);
        let mut key = VolumeKey(Box::new(data.try_into().expect("its length")));
        let tag = Tag::try_from(tag).expect("its length");
        let nonce = XNonce::from(self.nonce);
        let opened =
            cipher.decrypt_inout_detached(&nonce, &self.associated(uuid), key.0[..].as_mut().into(), &tag);
        Ok(opened.is_ok().then_some(key))
    }
}

#[cfg(test)]
mod tests;
