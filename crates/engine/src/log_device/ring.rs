//! Files that only grow at their end and are given back from their front, in a ring of bytes.
//!
//! Invariants:
//! 1. *What was not written is zero*: every byte of the ring that lies in no file's window (`from .. end`) is zero,
//!    durably, before it can be written. So bytes of an earlier round are never taken for later ones, and a file reads
//!    as any other file does.
//! 2. *Room is given back before it is used*: what a file no longer needs is made zero, then the header says so, then
//!    others may write there. A power cut in between leaves zeros before `from`, which nobody reads: who gives log back
//!    has made durable that it will not (flush invariant 4).
//! 3. The windows of the files lie one behind the other, and together are no longer than the ring.
//! 4. A write is durable when it returns where the device is memory, and after a sync elsewhere.
//! 5. *What was there when it was opened is durable.* The process that wrote it may have ended before that, or its fence
//!    failed; and the older header, which the next one is written over, may be the only durable one.
//!
//! Lock order: `state` alone. It is held while the header is written, so that nobody uses room before it says so; the
//! bytes of files are copied without it. Only one thread writes a log, and checkpoints write the header rarely.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, Error, LogDevice, Result};

use super::header::{FILES_MAX, Header, RingFile, SECTOR};
use crate::{
    mutant::{Rule, is_broken},
    sync::Mutex,
};

/// The two slots of the header.
const SLOTS: [u64; 2] = [0, 4096];
/// Where the ring begins.
pub(super) const RING_START: u64 = 8192;
/// Bytes that are looked at, or made zero, at a time.
const PIECE_BYTES: usize = 64 << 10;

pub(super) struct Ring {
    pub(super) device: Arc<dyn LogDevice>,
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    header: Header,
    /// Where the written bytes of each file end.
    ends: Vec<u64>,
}

impl State {
    /// First byte of the ring, counted without end, that is in use.
    fn oldest(&self) -> u64 {
        self.header.files.first().map_or(0, |file| file.base + file.from)
    }

    /// Where the last written byte is.
    fn newest(&self) -> u64 {
        let file = self.header.files.last();
        file.map_or(0, |file| file.base + self.ends.last().expect("one for each file"))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.header.files.iter().position(|file| file.name == name)
    }

    fn at(&self, name: &str) -> Result<usize> {
        self.position(name).ok_or_else(|| Error::NotFound { name: name.to_owned() })
    }

    fn file(&mut self, name: &str) -> Result<&mut RingFile> {
        let position = self.at(name)?;
        Ok(&mut self.header.files[position])
    }
}

/// A part of the ring that lies in one piece: offset on the device, and length.
fn pieces(ring_bytes: u64, at: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let offset = at % ring_bytes;
    let first = len.min(ring_bytes - offset);
    [(RING_START + offset, first), (RING_START, len - first)].into_iter().filter(|(_, len)| *len > 0)
}

impl Ring {
    /// Wipes the device, and writes a header without files.
    pub(super) fn format(device: Arc<dyn LogDevice>, mut header: Header) -> Result<Ring> {
        header.ring_bytes = (device.capacity_bytes() - RING_START) / SECTOR as u64 * SECTOR as u64;
        let ring = Ring { device, state: Mutex::new(State { header, ends: Vec::new() }) };
        ring.wipe(0, RING_START)?;
        let ring_bytes = ring.state.lock().header.ring_bytes;
        ring.clear(ring_bytes, 0, ring_bytes)?;
        ring.change(|_| Ok(()))?;
        Ok(ring)
    }

    /// The newest header on a device.
    pub(super) fn read_header(device: &dyn LogDevice) -> Result<Option<Header>> {
        let mut newest: Option<Header> = None;
        for slot in SLOTS {
            let mut sector = AlignedBuf::zeroed(SECTOR);
            device.read_at(slot, &mut sector)?;
            let Some(header) = Header::of(&sector) else { continue };
            let header = header.map_err(|reason| corrupt(device.name(), slot, reason))?;
            if newest.as_ref().is_none_or(|newest| newest.sequence < header.sequence) {
                newest = Some(header);
            }
        }
        Ok(newest)
    }

    /// Opens what `header`, read from it, says; finds where each file's bytes end.
    pub(super) fn open(device: Arc<dyn LogDevice>, header: Header) -> Result<Ring> {
        let bad = |reason| corrupt(device.name(), 0, reason);
        let fits =
            device.capacity_bytes().checked_sub(RING_START).is_some_and(|most| header.ring_bytes <= most);
        if !fits || header.ring_bytes == 0 || !header.ring_bytes.is_multiple_of(SECTOR as u64) {
            return Err(bad("the ring is longer than the device"));
        }
        let ring = Ring { device, state: Mutex::new(State { header, ends: Vec::new() }) };
        let header = ring.state.lock().header.clone();
        let limit = header.files.first().map_or(0, |file| file.base + file.from) + header.ring_bytes;
        let mut ends = Vec::new();
        for (number, file) in header.files.iter().enumerate() {
            let behind = header.files.get(number + 1).map_or(limit, |next| next.base + next.from);
            let start = file.base + file.from;
            let is_in_order = start <= behind && behind <= limit && file.base <= behind;
            if !is_in_order {
                return Err(corrupt(ring.device.name(), 0, "files of the log overlap"));
            }
            ends.push(ring.written_end(header.ring_bytes, start, behind)? - file.base);
        }
        let mut state = ring.state.lock();
        for (file, end) in state.header.files.iter_mut().zip(&ends) {
            // The newer header may be damaged, and the older one not know how long the file has become.
            file.bytes = file.bytes.max(*end);
        }
        state.ends = ends;
        drop(state);
        ring.settle(header.sequence, header.ring_bytes)?;
        Ok(ring)
    }

    /// Makes durable what was found (invariant 5): the header with number `sequence`, and all of the ring, zeros too.
    fn settle(&self, sequence: u64, ring_bytes: u64) -> Result<()> {
        if is_broken(Rule::FoundLogSettled) {
            return Ok(());
        }
        self.device.write_back(RING_START, ring_bytes)?;
        let at = SLOTS[(sequence % 2) as usize];
        let mut sector = AlignedBuf::zeroed(SECTOR);
        self.device.read_at(at, &mut sector)?;
        self.device.persist(at, &sector)
    }

    /// Where the last sector lies, of those from `start` to `end`, that is not zero.
    fn written_end(&self, ring_bytes: u64, start: u64, end: u64) -> Result<u64> {
        let mut buffer = AlignedBuf::zeroed(PIECE_BYTES);
        let mut at = end;
        while at > start {
            let len = (at - start).min(PIECE_BYTES as u64);
            self.read_ring(ring_bytes, at - len, &mut buffer[..len as usize])?;
            let sectors = buffer[..len as usize].chunks(SECTOR);
            if let Some(last) = sectors.rev().position(|sector| sector.iter().any(|byte| *byte != 0)) {
                return Ok((at.next_multiple_of(SECTOR as u64) - (last * SECTOR) as u64).max(start));
            }
            at -= len;
        }
        Ok(start)
    }

    fn read_ring(&self, ring_bytes: u64, at: u64, mut buf: &mut [u8]) -> Result<()> {
        for (offset, len) in pieces(ring_bytes, at, buf.len() as u64) {
            let (now, later) = buf.split_at_mut(len as usize);
            self.device.read_at(offset, now)?;
            buf = later;
        }
        Ok(())
    }

    /// Makes a part of the device zero, where it is not: reading memory is cheaper than writing it back.
    fn wipe(&self, mut offset: u64, mut len: u64) -> Result<()> {
        let (mut buffer, zeros) = (AlignedBuf::zeroed(PIECE_BYTES), AlignedBuf::zeroed(PIECE_BYTES));
        while len > 0 {
            let piece = len.min(PIECE_BYTES as u64);
            let buffer = &mut buffer[..piece as usize];
            self.device.read_at(offset, buffer)?;
            if buffer.iter().any(|byte| *byte != 0) {
                self.device.write_at(offset, &zeros[..piece as usize])?;
                self.device.write_back(offset, piece)?;
            }
            (offset, len) = (offset + piece, len - piece);
        }
        Ok(())
    }

    /// Makes a part of the ring zero, durably.
    fn clear(&self, ring_bytes: u64, at: u64, len: u64) -> Result<()> {
        if is_broken(Rule::FreedLogIsZero) {
            return Ok(());
        }
        pieces(ring_bytes, at, len).try_for_each(|(offset, len)| self.wipe(offset, len))?;
        self.device.fence()
    }

    /// Changes the header, durably; if that fails, not at all: the next change goes to the same slot.
    fn change(&self, change: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        let mut changed = state.clone();
        change(&mut changed)?;
        changed.header.sequence += 1;
        let mut sector = AlignedBuf::zeroed(SECTOR);
        sector.copy_from_slice(&changed.header.to_sector());
        self.device.persist(SLOTS[(changed.header.sequence % 2) as usize], &sector)?;
        *state = changed;
        Ok(())
    }

    pub(super) fn set_opens(&self, opens: u64) -> Result<()> {
        self.change(|state| {
            state.header.pair.opens = opens;
            Ok(())
        })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.state.lock().header.files.iter().map(|file| file.name.clone()).collect()
    }

    pub(super) fn create(&self, name: &str) -> Result<()> {
        let full = self.state.lock().header.files.len() == FILES_MAX;
        if full || !Header::takes_name(name) {
            return Err(Error::Unsupported { what: self.name(name), operation: "one more file of the log" });
        }
        self.change(|state| {
            let base = state.newest().next_multiple_of(SECTOR as u64);
            state.header.files.push(RingFile { name: name.to_owned(), base, from: 0, bytes: 0 });
            state.ends.push(0);
            Ok(())
        })
    }

    /// Removes a file that is the oldest, or has nothing.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.give_back(name, u64::MAX)?;
        self.change(|state| {
            let position = state.at(name)?;
            state.header.files.remove(position);
            state.ends.remove(position);
            Ok(())
        })
    }

    /// Length in bytes.
    pub(super) fn bytes(&self, name: &str) -> Result<u64> {
        let state = self.state.lock();
        Ok(state.header.files[state.at(name)?].bytes)
    }

    /// Invariant 2: makes what the file has before `to` zero, then notes that it is gone.
    pub(super) fn give_back(&self, name: &str, to: u64) -> Result<()> {
        let (ring_bytes, file, end) = self.file(name)?;
        let to = to.min(end.max(file.from));
        if to <= file.from {
            return Ok(());
        }
        self.clear(ring_bytes, file.base + file.from, to - file.from)?;
        self.change(|state| {
            state.file(name)?.from = to;
            Ok(())
        })
    }

    fn file(&self, name: &str) -> Result<(u64, RingFile, u64)> {
        let state = self.state.lock();
        let position = state.at(name)?;
        Ok((state.header.ring_bytes, state.header.files[position].clone(), state.ends[position]))
    }

    /// What lies behind the new length is zero, also once the file is longer again.
    pub(super) fn set_len(&self, name: &str, len: u64) -> Result<()> {
        let (ring_bytes, file, end) = self.file(name)?;
        let kept = len.max(file.from);
        if kept < end {
            self.clear(ring_bytes, file.base + kept, end - kept)?;
        }
        self.change(|state| {
            let position = state.at(name)?;
            state.header.files[position].bytes = len;
            state.ends[position] = end.min(kept);
            Ok(())
        })
    }

    pub(super) fn read(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (ring_bytes, file, end) = self.file(name)?;
        if offset < file.from && !buf.is_empty() {
            let reason =
                format!("given back up to byte {}: the rest of the store is older than that", file.from);
            return Err(Error::Corrupt { what: self.name(name), at: offset, reason });
        }
        let there = end.saturating_sub(offset).min(buf.len() as u64);
        let (written, behind) = buf.split_at_mut(there as usize);
        behind.fill(0);
        self.read_ring(ring_bytes, file.base + offset, written)
    }

    /// Invariants 3 and 4.
    pub(super) fn write(&self, name: &str, offset: u64, mut data: &[u8]) -> Result<()> {
        let (ring_bytes, file, _) = self.file(name)?;
        let range = || Error::BadRange { what: self.name(name), offset, len: data.len() as u64 };
        let end = offset.checked_add(data.len() as u64).ok_or_else(range)?;
        if offset < file.from || !(offset | end).is_multiple_of(SECTOR as u64) {
            return Err(range());
        }
        let at = file.base + offset;
        if at + data.len() as u64 > self.state.lock().oldest() + ring_bytes {
            return Err(Error::Full { what: self.name(name) });
        }
        if end > file.bytes {
            self.change(|state| {
                state.file(name)?.bytes = end;
                Ok(())
            })?;
        }
        for (offset, len) in pieces(ring_bytes, at, data.len() as u64) {
            let (now, later) = data.split_at(len as usize);
            self.device.write_at(offset, now)?;
            if !is_broken(Rule::LogWrittenBack) {
                self.device.write_back(offset, len)?;
            }
            data = later;
        }
        if self.device.unit_bytes() == 1 && !is_broken(Rule::LogFenced) {
            self.device.fence()?;
        }
        let mut state = self.state.lock();
        let position = state.at(name)?;
        state.ends[position] = state.ends[position].max(end);
        Ok(())
    }

    /// Bytes of the range that were written and not given back.
    pub(super) fn allocated(&self, name: &str, offset: u64, len: u64) -> Result<u64> {
        let (_, file, end) = self.file(name)?;
        Ok(end.min(offset.saturating_add(len)).saturating_sub(offset.max(file.from)))
    }

    pub(super) fn sync(&self) -> Result<()> {
        match self.device.unit_bytes() {
            1 => Ok(()), // durable already, by invariant 4
            _ => self.device.fence(),
        }
    }

    /// Bytes of log that it has space for.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.state.lock().header.ring_bytes
    }

    fn name(&self, file: &str) -> String {
        format!("{}: {file}", self.device.name())
    }
}

/// A header, and the ring that it describes; see the module fuzz.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    const BYTES: u64 = 128 << 10;
    let mut sector = [0; SECTOR];
    let (header, ring) = bytes.split_at(bytes.len().min(SECTOR));
    sector[..header.len()].copy_from_slice(header);
    let Some(mut header) = super::header::fuzz(&sector) else { return };
    if header.ring_bytes > BYTES - RING_START {
        header.ring_bytes = BYTES - RING_START;
    }
    let device = lacuna_device::MappedMemory::anonymous(BYTES as usize).expect("memory");
    device.write_at(SLOTS[0], &header.to_sector()).expect("fits");
    device.write_at(RING_START, &ring[..ring.len().min((BYTES - RING_START) as usize)]).expect("fits");
    assert_eq!(Ring::read_header(&device).expect("memory"), Some(header.clone()));
    let Ok(ring) = Ring::open(Arc::new(device), header.clone()) else { return };
    for RingFile { name, from, .. } in &header.files {
        let end = from + ring.allocated(name, 0, u64::MAX).expect("there");
        let mut buf = [0; 2 * SECTOR];
        let _ = ring.read(name, end.saturating_sub(SECTOR as u64), &mut buf);
        let _ = ring.write(name, end / SECTOR as u64 * SECTOR as u64, &[3; SECTOR]);
        let _ = ring.set_len(name, end);
        let _ = ring.give_back(name, end);
        let _ = ring.remove(name);
    }
}

fn corrupt(device: &str, at: u64, reason: &str) -> Error {
    Error::Corrupt { what: format!("{device}: log device"), at, reason: reason.into() }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use lacuna_device::MappedMemory;
    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;
    use crate::log_device::header::Pair;

    /// Forged headers with a right checksum are refused, or give a ring that works or reports errors.
    #[test]
    fn forged_headers_harm_nobody() {
        let (mut opened, mut refused) = (0, 0);
        for_each_seed(2000, |seed| {
            let mut rng = SeededRng::new(seed);
            let device: Arc<dyn LogDevice> = Arc::new(MappedMemory::anonymous(1 << 20).expect("memory"));
            let mut any = |usual: u64| match rng.below(24) {
                0 => (1 << 62) - 1 - rng.below(3),
                1 => 1 << (9 + rng.below(53)),
                2 => rng.below(1 << 22),
                _ => usual + 512 * rng.below(64),
            };
            let files = (0..1 + seed % 4).map(|number| {
                let (base, from, bytes) = (any(number << 16), any(0), any(1 << 26));
                RingFile { name: format!("wal.{number:06}"), base, from, bytes }
            });
            let files = files.collect();
            let ring_bytes = if any(0) > 1 << 15 { any(0) } else { (1 << 20) - RING_START };
            let header = Header { pair: Pair { id: [1; 16], opens: 1 }, sequence: 1, ring_bytes, files };
            device.persist(0, &header.to_sector()).expect("write");
            device.persist(RING_START + 5000, &[7; 100]).expect("write");
            let header = Ring::read_header(&*device).expect("read").expect("whole");
            let Ok(ring) = Ring::open(device, header.clone()) else { return refused += 1 };
            opened += 1;
            for file in &header.files {
                let end = file.from + ring.allocated(&file.name, 0, u64::MAX).expect("there");
                let mut buf = [0; 1024];
                let _ = ring.read(&file.name, end.saturating_sub(512), &mut buf);
                let _ = ring.write(&file.name, end / 512 * 512, &[3; 512]);
                let _ = ring.set_len(&file.name, end);
                let _ = ring.give_back(&file.name, end);
            }
        });
        assert!(opened > 50 && refused > 50, "{opened} opened, {refused} refused");
    }
}
