//! The remains of a damaged file system, to be copied elsewhere.
//!
//! Names, inodes and data are searched independently, each in its own region of the space: so data can be read without
//! an inode, and an inode without a name. Unreadable sectors are passed over and reported.

use std::ops::Range;

use lacuna_device::SECTOR;
use lacuna_ftl::{self as ftl, Lba};

use crate::{
    data::Runs,
    error::{Error, Result},
    format::{Bucket, FileKind, Ino, REGION_SECTORS, SectorBytes, Slot},
    volume::Volume,
};

/// Bytes that are read at a time.
const READ_BYTES: usize = 4 << 20;

/// The readable part of an object, and the reason for each part that cannot be read.
#[derive(Debug)]
pub struct Remains<T> {
    /// The part that can be read.
    pub found: T,
    /// The parts that cannot be read: data by the bytes of the file that it may have held.
    pub lost: Vec<(Range<u64>, Error)>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// The inode that it names.
    pub ino: Ino,
    /// The type of that inode.
    pub kind: FileKind,
}

/// An inode that has or had a name; or one that cannot be read, of which there is data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingInode {
    /// Its number.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// The parent of a directory.
    pub parent: Option<Ino>,
}

/// See [`crate::Nvmfs::remaining_entries`].
pub(crate) fn remaining_entries(volume: &Volume, directory: Ino) -> Result<Remains<Vec<RemainingEntry>>> {
    let mut found = Vec::new();
    let lost = visit_past_damage(volume, directory.region(), |lba, bytes| {
        let bucket = Bucket(Ino::of(lba).1);
        if let Slot::Entry(entry) = volume.parse_bucket(directory, bucket, bytes)? {
            found.push(RemainingEntry { name: entry.name().to_vec(), ino: entry.ino(), kind: entry.kind() });
        }
        Ok(())
    })?;
    Ok(Remains { found, lost })
}

/// See [`crate::Nvmfs::remaining_inodes`].
pub(crate) fn remaining_inodes(volume: &Volume) -> Result<Remains<Vec<RemainingInode>>> {
    let mut found = Vec::new();
    let lost = visit_past_damage(volume, Ino::TABLE.region(), |lba, bytes| {
        let (_, number) = Ino::of(lba);
        let Some(ino) = Ino::new(number) else { return Ok(()) };
        let inode = volume.verify_inode(ino, bytes)?;
        if inode.nlink() > 0 {
            let parent = inode.is_directory().then(|| inode.parent());
            found.push(RemainingInode { ino, kind: inode.kind(), parent });
        }
        Ok(())
    })?;
    let sector = SECTOR as u64;
    for (range, _) in &lost {
        found.extend(inodes_with_data(volume, range.start / sector..range.end / sector)?);
    }
    Ok(Remains { found, lost })
}

/// Those of the inodes `numbers`, which cannot be read, whose regions hold something. One that holds buckets alone is a
/// directory, any other one is taken for a file: a file may begin with what looks like a bucket.
fn inodes_with_data(volume: &Volume, numbers: Range<u64>) -> Result<Vec<RemainingInode>> {
    let region = |number: u64| Ino(number.clamp(Ino::FIRST.number(), Ino::LAST.number()) as u32).region();
    let end = match numbers.end > Ino::LAST.number() {
        true => Ino::LAST.region().end,
        false => region(numbers.end).start,
    };
    let (mut at, mut found) = (region(numbers.start).start, Vec::new());
    while at < end {
        let mapped = volume.ftl().read_past_damage(at..end, SECTOR)?.mapped;
        let Some((lba, data)) = mapped.runs.first() else {
            at = mapped.end;
            continue;
        };
        let ((ino, bucket), bytes) = (Ino::of(*lba), data.first_chunk().expect("whole sectors"));
        let is_directory =
            volume.parse_bucket(ino, Bucket(bucket), bytes).is_ok() && holds_buckets(volume, ino)?;
        let kind = if is_directory { FileKind::Directory } else { FileKind::File };
        found.push(RemainingInode { ino, kind, parent: None });
        at = ino.region().end;
    }
    Ok(found)
}

/// Whether all that can be read of a region are buckets.
fn holds_buckets(volume: &Volume, directory: Ino) -> Result<bool> {
    let Range { start: mut at, end } = directory.region();
    while at < end {
        let mapped = volume.ftl().read_past_damage(at..end, READ_BYTES)?.mapped;
        for (start, data) in &mapped.runs {
            let (sectors, _) = data.as_chunks::<SECTOR>();
            let mut buckets = (start.0..).map(|lba| Bucket(Ino::of(Lba(lba)).1)).zip(sectors);
            if buckets.any(|(bucket, bytes)| volume.parse_bucket(directory, bucket, bytes).is_err()) {
                return Ok(false);
            }
        }
        at = mapped.end;
    }
    Ok(true)
}

/// See [`crate::Nvmfs::remaining_data`].
pub(crate) fn remaining_data(volume: &Volume, ino: Ino, offset: u64) -> Result<Remains<Runs>> {
    let range = ino.range(offset / SECTOR as u64..REGION_SECTORS);
    let remains = volume.ftl().read_past_damage(range, READ_BYTES)?;
    let byte = |lba: Lba| (lba.0 - ino.lba(0).0) * SECTOR as u64;
    let runs = remains.mapped.runs.into_iter().map(|(lba, data)| (byte(lba), data)).collect();
    let found = Runs { runs, end: byte(remains.mapped.end) };
    let of_damage = |ftl::Lost { range, error }| (byte(range.start)..byte(range.end), Error::from(error));
    Ok(Remains { found, lost: damage_only(remains.lost.into_iter().map(of_damage))? })
}

/// Calls `visit` with each mapped sector in `range`, a region or a part of one. Returns the sectors that cannot be
/// read, or that `visit` rejects, by bytes in the region.
fn visit_past_damage(
    volume: &Volume,
    range: Range<Lba>,
    mut visit: impl FnMut(Lba, &SectorBytes) -> Result<()>,
) -> Result<Vec<(Range<u64>, Error)>> {
    let byte = |lba: Lba| (lba.0 - range.start.0) * SECTOR as u64;
    let (mut at, mut lost) = (range.start, Vec::new());
    while at < range.end {
        let remains = volume.ftl().read_past_damage(at..range.end, READ_BYTES)?;
        let of_damage = |lost: ftl::Lost| (byte(lost.range.start)..byte(lost.range.end), lost.error.into());
        lost.extend(remains.lost.into_iter().map(of_damage));
        for (start, data) in &remains.mapped.runs {
            let (sectors, _) = data.as_chunks::<SECTOR>();
            for (lba, bytes) in (start.0..).map(Lba).zip(sectors) {
                if let Err(error) = visit(lba, bytes) {
                    lost.push((byte(lba)..byte(lba) + SECTOR as u64, error));
                }
            }
        }
        at = remains.mapped.end;
    }
    damage_only(lost.into_iter())
}

const _: () = assert!(REGION_SECTORS <= u64::MAX / SECTOR as u64);

/// All of `lost`, or the first error that is not damage.
fn damage_only(lost: impl Iterator<Item = (Range<u64>, Error)>) -> Result<Vec<(Range<u64>, Error)>> {
    lost.map(|(range, error)| if error.is_damage() { Ok((range, error)) } else { Err(error) }).collect()
}
