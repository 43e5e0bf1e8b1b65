//! What a copy reads and writes, whichever side it lies on.

use std::hash::{BuildHasher, Hasher, RandomState};

use anyhow::Result;
use lacuna_nvmfs::{
    Ino, Remains, Timestamp,
    posix::{FileKind, Runs},
};

/// The identity of an object: its device or store, and its inode number there.
pub(super) type Identity = (u64, u64);

/// Names and values of extended attributes.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The attribute that holds a POSIX access control list.
pub(super) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The one that holds the list for what is made in a directory.
pub(super) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The permission bits that let a program act for somebody else.
pub(super) const SET_ID: u32 = 0o6000;

/// The attributes of an inode that a copy keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) kind: FileKind,
    pub(super) perm: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Of a file, if it is known before all is read.
    pub(super) size: Option<u64>,
    pub(super) accessed: Timestamp,
    pub(super) modified: Timestamp,
    /// Whether other names may lead to it.
    pub(super) is_shared: bool,
}

/// An entry of a directory: its name, and in a store the inode that it names.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) inode: Option<(Ino, FileKind)>,
}

/// An object that is copied.
pub(super) trait Source {
    fn identity(&self) -> Identity;
    /// Its type, if that is known although its attributes cannot be read.
    fn kind(&self) -> Option<FileKind> {
        None
    }
    fn kept(&self) -> Result<Kept>;
    /// Extended attributes, of a symbolic link its own.
    fn xattrs(&self) -> Result<Xattrs>;
    fn link_target(&self) -> Result<Vec<u8>>;
    /// The entries of a directory, in any order.
    fn entries(&self) -> Result<Remains<Vec<Entry>>>;
    /// The object that an entry of this directory names.
    fn entry(&self, entry: &Entry) -> Result<Box<dyn Source>>;
    /// The directory above this one, which had this identity when it was left.
    fn parent(&self, identity: Identity) -> Result<Box<dyn Source>>;
    /// Runs of data of a file from `offset` on (a multiple of 4096, or where the runs before ended), some megabytes of
    /// them; and up to where that is all.
    fn read_runs(&self, offset: u64) -> Result<Remains<Runs>>;
}

/// An object that a copy made, for its user alone until it is given attributes.
pub(super) trait Made {
    fn identity(&self) -> Identity;
    /// Gives it owner (where allowed), extended attributes, permissions and times. Returns what it cannot have.
    fn keep(&self, kept: &Kept, xattrs: &Xattrs) -> Vec<String>;
}

/// A new file; ranges that are never written are holes. Unless all above it is new too, it gets its name at the end: what
/// had the name before stays until then, and of a copy that breaks off nothing stays.
pub(super) trait Writer: Made {
    /// Writes data, each with its offset, in order.
    fn write_runs(&self, runs: &[(u64, &[u8])]) -> Result<()>;
    /// Sets the length.
    fn finish(&self, size: u64) -> Result<()>;
    /// Gives it its name; a file outside is durable under it on return. In the place of another file it must be whole.
    fn publish(&self, is_whole: bool) -> Result<()>;
}

/// What is said of a file that is not replaced because the copy lacks something.
pub(super) const NOT_WHOLE: &str = "left as it was: the copy is not whole";

/// A directory that copies go to. With `is_new` nothing in it may have the name; otherwise a file is replaced by a
/// file, and a directory is taken for the new one. Links are neither followed nor replaced: one with
/// the same target is taken for the new one.
pub(super) trait Directory: Made {
    /// The identity of what has this name.
    fn find(&self, name: &[u8]) -> Result<Option<Identity>>;
    /// This directory and all above it.
    fn ancestors(&self) -> Result<Vec<Identity>>;
    /// The directory above this one, which had this identity when it was left.
    fn parent(&self, identity: Identity) -> Result<Box<dyn Directory>>;
    /// An empty file, which is to have this name.
    fn create(&self, name: &[u8], is_new: bool) -> Result<Box<dyn Writer>>;
    /// A directory, and whether it was made.
    fn make_directory(&self, name: &[u8], is_new: bool) -> Result<(Box<dyn Directory>, bool)>;
    /// A symbolic link.
    fn make_link(&self, name: &[u8], target: &[u8]) -> Result<Box<dyn Made>>;
    /// One more name for a file that this copy made.
    fn link(&self, name: &[u8], first: &First, is_new: bool) -> Result<()>;
}

/// The first name that a copy gave to a file with several.
#[derive(Clone, Debug)]
pub(super) struct First {
    /// Its path below the directory that the copy began in.
    pub(super) path: Vec<u8>,
    pub(super) identity: Identity,
}

/// Permissions of a file that loses its access control list, so that nobody may more than before. With a list, the group's
/// bits are the most that anybody in the list has; without one they are what the owning group has. And whom the list named
/// counts as one of that group then, or as anybody else.
pub(super) fn perm_without_acl(perm: u32, acl: &[u8]) -> u32 {
    const HEADER_BYTES: usize = 4;
    const USER: u16 = 2;
    const OWNING_GROUP: u16 = 4;
    const GROUP: u16 = 8;
    let (entries, _) = acl.get(HEADER_BYTES..).unwrap_or_default().as_chunks::<8>();
    let entries = entries.iter().map(|[tag @ .., a, b, _, _, _, _]| {
        (u16::from_le_bytes(*tag), u32::from(u16::from_le_bytes([*a, *b])))
    });
    let mask = perm >> 3 & 0o7;
    let (mut group, mut others) = (None, perm & 0o7);
    for (tag, of_entry) in entries.clone() {
        match tag {
            OWNING_GROUP => group = Some(mask & of_entry),
            USER | GROUP => others &= mask & of_entry,
            _ => {}
        }
    }
    let Some(mut group) = group else { return perm & !0o077 }; // no list
    for (_, of_user) in entries.filter(|(tag, _)| *tag == USER) {
        group &= of_user;
    }
    perm & !0o077 | group << 3 | others
}

/// A name in a directory that nobody else has or guesses, for what is not in its place yet.
pub(super) fn temporary_name() -> Vec<u8> {
    let random = || RandomState::new().build_hasher().finish();
    format!(".lacuna-{:016x}{:016x}", random(), random()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_its_list_a_file_is_not_open_to_its_group() {
        // A user with rw, the owning group with r, a mask of rw.
        let acl = |group: u8| {
            let entry = |tag: u8, perm: u8| [tag, 0, perm, 0, 255, 255, 255, 255];
            [&[2, 0, 0, 0][..], &entry(1, 6), &entry(2, 6), &entry(4, group), &entry(16, 6), &entry(32, 0)]
                .concat()
        };
        assert_eq!(perm_without_acl(0o660, &acl(4)), 0o640);
        assert_eq!(perm_without_acl(0o660, &acl(0)), 0o600);
        assert_eq!(perm_without_acl(0o640, &acl(7)), 0o640);
        assert_eq!(perm_without_acl(0o666, &acl(6)), 0o666);
    }

    #[test]
    fn without_its_list_a_file_is_not_open_to_whom_the_list_keeps_out() {
        let acl = |named: [u8; 2], perm: u8| {
            let entry = |[tag, perm]: [u8; 2]| [tag, 0, perm, 0, 255, 255, 255, 255];
            [&[2, 0, 0, 0][..], &entry([1, 6]), &entry(named), &entry([4, perm]), &entry([32, 4])].concat()
        };
        let (user, group) = (2, 8);
        assert_eq!(perm_without_acl(0o664, &acl([user, 0], 6)), 0o600, "a user may be in the group, or not");
        assert_eq!(perm_without_acl(0o664, &acl([user, 4], 6)), 0o644);
        assert_eq!(
            perm_without_acl(0o664, &acl([group, 0], 6)),
            0o660,
            "who is in both groups may as before"
        );
        assert_eq!(perm_without_acl(0o624, &acl([group, 6], 6)), 0o620, "the mask is for them too");
        assert_eq!(perm_without_acl(0o775, b"garbage"), 0o700);
    }
}
