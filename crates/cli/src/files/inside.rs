//! Both ends of a copy in a store.

use std::{collections::HashSet, sync::Arc};

use anyhow::{Result, bail};
use lacuna_nvmfs::{
    Error, Ino, Nvmfs, Refusal, Remains,
    posix::{Caller, FileKind, Posix, Runs, SetAttr, SetTime, XattrMode},
};

use super::contents::{
    ACCESS_ACL, DEFAULT_ACL, Directory, Entry, First, Identity, Kept, Made, NOT_WHOLE, SET_ID, Source,
    Writer, Xattrs, perm_without_acl,
};

/// An object of a store.
#[derive(Clone)]
pub(super) struct Inside {
    fs: Arc<Nvmfs>,
    posix: Posix,
    ino: Ino,
}

impl Inside {
    pub(super) fn new(fs: &Arc<Nvmfs>, ino: Ino) -> Inside {
        Inside { fs: Arc::clone(fs), posix: fs.posix(), ino }
    }

    fn of(&self, ino: Ino) -> Inside {
        Inside { ino, ..self.clone() }
    }

    fn identity_of(&self, ino: Ino) -> Identity {
        (Arc::as_ptr(&self.fs).addr() as u64, ino.number())
    }

    /// The file that has a name and would make way; anything else there is refused.
    fn replaced(&self, name: &[u8]) -> Result<Option<Ino>> {
        match self.existing(name, FileKind::File) {
            Err(error) if is_missing(&error) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Gives `ino` a name, which a file loses at the same moment.
    fn link_over(&self, ino: Ino, name: &[u8]) -> Result<()> {
        if self.find(name)? == Some(self.identity_of(ino)) {
            return Ok(());
        }
        self.replaced(name)?;
        self.posix.link_over(ino, self.ino, name)?;
        Ok(())
    }

    /// The inode that has a name, if it is of this type.
    fn existing(&self, name: &[u8], kind: FileKind) -> Result<Ino> {
        let attr = self.posix.lookup(self.ino, name)?;
        if attr.kind != kind {
            bail!("exists already");
        }
        Ok(attr.ino)
    }
}

impl Source for Inside {
    fn identity(&self) -> Identity {
        self.identity_of(self.ino)
    }

    fn kept(&self) -> Result<Kept> {
        let attr = self.posix.getattr(self.ino)?;
        Ok(Kept {
            kind: attr.kind,
            perm: attr.perm.into(),
            uid: attr.uid,
            gid: attr.gid,
            size: Some(attr.size),
            accessed: attr.accessed,
            modified: attr.modified,
            // A directory has one name, unless the store is damaged or forged.
            is_shared: attr.nlink > 1 || attr.kind == FileKind::Directory,
        })
    }

    fn xattrs(&self) -> Result<Xattrs> {
        let names = self.posix.listxattr(self.ino)?;
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        names.map(|name| Ok((name.to_vec(), self.posix.getxattr(self.ino, name)?))).collect()
    }

    fn link_target(&self) -> Result<Vec<u8>> {
        Ok(self.posix.readlink(self.ino)?)
    }

    fn entries(&self) -> Result<Remains<Vec<Entry>>> {
        let mut found = Vec::new();
        let listed = self.posix.readdir(self.ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                found.push(Entry { name: entry.name.to_vec(), inode: Some((entry.ino, entry.kind)) });
            }
            true
        });
        Ok(Remains { found, lost: listed.err().map(|error| (0..0, error)).into_iter().collect() })
    }

    fn entry(&self, entry: &Entry) -> Result<Box<dyn Source>> {
        let (ino, _) = entry.inode.expect("it is of this store");
        Ok(Box::new(self.of(ino)))
    }

    fn parent(&self, (_, number): Identity) -> Result<Box<dyn Source>> {
        Ok(Box::new(self.of(Ino::new(number).expect("it was one"))))
    }

    fn read_runs(&self, offset: u64) -> Result<Remains<Runs>> {
        Ok(Remains { found: self.posix.read_runs(self.ino, offset)?, lost: Vec::new() })
    }
}

impl Made for Inside {
    fn identity(&self) -> Identity {
        self.identity_of(self.ino)
    }

    fn keep(&self, kept: &Kept, xattrs: &Xattrs) -> Vec<String> {
        let mut left_out = Vec::new();
        // A list that the directory passed on would let in whom the source keeps out.
        for acl in [ACCESS_ACL, DEFAULT_ACL] {
            if !xattrs.iter().any(|(name, _)| name == acl) {
                let _ = self.posix.removexattr(self.ino, acl); // most have none
            }
        }
        let mut set = |what: &str, set: Result<(), Error>| {
            set.map_err(|error| left_out.push(format!("{what} ({error})"))).is_ok()
        };
        // A change of owner takes set-user-id and capabilities away.
        let owner = SetAttr { uid: Some(kept.uid), gid: Some(kept.gid), ..SetAttr::default() };
        let has_owner = set("its owner", self.posix.setattr(self.ino, &owner).map(drop));
        // They would act for root, whose it is otherwise.
        let mut perm = if has_owner { kept.perm } else { kept.perm & !SET_ID };
        for (name, value) in xattrs {
            let what = format!("the attribute {}", String::from_utf8_lossy(name));
            let is_set = set(&what, self.posix.setxattr(self.ino, name, value, XattrMode::Set));
            if name == ACCESS_ACL && !is_set {
                perm = perm_without_acl(perm, value);
            }
        }
        let rest = SetAttr {
            mode: (kept.kind != FileKind::Symlink).then_some(perm),
            accessed: Some(SetTime::At(kept.accessed)),
            modified: Some(SetTime::At(kept.modified)),
            ..SetAttr::default()
        };
        set("its permissions and times", self.posix.setattr(self.ino, &rest).map(drop));
        left_out
    }
}

/// A file that a copy made.
struct InsideFile {
    file: Inside,
    /// Where it belongs, if it has no name yet: such a file goes with the store's last use of it.
    place: Option<(Inside, Vec<u8>)>,
}

impl Drop for InsideFile {
    fn drop(&mut self) {
        if self.place.is_some() {
            let _ = self.file.posix.release(self.file.ino); // the next opening of the store frees it too
        }
    }
}

impl Made for InsideFile {
    fn identity(&self) -> Identity {
        Made::identity(&self.file)
    }

    fn keep(&self, kept: &Kept, xattrs: &Xattrs) -> Vec<String> {
        self.file.keep(kept, xattrs)
    }
}

impl Writer for InsideFile {
    fn write_runs(&self, runs: &[(u64, &[u8])]) -> Result<()> {
        Ok(self.file.posix.write_runs(self.file.ino, runs)?)
    }

    fn finish(&self, size: u64) -> Result<()> {
        self.file.posix.setattr(self.file.ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        Ok(())
    }

    fn publish(&self, is_whole: bool) -> Result<()> {
        let Some((directory, name)) = &self.place else { return Ok(()) };
        match self.file.posix.link(self.file.ino, directory.ino, name) {
            Err(Error::Refused(Refusal::Exists)) if !is_whole => bail!(NOT_WHOLE),
            Err(Error::Refused(Refusal::Exists)) => directory.link_over(self.file.ino, name),
            linked => Ok(linked.map(|_| ())?),
        }
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Refused(Refusal::NotFound)))
}

impl Directory for Inside {
    fn find(&self, name: &[u8]) -> Result<Option<Identity>> {
        match self.posix.lookup(self.ino, name) {
            Ok(attr) => Ok(Some(self.identity_of(attr.ino))),
            Err(Error::Refused(Refusal::NotFound)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn ancestors(&self) -> Result<Vec<Identity>> {
        let (mut found, mut seen, mut ino) = (Vec::new(), HashSet::new(), self.ino);
        loop {
            if !seen.insert(ino) {
                bail!("the directory {} is its own ancestor (see check)", ino.number());
            }
            found.push(self.identity_of(ino));
            if ino == Ino::ROOT {
                return Ok(found);
            }
            ino = self.posix.lookup(ino, b"..")?.ino;
        }
    }

    fn parent(&self, (_, number): Identity) -> Result<Box<dyn Directory>> {
        Ok(Box::new(self.of(Ino::new(number).expect("it was one"))))
    }

    fn create(&self, name: &[u8], is_new: bool) -> Result<Box<dyn Writer>> {
        if is_new {
            let mode = FileKind::File.mode_bits() | 0o600;
            let made = self.posix.mknod(self.ino, name, mode, 0, Caller::default())?;
            return Ok(Box::new(InsideFile { file: self.of(made.ino), place: None }));
        }
        // What has the name may be the source by another name, or have been copied just now by another name.
        self.replaced(name)?;
        let made = self.posix.create_unnamed(self.ino, 0o600, false, Caller::default())?;
        Ok(Box::new(InsideFile { file: self.of(made.ino), place: Some((self.clone(), name.to_vec())) }))
    }

    fn make_directory(&self, name: &[u8], is_new: bool) -> Result<(Box<dyn Directory>, bool)> {
        let (ino, is_made) = match self.posix.mkdir(self.ino, name, 0o700, Caller::default()) {
            Err(Error::Refused(Refusal::Exists)) if !is_new => {
                (self.existing(name, FileKind::Directory)?, false)
            }
            made => (made?.ino, true),
        };
        Ok((Box::new(self.of(ino)), is_made))
    }

    fn make_link(&self, name: &[u8], target: &[u8]) -> Result<Box<dyn Made>> {
        let made = self.posix.symlink(self.ino, name, target, Caller::default());
        if let Err(Error::Refused(Refusal::Exists)) = made
            && let Ok(found) = self.existing(name, FileKind::Symlink)
            && self.posix.readlink(found)? == target
        {
            return Ok(Box::new(self.of(found)));
        }
        Ok(Box::new(self.of(made?.ino)))
    }

    fn link(&self, name: &[u8], first: &First, is_new: bool) -> Result<()> {
        let ino = Ino::new(first.identity.1).expect("it was one");
        match self.posix.link(ino, self.ino, name) {
            Err(Error::Refused(Refusal::Exists)) if !is_new => self.link_over(ino, name),
            linked => Ok(linked.map(|_| ())?),
        }
    }
}
