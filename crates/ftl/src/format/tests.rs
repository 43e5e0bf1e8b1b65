use super::{
    footer::{FooterEntryRaw, FooterRecordRaw},
    *,
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
    }
}

fn record() -> RecordHeader {
    RecordHeader {
        kind: RecordKind::Batch,
        last_part: true,
        life: LIFE,
        seq: Seq(10),
        flushed_seq: Seq(8),
        part: 0,
        offset: 1024,
        body_bytes: ENTRY_BYTES as u32,
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
    }
}

#[test]
fn superblock_round_trip() {
    let Slot::Valid(back) = superblock().to_raw().verify() else { panic!("refused") };
    assert_eq!(back, superblock());
}

#[test]
fn every_flipped_bit_of_a_superblock_is_noticed() {
    let good = superblock().to_raw();
    for bit in 0..size_of::<SuperblockRaw>() * 8 {
        let mut raw = good;
        raw.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
        assert!(!matches!(raw.verify(), Slot::Valid(_)), "bit {bit}");
    }
}

#[test]
fn newer_superblocks_are_named() {
    let mut raw = superblock().to_raw();
    raw.version = (VERSION + 1).into();
    assert!(matches!(raw.verify(), Slot::Newer { version, is_sealed: false } if version == VERSION + 1));
    raw.crc = seal(0, raw.as_bytes(), SUPERBLOCK_CRC_AT).into();
    assert!(matches!(raw.verify(), Slot::Newer { version, is_sealed: true } if version == VERSION + 1));
    let mut raw = superblock().to_raw();
    raw.features = 0x10.into();
    raw.crc = seal(0, raw.as_bytes(), SUPERBLOCK_CRC_AT).into();
    assert!(matches!(raw.verify(), Slot::UnknownFeatures(0x10)));
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
    for bit in 0..size_of::<SegmentHeaderRaw>() * 8 {
        let mut raw = good;
        raw.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
        assert!(raw.verify(SALT, SegNo(3)).is_err(), "bit {bit}");
    }
}

#[test]
fn record_round_trip_and_flips() {
    let bytes = record().seal(SALT, entry().to_raw().as_bytes());
    let parse = |bytes: &[u8]| {
        let (raw, _) = RecordHeaderRaw::read_from_prefix(bytes).unwrap();
        let sealed = raw.sealed_bytes(LIFE, 1024, 1 << 16).ok_or("no record")?;
        raw.verify(SALT, LIFE, bytes.get(..sealed).ok_or("too long")?)
    };
    assert_eq!(parse(&bytes), Ok(record()));
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&bytes).is_err(), "bit {bit}");
    }
}

/// A footer of a batch with a write and a trim, and a relocation.
fn footer() -> (Vec<u8>, Vec<(RecordHeader, Vec<u8>)>) {
    let none = PhysAddr { segment: SegNo(3), grain: 0 };
    let trim = Entry { kind: EntryKind::Trim, sectors: 1 << 40, stored: 0, phys: none, crc: 0, ..entry() };
    let moved = Entry { kind: EntryKind::Relocate, sectors: 5, birth: Seq(7), crc: u32::MAX, ..entry() };
    let batch = RecordHeader { body_bytes: 2 * ENTRY_BYTES as u32, ..record() };
    let relocation = RecordHeader { kind: RecordKind::Relocation, offset: 8192, ..record() };
    let (mut footer, mut expected) = (Footer::default(), Vec::new());
    for (header, entries) in [(batch, vec![entry(), trim]), (relocation, vec![moved])] {
        footer.note(&header, entries.iter().copied());
        expected
            .push((header, entries.iter().flat_map(|entry| entry.to_raw().as_bytes().to_vec()).collect()));
    }
    assert_eq!(footer.body_bytes(), 2 * FOOTER_RECORD_BYTES + 20 + 20 + 28);
    (footer.seal(SALT, LIFE), expected)
}

fn parse_footer(life: Life, bytes: &[u8]) -> Result<Vec<(RecordHeader, Vec<u8>)>, Flaw> {
    let (_, raw) = FooterRaw::read_from_suffix(bytes).unwrap();
    let body = raw.body_bytes(life, 1 << 16).ok_or("no footer")?;
    let start = bytes.len().checked_sub(body + FOOTER_BYTES).ok_or("too long")?;
    raw.verify(SALT, life, &bytes[start..])
}

#[test]
fn footers_tell_what_the_records_say() {
    let (good, expected) = footer();
    assert_eq!(parse_footer(LIFE, &good), Ok(expected));
    for life in
        [Life { segment: SegNo(4), ..LIFE }, Life { generation: 8, ..LIFE }, Life { epoch: 1, ..LIFE }]
    {
        assert!(parse_footer(life, &good).is_err(), "{life:?}");
    }
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(parse_footer(LIFE, &bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn footers_are_checked_behind_a_valid_seal() {
    let (good, _) = footer();
    let trailer = good.len() - FOOTER_BYTES;
    // Entries of the first record, its flags, its kind, its length; sectors of the trim; number of records.
    let bad = [(24, 200), (24, 3), (31, 2), (30, 9), (20, 100), (32 + 20 + 18, 1), (trailer + 32, 3)];
    for (at, value) in bad {
        let mut bytes = good.clone();
        bytes[at] = value;
        if at == 20 {
            bytes[21..24].fill(0);
        }
        let crc = seal(SALT.0, &bytes, trailer + 4);
        bytes[trailer + 4..trailer + 8].copy_from_slice(&crc.to_le_bytes());
        assert!(parse_footer(LIFE, &bytes).is_err(), "byte {at}");
    }
}

#[test]
fn records_of_other_lives_are_not_plausible() {
    let bytes = record().seal(SALT, entry().to_raw().as_bytes());
    let (raw, _) = RecordHeaderRaw::read_from_prefix(&bytes).unwrap();
    assert!(raw.sealed_bytes(LIFE, 1024, 1 << 16).is_some());
    assert!(raw.sealed_bytes(Life { generation: 8, ..LIFE }, 1024, 1 << 16).is_none());
    assert!(raw.sealed_bytes(Life { epoch: 1, ..LIFE }, 1024, 1 << 16).is_none());
    assert!(raw.sealed_bytes(Life { segment: SegNo(4), ..LIFE }, 1024, 1 << 16).is_none());
    assert!(raw.sealed_bytes(LIFE, 512, 1 << 16).is_none());
    assert!(raw.sealed_bytes(LIFE, 1024, 4096).is_none(), "runs over the end of the segment");
}

#[test]
fn entries_are_checked() {
    let verify = |entry: Entry| entry.to_raw().verify(&record());
    assert_eq!(verify(entry()), Ok(entry()));
    let trim = Entry {
        kind: EntryKind::Trim,
        stored: 0,
        phys: PhysAddr { segment: SegNo(3), grain: 0 },
        sectors: 1 << 40,
        ..entry()
    };
    assert_eq!(verify(trim), Ok(trim));
    let bad = [
        Entry { sectors: 0, ..entry() },
        Entry { lba: Lba(u64::MAX), ..entry() },
        Entry { lba: Lba(28), ..entry() },
        Entry { stored: 2065, ..entry() },
        Entry { stored: 8 * 512 + 16, ..entry() },
        Entry { stored: 0, ..entry() },
        Entry { phys: PhysAddr { segment: SegNo(3), grain: 65 }, ..entry() },
        Entry { phys: PhysAddr { segment: SegNo(3), grain: 5120 / 16 - 128 }, ..entry() },
        Entry { kind: EntryKind::Relocate, birth: Seq(3), ..entry() },
        Entry { birth: Seq(3), ..entry() },
        Entry { stored: 16, ..trim },
    ];
    for entry in bad {
        assert!(verify(entry).is_err(), "{entry:?}");
    }
}

#[test]
fn extents_are_checked() {
    let phys = PhysAddr { segment: SegNo(3), grain: 80 };
    let good = Extent { phys, stored: 5008, crc: 1, birth: Seq(4), sectors: 6, skip: 4 };
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
    for (lba, extent) in bad {
        assert!(check(lba, extent).is_err(), "{lba} {extent:?}");
    }
}

#[test]
fn index_entries_are_checked() {
    let place = LeafPlace { segment: SegNo(3), grain: 80, crc: 9, bytes: 1500 };
    let live = Live { bytes: 70_000, extents: 9 };
    let good = IndexEntry { start: 64, live, place };
    let verify = |entry: IndexEntry| entry.to_raw().verify(8, 1 << 16);
    assert_eq!(verify(good), Ok(good));
    let bad = [
        IndexEntry { start: 65, ..good },
        IndexEntry { live: Live { extents: 0, bytes: 0 }, ..good },
        IndexEntry { live: Live { extents: 129, ..live }, ..good },
        IndexEntry { live: Live { extents: 2, ..live }, ..good },
        IndexEntry { place: LeafPlace { segment: SegNo(0), ..place }, ..good },
        IndexEntry { place: LeafPlace { segment: SegNo(8), ..place }, ..good },
        IndexEntry { place: LeafPlace { grain: 4050, ..place }, ..good },
        IndexEntry { place: LeafPlace { grain: 20, ..place }, ..good },
        IndexEntry { place: LeafPlace { bytes: 63, ..place }, ..good },
        IndexEntry { place: LeafPlace { bytes: 5000, ..place }, ..good },
    ];
    for entry in bad {
        assert!(verify(entry).is_err(), "{entry:?}");
    }
    assert_eq!(live.to_raw(false).verify(), Ok((live, false)));
    assert_eq!(live.to_raw(true).verify(), Ok((live, true)));
    assert!(Live { bytes: 1, extents: 0 }.to_raw(true).verify().is_err());
}

#[test]
fn root_round_trip() {
    let place = Place { segment: SegNo(2), generation: 3, offset: 512 };
    let mut positions = [None; POSITIONS];
    (positions[1], positions[15]) = (Some(place), Some(place));
    let root = Root {
        start_seq: Seq(6),
        start_move: Seq(5),
        generation_next: 8,
        extents: 1000,
        leaves: 12,
        positions,
        records: vec![place, Place { segment: SegNo(4), ..place }],
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
fn the_prose_agrees_with_the_code() {
    let prose = include_str!("../../../../docs/FORMAT.md");
    let tables = [
        rows!(SuperblockRaw: magic version crc features uuid capacity_bytes segment_bytes block_bytes sequence
            epoch flushed_seq root_generation root_segment root_offset root_bytes reserved),
        rows!(SegmentHeaderRaw: magic crc version kind class segment generation epoch opened_seq flushed_seq
            flushed_move reserved_b),
        rows!(RecordHeaderRaw: magic crc kind flags space segment generation epoch seq flushed_seq part offset
            body_bytes total_bytes),
        rows!(EntryRaw: lba sectors birth grain crc stored kind reserved),
        rows!(FooterRaw: magic crc segment body_bytes generation epoch records reserved),
        rows!(FooterRecordRaw: seq flushed_seq offset total_bytes entries part kind flags),
        rows!(FooterEntryRaw: lba value stored sectors kind),
        rows!(MapLeafRaw: base span len width),
        rows!(MapIndexRaw: start bytes segment grain crc leaf_bytes extents),
        rows!(SegmentLiveRaw: bytes extents),
        rows!(RootRaw: start_seq start_move generation_next extents leaves records positions reserved),
        rows!(PlaceRaw: segment offset generation),
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
