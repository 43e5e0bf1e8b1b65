//! Damaged, foreign and strange stores: an error or the right data; never a panic, never wrong data.

use std::{fs, sync::Arc};

use crate::history::{Model, apply, random_change};
use lacuna_device::{BlockDevice, Error as DeviceError, MemDevice, StreamHint, Vfs};
use lacuna_ftl::{self as ftl, Lba, Op, Stream};
use lacuna_nvmfs::{
    CheckDepth, Error, FormatOptions, Ino, Nvmfs, OpenedVfs, Options, Remains, VfsOptions, format_path,
    open_vfs,
    posix::{Caller, FileKind, Rename, SetAttr, WriteOptions, XattrMode},
};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed, unreadable};

fn inode_lba(ino: u64) -> Lba {
    Lba((1 << 36) + ino)
}

fn small_format() -> FormatOptions {
    let mut options = FormatOptions { uuid: Some([3; 16]), ..FormatOptions::default() };
    options.ftl.segment_bytes = Some(64 << 10);
    options
}

fn sim(seed: u64) -> (Arc<SimDevice>, Arc<dyn BlockDevice>) {
    let device = SimDevice::new(4 << 20, seed);
    let raw: Arc<dyn BlockDevice> = device.clone();
    Nvmfs::format(Arc::clone(&raw), &small_format()).unwrap();
    (device, raw)
}

/// Compares everything readable with the model. True if there was no error.
fn reads_right_or_fails(vfs: &Nvmfs, model: &Model) -> bool {
    let mut is_whole = true;
    for (name, content) in &model.0 {
        let file = match vfs.open(name, StreamHint::Data) {
            Ok(file) => file,
            Err(error) => {
                assert!(!matches!(error, DeviceError::NotFound { .. }), "{name} vanished");
                is_whole = false;
                continue;
            }
        };
        assert_eq!(file.len().unwrap(), content.len() as u64, "{name}");
        for (index, sector) in content.chunks(512).enumerate() {
            let mut back = [0; 512];
            match file.read_at(index as u64 * 512, &mut back) {
                Ok(()) => assert_eq!(back, sector, "{name}, sector {index}: wrong data"),
                Err(_) => is_whole = false,
            }
        }
    }
    match vfs.list() {
        Ok(names) => assert!(!is_whole || names.len() == model.0.len()),
        Err(_) => is_whole = false,
    }
    is_whole
}

/// Compares the remains with the model, if all batches are there. False if there is nothing to begin with.
fn remains_are_right(salvaged: lacuna_nvmfs::Result<(Nvmfs, Vec<String>)>, model: &Model) -> bool {
    let Ok((vfs, damage)) = salvaged else { return false };
    let entries = vfs.remaining_entries(Ino::ROOT).unwrap();
    let inodes = vfs.remaining_inodes().unwrap();
    if !damage.is_empty() {
        return true;
    }
    assert!(inodes.found.len() == model.0.len() + 1 || !inodes.lost.is_empty());
    assert!(entries.found.len() == model.0.len() || !entries.lost.is_empty(), "names vanished");
    for entry in entries.found {
        let mut left = model.0[std::str::from_utf8(&entry.name).unwrap()].to_vec();
        let mut offset = 0;
        while offset < left.len() as u64 {
            let Remains { found, lost } = vfs.remaining_data(entry.ino, offset).unwrap();
            for (at, data) in found.runs {
                let (at, within) = (at as usize, data.len().min(left.len().saturating_sub(at as usize)));
                assert!(data[..within] == left[at..at + within], "wrong data");
                left[at..at + within].fill(0);
            }
            for (range, _) in lost {
                let end = range.end.min(left.len() as u64);
                left[(range.start.min(end)) as usize..end as usize].fill(0);
            }
            offset = found.end;
        }
        assert!(left.iter().all(|byte| *byte == 0), "data vanished");
    }
    true
}

#[test]
fn flipped_bits_are_errors_or_harmless() {
    for_each_seed(150, |seed| {
        let mut rng = SeededRng::new(seed);
        let (device, raw) = sim(seed);
        let vfs = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
        let mut model = Model::default();
        for _ in 0..40 {
            let change = random_change(&mut rng, &model);
            if let (Ok(()), Ok(after)) = (apply(&vfs, &change), model.after(&change)) {
                model = after;
            }
        }
        let written = vfs.ftl().stats().store_bytes.min(4 << 20);
        vfs.close().unwrap();
        drop(vfs);
        for _ in 0..=rng.below(4) {
            let within = if rng.chance(70) { written } else { 4 << 20 };
            device.flip_bit(rng.below(within), rng.below(8) as u8);
        }
        let remains = remains_are_right(Nvmfs::salvage(Arc::clone(&raw), Options::default()), &model);
        let Ok(vfs) = Nvmfs::open(raw, Options::default()) else { return };
        assert!(remains, "salvage refuses what opens");
        let is_clean = vfs.check(CheckDepth::Payload).is_ok_and(|report| report.is_clean());
        let is_whole = reads_right_or_fails(&vfs, &model);
        assert!(is_whole || !is_clean, "the check saw nothing, a read did");
    });
}

#[test]
fn a_damaged_inode_is_an_error_and_a_finding() {
    let (_, raw) = sim(1);
    let vfs = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
    vfs.create("a", StreamHint::Data).unwrap();
    vfs.create("b", StreamHint::Data).unwrap();
    let garbage = Op::Write { lba: inode_lba(16), data: &[0xa5; 512] };
    vfs.ftl().write_batch(&[garbage], Stream::Data).unwrap();
    vfs.close().unwrap();
    drop(vfs); // with what it has in memory
    let vfs = Nvmfs::open(raw, Options::default()).unwrap();
    let error = vfs.open("a", StreamHint::Data).err().unwrap();
    assert!(matches!(error, DeviceError::Corrupt { .. }), "{error}");
    vfs.open("b", StreamHint::Data).unwrap();
    let report = vfs.check(CheckDepth::Structure).unwrap();
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    for words in ["inode 16", "\"a\" in directory 2", "inode table at sector 16"] {
        assert!(finding.message.contains(words), "{finding:?}");
    }
}

/// The damage that [`damaged_file`] does to inode 16.
type Damage = fn(&Nvmfs);

/// A file of 4096 bytes with the names "a" and "b", inode 16, damaged; a sound one, "c"; and nothing in memory.
fn damaged_file(damage: Damage) -> (Arc<dyn BlockDevice>, Nvmfs) {
    let (_, raw) = sim(1);
    let vfs = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
    vfs.create("a", StreamHint::Data).unwrap().write_at(0, &[1; 4096]).unwrap();
    vfs.posix().link(Ino::new(16).unwrap(), Ino::ROOT, b"b").unwrap();
    vfs.create("c", StreamHint::Data).unwrap().write_at(0, &[3; 4096]).unwrap();
    damage(&vfs);
    vfs.close().unwrap();
    drop(vfs);
    let vfs = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
    (raw, vfs)
}

fn findings(vfs: &Nvmfs) -> Vec<String> {
    let report = vfs.check(CheckDepth::Payload).unwrap();
    report.findings.into_iter().map(|finding| finding.message).collect()
}

/// Nothing was got out, although only one sector was damaged.
#[test]
fn what_is_there_is_left_without_the_superblock() {
    let (raw, vfs) = damaged_file(|vfs| {
        vfs.posix().setxattr(Ino::new(16).unwrap(), b"user.a", b"1", XattrMode::Set).unwrap();
    });
    drop(vfs);
    let mut image = vec![0; 4 << 20];
    raw.read_at(0, &mut image).unwrap();
    let superblocks: Vec<usize> =
        (0..image.len() - 5).filter(|at| image[*at..].starts_with(b"LNfs\x01")).collect();
    assert!(!superblocks.is_empty());
    superblocks.iter().for_each(|at| image[*at] ^= 1);
    raw.write_at(0, &image).unwrap();
    Nvmfs::open(Arc::clone(&raw), Options::default()).err().expect("damaged");
    let (vfs, damage) = Nvmfs::salvage(raw, Options::default()).unwrap();
    assert!(damage.len() == 1 && damage[0].contains("checksum does not match"), "{damage:?}");
    let names = vfs.remaining_entries(Ino::ROOT).unwrap();
    assert!(names.found.len() == 3 && names.lost.is_empty(), "{names:?}");
    for entry in names.found {
        let byte = if entry.name == b"c" { 3 } else { 1 };
        let data = vfs.remaining_data(entry.ino, 0).unwrap();
        assert!(data.found.runs[0].1[..4096] == [byte; 4096] && data.lost.is_empty());
        assert_eq!(vfs.posix().getattr(entry.ino).unwrap().size, 4096);
    }
    assert_eq!(vfs.posix().getxattr(Ino::new(16).unwrap(), b"user.a").unwrap(), b"1");
}

/// Its bytes come to lie elsewhere, or a torn copy lacks the part of the map that leads to it.
#[test]
fn what_is_there_is_left_where_the_superblock_is_another_sector_or_none() {
    let damages: [(Damage, &str); 3] = [
        (|vfs| trim(vfs, Lba(0), 1), "the store is empty"),
        (|vfs| write(vfs, Lba(0)), "no magic"),
        (|vfs| patch(vfs, Lba(0), 100, &[1]), "reserved bytes"),
    ];
    for (damage, reason) in damages {
        let (raw, vfs) = damaged_file(|_| ());
        damage(&vfs);
        vfs.close().unwrap();
        drop(vfs);
        let (vfs, damage) = Nvmfs::salvage(raw, Options::default()).unwrap();
        assert!(damage.len() == 1 && damage[0].contains(reason), "{damage:?}");
        assert_eq!(vfs.remaining_entries(Ino::ROOT).unwrap().found.len(), 3);
        let data = vfs.remaining_data(Ino::new(16).unwrap(), 0).unwrap();
        assert!(data.found.runs[0].1[..4096] == [1; 4096] && data.lost.is_empty());
    }
}

/// Nothing says where it has the rest, so copying what this program knows of it would leave things out, or make them up.
#[test]
fn a_superblock_of_a_newer_sector_is_not_taken_for_damage() {
    const VERSION_AT: usize = 5;
    let (_, raw) = sim(1);
    let vfs = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
    patch(&vfs, Lba(0), VERSION_AT, &[2]);
    vfs.close().unwrap();
    drop(vfs);
    let opened = Nvmfs::open(Arc::clone(&raw), Options::default()).err().unwrap();
    let salvaged = Nvmfs::salvage(raw, Options::default()).err().unwrap();
    for error in [opened, salvaged] {
        assert!(matches!(error, Error::Version { found: 2, supported: 1, .. }), "{error}");
    }
}

/// Else its owner would have it copied as a directory, with others' files in it.
#[test]
fn a_file_that_begins_as_a_directory_does_is_a_file() {
    let (raw, vfs) = damaged_file(|vfs| {
        const TOMBSTONE: u8 = 4;
        patch_as(vfs, Lba(16 << 36), TOMBSTONE, &[]);
        write(vfs, inode_lba(16));
    });
    drop(vfs);
    let (vfs, _) = Nvmfs::salvage(raw, Options::default()).unwrap();
    let found = vfs.remaining_inodes().unwrap().found;
    let damaged = found.iter().find(|inode| inode.ino == Ino::new(16).unwrap()).unwrap();
    assert_eq!(damaged.kind, FileKind::File);
}

/// One block may hold both, so its loss took the data too.
#[test]
fn what_has_neither_name_nor_inode_left_is_found_by_its_data() {
    let (raw, vfs) = damaged_file(|vfs| {
        let directory = vfs.posix().mkdir(Ino::ROOT, b"d", 0o755, Caller::default()).unwrap().ino;
        vfs.posix().mknod(directory, b"e", 0o100_644, 0, Caller::default()).unwrap();
        write(vfs, inode_lba(16));
    });
    vfs.remove("a").unwrap();
    vfs.remove("b").unwrap();
    write(&vfs, inode_lba(18));
    vfs.close().unwrap();
    drop(vfs);
    let (vfs, _) = Nvmfs::salvage(raw, Options::default()).unwrap();
    let Remains { found, lost } = vfs.remaining_inodes().unwrap();
    assert_eq!(lost.len(), 2, "{lost:?}");
    let kind = |ino| found.iter().find(|inode| inode.ino == Ino::new(ino).unwrap()).map(|inode| inode.kind);
    let kinds = [16, 17, 18].map(kind);
    assert_eq!(kinds, [Some(FileKind::File), Some(FileKind::File), Some(FileKind::Directory)]);
    let data = vfs.remaining_data(Ino::new(16).unwrap(), 0).unwrap();
    assert!(data.found.runs[0].1[..4096] == [1; 4096]);
}

#[test]
fn names_of_a_damaged_file_can_be_removed_and_its_number_stays_taken() {
    let (raw, vfs) = damaged_file(|vfs| write(vfs, inode_lba(16)));
    vfs.remove("a").unwrap();
    assert!(matches!(vfs.open("a", StreamHint::Data), Err(DeviceError::NotFound { .. })));
    assert!(matches!(vfs.open("b", StreamHint::Data), Err(DeviceError::Corrupt { .. })), "its other name");
    let found = findings(&vfs);
    assert!(found.len() == 1 && found[0].contains("called \"b\" in directory 2"), "{found:?}");
    // A damaged name is not replaced: that would remove the file with it.
    let renamed = vfs.rename("c", "b");
    assert!(matches!(renamed, Err(DeviceError::Corrupt { .. })), "{renamed:?}");
    vfs.remove("b").unwrap();
    for round in 0..2 {
        let vfs = match round {
            0 => &vfs,
            _ => &Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap(),
        };
        let found = findings(vfs);
        assert!(found.len() == 1 && found[0].contains("no name, nothing frees the 4096 bytes"), "{found:?}");
        let new = vfs.create(&format!("new {round}"), StreamHint::Data).unwrap();
        assert_ne!(new.id().0 as u32, 16, "the number was given to another");
        let mut back = [0; 4096];
        vfs.open("c", StreamHint::Data).unwrap().read_at(0, &mut back).unwrap();
        assert_eq!(back, [3; 4096]);
        vfs.close().unwrap();
    }
}

/// A name whose inode is missing, or belongs to another file by now, is also removed without an inode.
#[test]
fn a_name_that_leads_to_no_inode_or_to_anothers_can_be_removed() {
    let gone: Damage = |vfs| trim(vfs, inode_lba(16), 1);
    let anothers: Damage = |vfs| patch(vfs, inode_lba(16), 28, &[1, 2, 3, 4]);
    for (damage, left) in [(gone, "file number 16 has sector 0 and no inode"), (anothers, "16 has 0 names")] {
        let (_, vfs) = damaged_file(damage);
        let read_other = || vfs.ftl().is_mapped(inode_lba(16)).unwrap();
        let is_there = read_other();
        vfs.remove("a").unwrap();
        vfs.remove("b").unwrap();
        assert_eq!(vfs.list().unwrap(), ["c"]);
        assert_eq!(read_other(), is_there, "another's inode was taken along");
        let found = findings(&vfs);
        assert!(found.len() == 1 && found[0].contains(left), "{found:?}");
    }
}

/// Only the inode lies where the device cannot read any more.
#[test]
fn a_file_whose_inode_the_device_cannot_read_can_be_removed() {
    const MODE: u32 = 0o100_640;
    let (raw, vfs) = damaged_file(|vfs| {
        let fs = vfs.posix();
        let other = fs.lookup(Ino::ROOT, b"c").unwrap().ino;
        let pad = || fs.write(other, 4096, &[7; 65536], WriteOptions::default()).unwrap();
        pad(); // changes an inode, too
        pad();
        let mode = SetAttr { mode: Some(MODE), ..SetAttr::default() };
        fs.setattr(Ino::new(16).unwrap(), &mode).unwrap();
        pad();
    });
    drop(vfs);
    let mut bytes = vec![0; 4 << 20];
    raw.read_at(0, &mut bytes).unwrap();
    let is_inode = |at: &usize| {
        let field = |first: usize, field: &[u8]| bytes[at + first..].starts_with(field);
        field(0, b"LNfs\x02") && field(16, &inode_lba(16).0.to_le_bytes()) && field(32, &MODE.to_le_bytes())
    };
    let at = (0..bytes.len() - 512).rfind(is_inode).expect("it is on the device") as u64;
    let vfs =
        Nvmfs::open(unreadable(raw, std::iter::once(at..at + 1).collect()), Options::default()).unwrap();
    let error = vfs.posix().lookup(Ino::ROOT, b"a").unwrap_err();
    assert!(matches!(error, Error::Ftl(ftl::Error::Device(_))) && error.errno() == 5, "{error}");
    vfs.remove("a").unwrap();
    vfs.remove("b").unwrap();
    assert_eq!(vfs.list().unwrap(), ["c"]);
    vfs.open("c", StreamHint::Data).unwrap();
    let report = vfs.check(CheckDepth::Structure).unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
}

#[test]
fn a_damaged_directory_stays_with_all_that_is_in_it() {
    let (_, raw) = sim(1);
    let vfs = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
    let directory = vfs.posix().mkdir(Ino::ROOT, b"d", 0o755, Caller::default()).unwrap().ino;
    write(&vfs, inode_lba(directory.number()));
    vfs.close().unwrap();
    drop(vfs);
    let vfs = Nvmfs::open(raw, Options::default()).unwrap();
    let fs = vfs.posix();
    for result in [fs.rmdir(Ino::ROOT, b"d"), fs.unlink(Ino::ROOT, b"d")] {
        assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    }
    assert_eq!(fs.entry(Ino::ROOT, b"d").unwrap(), (directory, FileKind::Directory));
    let found = findings(&vfs);
    assert!(found.len() == 1 && found[0].contains("called \"d\" in directory 2"), "{found:?}");
}

/// Each way to break an invariant is found by the check. Inode 16 is a file, 17 a directory with the
/// directory 18 in it, 19 a file with attributes outside its inode.
#[test]
fn broken_invariants_are_found() {
    type Break<'a> = (&'a str, &'a dyn Fn(&Nvmfs));
    let of_root = |vfs: &Nvmfs, name: &[u8]| {
        let ino = vfs.posix().lookup(Ino::ROOT, name).unwrap().ino;
        let region = Lba(2 << 36)..Lba(3 << 36);
        let mut rest = region.clone();
        let bucket = |lba: Lba| {
            let mut sector = [0; 512];
            vfs.ftl().read(lba, &mut sector).unwrap();
            u64::from(u32::from_le_bytes(sector[24..28].try_into().unwrap()))
        };
        loop {
            let run = vfs.ftl().mapped(rest.clone()).unwrap().unwrap();
            match (run.start.0..run.end.0).find(|lba| bucket(Lba(*lba)) == ino.number()) {
                Some(lba) => break Lba(lba),
                None => rest.start = run.end,
            }
        }
    };
    let breaks: [Break<'_>; 15] = [
        ("has 0 names", &|vfs| trim(vfs, of_root(vfs, b"a"), 1)),
        ("has no inode", &|vfs| trim(vfs, inode_lba(16), 1)),
        ("past its end", &|vfs| write(vfs, Lba((16 << 36) + 100))),
        ("and no inode", &|vfs| write(vfs, Lba(99 << 36))),
        ("behind all files", &|vfs| write(vfs, Lba(u64::MAX - 10))),
        ("data behind its end", &|vfs| write(vfs, Lba((16 << 36) + 8))),
        ("has 1 names and 3 links", &|vfs| patch(vfs, inode_lba(16), 36, &[3])),
        ("has 1 in it and 9 links", &|vfs| patch(vfs, inode_lba(17), 36, &[9])),
        ("has another parent", &|vfs| patch(vfs, inode_lba(18), 64, &[2])),
        ("does not hang from the root", &|vfs| patch(vfs, inode_lba(17), 64, &[18])),
        ("0 links and is no orphan", &|vfs| patch(vfs, inode_lba(16), 36, &[0])),
        ("of the orphans has no inode", &|vfs| patch_as(vfs, Lba(3 << 36 | 77), 5, &[(24, 77)])),
        ("links and is an orphan", &|vfs| {
            let generation = vfs.posix().getattr(Ino::new(16).unwrap()).unwrap().generation;
            let [a, b, c, d] = generation.to_le_bytes();
            let fields = [(24, 16), (28, a), (29, b), (30, c), (31, d)];
            patch_as(vfs, Lba(3 << 36 | 16), 5, &fields);
        }),
        ("of the attributes is no inode's", &|vfs| write(vfs, Lba(4 << 36 | 16 << 8))),
        ("attributes of inode", &|vfs| trim(vfs, Lba(4 << 36 | 19 << 8), 1)),
    ];
    for (expected, break_it) in breaks {
        let (_, raw) = sim(1);
        let vfs = Nvmfs::open(raw, Options::default()).unwrap();
        vfs.create("a", StreamHint::Data).unwrap().write_at(0, &[1; 4096]).unwrap();
        let fs = vfs.posix();
        fs.write(Ino::new(16).unwrap(), 4096, &[1; 100], WriteOptions::default()).unwrap();
        let directory = fs.mkdir(Ino::ROOT, b"d", 0o755, Caller::default()).unwrap().ino;
        fs.mkdir(directory, b"inner", 0o755, Caller::default()).unwrap();
        let other = fs.mknod(Ino::ROOT, b"b", 0o100_644, 0, Caller::default()).unwrap().ino;
        fs.setxattr(other, b"user.large", &[5; 2000], XattrMode::Set).unwrap();
        assert!(vfs.check(CheckDepth::Payload).unwrap().is_clean());
        break_it(&vfs);
        let report = vfs.check(CheckDepth::Payload).unwrap();
        let is_found = report.findings.iter().any(|finding| finding.message.contains(expected));
        assert!(is_found, "{expected:?} is not among {:?}", report.findings);
    }
}

/// Overwrites bytes of a sector of the file system's own, and recomputes its checksum.
fn patch(vfs: &Nvmfs, lba: Lba, at: usize, bytes: &[u8]) {
    let mut sector = [0; 512];
    vfs.ftl().read(lba, &mut sector).unwrap();
    sector[at..at + bytes.len()].copy_from_slice(bytes);
    store(vfs, lba, sector);
}

/// Makes a sector of the given kind, with the given bytes in it.
fn patch_as(vfs: &Nvmfs, lba: Lba, kind: u8, bytes: &[(usize, u8)]) {
    let mut sector = [0; 512];
    sector[..6].copy_from_slice(&[b'L', b'N', b'f', b's', kind, 1]);
    sector[16..24].copy_from_slice(&lba.0.to_le_bytes());
    bytes.iter().for_each(|(at, byte)| sector[*at] = *byte);
    store(vfs, lba, sector);
}

fn store(vfs: &Nvmfs, lba: Lba, mut sector: [u8; 512]) {
    sector[8..12].fill(0);
    let crc = lacuna_crc::crc32c(&sector);
    sector[8..12].copy_from_slice(&crc.to_le_bytes());
    vfs.ftl().write_batch(&[Op::Write { lba, data: &sector }], Stream::Data).unwrap();
}

/// A directory that is its own parent's parent does not hang a rename, nor the check.
#[test]
fn a_circle_of_directories_is_an_error() {
    let (_, raw) = sim(1);
    let vfs = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
    let fs = vfs.posix();
    let make = |parent, name: &[u8]| fs.mkdir(parent, name, 0o755, Caller::default()).unwrap().ino;
    let outer = make(Ino::ROOT, b"outer");
    let inner = make(outer, b"inner");
    let other = make(Ino::ROOT, b"other");
    patch(&vfs, inode_lba(outer.number()), 64, &[inner.number() as u8]);
    vfs.close().unwrap();
    drop((fs, vfs));
    let vfs = Nvmfs::open(raw, Options::default()).unwrap();
    let error = vfs.posix().rename(Ino::ROOT, b"other", inner, b"x", Rename::Replace).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.errno() == 5, "{error}");
    assert_eq!(vfs.posix().lookup(Ino::ROOT, b"other").unwrap().ino, other);
    assert!(!vfs.check(CheckDepth::Structure).unwrap().is_clean());
}

/// Damage to orphans that a crash left behind does not keep the store from being opened.
#[test]
fn damaged_orphans_are_left_and_found() {
    let (_, raw) = sim(1);
    let vfs = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
    let fs = vfs.posix();
    for name in [&b"a"[..], b"b", b"c"] {
        fs.create(Ino::ROOT, name, 0o644, Caller::default()).unwrap();
        fs.unlink(Ino::ROOT, name).unwrap();
    }
    patch(&vfs, Lba(3 << 36 | 16), 28, &[1, 2, 3, 4]); // another generation
    write(&vfs, Lba(3 << 36 | 17)); // no such sector
    fs.sync().unwrap();
    drop((fs, vfs));
    let vfs = Nvmfs::open(raw, Options::default()).unwrap();
    let report = vfs.check(CheckDepth::Payload).unwrap();
    assert_eq!(report.findings.len(), 4, "{:?}", report.findings);
    assert!(vfs.posix().getattr(Ino::new(18).unwrap()).is_err(), "the sound one is gone");
}

fn trim(vfs: &Nvmfs, lba: Lba, sectors: u64) {
    vfs.ftl().write_batch(&[Op::Trim { lba, sectors }], Stream::Data).unwrap();
}

fn write(vfs: &Nvmfs, lba: Lba) {
    vfs.ftl().write_batch(&[Op::Write { lba, data: &[1; 512] }], Stream::Data).unwrap();
}

#[test]
fn a_store_without_file_system_is_refused() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(32 << 20));
    assert!(matches!(Nvmfs::open(Arc::clone(&device), Options::default()), Err(Error::Ftl(_))));
    ftl::Ftl::format(Arc::clone(&device), &ftl::FormatOptions::default()).unwrap();
    let error = Nvmfs::open(Arc::clone(&device), Options::default()).err().unwrap();
    assert!(matches!(error, Error::NotAFileSystem { .. }), "{error}");
    let error = Nvmfs::format(device, &FormatOptions::default()).err().unwrap();
    assert!(matches!(error, Error::Ftl(ftl::Error::NotEmpty { .. })), "{error}");
}

fn opened_error(path: &std::path::Path, options: &VfsOptions) -> String {
    open_vfs(path, options).err().expect("it opened").to_string()
}

/// Of several that make a store under one name at the same time, one does, and all others leave it alone.
#[test]
fn stores_that_are_made_at_the_same_time_are_one() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let path = directory.path().join(format!("store{round}"));
        let barrier = std::sync::Barrier::new(4);
        let made = std::thread::scope(|scope| {
            let options = VfsOptions { create_size: Some(32 << 20), ..VfsOptions::default() };
            let make = |opens: bool| {
                let (path, barrier, options) = (&path, &barrier, options.clone());
                scope.spawn(move || {
                    barrier.wait();
                    match opens {
                        true => open_vfs(path, &options).and_then(|opened| opened.close()),
                        false => format_path(path, Some(32 << 20), &FormatOptions::default()),
                    }
                })
            };
            let makers = [true, false, true, false].map(make);
            makers.map(|maker| maker.join().unwrap())
        });
        assert!(made.iter().any(Result::is_ok), "{made:?}");
        drop(open_vfs(&path, &VfsOptions::default()).expect("it is a store"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), round + 1);
    }
}

#[test]
fn paths_become_places_or_one_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let named = |error: String, cause: &str| {
        assert!(error.contains(path.to_str().unwrap()) && error.contains(cause), "{error}");
        assert!(!error.contains('\n'), "{error}");
    };
    named(opened_error(&path, &VfsOptions::default()), "No such file");

    let options = VfsOptions { create_size: Some(32 << 20), ..VfsOptions::default() };
    let opened = open_vfs(&path, &options).unwrap();
    let vfs = opened.vfs();
    vfs.create("a", StreamHint::Data).unwrap().write_at(0, &[8; 4096]).unwrap();
    named(opened_error(&path, &options), "in use by another process");
    opened.close().unwrap();
    drop((opened, vfs));

    // An existing store is opened, whatever size was asked for; and never formatted by accident.
    let opened = open_vfs(&path, &options).unwrap();
    assert!(matches!(opened, OpenedVfs::Store(_)));
    assert_eq!(opened.vfs().list().unwrap(), ["a"]);
    drop(opened);
    named(
        format_path(&path, Some(64 << 20), &FormatOptions::default()).err().unwrap().to_string(),
        "not empty",
    );
    named(format_path(&path, None, &FormatOptions::default()).err().unwrap().to_string(), "not empty");
    let mut force = FormatOptions::default();
    force.ftl.force = true;
    format_path(&path, Some(64 << 20), &force).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 << 20);
    assert!(open_vfs(&path, &options).unwrap().vfs().list().unwrap().is_empty());

    for foreign in [&b""[..], b"#!/bin/sh\necho precious\n", &[0x42; 1 << 20]] {
        fs::write(&path, foreign).unwrap();
        named(opened_error(&path, &options), "");
        assert!(format_path(&path, None, &FormatOptions::default()).is_err());
        if !foreign.is_empty() {
            let error = format_path(&path, Some(32 << 20), &FormatOptions::default()).err().unwrap();
            named(error.to_string(), "not empty");
        }
        assert_eq!(fs::read(&path).unwrap(), foreign, "a foreign file was touched");
    }
    fs::write(&path, b"").unwrap();
    format_path(&path, Some(32 << 20), &FormatOptions::default()).unwrap();

    // A truncated store.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    named(opened_error(&path, &options), "");

    let opened = open_vfs(directory.path(), &options).unwrap();
    assert!(matches!(opened, OpenedVfs::Directory(_)));
}

#[test]
fn a_store_opened_read_only_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let read_only = VfsOptions { read_only: true, ..VfsOptions::default() };
    for is_closed in [true, false] {
        let _ = fs::remove_file(&path);
        let options = VfsOptions { create_size: Some(32 << 20), ..VfsOptions::default() };
        let opened = open_vfs(&path, &options).unwrap();
        let file = opened.vfs().create("a", StreamHint::Data).unwrap();
        file.write_at(0, &[8; 4096]).unwrap();
        file.sync().unwrap();
        if is_closed {
            opened.close().unwrap();
        }
        drop((file, opened));

        let bytes = fs::read(&path).unwrap();
        let opened = open_vfs(&path, &read_only).unwrap();
        let vfs = opened.vfs();
        let file = vfs.open("a", StreamHint::Data).unwrap();
        let mut back = [0; 4096];
        file.read_at(0, &mut back).unwrap();
        assert_eq!(back, [8; 4096]);
        for result in [
            file.write_at(0, &[9; 512]),
            file.set_len(0),
            vfs.create("b", StreamHint::Data).map(drop),
            vfs.remove("a"),
            vfs.rename("a", "b"),
        ] {
            assert!(matches!(result, Err(DeviceError::Unsupported { .. })), "{result:?}");
        }
        let OpenedVfs::Store(store) = &opened else { panic!("not a store") };
        assert!(store.check(CheckDepth::Payload).unwrap().is_clean());
        opened.close().unwrap();
        drop((file, vfs, opened));
        assert!(fs::read(&path).unwrap() == bytes, "closed before: {is_closed}");
    }
    let missing = directory.path().join("missing");
    assert!(open_vfs(&missing, &VfsOptions { create_size: Some(32 << 20), ..read_only }).is_err());
    assert!(!missing.exists());
}

#[test]
fn a_failed_creation_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    for size in [0, 4097, 8192] {
        let options = VfsOptions { create_size: Some(size), ..VfsOptions::default() };
        assert!(open_vfs(&path, &options).is_err());
        assert!(!path.exists(), "{size}");
        assert!(format_path(&path, Some(size), &FormatOptions::default()).is_err());
        assert!(!path.exists(), "{size}");
    }
}

#[test]
fn a_failed_device_stops_writes_and_loses_nothing_synced() {
    let (device, raw) = sim(1);
    let vfs = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
    let file = vfs.create("a", StreamHint::Data).unwrap();
    file.write_at(0, &[1; 4096]).unwrap();
    vfs.sync().unwrap();
    file.write_at(0, &[2; 4096]).unwrap();
    device.fail_sync();
    assert!(vfs.sync().is_err());
    device.heal();
    let error = vfs.sync().err().unwrap();
    assert!(matches!(error, DeviceError::Poisoned { .. }), "{error}");
    assert!(file.write_at(0, &[3; 4096]).is_err());
    drop((file, vfs));
    device.power_cycle();
    let vfs = Nvmfs::open(raw, Options::default()).unwrap();
    let mut back = [0; 4096];
    vfs.open("a", StreamHint::Data).unwrap().read_at(0, &mut back).unwrap();
    assert!(back == [1; 4096] || back == [2; 4096]);
}
