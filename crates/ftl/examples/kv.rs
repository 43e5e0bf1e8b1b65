//! A crash-safe key-value store straight on the primitives of the ftl, after NVMKV (Mármol et al.,
//! "NVMKV: A Scalable, Lightweight, FTL-aware Key-Value Store", USENIX ATC 2015).
//!
//! There is no index, no log, no compaction and no recovery code. The sparse space is the hash table: a key's hash *is*
//! the address of its record. The ftl provides everything else that such a store needs:
//!
//! - *thin provisioning*: 2^47 slots of 32 MiB, which take space only for what is written;
//! - *atomic batches*: any number of puts and deletes, all or none of them after a crash;
//! - *persistent trim*: a delete is a trim of the slot, and never comes back;
//! - *is it mapped?* is answered by the map, so a free slot costs no read.
//!
//! A key lives in one of the [`PROBES`] slots from its home on. Every look-up examines all of them, so a delete leaves
//! no tombstone and moves nothing.
//!
//! `cargo run --example kv -- STORE get KEY | put KEY VALUE ... | delete KEY ... | list`

use std::{collections::BTreeSet, fmt, sync::Arc};

use lacuna_device::{RawDevice, RawOptions};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, SECTOR, Stream};
use parking_lot::RwLock;

/// Sectors of a slot.
const SLOT_SECTORS: u64 = 1 << 16;
/// Slots of a store.
pub const SLOTS: u64 = 1 << 47;
/// Slots in which a key may be.
const PROBES: u64 = 8;
/// Magic number, key length, value length: four bytes each. Key and value follow.
const HEADER_BYTES: usize = 12;
const MAGIC: [u8; 4] = *b"LcKV";

/// One element of [`Kv::apply`].
#[derive(Clone, Debug)]
pub enum Change {
    /// Key and value.
    Put(Vec<u8>, Vec<u8>),
    /// Key.
    Delete(Vec<u8>),
}

/// What can go wrong.
#[derive(Debug)]
pub enum Error {
    /// The ftl refused, or found damage.
    Ftl(lacuna_ftl::Error),
    /// All slots of the key are taken by other keys: with 2^47 slots, extremely unlikely.
    Crowded,
    /// A slot holds something that is no record: the store is not one of this program's.
    Foreign(Lba),
}

impl From<lacuna_ftl::Error> for Error {
    fn from(error: lacuna_ftl::Error) -> Error {
        Error::Ftl(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Ftl(error) => error.fmt(f),
            Error::Crowded => f.write_str("no free slot for the key"),
            Error::Foreign(lba) => write!(f, "no record at sector {}", lba.0),
        }
    }
}

impl std::error::Error for Error {}

type Result<T> = std::result::Result<T, Error>;

/// A key-value store on an ftl of its own.
pub struct Kv {
    ftl: Ftl,
    slots: u64,
    /// For readers the ftl is atomic by extent only, and a record may span many extents.
    turn: RwLock<()>,
}

/// A record as it lies in its slot.
struct Record {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Record {
    fn to_sectors(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(self.key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&self.value);
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        bytes
    }
}

impl Kv {
    /// The store on `ftl`, with [`SLOTS`] slots, or fewer so that keys collide.
    pub fn new(ftl: Ftl, slots: u64) -> Kv {
        assert!((PROBES..=SLOTS).contains(&slots), "{slots} slots");
        Kv { ftl, slots, turn: RwLock::new(()) }
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let _shared = self.turn.read();
        Ok(self.find(key)?.map(|(_, record)| record.value))
    }

    /// Does all of `changes`, in order, or nothing. They survive a crash after [`Kv::flush`].
    pub fn apply(&self, changes: &[Change]) -> Result<()> {
        let _alone = self.turn.write();
        // A batch sees the store as it was before it: its own changes are kept here.
        let mut planned: Vec<(Vec<u8>, u64, Option<Vec<u8>>)> = Vec::new();
        for change in changes {
            let (key, sectors) = match change {
                Change::Put(key, value) => {
                    (key, Some(Record { key: key.clone(), value: value.clone() }.to_sectors()))
                }
                Change::Delete(key) => (key, None),
            };
            let slot = match planned.iter().find(|(seen, ..)| seen == key) {
                Some((_, slot, _)) => Some(*slot),
                None => self.find(key)?.map(|(slot, _)| slot),
            };
            match (slot, sectors) {
                (None, None) => {}
                (Some(slot), sectors) => planned.push((key.clone(), slot, sectors)),
                (None, sectors) => {
                    let taken: BTreeSet<u64> = planned.iter().map(|(_, slot, _)| *slot).collect();
                    let slot = self.free_slot(key, &taken)?;
                    planned.push((key.clone(), slot, sectors));
                }
            }
        }
        let mut ops = Vec::new();
        for (_, slot, sectors) in &planned {
            // The old record may have been longer.
            ops.push(Op::Trim { lba: start_of(*slot), sectors: SLOT_SECTORS });
            ops.extend(sectors.as_ref().map(|data| Op::Write { lba: start_of(*slot), data }));
        }
        self.ftl.write_batch(&ops, Stream::Data)?;
        Ok(())
    }

    /// All keys and values, in no particular order. Changes made meanwhile may be included or not.
    pub fn iter(&self) -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>> + '_ {
        let mut slot = 0;
        std::iter::from_fn(move || {
            let _shared = self.turn.read();
            let next = self.ftl.mapped(start_of(slot)..start_of(self.slots)).transpose()?;
            let found = next.map(|run| run.start.0 / SLOT_SECTORS).map_err(Error::from);
            slot = found.as_ref().map_or(self.slots, |found| found + 1);
            Some(found.and_then(|found| self.read(found)).map(|record| (record.key, record.value)))
        })
    }

    /// Makes everything that was applied durable.
    pub fn flush(&self) -> Result<()> {
        Ok(self.ftl.flush()?)
    }

    /// The ftl below.
    pub fn ftl(&self) -> &Ftl {
        &self.ftl
    }

    /// The slots in which `key` may be, its home first.
    fn slots_of(&self, key: &[u8]) -> impl Iterator<Item = u64> + use<> {
        let (home, slots) = (hash(key) % self.slots, self.slots);
        (0..PROBES).map(move |step| (home + step) % slots)
    }

    /// The first slot for `key` that is neither in use nor in `taken`.
    fn free_slot(&self, key: &[u8], taken: &BTreeSet<u64>) -> Result<u64> {
        for slot in self.slots_of(key).filter(|slot| !taken.contains(slot)) {
            if !self.ftl.is_mapped(start_of(slot))? {
                return Ok(slot);
            }
        }
        Err(Error::Crowded)
    }

    fn find(&self, key: &[u8]) -> Result<Option<(u64, Record)>> {
        for slot in self.slots_of(key) {
            if self.ftl.is_mapped(start_of(slot))? {
                let record = self.read(slot)?;
                if record.key == key {
                    return Ok(Some((slot, record)));
                }
            }
        }
        Ok(None)
    }

    /// The record in a slot that is taken. The ftl has verified its checksums.
    fn read(&self, slot: u64) -> Result<Record> {
        let mut bytes = vec![0; SECTOR];
        self.ftl.read(start_of(slot), &mut bytes)?;
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (key_bytes, value_bytes) = (number(4) as usize, number(8) as usize);
        let len = HEADER_BYTES + key_bytes + value_bytes;
        if bytes[..4] != MAGIC || len as u64 > SLOT_SECTORS * SECTOR as u64 {
            return Err(Error::Foreign(start_of(slot)));
        }
        bytes.resize(len.next_multiple_of(SECTOR), 0);
        self.ftl.read(Lba(start_of(slot).0 + 1), &mut bytes[SECTOR..])?;
        let key = bytes[HEADER_BYTES..HEADER_BYTES + key_bytes].to_vec();
        Ok(Record { key, value: bytes[HEADER_BYTES + key_bytes..len].to_vec() })
    }
}

fn start_of(slot: u64) -> Lba {
    Lba(slot * SLOT_SECTORS)
}

/// FNV-1a, its bits mixed once more. On the device, so it must never change.
fn hash(key: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

const USAGE: &str = "kv STORE get KEY | put KEY VALUE ... | delete KEY ... | list";

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [path, command, rest @ ..] = &words[..] else { return Err(USAGE.into()) };
    let is_new = !std::path::Path::new(path).exists();
    if is_new {
        std::fs::File::create_new(path)?.set_len(1 << 30)?;
    }
    let device = Arc::new(RawDevice::open(path.as_ref(), RawOptions::default())?);
    if is_new {
        Ftl::format(device.clone(), &FormatOptions::default())?;
    }
    let kv = Kv::new(Ftl::open(device, Options::default())?, SLOTS);
    match (*command, rest) {
        ("get", [key]) => match kv.get(key.as_bytes())? {
            Some(value) => println!("{}", String::from_utf8_lossy(&value)),
            None => return Err(format!("{key}: not there").into()),
        },
        ("put", pairs) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
            let put = |pair: &[&str]| Change::Put(pair[0].into(), pair[1].into());
            kv.apply(&pairs.chunks(2).map(put).collect::<Vec<_>>())?;
        }
        ("delete", keys) if !keys.is_empty() => {
            kv.apply(&keys.iter().map(|key| Change::Delete((*key).into())).collect::<Vec<_>>())?;
        }
        ("list", []) => {
            for found in kv.iter() {
                let (key, value) = found?;
                println!("{}\t{}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
            }
        }
        _ => return Err(USAGE.into()),
    }
    Ok(kv.ftl().close()?)
}
