//! POSIX access control lists, as Linux stores them in attributes and as POSIX.1e (draft 17) defines them.
//!
//! The bytes are those of `linux/posix_acl_xattr.h`: a version (4 bytes, 2), then for each entry its tag (2 bytes), its
//! permissions (2 bytes) and the user or group that it is about (4 bytes). The kernel checks permissions against them.
//! What it leaves to a file system is here: the mode and the list of an inode agree ([`Acl::mode`], [`Acl::set_mode`]),
//! and a directory's default list becomes the list of what is made in it ([`Acl::for_new`]).

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32},
};

/// The attribute with the list of an inode.
pub(crate) const ACL: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that a directory hands down.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
const TAGS: [u16; 6] = [OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHERS];

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    tag: U16,
    permissions: U16,
    id: U32,
}

/// A list with one entry each for owner, group and others, and a mask if there are entries of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// The list in the value of an attribute. None unless entries are in the order of their tags, which each but those
    /// with a name occurs once.
    pub(crate) fn parse(value: &[u8]) -> Option<Acl> {
        let (version, rest) = U32::read_from_prefix(value).ok()?;
        let entries = <[Entry]>::ref_from_bytes(rest).ok()?;
        let acl = Acl { entries: entries.to_vec() };
        let is_sorted = entries.is_sorted_by(|a, b| {
            let is_named = [USER, NAMED_GROUP].contains(&a.tag.get());
            a.tag.get() < b.tag.get() || (is_named && a.tag == b.tag)
        });
        let is_known =
            entries.iter().all(|entry| TAGS.contains(&entry.tag.get()) && entry.permissions.get() <= 7);
        let has = |tag| entries.iter().any(|entry| entry.tag.get() == tag);
        let is_whole = has(OWNER) && has(GROUP) && has(OTHERS) && (has(MASK) || !acl.has_names());
        (version.get() == VERSION && is_sorted && is_known && is_whole).then_some(acl)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        [VERSION.to_le_bytes().as_slice(), self.entries.as_bytes()].concat()
    }

    fn has_names(&self) -> bool {
        self.entries.iter().any(|entry| [USER, NAMED_GROUP].contains(&entry.tag.get()))
    }

    /// Whether it says no more than a mode does.
    pub(crate) fn is_mode(&self) -> bool {
        self.entries.len() == 3
    }

    fn permissions(&mut self, tag: u16) -> Option<&mut U16> {
        let entry = self.entries.iter_mut().find(|entry| entry.tag.get() == tag);
        entry.map(|entry| &mut entry.permissions)
    }

    /// The entries that the three groups of a mode's bits stand for: the mask, where there is one, is its group.
    fn classes(&mut self) -> [(u32, &mut U16); 3] {
        let has_mask = self.permissions(MASK).is_some();
        let group = if has_mask { MASK } else { GROUP };
        let mut classes = self.entries.iter_mut().filter(|entry| {
            let tag = entry.tag.get();
            tag == OWNER || tag == group || tag == OTHERS
        });
        // Tags ascend.
        [6, 3, 0].map(|shift| (shift, &mut classes.next().expect("a list is whole").permissions))
    }

    /// The permissions of the inode's mode, without set-id and sticky bits.
    pub(crate) fn mode(&self) -> u32 {
        let mut acl = self.clone();
        acl.classes().into_iter().map(|(shift, permissions)| u32::from(permissions.get()) << shift).sum()
    }

    /// Follows a change of mode.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        for (shift, permissions) in self.classes() {
            *permissions = ((mode >> shift & 7) as u16).into();
        }
    }

    /// From the default list of a directory, the list of an object that is made in it with `mode`.
    pub(crate) fn for_new(mut self, mode: u32) -> Acl {
        for (shift, permissions) in self.classes() {
            *permissions = (permissions.get() & (mode >> shift & 7) as u16).into();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(tag, permissions, id)` of each entry.
    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn lists_and_modes_follow_each_other() {
        let named = value(&[(1, 6, NONE), (2, 7, 5), (2, 4, 9), (4, 4, NONE), (16, 5, NONE), (32, 0, NONE)]);
        let mut acl = Acl::parse(&named).expect("a list");
        assert_eq!((acl.to_bytes(), acl.mode(), acl.is_mode()), (named, 0o650, false));
        acl.set_mode(0o4731);
        assert_eq!(acl.mode(), 0o731);
        let changed = [(1, 7, NONE), (2, 7, 5), (2, 4, 9), (4, 4, NONE), (16, 3, NONE), (32, 1, NONE)];
        assert_eq!(acl.to_bytes(), value(&changed), "the mask is the mode's group");
        let made = acl.for_new(0o640);
        assert_eq!(made.mode(), 0o600, "no more than both allow");

        let mut plain = Acl::parse(&value(&[(1, 6, NONE), (4, 4, NONE), (32, 4, NONE)])).expect("a list");
        assert!(plain.is_mode());
        plain.set_mode(0o751);
        assert_eq!(plain.mode(), 0o751);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let (owner, group, others) = ((1, 6, NONE), (4, 4, NONE), (32, 4, NONE));
        for entries in [
            &[][..],
            &[owner, group],
            &[owner, others, group],
            &[owner, (2, 4, 5), group, others], // no mask
            &[owner, owner, group, others],
            &[owner, (2, 4, 5), (16, 7, NONE), others],
            &[owner, group, (16, 8, NONE), others],
            &[owner, group, (3, 0, NONE), others],
        ] {
            assert_eq!(Acl::parse(&value(entries)), None, "{entries:?}");
        }
        let good = value(&[owner, group, others]);
        assert!(Acl::parse(&good).is_some());
        assert_eq!(Acl::parse(&good[..good.len() - 1]), None);
        assert_eq!(Acl::parse(&[&[3], &good[1..]].concat()), None, "another version");
    }
}
