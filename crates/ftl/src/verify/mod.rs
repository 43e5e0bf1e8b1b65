//! Proving that what is mapped is what was written.

pub(crate) mod check;
pub(crate) mod scrub;
pub(crate) mod sweep;
