//! Making a file system: a formatted store, a superblock and a root directory.

use std::{io::Read, sync::Arc};

use lacuna_device::BlockDevice;
use lacuna_ftl::{self as ftl, Ftl, LogDeviceUse, Op, Stream};

use crate::{
    error::Result,
    format::{
        self, Caller, Compression, FEATURE_COMPRESSION, FileKind, Ino, Inode, Superblock, Timestamp,
        system_time,
    },
};

/// How to make a file system.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The store below it. Without its `force` a device that holds anything is refused.
    pub ftl: ftl::FormatOptions,
    /// Identity of the file system and key of its directories' hashes; by default random.
    pub uuid: Option<[u8; 16]>,
    /// Owner of the root directory; by default the effective user and group of this process.
    pub owner: Option<Caller>,
    /// The source of time.
    pub clock: fn() -> Timestamp,
    /// How files are compressed that say nothing themselves.
    pub compression: Compression,
    /// Set space aside for all of a store file: see [`lacuna_device::RawDevice::preallocate`]. For stores at a path.
    pub preallocate: bool,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions {
            ftl: ftl::FormatOptions::default(),
            uuid: None,
            owner: None,
            clock: system_time,
            compression: Compression::Default,
            preallocate: false,
        }
    }
}

/// See [`crate::Nvmfs::format`].
pub(crate) fn format(device: Arc<dyn BlockDevice>, options: &FormatOptions) -> Result<()> {
    let uuid = match options.uuid {
        Some(uuid) => uuid,
        None => random_uuid()?,
    };
    Ftl::format(Arc::clone(&device), &options.ftl)?;
    let key = options.ftl.key.as_ref().map_or(ftl::Key::None, |key| ftl::Key::Secret(key.secret.clone()));
    let log_device = options.ftl.log_device.clone().map_or(LogDeviceUse::None, LogDeviceUse::Device);
    let ftl = Ftl::open(device, ftl::Options { key, log_device, ..ftl::Options::default() })?;
    let now = (options.clock)();
    let superblock_lba = Ino::SUPERBLOCK.lba(0);
    let mut superblock = Superblock::new(uuid, now);
    if options.compression != Compression::Default {
        superblock.features = FEATURE_COMPRESSION.into();
    }
    let superblock = format::seal(&superblock, superblock_lba);
    let owner = options.owner.unwrap_or_else(|| Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        umask: 0,
    });
    let mut root = Inode::new(Ino::ROOT, 0, FileKind::Directory.mode_bits() | 0o755, now);
    root.set_owner(owner.uid, owner.gid);
    root.set_compression(options.compression);
    let ops = [
        Op::Write { lba: superblock_lba, data: &superblock },
        Op::Write { lba: Ino::ROOT.inode_lba(), data: &root.seal() },
    ];
    ftl.write_batch(&ops, Stream::Data)?;
    Ok(ftl.close()?)
}

/// Random bytes for an identity.
fn random_uuid() -> Result<[u8; 16]> {
    const SOURCE: &str = "/dev/urandom";
    let mut uuid = [0; 16];
    std::fs::File::open(SOURCE)
        .and_then(|mut source| source.read_exact(&mut uuid))
        .map_err(|error| lacuna_device::Error::io(SOURCE, error))?;
    Ok(uuid)
}
