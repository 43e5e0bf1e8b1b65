//! Memory for storage: aligned buffers, buffers that many threads fill, and arenas in huge pages.
//!
//! This crate holds all unsafe code of Lacuna that does not talk to the kernel about I/O. Its interface is safe.
//!
//! | what | for |
//! |---|---|
//! | [`AlignedBuf`] | a buffer that direct I/O accepts |
//! | [`Blank`], [`Filled`], [`Home`] | one buffer that several threads fill, each a part, and then share |
//! | [`DenseBytes`] | thousands of small, reference-counted byte strings, packed into huge pages |
//! | [`prefetch`], [`copy_past_cache`] | instructions that control the processor's cache |
//!
//! # Contract
//!
//! 1. Memory is initialised before it is handed out, so no safe caller can read uninitialised bytes. Its content is
//!    unspecified where the documentation says so ([`AlignedBuf::dense`], [`Blank::fill`]).
//! 2. No two handles that can write overlap, and none overlaps a handle that can read.
//! 3. The arenas' locks are innermost: a thread that holds one calls nothing but the allocator.
//!
//! Each module states the invariants that its unsafe code relies on. Miri runs the tests of buffers and arenas.

#![forbid(unsafe_op_in_unsafe_fn)]

mod buf;
mod dense;
mod fill;
mod huge;
mod past_cache;
mod prefetch;
mod slots;

pub use buf::AlignedBuf;
pub use dense::DenseBytes;
pub use fill::{Blank, Filled, Home};
pub use past_cache::copy_past_cache;
pub use prefetch::prefetch;
