//! What a key block holds at most.

/// Key slots of a store.
pub const SLOTS: usize = 8;
/// Longest label of a slot in bytes.
pub const LABEL_BYTES_MAX: usize = 40;
/// Longest secret in bytes.
pub const SECRET_BYTES_MAX: usize = 8 << 10;
