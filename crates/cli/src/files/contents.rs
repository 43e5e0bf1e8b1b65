//! What a copy takes of a file, whichever side it lies on.

use anyhow::Result;
use lacuna_nvmfs::{
    Timestamp,
    posix::{FileKind, Runs},
};

/// The identity of a file: its device or store, and its inode number there.
pub(super) type Identity = (u64, u64);

/// Names and values of extended attributes.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The attributes of an inode that a copy keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) kind: FileKind,
    pub(super) perm: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) accessed: Timestamp,
    pub(super) modified: Timestamp,
    /// Of a file with several names that is no directory.
    pub(super) identity: Option<Identity>,
}

/// A file that is read where it has data.
pub(super) trait Reader {
    /// Runs of data from `offset` on (a multiple of 4096, or where the runs before ended), some megabytes of
    /// them; and up to where that is all, at most the length of the file.
    fn read_runs(&self, offset: u64) -> Result<Runs>;
}

/// A new file; ranges that are never written are holes.
pub(super) trait Writer {
    /// Writes data, each with its offset, in order.
    fn write_runs(&self, runs: &[(u64, &[u8])]) -> Result<()>;
    /// Sets the length, and ends the file.
    fn finish(&self, size: u64) -> Result<()>;
}
