use std::mem::size_of;

use lacuna_codec::Algorithm;
use proptest::{collection::vec, prelude::*};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    root::{PositionRaw, RootRaw},
    superblock::SUPERBLOCK_CRC_AT,
    *,
};
use crate::{
    addr::{Lba, PhysAddr, SegNo, Seq},
    encoding::ENCODINGS,
};

const SALT: Salt = Salt(7);
const LIFE: Life = Life { segment: SegNo(3), generation: 9, epoch: 2 };

fn superblock() -> Superblock {
    Superblock {
        uuid: [5; 16],
        capacity_bytes: 64 << 20,
        segment_bytes: 1 << 20,
        block_bytes: 512,
        sequence: 4,
        epoch: 3,
        flushed_seq: Seq(77),
        root: Some(RootRef { segment: SegNo(9), generation: 12, offset: 4096, bytes: 200 }),
        copy_segment: Some(SegNo(32)),
        is_encrypted: true,
        log: Some(LogRef { id: [6; 16], capacity_bytes: 1 << 20 }),
        has_encodings: true,
    }
}

/// One without entries.
fn record() -> RecordHeader {
    RecordHeader {
        kind: RecordKind::Batch,
        last_part: true,
        life: LIFE,
        seq: Seq(10),
        flushed_seq: Seq(8),
        part: 0,
        offset: 1024,
        body_bytes: 0,
        total_bytes: 4096,
    }
}

fn entry() -> Entry {
    Entry {
        kind: EntryKind::Write,
        lba: Lba(40),
        sectors: 8,
        birth: Seq(0),
        phys: PhysAddr { segment: SegNo(3), grain: 80 },
        stored: 2064,
        crc: 1,
        encoding: Algorithm::None,
    }
}

/// All bits of `bytes` bytes; some under Miri, which takes milliseconds for each checksum.
fn bits(bytes: usize) -> impl Iterator<Item = usize> {
    (0..bytes * 8).step_by(if cfg!(miri) { 61 } else { 1 })
}

#[test]
fn superblock_round_trip() {
    let SlotContent::Valid(back) = superblock().to_raw().verify() else { panic!("refused") };
    assert_eq!(back, superblock());
}

#[test]
fn every_flipped_bit_of_a_superblock_is_noticed() {
    let good = superblock().to_raw();
    for bit in bits(size_of::<SuperblockRaw>()) {
        let mut raw = good;
        raw.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
        assert!(!matches!(raw.verify(), SlotContent::Valid(_)), "bit {bit}");
    }
}

#[test]
fn newer_superblocks_are_named() {
    let mut raw = superblock().to_raw();
    raw.version = (VERSION + 1).into();
    assert!(
        matches!(raw.verify(), SlotContent::Newer { version, is_sealed: false } if version == VERSION + 1)
    );
    raw.crc = seal(0, raw.as_bytes(), SUPERBLOCK_CRC_AT).into();
    assert!(
        matches!(raw.verify(), SlotContent::Newer { version, is_sealed: true } if version == VERSION + 1)
    );
    let mut raw = superblock().to_raw();
    raw.features = 0x100.into();
    raw.crc = seal(0, raw.as_bytes(), SUPERBLOCK_CRC_AT).into();
    assert!(matches!(raw.verify(), SlotContent::UnknownFeatures(0x100)));
    for features in 0..3_u64 {
        raw.features = features.into();
        raw.crc = seal(0, raw.as_bytes(), SUPERBLOCK_CRC_AT).into();
        assert!(matches!(raw.verify(), SlotContent::Invalid(_)), "features {features}");
    }
}

#[test]
fn log_header_round_trip_and_flips() {
    let header = LogHeader {
        uuid: [5; 16],
        log_id: [6; 16],
        sequence: 3,
        epoch: 2,
        frame_next: 70,
        position: 4096,
        settled_seq: Seq(9),
        capacity_bytes: 1 << 20,
        unit_bytes: 512,
        opening: Some(3),
    };
    let older = LogHeader { opening: None, ..header };
    assert_eq!(older.to_raw().verify(), Ok(older));
    let good = header.to_raw();
    assert_eq!(good.verify(), Ok(header));
    for bit in bits(size_of::<LogHeaderRaw>()) {
        let mut raw = good;
        raw.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
        assert!(raw.verify().is_err(), "bit {bit}");
    }
    for bad in [
        LogHeader { unit_bytes: 32, ..header },
        LogHeader { unit_bytes: 96, ..header },
        LogHeader { capacity_bytes: RING_START, ..header },
        LogHeader { position: 100, ..header },
        LogHeader { epoch: u64::MAX, ..header },
        LogHeader { opening: Some(u64::MAX), ..header },
    ] {
        assert!(bad.to_raw().verify().is_err(), "{bad:?}");
    }
}

#[test]
fn frame_round_trip_and_flips() {
    let frame = Frame {
        number: 7,
        epoch: 2,
        segment: SegNo(3),
        generation: 9,
        offset: 1000,
        bytes: 40,
        acknowledged: Seq(12),
        group: 6,
        is_last: true,
    };
    let mut good = [0xab; FRAME_BYTES + 40];
    frame.seal(8, &mut good);
    let verify = |bytes: &[u8], salt, segments, segment_bytes| {
        let raw = FrameRaw::read_from_prefix(bytes).unwrap().0;
        assert!(raw.sealed_bytes(7, 2, 200).is_none_or(|len| len == bytes.len()));
        raw.verify(salt, bytes, segments, segment_bytes)
    };
    assert_eq!(verify(&good, 8, 4, 1 << 16), Ok(frame));
    assert!(verify(&good, 9, 4, 1 << 16).is_err(), "of another store");
    assert!(verify(&good, 8, 3, 1 << 16).is_err() && verify(&good, 8, 4, 1039).is_err(), "outside");
    let raw = FrameRaw::read_from_prefix(&good).unwrap().0;
    assert_eq!(raw.sealed_bytes(7, 2, 103), None, "beyond the ring");
    assert!(raw.sealed_bytes(8, 2, 200).is_none() && raw.sealed_bytes(7, 3, 200).is_none());
    for bit in bits(good.len()) {
        let mut bytes = good;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let raw = FrameRaw::read_from_prefix(&bytes).unwrap().0;
        let is_whole = raw.sealed_bytes(7, 2, 200).is_some_and(|len| len == bytes.len());
        assert!(!is_whole || raw.verify(8, &bytes, 4, 1 << 16).is_err(), "bit {bit}");
    }
    for bad in [
        Frame { segment: SegNo(0), ..frame },
        Frame { group: 8, ..frame },
        Frame { generation: u64::MAX, ..frame },
    ] {
        let mut bytes = [0; FRAME_BYTES + 40];
        bad.seal(8, &mut bytes);
        assert!(verify(&bytes, 8, 4, 1 << 16).is_err(), "{bad:?}");
    }
}

#[test]
fn segment_header_round_trip_and_flips() {
    let header = SegmentHeader {
        kind: SegmentKind::Log,
        segment: SegNo(3),
        generation: 9,
        epoch: 2,
        class: 2,
        opened_seq: Seq(5),
        durable: Marks { batches: Seq(4), moves: Seq(2) },
    };
    let good = header.to_raw(SALT);
    assert_eq!(good.verify(SALT, SegNo(3)), Ok(header));
    assert!(good.verify(SALT, SegNo(4)).is_err());
    assert!(good.verify(Salt(8), SegNo(3)).is_err());
    for bit in bits(size_of::<SegmentHeaderRaw>()) {
        let mut raw = good;
        raw.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
        assert!(raw.verify(SALT, SegNo(3)).is_err(), "bit {bit}");
    }
}

#[test]
fn record_round_trip_and_flips() {
    let (header, body) = packed_records().remove(0);
    let bytes = header.seal(SALT, &body);
    let parse = |bytes: &[u8]| {
        let (raw, _) = RecordHeaderRaw::read_from_prefix(bytes).unwrap();
        let sealed = raw.sealed_bytes(LIFE, 1024, 1 << 16).ok_or("no record")?;
        raw.verify(SALT, LIFE, bytes.get(..sealed).ok_or("too long")?)
    };
    assert_eq!(parse(&bytes), Ok(header));
    for bit in bits(bytes.len()) {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&bytes).is_err(), "bit {bit}");
    }
}

fn trim() -> Entry {
    let none = PhysAddr { segment: SegNo(3), grain: 0 };
    Entry { kind: EntryKind::Trim, sectors: 1 << 40, stored: 0, phys: none, crc: 0, ..entry() }
}

fn moved() -> Entry {
    Entry { kind: EntryKind::Relocate, sectors: 5, birth: Seq(7), crc: u32::MAX, ..entry() }
}

/// Headers and bodies.
type Records = Vec<(RecordHeader, Vec<u8>)>;

/// A batch with a write and a trim, one part of another, and a relocation, packed.
fn packed_records() -> Records {
    let batch = RecordHeader { ..record() };
    let part = RecordHeader { part: 1, last_part: false, seq: Seq(11), offset: 5120, ..batch };
    let relocation =
        RecordHeader { kind: RecordKind::Relocation, offset: 9728, flushed_seq: Seq(9), ..batch };
    let with = |header: RecordHeader, entries: &[Entry]| {
        let body = pack(entries.iter().copied());
        (RecordHeader { body_bytes: body.len() as u32, ..header }, body)
    };
    vec![with(batch, &[entry(), trim()]), with(part, &[entry()]), with(relocation, &[moved()])]
}

fn summary_of(records: &Records) -> Vec<u8> {
    let mut summary = Summary::default();
    for (header, body) in records {
        let before = summary.body_bytes();
        summary.note(header, body);
        assert!(summary.body_bytes() - before <= SUMMARY_RECORD_BYTES_MAX + body.len());
    }
    summary.seal(SALT, LIFE)
}

/// Recomputes the seal of a summary.
fn reseal(bytes: &mut [u8]) {
    let crc_at = bytes.len() - SUMMARY_BYTES + 4;
    let crc = seal(SALT.0, bytes, crc_at);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn parse_summary(life: Life, bytes: &[u8]) -> Result<Records, Flaw> {
    let (_, raw) = SummaryRaw::read_from_suffix(bytes).unwrap();
    let body = raw.body_bytes(life, 1 << 16).ok_or("no summary")?;
    let start = bytes.len().checked_sub(body + SUMMARY_BYTES).ok_or("too long")?;
    raw.verify(SALT, life, 1 << 16, &bytes[start..])
}

#[test]
fn summaries_tell_what_the_records_say() {
    let good = summary_of(&packed_records());
    assert_eq!(parse_summary(LIFE, &good), Ok(packed_records()));
    for life in
        [Life { segment: SegNo(4), ..LIFE }, Life { generation: 8, ..LIFE }, Life { epoch: 1, ..LIFE }]
    {
        assert!(parse_summary(life, &good).is_err(), "{life:?}");
    }
    for bit in bits(good.len()) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(parse_summary(LIFE, &bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn summaries_are_checked_behind_a_valid_seal() {
    let check = |good: &[u8], bad: &[(usize, u8)]| {
        for (at, value) in bad {
            let mut bytes = good.to_vec();
            assert_ne!(bytes[*at], *value);
            bytes[*at] = *value;
            reseal(&mut bytes);
            assert!(parse_summary(LIFE, &bytes).is_err(), "byte {at}");
        }
    };
    let good = summary_of(&packed_records());
    let trailer = good.len() - SUMMARY_BYTES;
    // Flags of the first record, length of its body; number of records, reserved bytes.
    check(&good, &[(0, 0x80), (2, 200), (trailer + 32, 4), (trailer + 40, 1)]);
}

#[test]
fn records_of_a_summary_lie_one_behind_the_other_in_the_segment() {
    let with = |change: &dyn Fn(&mut Records)| {
        let mut records = packed_records();
        change(&mut records);
        parse_summary(LIFE, &summary_of(&records))
    };
    assert!(with(&|_| {}).is_ok());
    assert!(with(&|records| records[1].0.offset -= 16).is_err(), "over the one before");
    assert!(with(&|records| records[0].0.offset = 496).is_err(), "over the segment's header");
    assert!(with(&|records| records[2].0.offset = 1 << 16).is_err());
    assert!(with(&|records| records[2].0.offset = u32::MAX).is_err());
    assert!(with(&|records| records[2].0.total_bytes = u32::MAX).is_err());
}

#[test]
fn counters_that_nobody_counted_to_are_refused() {
    let beyond = COUNTER_MAX + 1;
    for superblock in [
        Superblock { sequence: beyond, ..superblock() },
        Superblock { epoch: beyond, ..superblock() },
        Superblock { flushed_seq: Seq(u64::MAX), ..superblock() },
    ] {
        assert!(matches!(superblock.to_raw().verify(), SlotContent::Invalid(BEYOND_COUNTER_MAX)));
    }
    let good = SegmentHeader {
        kind: SegmentKind::Data,
        segment: SegNo(3),
        generation: COUNTER_MAX,
        epoch: 2,
        class: 0,
        opened_seq: Seq(1),
        durable: Marks::default(),
    };
    assert_eq!(good.to_raw(SALT).verify(SALT, SegNo(3)), Ok(good));
    let marks = Marks { batches: Seq(0), moves: Seq(beyond) };
    for bad in [
        SegmentHeader { generation: beyond, ..good },
        SegmentHeader { epoch: u64::MAX, ..good },
        SegmentHeader { durable: marks, ..good },
    ] {
        assert_eq!(bad.to_raw(SALT).verify(SALT, SegNo(3)), Err(BEYOND_COUNTER_MAX));
    }
    let bad = RecordHeader { seq: Seq(u64::MAX), ..record() };
    let body = vec![0; bad.body_bytes as usize];
    let bytes = bad.seal(SALT, &body);
    let (raw, _) = RecordHeaderRaw::read_from_prefix(&bytes).unwrap();
    assert_eq!(raw.verify(SALT, LIFE, &bytes), Err(BEYOND_COUNTER_MAX));
}

/// The cases that make summaries small: consecutive batches of one page, and moved pages.
#[test]
fn a_page_takes_few_bytes_in_a_summary() {
    let page = |lba: u64| Entry { lba: Lba(lba * 32), sectors: 32, stored: 16384, crc: u32::MAX, ..entry() };
    let scattered = |number: u64| number.wrapping_mul(2_654_435_769) % 250_000;
    let mut summary = Summary::default();
    for number in 0..60 {
        let body = pack([page(scattered(number))].into_iter());
        let total_bytes = 16384 + 80;
        let header = RecordHeader {
            seq: Seq(10_000_000 + number * 7),
            offset: 512 + number as u32 * total_bytes,
            body_bytes: body.len() as u32,
            total_bytes,
            ..record()
        };
        summary.note(&header, &body);
    }
    assert!(summary.body_bytes() < 60 * 12, "{} bytes", summary.body_bytes());
    let moved = |number: u64| {
        let birth = Seq(10_000_000 + scattered(number));
        Entry { kind: EntryKind::Relocate, birth, ..page(scattered(number)) }
    };
    let body = pack((0..60).map(moved));
    assert!(body.len() < 60 * 12, "{} bytes", body.len());
}

#[test]
fn records_of_other_lives_are_not_plausible() {
    let bytes = record().seal(SALT, &[]);
    let (raw, _) = RecordHeaderRaw::read_from_prefix(&bytes).unwrap();
    assert!(raw.sealed_bytes(LIFE, 1024, 1 << 16).is_some());
    assert!(raw.sealed_bytes(Life { generation: 8, ..LIFE }, 1024, 1 << 16).is_none());
    assert!(raw.sealed_bytes(Life { epoch: 1, ..LIFE }, 1024, 1 << 16).is_none());
    assert!(raw.sealed_bytes(Life { segment: SegNo(4), ..LIFE }, 1024, 1 << 16).is_none());
    assert!(raw.sealed_bytes(LIFE, 512, 1 << 16).is_none());
    assert!(raw.sealed_bytes(LIFE, 1024, 4096).is_none(), "runs over the end of the segment");
}

/// A record of `entries` without a gap before their payload, packed, and the entries with the places that follow.
fn packed(kind: RecordKind, entries: &[Entry]) -> (RecordHeader, Vec<u8>, Vec<Entry>) {
    let body = pack(entries.iter().copied());
    let (offset, mut placed) = (1024, entries.to_vec());
    let mut at = (offset + RECORD_HEADER_BYTES + body.len()).next_multiple_of(16);
    for first in [true, false] {
        for entry in placed.iter_mut().filter(|entry| entry.kind != EntryKind::Trim) {
            if entry.stored.is_multiple_of(4096) == first {
                entry.phys.grain = at as u32 / 16;
                at += usize::from(entry.stored);
            }
        }
    }
    let (body_bytes, total_bytes) = (body.len() as u32, (at - offset) as u32);
    (RecordHeader { kind, body_bytes, total_bytes, ..record() }, body, placed)
}

#[test]
fn packed_entries_come_back_with_their_places() {
    let page = Entry { lba: Lba(64), sectors: 32, stored: 16384, ..entry() };
    let far = Entry { lba: Lba(u64::MAX - 63), ..page };
    let (header, body, placed) =
        packed(RecordKind::Batch, &[entry(), page, trim(), far, entry(), Entry { lba: Lba(96), ..page }]);
    assert_eq!(header.entries(&body), Ok(placed));
    let late = Entry { birth: Seq(COUNTER_MAX), ..moved() };
    let (header, body, placed) = packed(RecordKind::Relocation, &[moved(), late, moved()]);
    assert_eq!(header.entries(&body), Ok(placed));
    assert!(RecordHeader { kind: RecordKind::Batch, ..header }.entries(&body).is_err());
    assert!(header.entries(&body[..body.len() - 1]).is_err());
    // A page that is next in order, after its first byte, takes a byte and its checksum.
    let (_, body, _) = packed(RecordKind::Batch, &[page, Entry { lba: Lba(96), ..page }]);
    assert_eq!(body.len(), 12);
}

/// The bytes of a batch and of a relocation are exactly those in FORMAT.md.
#[test]
fn packed_entries_have_the_bytes_of_the_format() {
    let phys = PhysAddr { segment: SegNo(3), grain: 0 };
    let page = Entry { lba: Lba(64), sectors: 32, stored: 16384, crc: 0x0403_0201, phys, ..entry() };
    let batch = [
        page,
        Entry { crc: 0x0807_0605, phys, ..entry() }, // 56 sectors before the end of the page, 129 grains
        Entry { lba: Lba(48), sectors: 300, ..trim() },
        Entry { lba: Lba(320), ..page }, // 348 / 32 is 10, and so is 320 / 32
    ];
    let bytes = [
        &[5, 4, 1, 2, 3, 4][..],
        &[1, 2 * 56 - 1, 8, 0x81, 1, 5, 6, 7, 8],
        &[2, 0, 0xac, 2],
        &[5, 0, 1, 2, 3, 4],
    ];
    assert_eq!(pack(batch.into_iter()), bytes.concat());
    let encoded = [
        Entry { encoding: Algorithm::Lz4, stored: 4112, ..page },
        Entry { encoding: Algorithm::Zstd, crc: 0x0807_0605, phys, ..entry() },
    ];
    let bytes = [&[5 + 8, 4, 0x81, 2, 1, 2, 3, 4][..], &[1 + 16, 2 * 56 - 1, 8, 0x81, 1, 5, 6, 7, 8]];
    assert_eq!(pack(encoded.into_iter()), bytes.concat());
    let relocation = [
        Entry { lba: Lba(32), sectors: 1, stored: 512, birth: Seq(1000), ..moved() },
        Entry { lba: Lba(33), sectors: 2, stored: 1008, birth: Seq(999), ..moved() },
    ];
    let bytes =
        [[3, 64, 1, 32, 0xd0, 15, 255, 255, 255, 255].as_slice(), &[3, 0, 2, 63, 1, 255, 255, 255, 255]];
    assert_eq!(pack(relocation.into_iter()), bytes.concat());
}

/// The same for copies in a summary.
#[test]
fn packed_copies_have_the_bytes_of_the_format() {
    let header = RecordHeader { offset: 512, total_bytes: 4096, body_bytes: 3, ..record() };
    let part = RecordHeader { part: 130, last_part: false, seq: Seq(9), offset: 4608, ..header };
    let relocation =
        RecordHeader { kind: RecordKind::Relocation, seq: Seq(9), offset: 9216, total_bytes: 4080, ..header };
    let records = [header, part, relocation].map(|header| (header, b"abc".to_vec()));
    let summary = summary_of(&records.to_vec());
    let copies = [
        &[1 | 4 | 32, 20, 3, 16, 0x80, 0x40][..], // a batch of its own, flushed mark, length
        &[8, 1, 3, 0x82, 1],
        &[1 | 2 | 16 | 32, 0, 3, 0x80, 8, 31], // at the next block
    ];
    let copies: Vec<u8> = copies.map(|copy| [copy, b"abc"].concat()).concat();
    assert_eq!(summary[..summary.len() - SUMMARY_BYTES], copies);
    let trailer = &summary[copies.len()..];
    let number = |at: usize| u32::from_le_bytes(trailer[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!((&trailer[..4], number(12), number(32)), (&b"LFOP"[..], copies.len(), 3));
}

prop_compose! {
    /// An entry that a record of the kind may hold.
    fn any_entry(kind: RecordKind)(
        window in prop_oneof![0..4_u64, any::<u64>().prop_map(|at| at % ((1 << 59) - 1))],
        (first, end) in prop_oneof![
            Just((0, 32)),
            (0..32_u64, 1..=32_u64).prop_map(|(first, sectors)| (first, (first + sectors).min(32))),
        ],
        (cut, is_trim, crc, birth) in (0..1024_u64, any::<bool>(), any::<u32>(), 1..=COUNTER_MAX),
    ) -> Entry {
        let (lba, sectors) = (Lba(window * 32 + first), end - first);
        let is_move = kind == RecordKind::Relocation;
        if is_trim && !is_move {
            return Entry { lba, sectors: sectors + (birth % 5 * 1000).min(u64::MAX - lba.0 - sectors), ..trim() };
        }
        // The last sector has payload where entries must.
        let grains = if is_move { sectors * 32 - cut % 32 } else { 1 + cut % (sectors * 32) };
        let (kind, birth) = if is_move { (EntryKind::Relocate, birth) } else { (EntryKind::Write, 0) };
        let stored = if cut % 3 == 0 { sectors * 512 } else { grains * 16 } as u16;
        let entry = Entry { kind, lba, sectors, stored, crc, birth: Seq(birth), ..entry() };
        let most = (sectors * 512).saturating_sub(512) as u16;
        match sectors {
            2.. if crc % 3 == 0 => {
                let stored = stored.clamp(sectors as u16 * 16, most);
                Entry { stored, encoding: ENCODINGS[crc as usize / 3 % 2], ..entry }
            }
            _ => entry,
        }
    }
}

fn any_entries() -> impl Strategy<Value = (RecordKind, Vec<Entry>)> {
    prop_oneof![Just(RecordKind::Batch), Just(RecordKind::Relocation)]
        .prop_flat_map(|kind| (Just(kind), vec(any_entry(kind), 0..40)))
}

proptest! {
    /// Packed entries take exactly the size computed beforehand, and no more than the maximum.
    #[test]
    fn packed_entries_come_back((kind, entries) in any_entries()) {
        let (header, body, placed) = packed(kind, &entries);
        prop_assert_eq!(header.entries(&body), Ok(placed));
        let mut packing = Packing::default();
        let lengths: Vec<usize> = entries.iter().map(|entry| packing.len(entry)).collect();
        prop_assert_eq!(lengths.iter().sum::<usize>(), body.len());
        prop_assert!(lengths.iter().all(|len| *len <= PACKED_ENTRY_BYTES_MAX));
    }
}

#[test]
fn packed_entries_are_checked() {
    let bad = [
        Entry { sectors: 0, ..entry() },
        Entry { lba: Lba(u64::MAX), ..entry() },
        Entry { lba: Lba(28), ..entry() },
        Entry { stored: 8 * 512 + 16, ..entry() },
        Entry { stored: 0, ..entry() },
        Entry { kind: EntryKind::Relocate, birth: Seq(3), ..entry() },
        Entry { encoding: Algorithm::Lz4, stored: 8 * 512, ..entry() },
        Entry { encoding: Algorithm::Lz4, stored: 7 * 16, ..entry() },
        Entry { encoding: Algorithm::Zlib, ..entry() },
        Entry { encoding: Algorithm::Lz4, sectors: 1, stored: 16, ..entry() },
        Entry { encoding: Algorithm::Lz4, ..trim() },
    ];
    for entry in bad {
        let (header, body, _) = packed(RecordKind::Batch, &[entry]);
        assert!(header.entries(&body).is_err(), "{entry:?}");
    }
    let (header, body, _) = packed(RecordKind::Batch, &[entry(), trim()]);
    assert!(header.entries(&body).is_ok());
    let more = RecordHeader { total_bytes: header.total_bytes + 8, ..header };
    assert!(more.entries(&body).is_err(), "payload between two grains");
    let less = RecordHeader { total_bytes: header.total_bytes - 16, ..header };
    assert!(less.entries(&body).is_err(), "payload begins within the body");
    let none = RecordHeader { offset: 0, total_bytes: 64, ..header };
    assert!(none.entries(&body).is_err(), "payload begins before the segment");
    // Kind 0, unknown encodings, a trim that is a whole chunk, an encoded one.
    for first in [0, 0x19, 0x41, 0x81, 6, 0x0a] {
        let mut body = body.clone();
        body[0] = first;
        assert!(header.entries(&body).is_err(), "first byte {first}");
    }
}

proptest! {
    #[test]
    fn no_noise_panics(body in vec(any::<u8>(), 0..60), total_bytes: u32, offset: u32, kind in 0..2_usize) {
        let kind = [RecordKind::Batch, RecordKind::Relocation][kind];
        let body_bytes = body.len() as u32;
        let header = RecordHeader { kind, offset, body_bytes, total_bytes, ..record() };
        let _ = header.entries(&body);
    }
}

#[test]
fn extents_are_checked() {
    let phys = PhysAddr { segment: SegNo(3), grain: 80 };
    let good = Extent { phys, stored: 5008, crc: 1, birth: Seq(4), sectors: 6, skip: 4, ..Extent::default() };
    let check = |lba, extent: Extent| extent.check(lba, 8, 1 << 16);
    assert_eq!(check(36, good), Ok(()));
    assert_eq!(check(32, Extent { sectors: 2, skip: 0, ..good }), Ok(()));
    let bad = [
        (36, Extent { sectors: 7, ..good }),
        (36, Extent { sectors: 0, ..good }),
        (3, good),
        (60, good),
        (u64::MAX - 2, good),
        (36, Extent { stored: 5009, ..good }),
        (36, Extent { birth: Seq(0), ..good }),
        (36, Extent { phys: PhysAddr { segment: SegNo(8), ..phys }, ..good }),
        (36, Extent { phys: PhysAddr { segment: SegNo(0), ..phys }, ..good }),
        (36, Extent { phys: PhysAddr { grain: 4000, ..phys }, ..good }),
    ];
    let encoded = Extent { encoding: Algorithm::Zstd, chunk_sectors: 12, ..good };
    assert_eq!(check(36, encoded), Ok(()));
    let bad_encoded = [
        (36, Extent { sectors: 9, ..encoded }),
        (36, Extent { chunk_sectors: 9, ..encoded }),
        (60, Extent { sectors: 2, ..encoded }),
        (36, Extent { chunk_sectors: 10, ..encoded }),
        (36, Extent { stored: 11 * 16, ..encoded }),
        (36, Extent { stored: 12 * 512 - 496, ..encoded }),
        (36, Extent { encoding: Algorithm::None, ..encoded }),
    ];
    for (lba, extent) in bad.into_iter().chain(bad_encoded) {
        assert!(check(lba, extent).is_err(), "{lba} {extent:?}");
    }
    for extent in [good, encoded, Extent { stored: 16384, sectors: 32, skip: 0, ..good }] {
        let bare =
            Extent { stored: 0, sectors: 0, skip: 0, encoding: Algorithm::None, chunk_sectors: 0, ..extent };
        assert_eq!(bare.with_shape(extent.shape()), Some(extent));
    }
    assert_eq!(good.with_shape(3 << 22), None, "an encoding that nobody knows");
}

#[test]
fn index_entries_are_checked() {
    let place = LeafAddr { segment: SegNo(3), grain: 80, crc: 9, bytes: 1500 };
    let live = Live { bytes: 70_000, extents: 9 };
    let good = IndexEntry { start: 64, live, place };
    let verify = |entry: IndexEntry| entry.to_raw().verify(8, 1 << 16);
    assert_eq!(verify(good), Ok(good));
    let bad = [
        IndexEntry { start: 65, ..good },
        IndexEntry { live: Live { extents: 0, bytes: 0 }, ..good },
        IndexEntry { live: Live { extents: 129, ..live }, ..good },
        IndexEntry { live: Live { extents: 2, ..live }, ..good },
        IndexEntry { place: LeafAddr { segment: SegNo(0), ..place }, ..good },
        IndexEntry { place: LeafAddr { segment: SegNo(8), ..place }, ..good },
        IndexEntry { place: LeafAddr { grain: 4050, ..place }, ..good },
        IndexEntry { place: LeafAddr { grain: 20, ..place }, ..good },
        IndexEntry { place: LeafAddr { bytes: 63, ..place }, ..good },
        IndexEntry { place: LeafAddr { bytes: 5000, ..place }, ..good },
    ];
    for entry in bad {
        assert!(verify(entry).is_err(), "{entry:?}");
    }
}

#[test]
fn counters_of_segments_are_checked() {
    let live = Live { bytes: 60_000, extents: 9 };
    let verify = |live: Live, is_out_of_use| live.to_raw(is_out_of_use).verify(1 << 16);
    assert_eq!(verify(live, false), Ok((live, false)));
    assert_eq!(verify(live, true), Ok((live, true)));
    for (bytes, extents) in [(16, 0), (0, 1), (16, 2), ((1 << 16) + 16, 1), (u64::MAX, 1)] {
        assert!(verify(Live { bytes, extents }, true).is_err(), "{bytes} bytes in {extents} extents");
    }
}

#[test]
fn root_round_trip() {
    let place = Position { segment: SegNo(2), generation: 3, offset: 512 };
    let mut positions = [None; POSITIONS];
    (positions[1], positions[15]) = (Some(place), Some(place));
    let root = Root {
        start_seq: Seq(6),
        start_move: Seq(5),
        generation_next: 8,
        extents: 1000,
        leaves: 12,
        positions,
        records: vec![place, Position { segment: SegNo(4), ..place }],
    };
    let bytes = root.to_bytes();
    assert_eq!(bytes.len(), Root::bytes_for(2));
    assert_eq!(Root::parse(&bytes, 8, 1 << 16), Ok(root));
    assert!(Root::parse(&bytes, 4, 1 << 16).is_err());
    assert!(Root::parse(&bytes[..bytes.len() - 1], 8, 1 << 16).is_err());
    assert!(Root::parse(&bytes[..20], 8, 1 << 16).is_err());
}

/// The rows of a struct's table in FORMAT.md.
macro_rules! rows {
    ($raw:ident: $($field:ident)*) => {{
        let at = [$(std::mem::offset_of!($raw, $field)),*, size_of::<$raw>()];
        let names = [$(stringify!($field)),*];
        let title = format!("### {} ({} bytes", stringify!($raw), size_of::<$raw>());
        let row = |index: usize| format!("| {} | {} | {} |", at[index], at[index + 1] - at[index], names[index]);
        (title, (0..names.len()).map(row).collect::<Vec<_>>())
    }};
}

#[test]
#[cfg_attr(miri, ignore = "a search through a long text takes minutes")]
fn the_prose_agrees_with_the_code() {
    let prose = include_str!("../../../../docs/FORMAT.md");
    let tables = [
        rows!(SuperblockRaw: magic version crc features uuid capacity_bytes segment_bytes block_bytes sequence
            epoch flushed_seq root_generation root_segment root_offset root_bytes copy_segment log_id
            log_bytes reserved),
        rows!(SegmentHeaderRaw: magic crc version kind class segment generation epoch opened_seq flushed_seq
            flushed_move reserved_b),
        rows!(RecordHeaderRaw: magic crc kind flags space segment generation epoch seq flushed_seq part offset
            body_bytes total_bytes),
        rows!(SummaryRaw: magic crc segment body_bytes generation epoch records reserved),
        rows!(MapLeafRaw: base span len width),
        rows!(MapIndexRaw: start bytes segment grain crc leaf_bytes extents),
        rows!(SegmentLiveRaw: bytes extents),
        rows!(RootRaw: start_seq start_move generation_next extents leaves records positions reserved),
        rows!(PositionRaw: segment offset generation),
        rows!(LogHeaderRaw: magic version crc features uuid log_id sequence epoch frame_next position
            settled_seq capacity_bytes unit_bytes opening reserved),
        rows!(FrameRaw: magic crc number epoch generation acknowledged group segment offset bytes flags
            reserved),
    ];
    for (title, rows) in tables {
        let (_, section) = prose.split_once(&title).unwrap_or_else(|| panic!("no section {title}"));
        let section = section.split("\n#").next().expect("split has a first part");
        let found: Vec<_> = section
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| at"))
            .map(|line| line.match_indices('|').nth(3).map_or(line, |(end, _)| &line[..=end]))
            .collect();
        assert_eq!(found, rows, "{title}");
    }
}
