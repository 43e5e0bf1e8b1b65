//! The check finds exactly what was broken, in one order, however many sectors it reads together and wherever they lie.

use std::{ops::ControlFlow, sync::Arc};

use lacuna_device::{BlockDevice, MemDevice, SECTOR};
use lacuna_ftl::{CheckDepth, Lba, Op, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};
use zerocopy::IntoBytes;

use super::*;
use crate::{
    data::{WriteOptions, XattrMode},
    format::{self, Bucket, Caller, Dirent, Inode, Marks, Orphan, Slot},
    names::hash_table,
    posix::Posix,
    vfs::{Nvmfs, Options},
    volume::{FormatOptions, Volume},
};

/// A file system with all kinds of objects, and the objects that can be broken.
struct World {
    device: Arc<SimDevice>,
    vfs: Nvmfs,
    /// Regular files with one name, of an odd length.
    files: Vec<Named>,
    /// Directories with nothing in them.
    directories: Vec<Named>,
    /// Symbolic links with long targets.
    links: Vec<Named>,
    /// Files with attributes outside of their inodes.
    with_xattrs: Vec<Named>,
}

#[derive(Clone)]
struct Named {
    ino: Ino,
    parent: Ino,
    name: String,
}

const DEVICE_BYTES: u64 = 16 << 20;
const FILE_BYTES: usize = 1300;

/// Offset of the type in an entry without its header.
const FILE_TYPE_AT: usize = 8;

impl World {
    fn new(seed: u64) -> World {
        let device = SimDevice::new(DEVICE_BYTES, seed);
        let mut format = FormatOptions { uuid: Some([7; 16]), ..FormatOptions::default() };
        format.ftl.segment_bytes = Some(64 << 10);
        Nvmfs::format(device.clone(), &format).unwrap();
        let mut options = Options::default();
        options.ftl.background = false;
        let vfs = Nvmfs::open(device.clone(), options).unwrap();
        let mut world = World {
            device,
            vfs,
            files: Vec::new(),
            directories: Vec::new(),
            links: Vec::new(),
            with_xattrs: Vec::new(),
        };
        let mut rng = SeededRng::new(seed);
        for number in 0..100 + rng.below(60) {
            world.make(number, &mut rng);
        }
        world
    }

    fn make(&mut self, number: u64, rng: &mut SeededRng) {
        let fs = self.vfs.posix();
        let parents: Vec<Ino> = self.directories.iter().map(|directory| directory.ino).collect();
        let parent = match rng.below(4) {
            0 if !parents.is_empty() => parents[rng.below(parents.len() as u64) as usize],
            _ => Ino::ROOT,
        };
        let name = format!("{number}");
        let bytes = name.as_bytes();
        let mode = 0o100_644;
        match rng.below(7) {
            0 => {
                let ino = fs.mkdir(parent, bytes, 0o755, Caller::default()).unwrap().ino;
                self.directories.push(Named { ino, parent, name });
            }
            1 => {
                let ino = fs.symlink(parent, bytes, &[b'x'; 1200], Caller::default()).unwrap().ino;
                self.links.push(Named { ino, parent, name });
            }
            2 => {
                let ino = fs.mknod(parent, bytes, mode, 0, Caller::default()).unwrap().ino;
                fs.setxattr(ino, b"user.large", &[5; 2000], XattrMode::Set).unwrap();
                self.with_xattrs.push(Named { ino, parent, name });
            }
            3 => {
                let ino = fs.mknod(parent, bytes, mode, 0, Caller::default()).unwrap().ino;
                fs.link(ino, Ino::ROOT, format!("{number} again").as_bytes()).unwrap();
                fs.setxattr(ino, b"security.capability", &[1; 20], XattrMode::Set).unwrap();
            }
            _ => {
                let ino = fs.mknod(parent, bytes, mode, 0, Caller::default()).unwrap().ino;
                fs.write(ino, 0, &[9; FILE_BYTES], WriteOptions::default()).unwrap();
                self.files.push(Named { ino, parent, name });
            }
        }
        if rng.chance(20) {
            // Its inode lies elsewhere than its number says.
            fs.setxattr(parent, b"user.small", &[number as u8], XattrMode::Set).unwrap();
        }
    }

    fn fs(&self) -> Posix {
        self.vfs.posix()
    }

    fn volume(&self) -> &Volume {
        self.vfs.layers().inodes().volume()
    }

    fn write(&self, lba: Lba, data: &[u8]) {
        self.vfs.ftl().write_batch(&[Op::Write { lba, data }], Stream::Data).unwrap();
    }

    fn trim(&self, lba: Lba) {
        self.vfs.ftl().write_batch(&[Op::Trim { lba, sectors: 1 }], Stream::Data).unwrap();
    }

    fn inode(&self, of: &Named) -> Inode {
        self.volume().read_inode(of.ino).unwrap()
    }

    /// Where an entry lies, and the entry.
    fn entry(&self, of: &Named) -> (Lba, Dirent) {
        let hash = self.volume().hash_name(of.name.as_bytes());
        let bucket = hash_table::home(hash);
        let Slot::Entry(entry) = self.volume().read_bucket(of.parent, bucket).unwrap() else {
            panic!("{} is not at home", of.name)
        };
        (bucket.lba(of.parent), entry)
    }

    /// The findings when this many sectors are read together.
    fn findings(&self, at_once: usize) -> Vec<String> {
        let mut report = Report::default();
        check_files(self.vfs.layers().inodes(), CheckDepth::Payload, at_once, &mut report, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        report.findings.into_iter().map(|finding| finding.message).collect()
    }

    fn stir(&self) {
        while self.vfs.ftl().step(Work::Gc).unwrap() && self.vfs.ftl().stats().gc_segments < 40 {}
        self.vfs.ftl().checkpoint().unwrap();
    }
}

/// Takes something that is not broken yet.
fn take(from: &mut Vec<Named>, rng: &mut SeededRng) -> Named {
    from.swap_remove(rng.below(from.len() as u64) as usize)
}

/// Breaks something and returns the expected findings.
type Break = fn(&mut World, &mut SeededRng) -> Vec<String>;

const BREAKS: &[Break] = &[
    |world, rng| {
        let of = take(&mut world.files, rng);
        world.write(of.ino.inode_lba(), &[0xa5; SECTOR]);
        let Named { ino, parent, name } = of;
        let error = world.volume().corrupt("inode table", ino.number(), "no magic");
        vec![format!("inode {}, called {name:?} in directory {}, is damaged: {error}", ino.0, parent.0)]
    },
    |world, rng| {
        let of = take(&mut world.files, rng);
        let (lba, _) = world.entry(&of);
        world.write(lba, &[0xa5; SECTOR]);
        let what = format!("directory {}", of.parent.0);
        vec![
            world.volume().corrupt(&what, Ino::of(lba).1, "no magic").to_string(),
            format!("invariant 1: inode {} has 0 names and 1 links", of.ino.0),
        ]
    },
    |world, rng| {
        let of = take(&mut world.links, rng);
        world.trim(world.entry(&of).0);
        vec![format!("invariant 1: inode {} has 0 names and 1 links", of.ino.0)]
    },
    |world, rng| {
        let of = take(&mut world.files, rng);
        let mut inode = world.inode(&of);
        inode.set_nlink(7);
        world.write(of.ino.inode_lba(), &inode.seal());
        vec![format!("invariant 1: inode {} has 1 names and 7 links", of.ino.0)]
    },
    |world, rng| {
        let of = take(&mut world.files, rng);
        let orphan = Orphan::new(of.ino, world.inode(&of).generation());
        world.write(of.ino.orphan_lba(), &format::seal(&orphan, of.ino.orphan_lba()));
        vec![format!("invariant 3: inode {} has 1 links and is an orphan", of.ino.0)]
    },
    // Crossed names: each names the other's inode.
    |world, rng| {
        let (file, link) = (take(&mut world.files, rng), take(&mut world.links, rng));
        let of_both = [(&file, &link), (&link, &file)].map(|(of, other)| {
            let (lba, entry) = world.entry(of);
            let mut crossed = Dirent::new(of.name.as_bytes(), entry.hash(), &world.inode(other));
            crossed.as_mut_bytes()[FILE_TYPE_AT] = (entry.kind().mode_bits() >> 12) as u8;
            world.write(lba, &format::seal(&crossed, lba));
            let Named { name, parent, .. } = of;
            format!("invariant 1: {name:?} in directory {} has another type than its inode", parent.0)
        });
        of_both.to_vec()
    },
    |world, rng| {
        let of = take(&mut world.files, rng);
        world.write(of.ino.lba(40), &[1; SECTOR]);
        world.write(of.ino.lba(50), &[1; SECTOR]);
        vec![format!("invariant 2: file number {} has sector 40 past its end", of.ino.0)]
    },
    |world, rng| {
        let of = take(&mut world.files, rng);
        world.write(of.ino.lba(2), &[1; SECTOR]);
        let what = format!("file number {}", of.ino.0);
        vec![world.volume().corrupt(&what, 2, "invariant 2: data behind its end").to_string()]
    },
    |world, rng| {
        let number = 1000 + rng.below(1 << 20) as u32;
        world.write(Ino(number).lba(3), &[1; SECTOR]);
        vec![format!("invariant 2: file number {number} has sector 3 and no inode")]
    },
    |world, rng| {
        let of = take(&mut world.with_xattrs, rng);
        world.trim(Lba(of.ino.xattr_lba().0 + 1));
        vec![world.volume().corrupt("attributes of inode", of.ino.number(), "no magic").to_string()]
    },
    |world, rng| {
        let of = take(&mut world.files, rng);
        world.write(of.ino.xattr_lba(), &[1; SECTOR]);
        let sector = of.ino.number() * XATTR_SECTORS;
        vec![format!("invariant 2: sector {sector} of the attributes is no inode's")]
    },
    |world, rng| {
        let of = take(&mut world.links, rng);
        world.trim(of.ino.lba(1));
        let what = format!("symbolic link {}", of.ino.number());
        vec![world.volume().corrupt(&what, 0, "its target is not there as a whole").to_string()]
    },
    // A capability without its mark: a write would not take it away.
    |world, rng| {
        let of = take(&mut world.files, rng);
        world.fs().setxattr(of.ino, b"security.capability", &[1; 20], XattrMode::Set).unwrap();
        let mut inode = world.inode(&of);
        let bytes = inode.inline_xattrs().unwrap().to_vec();
        inode.set_xattrs(&bytes, Marks::default());
        world.write(of.ino.inode_lba(), &inode.seal());
        let reason = "a capability or an access control list, or the mark of one, is missing";
        vec![world.volume().corrupt("attributes of inode", of.ino.number(), reason).to_string()]
    },
    // A mode that its access control list does not allow.
    |world, rng| {
        let of = take(&mut world.files, rng);
        // Owner, a named user, group, mask and others.
        let entries = [(1, 6, u32::MAX), (2, 4, 7), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            list.extend([tag, 0, permissions, 0]);
            list.extend(u32::to_le_bytes(id));
        }
        world.fs().setxattr(of.ino, b"system.posix_acl_access", &list, XattrMode::Set).unwrap();
        let mut inode = world.inode(&of);
        inode.set_permissions(0o666);
        world.write(of.ino.inode_lba(), &inode.seal());
        let reason = "the access control list and the mode disagree";
        vec![world.volume().corrupt("attributes of inode", of.ino.number(), reason).to_string()]
    },
    // Programs that know no compression would open the store.
    |world, rng| {
        let of = take(&mut world.files, rng);
        let mut inode = world.inode(&of);
        inode.set_compression(["none", "lz4", "zstd:7"][rng.below(3) as usize].parse().unwrap());
        world.write(of.ino.inode_lba(), &inode.seal());
        let ino = of.ino.0;
        vec![format!(
            "invariant 8: inode {ino} has a compression and the superblock does not say that one may"
        )]
    },
    // The same name twice: the second is never found.
    |world, rng| {
        let (first, second) = (take(&mut world.files, rng), take(&mut world.files, rng));
        let (old, _) = world.entry(&second);
        let (lba, entry) = world.entry(&first);
        let next = Lba(lba.0 + 1);
        let twice = Dirent::new(first.name.as_bytes(), entry.hash(), &world.inode(&second));
        world.write(next, &format::seal(&twice, next));
        world.trim(old);
        let Named { name, parent, .. } = first;
        vec![format!("directory invariant 4: {name:?} is twice in directory {}", parent.0)]
    },
    |world, rng| {
        let of = take(&mut world.files, rng);
        let (lba, entry) = world.entry(&of);
        let elsewhere = Lba(lba.0 - 5);
        world.trim(lba);
        world.write(elsewhere, &format::seal(&entry, elsewhere));
        vec![format!("directory invariant 1: {:?} cannot be found", of.name)]
    },
    |world, rng| {
        let of = take(&mut world.files, rng);
        let (lba, _) = world.entry(&of);
        let tombstone = Bucket(Ino::of(lba).1 + 1);
        world.write(
            tombstone.lba(of.parent),
            &format::seal(&format::Tombstone::new(), tombstone.lba(of.parent)),
        );
        let (bucket, whose) = (tombstone.0, of.parent.0);
        vec![format!("directory invariant 3: tombstone in bucket {bucket} of directory {whose}")]
    },
];

#[test]
fn it_finds_what_was_broken_and_nothing_else() {
    for_each_seed(60, |seed| {
        let mut rng = SeededRng::new(seed);
        let mut world = World::new(seed);
        assert_eq!(world.findings(SECTORS_AT_ONCE), Vec::<String>::new());
        let mut expected = Vec::new();
        for _ in 0..1 + rng.below(6) {
            let break_it = BREAKS[rng.below(BREAKS.len() as u64) as usize];
            expected.extend(break_it(&mut world, &mut rng));
        }
        let found = world.findings(SECTORS_AT_ONCE);
        for at_once in [1, 2, 7, 64] {
            assert_eq!(world.findings(at_once), found, "{at_once} sectors at once");
        }
        world.stir();
        assert_eq!(world.findings(SECTORS_AT_ONCE), found, "lying elsewhere");
        let mut sorted = found.clone();
        sorted.sort_unstable();
        expected.sort_unstable();
        assert_eq!(sorted, expected);
    });
}

/// Damage by the device gives the same findings, however much is read together.
#[test]
fn flipped_bits_are_found_alike() {
    const CASES: u64 = 60;
    let (mut hits, mut cases) = (0, 0);
    for_each_seed(CASES, |seed| {
        cases += 1;
        let mut rng = SeededRng::new(seed);
        let world = World::new(seed);
        world.vfs.ftl().checkpoint().unwrap();
        let used = world.vfs.ftl().stats().store_bytes;
        for _ in 0..20 {
            world.device.flip_bit((64 << 10) + rng.below(used), rng.below(8) as u8);
        }
        let found = world.findings(SECTORS_AT_ONCE);
        for at_once in [1, 5, 50] {
            assert_eq!(world.findings(at_once), found, "{at_once} sectors at once");
        }
        hits += found.len();
    });
    assert!(hits > 60 || cases < CASES, "hardly a flip hit anything");
}

/// All consequences of a damaged directory are one finding: its entries still exist.
#[test]
fn a_damaged_directory_is_one_finding() {
    let world = World::new(1);
    let fs = world.fs();
    let make = |parent, name: &[u8]| fs.mkdir(parent, name, 0o755, Caller::default()).unwrap().ino;
    let outer = make(Ino::ROOT, b"outer");
    let inner = make(outer, b"inner");
    for (parent, count) in [(outer, 30), (inner, 20)] {
        for number in 0..count {
            let name = format!("file {number}");
            fs.mknod(parent, name.as_bytes(), 0o100_644, 0, Caller::default()).unwrap();
        }
    }
    make(inner, b"innermost");
    world.write(outer.inode_lba(), &[1; SECTOR]);
    let found = world.findings(SECTORS_AT_ONCE);
    assert!(found.len() == 1 && found[0].contains("called \"outer\" in directory 2"), "{found:?}");
    // The second is found through the first.
    world.write(inner.inode_lba(), &[1; SECTOR]);
    let found = world.findings(3);
    assert!(found.len() == 2 && found[1].contains(&format!("in directory {}", outer.0)), "{found:?}");
}

/// A directory that was removed with names in it: the next open would free it, and its files had no names.
#[test]
fn an_orphan_directory_with_names_is_found() {
    let world = World::new(1);
    let fs = world.fs();
    let directory = fs.mkdir(Ino::ROOT, b"removed", 0o755, Caller::default()).unwrap().ino;
    fs.open(directory).unwrap();
    fs.rmdir(Ino::ROOT, b"removed").unwrap();
    assert_eq!(world.findings(SECTORS_AT_ONCE), Vec::<String>::new(), "open without a name");
    let file = world.files[0].clone();
    let (old, entry) = world.entry(&file);
    let lba = directory.lba(Ino::of(old).1);
    world.write(lba, &format::seal(&entry, lba));
    world.trim(old);
    let found = world.findings(SECTORS_AT_ONCE);
    assert_eq!(found, [format!("invariant 3: directory {} has no links and something in it", directory.0)]);
}

/// Its `..` would lead into it.
#[test]
fn a_root_that_lies_elsewhere_is_found() {
    let world = World::new(1);
    let directory = world.fs().mkdir(Ino::ROOT, b"below", 0o755, Caller::default()).unwrap().ino;
    let mut root = world.volume().read_inode(Ino::ROOT).unwrap();
    root.set_parent(directory);
    world.write(Ino::ROOT.inode_lba(), &root.seal());
    let found = world.findings(SECTORS_AT_ONCE);
    assert_eq!(found, [format!("invariant 1: the root lies in directory {}", directory.0)]);
}

#[test]
fn circles_of_directories_are_loose_and_what_hangs_from_them() {
    let world = World::new(2);
    let fs = world.fs();
    let mut above = Ino::ROOT;
    let chain: Vec<Ino> = (0..6)
        .map(|number| {
            above =
                fs.mkdir(above, format!("chain {number}").as_bytes(), 0o755, Caller::default()).unwrap().ino;
            above
        })
        .collect();
    let mut inode = world.volume().read_inode(chain[1]).unwrap();
    inode.set_parent(chain[3]);
    world.write(chain[1].inode_lba(), &inode.seal());
    let loose = |ino: &Ino| format!("invariant 1: directory {} does not hang from the root", ino.0);
    let found = world.findings(SECTORS_AT_ONCE);
    let expected: Vec<String> = chain[1..].iter().map(loose).collect();
    assert!(found[0].contains("has another parent"), "{found:?}");
    assert_eq!(found[1..], expected);
}

/// Inodes, names and ends of files of a store of which nothing is in memory.
#[test]
fn it_takes_few_reads() {
    const FILES: u64 = 10_000;
    let device = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(device.clone(), &FormatOptions::default()).unwrap();
    let open = || Nvmfs::open(device.clone(), Options::default()).unwrap();
    let vfs = open();
    let fs = vfs.posix();
    for number in 0..FILES {
        let name = format!("file {}", number * 7919 % FILES);
        let ino = fs.mknod(Ino::ROOT, name.as_bytes(), 0o100_644, 0, Caller::default()).unwrap().ino;
        fs.write(ino, 0, &[1; 700], WriteOptions::default()).unwrap();
    }
    vfs.close().unwrap();
    drop((fs, vfs));
    let vfs = open();
    let before = device.stats().reads;
    let mut told = Vec::new();
    let report = vfs.check_reporting(CheckDepth::Payload, |progress| {
        told.push(progress);
        ControlFlow::Continue(())
    });
    let report = report.unwrap();
    let reads = device.stats().reads - before;
    assert!(report.is_clean() && report.files == FILES, "{report:?}");
    assert!(reads < FILES / 10, "{reads} reads for {FILES} files");
    for what in ["leaves of the map", "extents", "segments", "inodes", "names"] {
        assert!(told.iter().any(|progress| progress.what == what), "{what}: {told:?}");
    }
    assert!(told.iter().all(|progress| progress.done <= progress.expected), "{told:?}");
    for what in ["leaves of the map", "extents", "segments", "inodes", "names"] {
        let ends = |progress: Progress| match progress.what == what {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let ended = vfs.check_reporting(CheckDepth::Payload, ends).unwrap_err();
        assert!(ended.to_string().contains("ended before"), "{what}: {ended}");
    }
}
