/// Why keys cannot be used or changed as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The secret opens no slot.
    #[error("wrong key: it opens none of {used} key slots")]
    WrongKey {
        /// Slots in use.
        used: usize,
    },
    /// The secret opens only the slot that is to be removed.
    #[error(
        "key slot {slot} can be removed only with a key of another slot, so that one is left that is known"
    )]
    KeyOfRemoved {
        /// The slot that was to be removed.
        slot: usize,
    },
    /// All slots are in use.
    #[error("all {} key slots are in use: remove one first", crate::limits::SLOTS)]
    NoFreeSlot,
    /// The secret that is to be added opens a slot.
    #[error("the new key opens key slot {slot} already")]
    OpensAlready {
        /// That slot.
        slot: usize,
    },
    /// There is nothing in the slot.
    #[error("key slot {slot} is not in use")]
    UnusedSlot {
        /// The slot.
        slot: usize,
    },
    /// A secret that is empty or too long.
    #[error("a key has 1 to {} bytes, not {bytes}", crate::limits::SECRET_BYTES_MAX)]
    SecretLength {
        /// Its length.
        bytes: usize,
    },
    /// A label that does not fit into a slot, or holds control characters.
    #[error("a key's label has at most {} bytes, and no control characters", crate::limits::LABEL_BYTES_MAX)]
    Label,
    /// A cost of Argon2id beyond what stores may ask for.
    #[error("Argon2id cannot take {memory_kib} KiB of memory and {passes} passes")]
    Cost {
        /// Memory in KiB.
        memory_kib: u32,
        /// Passes over it.
        passes: u32,
    },
    /// The memory that Argon2id takes is not there.
    #[error("Argon2id needs {memory_kib} KiB of memory, which cannot be had")]
    Memory {
        /// Memory in KiB.
        memory_kib: u32,
    },
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {reason}")]
    Random {
        /// What it says.
        reason: String,
    },
    /// Bytes that are no key block.
    #[error("{0}")]
    Damaged(&'static str),
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
