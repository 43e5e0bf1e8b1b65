//! Extended attributes: the list of one inode, and the sectors of their region; orphans.

use std::collections::BTreeMap;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U32};

use super::{ACL, Acl, Body, DEFAULT_ACL, Header, Ino, SECTOR, is_zero};

/// Bytes of attributes in one sector.
pub(crate) const XATTR_SECTOR_BYTES: usize = 472;

/// A sector of the attributes of one inode, where they do not fit into it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct XattrSector {
    pub(super) ino: U32,
    pub(super) generation: U32,
    /// Bytes in this sector: as many as fit, except in the last one.
    pub(super) len: U32,
    pub(super) zero: U32,
    pub(super) bytes: [u8; XATTR_SECTOR_BYTES],
}

/// Marks an inode that has no name any more, is still open, and is freed by its last release.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Orphan {
    pub(super) ino: U32,
    pub(super) generation: U32,
    pub(super) zero: [u8; 480],
}

const _: () = {
    assert!(size_of::<Header>() + size_of::<XattrSector>() == SECTOR);
    assert!(size_of::<Header>() + size_of::<Orphan>() == SECTOR);
};

impl Body for Orphan {
    const KIND: u8 = 5;

    fn flaw(&self) -> Option<&'static str> {
        (!is_zero(&self.zero)).then_some("reserved bytes are not zero")
    }
}

impl Orphan {
    pub(crate) fn new(ino: Ino, generation: u32) -> Orphan {
        Orphan { ino: ino.0.into(), generation: generation.into(), zero: [0; 480] }
    }

    /// Whether it is about this inode.
    pub(crate) fn is_of(&self, ino: Ino, generation: u32) -> bool {
        self.ino.get() == ino.0 && self.generation.get() == generation
    }
}

impl Body for XattrSector {
    const KIND: u8 = 6;

    fn flaw(&self) -> Option<&'static str> {
        match self.bytes.get(self.len.get() as usize..) {
            None => Some("impossible length"),
            Some(rest) if !is_zero(rest) || self.zero.get() != 0 => Some("reserved bytes are not zero"),
            Some(_) => None,
        }
    }
}

impl XattrSector {
    /// `bytes` are at most [`XATTR_SECTOR_BYTES`].
    pub(crate) fn new(ino: Ino, generation: u32, bytes: &[u8]) -> XattrSector {
        let mut padded = [0; XATTR_SECTOR_BYTES];
        padded[..bytes.len()].copy_from_slice(bytes);
        XattrSector {
            ino: ino.0.into(),
            generation: generation.into(),
            len: (bytes.len() as u32).into(),
            zero: 0.into(),
            bytes: padded,
        }
    }

    /// Its bytes, if it is of this inode.
    pub(crate) fn bytes_of(&self, ino: Ino, generation: u32) -> Option<&[u8]> {
        let is_own = self.ino.get() == ino.0 && self.generation.get() == generation;
        is_own.then(|| &self.bytes[..self.len.get() as usize])
    }
}

/// Longest name of an attribute in bytes.
pub(crate) const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value of an attribute in bytes.
pub(crate) const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// The attribute that a write removes.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
const NAME_SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Whether an attribute can have this name.
pub(crate) fn is_xattr_name(name: &[u8]) -> bool {
    if is_acl(name) {
        return true;
    }
    let is_known = NAME_SPACES.iter().any(|space| name.starts_with(space) && name.len() > space.len());
    is_known && name.len() <= XATTR_NAME_BYTES_MAX && !name.contains(&0)
}

fn is_acl(name: &[u8]) -> bool {
    name == ACL || name == DEFAULT_ACL
}

/// Whether an attribute of this name can have this value.
pub(crate) fn is_xattr_value(name: &[u8], value: &[u8]) -> bool {
    value.len() <= XATTR_VALUE_BYTES_MAX && (!is_acl(name) || Acl::parse(value).is_some())
}

/// What an inode says of its attributes, so that few operations need to read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// [`CAPABILITY`] is one of them.
    pub(crate) capability: bool,
    /// An access control list is one of them, or a default one.
    pub(crate) acl: bool,
}

impl Marks {
    pub(crate) fn of(xattrs: &Xattrs) -> Marks {
        Marks {
            capability: xattrs.contains_key(CAPABILITY),
            acl: [ACL, DEFAULT_ACL].iter().any(|name| xattrs.contains_key(*name)),
        }
    }
}

/// Attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The bytes of a list: for each attribute, in order of their names, the length of the name (1 byte),
/// that of the value (4 bytes), the name, the value.
pub(crate) fn encode_xattrs(xattrs: &Xattrs) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in xattrs {
        bytes.push(name.len() as u8);
        bytes.extend((value.len() as u32).to_le_bytes());
        bytes.extend(name);
        bytes.extend(value);
    }
    bytes
}

pub(crate) fn parse_xattrs(mut bytes: &[u8]) -> Result<Xattrs, &'static str> {
    fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = bytes.split_at_checked(len).ok_or("its attributes end early")?;
        *bytes = rest;
        Ok(taken)
    }
    let mut xattrs = Xattrs::new();
    while !bytes.is_empty() {
        let name_len = take(&mut bytes, 1)?[0];
        let value_len = take(&mut bytes, 4)?.try_into().map(u32::from_le_bytes).expect("four bytes");
        let name = take(&mut bytes, name_len.into())?;
        let value = take(&mut bytes, value_len as usize)?;
        let is_next = xattrs.last_key_value().is_none_or(|(last, _)| last.as_slice() < name);
        if !is_xattr_name(name) || !is_next || !is_xattr_value(name, value) {
            return Err("impossible attribute");
        }
        xattrs.insert(name.to_vec(), value.to_vec());
    }
    Ok(xattrs)
}

/// Sectors for this many bytes of attributes outside the inode.
pub(crate) fn xattr_sectors(bytes: usize) -> u64 {
    bytes.div_ceil(XATTR_SECTOR_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;

    #[test]
    fn lists_read_back_and_damage_is_refused() {
        for_each_seed(500, |seed| {
            let mut rng = SeededRng::new(seed);
            let mut xattrs = Xattrs::new();
            for _ in 0..rng.below(6) {
                let mut value = vec![0; rng.below(300) as usize];
                rng.fill(&mut value);
                xattrs.insert(format!("user.{}", rng.below(100)).into_bytes(), value);
            }
            let mut bytes = encode_xattrs(&xattrs);
            assert_eq!(parse_xattrs(&bytes).unwrap(), xattrs);
            if bytes.is_empty() {
                return;
            }
            assert!(parse_xattrs(&bytes[..bytes.len() - 1]).is_err());
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
            if let Ok(other) = parse_xattrs(&bytes) {
                assert_eq!(encode_xattrs(&other), bytes, "there is one way to write a list");
            }
        });
    }
}
