use std::{
    collections::{BTreeMap, HashSet},
    fmt::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::Args;

use crate::{say, walk};

const ROOM: &str = "user.lacuna.room";

/// Show what files of a mount take, by how they are compressed
#[derive(Args)]
pub(crate) struct Arguments {
    /// Files, or directories with all that is in them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// In bytes
    #[arg(long)]
    bytes: bool,
    /// Also of each directory that lies so many levels below
    #[arg(long, value_name = "LEVELS", default_value_t = 0, hide_default_value = true)]
    depth: usize,
}

/// Names of the ways to store data, as the mount has them.
const KINDS: [&str; 3] = ["plain", "lz4", "zstd"];

/// Files, lengths, and by kind bytes of data and what they take.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    files: u64,
    length_bytes: u64,
    of_kind: [(u64, u64); KINDS.len()],
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    for path in &arguments.paths {
        walk::ask(path, walk::COMPRESSION)?; // also where there is no file to ask about
        // Of `path` and of directories below it, by their names from there on.
        let mut sums = BTreeMap::from([(PathBuf::new(), Sum::default())]);
        let mut linked = HashSet::new(); // files with many names count once
        let top = path.canonicalize().with_context(|| walk::shown(path))?;
        walk::visit(path, true, |path, metadata| {
            let below = path.strip_prefix(&top).unwrap_or(path);
            let directory =
                if metadata.is_dir() { Some(below) } else { below.parent() }.unwrap_or(Path::new(""));
            let is_counted = metadata.nlink() == 1 || linked.insert(metadata.ino());
            let mut found = Sum::default();
            if metadata.is_file() && is_counted {
                let answer = walk::ask(path, ROOM)?;
                (found.files, found.length_bytes) = (1, metadata.len());
                found
                    .add(&answer)
                    .with_context(|| format!("{}: not understood: {answer}", walk::shown(path)))?;
            }
            let above = directory.ancestors().filter(|above| above.components().count() <= arguments.depth);
            above.for_each(|above| sums.entry(above.to_owned()).or_default().merge(&found));
            Ok(())
        })?;
        for (below, sum) in sums {
            let name = if below.as_os_str().is_empty() { path.clone() } else { path.join(below) };
            say(&sum.text(&walk::shown(&name), arguments.bytes))?;
        }
    }
    Ok(())
}

impl Sum {
    fn merge(&mut self, other: &Sum) {
        self.files += other.files;
        self.length_bytes += other.length_bytes;
        for (mine, theirs) in self.of_kind.iter_mut().zip(other.of_kind) {
            *mine = (mine.0 + theirs.0, mine.1 + theirs.1);
        }
    }

    /// Adds the room of a file, as the mount tells it.
    fn add(&mut self, answer: &str) -> Option<()> {
        let words: Vec<&str> = answer.split(' ').collect();
        for part in words.chunks(3) {
            let [name, data, taken] = part else { return None };
            let kind = KINDS.iter().position(|kind| kind == name)?;
            self.of_kind[kind].0 += data.parse::<u64>().ok()?;
            self.of_kind[kind].1 += taken.parse::<u64>().ok()?;
        }
        Some(())
    }

    fn text(&self, path: &str, is_in_bytes: bool) -> String {
        let size = |bytes: u64| match is_in_bytes {
            true => bytes.to_string(),
            false => format!("{:.1} MB", bytes as f64 / 1e6),
        };
        let mut text = format!("{path}: {} files of {}\n", self.files, size(self.length_bytes));
        let _ = writeln!(text, "  {:<6} {:>14} {:>14} {:>6}", "", "data", "takes", "share");
        let mut row = |name: &str, (data, taken): (u64, u64)| {
            let share = match data {
                0 => "-".to_owned(),
                _ => format!("{:.0}%", taken as f64 * 100.0 / data as f64),
            };
            let _ = writeln!(text, "  {name:<6} {:>14} {:>14} {share:>6}", size(data), size(taken));
        };
        for (name, of) in KINDS.iter().zip(self.of_kind).filter(|(_, of)| of.0 > 0) {
            row(name, of);
        }
        let total = |at: fn(&(u64, u64)) -> u64| self.of_kind.iter().map(at).sum();
        row("all", (total(|of| of.0), total(|of| of.1)));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_summed_by_kind() {
        let mut sum = Sum { files: 2, length_bytes: 3000, ..Sum::default() };
        assert_eq!(sum.add("plain 1024 1000 lz4 2048 512 zstd 0 0"), Some(()));
        assert_eq!(sum.add("plain 0 0 lz4 2048 512 zstd 0 0"), Some(()));
        let text = sum.text("/d", true);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0].join(" "), "/d: 2 files of 3000");
        assert_eq!(rows[2], ["plain", "1024", "1000", "98%"]);
        assert_eq!(rows[3], ["lz4", "4096", "1024", "25%"]);
        assert_eq!(rows[4], ["all", "5120", "2024", "40%"]);
        assert_eq!(rows.len(), 5);
        for wrong in ["", "plain 1", "zlib 1 1", "lz4 x 1"] {
            assert_eq!(Sum::default().add(wrong), None, "{wrong}");
        }
    }
}
