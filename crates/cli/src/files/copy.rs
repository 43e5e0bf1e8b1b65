//! Copies of files, links and directories that keep holes, extended attributes and, within one copy, hard
//! links.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use lacuna_nvmfs::posix::FileKind;

use super::{
    contents::{Identity, Reader, Writer},
    ends::{Source, Target},
};

/// The copies of files with several names, by the files' identities.
type Copied = HashMap<Identity, Target>;

/// Smallest unit that outside file systems store; a run of zeros of this size is left out.
const HOLE_BYTES: usize = 4096;

/// Copies `source` to `target`: contents, holes, permissions, times, extended attributes, and which names
/// stand for one file; the owner where that is allowed.
pub(super) fn copy(source: &Source, target: &Target, recursive: bool) -> Result<()> {
    copy_entry(source, target, recursive, &mut Copied::new())
}

fn copy_entry(source: &Source, target: &Target, recursive: bool, copied: &mut Copied) -> Result<()> {
    let kept = source.kept().with_context(|| source.name())?;
    if let Some(identity) = kept.identity {
        if let Some(first) = copied.get(&identity) {
            return target.link_to(first).with_context(|| target.name());
        }
        copied.insert(identity, target.clone());
    }
    match kept.kind {
        FileKind::File => {
            let reader = source.reader().with_context(|| source.name())?;
            let writer = target.writer().with_context(|| target.name())?;
            copy_data(&*reader, &*writer, kept.size)
                .with_context(|| format!("{} to {}", source.name(), target.name()))?;
        }
        FileKind::Symlink => {
            let link = source.link_target().with_context(|| source.name())?;
            target.make_link(&link).with_context(|| target.name())?;
        }
        FileKind::Directory if recursive => {
            target.make_directory().with_context(|| target.name())?;
            for (entry, inner) in source.entries().with_context(|| source.name())? {
                copy_entry(&inner, &target.entry(&entry)?, true, copied)?;
            }
        }
        FileKind::Directory => bail!("{}: is a directory (see --recursive)", source.name()),
        _ => bail!("{}: neither file, directory nor symbolic link", source.name()),
    }
    let xattrs = source.xattrs().with_context(|| source.name())?;
    target.set_kept(&kept, &xattrs).with_context(|| target.name())
}

/// Many runs are read and written at once: the cost of a file with holes is its bytes, not its runs.
fn copy_data(reader: &dyn Reader, writer: &dyn Writer, size: u64) -> Result<()> {
    let mut offset = 0;
    while offset < size {
        let found = reader.read_runs(offset)?;
        let parts = |(at, data)| runs_of_data(data).map(move |(skip, data)| (at + skip as u64, data));
        let runs: Vec<_> = found.runs.iter().flat_map(|(at, data)| parts((*at, &data[..]))).collect();
        writer.write_runs(&runs)?;
        if found.end <= offset {
            // Shorter than it was.
            return writer.finish(offset);
        }
        offset = found.end;
    }
    writer.finish(size)
}

/// The parts of `piece` between long runs of zeros, and where each starts.
pub(super) fn runs_of_data(piece: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let is_hole = |at: usize| piece[at..].iter().take(HOLE_BYTES).all(|byte| *byte == 0);
        while at < piece.len() && is_hole(at) {
            at += HOLE_BYTES;
        }
        let start = at.min(piece.len());
        while at < piece.len() && !is_hole(at) {
            at += HOLE_BYTES;
        }
        at = at.min(piece.len());
        (start < at).then(|| (start, &piece[start..at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_left_out_and_nothing_else() {
        let mut piece = vec![0; 10 * HOLE_BYTES + 100];
        assert_eq!(runs_of_data(&piece).count(), 0);
        piece[3 * HOLE_BYTES + 5] = 1;
        piece[4 * HOLE_BYTES] = 1;
        *piece.last_mut().expect("not empty") = 1;
        let runs: Vec<_> = runs_of_data(&piece).map(|(at, data)| (at, data.len())).collect();
        assert_eq!(runs, [(3 * HOLE_BYTES, 2 * HOLE_BYTES), (10 * HOLE_BYTES, 100)]);
        assert_eq!(runs_of_data(&[]).count(), 0);
    }
}
