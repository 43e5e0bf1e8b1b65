//! Files and batches: the data path.

use std::{collections::BTreeMap, sync::Arc};

use lacuna_device::{
    BatchOp, File, FileId, FileProps, Place, PlaceStats, Result as DeviceResult, SECTOR, StreamHint,
};
use lacuna_ftl::{Lba, Op, Stream};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::{
    Error, Nvmfs, Result,
    addr::{FILE_BYTES_MAX, Ino, REGION_SECTORS},
    format::{Inode, SectorBytes},
    fs::{Shared, not_found},
    inode::{OpenInode, Record},
};

/// An open file.
struct NvmFile {
    shared: Arc<Shared>,
    inode: Arc<OpenInode>,
}

/// A file of a batch while the batch is under way.
enum Held<'a> {
    /// It is written within its length.
    Within { _record: RwLockReadGuard<'a, Record> },
    /// It grows: its next inode goes along in the batch.
    Growing(Box<Growth<'a>>),
}

struct Growth<'a> {
    record: RwLockWriteGuard<'a, Record>,
    grown: Inode,
    bytes: SectorBytes,
}

/// What a batch does to one file.
struct Target {
    inode: Arc<OpenInode>,
    /// End of its last write in bytes.
    end: u64,
}

fn sector(byte: u64) -> u64 {
    byte / SECTOR as u64
}

impl Shared {
    fn file_name(&self, inode: &OpenInode) -> String {
        format!("{}: file number {}", self.store, inode.ino.0)
    }

    fn check_range(&self, inode: &OpenInode, offset: u64, len: u64) -> Result<()> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= FILE_BYTES_MAX);
        if fits && self.props.check_range(&self.store, offset, len).is_ok() {
            return Ok(());
        }
        Err(lacuna_device::Error::BadRange { what: self.file_name(inode), offset, len }.into())
    }

    fn live(&self, inode: &OpenInode, record: &Record) -> Result<Inode> {
        match record {
            Record::Live(live) => Ok(*live),
            // Not loaded: named by the id of a handle that is closed, while another is being opened.
            Record::Removed | Record::Unloaded => Err(not_found(&self.file_name(inode))),
        }
    }

    fn read(&self, inode: &OpenInode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check_range(inode, offset, buf.len() as u64)?;
        if !buf.is_empty() {
            self.ftl.read(inode.ino.lba(sector(offset)), buf)?;
        }
        // Looked at afterwards: the number may have become another file's while this was read.
        if inode.is_removed() {
            return Err(not_found(&self.file_name(inode)));
        }
        Ok(())
    }

    fn len(&self, inode: &OpenInode) -> Result<u64> {
        Ok(self.live(inode, &inode.record.read())?.size())
    }

    fn set_len(&self, inode: &OpenInode, len: u64) -> Result<()> {
        self.check_range(inode, 0, len)?;
        let mut record = inode.record.write();
        let before = self.live(inode, &record)?;
        if before.size() == len {
            return Ok(());
        }
        let after = before.with_size(len, (self.clock)());
        let bytes = after.seal();
        let mut ops = vec![Op::Write { lba: inode.ino.inode_lba(), data: &bytes }];
        if len < before.size() {
            let first = sector(len);
            ops.push(Op::Trim { lba: inode.ino.lba(first), sectors: REGION_SECTORS - first });
        }
        self.ftl.write_batch(&ops, self.stream([inode]))?;
        *record = Record::Live(after);
        Ok(())
    }

    /// A batch goes to the log's append point if all its files are logs.
    fn stream<'a>(&self, inodes: impl IntoIterator<Item = &'a OpenInode>) -> Stream {
        if inodes.into_iter().all(OpenInode::is_log) { Stream::Log } else { Stream::Data }
    }

    /// Applies `ops`, each with its open inode, as one batch of the ftl.
    fn write_batch(&self, ops: &[(Arc<OpenInode>, BatchOp<'_>)]) -> Result<()> {
        let bytes: u64 = ops.iter().map(|(_, op)| op.data_bytes()).sum();
        let bytes_max = self.props.atomic_bytes_max;
        if bytes > bytes_max {
            return Err(lacuna_device::Error::BatchTooLarge { bytes, bytes_max }.into());
        }
        let mut targets: BTreeMap<Ino, Target> = BTreeMap::new();
        for (inode, op) in ops {
            let (offset, len) = op.range();
            self.check_range(inode, offset, len)?;
            let target =
                targets.entry(inode.ino).or_insert_with(|| Target { inode: Arc::clone(inode), end: 0 });
            if matches!(op, BatchOp::Write { data, .. } if !data.is_empty()) {
                target.end = target.end.max(offset + len);
            }
        }
        let mut held = Vec::with_capacity(targets.len());
        for target in targets.values() {
            held.push(self.hold(target)?); // by ascending number
        }
        let mut batch: Vec<Op<'_>> = ops.iter().filter_map(|(inode, op)| data_op(inode.ino, op)).collect();
        for held in &held {
            if let Held::Growing(growth) = held {
                batch.push(Op::Write { lba: growth.grown.ino().inode_lba(), data: &growth.bytes });
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.ftl.write_batch(&batch, self.stream(targets.values().map(|target| &*target.inode)))?;
        for held in held {
            if let Held::Growing(mut growth) = held {
                *growth.record = Record::Live(growth.grown);
            }
        }
        Ok(())
    }

    /// Keeps the length of a file at or above what a batch writes, or lets the batch alone change it.
    fn hold<'a>(&self, target: &'a Target) -> Result<Held<'a>> {
        let record = target.inode.record.read();
        if target.end <= self.live(&target.inode, &record)?.size() {
            return Ok(Held::Within { _record: record });
        }
        drop(record);
        let record = target.inode.record.write();
        let before = self.live(&target.inode, &record)?;
        if target.end <= before.size() {
            return Ok(Held::Within { _record: RwLockWriteGuard::downgrade(record) });
        }
        let grown = before.with_size(target.end, (self.clock)());
        let bytes = grown.seal();
        Ok(Held::Growing(Box::new(Growth { record, grown, bytes })))
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
        self.inode.file_id()
    }

    fn props(&self) -> FileProps {
        self.shared.props
    }

    fn len(&self) -> DeviceResult<u64> {
        Ok(self.shared.len(&self.inode)?)
    }

    fn set_len(&self, len: u64) -> DeviceResult<()> {
        Ok(self.shared.set_len(&self.inode, len)?)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> DeviceResult<()> {
        Ok(self.shared.read(&self.inode, offset, buf)?)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        let op = BatchOp::Write { file: self.id(), offset, data };
        Ok(self.shared.write_batch(&[(Arc::clone(&self.inode), op)])?)
    }

    fn punch(&self, offset: u64, len: u64) -> DeviceResult<()> {
        let op = BatchOp::Punch { file: self.id(), offset, len };
        Ok(self.shared.write_batch(&[(Arc::clone(&self.inode), op)])?)
    }

    fn allocated(&self, offset: u64, len: u64) -> DeviceResult<u64> {
        let end = offset.saturating_add(len).min(FILE_BYTES_MAX);
        if offset >= end {
            return Ok(0);
        }
        let region_start = self.inode.ino.lba(0).0;
        let range = Lba(region_start + sector(offset))..Lba(region_start + end.div_ceil(SECTOR as u64));
        let bytes = self.shared.ftl.allocated(range)?;
        if self.inode.is_removed() {
            return Err(Error::into(not_found(&self.shared.file_name(&self.inode))));
        }
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
        let inode = self.shared.open_file(name, hint)?;
        Ok(Arc::new(NvmFile { shared: Arc::clone(&self.shared), inode }))
    }

    fn create(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<dyn File>> {
        let inode = self.shared.create_file(name, hint)?;
        Ok(Arc::new(NvmFile { shared: Arc::clone(&self.shared), inode }))
    }

    fn remove(&self, name: &str) -> DeviceResult<()> {
        Ok(self.shared.remove_file(name)?)
    }

    fn rename(&self, from: &str, to: &str) -> DeviceResult<()> {
        Ok(self.shared.rename_file(from, to)?)
    }

    fn list(&self) -> DeviceResult<Vec<String>> {
        Ok(self.shared.entries()?.iter().map(|entry| entry.name().to_owned()).collect())
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> DeviceResult<()> {
        let open = |op: &BatchOp<'_>| {
            let inode = self.shared.inodes.get_by_id(op.file());
            inode.ok_or_else(|| not_found(&format!("{}: open file {}", self.shared.store, op.file().0)))
        };
        let opened: Result<Vec<_>> = ops.iter().map(|op| Ok((open(op)?, *op))).collect();
        Ok(self.shared.write_batch(&opened?)?)
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
