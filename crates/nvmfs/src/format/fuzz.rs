//! Entry points for fuzz/: raw bytes, and the same with a valid seal. Not a stable interface.

use lacuna_ftl::{Lba, SECTOR};

use super::{
    Body, Caller, Dirent, Ino, Inode, LimitsSector, Orphan, Superblock, Tombstone, XattrSector,
    claims_tombstone, encode_xattrs, parse_xattrs, seal, verify,
};

/// A sector of the file system, as each of its kinds.
pub fn sector(bytes: &[u8]) {
    let mut sector = [0; SECTOR];
    let len = bytes.len().min(SECTOR);
    sector[..len].copy_from_slice(&bytes[..len]);
    let _ = claims_tombstone(&sector);
    each::<Superblock>(&sector);
    each::<Tombstone>(&sector);
    if let Some(inode) = each::<Inode>(&sector) {
        inode_fields(inode);
    }
    if let Some(dirent) = each::<Dirent>(&sector) {
        let _ = (dirent.name().len(), dirent.ino(), dirent.hash(), dirent.generation(), dirent.kind());
    }
    if let Some(orphan) = each::<Orphan>(&sector) {
        let _ = orphan.is_of(Ino::ROOT, 1);
    }
    if let Some(limits) = each::<LimitsSector>(&sector) {
        let again = LimitsSector::new(limits.uid(), limits.limits());
        assert!((again.uid(), again.limits()) == (limits.uid(), limits.limits()));
    }
    if let Some(xattrs) = each::<XattrSector>(&sector) {
        let _ = xattrs.bytes_of(Ino::ROOT, 1);
    }
}

/// A list of attributes; an accepted list is the only encoding of its attributes.
pub fn attributes(bytes: &[u8]) {
    if let Ok(xattrs) = parse_xattrs(bytes) {
        assert_eq!(encode_xattrs(&xattrs), bytes);
    }
}

/// All fields of a valid inode can be read and changed.
fn inode_fields(mut inode: Inode) {
    let _ = (inode.permissions(), inode.times(), inode.owner(), inode.rdev(), inode.is_log());
    let _ = (
        inode.inline_target().map(<[u8]>::len),
        inode.has_xattrs_outside(),
        inode.has_privileges(Caller::default()),
    );
    if let Some(bytes) = inode.inline_xattrs() {
        attributes(bytes);
    }
    if inode.is_directory() {
        let _ = inode.parent();
    }
    let _ = inode.compression().codec();
    inode.drop_privileges(Caller::default());
    inode.count_change();
    inode.set_xattrs(&[1; 400], super::Marks::default());
    inode.seal();
}

fn each<B: Body>(sector: &[u8; SECTOR]) -> Option<B> {
    let _ = verify::<B>(sector, Lba(0));
    let body = B::read_from_bytes(&sector[SECTOR - size_of::<B>()..]).expect("a body of its size");
    if body.flaw().is_some() {
        return None;
    }
    Some(verify(&seal(&body, Lba(5)), Lba(5)).expect("what was sealed is sound"))
}
