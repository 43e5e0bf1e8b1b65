//! The keys of an engine with encrypted tables.
//!
//! A person's or machine's *secret* opens a slot of a key block, which holds the engine's key: as in an encrypted store
//! (`lacuna-crypt`), up to eight secrets, which come and go without a change of anything else. The engine's key encrypts
//! no data. It wraps data keys: one for each encrypted table, one for the undo file, one for the log. A data key is
//! random and never changes; it goes with its table.
//!
//! Two files hold the same: [`NAMES`]. In each, the key block is followed by entries, a sector for each wrapped key.
//!
//! Invariants:
//!
//! 1. A change is written to the first file, synced, then to the other, synced. So one copy is whole at any time: the
//!    other is synced before the first is written, as a killed process may have left it in a cache. Each copy of an
//!    entry counts, and of the key blocks the one with the greater number. A key whose sector another one takes is in
//!    both files elsewhere before that. Before recovery encrypts anything it writes anew what the files do not both have:
//!    a process may have ended before its sync, and left it in a cache.
//! 2. A key is durable before anything is encrypted with it, and is wiped only once nothing that it encrypted is left:
//!    a table's after its file. A crash in between leaves a key of no table, which the next opening wipes.
//! 3. A data key is for one table of one engine: both are authenticated with it. Numbers of tables are given once.
//!
//! What is encrypted how:
//!
//! - Pages: `lacuna_page::PageCipher`. Also in the doublewrite file, which holds images as they are. Undo pages hold
//!   keys and values of all tables, so all of them are.
//! - The log: `wal::format`. The log of an engine that has a key is encrypted as a whole: most of its records name
//!   undo pages, which mix tables.
//! - Names of tables, the catalog, lengths, and which page was written when are not.
//!
//! The lock is a leaf, held across I/O; only making and dropping tables take it. [`CHANGES`] is another one: secrets
//! change one at a time, in a store that is open or not. The lock of the VFS keeps other processes out.

mod format;

#[cfg(test)]
pub(crate) use format::LAYOUT;
#[cfg(feature = "fuzzing")]
pub(crate) use format::fuzz;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    sync::Arc,
};

use lacuna_crypt::{
    KEY_BLOCK_BYTES, KeyBlock, KeyChange, Secret, SectorCipher, SlotInfo, VolumeKey, WRAPPED_KEY_BYTES,
};
use lacuna_device::{AlignedBuf, File, StreamHint, Vfs};
use lacuna_page::PageCipher;
use zerocopy::IntoBytes;

use crate::{
    mutant::{Rule, is_broken},
    sync::Mutex,
    types::{EngineKey, Error, Result, TableId},
};
use format::{ENTRIES_AT, ENTRIES_MAX, SECTOR};

/// The files.
pub(crate) const NAMES: [&str; 2] = ["keys", "keys-copy"];
/// In the place of a table: the log's key. Users' tables have greater numbers.
pub(crate) const LOG_KEY: TableId = TableId(2);
/// Keys that the store has from the beginning: that of the undo file, and the log's.
const SYSTEM_KEYS: [TableId; 2] = [TableId(1), LOG_KEY];

/// The cipher of a table, of undo or of the log.
pub(crate) struct DataCipher(SectorCipher);

impl PageCipher for DataCipher {
    fn encrypt(&self, tweak: u128, data: &mut [u8]) {
        if !is_broken(Rule::DataEncrypted) {
            self.0.encrypt_units(tweak, data);
        }
    }

    fn decrypt(&self, tweak: u128, data: &mut [u8]) {
        if !is_broken(Rule::DataEncrypted) {
            self.0.decrypt_units(tweak, data);
        }
    }
}

/// The open key files.
pub(crate) struct Keys {
    vfs: Arc<dyn Vfs>,
    uuid: [u8; 16],
    root: VolumeKey,
    entries: Mutex<Entries>,
}

/// What the files hold.
#[derive(Default)]
struct Entries {
    /// Of each table that has a key, the entry that counts.
    keys: BTreeMap<TableId, Entry>,
    /// Sectors with other entries of these tables, which nothing has made.
    strays: BTreeSet<usize>,
    /// Sectors for keys whose own may be taken by another table's.
    moved: BTreeSet<usize>,
}

/// The key of a table.
struct Entry {
    /// Its sector.
    number: usize,
    wrapped: [u8; WRAPPED_KEY_BYTES],
    /// None when the key does not open.
    cipher: Option<Arc<DataCipher>>,
}

/// Held while the key block is read and written anew.
static CHANGES: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// Where a sector lies in the files, and what it is to hold.
fn sector_of(number: usize, entry: Option<(TableId, &[u8; WRAPPED_KEY_BYTES])>) -> (u64, AlignedBuf) {
    let mut sector = AlignedBuf::zeroed(SECTOR);
    if let Some((table, wrapped)) = entry {
        let raw = format::encode(table, *wrapped);
        sector[..size_of_val(&raw)].copy_from_slice(raw.as_bytes());
    }
    (ENTRIES_AT + (number * SECTOR) as u64, sector)
}

fn full(vfs: &dyn Vfs) -> Error {
    Error::Full { what: format!("{}: {}", vfs.name(), NAMES[0]), history_bytes: 0 }
}

fn refused(vfs: &dyn Vfs, reason: lacuna_crypt::Error) -> Error {
    Error::Key { what: vfs.name().to_owned(), reason }
}

impl Keys {
    /// Makes the files of an engine that has none, or none that ever counted, with `key` in the first slot; durable on
    /// return. Until the control file says so they do not count.
    pub(crate) fn create(vfs: &Arc<dyn Vfs>, key: &EngineKey) -> Result<()> {
        let (block, root) = KeyBlock::create(random_uuid()?, &key.secret, &key.slot)
            .map_err(|reason| refused(&**vfs, reason))?;
        for name in NAMES {
            match vfs.create(name, StreamHint::Data) {
                Ok(_) | Err(lacuna_device::Error::Exists { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        vfs.sync()?;
        for file in files(&**vfs)?.into_iter().flatten() {
            file.set_len(0)?;
            file.set_len(ENTRIES_AT)?;
        }
        write_block(&**vfs, &block)?;
        let keys =
            Keys { vfs: Arc::clone(vfs), uuid: block.uuid(), root, entries: Mutex::new(Entries::default()) };
        SYSTEM_KEYS.iter().try_for_each(|table| keys.make(*table).map(drop))
    }

    /// Opens the files with a secret.
    pub(crate) fn open(vfs: &Arc<dyn Vfs>, secret: &Secret) -> Result<Keys> {
        let block = load_block(&**vfs)?;
        let (_, root) = block.unlock(secret).map_err(|reason| refused(&**vfs, reason))?;
        let uuid = block.uuid();
        let mut entries = Entries::default();
        let mut found = Vec::new();
        for file in files(&**vfs)?.into_iter().flatten() {
            let sectors = (file.len()?.saturating_sub(ENTRIES_AT) / SECTOR as u64).min(ENTRIES_MAX as u64);
            let mut sector = AlignedBuf::zeroed(SECTOR);
            for number in 0..sectors as usize {
                file.read_at(ENTRIES_AT + (number * SECTOR) as u64, &mut sector)?;
                let Some((table, wrapped)) = format::parse(&sector) else { continue };
                let key = root.unwrap(&wrapped, &format::context(&uuid, table));
                let cipher = key.map(|key| Arc::new(DataCipher(key.cipher())));
                found.push((number, table));
                if entries.keys.get(&table).is_none_or(|known| known.cipher.is_none()) {
                    entries.keys.insert(table, Entry { number, wrapped, cipher });
                }
            }
        }
        // A file that was put back may hold a key that is gone where the other has a newer one.
        let mut counts = BTreeSet::new();
        let used: BTreeSet<usize> = found.iter().map(|(number, _)| *number).collect();
        let mut free = (0..ENTRIES_MAX).filter(|number| !used.contains(number));
        for entry in entries.keys.values_mut() {
            if !counts.insert(entry.number) {
                entry.number = free.next().ok_or_else(|| full(&**vfs))?;
                counts.insert(entry.number);
                entries.moved.insert(entry.number);
            }
        }
        entries.strays =
            found.into_iter().map(|(number, _)| number).filter(|n| !counts.contains(n)).collect();
        Ok(Keys { vfs: Arc::clone(vfs), uuid, root, entries: Mutex::new(entries) })
    }

    /// The cipher of a table; `None` when it has no key, or one that does not open.
    pub(crate) fn cipher(&self, table: TableId) -> Option<Arc<DataCipher>> {
        self.entries.lock().keys.get(&table).and_then(|entry| entry.cipher.clone())
    }

    /// The cipher of the log or of undo, without which the engine cannot be opened.
    pub(crate) fn system_cipher(&self, table: TableId) -> Result<Arc<DataCipher>> {
        self.cipher(table).ok_or_else(|| Error::Corrupt {
            what: format!("{}: {}", self.vfs.name(), NAMES[0]),
            at: table.to_string(),
            reason: "the key of the log or of undo is missing".into(),
        })
    }

    /// Makes a key for a table that has none; durable on return (invariant 2).
    ///
    /// # Errors
    /// [`Error::TableLocked`] where the files have a key for it, which does not open: a table's key never changes.
    pub(crate) fn make(&self, table: TableId) -> Result<Arc<DataCipher>> {
        let mut entries = self.entries.lock();
        if entries.keys.contains_key(&table) {
            return Err(Error::TableLocked { id: table });
        }
        let key = VolumeKey::random().map_err(|reason| refused(&*self.vfs, reason))?;
        let wrapped = self
            .root
            .wrap(&key, &format::context(&self.uuid, table))
            .map_err(|reason| refused(&*self.vfs, reason))?;
        let used: BTreeSet<usize> = entries.keys.values().map(|entry| entry.number).collect();
        let number = (0..).find(|number| !used.contains(number)).expect("there is always another one");
        if number >= ENTRIES_MAX {
            return Err(full(&*self.vfs));
        }
        put_in_both(&*self.vfs, &[sector_of(number, Some((table, &wrapped)))])?;
        let cipher = Arc::new(DataCipher(key.cipher()));
        entries.keys.insert(table, Entry { number, wrapped, cipher: Some(Arc::clone(&cipher)) });
        Ok(cipher)
    }

    /// Wipes the key of a table whose file is gone, durably.
    pub(crate) fn forget(&self, table: TableId) -> Result<()> {
        self.forget_all(&[table])
    }

    /// Wipes the keys of tables that are not there.
    pub(crate) fn forget_others(&self, is_there: impl Fn(TableId) -> bool) -> Result<()> {
        let gone: Vec<TableId> =
            self.entries.lock().keys.keys().copied().filter(|id| !is_there(*id)).collect();
        self.forget_all(&gone)
    }

    fn forget_all(&self, tables: &[TableId]) -> Result<()> {
        let mut entries = self.entries.lock();
        let known = tables.iter().filter_map(|table| entries.keys.get(table));
        let wiped: Vec<_> = known.map(|entry| sector_of(entry.number, None)).collect();
        put_in_both(&*self.vfs, &wiped)?;
        tables.iter().for_each(|table| drop(entries.keys.remove(table)));
        Ok(())
    }

    /// Makes both files hold the same, durably, as they do outside of a change. Nothing may rely on a key before
    /// (invariant 1).
    pub(crate) fn settle(&self) -> Result<()> {
        settle_block(&*self.vfs)?;
        let mut entries = self.entries.lock();
        let files = files(&*self.vfs)?;
        let (mut moved, mut differing) = (Vec::new(), Vec::new());
        let mut found = AlignedBuf::zeroed(SECTOR);
        for (table, entry) in &entries.keys {
            let (at, sector) = sector_of(entry.number, Some((*table, &entry.wrapped)));
            let mut is_same = true;
            for file in &files {
                match file {
                    Some(file) => read_or_zeros(&**file, at, &mut found)?,
                    None => found.fill(0),
                }
                is_same &= *found == *sector;
            }
            match entries.moved.contains(&entry.number) {
                _ if is_same => {}
                true => moved.push((at, sector)),
                false => differing.push((at, sector)),
            }
        }
        // One file may have a moved key only where the other key of that place comes next.
        put_in_both(&*self.vfs, &moved)?;
        differing.extend(std::mem::take(&mut entries.strays).into_iter().map(|n| sector_of(n, None)));
        put_in_both(&*self.vfs, &differing)
    }
}

/// Writes these bytes to both files (invariant 1).
fn put_in_both(vfs: &dyn Vfs, writes: &[(u64, AlignedBuf)]) -> Result<()> {
    let Some(end) = writes.iter().map(|(at, bytes)| at + bytes.len() as u64).max() else { return Ok(()) };
    // What a killed process wrote there may be in a cache only, and is the one whole copy while the first is written.
    if let [_, Some(copy)] = files(vfs)? {
        copy.sync()?;
    }
    for name in NAMES {
        let file = match vfs.open(name, StreamHint::Data) {
            Err(lacuna_device::Error::NotFound { .. }) => {
                let file = vfs.create(name, StreamHint::Data)?;
                vfs.sync()?;
                file
            }
            other => other?,
        };
        if file.len()? < end {
            file.set_len(end)?;
        }
        for (at, bytes) in writes {
            file.write_at(*at, bytes)?;
        }
        if !is_broken(Rule::KeysSynced) {
            file.sync()?;
        }
    }
    Ok(())
}

fn read_or_zeros(file: &dyn File, at: u64, sector: &mut AlignedBuf) -> Result<()> {
    sector.fill(0);
    if at + sector.len() as u64 <= file.len()? {
        file.read_at(at, sector)?;
    }
    Ok(())
}

/// Those of the files that are there.
fn files(vfs: &dyn Vfs) -> Result<[Option<Arc<dyn File>>; 2]> {
    let mut found = [None, None];
    for (slot, name) in found.iter_mut().zip(NAMES) {
        match vfs.open(name, StreamHint::Data) {
            Err(lacuna_device::Error::NotFound { .. }) => {}
            other => *slot = Some(other?),
        }
    }
    Ok(found)
}

fn read_blocks(vfs: &dyn Vfs) -> Result<Vec<Result<KeyBlock, String>>> {
    let mut blocks = Vec::new();
    for file in files(vfs)? {
        let Some(file) = file else {
            blocks.push(Err("a file is missing".into()));
            continue;
        };
        if file.len()? < ENTRIES_AT {
            blocks.push(Err("a file is too short".into()));
            continue;
        }
        let mut bytes = AlignedBuf::zeroed(KEY_BLOCK_BYTES);
        file.read_at(0, &mut bytes)?;
        blocks.push(KeyBlock::parse(&bytes).map_err(|e| e.to_string()));
    }
    Ok(blocks)
}

/// The key block that counts.
fn load_block(vfs: &dyn Vfs) -> Result<KeyBlock> {
    let (mut newest, mut flaw): (Option<KeyBlock>, _) = (None, None);
    for block in read_blocks(vfs)? {
        match block {
            Ok(block) if newest.as_ref().is_none_or(|known| known.sequence() < block.sequence()) => {
                newest = Some(block);
            }
            Ok(_) => {}
            Err(reason) => flaw = flaw.or(Some(reason)),
        }
    }
    newest.ok_or_else(|| Error::Corrupt {
        what: format!("{}: {}", vfs.name(), NAMES[0]),
        at: "byte 0".into(),
        reason: flaw.unwrap_or_default(),
    })
}

fn write_block(vfs: &dyn Vfs, block: &KeyBlock) -> Result<()> {
    let mut bytes = AlignedBuf::zeroed(KEY_BLOCK_BYTES);
    bytes.copy_from_slice(&block.encode());
    put_in_both(vfs, &[(0, bytes)])
}

/// Writes the key block that counts to both files, unless they hold it.
fn settle_block(vfs: &dyn Vfs) -> Result<()> {
    let _one = CHANGES.lock();
    let newest = load_block(vfs)?;
    let is_settled = read_blocks(vfs)?.iter().all(|block| block.as_ref() == Ok(&newest));
    if is_settled { Ok(()) } else { write_block(vfs, &newest) }
}

/// Changes the secrets; returns the slot that changed. No data is written anew.
pub(crate) fn change(vfs: &dyn Vfs, secret: &Secret, change: &KeyChange<'_>) -> Result<usize> {
    let _one = CHANGES.lock();
    let block = load_block(vfs)?;
    let (block, slot) = block.change(secret, change).map_err(|reason| refused(vfs, reason))?;
    write_block(vfs, &block)?;
    Ok(slot)
}

/// The slots in use.
pub(crate) fn list(vfs: &dyn Vfs) -> Result<Vec<SlotInfo>> {
    Ok(load_block(vfs)?.slots())
}

fn random_uuid() -> Result<[u8; 16]> {
    const SOURCE: &str = "/dev/urandom";
    let mut uuid = [0; 16];
    fs::File::open(SOURCE)
        .and_then(|mut source| source.read_exact(&mut uuid))
        .map_err(|error| lacuna_device::Error::io(SOURCE, error))?;
    Ok(uuid)
}
