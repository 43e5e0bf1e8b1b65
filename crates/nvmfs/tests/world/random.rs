//! Random changes: most succeed, some are refused.

use std::sync::Arc;

use lacuna_nvmfs::{
    Compression,
    posix::{Allocate, Caller, FileKind, Rename, XattrMode},
};
use lacuna_sim::SeededRng;

use super::{
    Change, Path, World,
    acl::{ACL, Acl, DEFAULT_ACL},
};

/// Greatest length of files, in bytes.
const FILE_BYTES_MAX: u64 = 24 << 10;

fn random_name(rng: &mut SeededRng) -> Vec<u8> {
    match rng.below(8) {
        6 => vec![b'x'; 255],
        7 => b"\xff\xfe not UTF-8".to_vec(),
        number => vec![b'a' + number as u8],
    }
}

/// A path, usually in a directory that exists.
fn new_path(rng: &mut SeededRng, world: &World) -> Path {
    let mut path = match rng.below(3) {
        0 => Path::new(),
        _ => world.random_path(rng).unwrap_or_default(),
    };
    path.truncate(3);
    if rng.chance(30) {
        path.pop();
    }
    path.push(random_name(rng));
    path
}

fn old_path(rng: &mut SeededRng, world: &World) -> Path {
    let known = if rng.chance(90) { world.random_path(rng) } else { None };
    known.unwrap_or_else(|| new_path(rng, world))
}

/// Bytes, some of them zeros, and some that repeat.
fn random_data(rng: &mut SeededRng, len_max: u64) -> Arc<Vec<u8>> {
    let mut data = vec![0; rng.below(len_max + 1) as usize];
    let filled = if rng.chance(70) { data.len() } else { rng.below(data.len() as u64 + 1) as usize };
    let noise = if rng.chance(50) { filled } else { filled.min(64) };
    rng.fill(&mut data[..noise]);
    for at in noise..filled {
        data[at] = data[at - 64];
    }
    Arc::new(data)
}

/// An offset or length, aligned to sectors or not.
fn random_size(rng: &mut SeededRng, max: u64) -> u64 {
    let size = rng.below(max + 1);
    if rng.chance(40) { size / 512 * 512 } else { size }
}

fn random_range(rng: &mut SeededRng) -> (u64, u64) {
    let offset = random_size(rng, FILE_BYTES_MAX - 1);
    (offset, random_size(rng, FILE_BYTES_MAX - offset))
}

fn random_caller(rng: &mut SeededRng) -> Caller {
    Caller {
        uid: rng.below(3) as u32,
        gid: rng.below(3) as u32,
        umask: [0, 0o22, 0o77][rng.below(3) as usize],
    }
}

fn random_data_change(rng: &mut SeededRng, world: &World) -> Change {
    let path = old_path(rng, world);
    let (offset, len) = random_range(rng);
    match rng.below(12) {
        0 => Change::Append { path, data: random_data(rng, 3000) },
        1 => Change::SetLen { path, len: random_size(rng, FILE_BYTES_MAX) },
        2..=3 => {
            let what = match rng.below(5) {
                0 => Allocate::Extend,
                1 => Allocate::KeepSize,
                2 => Allocate::ZeroRange { keep_size: rng.chance(50) },
                _ => Allocate::PunchHole,
            };
            Change::Allocate { path, offset, len, what }
        }
        4 => {
            let (from, (from_offset, len)) = (old_path(rng, world), random_range(rng));
            Change::Copy { from, from_offset, to: path, to_offset: offset, len }
        }
        5 => {
            let text = ["default", "none", "lz4", "zstd:1", "zstd:7"][rng.below(5) as usize];
            let compression: Compression = text.parse().expect("a known one");
            Change::SetCompression { path, compression }
        }
        6 => Change::Rewrite { path, offset, len },
        _ => {
            let len = if rng.chance(50) { len } else { len.min(2000) };
            let data = random_data(rng, len);
            let trim_to = rng.chance(30).then(|| random_size(rng, FILE_BYTES_MAX));
            Change::Write { path, offset, data, trim_to }
        }
    }
}

fn random_xattr_change(rng: &mut SeededRng, world: &World) -> Change {
    let path = old_path(rng, world);
    let acl = rng.chance(40).then(|| [ACL, DEFAULT_ACL][rng.below(2) as usize]);
    let name = acl.map_or_else(|| format!("user.{}", rng.below(4)).into_bytes(), <[u8]>::to_vec);
    if rng.chance(30) {
        return Change::RemoveXattr { path, name };
    }
    if acl.is_some() {
        return Change::SetXattr { path, name, value: Acl::random(rng).value(), mode: XattrMode::Set };
    }
    let len_max = if rng.chance(30) { 6000 } else { 200 };
    let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][rng.below(3) as usize];
    Change::SetXattr { path, name, value: random_data(rng, len_max).to_vec(), mode }
}

fn random_handle_change(rng: &mut SeededRng, world: &World) -> Change {
    let handles = world.handles.len() as u64;
    if handles == 0 || (handles < 6 && rng.chance(40)) {
        if rng.chance(50) {
            let mut dir = new_path(rng, world);
            dir.pop();
            let (mode, caller) = (rng.below(0o10000) as u32, random_caller(rng));
            return Change::CreateUnnamed { dir, mode, is_exclusive: rng.chance(25), caller };
        }
        return Change::Open(old_path(rng, world));
    }
    let handle = rng.below(handles) as usize;
    let (offset, len) = random_range(rng);
    match rng.below(4) {
        0..=1 => Change::Release(handle),
        2 => Change::WriteOpen { handle, offset, data: random_data(rng, len.min(3000)) },
        _ => {
            let replaces = rng.chance(50);
            let to = if replaces { old_path(rng, world) } else { new_path(rng, world) };
            Change::LinkOpen { handle, to, replaces }
        }
    }
}

fn random_make(rng: &mut SeededRng, world: &World) -> Change {
    let path = new_path(rng, world);
    let mode = rng.below(0o10000) as u32;
    let caller = random_caller(rng);
    match rng.below(8) {
        0..=2 => Change::Make { path, mode: FileKind::Directory.mode_bits() | mode, caller },
        3 => {
            let len = if rng.chance(50) { 1 + rng.below(255) } else { 1 + rng.below(4095) };
            Change::Symlink { path, target: vec![b'a' + rng.below(26) as u8; len as usize] }
        }
        4 => {
            let kind = [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice][rng.below(3) as usize];
            Change::Make { path, mode: kind.mode_bits() | mode, caller }
        }
        5 if world.handles.len() < 6 => Change::Create { path, mode, caller },
        _ => Change::Make { path, mode: FileKind::File.mode_bits() | mode, caller },
    }
}

/// A change.
pub(crate) fn random_change(rng: &mut SeededRng, world: &World) -> Change {
    match rng.below(24) {
        0..=4 => random_make(rng, world),
        5 => {
            let replaces = rng.chance(30);
            let to = if replaces { old_path(rng, world) } else { new_path(rng, world) };
            Change::Link { from: old_path(rng, world), to, replaces }
        }
        6 => Change::Unlink(old_path(rng, world)),
        7 => Change::Rmdir(old_path(rng, world)),
        8..=11 => {
            let to = if rng.chance(60) { old_path(rng, world) } else { new_path(rng, world) };
            let mode = [Rename::Replace, Rename::Replace, Rename::NoReplace, Rename::Exchange];
            let mode = mode[rng.below(4) as usize];
            let whiteout = (mode != Rename::Exchange && rng.chance(20)).then(|| random_caller(rng));
            Change::Rename { from: old_path(rng, world), to, mode, whiteout }
        }
        12 => Change::Chmod { path: old_path(rng, world), mode: rng.below(0o10000) as u32 },
        13 => {
            let owner = random_caller(rng);
            Change::Chown { path: old_path(rng, world), uid: owner.uid, gid: owner.gid }
        }
        14..=15 => random_xattr_change(rng, world),
        16..=17 => random_handle_change(rng, world),
        _ => random_data_change(rng, world),
    }
}
