//! Storage in memory, for tests and for stores that need not survive the process.
//!
//! [`SparseBytes`] and [`FileImage`] hold the content; simulators build on them too.

mod device;
mod image;
mod sparse;
mod vfs;

pub use device::MemDevice;
pub use image::FileImage;
pub use sparse::SparseBytes;
pub use vfs::MemVfs;
