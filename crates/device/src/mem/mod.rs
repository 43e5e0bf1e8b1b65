//! Storage in memory, for tests and for stores that may be forgotten.

mod device;
mod image;
mod place;

pub use device::MemDevice;
pub(crate) use image::FileImage;
pub use place::MemPlace;
