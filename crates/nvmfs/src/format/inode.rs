//! A sector of the inode table.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{
    Body, Caller, Compression, DiskTime, FILE_BYTES_MAX, FileKind, Header, Ino, Marks, SECTOR, SectorBytes,
    Timestamp, XATTR_BYTES_MAX, is_zero, seal,
};

/// Bytes at the end of an inode for the target of a short symbolic link and for few attributes.
pub(crate) const INLINE_BYTES: usize = 368;
/// Longest target of a symbolic link in bytes.
pub(crate) const TARGET_BYTES_MAX: usize = 4095;
/// Longest target that lies in the inode; longer ones lie in its region.
const INLINE_TARGET_BYTES_MAX: u64 = 255;
/// Most names of a file, and most subdirectories of a directory but for two.
pub(crate) const LINKS_MAX: u32 = i32::MAX as u32;

const PERMISSIONS: u32 = 0o7777;
/// Set-group-id among the permissions.
pub(crate) const SET_GID: u32 = 0o2000;
/// The attributes lie in the region of attributes, not in the inode.
const FLAG_XATTRS_OUTSIDE: u64 = 1;
/// `security.capability` is among the attributes.
const FLAG_CAPABILITY: u64 = 2;
/// An access control list is among them, or a default one.
const FLAG_ACL: u64 = 4;

/// An inode as it is on the device. It is changed in memory and sealed; times that are in memory only belong to the
/// node.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Inode {
    pub(super) ino: U32,
    /// Differs between files that had the same number one after the other.
    pub(super) generation: U32,
    /// Type and permissions, as in `struct stat`.
    pub(super) mode: U32,
    pub(super) nlink: U32,
    pub(super) uid: U32,
    pub(super) gid: U32,
    pub(super) rdev: U64,
    pub(super) size: U64,
    /// Of a directory, the one that it lies in; else 0.
    pub(super) parent: U32,
    /// 0 for data, 1 for a log.
    pub(super) stream: u8,
    /// Of files and directories; see [`Compression`].
    pub(super) compression: [u8; 2],
    pub(super) zero: u8,
    pub(super) flags: U64,
    /// Number of changes of this sector.
    pub(super) changes: U64,
    pub(super) accessed: DiskTime,
    pub(super) modified: DiskTime,
    pub(super) changed: DiskTime,
    pub(super) created: DiskTime,
    /// Length of all attributes, wherever they lie.
    pub(super) xattr_bytes: U32,
    pub(super) zero2: U32,
    pub(super) inline: [u8; INLINE_BYTES],
}

const _: () = assert!(size_of::<Header>() + size_of::<Inode>() == SECTOR);

impl Body for Inode {
    const KIND: u8 = 2;

    fn flaw(&self) -> Option<&'static str> {
        let Some(kind) = FileKind::of_mode(self.mode.get()) else { return Some("unknown file type") };
        if Ino::new(self.ino.get().into()).is_none() {
            return Some("impossible inode number");
        }
        let is_size_possible = match kind {
            FileKind::File => self.size() <= FILE_BYTES_MAX,
            FileKind::Symlink => (1..=TARGET_BYTES_MAX as u64).contains(&self.size()),
            _ => self.size() == 0,
        };
        if !is_size_possible {
            return Some("impossible size");
        }
        let has_parent = Ino::new(self.parent.get().into()).is_some();
        if has_parent != (kind == FileKind::Directory) || (!has_parent && self.parent.get() != 0) {
            return Some("impossible parent");
        }
        if self.flags.get() & !(FLAG_XATTRS_OUTSIDE | FLAG_CAPABILITY | FLAG_ACL) != 0 {
            return Some("unknown flags");
        }
        match Compression::of_bytes(self.compression) {
            None => return Some("unknown compression"),
            Some(Compression::Default) => {}
            Some(_) if matches!(kind, FileKind::File | FileKind::Directory) => {}
            Some(_) => return Some("impossible compression"),
        }
        let times = [self.accessed, self.modified, self.changed, self.created];
        if self.mode.get() > 0o177_777 || self.stream > 1 || !times.iter().all(|time| time.is_sound()) {
            return Some("impossible value");
        }
        let bytes = self.xattr_bytes();
        let used = match self.has_xattrs_outside() {
            false => self.inline_target_len().saturating_add(bytes),
            true if (1..=XATTR_BYTES_MAX).contains(&bytes) => self.inline_target_len(),
            true => return Some("impossible attributes"),
        };
        match self.inline.get(used..) {
            None => Some("impossible attributes"),
            Some(rest) if !is_zero(rest) || self.zero != 0 || self.zero2.get() != 0 => {
                Some("reserved bytes are not zero")
            }
            Some(_) => None,
        }
    }
}

impl Inode {
    /// A new, empty inode with one name (a directory: with two); `mode` has a known type.
    pub(crate) fn new(ino: Ino, generation: u32, mode: u32, now: Timestamp) -> Inode {
        let kind = FileKind::of_mode(mode).expect("a new inode has a known type");
        let now = DiskTime::from(now);
        Inode {
            ino: ino.0.into(),
            generation: generation.into(),
            mode: mode.into(),
            nlink: if kind == FileKind::Directory { 2 } else { 1 }.into(),
            uid: 0.into(),
            gid: 0.into(),
            rdev: 0.into(),
            size: 0.into(),
            parent: if kind == FileKind::Directory { Ino::ROOT.0 } else { 0 }.into(),
            stream: 0,
            compression: [0; 2],
            zero: 0,
            flags: 0.into(),
            changes: 1.into(),
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            xattr_bytes: 0.into(),
            zero2: 0.into(),
            inline: [0; INLINE_BYTES],
        }
    }

    pub(crate) fn ino(&self) -> Ino {
        Ino(self.ino.get())
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.get()
    }

    pub(crate) fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode.get()).expect("checked when it was made or verified")
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    pub(crate) fn permissions(&self) -> u32 {
        self.mode.get() & PERMISSIONS
    }

    pub(crate) fn set_permissions(&mut self, mode: u32) {
        self.mode = (self.mode.get() & !PERMISSIONS | mode & PERMISSIONS).into();
    }

    pub(crate) fn nlink(&self) -> u32 {
        self.nlink.get()
    }

    pub(crate) fn set_nlink(&mut self, nlink: u32) {
        self.nlink = nlink.into();
    }

    pub(crate) fn owner(&self) -> (u32, u32) {
        (self.uid.get(), self.gid.get())
    }

    pub(crate) fn set_owner(&mut self, uid: u32, gid: u32) {
        self.uid = uid.into();
        self.gid = gid.into();
    }

    pub(crate) fn rdev(&self) -> u64 {
        self.rdev.get()
    }

    pub(crate) fn set_rdev(&mut self, rdev: u64) {
        self.rdev = rdev.into();
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.get()
    }

    pub(crate) fn set_size(&mut self, size: u64) {
        self.size = size.into();
    }

    /// Of a directory, the one that it lies in.
    pub(crate) fn parent(&self) -> Ino {
        assert!(self.is_directory(), "only directories know their parent");
        Ino(self.parent.get())
    }

    pub(crate) fn set_parent(&mut self, parent: Ino) {
        assert!(self.is_directory(), "only directories know their parent");
        self.parent = parent.0.into();
    }

    pub(crate) fn is_log(&self) -> bool {
        self.stream == 1
    }

    pub(crate) fn set_log(&mut self, is_log: bool) {
        self.stream = is_log.into();
    }

    pub(crate) fn compression(&self) -> Compression {
        Compression::of_bytes(self.compression).expect("checked when it was made or verified")
    }

    pub(crate) fn set_compression(&mut self, compression: Compression) {
        assert!(matches!(self.kind(), FileKind::File | FileKind::Directory), "only they have one");
        self.compression = compression.to_bytes();
    }

    /// Number of changes; differs between any two versions of an inode.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    pub(crate) fn count_change(&mut self) {
        self.changes = self.changes.get().wrapping_add(1).into();
    }

    /// Times of last access, modification and change.
    pub(crate) fn times(&self) -> (Timestamp, Timestamp, Timestamp) {
        (self.accessed.into(), self.modified.into(), self.changed.into())
    }

    pub(crate) fn set_times(&mut self, (accessed, modified, changed): (Timestamp, Timestamp, Timestamp)) {
        self.accessed = accessed.into();
        self.modified = modified.into();
        self.changed = changed.into();
    }

    pub(crate) fn created(&self) -> Timestamp {
        self.created.into()
    }

    /// Whether [`Inode::drop_privileges`] would change it.
    pub(crate) fn has_privileges(&self, caller: Caller) -> bool {
        let mut without = *self;
        without.drop_privileges(caller);
        without.mode.get() != self.mode.get()
    }

    /// Removes set-user-id, and set-group-id where the group may execute or the caller is not in it, as Linux does
    /// since 6.2. Only the caller's first group is known; for members by another the bit goes, too: without
    /// permission to execute it has no effect.
    pub(crate) fn drop_privileges(&mut self, caller: Caller) {
        const SET_UID: u32 = 0o4000;
        const GROUP_EXECUTES: u32 = 0o010;
        if self.is_directory() {
            return;
        }
        let mode = self.mode.get() & !SET_UID;
        let is_stranger = caller.uid != 0 && caller.gid != self.owner().1;
        let loses_group = mode & GROUP_EXECUTES != 0 || is_stranger;
        self.mode = if loses_group { mode & !SET_GID } else { mode }.into();
    }

    /// Which of the attributes that operations depend on it has.
    pub(crate) fn marks(&self) -> Marks {
        let flags = self.flags.get();
        Marks { capability: flags & FLAG_CAPABILITY != 0, acl: flags & FLAG_ACL != 0 }
    }

    fn inline_target_len(&self) -> usize {
        let is_inline = self.kind() == FileKind::Symlink && self.size() <= INLINE_TARGET_BYTES_MAX;
        if is_inline { self.size() as usize } else { 0 }
    }

    /// The target of a symbolic link, unless it lies in its region.
    pub(crate) fn inline_target(&self) -> Option<&[u8]> {
        let len = self.inline_target_len();
        (len > 0).then(|| &self.inline[..len])
    }

    /// Sets the target of a new symbolic link; true if it is to be written to its region.
    pub(crate) fn set_target(&mut self, target: &[u8]) -> bool {
        assert!(self.kind() == FileKind::Symlink && self.xattr_bytes() == 0);
        self.size = (target.len() as u64).into();
        let len = self.inline_target_len();
        self.inline[..len].copy_from_slice(&target[..len]);
        len == 0
    }

    /// Length of all attributes.
    pub(crate) fn xattr_bytes(&self) -> usize {
        self.xattr_bytes.get() as usize
    }

    pub(crate) fn has_xattrs_outside(&self) -> bool {
        self.flags.get() & FLAG_XATTRS_OUTSIDE != 0
    }

    /// The attributes, unless they lie outside.
    pub(crate) fn inline_xattrs(&self) -> Option<&[u8]> {
        let start = self.inline_target_len();
        (!self.has_xattrs_outside()).then(|| &self.inline[start..start + self.xattr_bytes()])
    }

    /// Sets the attributes; true if they are to be written outside.
    pub(crate) fn set_xattrs(&mut self, bytes: &[u8], marks: Marks) -> bool {
        let start = self.inline_target_len();
        let space = &mut self.inline[start..];
        space.fill(0);
        let is_outside = bytes.len() > space.len();
        if !is_outside {
            space[..bytes.len()].copy_from_slice(bytes);
        }
        self.xattr_bytes = (bytes.len() as u32).into();
        let outside = if is_outside { FLAG_XATTRS_OUTSIDE } else { 0 };
        let capability = if marks.capability { FLAG_CAPABILITY } else { 0 };
        let acl = if marks.acl { FLAG_ACL } else { 0 };
        self.flags = (outside | capability | acl).into();
        is_outside
    }

    /// The bytes of its sector.
    pub(crate) fn seal(&self) -> SectorBytes {
        seal(self, self.ino().inode_lba())
    }
}
