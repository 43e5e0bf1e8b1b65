use std::{fs::File, path::Path, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_nvmfs::Compression;
use rustix::{
    fs::{SeekFrom, seek},
    io::Errno as Os,
};

use crate::{say, walk};

const REWRITE: &str = "user.lacuna.rewrite";
/// Bytes that one request rewrites; the mount takes no more.
const PIECE_BYTES: u64 = 16 << 20;

/// Show or set how files of a mount are compressed
#[derive(Args)]
pub(crate) struct Arguments {
    /// Files and directories; what a directory has, new files and directories in it get. That of the mount's root
    /// directory is the store's default
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// What data is compressed with that is written from now on: none, lz4, zstd or zstd:LEVEL, 1 to 22, or default, which
    /// is what the mount or the store says
    #[arg(long, value_name = "HOW")]
    set: Option<Compression>,
    /// And everything below directories
    #[arg(short, long)]
    recursive: bool,
    /// Compress the data that files hold, too. They may be in use meanwhile
    #[arg(long)]
    rewrite: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    for path in &arguments.paths {
        walk::visit(path, arguments.recursive, |path, metadata| {
            // Also to know that it is a mount of ours before anything is set.
            let text = walk::ask(path, walk::COMPRESSION)?;
            if arguments.rewrite && metadata.is_dir() && !arguments.recursive {
                bail!("{}: a directory; --recursive rewrites the files in it", walk::shown(path));
            }
            if let Some(compression) = arguments.set {
                walk::order(path, walk::COMPRESSION, &compression.to_string())?;
            }
            if arguments.rewrite && metadata.is_file() {
                rewrite(path)?;
            }
            match arguments.set.is_some() || arguments.rewrite {
                true => Ok(()),
                false => say(&line(&text, path)),
            }
        })?;
    }
    Ok(())
}

/// A path with what it has; a default in brackets.
fn line(text: &str, path: &Path) -> String {
    let how = match text.split_once(' ') {
        Some(("default", effective)) => format!("({effective})"),
        _ => text.to_owned(),
    };
    format!("{how:<9} {}\n", walk::shown(path))
}

/// Compresses what a file holds, piece by piece, without its holes.
fn rewrite(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| walk::shown(path))?;
    let mut at = 0;
    loop {
        at = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data / PIECE_BYTES * PIECE_BYTES,
            Err(Os::NXIO) => return Ok(()), // there is no more
            Err(error) => return Err(error).with_context(|| walk::shown(path)),
        };
        walk::order(path, REWRITE, &format!("{at} {PIECE_BYTES}"))?;
        at += PIECE_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_is_shown_as_one() {
        assert_eq!(line("zstd:3", Path::new("/a\nb")), "zstd:3    /a\\u000ab\n");
        assert_eq!(line("default lz4", Path::new("b")), "(lz4)     b\n");
    }
}
