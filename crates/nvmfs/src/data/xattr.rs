//! Extended attributes: one list of names and values for an inode, in the inode if it fits, else in the
//! inode's part of the region of attributes. It is read and written whole. An access control list agrees with the
//! permissions of its inode: who changes one changes the other, in the same batch.

use std::sync::Arc;

use crate::{
    data::Data,
    error::{Refusal, Result},
    format::{
        self, ACL, Acl, CAPABILITY, Ino, Marks, Privilege, XATTR_BYTES_MAX, XATTR_NAME_BYTES_MAX,
        XATTR_VALUE_BYTES_MAX, Xattrs, encode_xattrs,
    },
    inodes::{Node, Update},
    mutant::{Rule, is_broken},
};

/// The permissions that an access control list speaks of.
const RWX: u32 = 0o777;

/// The condition that [`setxattr`](crate::posix::Posix::setxattr) checks first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Nothing.
    #[default]
    Set,
    /// That it does not exist (`XATTR_CREATE`).
    Create,
    /// That it exists (`XATTR_REPLACE`).
    Replace,
}

/// The longest list of names that Linux takes, in bytes. Of a longer one nobody would see any.
const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// Bytes of the list of names.
fn listed_bytes(xattrs: &Xattrs) -> usize {
    xattrs.keys().map(|name| name.len() + 1).sum()
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Refusal::AttributeName.into());
    }
    if format::is_xattr_name(name) { Ok(()) } else { Err(Refusal::NotSupported.into()) }
}

impl Data {
    /// Changes the attributes of a node in one batch, together with those permissions that `change` returns, and without
    /// the bits `taken` of its mode.
    fn change_xattrs(
        &self,
        node: &Arc<Node>,
        privilege: Privilege,
        taken: u32,
        change: impl Fn(&mut Xattrs) -> Result<Option<u32>>,
    ) -> Result<()> {
        loop {
            let (before, mut xattrs) = self.inodes.xattrs(node)?;
            let listed_before = listed_bytes(&xattrs);
            let permissions = change(&mut xattrs)?;
            let (bytes, listed) = (encode_xattrs(&xattrs), listed_bytes(&xattrs));
            let is_too_long = listed > XATTR_LIST_BYTES_MAX && listed > listed_before;
            if bytes.len() > XATTR_BYTES_MAX || is_too_long {
                return Err(Refusal::NoSpace.into());
            }
            let mut is_newest = false;
            self.inodes.change_nodes(std::slice::from_ref(node), |locked| {
                let mut inode = locked.inode(node)?;
                is_newest = inode.changes() == before.changes() || is_broken(Rule::XattrsPlannedAgain);
                if !is_newest {
                    return Ok(None);
                }
                let mut update = Update::new(self.inodes.now());
                update.privilege = privilege;
                update.set_xattrs(&mut inode, &bytes, Marks::of(&xattrs));
                inode.set_permissions(inode.permissions() & !taken);
                if let Some(permissions) = permissions {
                    inode.set_permissions(inode.permissions() & !RWX | permissions & RWX);
                }
                update.put_changed(inode);
                Ok(Some(update))
            })?;
            if is_newest {
                return Ok(());
            }
        }
    }

    /// Removes `security.capability`, as any change of the data or the owner does.
    pub(crate) fn drop_capability(&self, node: &Arc<Node>) -> Result<()> {
        if !node.live(|inode| inode.marks().capability).unwrap_or(false) {
            return Ok(());
        }
        self.change_xattrs(node, Privilege::Root, 0, |xattrs| {
            xattrs.remove(CAPABILITY);
            Ok(None)
        })
    }

    /// The attributes of a node after `chmod`, with the number of changes of the inode that they are about. None if it
    /// has no access control list.
    pub(super) fn xattrs_after_chmod(&self, node: &Node, mode: u32) -> Result<Option<(u64, Xattrs)>> {
        if !node.live(|inode| inode.marks().acl)? {
            return Ok(None);
        }
        let (before, mut xattrs) = self.inodes.xattrs(node)?;
        if let Some(value) = xattrs.get_mut(ACL) {
            let mut acl = Acl::parse(value).expect("verified when it was read");
            if !is_broken(Rule::ListFollowsMode) {
                acl.set_mode(mode);
            }
            *value = acl.to_bytes();
        }
        Ok(Some((before.changes(), xattrs)))
    }

    pub(crate) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let (_, mut xattrs) = self.inodes.xattrs(&*self.inodes.node(ino)?)?;
        xattrs.remove(name).ok_or(Refusal::NoAttribute.into())
    }

    pub(crate) fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let (_, xattrs) = self.inodes.xattrs(&*self.inodes.node(ino)?)?;
        let mut names = Vec::new();
        for name in xattrs.keys() {
            names.extend(name);
            names.push(0);
        }
        Ok(names)
    }

    pub(crate) fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        privilege: Privilege,
        taken: u32,
    ) -> Result<()> {
        check_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Refusal::AttributeTooLarge.into());
        }
        if !format::is_xattr_value(name, value) {
            return Err(Refusal::Invalid.into());
        }
        let acl = if name == ACL { Acl::parse(value) } else { None };
        let node = self.inodes.node(ino)?;
        self.change_xattrs(&node, privilege, taken, |xattrs| {
            let is_there = xattrs.insert(name.to_vec(), value.to_vec()).is_some();
            match mode {
                XattrMode::Create if is_there => return Err(Refusal::Exists.into()),
                XattrMode::Replace if !is_there => return Err(Refusal::NoAttribute.into()),
                _ => {}
            }
            if acl.as_ref().is_some_and(Acl::is_mode) {
                xattrs.remove(ACL);
            }
            Ok(acl.as_ref().map(Acl::mode).filter(|_| !is_broken(Rule::ModeFollowsList)))
        })
    }

    pub(crate) fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let node = self.inodes.node(ino)?;
        self.change_xattrs(&node, Privilege::Root, 0, |xattrs| match xattrs.remove(name) {
            Some(_) => Ok(None),
            None => Err(Refusal::NoAttribute.into()),
        })
    }
}
