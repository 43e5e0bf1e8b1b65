//! Compression through a mount: extended attributes that are not listed, and the flag of chattr(1).
//!
//! | attribute | read | set |
//! |---|---|---|
//! | `user.lacuna.compression` | `lz4`, `zstd:3`, `none`; or `default` and what that is | one of these, by owner or root |
//! | `user.lacuna.room` | `plain`, `lz4` and `zstd`, each with bytes of data and what these take | |
//! | `user.lacuna.rewrite` | | offset and length of what is to be compressed again, by whoever may write |
//!
//! The kernel checks that the caller may read or write the file, as for any attribute in `user.`. An attribute of such a
//! name that a store has from elsewhere is neither shown nor changed.

use lacuna_nvmfs::{Compression, Room, RoomOf};
use rustix::io::Errno as Os;

use super::{Caller, Ino, Result, Service};
use crate::mutant::{Rule, is_broken};

/// All names that begin with this are answered here.
const PREFIX: &[u8] = b"user.lacuna.";
const COMPRESSION: &[u8] = b"user.lacuna.compression";
const ROOM: &[u8] = b"user.lacuna.room";
const REWRITE: &[u8] = b"user.lacuna.rewrite";

/// Most bytes that one request rewrites: it takes a thread for as long as all of them take to compress.
const REWRITE_BYTES_MAX: u64 = 16 << 20;

/// The ioctls of chattr(1) and lsattr(1), `_IOR('f', 1, long)` and `_IOW('f', 2, long)`, whose argument is an int.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// `_IOR('X', 31, struct fsxattr)`: the kernel asks for that before it sets flags.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
/// A `struct fsxattr` that says nothing.
const NO_FSXATTR: [u8; 28] = [0; 28];
/// `c` of chattr(1): compressed.
const FS_COMPR_FL: u32 = 4;

/// Whether this attribute is answered here and not stored.
pub(super) fn is_own(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// Two numbers between spaces.
fn two_numbers(value: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = std::str::from_utf8(value).ok()?.trim().split_once(' ')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

impl Service {
    pub(super) fn own_xattr(&self, number: u64, name: &[u8]) -> Result<Vec<u8>> {
        let ino = Self::ino(number)?;
        match name {
            COMPRESSION => {
                let (own, effective) = self.checked("getxattr", number, self.posix.compression(ino))?;
                let text = match own {
                    Compression::Default => format!("{own} {}", effective.or(Compression::None)),
                    own => own.to_string(),
                };
                Ok(text.into_bytes())
            }
            ROOM => {
                let Room { plain, lz4, zstd } = self.checked("getxattr", number, self.posix.room(ino))?;
                let part = |name, of: RoomOf| format!("{name} {} {}", of.mapped_bytes, of.stored_bytes);
                Ok([part("plain", plain), part("lz4", lz4), part("zstd", zstd)].join(" ").into_bytes())
            }
            _ => Err(Os::NODATA.into()),
        }
    }

    pub(super) fn set_own_xattr(&self, number: u64, name: &[u8], value: &[u8], caller: Caller) -> Result<()> {
        let ino = Self::ino(number)?;
        match name {
            COMPRESSION => {
                self.must_own(number, ino, caller)?;
                let text = std::str::from_utf8(value).map_err(|_| Os::INVAL)?;
                self.set_compression(number, ino, text.parse().map_err(|_| Os::INVAL)?)
            }
            REWRITE => {
                let (offset, len) = two_numbers(value).ok_or(Os::INVAL)?;
                if len > REWRITE_BYTES_MAX {
                    return Err(Os::INVAL.into());
                }
                let posix = self.posix_for(caller);
                let rewritten = self.with_space(|| posix.rewrite(ino, offset, len));
                // Also if it failed on the way. The kernel takes it for a change of an attribute, and of no time but that
                // of the inode.
                self.space_changed(ino);
                self.checked("rewrite", number, rewritten).map(drop)
            }
            _ => Err(Os::OPNOTSUPP.into()),
        }
    }

    fn must_own(&self, number: u64, ino: Ino, caller: Caller) -> Result<()> {
        let owner = self.checked("getattr", number, self.posix.getattr(ino))?.uid;
        let is_owner = caller.uid == 0 || caller.uid == owner || is_broken(Rule::OwnersCompress);
        if is_owner { Ok(()) } else { Err(Os::PERM.into()) }
    }

    fn set_compression(&self, number: u64, ino: Ino, compression: Compression) -> Result<()> {
        let set = self.with_space(|| self.posix.set_compression(ino, compression));
        self.checked("set the compression", number, set)
    }

    /// The answers to the ioctls of lsattr(1) and chattr(1); nothing for another command. `c` stands for any compression. Where it is
    /// set, that is the default, or LZ4 where the default is none.
    pub(super) fn flags_ioctl(
        &self,
        number: u64,
        command: u32,
        data: &[u8],
        caller: Caller,
    ) -> Option<Result<Vec<u8>>> {
        match command {
            FS_IOC_GETFLAGS => Some(self.flags(number).map(|flags| flags.to_le_bytes().to_vec())),
            FS_IOC_SETFLAGS => Some(self.set_flags(number, data, caller).map(|()| Vec::new())),
            FS_IOC_FSGETXATTR => Some(Ok(NO_FSXATTR.to_vec())),
            _ => None,
        }
    }

    fn flags(&self, number: u64) -> Result<u32> {
        let ino = Self::ino(number)?;
        let (_, effective) = self.checked("lsattr", number, self.posix.compression(ino))?;
        Ok(if is_compressed(effective) { FS_COMPR_FL } else { 0 })
    }

    fn set_flags(&self, number: u64, data: &[u8], caller: Caller) -> Result<()> {
        let (ino, wanted) = (Self::ino(number)?, data.first_chunk().ok_or(Os::INVAL)?);
        let wanted = u32::from_le_bytes(*wanted);
        if wanted & !FS_COMPR_FL != 0 {
            return Err(Os::OPNOTSUPP.into());
        }
        self.must_own(number, ino, caller)?;
        let compression = match wanted {
            _ if wanted == self.flags(number)? => return Ok(()),
            0 => Compression::None,
            _ if is_compressed(self.fs.default_compression()) => Compression::Default,
            _ => Compression::Lz4,
        };
        self.set_compression(number, ino, compression)
    }
}

fn is_compressed(effective: Compression) -> bool {
    !matches!(effective, Compression::Default | Compression::None)
}
