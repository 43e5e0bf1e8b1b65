//! Open files of a VFS, in whole sectors, and batches over several of them.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use lacuna_device::{BatchOp, File, FileId, FileProps, Result as DeviceResult, SECTOR};
use lacuna_ftl::{Lba, Op};

use crate::{
    data::sector,
    error::{Error, Refusal, Result},
    format::{FILE_BYTES_MAX, Ino, Inode},
    inodes::{Author, Node, Target},
    posix::Layers,
};

/// An open file.
pub(crate) struct NvmFile {
    layers: Arc<Layers>,
    node: Arc<Node>,
}

impl NvmFile {
    pub(crate) fn new(layers: Arc<Layers>, node: Arc<Node>) -> NvmFile {
        NvmFile { layers, node }
    }
}

/// Adds the name to an error.
pub(crate) fn named<T>(name: &str, result: Result<T>) -> DeviceResult<T> {
    result.map_err(|error| match error {
        Error::Refused(Refusal::NotFound | Refusal::Stale) => {
            lacuna_device::Error::NotFound { name: name.to_owned() }
        }
        Error::Refused(Refusal::Exists) => lacuna_device::Error::Exists { name: name.to_owned() },
        Error::Refused(_) => lacuna_device::Error::Unsupported {
            what: name.to_owned(),
            operation: "this, on what is not a regular file",
        },
        error => error.into(),
    })
}

fn file_name(layers: &Layers, node: &Node) -> String {
    format!("{}: file number {}", layers.inodes().volume().name(), node.ino().0)
}

fn check_range(layers: &Layers, node: &Node, offset: u64, len: u64) -> DeviceResult<()> {
    let fits = offset.checked_add(len).is_some_and(|end| end <= FILE_BYTES_MAX);
    if fits && layers.data().props().check_range(layers.inodes().volume().name(), offset, len).is_ok() {
        return Ok(());
    }
    Err(lacuna_device::Error::BadRange { what: file_name(layers, node), offset, len })
}

/// Refuses a removed file: its number may have become another file's.
fn check_alive(layers: &Layers, node: &Node) -> DeviceResult<()> {
    let alive = if node.is_removed() { Err(Refusal::Stale.into()) } else { Ok(()) };
    named(&file_name(layers, node), alive)
}

/// Applies `ops`, each with its file, as one batch of the ftl.
pub(super) fn write_files(layers: &Layers, ops: &[(Arc<Node>, BatchOp<'_>)]) -> DeviceResult<()> {
    let bytes: u64 = ops.iter().map(|(_, op)| op.data_bytes()).sum();
    let bytes_max = layers.data().props().atomic_bytes_max;
    if bytes > bytes_max {
        return Err(lacuna_device::Error::BatchTooLarge { bytes, bytes_max });
    }
    let mut files: BTreeMap<Ino, (Target, Vec<Range<u64>>)> = BTreeMap::new();
    for (node, op) in ops {
        let (offset, len) = op.range();
        check_range(layers, node, offset, len)?;
        let new = || (Target { node: Arc::clone(node), end: 0, by: Author::default() }, Vec::new());
        let (target, ranges) = files.entry(node.ino()).or_insert_with(new);
        ranges.push(sector(offset)..sector(offset + len));
        if matches!(op, BatchOp::Write { data, .. } if !data.is_empty()) {
            target.end = target.end.max(offset + len);
        }
    }
    let (targets, ranges): (Vec<Target>, Vec<_>) = files.into_values().unzip();
    let held = targets.iter().zip(ranges).map(|(target, ranges)| target.node.lock_all_sectors(ranges));
    let _held: Vec<_> = held.collect(); // files in order of their numbers
    let data_ops: Vec<_> = ops.iter().filter_map(|(node, op)| data_op(node.ino(), op)).collect();
    layers.inodes().write_data(&data_ops, &targets).or_else(|error| {
        let what = targets.first().map_or_else(String::new, |target| file_name(layers, &target.node));
        named(&what, Err(error))
    })
}

/// The change that an element of a batch makes in the space; none if it is empty.
fn data_op<'a>(ino: Ino, op: &BatchOp<'a>) -> Option<Op<'a>> {
    let (offset, len) = op.range();
    if len == 0 {
        return None;
    }
    let lba: Lba = ino.lba(sector(offset));
    Some(match *op {
        BatchOp::Write { data, .. } => Op::Write { lba, data },
        BatchOp::Punch { .. } => Op::Trim { lba, sectors: sector(len) },
    })
}

impl File for NvmFile {
    fn id(&self) -> FileId {
        self.node.file_id()
    }

    fn props(&self) -> FileProps {
        self.layers.data().props()
    }

    fn len(&self) -> DeviceResult<u64> {
        let size = self.node.live(Inode::size);
        named(&file_name(&self.layers, &self.node), size)
    }

    fn set_len(&self, len: u64) -> DeviceResult<()> {
        check_range(&self.layers, &self.node, 0, len)?;
        check_alive(&self.layers, &self.node)?;
        if self.node.size() == len {
            return Ok(());
        }
        let set = self.layers.data().change_inode(&self.node, Some(len), |inode, update| {
            inode.set_times((inode.times().0, update.now(), update.now()));
            true
        });
        named(&file_name(&self.layers, &self.node), set.map(drop))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> DeviceResult<()> {
        check_range(&self.layers, &self.node, offset, buf.len() as u64)?;
        if !buf.is_empty() {
            let lba = self.node.ino().lba(sector(offset));
            self.layers.inodes().volume().ftl().read(lba, buf).map_err(Error::from)?;
        }
        check_alive(&self.layers, &self.node)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        let op = BatchOp::Write { file: self.id(), offset, data };
        write_files(&self.layers, &[(Arc::clone(&self.node), op)])
    }

    fn punch(&self, offset: u64, len: u64) -> DeviceResult<()> {
        let op = BatchOp::Punch { file: self.id(), offset, len };
        write_files(&self.layers, &[(Arc::clone(&self.node), op)])
    }

    fn allocated(&self, offset: u64, len: u64) -> DeviceResult<u64> {
        let end = offset.saturating_add(len).min(FILE_BYTES_MAX);
        if offset >= end {
            return Ok(0);
        }
        let region_start = self.node.ino().lba(0).0;
        let range = Lba(region_start + sector(offset))..Lba(region_start + end.div_ceil(SECTOR as u64));
        let bytes = self.layers.inodes().volume().ftl().allocated(range)?;
        check_alive(&self.layers, &self.node)?;
        Ok(bytes)
    }

    fn sync(&self) -> DeviceResult<()> {
        Ok(self.layers.inodes().volume().ftl().flush()?)
    }
}
