//! Extended attributes: one list of names and values for an inode, in the inode if it fits, else in the
//! inode's part of the region of attributes. It is read and written whole.

use std::{collections::BTreeMap, sync::Arc};

use lacuna_device::SECTOR;

use crate::{
    Error, Refusal, Result,
    addr::{Ino, XATTR_BYTES_MAX},
    format::{self, Inode, SectorBytes, XATTR_SECTOR_BYTES, XattrSector},
    fs::Shared,
    names::Update,
    node::{Node, Record},
    posix::XattrMode,
};

const NAME_BYTES_MAX: usize = 255;
const VALUE_BYTES_MAX: usize = 64 << 10;
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
const NAME_SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Refusal::AttributeName.into());
    }
    let is_known = NAME_SPACES.iter().any(|space| name.starts_with(space) && name.len() > space.len());
    if is_known && !name.contains(&0) { Ok(()) } else { Err(Refusal::NotSupported.into()) }
}

/// The bytes of a list: for each attribute, in order of their names, the length of the name (1 byte),
/// that of the value (4 bytes), the name, the value.
pub(crate) fn to_bytes(xattrs: &Xattrs) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in xattrs {
        bytes.push(name.len() as u8);
        bytes.extend((value.len() as u32).to_le_bytes());
        bytes.extend(name);
        bytes.extend(value);
    }
    bytes
}

pub(crate) fn parse(mut bytes: &[u8]) -> Result<Xattrs, &'static str> {
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
        if check_name(name).is_err() || !is_next || value.len() > VALUE_BYTES_MAX {
            return Err("impossible attribute");
        }
        xattrs.insert(name.to_vec(), value.to_vec());
    }
    Ok(xattrs)
}

/// Sectors for so many bytes of attributes outside the inode.
pub(crate) fn sectors(bytes: usize) -> u64 {
    bytes.div_ceil(XATTR_SECTOR_BYTES) as u64
}

/// What an inode tells of its attributes.
pub(crate) struct Stored {
    pub(crate) ino: Ino,
    generation: u32,
    len: usize,
    pub(crate) has_capability: bool,
}

impl Stored {
    pub(crate) fn of(inode: &Inode) -> Stored {
        Stored {
            ino: inode.ino(),
            generation: inode.generation(),
            len: inode.xattr_bytes(),
            has_capability: inode.has_capability(),
        }
    }

    /// How many they take if they lie outside of the inode.
    pub(crate) fn sectors(&self) -> u64 {
        sectors(self.len)
    }
}

impl Shared {
    /// The attributes of this version of an inode; nothing if it is not the newest any more.
    pub(crate) fn read_xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        let stored = Stored::of(inode);
        if let Some(bytes) = inode.inline_xattrs() {
            return self.parse_xattrs(&stored, bytes);
        }
        let mut bytes = vec![0; stored.sectors() as usize * SECTOR];
        self.ftl.read(inode.ino().xattr_lba(), &mut bytes)?;
        self.parse_xattr_sectors(&stored, &bytes)
    }

    pub(crate) fn parse_xattrs(&self, stored: &Stored, bytes: &[u8]) -> Result<Xattrs> {
        parse(bytes).map_err(|reason| self.corrupt_xattrs(stored, reason))
    }

    /// The attributes in the sectors that belong to an inode in their region.
    pub(crate) fn parse_xattr_sectors(&self, stored: &Stored, sectors: &[u8]) -> Result<Xattrs> {
        let corrupt = |reason| self.corrupt_xattrs(stored, reason);
        let start = stored.ino.xattr_lba();
        let mut bytes = Vec::with_capacity(stored.len);
        for (index, sector) in sectors.chunks_exact(SECTOR).enumerate() {
            let sector: &SectorBytes = sector.try_into().expect("whole sectors");
            let lba = lacuna_ftl::Lba(start.0 + index as u64);
            let sector = format::verify::<XattrSector>(sector, lba).map_err(corrupt)?;
            let part = sector.bytes_of(stored.ino, stored.generation).ok_or("they are another inode's");
            bytes.extend(part.map_err(corrupt)?);
        }
        if bytes.len() != stored.len {
            return Err(corrupt("they have another length than the inode says"));
        }
        self.parse_xattrs(stored, &bytes)
    }

    fn corrupt_xattrs(&self, stored: &Stored, reason: &'static str) -> Error {
        self.corrupt("attributes of inode", stored.ino.number(), reason)
    }

    /// The attributes of a node, with the version of the inode that they belong to.
    fn xattrs(&self, node: &Node) -> Result<(Inode, Xattrs)> {
        let inode = || node.with_times(&node.record.read()).ok_or(Refusal::Stale);
        loop {
            let before = inode()?;
            let read = self.read_xattrs(&before);
            // They are read without a lock: what is in between two versions may look like damage.
            if inode()?.changes() == before.changes() {
                return Ok((before, read?));
            }
        }
    }

    /// Changes the attributes of a node in one batch.
    fn change_xattrs(&self, node: &Arc<Node>, change: impl Fn(&mut Xattrs) -> Result<()>) -> Result<()> {
        loop {
            let (before, mut xattrs) = self.xattrs(node)?;
            change(&mut xattrs)?;
            let bytes = to_bytes(&xattrs);
            if bytes.len() > XATTR_BYTES_MAX {
                return Err(Refusal::NoRoom.into());
            }
            let mut is_newest = false;
            self.change_nodes(std::slice::from_ref(node), |locked| {
                let mut inode = locked.inode(node)?;
                is_newest = inode.changes() == before.changes();
                if !is_newest {
                    return Ok(None);
                }
                let mut update = Update::new((self.clock)());
                let is_outside = inode.set_xattrs(&bytes, xattrs.contains_key(CAPABILITY));
                put_outside(&mut update, &before, if is_outside { &bytes } else { &[] });
                update.put_changed(inode);
                Ok(Some(update))
            })?;
            if is_newest {
                return Ok(());
            }
        }
    }

    /// Takes `security.capability` away, as a change of the data or the owner does, whoever asks for it.
    pub(crate) fn drop_capability(&self, node: &Arc<Node>) -> Result<()> {
        if !matches!(&*node.record.read(), Record::Live(inode) if inode.has_capability()) {
            return Ok(());
        }
        self.change_xattrs(node, |xattrs| {
            xattrs.remove(CAPABILITY);
            Ok(())
        })
    }

    pub(crate) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let (_, mut xattrs) = self.xattrs(&*self.node(ino)?)?;
        xattrs.remove(name).ok_or(Refusal::NoAttribute.into())
    }

    pub(crate) fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let (_, xattrs) = self.xattrs(&*self.node(ino)?)?;
        let mut names = Vec::new();
        for name in xattrs.keys() {
            names.extend(name);
            names.push(0);
        }
        Ok(names)
    }

    pub(crate) fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_name(name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Refusal::AttributeTooLarge.into());
        }
        let node = self.node(ino)?;
        self.change_xattrs(&node, |xattrs| {
            let is_there = xattrs.insert(name.to_vec(), value.to_vec()).is_some();
            match mode {
                XattrMode::Create if is_there => Err(Refusal::Exists.into()),
                XattrMode::Replace if !is_there => Err(Refusal::NoAttribute.into()),
                _ => Ok(()),
            }
        })
    }

    pub(crate) fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let node = self.node(ino)?;
        self.change_xattrs(&node, |xattrs| match xattrs.remove(name) {
            Some(_) => Ok(()),
            None => Err(Refusal::NoAttribute.into()),
        })
    }
}

/// Writes attributes to their region, where those of `before` may lie.
fn put_outside(update: &mut Update, before: &Inode, bytes: &[u8]) {
    let (ino, start) = (before.ino(), before.ino().xattr_lba());
    let mut stored = Vec::with_capacity(sectors(bytes.len()) as usize * SECTOR);
    for (index, part) in bytes.chunks(XATTR_SECTOR_BYTES).enumerate() {
        let lba = lacuna_ftl::Lba(start.0 + index as u64);
        stored.extend(format::seal(&XattrSector::new(ino, before.generation(), part), lba));
    }
    let written = sectors(bytes.len());
    let old = if before.has_xattrs_outside() { sectors(before.xattr_bytes()) } else { 0 };
    if written > 0 {
        update.write(start, stored);
    }
    if old > written {
        update.trim(lacuna_ftl::Lba(start.0 + written), old - written);
    }
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
            let mut bytes = to_bytes(&xattrs);
            assert_eq!(parse(&bytes).unwrap(), xattrs);
            if bytes.is_empty() {
                return;
            }
            assert!(parse(&bytes[..bytes.len() - 1]).is_err());
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
            if let Ok(other) = parse(&bytes) {
                assert_eq!(to_bytes(&other), bytes, "there is one way to write a list");
            }
        });
    }
}
