//! For fuzz/: bytes as they are, and with a valid seal. Promises nothing.

use lacuna_ftl::{Lba, SECTOR};

use crate::format::{Body, Dirent, Inode, Superblock, Tombstone, claims_tombstone, seal, verify};

/// A sector of the file system, as each of its kinds.
pub fn sector(bytes: &[u8]) {
    let mut sector = [0; SECTOR];
    let len = bytes.len().min(SECTOR);
    sector[..len].copy_from_slice(&bytes[..len]);
    let _ = claims_tombstone(&sector);
    each::<Superblock>(&sector);
    each::<Inode>(&sector);
    each::<Tombstone>(&sector);
    if let Some(dirent) = each::<Dirent>(&sector) {
        let _ = (dirent.name().len(), dirent.ino(), dirent.hash(), dirent.generation());
    }
}

fn each<B: Body>(sector: &[u8; SECTOR]) -> Option<B> {
    let _ = verify::<B>(sector, Lba(0));
    let body = B::read_from_bytes(&sector[SECTOR - size_of::<B>()..]).expect("a body of its size");
    if body.flaw().is_some() {
        return None;
    }
    Some(verify(&seal(&body, Lba(5)), Lba(5)).expect("what was sealed is sound"))
}
