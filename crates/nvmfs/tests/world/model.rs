//! The model.

use std::{collections::BTreeMap, sync::Arc};

use lacuna_nvmfs::{
    Compression, Refusal,
    posix::{Allocate, Caller, FileKind, Rename, XattrMode},
};

use super::{
    Change, Path, Seen, Snapshot,
    acl::{ACL, Acl, DEFAULT_ACL},
};

type Id = u64;
const ROOT: Id = 0;

#[derive(Clone, Debug, PartialEq)]
enum Body {
    File(Arc<Vec<u8>>),
    Directory(BTreeMap<Vec<u8>, Id>),
    Symlink(Vec<u8>),
    Other(FileKind),
}

#[derive(Clone, Debug, PartialEq)]
struct Node {
    body: Body,
    perm: u32,
    owner: (u32, u32),
    names: u32,
    compression: Compression,
    /// It was made without a name, and may get one.
    may_be_named: bool,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A file system in memory.
#[derive(Clone, Debug)]
pub(crate) struct World {
    nodes: BTreeMap<Id, Node>,
    next: Id,
    pub(crate) handles: Vec<Id>,
}

impl Default for World {
    fn default() -> World {
        let root = Node::new(Body::Directory(BTreeMap::new()), 0o755, (0, 0));
        World { nodes: [(ROOT, root)].into(), next: 1, handles: Vec::new() }
    }
}

impl Node {
    fn new(body: Body, perm: u32, owner: (u32, u32)) -> Node {
        let compression = Compression::Default;
        Node { body, perm, owner, names: 1, compression, may_be_named: false, xattrs: BTreeMap::new() }
    }

    fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::File,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Other(kind) => kind,
        }
    }

    fn drop_privileges(&mut self) {
        if !self.is_directory() {
            self.perm &= !0o4000;
            if self.perm & 0o010 != 0 {
                self.perm &= !0o2000;
            }
        }
    }
}

impl Node {
    fn chmod(&mut self, mode: u32) {
        self.perm = mode & 0o7777;
        if let Some(value) = self.xattrs.get_mut(ACL) {
            let mut acl = Acl::of(value);
            acl.chmod(mode);
            *value = acl.value();
        }
    }

    fn set_xattr(&mut self, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Refusal> {
        match (mode, self.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Refusal::Exists),
            (XattrMode::Replace, false) => return Err(Refusal::NoAttribute),
            _ => self.xattrs.insert(name.to_vec(), value.to_vec()),
        };
        if name == ACL {
            let acl = Acl::of(value);
            self.perm = self.perm & 0o7000 | acl.perm();
            if !acl.has_names() {
                self.xattrs.remove(ACL);
            }
        }
        Ok(())
    }
}

fn punch(content: &mut [u8], offset: u64, end: u64) {
    let end = (end as usize).min(content.len());
    content[(offset as usize).min(end)..end].fill(0);
}

impl World {
    fn directory(&self, id: Id) -> Result<&BTreeMap<Vec<u8>, Id>, Refusal> {
        match &self.nodes[&id].body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(Refusal::NotADirectory),
        }
    }

    fn entries(&mut self, id: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.nodes.get_mut(&id).unwrap().body {
            Body::Directory(entries) => entries,
            _ => unreachable!("it was looked up as a directory"),
        }
    }

    fn walk(&self, path: &[Vec<u8>]) -> Result<Id, Refusal> {
        path.iter().try_fold(ROOT, |id, name| self.directory(id)?.get(name).copied().ok_or(Refusal::NotFound))
    }

    fn parent_and_name(&self, path: &Path) -> Result<(Id, Vec<u8>), Refusal> {
        let (name, parents) = path.split_last().unwrap();
        let id = self.walk(parents)?;
        Ok((id, name.clone()))
    }

    fn node(&mut self, path: &Path) -> Result<&mut Node, Refusal> {
        let id = self.walk(path)?;
        Ok(self.nodes.get_mut(&id).unwrap())
    }

    fn file(&mut self, id: Id) -> Result<&mut Vec<u8>, Refusal> {
        match &mut self.nodes.get_mut(&id).unwrap().body {
            Body::File(content) => Ok(Arc::make_mut(content)),
            Body::Directory(_) => Err(Refusal::IsADirectory),
            _ => Err(Refusal::Invalid),
        }
    }

    fn make(&mut self, path: &Path, body: Body, mode: u32, caller: Caller) -> Result<Id, Refusal> {
        let (parent, name) = self.parent_and_name(path)?;
        if self.directory(parent)?.contains_key(&name) {
            return Err(Refusal::Exists);
        }
        let id = self.make_in(parent, body, mode, caller);
        self.entries(parent).insert(name, id);
        Ok(id)
    }

    /// An inode as it is made in a directory, without a name.
    fn make_in(&mut self, parent: Id, body: Body, mode: u32, caller: Caller) -> Id {
        let above = &self.nodes[&parent];
        let hands_down = above.perm & 0o2000 != 0;
        let gid = if hands_down { above.owner.1 } else { caller.gid };
        let is_directory = matches!(body, Body::Directory(_));
        let default = above.xattrs.get(DEFAULT_ACL).filter(|_| !matches!(body, Body::Symlink(_)));
        let (mut perm, mut xattrs) = (mode & 0o7777 & !caller.umask, BTreeMap::new());
        if let Some(default) = default {
            let mut acl = Acl::of(default);
            acl.limit(mode);
            perm = mode & 0o7000 | acl.perm();
            if acl.has_names() {
                xattrs.insert(ACL.to_vec(), acl.value());
            }
            if is_directory {
                xattrs.insert(DEFAULT_ACL.to_vec(), default.clone());
            }
        }
        if hands_down && is_directory {
            perm |= 0o2000;
        }
        let is_compressible = matches!(body, Body::File(_) | Body::Directory(_));
        let compression =
            if is_compressible && parent != ROOT { above.compression } else { Compression::Default };
        let id = self.next;
        self.next += 1;
        let made = Node { xattrs, compression, ..Node::new(body, perm, (caller.uid, gid)) };
        self.nodes.insert(id, made);
        id
    }

    fn link(&mut self, id: Id, to: &Path, replaces: bool) -> Result<(), Refusal> {
        let (parent, name) = self.parent_and_name(to)?;
        if self.nodes[&id].is_directory() {
            return Err(Refusal::NotPermitted);
        }
        match self.directory(parent)?.get(&name) {
            Some(_) if !replaces => return Err(Refusal::Exists),
            Some(other) if *other == id => return Ok(()),
            Some(other) if self.nodes[other].is_directory() => return Err(Refusal::IsADirectory),
            _ => {}
        }
        let node = self.nodes.get_mut(&id).unwrap();
        if node.names == 0 && !node.may_be_named {
            return Err(Refusal::NotFound);
        }
        node.names += 1;
        node.may_be_named = false;
        if let Some(other) = self.entries(parent).insert(name, id) {
            self.drop_name(other);
        }
        Ok(())
    }

    fn drop_name(&mut self, id: Id) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.names -= 1;
        self.drop_if_unused(id);
    }

    fn drop_if_unused(&mut self, id: Id) {
        if self.nodes[&id].names == 0 && !self.handles.contains(&id) {
            self.nodes.remove(&id);
        }
    }

    fn is_within(&self, id: Id, above: Id) -> bool {
        id == above
            || self
                .directory(above)
                .is_ok_and(|entries| entries.values().any(|inner| self.is_within(id, *inner)))
    }

    fn rename(
        &mut self,
        from: &Path,
        to: &Path,
        mode: Rename,
        whiteout: Option<Caller>,
    ) -> Result<(), Refusal> {
        let (old, old_name) = self.parent_and_name(from)?;
        let (new, new_name) = self.parent_and_name(to)?;
        self.directory(old)?;
        self.directory(new)?;
        let id = *self.directory(old)?.get(&old_name).ok_or(Refusal::NotFound)?;
        let other = self.directory(new)?.get(&new_name).copied();
        let is_directory = |id: Id| self.nodes[&id].is_directory();
        if old != new && is_directory(id) && self.is_within(new, id) {
            return Err(Refusal::Invalid);
        }
        match (mode, other) {
            (Rename::NoReplace, Some(_)) => return Err(Refusal::Exists),
            (Rename::Exchange, None) => return Err(Refusal::NotFound),
            (_, Some(other)) if other == id => return Ok(()),
            (Rename::Exchange, Some(other)) => {
                if old != new && is_directory(other) && self.is_within(old, other) {
                    return Err(Refusal::Invalid);
                }
                self.entries(old).insert(old_name, other);
                self.entries(new).insert(new_name, id);
                return Ok(());
            }
            (_, Some(other)) if is_directory(id) && !is_directory(other) => {
                return Err(Refusal::NotADirectory);
            }
            (_, Some(other)) if !is_directory(id) && is_directory(other) => {
                return Err(Refusal::IsADirectory);
            }
            (_, Some(other)) if is_directory(other) && !self.directory(other)?.is_empty() => {
                return Err(Refusal::NotEmpty);
            }
            _ => {}
        }
        self.entries(old).remove(&old_name);
        if let Some(caller) = whiteout {
            let above = &self.nodes[&old];
            let gid = if above.perm & 0o2000 != 0 { above.owner.1 } else { caller.gid };
            let whiteout = Node::new(Body::Other(FileKind::CharDevice), 0, (caller.uid, gid));
            self.nodes.insert(self.next, whiteout);
            let id = self.next;
            self.next += 1;
            self.entries(old).insert(old_name, id);
        }
        self.entries(new).insert(new_name, id);
        if let Some(other) = other {
            self.drop_name(other);
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path, directory: bool) -> Result<(), Refusal> {
        let (parent, name) = self.parent_and_name(path)?;
        let id = *self.directory(parent)?.get(&name).ok_or(Refusal::NotFound)?;
        match (&self.nodes[&id].body, directory) {
            (Body::Directory(entries), true) if !entries.is_empty() => return Err(Refusal::NotEmpty),
            (Body::Directory(_), false) => return Err(Refusal::IsADirectory),
            (Body::Directory(_), true) => {}
            (_, true) => return Err(Refusal::NotADirectory),
            (_, false) => {}
        }
        self.entries(parent).remove(&name);
        self.drop_name(id);
        Ok(())
    }

    fn write(&mut self, id: Id, offset: u64, data: &[u8], trim_to: Option<u64>) -> Result<(), Refusal> {
        let content = self.file(id)?;
        let end = offset as usize + data.len();
        if !data.is_empty() {
            content.resize(content.len().max(end), 0);
            content[offset as usize..end].copy_from_slice(data);
            let first = (end as u64).next_multiple_of(512);
            punch(content, first, trim_to.unwrap_or(0) / 512 * 512);
        }
        Ok(())
    }

    fn allocate(&mut self, id: Id, offset: u64, len: u64, what: Allocate) -> Result<(), Refusal> {
        let content = self.file(id)?;
        let end = offset + len;
        match what {
            _ if len == 0 => return Err(Refusal::Invalid),
            Allocate::KeepSize => {}
            Allocate::PunchHole | Allocate::ZeroRange { keep_size: true } => punch(content, offset, end),
            Allocate::ZeroRange { keep_size: false } => {
                punch(content, offset, end);
                content.resize(content.len().max(end as usize), 0);
            }
            Allocate::Extend => content.resize(content.len().max(end as usize), 0),
        }
        Ok(())
    }

    fn copy(&mut self, from: (Id, u64), to: (Id, u64), len: u64) -> Result<(), Refusal> {
        let source = self.file(from.0)?.clone();
        self.file(to.0)?;
        let mut len = len.min((source.len() as u64).saturating_sub(from.1));
        if from.0 == to.0 && from.1.abs_diff(to.1) < len {
            return Err(Refusal::Invalid);
        }
        if len >= 512 && from.1.is_multiple_of(512) && to.1.is_multiple_of(512) {
            len = len / 512 * 512;
        }
        if len > 0 {
            self.write(to.0, to.1, &source[from.1 as usize..(from.1 + len) as usize], None)?;
            self.nodes.get_mut(&to.0).unwrap().drop_privileges();
        }
        Ok(())
    }

    /// Applies a change, or returns why it is refused.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), Refusal> {
        match change {
            Change::Make { path, mode, caller } => {
                let body = match FileKind::of_mode(*mode).unwrap() {
                    FileKind::File => Body::File(Arc::default()),
                    FileKind::Directory => Body::Directory(BTreeMap::new()),
                    kind => Body::Other(kind),
                };
                self.make(path, body, *mode, *caller)?;
            }
            Change::Create { path, mode, caller } => {
                let id = self.make(path, Body::File(Arc::default()), *mode, *caller)?;
                self.handles.push(id);
            }
            Change::CreateUnnamed { dir, mode, is_exclusive, caller } => {
                let parent = self.walk(dir)?;
                self.directory(parent)?;
                let id = self.make_in(parent, Body::File(Arc::default()), *mode, *caller);
                let node = self.nodes.get_mut(&id).unwrap();
                (node.names, node.may_be_named) = (0, !is_exclusive);
                self.handles.push(id);
            }
            Change::Symlink { path, target } => {
                self.make(path, Body::Symlink(target.clone()), 0o777, Caller::default())?;
            }
            Change::Link { from, to, replaces } => self.link(self.walk(from)?, to, *replaces)?,
            Change::Unlink(path) => self.remove(path, false)?,
            Change::Rmdir(path) => self.remove(path, true)?,
            Change::Rename { from, to, mode, whiteout } => self.rename(from, to, *mode, *whiteout)?,
            Change::Write { path, offset, data, trim_to } => {
                let id = self.walk(path)?;
                self.write(id, *offset, data, *trim_to)?;
                if !data.is_empty() {
                    self.nodes.get_mut(&id).unwrap().drop_privileges();
                }
            }
            Change::Append { path, data } => {
                let id = self.walk(path)?;
                let end = self.file(id)?.len() as u64;
                self.write(id, end, data, None)?;
            }
            Change::SetLen { path, len } => {
                let id = self.walk(path)?;
                self.file(id)?.resize(*len as usize, 0);
            }
            Change::Allocate { path, offset, len, what } => {
                self.allocate(self.walk(path)?, *offset, *len, *what)?;
            }
            Change::Copy { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.walk(from)?, self.walk(to)?);
                self.copy((from, *from_offset), (to, *to_offset), *len)?;
            }
            Change::Chmod { path, mode } => self.node(path)?.chmod(*mode),
            Change::Chown { path, uid, gid } => {
                let node = self.node(path)?;
                node.owner = (*uid, *gid);
                node.drop_privileges();
            }
            Change::SetXattr { path, name, value, mode } => self.node(path)?.set_xattr(name, value, *mode)?,
            Change::RemoveXattr { path, name } => {
                self.node(path)?.xattrs.remove(name).ok_or(Refusal::NoAttribute)?;
            }
            Change::SetCompression { path, compression } => match self.node(path)? {
                node if matches!(node.body, Body::File(_) | Body::Directory(_)) => {
                    node.compression = *compression;
                }
                _ => return Err(Refusal::Invalid),
            },
            Change::Rewrite { path, .. } => {
                let id = self.walk(path)?;
                self.file(id)?;
            }
            Change::Open(path) => {
                let id = self.walk(path)?;
                self.handles.push(id);
            }
            Change::Release(handle) => {
                let id = self.handles.swap_remove(*handle);
                self.drop_if_unused(id);
            }
            Change::WriteOpen { handle, offset, data } => {
                self.write(self.handles[*handle], *offset, data, None)?;
            }
            Change::LinkOpen { handle, to, replaces } => {
                self.link(self.handles[*handle], to, *replaces)?;
            }
        }
        Ok(())
    }

    /// The state after a restart: nothing is open.
    pub(crate) fn close_all(&mut self) {
        for id in std::mem::take(&mut self.handles) {
            if self.nodes.contains_key(&id) {
                self.drop_if_unused(id);
            }
        }
    }

    /// How many of `states`, which came before this one, a crash can no longer leave once the inode at `path` was
    /// synced, because the inode or its names have changed since.
    pub(crate) fn lost_to_sync(&self, path: &Path, states: &[World]) -> usize {
        let id = self.walk(path).expect("a path of this world");
        let names = |world: &World| {
            let entries = world.nodes.iter().filter_map(|(parent, node)| match &node.body {
                Body::Directory(entries) => {
                    Some(entries.iter().map(|(name, id)| (*parent, name.clone(), *id)))
                }
                _ => None,
            });
            let named = entries.flatten().filter(|(_, _, named)| *named == id);
            named.collect::<Vec<_>>()
        };
        let is_as_now =
            |state: &World| state.nodes.get(&id) == self.nodes.get(&id) && names(state) == names(self);
        states.iter().rposition(|state| !is_as_now(state)).map_or(0, |last| last + 1)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new();
        let mut firsts: BTreeMap<Id, Path> = BTreeMap::new();
        let mut ids = BTreeMap::new();
        let mut directories = vec![(Path::new(), ROOT)];
        while let Some((path, id)) = directories.pop() {
            for (name, inner) in self.directory(id).unwrap() {
                let mut path = path.clone();
                path.push(name.clone());
                if self.nodes[inner].is_directory() {
                    directories.push((path.clone(), *inner));
                }
                let first = firsts.entry(*inner).or_insert_with(|| path.clone());
                if path < *first {
                    *first = path.clone();
                }
                ids.insert(path.clone(), *inner);
                snapshot.insert(path, self.see(*inner));
            }
        }
        for (path, seen) in &mut snapshot {
            seen.first = firsts[&ids[path]].clone();
        }
        snapshot
    }

    fn see(&self, id: Id) -> Seen {
        let node = &self.nodes[&id];
        let content = match &node.body {
            Body::File(content) => Arc::clone(content),
            Body::Symlink(target) => Arc::new(target.clone()),
            _ => Arc::default(),
        };
        let nlink = match &node.body {
            Body::Directory(entries) => {
                2 + entries.values().filter(|inner| self.nodes[inner].is_directory()).count() as u32
            }
            _ => node.names,
        };
        Seen {
            kind: node.kind(),
            perm: node.perm as u16,
            owner: node.owner,
            nlink,
            compression: node.compression,
            content,
            xattrs: node.xattrs.clone(),
            first: Path::new(),
        }
    }

    /// Length of a file in the root directory, if it is there and not empty.
    pub(crate) fn len_of(&self, name: &[u8]) -> Option<u64> {
        match &self.nodes[&self.walk(&[name.to_vec()]).ok()?].body {
            Body::File(content) if !content.is_empty() => Some(content.len() as u64),
            _ => None,
        }
    }

    /// A path to something that exists, if there is anything.
    pub(crate) fn random_path(&self, rng: &mut lacuna_sim::SeededRng) -> Option<Path> {
        let mut path = Path::new();
        let mut id = ROOT;
        while let Ok(entries) = self.directory(id) {
            if entries.is_empty() || (!path.is_empty() && rng.chance(30)) {
                break;
            }
            let (name, inner) = entries.iter().nth(rng.below(entries.len() as u64) as usize).unwrap();
            path.push(name.clone());
            id = *inner;
        }
        (!path.is_empty()).then_some(path)
    }
}
