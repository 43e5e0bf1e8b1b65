//! The log device as a ring of frames.
//!
//! Frames hold bytes of segments that a flush had to make durable and that were not on the flash yet. They are numbered
//! densely within an epoch of the store, and written in groups, each by one flush. The *mark* in the newer of the two
//! headers says where the first frame begins that may not be on the flash: those before it are *settled*.
//!
//! Invariants:
//! 1. Groups begin at units: lines of memory, or blocks. So no line and no block with a frame that counts is written
//!    again before the frame is settled, and a torn write harms none.
//! 2. A group lies in one piece: where the rest of the ring is too short, it begins at the start of the ring. A reader
//!    looks for the first frame of a group at both places; the number says at which one it is.
//! 3. Frames count from the mark on, in the order of their numbers, up to the first that is not whole. The store's epoch
//!    must be theirs: those of an older epoch were settled when that ended. A group is begun when the one before is
//!    durable, so a frame of a later group behind the end is no torn write but damage.
//! 4. A header is written where the older one was, and made durable before any place is used again that only it frees.
//!    The newer one is durable by then: the one that opening found may have been on its way when its process ended, or
//!    its sync failed, so it is written again first.
//! 5. An opening is in a header, durably, before the superblock names its epoch. So a log device without the epoch that
//!    the superblock names is an older copy.

use std::{collections::BTreeMap, sync::Arc};

use lacuna_device::{self as device, AlignedBuf, Filled, LogDevice};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::heads::Heads;
use crate::{
    Error, Result, Seq,
    addr::SegNo,
    format::{
        FRAME_BYTES, FRAME_CRC_END, Frame, FrameRaw, GROUP_UNIT_MIN, LOG_HEADERS, LogHeader, LogHeaderRaw,
        LogRef, RING_START,
    },
    mutant::{Rule, is_broken},
};

/// The smallest log device, in bytes.
const LOG_BYTES_MIN: u64 = 2 * RING_START;
/// Bytes at its start in which a log device is looked at for data that would be destroyed.
const LOOK_BYTES: u64 = 1 << 20;

/// A log device that belongs to an open store.
pub(crate) struct Ring {
    device: Arc<dyn LogDevice>,
    /// The same in all headers.
    uuid: [u8; 16],
    log_id: [u8; 16],
    salt: u32,
    unit_bytes: u64,
    /// Of the ring.
    bytes: u64,
}

/// Bytes of a segment, in a frame or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) segment: SegNo,
    pub(crate) generation: u64,
    /// Offset in the segment.
    pub(crate) start: usize,
    pub(crate) bytes: Vec<u8>,
}

/// What the frames that count hold.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Logged {
    /// In order; those of one life of a segment follow each other, or overlap.
    pub(crate) runs: Vec<Run>,
    /// Every batch up to this one was acknowledged, or could have been.
    pub(crate) acknowledged: Seq,
    /// Frames.
    pub(crate) frames: u64,
}

/// The bytes of one segment in a group.
pub(crate) struct Part {
    pub(crate) segment: SegNo,
    pub(crate) generation: u64,
    pub(crate) start: usize,
    pub(crate) bytes: Filled,
}

/// Where a group goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// See [`LogHeader::position`]; begins a unit, and the whole group fits in before the end of the ring.
    pub(crate) position: u64,
    /// Number of its first frame.
    pub(crate) number: u64,
}

fn refused(device: &dyn LogDevice, reason: impl Into<String>) -> Error {
    Error::LogDevice { device: device.name().into(), reason: reason.into() }
}

/// What a log device is for a new store, which has no frame yet: its reference. With `force` whatever it holds is lost.
pub(crate) fn format(device: &dyn LogDevice, uuid: [u8; 16], id: [u8; 16], force: bool) -> Result<LogRef> {
    let unit_bytes = unit_of(device)?;
    let capacity_bytes = device.capacity_bytes() / unit_bytes * unit_bytes;
    if capacity_bytes < LOG_BYTES_MIN {
        return Err(refused(device, format!("{capacity_bytes} bytes are too few; at least {LOG_BYTES_MIN}")));
    }
    let mut start = vec![0; LOOK_BYTES.min(capacity_bytes) as usize];
    device.read_at(0, &mut start)?;
    if let Some(at) = start.iter().position(|byte| *byte != 0).filter(|_| !force) {
        let holds = match headers(device)?.is_empty() {
            true => format!("foreign data at byte {at}"),
            false => "the log of a Lacuna store".to_owned(),
        };
        return Err(Error::NotEmpty { device: device.name().into(), holds });
    }
    let header = LogHeader {
        uuid,
        log_id: id,
        sequence: 1,
        epoch: 0,
        frame_next: 0,
        position: 0,
        settled_seq: Seq(0),
        capacity_bytes,
        unit_bytes: unit_bytes as u32,
        opening: Some(0),
    };
    for sequence in [1, 2] {
        put(device, &LogHeader { sequence, ..header })?;
    }
    Ok(LogRef { id, capacity_bytes })
}

/// Whether `device` was to be the log device of the store `uuid`, but never got that far: the store names another one, or
/// none.
pub(crate) fn was_left(device: &dyn LogDevice, uuid: [u8; 16], named: Option<LogRef>) -> Result<bool> {
    let headers = headers(device)?;
    let is_left = |header: &LogHeader| {
        header.uuid == uuid && header.epoch == 0 && named.is_none_or(|named| named.id != header.log_id)
    };
    Ok(!headers.is_empty() && headers.iter().all(is_left))
}

/// The unit of groups on `device`.
fn unit_of(device: &dyn LogDevice) -> Result<u64> {
    let unit = device.unit_bytes().max(GROUP_UNIT_MIN);
    match u64::from(unit) <= RING_START / 4 {
        true => Ok(unit.into()),
        false => Err(refused(device, format!("blocks of {unit} bytes are too large"))),
    }
}

/// The valid headers on `device`. One that cannot be read is as bad as one that is damaged.
fn headers(device: &dyn LogDevice) -> Result<Vec<LogHeader>> {
    let (mut found, mut failure) = (Vec::new(), None);
    for at in LOG_HEADERS {
        let mut raw = LogHeaderRaw::new_zeroed();
        match device.read_at(at, raw.as_mut_bytes()) {
            Ok(()) => found.extend(raw.verify().ok()),
            // It is too short for one.
            Err(device::Error::BadRange { .. }) => {}
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if found.is_empty() => Err(error.into()),
        _ => Ok(found),
    }
}

/// Makes `header` durable in the place of the older one.
fn put(device: &dyn LogDevice, header: &LogHeader) -> device::Result<()> {
    let unit = header.unit_bytes.max(device.unit_bytes());
    let mut block = AlignedBuf::zeroed(header_bytes(unit.into()));
    block[..size_of::<LogHeaderRaw>()].copy_from_slice(header.to_raw().as_bytes());
    device.persist(header_at(header.sequence), &block)
}

fn header_at(sequence: u64) -> u64 {
    LOG_HEADERS[(sequence % 2) as usize]
}

/// Bytes that are written of a header.
fn header_bytes(unit_bytes: u64) -> usize {
    size_of::<LogHeaderRaw>().next_multiple_of(unit_bytes as usize)
}

/// The log device of the store `uuid`, which it knows as `log`, and the newest header on it.
pub(crate) fn load(device: Arc<dyn LogDevice>, uuid: [u8; 16], log: LogRef) -> Result<(Ring, LogHeader)> {
    let Some(header) = headers(&*device)?.into_iter().max_by_key(|header| header.sequence) else {
        return Err(refused(&*device, "it holds no log of a Lacuna store"));
    };
    if header.uuid != uuid {
        return Err(refused(&*device, "it holds the log of another store"));
    }
    if header.log_id != log.id {
        return Err(refused(
            &*device,
            "it belongs to an earlier state of this store, which has gone on without it",
        ));
    }
    let capacity = device.capacity_bytes();
    if header.capacity_bytes > capacity {
        let reason = format!("truncated: it had {} bytes, {capacity} are there", header.capacity_bytes);
        return Err(refused(&*device, reason));
    }
    let unit_bytes = unit_of(&*device)?;
    let bytes = (header.capacity_bytes - RING_START) / unit_bytes * unit_bytes;
    let ring = Ring { uuid, log_id: log.id, salt: header.salt(), unit_bytes, bytes, device };
    Ok((ring, header))
}

impl Ring {
    pub(crate) fn name(&self) -> String {
        self.device.name().to_owned()
    }

    pub(crate) fn is_volatile(&self) -> bool {
        self.device.is_volatile()
    }

    /// Bytes of the ring.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where a group of `bytes` goes that follows `position`, and where the next one then goes.
    pub(crate) fn place(&self, position: u64, bytes: u64) -> (u64, u64) {
        let len = bytes.next_multiple_of(self.unit_bytes);
        let left = self.bytes - position % self.bytes;
        let start = if len > left { position + left } else { position };
        (start, start + len)
    }

    /// Makes durable that the store is about to begin `epoch`, in the newest `header`, which otherwise stays what it is:
    /// until then the frames count that it leads to, as they were laid out.
    pub(crate) fn announce(&self, header: &mut LogHeader, epoch: u64) -> device::Result<()> {
        self.renew_header(header.sequence)?;
        *header = LogHeader { sequence: header.sequence + 1, opening: Some(epoch), ..*header };
        match is_broken(Rule::LogOpeningAnnounced) {
            true => Ok(()),
            false => put(&*self.device, header),
        }
    }

    /// Writes the header with number `sequence`, the newest one, again as it is.
    fn renew_header(&self, sequence: u64) -> device::Result<()> {
        if is_broken(Rule::LogHeaderRenewed) {
            return Ok(());
        }
        let at = header_at(sequence);
        let mut block = AlignedBuf::zeroed(header_bytes(self.unit_bytes));
        self.device.read_at(at, &mut block)?;
        self.device.persist(at, &block)
    }

    /// Makes `mark` durable.
    pub(crate) fn put_mark(&self, mark: Mark) -> device::Result<()> {
        put(&*self.device, &self.header(mark))
    }

    fn header(&self, mark: Mark) -> LogHeader {
        LogHeader {
            uuid: self.uuid,
            log_id: self.log_id,
            sequence: mark.sequence,
            epoch: mark.epoch,
            frame_next: mark.frame_next,
            position: mark.position,
            settled_seq: mark.settled_seq,
            capacity_bytes: RING_START + self.bytes,
            unit_bytes: self.unit_bytes as u32,
            opening: Some(mark.epoch),
        }
    }

    /// Makes `parts` durable as a group at `place`, which acknowledges all batches up to `batches`. Parts that follow
    /// each other in a segment share a frame. Returns the number of frames.
    pub(crate) fn write(
        &self,
        place: Place,
        epoch: u64,
        parts: &[Part],
        batches: Seq,
    ) -> device::Result<u64> {
        let mut frames: Vec<(Frame, Vec<&[u8]>)> = Vec::new();
        for part in parts {
            let follows = |frame: &Frame| {
                (frame.segment, frame.generation) == (part.segment, part.generation)
                    && (frame.offset + frame.bytes) as usize == part.start
            };
            let len = part.bytes.len() as u32;
            match frames.iter_mut().find(|(frame, _)| follows(frame)) {
                Some((frame, bytes)) => {
                    frame.bytes += len;
                    bytes.push(&part.bytes);
                }
                None => {
                    let frame = Frame {
                        number: place.number + frames.len() as u64,
                        epoch,
                        segment: part.segment,
                        generation: part.generation,
                        offset: part.start as u32,
                        bytes: len,
                        acknowledged: Seq(0),
                        group: place.number,
                        is_last: false,
                    };
                    frames.push((frame, vec![&part.bytes]));
                }
            }
        }
        if let Some((last, _)) = frames.last_mut() {
            (last.is_last, last.acknowledged) = (true, batches);
        }
        let len: usize = frames.iter().map(|(frame, _)| FRAME_BYTES + frame.bytes as usize).sum();
        let mut group = AlignedBuf::zeroed(len.next_multiple_of(self.unit_bytes as usize));
        let mut at = 0;
        for (frame, bytes) in &frames {
            let end = at + FRAME_BYTES + frame.bytes as usize;
            let mut to = at + FRAME_BYTES;
            for bytes in bytes {
                group[to..to + bytes.len()].copy_from_slice(bytes);
                to += bytes.len();
            }
            frame.seal(self.salt, &mut group[at..end]);
            at = end;
        }
        let at = RING_START + place.position % self.bytes;
        assert!(at + group.len() as u64 <= RING_START + self.bytes, "invariant 2: a group in one piece");
        self.device.write_at(at, &group)?;
        if !is_broken(Rule::LogWrittenBack) {
            self.device.write_back(at, group.len() as u64)?;
        }
        if !is_broken(Rule::LogFenced) {
            self.device.fence()?;
        }
        Ok(frames.len() as u64)
    }

    /// What the frames hold that count from `header` on, for a store of `segments` segments; and the damage behind
    /// them, by 3, or the device's error, or a frame that no store of this size has written.
    pub(crate) fn read(
        &self,
        header: &LogHeader,
        segments: u64,
        segment_bytes: usize,
    ) -> (Logged, Result<()>) {
        let layout = Layout {
            bytes: (header.capacity_bytes - RING_START) / u64::from(header.unit_bytes)
                * u64::from(header.unit_bytes),
            unit_bytes: header.unit_bytes.into(),
        };
        let mut logged = Logged { acknowledged: header.settled_seq, ..Logged::default() };
        let mut runs = BTreeMap::<(SegNo, u64), Vec<Run>>::new();
        let (mut position, mut number, mut begins) = (header.position, header.frame_next, true);
        let mut damage = None;
        loop {
            let mut sealed = |position| match self.sealed(layout, position, number, header.epoch) {
                Ok(sealed) => sealed,
                Err(error) => {
                    damage = Some(error); // it may be the next frame, or free
                    None
                }
            };
            let mut found = sealed(position);
            if found.is_none() && begins {
                let start = position.next_multiple_of(layout.bytes);
                found = sealed(start);
                position = if found.is_some() { start } else { position };
            }
            let Some(sealed) = found else { break };
            damage = None;
            let raw = FrameRaw::read_from_prefix(&sealed).expect("a head is there").0;
            let frame = match raw.verify(self.salt, &sealed, segments, segment_bytes) {
                Ok(frame) => frame,
                Err("frame checksum does not match") => break,
                Err(flaw) => {
                    damage = Some(self.corrupt(position % layout.bytes, flaw));
                    break;
                }
            };
            position += sealed.len() as u64;
            if frame.is_last {
                position = position.next_multiple_of(layout.unit_bytes);
                logged.acknowledged = logged.acknowledged.max(frame.acknowledged);
            }
            (number, begins) = (number + 1, frame.is_last);
            logged.frames += 1;
            let run = Run {
                segment: frame.segment,
                generation: frame.generation,
                start: frame.offset as usize,
                bytes: sealed[FRAME_BYTES..].to_vec(),
            };
            let of_life = runs.entry((frame.segment, frame.generation)).or_default();
            match of_life.last_mut().filter(|last| last.start + last.bytes.len() == run.start) {
                Some(last) => last.bytes.extend_from_slice(&run.bytes),
                None => of_life.push(run),
            }
        }
        logged.runs = runs.into_values().flatten().collect();
        let beyond = || self.later_group(layout, number, header.epoch, segments, segment_bytes);
        let missing = |at| self.corrupt(at, format!("frame {number} was durable and is not there"));
        let intact = damage.or_else(|| beyond().map(missing)).map_or(Ok(()), Err);
        (logged, intact)
    }

    /// Whether the log device holds `mark`, and behind it all frames up to the one with number `frames`.
    pub(crate) fn check(&self, mark: Mark, frames: u64, segments: u64, segment_bytes: usize) -> Result<()> {
        let expected = self.header(mark);
        if !headers(&*self.device)?.contains(&expected) {
            return Err(
                self.corrupt_at(LOG_HEADERS[(mark.sequence % 2) as usize], "not the header that was written")
            );
        }
        let (logged, intact) = self.read(&expected, segments, segment_bytes);
        let found = mark.frame_next + logged.frames;
        if found >= frames {
            return Ok(()); // what lies behind may be on its way just now
        }
        intact?;
        Err(self.corrupt(mark.position % self.bytes, format!("frame {found} is not there")))
    }

    fn corrupt_at(&self, at: u64, reason: &str) -> Error {
        Error::Corrupt { what: format!("{}, log device", self.name()), at, reason: reason.into() }
    }

    fn corrupt(&self, at: u64, reason: impl Into<String>) -> Error {
        let what = format!("{}, frame", self.name());
        Error::Corrupt { what, at: RING_START + at, reason: reason.into() }
    }

    /// Where in the ring a group begins that was written after frame `number` was durable. What cannot be read is passed
    /// over: most of the ring is free. Data in there may look like the heads of such groups, and somebody may have made it
    /// so, at each unit: each costs a step and no read.
    fn later_group(
        &self,
        layout: Layout,
        number: u64,
        epoch: u64,
        segments: u64,
        segment_bytes: usize,
    ) -> Option<u64> {
        const WINDOW_BYTES: u64 = 1 << 20;
        const UNREADABLE_BYTES: usize = 16 << 10;
        let mut window = Vec::new();
        let mut heads = Heads::from(0);
        for start in (0..layout.bytes).step_by(WINDOW_BYTES as usize) {
            window.resize(WINDOW_BYTES.min(layout.bytes - start) as usize, 0);
            if self.device.read_at(RING_START + start, &mut window).is_err() {
                for (unit, at) in window.chunks_mut(UNREADABLE_BYTES).zip((start..).step_by(UNREADABLE_BYTES))
                {
                    if self.device.read_at(RING_START + at, unit).is_err() {
                        unit.fill(0);
                    }
                }
            }
            let mut passed = 0;
            for at in (0..window.len()).step_by(layout.unit_bytes as usize) {
                let raw = FrameRaw::read_from_prefix(&window[at..]).expect("a unit holds a head").0;
                let is_later = |frame: Frame| frame.epoch == epoch && frame.group > number;
                if !raw.is_claimed() || !raw.parse(segments, segment_bytes).is_ok_and(is_later) {
                    continue;
                }
                let sealed_from = at + FRAME_CRC_END;
                if let Some(found) = heads.pass(&window[passed..sealed_from]).next() {
                    return Some(found);
                }
                passed = sealed_from;
                let head = start + at as u64;
                heads.meet(head + raw.sealed_len(), raw.crc_at_end(self.salt, heads.crc()), head);
            }
            if let Some(found) = heads.pass(&window[passed..]).next() {
                return Some(found);
            }
        }
        None
    }

    /// Head and bytes of what looks like frame `number` at `position`.
    fn sealed(&self, layout: Layout, position: u64, number: u64, epoch: u64) -> Result<Option<Vec<u8>>> {
        let at = position % layout.bytes;
        let left = layout.bytes - at;
        if left < FRAME_BYTES as u64 {
            return Ok(None);
        }
        let mut raw = FrameRaw::new_zeroed();
        self.device.read_at(RING_START + at, raw.as_mut_bytes())?;
        let Some(len) = raw.sealed_bytes(number, epoch, left) else { return Ok(None) };
        let mut sealed = vec![0; len];
        self.device.read_at(RING_START + at, &mut sealed)?;
        Ok(Some(sealed))
    }
}

/// How a ring was laid out when its header was written: its device may have other blocks now.
#[derive(Clone, Copy)]
struct Layout {
    bytes: u64,
    unit_bytes: u64,
}

/// What changes in a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) sequence: u64,
    pub(crate) epoch: u64,
    pub(crate) frame_next: u64,
    pub(crate) position: u64,
    pub(crate) settled_seq: Seq,
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use lacuna_device::MappedMemory;

    use super::*;

    /// Memory that counts the bytes that are read of it.
    struct Counting(MappedMemory, AtomicU64);

    impl LogDevice for Counting {
        fn name(&self) -> &str {
            self.0.name()
        }

        fn capacity_bytes(&self) -> u64 {
            self.0.capacity_bytes()
        }

        fn unit_bytes(&self) -> u32 {
            self.0.unit_bytes()
        }

        fn is_volatile(&self) -> bool {
            self.0.is_volatile()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> device::Result<()> {
            self.1.fetch_add(buf.len() as u64, Relaxed);
            self.0.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, data: &[u8]) -> device::Result<()> {
            self.0.write_at(offset, data)
        }

        fn write_back(&self, offset: u64, len: u64) -> device::Result<()> {
            self.0.write_back(offset, len)
        }

        fn fence(&self) -> device::Result<()> {
            self.0.fence()
        }
    }

    const BYTES: usize = 1 << 20;
    const SEGMENT_BYTES: usize = 64 << 10;

    fn counting() -> (Arc<Counting>, Ring, LogHeader) {
        let device = Arc::new(Counting(MappedMemory::anonymous(BYTES).unwrap(), AtomicU64::new(0)));
        let log = format(&*device, [1; 16], [2; 16], false).unwrap();
        let (ring, header) = load(device.clone(), [1; 16], log).unwrap();
        (device, ring, header)
    }

    /// Like that of frame 5, which takes a segment; its checksum is another.
    fn made_head(ring: &Ring, epoch: u64) -> [u8; FRAME_BYTES] {
        let made = Frame {
            number: 5,
            epoch,
            segment: SegNo(1),
            generation: 1,
            offset: 0,
            bytes: SEGMENT_BYTES as u32,
            acknowledged: Seq(9),
            group: 5,
            is_last: true,
        };
        let mut sealed = vec![0; FRAME_BYTES + SEGMENT_BYTES];
        made.seal(ring.salt, &mut sealed);
        sealed[4] ^= 1;
        sealed[..FRAME_BYTES].try_into().unwrap()
    }

    /// A checksum over a segment was read for each of them.
    #[test]
    fn heads_of_frames_that_somebody_made_are_not_verified_without_end() {
        let (device, ring, header) = counting();
        let head = made_head(&ring, header.epoch);
        for at in (RING_START..BYTES as u64).step_by(FRAME_BYTES) {
            device.write_at(at, &head).unwrap();
        }
        device.1.store(0, Relaxed);
        let (logged, intact) = ring.read(&header, 20, SEGMENT_BYTES);
        assert!(logged == Logged::default() && intact.is_ok(), "{intact:?}");
        let read = device.1.load(Relaxed);
        assert!(read <= BYTES as u64, "{read} bytes");
    }

    /// After a few of them a damaged frame was taken for the end of what was flushed.
    #[test]
    fn heads_that_somebody_made_hide_no_later_group() {
        let (device, ring, header) = counting();
        let made = made_head(&ring, header.epoch).repeat(SEGMENT_BYTES / FRAME_BYTES);
        let mut places = Vec::new();
        let (mut position, mut number) = (0, 0);
        for bytes in [&made[..], &[7; 4096], &[8; 4096], &made] {
            let (segment, generation, start) = (SegNo(2), 1, 0);
            let mut buf = AlignedBuf::zeroed(bytes.len());
            buf.copy_from_slice(bytes);
            let part = Part { segment, generation, start, bytes: buf.into() };
            let (at, next) = ring.place(position, (FRAME_BYTES + bytes.len()) as u64);
            number += ring.write(Place { position: at, number }, header.epoch, &[part], Seq(number)).unwrap();
            (position, _) = (next, places.push(RING_START + at));
        }
        let frames = |damaged: u64| {
            let mut byte = [0];
            device.read_at(damaged, &mut byte).unwrap();
            device.write_at(damaged, &[byte[0] ^ 1]).unwrap();
            let (logged, intact) = ring.read(&header, 20, SEGMENT_BYTES);
            device.write_at(damaged, &byte).unwrap();
            (logged.frames, intact.is_ok())
        };
        let [_, second, third, last] = places[..] else { unreachable!() };
        assert_eq!(frames(RING_START - 1), (4, true));
        assert_eq!(frames(second + 100), (1, false));
        assert_eq!(frames(third + 100), (2, false));
        assert_eq!(frames(last + 100), (3, true), "a torn end");
    }
}
