use std::num::NonZeroU64;

use lacuna_sim::SeededRng;

use super::*;

const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };

fn sample_inode() -> Inode {
    let mut inode = Inode::new(Ino(20), 7, 0o100_644, NOW);
    inode.set_log(true);
    inode.set_compression("zstd:5".parse().unwrap());
    inode.set_size(5000);
    inode.set_owner(1000, 100);
    inode.set_rdev(9);
    inode.count_change();
    assert!(!inode.set_xattrs(b"attributes", Marks { capability: true, acl: true }));
    inode
}

fn samples() -> [(Lba, SectorBytes); KINDS] {
    let inode = sample_inode();
    let slot = Ino::ROOT.lba(99);
    [
        (Ino::SUPERBLOCK.lba(0), seal(&Superblock::new([9; 16], NOW), Ino::SUPERBLOCK.lba(0))),
        (Ino(20).inode_lba(), inode.seal()),
        (slot, seal(&Dirent::new(b"name", 0x1234, &inode), slot)),
        (slot, seal(&Tombstone::new(), slot)),
        (Ino(20).orphan_lba(), seal(&Orphan::new(Ino(20), 7), Ino(20).orphan_lba())),
        (Ino(20).xattr_lba(), seal(&XattrSector::new(Ino(20), 7, b"attributes"), Ino(20).xattr_lba())),
        (Ino::LIMITS.lba(1000), seal(&LimitsSector::new(1000, sample_limits()), Ino::LIMITS.lba(1000))),
    ]
}

fn sample_limits() -> Limits {
    Limits { bytes: NonZeroU64::new(1 << 30), inodes: NonZeroU64::new(77) }
}

/// Kinds of sectors.
const KINDS: usize = 7;

/// The reason why none of the kinds is found in `bytes`.
fn flaws(bytes: &SectorBytes, lba: Lba) -> [Option<&'static str>; KINDS] {
    [
        verify::<Superblock>(bytes, lba).err(),
        verify::<Inode>(bytes, lba).err(),
        verify::<Dirent>(bytes, lba).err(),
        verify::<Tombstone>(bytes, lba).err(),
        verify::<Orphan>(bytes, lba).err(),
        verify::<XattrSector>(bytes, lba).err(),
        verify::<LimitsSector>(bytes, lba).err(),
    ]
}

#[test]
fn each_kind_reads_back_as_itself_only() {
    for (kind, (lba, bytes)) in samples().iter().enumerate() {
        for (other, flaw) in flaws(bytes, *lba).into_iter().enumerate() {
            assert_eq!(flaw, (kind != other).then_some("wrong kind of sector"));
        }
        assert_eq!(claims_tombstone(bytes), kind == 3);
    }
    let inode = verify::<Inode>(&samples()[1].1, samples()[1].0).unwrap();
    assert_eq!((inode.ino(), inode.size(), inode.generation()), (Ino(20), 5000, 7));
    let dirent = verify::<Dirent>(&samples()[2].1, samples()[2].0).unwrap();
    assert_eq!((dirent.name(), dirent.ino(), dirent.hash()), (&b"name"[..], Ino(20), 0x1234));
}

/// The offsets that docs/FORMAT.md states.
#[test]
fn fields_lie_where_the_format_says() {
    let [(_, superblock), (inode_lba, inode), (_, dirent), _, (orphan_lba, orphan), (_, xattrs), limits] =
        samples();
    let (limits_lba, limits) = limits;
    assert_eq!((limits_lba.0, limits[24..28].to_vec()), ((5 << 36) + 1000, 1000_u32.to_le_bytes().to_vec()));
    assert_eq!((limits[32..40].to_vec(), limits[40]), ((1_u64 << 30).to_le_bytes().to_vec(), 77));
    assert_eq!(superblock[..6], *b"LNfs\x01\x01");
    assert_eq!(superblock[24..28], 1_u32.to_le_bytes());
    assert_eq!(superblock[40..56], [9; 16]);
    assert_eq!(inode[16..24], inode_lba.0.to_le_bytes());
    assert_eq!(inode[24..28], 20_u32.to_le_bytes());
    assert_eq!(inode[28..32], 7_u32.to_le_bytes());
    assert_eq!(inode[32..36], 0o100_644_u32.to_le_bytes());
    assert_eq!(inode[56..64], 5000_u64.to_le_bytes());
    assert_eq!(inode[36..40], 1_u32.to_le_bytes());
    assert_eq!((inode[40..44].to_vec(), inode[44]), (1000_u32.to_le_bytes().to_vec(), 100));
    assert_eq!((inode[48], inode[64], inode[68]), (9, 0, 1));
    assert_eq!(inode[69..72], [2, 5, 0]);
    assert_eq!(inode[72..80], 6_u64.to_le_bytes());
    assert_eq!(inode[80..88], 2_u64.to_le_bytes());
    for time_at in [88, 100, 112, 124] {
        assert_eq!(inode[time_at..time_at + 8], NOW.seconds.to_le_bytes());
        assert_eq!(inode[time_at + 8..time_at + 12], NOW.nanoseconds.to_le_bytes());
    }
    assert_eq!(inode[136..140], 10_u32.to_le_bytes());
    assert_eq!(inode[144..154], *b"attributes");
    assert!(inode[154..].iter().all(|byte| *byte == 0));
    assert_eq!(dirent[24..28], 20_u32.to_le_bytes());
    assert_eq!((dirent[32], dirent[33]), (8, 4));
    assert_eq!(dirent[40..48], 0x1234_u64.to_le_bytes());
    assert_eq!(dirent[48..52], *b"name");
    assert!(dirent[52..].iter().all(|byte| *byte == 0));
    assert_eq!((orphan_lba.0, orphan[24], orphan[28]), ((3 << 36) + 20, 20, 7));
    assert_eq!((xattrs[24], xattrs[28], xattrs[32]), (20, 7, 10));
    assert_eq!(xattrs[40..50], *b"attributes");
}

#[test]
fn any_flipped_bit_is_noticed() {
    for (lba, bytes) in samples() {
        for bit in 0..SECTOR * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(flaws(&flipped, lba).iter().all(Option::is_some), "bit {bit}");
        }
    }
}

#[test]
fn limits_of_nobody_and_limits_of_nothing_are_flaws() {
    let limits = sample_limits();
    for (uid, limits, is_sound) in [
        (1000, limits, true),
        (1, Limits { bytes: None, ..limits }, true),
        (u32::MAX - 1, Limits { inodes: None, ..limits }, true),
        (1000, Limits::default(), false),
        (0, limits, false),
        (u32::MAX, limits, false),
    ] {
        let sector = LimitsSector::new(uid, limits);
        assert_eq!(sector.flaw().is_none(), is_sound, "{sector:?}");
        assert_eq!((sector.uid(), sector.limits()), (uid, limits));
    }
}

#[test]
fn an_unknown_compression_is_a_flaw() {
    for (kind, bytes, flaw) in [
        (0o100_644, [2, 22], None),
        (0o100_644, [3, 0], None),
        (0o040_755, [1, 0], None),
        (0o100_644, [4, 0], Some("unknown compression")),
        (0o100_644, [1, 1], Some("unknown compression")),
        (0o040_755, [2, 23], Some("unknown compression")),
        (0o010_644, [1, 0], Some("impossible compression")),
    ] {
        let mut inode = Inode::new(Ino(20), 7, kind, NOW);
        inode.compression = bytes;
        assert_eq!(inode.flaw(), flaw, "{bytes:?}");
    }
}

#[test]
fn a_sector_in_the_wrong_place_is_noticed() {
    for (lba, bytes) in samples() {
        assert!(flaws(&bytes, Lba(lba.0 + 1)).iter().all(Option::is_some));
    }
}

#[test]
fn garbage_with_a_good_checksum_never_panics() {
    lacuna_sim::for_each_seed(2000, |seed| {
        let mut rng = SeededRng::new(seed);
        let (lba, mut bytes) = samples()[rng.below(KINDS as u64) as usize];
        for _ in 0..=rng.below(8) {
            bytes[24 + rng.below(488) as usize] = rng.next_u64() as u8;
        }
        let crc = checksum(&bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        if let Ok(dirent) = verify::<Dirent>(&bytes, lba) {
            assert!(!dirent.name().is_empty());
        }
        flaws(&bytes, lba);
    });
}

/// Name, offset and size of each field of a body.
macro_rules! fields {
    ($body:ty: $($field:ident)*) => {
        vec![$((
            stringify!($field).to_owned(),
            size_of::<Header>() + std::mem::offset_of!($body, $field),
            size_of_field(|body: &$body| &body.$field),
        )),*]
    };
}

fn size_of_field<B, F>(_: fn(&B) -> &F) -> usize {
    size_of::<F>()
}

/// The rows of the table under a heading of docs/FORMAT.md.
fn documented(document: &str, heading: &str) -> Vec<(String, usize, usize)> {
    let nvmfs = document.split("\n## nvmfs\n").nth(1).expect("a section on nvmfs");
    let section = nvmfs.split(&format!("\n### {heading}\n")).nth(1).expect("a heading for each kind");
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    rows.take_while(|line| line.starts_with('|'))
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[3].to_owned(), cells[1].parse().unwrap(), cells[2].parse().unwrap())
        })
        .collect()
}

#[test]
fn the_document_is_right() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/FORMAT.md");
    let Ok(document) = std::fs::read_to_string(path) else { return }; // a packaged crate has none
    let mut header = fields!(Header: magic kind version zero crc zero2 lba);
    header.iter_mut().for_each(|field| field.1 -= size_of::<Header>());
    assert_eq!(documented(&document, "sector header"), header);
    assert_eq!(
        documented(&document, "superblock"),
        fields!(Superblock: format_version zero features uuid created zero2)
    );
    assert_eq!(
        documented(&document, "inode"),
        fields!(Inode: ino generation mode nlink uid gid rdev size parent stream compression zero flags changes
            accessed modified changed created xattr_bytes zero2 inline)
    );
    assert_eq!(
        documented(&document, "entry"),
        fields!(Dirent: ino generation file_type name_len zero zero2 hash name zero3)
    );
    assert_eq!(documented(&document, "tombstone"), fields!(Tombstone: zero));
    assert_eq!(documented(&document, "orphan"), fields!(Orphan: ino generation zero));
    assert_eq!(documented(&document, "attributes"), fields!(XattrSector: ino generation len zero bytes));
    assert_eq!(documented(&document, "limits"), fields!(LimitsSector: uid zero bytes_max inodes_max zero2));
}
