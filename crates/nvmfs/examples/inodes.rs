//! How many inodes a store can hold:
//!
//! `cargo run --release -p lacuna-nvmfs --example inodes -- STORE COUNT [MAP_MEMORY_MIB]`
//!
//! makes a store file (it must not exist) with COUNT files in directories of 100,000, opens it anew, looks up and makes
//! a few, and checks it. Names of 255 bytes and a file of 32 TiB are among them. It prints rates for each tenth,
//! resident memory, and times.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use lacuna_nvmfs::{
    CheckDepth, Error, Ino, Nvmfs, OpenedVfs, Refusal, VfsOptions, open_vfs,
    posix::{Caller, Posix, WriteOptions},
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Space for an inode and its name, with the spare space that collection needs.
const STORE_BYTES_PER_INODE: u64 = 1536;
const STORE_BYTES_MIN: u64 = 256 << 20;
const NAMES_PER_DIRECTORY: u64 = 100_000;
const LOOKUPS: u64 = 20_000;
const FILE_BYTES_MAX: u64 = 32 << 40;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (store, count, map_memory) = match &arguments[..] {
        [store, count] => (store, count.parse::<u64>()?, None),
        [store, count, mebibytes] => (store, count.parse::<u64>()?, Some(mebibytes.parse::<u64>()? << 20)),
        _ => return Err("usage: inodes STORE COUNT [MAP_MEMORY_MIB]".into()),
    };
    let path = Path::new(store);
    if path.exists() {
        return Err(format!("{store}: exists already").into());
    }
    let size = (count * STORE_BYTES_PER_INODE).max(STORE_BYTES_MIN).next_multiple_of(1 << 20);
    let mut options = VfsOptions { create_size: Some(size), ..VfsOptions::default() };
    options.options.ftl.map_memory = map_memory;
    fill(&*open(path, &options)?, count)?;
    look(path, &options, count)?;
    fs::remove_file(path)?;
    Ok(())
}

fn open(path: &Path, options: &VfsOptions) -> Result<Arc<Nvmfs>> {
    let OpenedVfs::Store(vfs) = open_vfs(path, options)? else { return Err("not a store".into()) };
    Ok(vfs)
}

fn timed<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let result = run()?;
    println!("{what}: {:.3} s, {} MiB resident", begun.elapsed().as_secs_f64(), resident_mebibytes()?);
    Ok(result)
}

fn resident_mebibytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? >> 10)
}

fn file_name(number: u64) -> Vec<u8> {
    format!("inode {number:08}").into_bytes()
}

fn directory_name(number: u64) -> Vec<u8> {
    format!("directory {}", number / NAMES_PER_DIRECTORY).into_bytes()
}

/// Makes the files, and prints how fast.
fn fill(vfs: &Nvmfs, count: u64) -> Result<()> {
    let fs = vfs.posix();
    limits(&fs)?;
    let mut directory = Ino::ROOT;
    for tenth in 0..10 {
        let begun = Instant::now();
        let numbers = count * tenth / 10..count * (tenth + 1) / 10;
        let done = numbers.end - numbers.start;
        for number in numbers {
            if number % NAMES_PER_DIRECTORY == 0 {
                directory = fs.mkdir(Ino::ROOT, &directory_name(number), 0o755, Caller::default())?.ino;
            }
            fs.mknod(directory, &file_name(number), 0o100_644, 0, Caller::default())?;
        }
        let rate = done as f64 / begun.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
        println!("tenth {tenth}: {rate:.0} creates/s, {} MiB resident", resident_mebibytes()?);
    }
    let stats = vfs.ftl().stats();
    println!("map: {} extents, {} MiB", stats.extents, stats.map_memory_bytes >> 20);
    timed("close", || Ok(vfs.close()?))
}

/// The longest name and the longest file.
fn limits(fs: &Posix) -> Result<()> {
    let attr = fs.mknod(Ino::ROOT, &[b'n'; 255], 0o100_644, 0, Caller::default())?;
    let too_long = fs.mknod(Ino::ROOT, &[b'n'; 256], 0o100_644, 0, Caller::default());
    assert!(matches!(too_long, Err(Error::Refused(Refusal::NameTooLong))));
    fs.write(attr.ino, FILE_BYTES_MAX - 1, b"!", WriteOptions::default())?;
    assert_eq!(fs.getattr(attr.ino)?.size, FILE_BYTES_MAX);
    let beyond = fs.write(attr.ino, FILE_BYTES_MAX, b"!", WriteOptions::default());
    assert!(matches!(beyond, Err(Error::Refused(Refusal::FileTooLarge))));
    println!("a name of 255 bytes and a file of {FILE_BYTES_MAX} bytes are there, longer ones refused");
    Ok(())
}

/// Looks at the store after it was opened anew.
fn look(path: &Path, options: &VfsOptions, count: u64) -> Result<()> {
    let vfs = timed("open", || open(path, options))?;
    let fs = vfs.posix();
    let statfs = timed("first statfs", || Ok(fs.statfs()?))?;
    println!("inodes in use: {}", statfs.inodes - statfs.free_inodes);
    timed("first create", || Ok(fs.mknod(Ino::ROOT, b"new", 0o100_644, 0, Caller::default())?))?;
    timed("count of what users have", || Ok(vfs.quotas()?))?;
    timed(&format!("{LOOKUPS} lookups of all"), || {
        for number in (0..LOOKUPS).map(|number| number * 7919 * 101 % count) {
            let directory = fs.lookup(Ino::ROOT, &directory_name(number))?.ino;
            fs.lookup(directory, &file_name(number))?;
        }
        Ok(())
    })?;
    let report = timed("check", || Ok(vfs.check(CheckDepth::Structure)?))?;
    assert!(report.is_clean(), "{:#?}", report.findings);
    println!("{} files, {} directories, no finding", report.files, report.directories);
    timed("close", || Ok(vfs.close()?))
}
