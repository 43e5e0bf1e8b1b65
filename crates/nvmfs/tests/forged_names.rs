//! Directories in circles and numbers of links that cannot be, behind valid checksums: errors, in bounded time.

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{Lba, Op, Stream};
use lacuna_nvmfs::{
    CheckDepth, Error, FormatOptions, Ino, Nvmfs, Options, Refusal,
    posix::{Caller, Posix, Rename},
};
use lacuna_sim::forge::reseal_sector;

const PARENT_AT: usize = 64;
const NLINK_AT: usize = 36;
const ENTRY_INO_AT: usize = 24;
const ENTRY_GENERATION_AT: usize = 28;

fn formatted() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
    let mut options = FormatOptions { uuid: Some([3; 16]), ..FormatOptions::default() };
    options.ftl.segment_bytes = Some(64 << 10);
    Nvmfs::format(Arc::clone(&device), &options).expect("format");
    device
}

fn open(device: &Arc<dyn BlockDevice>) -> Nvmfs {
    Nvmfs::open(Arc::clone(device), Options::default()).expect("open")
}

fn inode_lba(ino: Ino) -> Lba {
    Lba((1 << 36) + ino.number())
}

/// The sector of the only entry of `directory`.
fn entry_lba(fs: &Nvmfs, directory: Ino) -> Lba {
    let region = Lba(directory.number() << 36)..Lba((directory.number() + 1) << 36);
    fs.ftl().mapped_sectors(region, 2).expect("read")[0]
}

/// Changes a sector and seals it.
fn forge(fs: &Nvmfs, lba: Lba, fields: &[(usize, u32)]) {
    let (_, mut sector) = fs.ftl().read_sectors(&[lba]).expect("read")[0];
    for (at, value) in fields {
        sector[*at..*at + 4].copy_from_slice(&value.to_le_bytes());
    }
    reseal_sector(&mut sector);
    fs.ftl().write_batch(&[Op::Write { lba, data: &sector }], Stream::Data).expect("write");
}

fn mkdir(posix: &Posix, parent: Ino, name: &[u8]) -> Ino {
    posix.mkdir(parent, name, 0o755, Caller::default()).expect("mkdir").ino
}

fn is_damage<T: std::fmt::Debug>(result: lacuna_nvmfs::Result<T>) {
    let error = result.expect_err("it is forged");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

/// `a/b/c`, of which `c` is said to be `a`; with the parents as they were, or also forged.
#[test]
fn a_directory_inside_itself_is_an_error() {
    for parents_are_forged in [false, true] {
        let device = formatted();
        let fs = open(&device);
        let posix = fs.posix();
        let a = mkdir(&posix, Ino::ROOT, b"a");
        let b = mkdir(&posix, a, b"b");
        mkdir(&posix, b, b"c");
        let other = mkdir(&posix, Ino::ROOT, b"other");
        mkdir(&posix, other, b"moved");
        fs.close().expect("close");
        drop((posix, fs));

        let fs = open(&device);
        let generation = fs.posix().getattr(a).expect("a").generation;
        forge(
            &fs,
            entry_lba(&fs, b),
            &[(ENTRY_INO_AT, a.number() as u32), (ENTRY_GENERATION_AT, generation)],
        );
        if parents_are_forged {
            forge(&fs, inode_lba(a), &[(PARENT_AT, b.number() as u32)]);
        }
        fs.close().expect("close");
        drop(fs);

        let fs = open(&device);
        let posix = fs.posix();
        assert!(!fs.check(CheckDepth::Structure).expect("check").is_clean());
        if parents_are_forged {
            is_damage(posix.lookup(Ino::ROOT, b"a"));
            is_damage(posix.rename(other, b"moved", b, b"into", Rename::Replace));
            is_damage(posix.rename(Ino::ROOT, b"a", other, b"into", Rename::Replace));
        } else {
            assert_eq!(posix.lookup(Ino::ROOT, b"a").expect("a").ino, a);
            is_damage(posix.lookup(b, b"c"));
            let error = posix.lookup_number(b, a).expect_err("it lies elsewhere");
            assert!(matches!(error, Error::Refused(Refusal::Stale)), "{error}");
            is_damage(posix.rmdir(b, b"c"));
            is_damage(posix.rename(b, b"c", other, b"into", Rename::Replace));
            is_damage(posix.rename(b, b"c", other, b"moved", Rename::Exchange));
            assert_eq!(posix.lookup(a, b"..").expect("its parent").ino, Ino::ROOT);
        }
        // What is sound goes on.
        mkdir(&posix, other, b"new");
        posix.rmdir(other, b"new").expect("rmdir");
        fs.close().expect("close");
    }
}

/// A directory that is said to lie in itself, and to be moved elsewhere.
#[test]
fn a_directory_that_names_itself_is_an_error() {
    let device = formatted();
    let fs = open(&device);
    let posix = fs.posix();
    let a = mkdir(&posix, Ino::ROOT, b"a");
    mkdir(&posix, a, b"b");
    let other = mkdir(&posix, Ino::ROOT, b"other");
    let generation = posix.getattr(a).expect("a").generation;
    fs.close().expect("close");
    drop((posix, fs));
    let fs = open(&device);
    forge(&fs, entry_lba(&fs, a), &[(ENTRY_INO_AT, a.number() as u32), (ENTRY_GENERATION_AT, generation)]);
    forge(&fs, inode_lba(a), &[(PARENT_AT, a.number() as u32)]);
    fs.close().expect("close");
    drop(fs);
    let fs = open(&device);
    let posix = fs.posix();
    is_damage(posix.lookup(a, b"b"));
    is_damage(posix.rename(a, b"b", other, b"into", Rename::Replace));
    is_damage(posix.rmdir(a, b"b"));
}

/// A link count at its limit or beyond takes no further name, and loses none.
#[test]
fn links_past_the_maximum_lose_no_name() {
    for nlink in [i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX - 1, u32::MAX] {
        let device = formatted();
        let fs = open(&device);
        let file = fs.posix().create(Ino::ROOT, b"file", 0o644, Caller::default()).expect("create").ino;
        fs.posix().release(file).expect("release");
        let directory = mkdir(&fs.posix(), Ino::ROOT, b"directory");
        fs.close().expect("close");
        drop(fs);
        let fs = open(&device);
        forge(&fs, inode_lba(file), &[(NLINK_AT, nlink)]);
        forge(&fs, inode_lba(directory), &[(NLINK_AT, nlink)]);
        fs.close().expect("close");
        drop(fs);

        let fs = open(&device);
        let posix = fs.posix();
        assert!(!fs.check(CheckDepth::Structure).expect("check").is_clean());
        let refused =
            |error: Error| assert!(matches!(error, Error::Refused(Refusal::TooManyLinks)), "{error}");
        refused(posix.link(file, Ino::ROOT, b"another").expect_err("no link is left"));
        refused(posix.mkdir(directory, b"sub", 0o755, Caller::default()).expect_err("no link is left"));
        posix.unlink(Ino::ROOT, b"file").expect("unlink");
        posix.rmdir(Ino::ROOT, b"directory").expect("rmdir");
        fs.close().expect("close");
    }
}

/// A root that is no directory, or that counts as removed, is refused: it is never freed.
#[test]
fn a_root_that_cannot_be_is_refused() {
    for (at, value) in [(32, 0o100_755_u32), (NLINK_AT, 0)] {
        let device = formatted();
        let fs = open(&device);
        let fields: &[(usize, u32)] = if at == 32 { &[(at, value), (PARENT_AT, 0)] } else { &[(at, value)] };
        forge(&fs, inode_lba(Ino::ROOT), fields);
        fs.ftl().close().expect("close");
        drop(fs);
        let error = Nvmfs::open(device, Options::default()).err().expect("there is no root");
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}
