//! The store below as the file system sees it: the role of each sector, read and verified.
//!
//! A [`Volume`] holds no state but the open store. Everything that it returns was verified by `format/`; a sector that
//! is not what was written becomes an error that names the store, the table or file, and the sector in it.

mod mkfs;
mod xattr;

use std::{
    fmt::Display,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use lacuna_device::SECTOR;
use lacuna_ftl::{self as ftl, Ftl, Lba, Op, Stream};

pub use self::mkfs::FormatOptions;
pub(crate) use self::{mkfs::format, xattr::StoredXattrs};
use crate::{
    error::{Error, Result},
    format::{
        self, Bucket, FEATURE_COMPRESSION, FORMAT_VERSION, Ino, Inode, KNOWN_FEATURES, LimitsSector,
        NEWER_SECTOR, Orphan, SECTOR_VERSION, SectorBytes, Slot, Superblock, siphash24,
    },
    mutant::{Rule, is_broken},
};

/// An open store that holds a file system.
pub(crate) struct Volume {
    ftl: Ftl,
    /// Name of the store, for errors.
    name: String,
    /// Identity of the file system, and key of its directories' hashes.
    uuid: [u8; 16],
    /// The superblock says that inodes may have a compression.
    has_compression: AtomicBool,
}

impl Volume {
    /// The file system in a store. Only the superblock is read.
    pub(crate) fn open(ftl: Ftl, name: String) -> Result<Volume> {
        let superblock = read_superblock(&ftl, &name)?;
        Ok(Volume::with(ftl, name, &superblock))
    }

    fn with(ftl: Ftl, name: String, superblock: &Superblock) -> Volume {
        let has_compression = AtomicBool::new(superblock.features.get() & FEATURE_COMPRESSION != 0);
        Volume { ftl, name, uuid: superblock.uuid, has_compression }
    }

    /// As [`Volume::open`]; without the superblock if that is damaged or not there, and why. Names can be listed without
    /// it, but not looked up by their hashes.
    pub(crate) fn salvage(ftl: Ftl, name: String) -> Result<(Volume, Option<Error>)> {
        match read_superblock(&ftl, &name) {
            Ok(superblock) => Ok((Volume::with(ftl, name, &superblock), None)),
            Err(error) if error.is_damage() || matches!(error, Error::NotAFileSystem { .. }) => {
                let has_compression = AtomicBool::new(true);
                Ok((Volume { ftl, name, uuid: [0; 16], has_compression }, Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the superblock says that inodes may have a compression.
    pub(crate) fn has_compression(&self) -> bool {
        self.has_compression.load(SeqCst)
    }

    /// Has the superblock say that inodes may have a compression, in a batch before the first inode that has one. Called
    /// with no lock held.
    pub(crate) fn name_compression(&self) -> Result<()> {
        if self.has_compression() || is_broken(Rule::CompressionNamed) {
            return Ok(());
        }
        let mut superblock = read_superblock(&self.ftl, &self.name)?;
        superblock.features = (superblock.features.get() | FEATURE_COMPRESSION).into();
        let lba = Ino::SUPERBLOCK.lba(0);
        // Another thread may do the same at the same time, with the same bytes.
        self.ftl.write_batch(&[Op::Write { lba, data: &format::seal(&superblock, lba) }], Stream::Data)?;
        self.has_compression.store(true, SeqCst);
        Ok(())
    }

    /// The store.
    pub(crate) fn ftl(&self) -> &Ftl {
        &self.ftl
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The hash of a name in a directory.
    pub(crate) fn hash_name(&self, name: &[u8]) -> u64 {
        siphash24(&self.uuid, name)
    }

    /// The error for a sector of `what` that is not what was written there.
    pub(crate) fn corrupt(&self, what: &(impl Display + ?Sized), sector: u64, reason: &'static str) -> Error {
        Error::Corrupt { store: self.name.clone(), what: what.to_string(), sector, reason }
    }

    /// The error for a search that ended in `error`, with none of the changes that it may have met under way. Once a
    /// batch has failed, the map has it, and inodes in memory do not: that these contradict each other is no damage
    /// then, and the failure is reported.
    pub(crate) fn found_damage(&self, error: Error) -> Error {
        if !matches!(error, Error::Corrupt { .. }) {
            return error;
        }
        match self.ftl.failure() {
            Some(reason) => ftl::Error::Poisoned { device: self.name.clone(), reason }.into(),
            None => error,
        }
    }

    /// Reads the sector of an inode.
    pub(crate) fn read_inode(&self, ino: Ino) -> Result<Inode> {
        let mut bytes = [0; SECTOR];
        self.ftl.read(ino.inode_lba(), &mut bytes)?;
        self.verify_inode(ino, &bytes)
    }

    /// Reads the inode of the root directory, without which there is no file system.
    pub(crate) fn read_root(&self) -> Result<Inode> {
        let root = self.read_inode(Ino::ROOT)?;
        match root.is_directory() && root.nlink() > 0 {
            true => Ok(root),
            false => Err(self.corrupt("inode table", Ino::ROOT.number(), "the root is not a directory")),
        }
    }

    pub(crate) fn verify_inode(&self, ino: Ino, bytes: &SectorBytes) -> Result<Inode> {
        let inode = format::verify::<Inode>(bytes, ino.inode_lba())
            .and_then(|inode| if inode.ino() == ino { Ok(inode) } else { Err("it has another number") });
        inode.map_err(|reason| self.corrupt("inode table", ino.number(), reason))
    }

    pub(crate) fn verify_orphan(&self, ino: Ino, bytes: &SectorBytes) -> Result<Orphan> {
        let orphan = format::verify::<Orphan>(bytes, ino.orphan_lba());
        orphan.map_err(|reason| self.corrupt("orphans", ino.number(), reason))
    }

    /// The limits of the user whose sector this is.
    pub(crate) fn verify_limits(&self, lba: Lba, bytes: &SectorBytes) -> Result<LimitsSector> {
        let (_, sector) = Ino::of(lba);
        let limits = format::verify::<LimitsSector>(bytes, lba).and_then(|limits| {
            if u64::from(limits.uid()) == sector { Ok(limits) } else { Err("they are another user's") }
        });
        limits.map_err(|reason| self.corrupt("limits of users", sector, reason))
    }

    /// Reads a bucket of a directory.
    pub(crate) fn read_bucket(&self, directory: Ino, bucket: Bucket) -> Result<Slot> {
        match self.ftl.read_sectors(&[bucket.lba(directory)])?.first() {
            Some((_, bytes)) => self.parse_bucket(directory, bucket, bytes),
            None => Ok(Slot::Empty),
        }
    }

    /// Parses the sector of a bucket that is in use.
    pub(crate) fn parse_bucket(&self, directory: Ino, bucket: Bucket, bytes: &SectorBytes) -> Result<Slot> {
        Slot::parse(directory, bucket, bytes).map_err(|reason| {
            self.corrupt(&format_args!("directory {}", directory.number()), bucket.0, reason)
        })
    }

    /// The first mapped sector of a range.
    pub(crate) fn first_mapped(&self, range: Range<Lba>) -> Result<Option<Lba>> {
        Ok(self.ftl.mapped_sectors(range, 1)?.first().copied())
    }
}

fn read_superblock(ftl: &Ftl, store: &str) -> Result<Superblock> {
    let lba = Ino::SUPERBLOCK.lba(0);
    if !ftl.is_mapped(lba)? {
        let reason = "the store is empty (formatting it was not finished?)";
        return Err(Error::NotAFileSystem { store: store.to_owned(), reason });
    }
    let mut bytes = [0; SECTOR];
    ftl.read(lba, &mut bytes)?;
    let newer = |found, supported| Error::Version { store: store.to_owned(), found, supported };
    let superblock = format::verify::<Superblock>(&bytes, lba).map_err(|reason| match reason {
        NEWER_SECTOR => newer(format::sector_version(&bytes), SECTOR_VERSION.into()),
        reason => Error::NotAFileSystem { store: store.to_owned(), reason },
    })?;
    let found = superblock.format_version.get();
    if found != FORMAT_VERSION {
        return Err(newer(found, FORMAT_VERSION));
    }
    let flags = superblock.features.get() & !KNOWN_FEATURES;
    if flags != 0 {
        return Err(Error::Features { store: store.to_owned(), flags });
    }
    Ok(superblock)
}
