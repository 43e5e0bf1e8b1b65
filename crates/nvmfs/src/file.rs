//! The file system as a [`Place`]: the files of the root directory by name, in whole sectors.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use lacuna_device::{
    BatchOp, File, FileId, FileProps, Place, PlaceStats, Result as DeviceResult, SECTOR, StreamHint,
    check_file_name,
};
use lacuna_ftl::{Lba, Op};

use crate::{
    Error, Nvmfs, Refusal, Result,
    addr::{FILE_BYTES_MAX, Ino},
    data::{Target, live, sector},
    format::Inode,
    fs::Shared,
    names::{NewInode, RenameEnd},
    node::Node,
    posix::{FileKind, Rename},
};

/// An open file.
struct NvmFile {
    shared: Arc<Shared>,
    node: Arc<Node>,
}

/// Says of which name an error speaks.
fn named<T>(name: &str, result: Result<T>) -> DeviceResult<T> {
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

impl Shared {
    fn file_name(&self, node: &Node) -> String {
        format!("{}: file number {}", self.store, node.ino.0)
    }

    fn check_range(&self, node: &Node, offset: u64, len: u64) -> DeviceResult<()> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= FILE_BYTES_MAX);
        if fits && self.props.check_range(&self.store, offset, len).is_ok() {
            return Ok(());
        }
        Err(lacuna_device::Error::BadRange { what: self.file_name(node), offset, len })
    }

    /// Refuses what was removed: its number may have become another file's.
    fn check_alive(&self, node: &Node) -> DeviceResult<()> {
        let alive = if node.is_removed() { Err(Refusal::Stale.into()) } else { Ok(()) };
        named(&self.file_name(node), alive)
    }

    /// Opens the file `name` of the root directory.
    fn open_file(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<Node>> {
        check_file_name(name)?;
        let node = named(name, self.lookup(Ino::ROOT, name.as_bytes()))?;
        if node.kind() != FileKind::File {
            return named(name, Err(Refusal::Invalid.into()));
        }
        node.set_hint(hint);
        Ok(node)
    }

    /// Applies `ops`, each with its file, as one batch of the ftl.
    fn write_files(&self, ops: &[(Arc<Node>, BatchOp<'_>)]) -> DeviceResult<()> {
        let bytes: u64 = ops.iter().map(|(_, op)| op.data_bytes()).sum();
        let bytes_max = self.props.atomic_bytes_max;
        if bytes > bytes_max {
            return Err(lacuna_device::Error::BatchTooLarge { bytes, bytes_max });
        }
        let mut files: BTreeMap<Ino, (Target, Vec<Range<u64>>)> = BTreeMap::new();
        for (node, op) in ops {
            let (offset, len) = op.range();
            self.check_range(node, offset, len)?;
            let new = || (Target { node: Arc::clone(node), end: 0, kill_privileges: false }, Vec::new());
            let (target, ranges) = files.entry(node.ino).or_insert_with(new);
            ranges.push(sector(offset)..sector(offset + len));
            if matches!(op, BatchOp::Write { data, .. } if !data.is_empty()) {
                target.end = target.end.max(offset + len);
            }
        }
        let (targets, ranges): (Vec<Target>, Vec<_>) = files.into_values().unzip();
        let held = targets.iter().zip(ranges).map(|(target, ranges)| target.node.ranges.lock_all(ranges));
        let _held: Vec<_> = held.collect(); // files in order of their numbers
        let data_ops: Vec<_> = ops.iter().filter_map(|(node, op)| data_op(node.ino, op)).collect();
        self.apply_data(&data_ops, &targets).or_else(|error| {
            let what = targets.first().map_or_else(String::new, |target| self.file_name(&target.node));
            named(&what, Err(error))
        })
    }
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
        self.shared.props
    }

    fn len(&self) -> DeviceResult<u64> {
        let size = live(&self.node.record.read()).map(Inode::size);
        named(&self.shared.file_name(&self.node), size)
    }

    fn set_len(&self, len: u64) -> DeviceResult<()> {
        self.shared.check_range(&self.node, 0, len)?;
        self.shared.check_alive(&self.node)?;
        if self.node.size() == len {
            return Ok(());
        }
        let set = self.shared.change_inode(&self.node, Some(len), |inode, update| {
            inode.set_times((inode.times().0, update.now, update.now));
        });
        named(&self.shared.file_name(&self.node), set)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> DeviceResult<()> {
        self.shared.check_range(&self.node, offset, buf.len() as u64)?;
        if !buf.is_empty() {
            let lba = self.node.ino.lba(sector(offset));
            self.shared.ftl.read(lba, buf).map_err(Error::from)?;
        }
        self.shared.check_alive(&self.node)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        let op = BatchOp::Write { file: self.id(), offset, data };
        self.shared.write_files(&[(Arc::clone(&self.node), op)])
    }

    fn punch(&self, offset: u64, len: u64) -> DeviceResult<()> {
        let op = BatchOp::Punch { file: self.id(), offset, len };
        self.shared.write_files(&[(Arc::clone(&self.node), op)])
    }

    fn allocated(&self, offset: u64, len: u64) -> DeviceResult<u64> {
        let end = offset.saturating_add(len).min(FILE_BYTES_MAX);
        if offset >= end {
            return Ok(0);
        }
        let region_start = self.node.ino.lba(0).0;
        let range = Lba(region_start + sector(offset))..Lba(region_start + end.div_ceil(SECTOR as u64));
        let bytes = self.shared.ftl.allocated(range)?;
        self.shared.check_alive(&self.node)?;
        Ok(bytes)
    }

    fn sync(&self) -> DeviceResult<()> {
        Ok(self.shared.ftl.flush()?)
    }
}

impl Place for Nvmfs {
    fn name(&self) -> &str {
        &self.shared.store
    }

    fn props(&self) -> FileProps {
        self.shared.props
    }

    fn open(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<dyn File>> {
        let node = self.shared.open_file(name, hint)?;
        Ok(Arc::new(NvmFile { shared: Arc::clone(&self.shared), node }))
    }

    fn create(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<dyn File>> {
        check_file_name(name)?;
        let mode = FileKind::File.mode_bits() | 0o644;
        let new = NewInode { mode, is_log: hint == StreamHint::Log, ..NewInode::default() };
        let node = named(name, self.shared.create(Ino::ROOT, name.as_bytes(), &new))?;
        node.set_hint(hint);
        Ok(Arc::new(NvmFile { shared: Arc::clone(&self.shared), node }))
    }

    fn remove(&self, name: &str) -> DeviceResult<()> {
        check_file_name(name)?;
        named(name, self.shared.unlink(Ino::ROOT, name.as_bytes()))
    }

    fn rename(&self, from: &str, to: &str) -> DeviceResult<()> {
        check_file_name(from)?;
        check_file_name(to)?;
        let end = |name| RenameEnd { parent: Ino::ROOT, name };
        named(from, self.shared.rename(end(from.as_bytes()), end(to.as_bytes()), Rename::Replace))
    }

    /// The regular files of the root directory whose names are UTF-8.
    fn list(&self) -> DeviceResult<Vec<String>> {
        let mut names = Vec::new();
        self.shared.readdir(Ino::ROOT, 0, &mut |entry| {
            if entry.kind == FileKind::File {
                names.extend(std::str::from_utf8(entry.name).map(str::to_owned));
            }
            true
        })?;
        Ok(names)
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> DeviceResult<()> {
        let open = |op: &BatchOp<'_>| {
            let node = self.shared.nodes.get_by_id(op.file()).ok_or(Refusal::Stale.into());
            named(&format!("{}: open file {}", self.shared.store, op.file().0), node)
        };
        let opened: DeviceResult<Vec<_>> = ops.iter().map(|op| Ok((open(op)?, *op))).collect();
        self.shared.write_files(&opened?)
    }

    fn sync(&self) -> DeviceResult<()> {
        Ok(self.shared.ftl.flush()?)
    }

    fn stats(&self) -> DeviceResult<PlaceStats> {
        let stats = self.shared.ftl.stats();
        Ok(PlaceStats {
            device_written_bytes: stats.device.written_bytes,
            device_read_bytes: stats.device.read_bytes,
            device_syncs: stats.device.syncs,
            allocated_bytes: stats.allocated_bytes,
            store_bytes: stats.store_bytes,
        })
    }

    fn free_bytes(&self) -> DeviceResult<Option<u64>> {
        let stats = self.shared.ftl.stats();
        Ok(Some(stats.live_limit_bytes.saturating_sub(stats.live_bytes)))
    }
}
