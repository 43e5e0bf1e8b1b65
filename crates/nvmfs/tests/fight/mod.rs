//! A thread that conflicts with others.

use lacuna_nvmfs::{
    Error, Ino,
    posix::{Caller, FileKind, Posix, Rename, SetAttr, WriteOptions, XattrMode},
};
use lacuna_sim::SeededRng;

/// Makes, moves, links and removes three names on many levels, `steps` times. Returns the error, other than
/// a refusal, that ended it.
pub(crate) fn fight(fs: &Posix, seed: u64, steps: u64) -> Option<Error> {
    let mut rng = SeededRng::new(seed);
    (0..steps).find_map(|_| match step(fs, &mut rng) {
        Ok(()) | Err(Error::Refused(_)) => None,
        Err(error) => Some(error),
    })
}

/// Removes everything that it finds in a directory, however deep; other threads may interfere.
pub(crate) fn clear(fs: &Posix, directory: Ino) -> Result<(), Error> {
    let mut names = Vec::new();
    fs.readdir(directory, 0, &mut |entry| {
        names.push((entry.ino, entry.kind, entry.name.to_vec()));
        true
    })?;
    for (ino, kind, name) in names.drain(2..) {
        let removed = match kind {
            FileKind::Directory => clear(fs, ino).and_then(|()| fs.rmdir(directory, &name)),
            _ => fs.unlink(directory, &name),
        };
        match removed {
            Ok(_) | Err(Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A directory at most `levels` below the root, and a name in it.
fn pick(fs: &Posix, rng: &mut SeededRng, levels: u64) -> (Ino, &'static [u8]) {
    let names = [&b"a"[..], b"b", b"c"];
    let mut parent = Ino::ROOT;
    for _ in 0..rng.below(levels + 1) {
        let name = names[rng.below(3) as usize];
        parent = fs.lookup(parent, name).map_or(parent, |attr| attr.ino);
    }
    (parent, names[rng.below(3) as usize])
}

fn step(fs: &Posix, rng: &mut SeededRng) -> Result<(), Error> {
    let caller = Caller::default();
    let what = rng.below(14);
    // A moved directory may carry more below it, so removals must reach deeper than creations.
    let is_removal = (3..=7).contains(&what);
    let (parent, name) = pick(fs, rng, if is_removal { 12 } else { 3 });
    let (to, to_name) = pick(fs, rng, 1);
    match what {
        0..=1 => fs.mkdir(parent, name, 0o700, caller).map(drop),
        2 => fs.mknod(parent, name, 0o100_600, 0, caller).map(drop),
        3..=5 => fs.rmdir(parent, name).map(drop),
        6..=7 => fs.unlink(parent, name).map(drop),
        8 => fs.rename(parent, name, to, to_name, Rename::Exchange).map(drop),
        9 => {
            let ino = fs.lookup(parent, name)?.ino;
            fs.open(ino)?;
            let linked = fs.link(ino, to, to_name).map(Some).or_else(|_| fs.unlink(parent, name)).map(drop);
            fs.release(ino)?;
            linked
        }
        10 => {
            let ino = fs.lookup(parent, name)?.ino;
            fs.write(ino, rng.below(1000), &[1; 700], WriteOptions::default())?;
            fs.setattr(ino, &SetAttr { size: Some(rng.below(1000)), ..SetAttr::default() })?;
            fs.setxattr(ino, b"user.x", &[2; 400], XattrMode::Set)
        }
        11 => {
            let ino = fs.create_unnamed(parent, 0o600, rng.chance(20), caller)?.ino;
            let linked =
                fs.write(ino, 0, &[3; 700], WriteOptions::default()).and_then(|_| fs.link(ino, to, to_name));
            fs.release(ino)?;
            linked.map(drop)
        }
        12 => fs.rename_leaving_whiteout((parent, name), (to, to_name), Rename::Replace, caller).map(drop),
        _ => fs.rename(parent, name, to, to_name, Rename::Replace).map(drop),
    }
}
