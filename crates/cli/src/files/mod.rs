//! Files of a store without a mount: `lacuna ls`, `cat`, `put`, `get`, `rm`, `cp`, `rescue`.
//!
//! A file in a store is written `STORE:PATH`; what has no colon, or a slash before it, is a file outside. As by cp(1) and
//! cat(1), a symbolic link that is named is followed, unless the copy is recursive; links below are copied and listed.

mod contents;
mod copy;
mod ends;
mod inside;
mod local;
mod opened;
mod rescue;
mod temporary;

use std::{
    collections::HashSet,
    io::{ErrorKind, Write},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_nvmfs::{
    Ino, Nvmfs,
    posix::{Attr, FileKind, Posix},
};

use signal_hook::{consts::SIGPIPE, low_level::emulate_default_handler};

use crate::{control, keys::CopyKeyArguments, printable::one_line, say, stdout};
use copy::{Copy, CopyOptions, Names};
use ends::Operand;
use opened::{End, Named, OpenStores, StorePath, check_no_store_is_meant, check_outside};
pub(crate) use rescue::{RescueArguments, hint, rescue};

/// Bytes moved at once; one atomic write.
const PIECE_BYTES: usize = 1 << 20;

/// Inodes that are read together.
const INODES_AT_ONCE: usize = 1024;

/// List a directory of a store, mounted or not
#[derive(Args)]
pub(crate) struct ListArguments {
    /// STORE or STORE:PATH
    path: PathBuf,
}

/// Write files of a store to standard output
#[derive(Args)]
pub(crate) struct CatArguments {
    /// STORE:PATH
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// Copy a file into a store; holes stay holes. A symbolic link is followed, a pipe (/dev/stdin) is read to its end
#[derive(Args)]
pub(crate) struct PutArguments {
    /// A file outside
    file: PathBuf,
    /// STORE:PATH
    path: PathBuf,
    /// Directories, with all that is in them; symbolic links as links
    #[arg(long, short)]
    recursive: bool,
}

/// Copy a file out of a store; holes stay holes. A symbolic link is followed in the store
#[derive(Args)]
pub(crate) struct GetArguments {
    /// STORE:PATH
    path: PathBuf,
    /// A file or directory outside
    #[arg(default_value = ".")]
    file: PathBuf,
    /// Directories, with all that is in them; symbolic links as links
    #[arg(long, short)]
    recursive: bool,
    /// Keep set-user-id and set-group-id bits, and security and trusted attributes: of a store that you trust
    #[arg(long)]
    privileged: bool,
}

/// Remove files from a store
#[derive(Args)]
pub(crate) struct RemoveArguments {
    /// STORE:PATH
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Directories, with all that is in them
    #[arg(long, short)]
    recursive: bool,
}

/// Copy files into, out of and between stores; holes stay holes, hard links hard links. A symbolic link is followed; data
/// is compressed as its target says
#[derive(Args)]
pub(crate) struct CopyArguments {
    /// STORE:PATH, or a file outside, whose name needs a ./ before it if it has a colon
    from: PathBuf,
    /// The same
    to: PathBuf,
    /// Directories, with all that is in them; symbolic links as links
    #[arg(long, short)]
    recursive: bool,
    /// Keep set-user-id and set-group-id bits, and security and trusted attributes: of a store that you trust
    #[arg(long)]
    privileged: bool,
    #[command(flatten)]
    keys: CopyKeyArguments,
}

pub(crate) fn list(arguments: &ListArguments) -> Result<()> {
    let named = Named::parse_store_or_path(&arguments.path)?;
    // The store as the user calls it, and bytes: names need not be text.
    let question = serde_json::to_string(&(named.store.to_string_lossy(), &named.parts))?;
    if let Some(text) = control::ask(&named.store, &format!("ls {question}"))? {
        return say(&text);
    }
    let stores = OpenStores::read_only();
    say(&listing(&stores.path_in(named)?)?)?;
    stores.close()
}

/// Answers the question `ls PATH` about a mounted store.
pub(crate) fn answer_listing(fs: &Arc<Nvmfs>, question: &str) -> Result<String, String> {
    let (store, parts): (String, _) =
        serde_json::from_str(question).map_err(|error| format!("ls {question}: {error}"))?;
    let named = Named { store: store.into(), parts, end: End::Nothing };
    listing(&StorePath::new(fs, named)).map_err(|error| format!("{error:#}"))
}

fn listing(path: &StorePath) -> Result<String> {
    let (posix, ino) = path.resolve()?;
    let attr = posix.getattr(ino).with_context(|| path.name())?;
    let mut text = String::new();
    if attr.kind == FileKind::Directory {
        for (name, attr) in entries_with_attributes(&posix, ino).with_context(|| path.name())? {
            text += &line(&posix, &attr, &String::from_utf8_lossy(&name))?;
        }
    } else {
        text += &line(&posix, &attr, &path.name())?;
    }
    Ok(text)
}

/// The entries of a directory by name, without `.` and `..`.
fn entries(posix: &Posix, directory: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
    let mut entries = Vec::new();
    posix.readdir(directory, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            entries.push((entry.name.to_vec(), entry.ino));
        }
        true
    })?;
    entries.sort();
    Ok(entries)
}

/// The same with attributes. Inodes are read many at a time and in order of their numbers, in which they are adjacent
/// if they were created in that order.
fn entries_with_attributes(posix: &Posix, directory: Ino) -> Result<Vec<(Vec<u8>, Attr)>> {
    let mut entries = entries(posix, directory)?;
    entries.sort_unstable_by_key(|(_, ino)| *ino);
    let mut found = Vec::with_capacity(entries.len());
    for entries in entries.chunks(INODES_AT_ONCE) {
        posix.preload(&entries.iter().map(|(_, ino)| *ino).collect::<Vec<_>>());
        for (name, ino) in entries {
            found.push((name.clone(), posix.getattr(*ino)?));
        }
    }
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// Type and permissions, links, owner, group, length, space taken, name.
fn line(posix: &Posix, attr: &Attr, name: &str) -> Result<String> {
    let target = match attr.kind {
        FileKind::Symlink => {
            let target = posix.readlink(attr.ino)?;
            format!(" -> {}", one_line(&String::from_utf8_lossy(&target)))
        }
        _ => String::new(),
    };
    Ok(format!(
        "{}{} {:>3} {:>6} {:>6} {:>13} {:>13} {}{target}\n",
        kind_letter(attr.kind),
        permissions(attr.perm),
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size,
        attr.allocated_bytes,
        one_line(name),
    ))
}

fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    }
}

fn permissions(perm: u16) -> String {
    let special = [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')];
    let mut text = String::with_capacity(9);
    for (class, (bit, letter)) in special.into_iter().enumerate() {
        let bits = perm >> (6 - 3 * class);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, perm & bit != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

pub(crate) fn cat(arguments: &CatArguments) -> Result<()> {
    stdout::must_be_open().context("standard output")?;
    let stores = OpenStores::read_only();
    let mut out = std::io::stdout().lock();
    let mut piece = vec![0; PIECE_BYTES];
    for path in &arguments.paths {
        let path = stores.parse_path(path)?;
        let (posix, ino) = path.follow()?;
        let mut offset = 0;
        loop {
            let bytes = posix.read(ino, offset, &mut piece).with_context(|| path.name())?;
            // What is written is flushed here, where a reader that has gone is expected.
            match out.write_all(&piece[..bytes]).and_then(|()| out.flush()) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    stores.close()?;
                    // As cat(1): the pipeline tells whether its reader had all.
                    return Ok(emulate_default_handler(SIGPIPE)?);
                }
                result => result.context("standard output")?,
            }
            if bytes < piece.len() {
                break;
            }
            offset += bytes as u64;
        }
    }
    stores.close()
}

pub(crate) fn put(arguments: &PutArguments) -> Result<()> {
    let stores = OpenStores::writable();
    let from = Operand::Outside(arguments.file.clone());
    let to = Operand::Inside(stores.parse_path(&arguments.path)?);
    stores.close_after(copy_all(&from, &to, arguments.recursive, true))
}

pub(crate) fn get(arguments: &GetArguments) -> Result<()> {
    let stores = OpenStores::read_only();
    let from = Operand::Inside(stores.parse_path(&arguments.path)?);
    let to = Operand::Outside(arguments.file.clone());
    stores.close_after(copy_all(&from, &to, arguments.recursive, arguments.privileged))
}

pub(crate) fn copy(arguments: &CopyArguments) -> Result<()> {
    let stores = OpenStores::writable();
    let operand = |path, key| match stores.parse_any_with(path, key)? {
        Some(inside) => anyhow::Ok(Operand::Inside(inside)),
        None => check_outside(path).map(|()| Operand::Outside(PathBuf::from(path))),
    };
    let to = operand(&arguments.to, arguments.keys.to()?)?;
    stores.read_the_rest();
    let from = operand(&arguments.from, arguments.keys.from()?)?;
    if !from.is_inside() && !to.is_inside() {
        check_no_store_is_meant(&arguments.to)?;
    }
    stores.close_after(copy_all(&from, &to, arguments.recursive, arguments.privileged))
}

/// As cp(1): into `to` if that is a directory, else as `to`.
fn copy_all(from: &Operand, to: &Operand, recursive: bool, privileged: bool) -> Result<()> {
    let source = from.source(recursive)?;
    let target = to.target(from, &*source)?;
    if target.is_within(&*source).with_context(|| target.name.clone())? {
        bail!("{}: cannot be copied into itself", from.name());
    }
    let withholds_privileges = from.is_inside() && !to.is_inside() && !privileged;
    let left_out = match (from, to) {
        (Operand::Outside(_), Operand::Inside(path)) => path.identities_outside(),
        _ => Vec::new(),
    };
    let options = CopyOptions { recursive, withholds_privileges, shows: false, left_out };
    let top = target.entry.clone().unwrap_or_default();
    let mut copy = Copy::new(options, Names { from: from.name(), to: target.name, top });
    match target.entry {
        Some(entry) => copy.copy(source, &*target.directory, &entry)?,
        // A directory outside has its own owner and permissions, such as /tmp.
        None => copy.merge(source, target.directory, from.is_inside() && to.is_inside())?,
    }
    copy.finish()
}

pub(crate) fn remove(arguments: &RemoveArguments) -> Result<()> {
    let stores = OpenStores::writable();
    let removed = arguments.paths.iter().try_for_each(|path| {
        let path = stores.parse_path(path)?;
        let (posix, parent, name) = path.resolve_parent()?;
        let Some(name) = name else { bail!("{}: the root cannot be removed", path.name()) };
        if name == b".." || path.end() == End::Dot {
            bail!("{}: ends with . or .., which are not removed", path.name());
        }
        remove_entry(&posix, parent, &name, arguments.recursive).with_context(|| path.name())
    });
    stores.close_after(removed)
}

/// Removes one entry; of a directory first all that is below it, without recursion: a tree may be as deep as it likes.
fn remove_entry(posix: &Posix, parent: Ino, name: &[u8], recursive: bool) -> Result<()> {
    // That of a damaged file can be removed too.
    let (ino, kind) = posix.entry(parent, name)?;
    if kind != FileKind::Directory {
        return Ok(posix.unlink(parent, name).map(drop)?);
    }
    if !recursive {
        bail!("is a directory (see --recursive)");
    }
    let mut seen = HashSet::from([ino]);
    let mut directories = vec![(parent, name.to_vec(), ino, entries(posix, ino)?.into_iter())];
    while let Some((parent, name, directory, rest)) = directories.last_mut() {
        let directory = *directory;
        let Some((entry, _)) = rest.next() else {
            posix.rmdir(*parent, name)?;
            directories.pop();
            continue;
        };
        let (below, kind) = posix.entry(directory, &entry)?;
        if kind != FileKind::Directory {
            posix.unlink(directory, &entry)?;
        } else if seen.insert(below) {
            directories.push((directory, entry, below, entries(posix, below)?.into_iter()));
        } else {
            bail!(
                "directory {} has two names, {} among them (see check)",
                below.number(),
                String::from_utf8_lossy(&entry)
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_as_in_ls() {
        for (perm, text) in [
            (0o755, "rwxr-xr-x"),
            (0o640, "rw-r-----"),
            (0o4755, "rwsr-xr-x"),
            (0o2644, "rw-r-Sr--"),
            (0o1777, "rwxrwxrwt"),
            (0, "---------"),
        ] {
            assert_eq!(permissions(perm), text);
        }
    }
}
