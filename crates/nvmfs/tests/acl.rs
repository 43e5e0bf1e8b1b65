//! POSIX access control lists: what a kernel leaves to a file system. Random ones, under power cuts too, are among the
//! changes of `posix_model.rs` and `posix_crash.rs`.

use crate::by_inode::{NOBODY, ROOT, new, refused};
use lacuna_nvmfs::{
    CheckDepth, Ino, Refusal,
    posix::{Caller, Posix, SetAttr, XattrMode},
};

const ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const ANY: u32 = u32::MAX;

/// The value of an attribute: tag, permissions and id of each entry.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn set(fs: &Posix, ino: Ino, name: &[u8], entries: &[(u16, u16, u32)]) {
    fs.setxattr(ino, name, &list(entries), XattrMode::Set).expect("sets");
}

#[test]
fn a_list_and_the_mode_agree() {
    let store = new();
    let fs = store.posix();
    let file = fs.mknod(ROOT, b"file", 0o100_644, 0, NOBODY).unwrap().ino;
    set(&fs, file, ACL, &[(1, 6, ANY), (2, 7, 9), (4, 4, ANY), (16, 6, ANY), (32, 0, ANY)]);
    assert_eq!(fs.getattr(file).unwrap().perm, 0o660, "the mask is shown as the group's permissions");
    fs.setattr(file, &SetAttr { mode: Some(0o4715), ..SetAttr::default() }).unwrap();
    let changed = list(&[(1, 7, ANY), (2, 7, 9), (4, 4, ANY), (16, 1, ANY), (32, 5, ANY)]);
    assert_eq!(fs.getxattr(file, ACL).unwrap(), changed);
    assert_eq!(fs.getattr(file).unwrap().perm, 0o4715);
    // One that says no more than a mode becomes one.
    set(&fs, file, ACL, &[(1, 6, ANY), (4, 4, ANY), (32, 0, ANY)]);
    assert_eq!(fs.getattr(file).unwrap().perm, 0o4640);
    refused(fs.getxattr(file, ACL), Refusal::NoAttribute);
    refused(fs.setxattr(file, ACL, &list(&[(1, 6, ANY)]), XattrMode::Set), Refusal::Invalid);
}

#[test]
fn a_default_list_is_handed_down_instead_of_the_umask() {
    let store = new();
    let fs = store.posix();
    let caller = Caller { uid: 5, gid: 6, umask: 0o027 };
    let dir = fs.mkdir(ROOT, b"dir", 0o777, caller).unwrap();
    assert_eq!(dir.perm, 0o750, "the umask counts without a list");
    let default = [(1, 7, ANY), (2, 6, 9), (4, 5, ANY), (16, 7, ANY), (32, 4, ANY)];
    set(&fs, dir.ino, DEFAULT_ACL, &default);
    assert_eq!(fs.getattr(dir.ino).unwrap().perm, 0o750, "it is for others");
    let file = fs.create(dir.ino, b"file", 0o666, caller).unwrap();
    assert_eq!(file.perm, 0o664);
    let inherited = list(&[(1, 6, ANY), (2, 6, 9), (4, 5, ANY), (16, 6, ANY), (32, 4, ANY)]);
    assert_eq!(fs.getxattr(file.ino, ACL).unwrap(), inherited);
    assert!(fs.getxattr(file.ino, DEFAULT_ACL).is_err());
    let below = fs.mkdir(dir.ino, b"below", 0o700, caller).unwrap();
    assert_eq!((below.perm, fs.getxattr(below.ino, DEFAULT_ACL).unwrap()), (0o700, list(&default)));
    let link = fs.symlink(dir.ino, b"link", b"file", caller).unwrap();
    assert_eq!((link.perm, fs.listxattr(link.ino).unwrap()), (0o777, Vec::new()));
    // One that says no more than a mode leaves none.
    set(&fs, dir.ino, DEFAULT_ACL, &[(1, 7, ANY), (4, 5, ANY), (32, 1, ANY)]);
    let plain = fs.create(dir.ino, b"plain", 0o666, caller).unwrap();
    assert_eq!((plain.perm, fs.listxattr(plain.ino).unwrap()), (0o640, Vec::new()));
    assert!(store.check(CheckDepth::Payload).unwrap().is_clean());
}

/// More names than an inode takes.
#[test]
fn a_long_list_is_handed_down() {
    let store = new();
    let fs = store.posix();
    let dir = fs.mkdir(ROOT, b"dir", 0o755, NOBODY).unwrap().ino;
    let mut entries = vec![(1, 7, ANY)];
    entries.extend((0..300).map(|user| (2, 4, user)));
    entries.extend([(4, 5, ANY), (16, 7, ANY), (32, 0, ANY)]);
    set(&fs, dir, DEFAULT_ACL, &entries);
    let below = fs.mkdir(dir, b"below", 0o777, NOBODY).unwrap().ino;
    for name in [ACL, DEFAULT_ACL] {
        assert_eq!(fs.getxattr(below, name).unwrap(), list(&entries));
    }
    assert!(store.check(CheckDepth::Payload).unwrap().is_clean());
}

/// Linux lists 64 KiB of names: of more, nobody would see any.
#[test]
fn names_of_attributes_stay_within_what_can_be_listed() {
    let store = new();
    let fs = store.posix();
    let ino = fs.create(ROOT, b"file", 0o666, NOBODY).unwrap().ino;
    let name = |number: usize| format!("user.{number:0>250}").into_bytes();
    let set = |number| fs.setxattr(ino, &name(number), b"", XattrMode::Set);
    let refused = (0..400).find_map(|number| set(number).err().map(|error| (number, error.errno())));
    let (count, errno) = refused.expect("a limit");
    assert_eq!(errno, 28);
    let listed = fs.listxattr(ino).unwrap();
    assert!(listed.len() == count * 256 && listed.len() <= 65_536 && count >= 256, "{count}");
    fs.setxattr(ino, &name(0), b"its value may grow", XattrMode::Set).unwrap();
    assert!(store.check(CheckDepth::Payload).unwrap().is_clean());
}

/// A directory gets it twice, which is more than an inode holds: that stopped the process.
#[test]
fn a_list_that_is_too_long_to_hand_down_is_refused() {
    let store = new();
    let fs = store.posix();
    let dir = fs.mkdir(ROOT, b"dir", 0o755, NOBODY).unwrap().ino;
    let mut entries = vec![(1, 7, ANY)];
    entries.extend((0..8_000).map(|user| (2, 4, user)));
    entries.extend([(4, 5, ANY), (16, 7, ANY), (32, 0, ANY)]);
    set(&fs, dir, DEFAULT_ACL, &entries);
    let refused = fs.mkdir(dir, b"below", 0o777, NOBODY).unwrap_err();
    assert_eq!(refused.errno(), 28);
    let file = fs.create(dir, b"file", 0o666, NOBODY).unwrap().ino;
    assert_eq!(fs.getxattr(file, ACL).unwrap().len(), list(&entries).len());
    assert!(store.check(CheckDepth::Payload).unwrap().is_clean());
}
