//! The keys of encrypted stores: the cipher of sectors, and key slots. Pure: no I/O.
//!
//! A store has one random [`VolumeKey`], which never changes and encrypts all data ([`SectorCipher`]). Nobody knows
//! it: it lies in a [`KeyBlock`], wrapped once by each of up to [`SLOTS`] secrets. So secrets come and go without a
//! change of the data.
//!
//! A key may also wrap others ([`VolumeKey::wrap`]) instead of encrypting data: so the engine's key wraps those of tables.
//!
//! ```
//! use lacuna_crypt::{Cost, KeyBlock, Secret, SlotOptions};
//!
//! # fn main() -> lacuna_crypt::Result<()> {
//! let options = SlotOptions { cost: Cost::MIN, ..SlotOptions::default() }; // for tests only
//! let (secret, other) = (Secret::new("correct horse")?, Secret::new("battery staple")?);
//! let (keys, volume_key) = KeyBlock::create([7; 16], &secret, &options)?;
//!
//! let mut sector = [1; 512];
//! volume_key.cipher().encrypt(4711, &mut sector);
//!
//! let (keys, _) = keys.rotate(&secret, &other, &options)?;
//! assert!(keys.unlock(&secret).is_err());
//! let (_, volume_key) = keys.unlock(&other)?;
//! volume_key.cipher().decrypt(4711, &mut sector);
//! assert_eq!(sector, [1; 512]);
//! # Ok(())
//! # }
//! ```
//!
//! layers: limits < error < secret < sector, wrapped < format < slots < fuzz

mod error;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
mod limits;
mod secret;
mod sector;
mod slots;
mod wrapped;

pub use error::{Error, Result};
pub use format::{KEY_BLOCK_BYTES, KEY_BLOCK_MAGIC};
pub use limits::{LABEL_BYTES_MAX, SECRET_BYTES_MAX, SLOTS};
pub use secret::{Secret, VolumeKey};
pub use sector::{BLOCK, SectorCipher};
pub use slots::{Cost, KeyBlock, KeyChange, SlotInfo, SlotOptions, Source};
pub use wrapped::WRAPPED_KEY_BYTES;
