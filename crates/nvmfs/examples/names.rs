//! How fast names are created, found, listed and removed, in one directory:
//!
//! `cargo run --release -p lacuna-nvmfs --example names -- STORE COUNT [keep]`
//!
//! makes a store file (it must not exist), creates COUNT files, opens the store anew so that nothing is in memory,
//! looks some of them up, opens it anew again, lists them all in calls such as a mount gets, and removes them; with
//! `keep` they stay, to be listed on a mount. Rates are printed for each tenth.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use lacuna_nvmfs::{
    Ino, OpenedVfs, VfsOptions, open_vfs,
    posix::{Caller, Posix},
};

/// Space for a file and its name, with the spare space that collection needs.
const STORE_BYTES_PER_NAME: u64 = 2048;
const STORE_BYTES_MIN: u64 = 256 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (store, count, keeps) = match &arguments[..] {
        [store, count] => (store, count.parse::<u64>()?, false),
        [store, count, keep] if keep == "keep" => (store, count.parse::<u64>()?, true),
        _ => return Err("usage: names STORE COUNT [keep]".into()),
    };
    let path = Path::new(store);
    if path.exists() {
        return Err(format!("{store}: exists already").into());
    }
    let size = (count * STORE_BYTES_PER_NAME).max(STORE_BYTES_MIN).next_multiple_of(1 << 20);
    let options = VfsOptions { create_size: Some(size), ..VfsOptions::default() };
    let open = || match open_vfs(path, &options) {
        Ok(OpenedVfs::Store(vfs)) => Ok(vfs),
        Ok(_) => Err("not a store".into()),
        Err(error) => Err(Box::<dyn std::error::Error>::from(error)),
    };
    let vfs = open()?;
    let fs = vfs.posix();
    let directory = fs.mkdir(Ino::ROOT, b"names", 0o755, Caller::default())?.ino;
    rates("create", count, |number| {
        fs.mknod(directory, &name(number), 0o100_644, 0, Caller::default()).map(drop)
    })?;
    vfs.close()?;
    drop((fs, vfs));

    let vfs = open()?;
    let fs = vfs.posix();
    // In an order other than that of their creation.
    rates("lookup", count.min(20_000), |number| {
        fs.lookup(directory, &name(number * 7919 % count)).map(drop)
    })?;
    vfs.close()?;
    drop((fs, vfs));

    let vfs = open()?;
    let fs = vfs.posix();
    list(&fs, directory)?;
    if keeps {
        return Ok(vfs.close()?);
    }
    rates("unlink", count, |number| fs.unlink(directory, &name(number)).map(drop))?;
    vfs.close()?;
    std::fs::remove_file(path)?;
    Ok(())
}

fn name(number: u64) -> Vec<u8> {
    format!("a file by the number {number:08}").into_bytes()
}

/// Does something `count` times and prints the rate of each tenth.
fn rates(
    what: &str,
    count: u64,
    mut operation: impl FnMut(u64) -> lacuna_nvmfs::Result<()>,
) -> lacuna_nvmfs::Result<()> {
    print!("{what:>7}/s:");
    for tenth in 0..10 {
        let begun = Instant::now();
        let numbers = count * tenth / 10..count * (tenth + 1) / 10;
        let done = numbers.end - numbers.start;
        numbers.into_iter().try_for_each(&mut operation)?;
        print!(" {:.0}", rate(done, begun.elapsed()));
    }
    println!();
    Ok(())
}

fn rate(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// Lists a directory in calls for as many names as fit into the 32 KiB that programs ask for.
fn list(fs: &Posix, directory: Ino) -> lacuna_nvmfs::Result<()> {
    const NAMES_PER_CALL: u64 = 500;
    let begun = Instant::now();
    let (mut count, mut cursor) = (0, 0);
    loop {
        let mut taken = 0;
        fs.readdir(directory, cursor, &mut |entry| {
            let is_full = taken == NAMES_PER_CALL;
            if !is_full {
                (taken, cursor) = (taken + 1, entry.next);
            }
            !is_full
        })?;
        if taken == 0 {
            break;
        }
        count += taken;
    }
    println!("   list/s: {:.0}", rate(count, begun.elapsed()));
    Ok(())
}
