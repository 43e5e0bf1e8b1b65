//! Storage in memory, for tests and for stores that need not survive the process.
//!
//! [`SparseBytes`] and [`FileImage`] hold the content; simulators build on them too.

mod device;
mod image;
mod place;
mod sparse;

pub use device::MemDevice;
pub use image::FileImage;
pub use place::MemPlace;
pub use sparse::SparseBytes;
