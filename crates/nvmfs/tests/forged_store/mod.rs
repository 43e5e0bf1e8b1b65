//! Forges stores of the file system, and uses each as a mount would. `fuzz/` includes this file too.

use std::{
    collections::BTreeSet,
    num::NonZeroU64,
    ops::ControlFlow,
    sync::{Arc, OnceLock},
};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{self as ftl, Ftl, Lba, Op, Stream, Work};
use lacuna_nvmfs::{
    CheckDepth, FormatOptions, Ino, Limits, Nvmfs, Options, Seq,
    posix::{Allocate, Caller, FileKind, Posix, Rename, SetAttr, WriteOptions, XattrMode},
};
use lacuna_sim::{
    SeededRng,
    forge::{ForgedStore, Outcome, Structure, forge_number, reseal_sector, watch},
};

const CAPACITY_BYTES: u64 = 4 << 20;
/// Entries that a walk looks at, and how deep it goes.
const VISITS_MAX: usize = 200;
const DEPTH_MAX: usize = 12;

/// Whether users of the stores have limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limited {
    Nobody,
    Users,
}

/// A user with limits, and an owner of files.
const USER: u32 = 1000;

/// Stores to begin with: new, used and closed, used and cut off, aged and cut off.
fn stores(limited: Limited) -> &'static [ForgedStore] {
    static STORES: [OnceLock<Vec<ForgedStore>>; 2] = [const { OnceLock::new() }; 2];
    STORES[limited as usize].get_or_init(|| {
        [(0, true), (60, true), (60, false), (1200, false)]
            .map(|(overwrites, is_closed)| store(limited, overwrites, is_closed))
            .to_vec()
    })
}

fn format() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(CAPACITY_BYTES));
    let mut options =
        FormatOptions { uuid: Some([7; 16]), owner: Some(Caller::default()), ..FormatOptions::default() };
    options.ftl.segment_bytes = Some(64 << 10);
    options.ftl.uuid = Some([9; 16]);
    Nvmfs::format(Arc::clone(&device), &options).expect("format");
    device
}

/// A store with directories, files with holes, links and attributes, and `overwrites` changes of data.
fn store(limited: Limited, overwrites: u64, is_closed: bool) -> ForgedStore {
    let (device, mut rng) = (format(), SeededRng::new(overwrites));
    let vfs = Nvmfs::open(Arc::clone(&device), Options::default()).expect("open");
    let (posix, caller) = (vfs.posix(), Caller::default());
    let mut files = Vec::new();
    if overwrites > 0 {
        let mut above = Ino::ROOT;
        for name in [&b"a"[..], b"b", b"c"] {
            let made = posix.mkdir(above, name, 0o755, caller).expect("mkdir");
            posix.symlink(above, b"short", b"a/b/c", caller).expect("symlink");
            posix.symlink(above, b"long", &[b'x'; 600], caller).expect("symlink");
            for file in [&b"file"[..], b"other"] {
                let made = posix.create(made.ino, file, 0o644, caller).expect("create");
                posix.setxattr(made.ino, b"user.small", b"value", XattrMode::Set).expect("setxattr");
                posix.setxattr(made.ino, b"user.large", &[5; 3000], XattrMode::Set).expect("setxattr");
                posix.release(made.ino).expect("release");
                files.push(made.ino);
            }
            posix.link(files[0], made.ino, b"hard").expect("link");
            let text = ["lz4", "zstd:1"][files.len() % 4 / 2];
            posix.set_compression(files[files.len() - 2], text.parse().expect("a known one")).expect("set");
            above = made.ino;
        }
        posix.open(files[5]).expect("open");
        posix.unlink(above, b"other").expect("unlink"); // an orphan
    }
    if limited == Limited::Users {
        for uid in [USER, 3, u32::MAX - 1] {
            vfs.set_limits(uid, Limits { bytes: NonZeroU64::new(1 << 20), inodes: NonZeroU64::new(9) })
                .expect("limits");
        }
        for ino in files.iter().step_by(2) {
            posix.setattr(*ino, &SetAttr { uid: Some(USER), ..SetAttr::default() }).expect("setattr");
        }
    }
    for _ in 0..overwrites {
        let mut data = vec![0; 512 * (1 + rng.below(40) as usize)];
        let noise = if rng.chance(50) { data.len() } else { data.len() / 4 };
        rng.fill(&mut data[..noise]);
        let file = files[rng.below(5) as usize];
        posix.write(file, rng.below(200) * 512, &data, WriteOptions::default()).expect("write");
        while overwrites > 100 && rng.chance(20) && vfs.ftl().step(Work::Gc).expect("step") {}
    }
    if is_closed {
        posix.release(Ino::new(files.last().map_or(2, |ino| ino.number())).expect("a file")).ok();
        vfs.close().expect("close");
    } else {
        posix.sync().expect("sync");
    }
    drop((posix, vfs));
    ForgedStore::of(&*device)
}

/// The kinds of structure in the stores that are forged.
#[allow(dead_code, reason = "the fuzz target does not ask")]
pub(crate) fn kinds() -> BTreeSet<Structure> {
    stores(Limited::Nobody).iter().flat_map(|store| store.structures()).map(|(kind, _)| *kind).collect()
}

/// Forges a store and uses it; `case` says how to do that again.
pub(crate) fn try_store(limited: Limited, mut rng: SeededRng, case: String) -> Outcome {
    let stores = stores(limited);
    let mut store = stores[rng.below(stores.len() as u64) as usize].clone();
    if rng.chance(50) {
        store = with_forged_sectors(&store, &mut rng);
    }
    if rng.chance(60) {
        for _ in 0..=rng.below(3) {
            store.forge(&mut rng);
        }
        store.seal();
    }
    let _watchdog = watch(case);
    use_store(limited, &store, &mut rng)
}

fn device_of(store: &ForgedStore) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(CAPACITY_BYTES));
    store.write_to(&*device);
    device
}

/// The store with some of the file system's own sectors forged.
fn with_forged_sectors(store: &ForgedStore, rng: &mut SeededRng) -> ForgedStore {
    let device = device_of(store);
    let ftl = Ftl::open(Arc::clone(&device), ftl::Options::default()).expect("not forged yet");
    // Regions of the superblock, the inode table, orphans, attributes, directories and files.
    let mapped = ftl.mapped_sectors(Lba(0)..Lba(1 << 42), 4096).expect("not forged yet");
    let sectors = ftl.read_sectors(&mapped).expect("not forged yet");
    let mut own: Vec<_> = sectors.into_iter().filter(|(_, bytes)| bytes.starts_with(b"LNfs")).collect();
    // There are few limits.
    let limits: Vec<_> = own.iter().filter(|(_, bytes)| bytes[4] == 7).copied().collect();
    (0..4).for_each(|_| own.extend(&limits));
    let inos: Vec<u32> = own
        .iter()
        .map(|(lba, _)| (lba.0 >> 36, lba.0))
        .filter(|(region, _)| *region == 1)
        .map(|(_, lba)| lba as u32)
        .collect();
    for _ in 0..=rng.below(4) {
        let (lba, mut bytes) = own[rng.below(own.len() as u64) as usize];
        match (bytes[4], rng.below(4)) {
            // Another inode: as an entry's, an inode's parent, or an inode's number of links.
            (2 | 3, 0) => {
                let at = [24, 36, 64][rng.below(3) as usize];
                let other = inos[rng.below(inos.len() as u64) as usize];
                bytes[at..at + 4].copy_from_slice(&other.to_le_bytes());
            }
            (kind, _) => {
                let end = if kind == 2 { 144 } else { 80 };
                forge_number(&mut bytes, 24..end, rng);
            }
        }
        reseal_sector(&mut bytes);
        ftl.write_batch(&[Op::Write { lba, data: &bytes }], Stream::Data).expect("a sector");
    }
    match rng.chance(50) {
        true => ftl.close().expect("close"),
        false => ftl.flush().expect("flush"),
    }
    drop(ftl);
    ForgedStore::of(&*device)
}

/// What a user's programs do with a store: info, salvage, check, mount, walk, change, unmount, again.
fn use_store(limited: Limited, store: &ForgedStore, rng: &mut SeededRng) -> Outcome {
    let device = device_of(store);
    let read_only =
        Options { ftl: ftl::Options { read_only: true, ..ftl::Options::default() }, ..Options::default() };
    if let Ok(vfs) = Nvmfs::open(Arc::clone(&device), read_only.clone()) {
        look_at(&vfs);
        let _ = vfs.check(CheckDepth::Payload);
    }
    if let Ok((vfs, _)) = Nvmfs::salvage(Arc::clone(&device), read_only) {
        if let Ok(remains) = vfs.remaining_inodes() {
            for inode in remains.found.iter().take(VISITS_MAX) {
                let _ = vfs.remaining_data(inode.ino, 0);
            }
        }
        let _ = vfs.remaining_entries(Ino::ROOT);
    }
    let Ok(vfs) = Nvmfs::open(Arc::clone(&device), Options::default()) else {
        return Outcome::refused();
    };
    let is_sound = vfs.check(CheckDepth::Payload).is_ok_and(|report| report.is_clean());
    look_at(&vfs);
    let _ = vfs.ftl().scrub(|_| std::ops::ControlFlow::Continue(()));
    // From here on usage is counted, by whatever owners the inodes name.
    let _ = vfs.set_limits(1000, Limits { bytes: NonZeroU64::new(1), inodes: None });
    change(limited, &vfs, rng);
    // Or it is left as a crash leaves it.
    let closed = if rng.chance(70) { vfs.close() } else { Ok(()) };
    drop(vfs);
    match Nvmfs::open(device, Options::default()) {
        Ok(vfs) => {
            look_at(&vfs);
            let report = vfs.check(CheckDepth::Payload);
            if is_sound {
                closed.expect("a store that check called sound closes");
                let report = report.expect("a store that check called sound can be checked");
                // It may have stood right at the limit from which on `check` reports it, far before it is refused.
                let findings =
                    report.findings.iter().filter(|found| !found.message.ends_with("near its end"));
                let findings: Vec<_> = findings.collect();
                assert!(findings.is_empty(), "sound before it was used: {findings:#?}");
            }
        }
        Err(error) => assert!(!is_sound, "a store that check called sound does not open again: {error}"),
    }
    Outcome::opened(is_sound)
}

/// Reads what there is.
fn look_at(vfs: &Nvmfs) {
    let posix = vfs.posix();
    let _ = (vfs.ftl().stats(), posix.statfs());
    let mut seen = BTreeSet::new();
    let mut rest = vec![(Ino::ROOT, 0)];
    while let Some((directory, depth)) = rest.pop() {
        let mut entries = Vec::new();
        let _ = posix.readdir(directory, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino));
            entries.len() < VISITS_MAX
        });
        for (name, ino) in entries {
            if seen.len() >= VISITS_MAX {
                return;
            }
            let _ = posix.lookup(directory, &name);
            if seen.insert(ino) {
                read_inode(&posix, ino);
            }
            let is_directory = posix.getattr(ino).is_ok_and(|attr| attr.kind == FileKind::Directory);
            if is_directory && depth < DEPTH_MAX && name != b"." && name != b".." {
                rest.push((ino, depth + 1));
            }
        }
    }
}

fn read_inode(posix: &Posix, ino: Ino) {
    let _ = (posix.lookup(ino, b".."), posix.readlink(ino), posix.listxattr(ino));
    let _ = (posix.getxattr(ino, b"user.large"), posix.getxattr(ino, b"user.small"));
    let size = posix.getattr(ino).map_or(0, |attr| attr.size);
    let mut buf = vec![0; 64 << 10];
    for at in [0, 100, size.saturating_sub(1000), size, u64::MAX] {
        let _ = (posix.read(ino, at, &mut buf), posix.seek_data(ino, at), posix.seek_hole(ino, at));
    }
    let _ = (posix.read_runs(ino, 0), posix.compression(ino), posix.room(ino));
}

/// Changes a bit of everything. Errors are answers.
fn change(limited: Limited, vfs: &Nvmfs, rng: &mut SeededRng) {
    let (mut posix, mut caller) = (vfs.posix(), Caller::default());
    if limited == Limited::Users {
        (posix, caller.uid) = (posix.for_users(), USER);
        let _ = vfs.quotas();
    }
    let directories = directories(&posix);
    for _ in 0..30 {
        let pick = |rng: &mut SeededRng| directories[rng.below(directories.len() as u64) as usize].clone();
        let ((parent, name, ino), (other_parent, other_name, other)) = (pick(rng), pick(rng));
        match rng.below(18) {
            0 => drop(posix.create(parent, b"new", 0o600, caller).map(|made| posix.release(made.ino))),
            1 => drop(posix.mkdir(ino, b"sub", 0o700, caller)),
            2 => drop(posix.unlink(parent, &name)),
            3 => drop(posix.rmdir(parent, &name)),
            4 => drop(posix.rename(parent, &name, other_parent, &other_name, Rename::Replace)),
            5 => drop(posix.rename(parent, &name, other_parent, &other_name, Rename::Exchange)),
            6 => drop(posix.rename(parent, &name, other, b"within", Rename::NoReplace)),
            7 => drop(posix.link(ino, other_parent, b"another")),
            8 => drop(posix.write(ino, rng.below(1 << 20), &[3; 5000], WriteOptions::default())),
            9 => drop(posix.append(ino, &[4; 700], WriteOptions::default())),
            10 => drop(posix.setattr(ino, &SetAttr { size: Some(rng.below(1 << 18)), ..SetAttr::default() })),
            11 => drop(posix.setxattr(ino, b"user.new", &[1; 900], XattrMode::Set)),
            12 => drop(posix.removexattr(ino, b"user.large")),
            13 => drop(posix.fallocate(ino, 512, 1 << 16, Allocate::PunchHole, None)),
            14 => {
                let text = ["default", "none", "lz4", "zstd:1"][rng.below(4) as usize];
                drop(posix.set_compression(ino, text.parse().expect("a known one")));
            }
            15 => drop(posix.rewrite(ino, rng.below(1 << 18), 1 << 16)),
            16 => drop(posix.copy_range((ino, 0), (other, 0), 1 << 16, None)),
            _ => {
                if posix.open(ino).is_ok() {
                    let _ = (posix.unlink(parent, &name), posix.fsync(ino, false), posix.release(ino));
                }
            }
        }
    }
    let all = Seq(0)..Seq(u64::MAX);
    let _ = vfs.compress_cold("zstd:1".parse().expect("a known one"), &all, |_| ControlFlow::Continue(()));
    for work in [Work::Due, Work::Gc, Work::Checkpoint] {
        let _ = vfs.ftl().step(work);
    }
    if limited == Limited::Users {
        let _ = (
            vfs.set_limits(USER, Limits::default()),
            vfs.set_limits(4, Limits { bytes: NonZeroU64::new(1), inodes: None }),
        );
        let _ = vfs.quotas();
    }
    let _ = posix.sync();
}

/// Some entries: directory, name, inode.
fn directories(posix: &Posix) -> Vec<(Ino, Vec<u8>, Ino)> {
    let mut all = vec![(Ino::ROOT, b"new".to_vec(), Ino::ROOT)];
    let mut next = 0;
    while next < all.len() && next < 40 {
        let (_, _, directory) = all[next];
        let mut within = Vec::new();
        let _ = posix.readdir(directory, 2, &mut |entry| {
            within.push((directory, entry.name.to_vec(), entry.ino));
            within.len() < 20
        });
        all.extend(within);
        next += 1;
    }
    all
}
