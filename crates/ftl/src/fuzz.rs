//! Entry points for fuzz/: raw bytes, and the same under a valid seal. Not a stable interface.

use std::sync::Arc;

use lacuna_crc::crc32c;
use lacuna_device::{LogDevice, MappedMemory};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{
    Codec, Lba, SECTOR,
    addr::{CHUNK_SECTORS, SegNo, Seq},
    encoding::{ENCODINGS, Encoded, decode},
    format::{
        Life, Live, LogHeader, LogHeaderRaw, LogRef, MAP_INDEX_BYTES, MapIndexRaw, RECORD_HEADER_BYTES,
        RING_START, RecordHeader, RecordHeaderRaw, Root, SEGMENT_LIVE_BYTES, SUMMARY_BYTES, Salt,
        SegmentHeaderRaw, SegmentLiveRaw, SlotContent, SummaryRaw, SuperblockRaw, pack, seal,
    },
    map::Leaf,
    media::ring,
};

const UUID: [u8; 16] = [0; 16];
const SEGMENTS: u32 = 64;
const SEGMENT_BYTES: usize = 1 << 20;

/// `raw` with its checksum recomputed.
fn sealed<T: FromBytes + IntoBytes + Immutable>(raw: &T, first: u32, crc_at: usize) -> T {
    let mut bytes = raw.as_bytes().to_vec();
    let crc = seal(first, &bytes, crc_at);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    T::read_from_bytes(&bytes).expect("as many bytes as before")
}

/// A slot of the superblock.
pub fn superblock(bytes: &[u8]) {
    let Ok((raw, _)) = SuperblockRaw::read_from_prefix(bytes) else { return };
    let _ = raw.verify();
    if let SlotContent::Valid(superblock) = sealed(&raw, 0, 12).verify() {
        assert!(matches!(superblock.to_raw().verify(), SlotContent::Valid(again) if again == superblock));
    }
}

/// The header of a segment; and a summary, given a valid place and length.
pub fn segment_header(bytes: &[u8]) {
    summary(bytes);
    let Ok((raw, _)) = SegmentHeaderRaw::read_from_prefix(bytes) else { return };
    let (salt, segment) = (Salt::of(&UUID), SegNo(1));
    let _ = raw.verify(salt, segment);
    if let Ok(header) = sealed(&raw, crc32c(&UUID), 4).verify(salt, segment) {
        assert_eq!(header.to_raw(salt).verify(salt, segment), Ok(header));
    }
}

fn summary(bytes: &[u8]) {
    let Some(body_bytes) = bytes.len().checked_sub(SUMMARY_BYTES).filter(|len| *len < SEGMENT_BYTES / 2)
    else {
        return;
    };
    let salt = Salt::of(&UUID);
    let life = Life { segment: SegNo(1), generation: 2, epoch: 3 };
    let mut bytes = bytes.to_vec();
    let mut put = |at: usize, field: &[u8]| {
        bytes[body_bytes + at..body_bytes + at + field.len()].copy_from_slice(field);
    };
    put(8, &life.segment.0.to_le_bytes());
    put(12, &(body_bytes as u32).to_le_bytes());
    put(16, &life.generation.to_le_bytes());
    put(24, &life.epoch.to_le_bytes());
    put(36, &[0; 28]);
    put(0, b"LFOP");
    let crc = seal(crc32c(&UUID), &bytes, body_bytes + 4);
    bytes[body_bytes + 4..body_bytes + 8].copy_from_slice(&crc.to_le_bytes());
    let (_, raw) = SummaryRaw::read_from_suffix(&bytes).expect("longer than a summary");
    assert_eq!(raw.body_bytes(life, SEGMENT_BYTES), Some(body_bytes));
    let Ok(records) = raw.verify(salt, life, SEGMENT_BYTES, &bytes) else { return };
    for (header, body) in records {
        entries(header, &body);
    }
}

/// A record: its header, given a valid place and length, and its body as entries.
pub fn record(bytes: &[u8]) {
    const OFFSET: usize = 512;
    if bytes.len() < RECORD_HEADER_BYTES || bytes.len() > SEGMENT_BYTES - OFFSET {
        return;
    }
    let salt = Salt::of(&UUID);
    let life = Life { segment: SegNo(1), generation: 2, epoch: 3 };
    let mut bytes = bytes.to_vec();
    let body_bytes = bytes.len() - RECORD_HEADER_BYTES;
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, b"LREC");
    put(12, &life.segment.0.to_le_bytes());
    put(16, &life.generation.to_le_bytes());
    put(24, &life.epoch.to_le_bytes());
    put(52, &(OFFSET as u32).to_le_bytes());
    put(56, &(body_bytes as u32).to_le_bytes());
    if let 1 | 2 = bytes[8] {
        bytes[9] |= 2; // packed, as all are that have entries
    }
    let crc = seal(crc32c(&UUID), &bytes, 4);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    let (raw, body) = RecordHeaderRaw::read_from_prefix(&bytes).expect("longer than a header");
    assert_eq!(raw.claimed_life(), Some(life));
    let Some(sealed) = raw.sealed_bytes(life, OFFSET, SEGMENT_BYTES) else { return };
    let Ok(header) = raw.verify(salt, life, &bytes[..sealed]) else { return };
    entries(header, body);
}

/// Packed entries come back the same when they are packed again. Unpacked ones state where their payload lies, which
/// may be anywhere in the record.
fn entries(header: RecordHeader, body: &[u8]) {
    let Ok(entries) = header.entries(body) else { return };
    if !entries.is_empty() {
        let body = pack(entries.iter().copied());
        let header = RecordHeader { body_bytes: body.len() as u32, ..header };
        assert_eq!(header.entries(&body), Ok(entries));
    }
}

/// The body of a checkpoint's record: a root, an index of leaves, counters of segments.
pub fn checkpoint(bytes: &[u8]) {
    if let Ok(root) = Root::parse(bytes, SEGMENTS, SEGMENT_BYTES) {
        assert_eq!(Root::parse(&root.to_bytes(), SEGMENTS, SEGMENT_BYTES), Ok(root));
    }
    for bytes in bytes.chunks_exact(MAP_INDEX_BYTES) {
        let raw = MapIndexRaw::read_from_bytes(bytes).expect("chunk of that size");
        if let Ok(entry) = raw.verify(SEGMENTS, SEGMENT_BYTES) {
            assert_eq!(entry.to_raw().as_bytes(), bytes);
        }
    }
    for bytes in bytes.chunks_exact(SEGMENT_LIVE_BYTES) {
        let raw = SegmentLiveRaw::read_from_bytes(bytes).expect("chunk of that size");
        if let Ok((live, is_out_of_use)) = raw.verify(SEGMENT_BYTES) {
            assert_eq!(live.to_raw(is_out_of_use).as_bytes(), bytes);
        }
    }
}

/// A log device: its header, and a ring of frames, of which each at the start of a unit has a valid checksum.
pub fn log_device(bytes: &[u8]) {
    const BYTES: usize = 128 << 10;
    const UNIT: usize = 64;
    let Ok((raw, ring_bytes)) = LogHeaderRaw::read_from_prefix(bytes) else { return };
    let _ = raw.verify();
    if let Ok(header) = sealed(&raw, 0, 12).verify() {
        assert_eq!(header.to_raw().verify(), Ok(header));
    }
    let header = LogHeader {
        uuid: UUID,
        log_id: [1; 16],
        sequence: 2,
        epoch: 1,
        frame_next: 0,
        position: 0,
        settled_seq: Seq(3),
        capacity_bytes: BYTES as u64,
        unit_bytes: UNIT as u32,
        opening: Some(1),
    };
    let mut ring = ring_bytes[..ring_bytes.len().min(BYTES - RING_START as usize)].to_vec();
    for number in (0..ring.len() / UNIT).rev() {
        let at = number * UNIT;
        let len = u32::from_le_bytes(ring[at + 56..at + 60].try_into().expect("four bytes")) as usize;
        let end = at.saturating_add(UNIT).saturating_add(len);
        ring[at..at + 4].copy_from_slice(b"LLOG");
        if end <= ring.len() {
            let crc = seal(header.salt(), &ring[at..end], 4);
            ring[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let device = MappedMemory::anonymous(BYTES).expect("memory");
    device.write_at(0, header.to_raw().as_bytes()).expect("fits");
    device.write_at(RING_START, &ring).expect("fits");
    let log = LogRef { id: [1; 16], capacity_bytes: BYTES as u64 };
    let (ring, found) = ring::load(Arc::new(device), UUID, log).expect("its header is valid");
    assert_eq!(found, header);
    let (logged, _) = ring.read(&found, SEGMENTS.into(), SEGMENT_BYTES);
    let fits = |run: &ring::Run| run.segment.0 < SEGMENTS && run.start + run.bytes.len() <= SEGMENT_BYTES;
    assert!(logged.runs.iter().all(fits));
}

/// The payload of an encoded chunk, behind its encoding and the sectors that it should decode to.
pub fn encoded(bytes: &[u8]) {
    let [encoding, sectors, payload @ ..] = bytes else { return };
    let encoding = ENCODINGS[usize::from(*encoding) % ENCODINGS.len()];
    let mut data = vec![0; (usize::from(*sectors) % CHUNK_SECTORS as usize + 1) * SECTOR];
    if decode(encoding, payload, &mut data).is_ok() {
        let again = Encoded::new(Lba(0), &data[..], Codec::fast(encoding));
        for (_, chunk, encoded) in again.chunks() {
            let Some(encoded) = encoded else { continue };
            let mut back = vec![0; encoded.sectors as usize * SECTOR];
            decode(encoding, encoded.payload, &mut back).expect("what was encoded decodes");
            assert!(chunk.starts_with(&back));
        }
    }
}

/// A leaf of the map, behind the sums and the end that its index names.
pub fn leaf(bytes: &[u8]) {
    let Some((sums, leaf)) = bytes.split_at_checked(6) else { return };
    let number = |at: usize| u64::from(u16::from_le_bytes([sums[at], sums[at + 1]]));
    let live = Live { bytes: number(0) * 16, extents: number(2) };
    let span = 0..number(4) << 20;
    if let Ok(leaf) = Leaf::verify(leaf, &span, live, SEGMENTS, SEGMENT_BYTES) {
        assert_eq!(leaf.rows().count() as u64, live.extents);
    }
}
