//! A listing shows the current entries, whatever was read ahead of it.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_sim::{BeforeReads, SeededRng, for_each_seed};

use super::WINDOWS_MAX;
use crate::{
    format::{Bucket, Caller, Ino},
    names::Rename,
    posix::Posix,
    vfs::{Nvmfs, Options},
    volume::FormatOptions,
};

type Hook = Box<dyn FnOnce() + Send>;

/// An action of a device before its next read.
type Next = Arc<Mutex<Option<Hook>>>;

fn formatted() -> (Arc<dyn BlockDevice>, Next, Nvmfs) {
    let next = Next::default();
    let before = {
        let next = Arc::clone(&next);
        move |_: &[Range<u64>]| {
            let hook = next.lock().unwrap().take();
            hook.into_iter().for_each(|hook| hook());
            Ok(())
        }
    };
    let device: Arc<dyn BlockDevice> = BeforeReads::new(Arc::new(MemDevice::new(64 << 20)), before);
    Nvmfs::format(device.clone(), &FormatOptions::default()).unwrap();
    let fs = Nvmfs::open(device.clone(), Options::default()).unwrap();
    (device, next, fs)
}

fn name(number: u64) -> Vec<u8> {
    format!("name {number}").into_bytes()
}

fn make(fs: &Posix, directory: Ino, number: u64) -> bool {
    fs.mknod(directory, &name(number), 0o100_644, 0, Caller::default()).is_ok()
}

type Entry = (Ino, Vec<u8>, u64);

/// `count` entries as a call lists them.
fn listed(fs: &Posix, directory: Ino, cursor: u64, count: usize) -> Vec<Entry> {
    let mut found = Vec::new();
    fs.readdir(directory, cursor, &mut |entry| {
        let is_wanted = found.len() < count;
        if is_wanted {
            found.push((entry.ino, entry.name.to_vec(), entry.next));
        }
        is_wanted
    })
    .unwrap();
    found
}

/// The same as it is in the store.
fn stored(vfs: &Nvmfs, directory: Ino, cursor: u64, count: usize) -> Vec<Entry> {
    let layers = vfs.layers();
    let node = layers.inodes().node(directory).unwrap();
    // As if the directory changed during the read: nothing of it is kept.
    let since = u64::MAX;
    layers.names().read_again();
    let window = layers.names().read_window(&node, since, Bucket(cursor - 2), 1 << 20).unwrap();
    let entries = window.map_or(Vec::new(), |window| window.into_entries().0);
    let entry = |(bucket, entry): (Bucket, super::Listed)| (entry.ino, entry.name.into(), bucket.0 + 3);
    entries.into_iter().take(count).map(entry).collect()
}

/// Listings of several directories continue from where they were, while names are added, removed and moved.
#[test]
fn windows_follow_every_change() {
    for_each_seed(20, |seed| {
        let mut rng = SeededRng::new(seed);
        let (_, _, vfs) = formatted();
        let fs = vfs.posix();
        let directory = |number| fs.mkdir(Ino::ROOT, &name(number), 0o755, Caller::default()).unwrap().ino;
        let directories: Vec<Ino> = (0..WINDOWS_MAX as u64 + 1 - seed % 3).map(directory).collect();
        for directory in &directories {
            (0..300).for_each(|number| assert!(make(&fs, *directory, number)));
        }
        let mut cursors = vec![2; directories.len()];
        for _ in 0..600 {
            let at = rng.below(directories.len() as u64) as usize;
            let other = directories[rng.below(directories.len() as u64) as usize];
            let (one, two) = (rng.below(400), rng.below(400));
            match rng.below(8) {
                0 => drop(make(&fs, directories[at], one)),
                1 => drop(fs.unlink(directories[at], &name(one))),
                2 => drop(fs.rename(directories[at], &name(one), other, &name(two), Rename::Replace)),
                3 => drop(fs.rename(directories[at], &name(one), other, &name(two), Rename::Exchange)),
                _ => {
                    let count = 1 + rng.below(200) as usize;
                    let found = listed(&fs, directories[at], cursors[at], count);
                    assert_eq!(found, stored(&vfs, directories[at], cursors[at], count));
                    cursors[at] = found.last().map_or(2, |(.., next)| *next);
                }
            }
        }
    });
}

/// A name that is removed while the entries are being read may be seen by the listing that reads them, but by none that
/// begins later.
#[test]
fn what_changed_while_it_was_read_is_no_window() {
    let (device, next_read, vfs) = formatted();
    let directory = vfs.posix().mkdir(Ino::ROOT, b"directory", 0o755, Caller::default()).unwrap().ino;
    (0..300).for_each(|number| assert!(make(&vfs.posix(), directory, number)));
    vfs.close().unwrap();
    drop(vfs); // with what it has in memory
    let vfs = Nvmfs::open(device.clone(), Options::default()).unwrap();
    let fs = vfs.posix();
    // Everything but the entries themselves is in memory then.
    fs.getattr(directory).unwrap();
    let third = stored(&vfs, directory, 2, 3).pop().unwrap();
    let (unlinks, gone) = (fs.clone(), third.1.clone());
    *next_read.lock().unwrap() = Some(Box::new(move || unlinks.unlink(directory, &gone).map(drop).unwrap()));
    assert!(listed(&fs, directory, 2, 5).contains(&third), "the hook came too early to show anything");
    assert!(next_read.lock().unwrap().is_none(), "nothing was read");
    let found = listed(&fs, directory, 2, 300);
    assert!(!found.contains(&third));
    assert_eq!(found, stored(&vfs, directory, 2, 300));
}
