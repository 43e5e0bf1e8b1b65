//! The file system by inodes, with POSIX semantics: the interface for a FUSE server, or for a program in the same
//! process that needs directories, links and attributes.
//!
//! Every change is one batch of the store, so a crash leaves whole operations. Durability is as POSIX promises, and
//! more: operations survive in the order in which they were done.
//!
//! Permissions are the caller's to check (FUSE's `default_permissions` has the kernel do so). Duties that the kernel
//! leaves to a file system are handled here: set-group-id directories pass on their group, a change of owner removes
//! set-user-id and set-group-id, and times are kept.
//!
//! **Times.** An operation that writes the inode anyway stores its times with it. Others (writes within a
//! file's length, reads, changes of a directory) keep them in memory, from where
//! [`fsync`](Posix::fsync), the last [`release`](Posix::release), [`sync`](Posix::sync) and the next
//! change of the inode store them. A crash may lose such times, and nothing else.

use std::{sync::Arc, time::Duration};

pub use crate::{
    data::{Allocate, Rewritten, Runs, WriteOptions, XattrMode},
    format::{Caller, FileKind},
    inodes::{AccessTimes, Attr, SetAttr, SetTime, StatFs},
    names::{DirEntry, Rename},
};

use lacuna_ftl::Room;

use crate::{
    data::Data,
    error::{Refusal, Result},
    format::{Compression, Ino, Privilege, SET_GID},
    inodes::{Author, Inodes},
    mutant::{Rule, is_broken},
    names::{Names, NewInode, RenameEnd},
};

/// Inode operations on an open file system. Cheap to clone, to be used from many threads; it keeps the
/// file system open.
///
/// All methods fail with the errors of the store below; [`Refusal`]s are named with each. [`Refusal::Stale`] is
/// returned for any inode number without an inode, even if the inode was removed after the caller learnt the number: a
/// caller keeps an inode by [`Posix::open`], or by [`Posix::counting_lookups`].
#[derive(Clone)]
pub struct Posix {
    layers: Arc<Layers>,
    counts_lookups: bool,
    privilege: Privilege,
}

/// The layers below the interfaces of a file system.
pub(crate) struct Layers {
    inodes: Arc<Inodes>,
    names: Names,
    data: Data,
}

impl Layers {
    pub(crate) fn new(inodes: Inodes) -> Layers {
        let inodes = Arc::new(inodes);
        Layers { names: Names::new(Arc::clone(&inodes)), data: Data::new(Arc::clone(&inodes)), inodes }
    }

    pub(crate) fn inodes(&self) -> &Inodes {
        &self.inodes
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn data(&self) -> &Data {
        &self.data
    }
}

impl Posix {
    pub(crate) fn new(layers: Arc<Layers>) -> Posix {
        Posix { layers, counts_lookups: false, privilege: Privilege::Root }
    }

    /// The same on behalf of users other than root: what adds live data leaves root its reserve
    /// ([`Options::root_reserve`](crate::Options::root_reserve)), or fails as on a full store. What frees space, moves
    /// names, and changes owners or permissions, is not bounded.
    pub fn for_users(self) -> Posix {
        Posix { privilege: Privilege::User, ..self }
    }
}

/// Look-ups that are counted.
impl Posix {
    /// The same for a kernel, or another caller that uses an inode after its look-up: `lookup`, `lookup_number`,
    /// `mknod`, `create`, `mkdir`, `symlink` and `link` count each inode that they return. The inode stays, usable in
    /// all ways, until it was forgotten as often, even if it loses its last name: so it is never stale in between.
    pub fn counting_lookups(self) -> Posix {
        Posix { counts_lookups: true, ..self }
    }

    /// Subtracts `lookups` counts of an inode. The last one frees an inode that has no name and is not open.
    /// Subtracting more than were counted does no harm.
    pub fn forget(&self, ino: Ino, lookups: u64) -> Result<()> {
        self.forget_many([(ino, lookups)])
    }

    /// As [`Posix::forget`] for many inodes, which are freed with few batches. If one cannot be freed, the others still
    /// are.
    pub fn forget_many(&self, forgotten: impl IntoIterator<Item = (Ino, u64)>) -> Result<()> {
        self.layers.inodes.forget(forgotten)
    }

    /// Removes all counts of all inodes, those of other callers too, as an unmount does. If one inode cannot be freed,
    /// the others still are.
    pub fn forget_all(&self) -> Result<()> {
        self.layers.inodes.forget_all()
    }

    /// As [`Posix::getattr`], but counts as [`Posix::lookup`] does: for a number that came from a listing of the
    /// directory `parent`. [`Refusal::Stale`] also where that is the number of a directory which lies in another one:
    /// [`Posix::lookup`] then tells whether it has moved, or the name is damaged.
    pub fn lookup_number(&self, parent: Ino, ino: Ino) -> Result<Attr> {
        let node = self.layers.inodes.node(ino)?;
        if !self.layers.names.lies_in(&node, parent)? {
            return Err(Refusal::Stale.into());
        }
        self.layers.inodes.attr_looked_up(&node)
    }

    /// As [`Posix::getattr`], but counts as [`Posix::lookup`] does: for a number in a file handle, which names the inode
    /// whichever names it has.
    pub fn lookup_handle(&self, ino: Ino) -> Result<Attr> {
        self.layers.inodes.attr_looked_up(&*self.layers.inodes.node(ino)?)
    }

    /// Counts a look-up of an inode that a name stands for, and that cannot be read: a kernel knows it all the same.
    pub fn count_unreadable(&self, ino: Ino) {
        if self.counts_lookups {
            self.layers.inodes.count_unreadable(ino);
        }
    }

    /// Waits until an inode is freed because it was forgotten, at most until `timeout` after one last lost its last
    /// name. So a caller that finds no space can wait for inodes that a kernel is about to forget. False if there was
    /// nothing to wait for.
    pub fn wait_for_forgotten(&self, timeout: Duration) -> bool {
        self.layers.inodes.wait_for_freed(timeout)
    }
}

/// Inodes and names.
impl Posix {
    /// The inode that `name` has in the directory `parent`; `.` and `..` are names too.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::NotADirectory`], [`Refusal::NameTooLong`].
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let layers = &self.layers;
        match self.counts_lookups {
            true => layers.names.lookup_with(parent, name, |node| layers.inodes.attr_looked_up(node)),
            false => layers.names.lookup_with(parent, name, |node| layers.inodes.attr(node)),
        }
    }

    /// The content of the entry `name`: the number and type of the inode that it names, even if that is damaged.
    ///
    /// # Errors
    /// As [`Posix::lookup`]; [`Refusal::Invalid`] for `.` and `..`.
    pub fn entry(&self, parent: Ino, name: &[u8]) -> Result<(Ino, FileKind)> {
        self.layers.names.entry(parent, name)
    }

    /// Attributes of an inode.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.layers.inodes.attr(&*self.layers.inodes.node(ino)?)
    }

    /// Reads inodes together, ahead of calls about each of them: one wait instead of many. Numbers without inode, and
    /// inodes that cannot be read, are left for those calls to report.
    pub fn preload(&self, inos: &[Ino]) {
        self.layers.inodes.preload(inos);
    }

    /// Changes an inode, all of it in one batch, and returns it.
    ///
    /// # Errors
    /// [`Refusal::IsADirectory`] and [`Refusal::Invalid`] for the length of anything but a file,
    /// [`Refusal::FileTooLarge`].
    pub fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        self.layers.data.setattr(ino, changes)
    }

    /// Makes a file, fifo, socket or device file: `mode` has type and permissions, the umask applied.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::Invalid`] for other types.
    pub fn mknod(&self, parent: Ino, name: &[u8], mode: u32, rdev: u64, caller: Caller) -> Result<Attr> {
        match FileKind::of_mode(mode) {
            None | Some(FileKind::Directory | FileKind::Symlink) => Err(Refusal::Invalid.into()),
            Some(_) => {
                self.make(parent, name, &NewInode { mode, rdev, caller: Some(caller), ..NewInode::default() })
            }
        }
    }

    /// Makes a regular file and opens it (see [`Posix::open`]), as one operation.
    ///
    /// # Errors
    /// [`Refusal::Exists`].
    pub fn create(&self, parent: Ino, name: &[u8], mode: u32, caller: Caller) -> Result<Attr> {
        let mode = FileKind::File.mode_bits() | mode & 0o7777;
        self.make(parent, name, &NewInode { mode, caller: Some(caller), open: true, ..NewInode::default() })
    }

    /// Makes a regular file without a name, with owner, group and access control list as in the directory `parent`, and
    /// opens it (see [`Posix::open`]), as one operation (`O_TMPFILE`). With its last reference it is freed, and after a
    /// crash; unless [`Posix::link`] gave it a name, which is refused if it `is_exclusive` (`O_EXCL`).
    ///
    /// # Errors
    /// [`Refusal::NotFound`] in a directory that was removed, [`Refusal::NotADirectory`].
    pub fn create_unnamed(&self, parent: Ino, mode: u32, is_exclusive: bool, caller: Caller) -> Result<Attr> {
        let new = NewInode {
            mode: FileKind::File.mode_bits() | mode & 0o7777,
            caller: Some(caller),
            open: true,
            may_be_named: !is_exclusive,
            is_looked_up: self.counts_lookups,
            privilege: self.privilege,
            ..NewInode::default()
        };
        let (node, made) = self.layers.names.create_unnamed(parent, &new)?;
        Ok(self.layers.inodes.attr_after(&node, &made))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::TooManyLinks`].
    pub fn mkdir(&self, parent: Ino, name: &[u8], mode: u32, caller: Caller) -> Result<Attr> {
        let mode = FileKind::Directory.mode_bits() | mode & 0o7777;
        self.make(parent, name, &NewInode { mode, caller: Some(caller), ..NewInode::default() })
    }

    /// Makes a symbolic link to `target`, 1 to 4,095 bytes.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::NameTooLong`], [`Refusal::Invalid`].
    pub fn symlink(&self, parent: Ino, name: &[u8], target: &[u8], caller: Caller) -> Result<Attr> {
        let mode = FileKind::Symlink.mode_bits() | 0o777;
        self.make(parent, name, &NewInode { mode, caller: Some(caller), target, ..NewInode::default() })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for anything else.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let target = self.layers.data.readlink(ino)?;
        self.layers.inodes.store_many_times();
        Ok(target)
    }

    /// Gives an inode one more name, or the first one ([`Posix::create_unnamed`]).
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::TooManyLinks`], [`Refusal::NotPermitted`] for directories, [`Refusal::NotFound`]
    /// for an inode that lost its last name, or may have none.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.link_with(ino, parent, name, false)
    }

    /// As [`Posix::link`], and an inode that has the name loses it in the same batch. Nothing happens if that is the inode
    /// itself. It counts no look-up.
    ///
    /// # Errors
    /// As there, but [`Refusal::Exists`]; [`Refusal::IsADirectory`] where a directory has the name.
    pub fn link_over(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.link_with(ino, parent, name, true)
    }

    fn link_with(&self, ino: Ino, parent: Ino, name: &[u8], replaces: bool) -> Result<Attr> {
        let is_looked_up = self.counts_lookups && !replaces;
        let (node, linked) =
            self.layers.names.link(ino, (parent, name), replaces, is_looked_up, self.privilege)?;
        Ok(self.layers.inodes.attr_after(&node, &linked))
    }

    /// Removes a name, and with the last one the inode; an open one stays until its last release. Of a damaged file
    /// only the name is removed: it is unknown whether it was the last, and [`Nvmfs::check`](crate::Nvmfs::check)
    /// reports it. A file of which the map of the data cannot be read is freed by an open that can read it. Returns the
    /// inode that lost its last name, with its final attributes.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::IsADirectory`].
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Option<Attr>> {
        let gone = self.layers.names.unlink(parent, name)?;
        self.layers.inodes.store_many_times();
        Ok(gone)
    }

    /// Removes an empty directory. Returns the same as [`Posix::unlink`].
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::NotADirectory`], [`Refusal::NotEmpty`]; [`Refusal::Invalid`] for
    /// `.`, [`Refusal::NotEmpty`] for `..`.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<Option<Attr>> {
        let gone = self.layers.names.rmdir(parent, name)?;
        self.layers.inodes.store_many_times();
        Ok(gone)
    }

    /// Moves a name. Returns the same as [`Posix::unlink`], for the inode that it replaces.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Exists`], [`Refusal::NotEmpty`], [`Refusal::NotADirectory`],
    /// [`Refusal::IsADirectory`]; [`Refusal::Invalid`] for a directory into itself.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: Rename,
    ) -> Result<Option<Attr>> {
        self.rename_with((parent, name), (new_parent, new_name), mode, None)
    }

    /// As [`Posix::rename`], and the old name becomes that of a whiteout in the same batch: a character device 0:0
    /// without permissions, by which overlayfs notes that a name below it is gone (`RENAME_WHITEOUT`). It belongs to
    /// the caller, and gets no access control list.
    ///
    /// # Errors
    /// As [`Posix::rename`]; [`Refusal::Invalid`] for [`Rename::Exchange`].
    pub fn rename_leaving_whiteout(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: Rename,
        caller: Caller,
    ) -> Result<Option<Attr>> {
        if mode == Rename::Exchange {
            return Err(Refusal::Invalid.into());
        }
        if is_broken(Rule::WhiteoutInBatch) {
            let gone = self.rename_with(from, to, mode, None)?;
            self.mknod(from.0, from.1, FileKind::CharDevice.mode_bits(), 0, caller)?;
            return Ok(gone);
        }
        let whiteout = NewInode {
            mode: FileKind::CharDevice.mode_bits(),
            caller: Some(caller),
            privilege: self.privilege,
            ..NewInode::default()
        };
        self.rename_with(from, to, mode, Some(&whiteout))
    }

    fn rename_with(
        &self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        mode: Rename,
        whiteout: Option<&NewInode<'_>>,
    ) -> Result<Option<Attr>> {
        let (from, to) = (RenameEnd { parent, name }, RenameEnd { parent: new_parent, name: new_name });
        let gone = self.layers.names.rename(from, to, mode, whiteout)?;
        self.layers.inodes.store_many_times();
        Ok(gone)
    }

    /// Calls `entry` for each entry of a directory from `cursor` on, until it returns false: that entry then counts as
    /// not taken. The first ones are `.` and `..`. Cursor 0 is the start, others come with the entries. An entry that
    /// exists all the time is listed exactly once.
    ///
    /// # Errors
    /// [`Refusal::NotADirectory`].
    pub fn readdir(&self, ino: Ino, cursor: u64, entry: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let listed = self.layers.names.readdir(ino, cursor, entry);
        self.layers.inodes.store_many_times();
        listed
    }
}

/// Open inodes and their data.
impl Posix {
    /// Keeps an inode alive, with or without names, until as many calls of [`Posix::release`].
    pub fn open(&self, ino: Ino) -> Result<()> {
        self.layers.inodes.open_node(ino)
    }

    /// When reads update times of last access.
    pub fn access_times(&self) -> AccessTimes {
        self.layers.inodes.access_times()
    }

    /// Whether reads update these times from now on: a kernel may have made its mount read-only, or writable again.
    pub fn note_access(&self, notes: bool) {
        self.layers.inodes.note_access(notes);
    }

    /// Whether a read of this inode, which is open, would update its time of last access
    /// ([`AccessTimes`]).
    pub fn is_access_due(&self, ino: Ino) -> bool {
        self.layers.inodes.is_access_due(ino)
    }

    /// Ends what [`Posix::open`], [`Posix::create`] or [`Posix::create_unnamed`] began. The last one stores times, and frees an inode that has no
    /// name any more and is not counted as looked up.
    pub fn release(&self, ino: Ino) -> Result<()> {
        self.layers.inodes.release(ino)
    }

    /// Reads up to `buf.len()` bytes from `offset`; fewer only at the end of the file. Returns their
    /// number. Fastest where offset, length and buffer are whole sectors.
    ///
    /// # Errors
    /// [`Refusal::IsADirectory`], [`Refusal::Invalid`] for anything else that is not a file.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = self.layers.data.read_bytes(ino, offset, buf)?;
        self.layers.inodes.store_many_times();
        Ok(len)
    }

    /// Writes `data` at `offset` and returns its length. Up to
    /// [`atomic_bytes_max`](lacuna_device::FileProps::atomic_bytes_max) (8 MiB, less on tiny stores) it
    /// is whole or not at all across a crash. Longer data is written in such pieces; when one of them
    /// fails, the length of those before it is returned.
    ///
    /// # Errors
    /// [`Refusal::FileTooLarge`], [`Refusal::IsADirectory`], [`Refusal::Invalid`].
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], options: WriteOptions) -> Result<usize> {
        let len = self.layers.data.write_bytes(ino, offset, data, options, self.privilege)?;
        self.layers.inodes.store_many_times();
        Ok(len)
    }

    /// Writes `data` at the end of the file at that moment, and returns the offset.
    ///
    /// # Errors
    /// As [`Posix::write`]; data longer than an atomic write is refused with [`Refusal::Invalid`].
    pub fn append(&self, ino: Ino, data: &[u8], options: WriteOptions) -> Result<u64> {
        let at = self.layers.data.append_bytes(ino, data, options, self.privilege)?;
        self.layers.inodes.store_many_times();
        Ok(at)
    }

    /// Changes the allocation of `offset .. offset + len`; see [`Allocate`]. Times change even where nothing else does.
    /// With `kill_privileges`, who has no privilege to keep them, it removes set-user-id and set-group-id, whatever else
    /// it does; capabilities always.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for an empty range, [`Refusal::FileTooLarge`], [`Refusal::IsADirectory`]; [`Refusal::NoSpace`]
    /// where there is less space now than an allocated range lacks.
    pub fn fallocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        what: Allocate,
        kill_privileges: Option<Caller>,
    ) -> Result<()> {
        let by = Author { kill_privileges, privilege: self.privilege, ..Author::default() };
        self.layers.data.fallocate(ino, offset, len, what, by)?;
        self.layers.inodes.store_many_times();
        Ok(())
    }

    /// The first byte at or behind `offset` that is not in a hole (`SEEK_DATA`).
    ///
    /// # Errors
    /// [`Refusal::NoSuchOffset`] if there is none, or `offset` is not within the file.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Result<u64> {
        self.layers.data.seek(ino, offset, true)
    }

    /// The first byte at or behind `offset` that lies in a hole; the end of the file counts as one
    /// (`SEEK_HOLE`).
    ///
    /// # Errors
    /// [`Refusal::NoSuchOffset`] if `offset` is not within the file.
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Result<u64> {
        self.layers.data.seek(ino, offset, false)
    }

    /// The data of a file from `offset` on, without the holes between, as much as one batch takes
    /// ([`atomic_bytes_max`](lacuna_device::FileProps::atomic_bytes_max)). All of it is read at the same time.
    ///
    /// # Errors
    /// As [`Posix::read`]; [`Refusal::Invalid`] where `offset` is not a multiple of 512.
    pub fn read_runs(&self, ino: Ino, offset: u64) -> Result<Runs> {
        let runs = self.layers.data.read_runs(ino, offset)?;
        self.layers.inodes.store_many_times();
        Ok(runs)
    }

    /// Writes `runs`, each an offset and data, in as few batches as possible: up to
    /// [`atomic_bytes_max`](lacuna_device::FileProps::atomic_bytes_max), counted in whole sectors of 512 bytes, all of
    /// them or none across a crash. When one of several batches fails, those before it are written.
    ///
    /// # Errors
    /// As [`Posix::write`]; [`Refusal::Invalid`] where runs are not in order, or share a sector.
    pub fn write_runs(&self, ino: Ino, runs: &[(u64, &[u8])]) -> Result<()> {
        self.layers.data.write_runs(ino, runs)?;
        self.layers.inodes.store_many_times();
        Ok(())
    }

    /// Copies up to `len` bytes, each end an inode and an offset in it, and returns how many; fewer only at the end of
    /// the source, or after a piece that is whole or not at all across a crash: where both offsets are whole sectors,
    /// as much as one batch takes, and holes stay holes and count for nothing; else 1 MiB. With `kill_privileges` it
    /// removes set-user-id and set-group-id; capabilities always.
    ///
    /// # Errors
    /// As reads and writes; [`Refusal::Invalid`] when both ranges lie in one file and overlap.
    pub fn copy_range(
        &self,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
        kill_privileges: Option<Caller>,
    ) -> Result<u64> {
        let by = Author { kill_privileges, privilege: self.privilege, ..Author::default() };
        let copied = self.layers.data.copy_range(from, to, len, by)?;
        self.layers.inodes.store_many_times();
        Ok(copied)
    }

    /// All earlier changes of the inode survive a crash after this call: its data, its names and, for a directory, the
    /// names in it; its own times too, unless `data_only`. So does every operation before the last of those changes, on
    /// any other inode.
    pub fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.layers.inodes.fsync(ino, data_only)
    }

    /// All earlier operations survive a crash after this call, times included. If the times of a damaged inode cannot
    /// be stored, everything else still is.
    pub fn sync(&self) -> Result<()> {
        self.layers.inodes.sync()
    }

    /// Space and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        self.layers.inodes.statfs()
    }
}

/// Extended attributes: names in the name spaces `user.`, `trusted.` and `security.`, up to 255 bytes;
/// values up to 64 KiB; 118 KiB of both together for an inode.
impl Posix {
    /// The value of an attribute.
    ///
    /// # Errors
    /// [`Refusal::NoAttribute`], [`Refusal::NotSupported`] for other name spaces.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.layers.data.getxattr(ino, name)
    }

    /// The names, each with a NUL behind it.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.layers.data.listxattr(ino)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::NoAttribute`], [`Refusal::AttributeName`],
    /// [`Refusal::AttributeTooLarge`], [`Refusal::NoSpace`], [`Refusal::NotSupported`].
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.layers.data.setxattr(ino, name, value, mode, self.privilege, 0)
    }

    /// As [`Posix::setxattr`], and takes set-group-id away in the same batch: for an access control list that somebody
    /// sets who is neither privileged nor in the group.
    pub fn setxattr_without_set_group_id(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.layers.data.setxattr(ino, name, value, mode, self.privilege, SET_GID)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// As [`Posix::getxattr`].
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.layers.data.removexattr(ino, name)
    }
}

/// Compression.
impl Posix {
    /// What a file or directory says itself, and what data is compressed with that is written to it now.
    pub fn compression(&self, ino: Ino) -> Result<(Compression, Compression)> {
        self.layers.data.compression(ino)
    }

    /// Sets how data is compressed that is written to a file from now on ([`Posix::rewrite`] changes what it holds), or
    /// to files that are made in a directory from now on. That of the root directory is not handed down: it is what all
    /// files have that say nothing themselves.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for anything but files and directories.
    pub fn set_compression(&self, ino: Ino, compression: Compression) -> Result<()> {
        self.layers.data.set_compression(ino, compression)
    }

    /// The room that an inode's data takes, by how it is compressed. It looks at each piece that is stored.
    pub fn room(&self, ino: Ino) -> Result<Room> {
        self.layers.data.room(ino)
    }

    /// Writes again what a file holds in `offset .. offset + len`, widened to chunks of 16 KiB, under the compression
    /// that it has now. Nothing else changes, times included, and others may write to the file meanwhile. It takes as
    /// long as all of it takes to compress, and memory for 1 MiB. What was not compressed and would not become shorter
    /// stays where it is.
    ///
    /// # Errors
    /// As [`Posix::write`]. The file is whole; what came before is rewritten.
    pub fn rewrite(&self, ino: Ino, offset: u64, len: u64) -> Result<Rewritten> {
        self.layers.data.rewrite(ino, offset, len, self.privilege)
    }
}

impl Posix {
    /// Has names read that are known.
    #[cfg(test)]
    pub(crate) fn read_names_again(&self) {
        self.layers.names.read_again();
    }

    /// Compresses everything harder, as if nobody had written it for long.
    #[cfg(test)]
    pub(crate) fn compress_all_harder(&self) {
        let (all, compression) = (lacuna_ftl::Seq(0)..lacuna_ftl::Seq(u64::MAX), "zstd:3".parse());
        let go_on = |_| std::ops::ControlFlow::Continue(());
        let walked = self.layers.data.compress_cold(compression.expect("a known one"), &all, go_on);
        assert!(walked.expect("walks"), "all was looked at");
    }

    fn make(&self, parent: Ino, name: &[u8], new: &NewInode<'_>) -> Result<Attr> {
        let new = NewInode { is_looked_up: self.counts_lookups, privilege: self.privilege, ..*new };
        let (node, made) = self.layers.names.create(parent, name, &new)?;
        self.layers.inodes.store_many_times();
        Ok(self.layers.inodes.attr_after(&node, &made))
    }
}
