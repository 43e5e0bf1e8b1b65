//! The write-ahead log on a device of its own: small, fast, persistent, and where it is memory, mapped.
//!
//! [`LogDeviceVfs`] is a VFS whose files are those of another one, except for the files of the log, which lie in a ring
//! on a [`LogDevice`]. A commit then costs a copy, the write-back of its lines and a fence, and no system call: only for
//! a lock that another thread holds, for memory, and each 128 KiB of log to ask what is free. To the engine it is a VFS that is not `ordered`: the log is durable before the pages that it describes, and pages and
//! control file are before log is given back; more it does not ask of a place.
//!
//! Log and pages are one store: neither is of any use without the other. Each opening counts in both ([`header::Pair`],
//! in the file [`PAIR_FILE`] beside the tables). So a device that is not the store's, or is an older copy, is refused, and
//! so is a store that is older than its device. A store that is opened without its log device is refused as well: its
//! tables lack what the log holds.
//!
//! What lies on the device is not encrypted, although the store around it may be: the log holds keys and values.
//!
//! The order of an opening: the device counts first, durably, then the store. A power cut in between leaves the device
//! one ahead, which is the one difference that opens.

mod header;
mod ring;

#[cfg(test)]
pub(crate) use header::LAYOUT;
#[cfg(feature = "fuzzing")]
pub(crate) use ring::fuzz;

use std::{io::Read, sync::Arc};

use lacuna_device::{
    AlignedBuf, BatchOp, Error as DeviceError, File, FileId, FileProps, LogDevice, Result as DeviceResult,
    StreamHint, Vfs, VfsStats,
};

use crate::{
    types::{Error, Result},
    wal::is_log_file,
};
use header::{Header, Pair, SECTOR};
use ring::Ring;

/// The file beside the tables that says which log device is theirs.
pub(crate) const PAIR_FILE: &str = "log-device";
/// The smallest log device, in bytes.
pub const LOG_DEVICE_BYTES_MIN: u64 = 1 << 20;

/// A [`Vfs`] with the files of the engine's log on a log device. See the module's documentation.
pub struct LogDeviceVfs {
    vfs: Arc<dyn Vfs>,
    ring: Arc<Ring>,
}

/// A file of the log. Its number is no file's of the VFS below.
struct LogFile {
    id: FileId,
    name: String,
    props: FileProps,
    ring: Arc<Ring>,
}

impl LogDeviceVfs {
    /// Prepares `device` for the log of a store that is to be made in `vfs`, which is empty, and opens both.
    ///
    /// # Errors
    /// [`Error::BadStore`] when `vfs` holds files, or `device` anything unless `force`d, or is too small or needs
    /// blocks of more than 512 bytes; and the errors of both.
    pub fn format(vfs: Arc<dyn Vfs>, device: Arc<dyn LogDevice>, force: bool) -> Result<Arc<LogDeviceVfs>> {
        let refuse = |what: &str, reason: String| Err(Error::BadStore { what: what.to_owned(), reason });
        if !vfs.list()?.is_empty() {
            return refuse(
                vfs.name(),
                "a store gets a log device when it is made, and this holds files".into(),
            );
        }
        if device.capacity_bytes() < LOG_DEVICE_BYTES_MIN {
            return refuse(device.name(), format!("a log device has at least {LOG_DEVICE_BYTES_MIN} bytes"));
        }
        if device.unit_bytes() as usize > SECTOR {
            let reason = format!("has blocks of {} bytes; 512 is the most that works", device.unit_bytes());
            return refuse(device.name(), reason);
        }
        if !force && !is_blank(&*device)? {
            return refuse(device.name(), "is not blank; a log device loses what it holds".into());
        }
        let pair = Pair { id: random_id()?, opens: 0 };
        let ring = Ring::format(device, Header { pair, sequence: 0, ring_bytes: 0, files: Vec::new() })?;
        let file = vfs.create(PAIR_FILE, StreamHint::Data)?;
        file.write_at(0, &aligned(pair))?;
        vfs.sync()?;
        LogDeviceVfs::open(vfs, ring.device)
    }

    /// Whether `device` is, or was, the log device of a store.
    ///
    /// # Errors
    /// Those of the device.
    pub fn is_log_device(device: &dyn LogDevice) -> Result<bool> {
        Ok(Ring::read_header(device)?.is_some())
    }

    /// Opens the store in `vfs` with its log device.
    ///
    /// # Errors
    /// [`Error::BadStore`] when `device` is no log device or not that of this store, or one of the two is an older
    /// copy; and the errors of both.
    pub fn open(vfs: Arc<dyn Vfs>, device: Arc<dyn LogDevice>) -> Result<Arc<LogDeviceVfs>> {
        let refuse = |what: &str, reason: String| Err(Error::BadStore { what: what.to_owned(), reason });
        let file = match vfs.open(PAIR_FILE, StreamHint::Data) {
            Ok(file) => file,
            Err(DeviceError::NotFound { .. }) => {
                return refuse(vfs.name(), "was made without a log device".into());
            }
            Err(error) => return Err(error.into()),
        };
        let mut sector = AlignedBuf::zeroed(SECTOR);
        file.read_at(0, &mut sector)?;
        let Some(pair) = Pair::of(&sector) else {
            return refuse(vfs.name(), format!("{PAIR_FILE} is damaged"));
        };
        if device.unit_bytes() as usize > SECTOR {
            let reason = format!("has blocks of {} bytes; 512 is the most that works", device.unit_bytes());
            return refuse(device.name(), reason);
        }
        let Some(header) = Ring::read_header(&*device)? else {
            return refuse(device.name(), format!("is not the log device of {}", vfs.name()));
        };
        if header.pair.id != pair.id {
            return refuse(device.name(), format!("is the log device of another store than {}", vfs.name()));
        }
        let (ahead, behind) = (header.pair.opens, pair.opens);
        if ahead != behind && ahead != behind + 1 {
            let (older, than) =
                if ahead < behind { (device.name(), vfs.name()) } else { (vfs.name(), device.name()) };
            return refuse(older, format!("is an older copy than {than}: opened {ahead} and {behind} times"));
        }
        // What a killed process wrote may be in a cache only, and would fall behind the device by two.
        file.write_at(0, &sector)?;
        file.sync()?;
        let ring = Ring::open(device, header)?;
        let pair = Pair { opens: behind + 1, ..pair };
        ring.set_opens(pair.opens)?;
        file.write_at(0, &aligned(pair))?;
        file.sync()?;
        Ok(Arc::new(LogDeviceVfs { vfs, ring: Arc::new(ring) }))
    }

    fn file(&self, name: &str) -> Option<Arc<dyn File>> {
        let position = self.ring.names().iter().position(|other| other == name)?;
        let props = FileProps {
            atomic_bytes_max: 0,
            atomic_align: 0,
            atomic_writes: None,
            hole_unit: SECTOR as u32,
            ..self.props()
        };
        let id = FileId(u64::MAX - position as u64);
        Some(Arc::new(LogFile { id, name: name.to_owned(), props, ring: Arc::clone(&self.ring) }))
    }

    fn must_be_ours(&self, name: &str) -> DeviceResult<()> {
        match name == PAIR_FILE {
            true => Err(DeviceError::BadName { name: name.to_owned(), reason: "kept for the log device" }),
            false => Ok(()),
        }
    }
}

/// Refuses a store whose log lies on a log device, if it is opened without.
pub(crate) fn must_be_here(vfs: &dyn Vfs) -> Result<()> {
    match vfs.open(PAIR_FILE, StreamHint::Data) {
        Err(DeviceError::NotFound { .. } | DeviceError::BadName { .. }) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => {
            let reason = "its log lies on a log device: open it with that".to_owned();
            Err(Error::BadStore { what: vfs.name().to_owned(), reason })
        }
    }
}

fn aligned(pair: Pair) -> AlignedBuf {
    let mut sector = AlignedBuf::zeroed(SECTOR);
    sector.copy_from_slice(&pair.to_sector());
    sector
}

fn random_id() -> Result<[u8; 16]> {
    const SOURCE: &str = "/dev/urandom";
    let mut id = [0; 16];
    std::fs::File::open(SOURCE)
        .and_then(|mut source| source.read_exact(&mut id))
        .map_err(|error| DeviceError::io(SOURCE, error))?;
    Ok(id)
}

/// Whether the first bytes of a device are zero.
fn is_blank(device: &dyn LogDevice) -> Result<bool> {
    let mut start = vec![0; LOG_DEVICE_BYTES_MIN as usize];
    device.read_at(0, &mut start)?;
    Ok(start.iter().all(|byte| *byte == 0))
}

impl Vfs for LogDeviceVfs {
    fn name(&self) -> &str {
        self.vfs.name()
    }

    fn identity(&self) -> (usize, u64) {
        self.vfs.identity()
    }

    fn props(&self) -> FileProps {
        FileProps { ordered: false, ..self.vfs.props() }
    }

    fn open(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<dyn File>> {
        self.must_be_ours(name)?;
        match is_log_file(name) {
            true => self.file(name).ok_or_else(|| DeviceError::NotFound { name: name.to_owned() }),
            false => self.vfs.open(name, hint),
        }
    }

    fn create(&self, name: &str, hint: StreamHint) -> DeviceResult<Arc<dyn File>> {
        self.must_be_ours(name)?;
        if !is_log_file(name) {
            return self.vfs.create(name, hint);
        }
        if self.ring.names().iter().any(|other| other == name) {
            return Err(DeviceError::Exists { name: name.to_owned() });
        }
        self.ring.create(name)?;
        Ok(self.file(name).expect("just made"))
    }

    fn remove(&self, name: &str) -> DeviceResult<()> {
        self.must_be_ours(name)?;
        if is_log_file(name) { self.ring.remove(name) } else { self.vfs.remove(name) }
    }

    fn rename(&self, from: &str, to: &str) -> DeviceResult<()> {
        self.must_be_ours(from)?;
        self.must_be_ours(to)?;
        if is_log_file(from) || is_log_file(to) {
            return Err(DeviceError::Unsupported {
                what: from.to_owned(),
                operation: "rename a file of the log",
            });
        }
        self.vfs.rename(from, to)
    }

    fn list(&self) -> DeviceResult<Vec<String>> {
        let mut names = self.vfs.list()?;
        names.retain(|name| name != PAIR_FILE);
        names.extend(self.ring.names());
        Ok(names)
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> DeviceResult<()> {
        self.vfs.write_batch(ops)
    }

    fn sync(&self) -> DeviceResult<()> {
        self.ring.sync()?;
        self.vfs.sync()
    }

    fn stats(&self) -> DeviceResult<VfsStats> {
        self.vfs.stats()
    }

    fn free_bytes(&self) -> DeviceResult<Option<u64>> {
        self.vfs.free_bytes()
    }

    fn log_bytes_max(&self) -> Option<u64> {
        Some(self.ring.capacity_bytes())
    }
}

impl File for LogFile {
    fn id(&self) -> FileId {
        self.id
    }

    fn props(&self) -> FileProps {
        self.props
    }

    fn len(&self) -> DeviceResult<u64> {
        self.ring.bytes(&self.name)
    }

    fn set_len(&self, len: u64) -> DeviceResult<()> {
        self.ring.set_len(&self.name, len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> DeviceResult<()> {
        self.ring.read(&self.name, offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        self.ring.write(&self.name, offset, data)
    }

    /// Only the front of a log is given back.
    fn punch(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.ring.give_back(&self.name, offset.saturating_add(len))
    }

    fn allocated(&self, offset: u64, len: u64) -> DeviceResult<u64> {
        self.ring.allocated(&self.name, offset, len)
    }

    fn sync(&self) -> DeviceResult<()> {
        self.ring.sync()
    }
}
