//! Files and directories of a mount, and the attributes by which a mount answers about compression
//! (`crates/fuse/src/service/compression.rs`).

use std::{
    fs::{self, Metadata},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::{
    fs::{XattrFlags, lgetxattr, lsetxattr},
    io::Errno as Os,
};

use crate::printable::one_line;

/// How a file or directory is compressed; each of a mount has it.
pub(crate) const COMPRESSION: &str = "user.lacuna.compression";
/// Longer answers are none.
const ANSWER_BYTES_MAX: usize = 256;

/// A path for people.
pub(crate) fn shown(path: &Path) -> String {
    one_line(&String::from_utf8_lossy(path.as_os_str().as_bytes())).into_owned()
}

/// Calls `visit` with `top` and, if it is a directory and `is_deep`, with all files and directories below it in the same
/// file system. Symbolic links are not followed, but `top` may be one. What is removed meanwhile is passed over, below
/// `top`. Its memory depends on the names that wait.
pub(crate) fn visit(
    top: &Path,
    is_deep: bool,
    mut visit: impl FnMut(&Path, &Metadata) -> Result<()>,
) -> Result<()> {
    let top = top.canonicalize().with_context(|| shown(top))?;
    let found = fs::metadata(&top).with_context(|| shown(&top))?;
    if !found.is_dir() && !found.is_file() {
        bail!("{}: neither a file nor a directory", shown(&top));
    }
    let device = found.dev();
    let mut rest: Vec<PathBuf> = vec![top.clone()];
    while let Some(path) = rest.pop() {
        match visit_one(&path, device, is_deep, &mut rest, &mut visit) {
            Err(error) if path != top && is_gone(&error) => {}
            visited => visited?,
        }
    }
    Ok(())
}

fn visit_one(
    path: &Path,
    device: u64,
    is_deep: bool,
    rest: &mut Vec<PathBuf>,
    visit: &mut impl FnMut(&Path, &Metadata) -> Result<()>,
) -> Result<()> {
    let metadata = fs::symlink_metadata(path).with_context(|| shown(path))?;
    let kind = metadata.file_type();
    if metadata.dev() != device || !(kind.is_dir() || kind.is_file()) {
        return Ok(());
    }
    visit(path, &metadata)?;
    if is_deep && kind.is_dir() {
        for entry in fs::read_dir(path).with_context(|| shown(path))? {
            rest.push(entry.with_context(|| shown(path))?.path());
        }
    }
    Ok(())
}

/// Whether something failed because it was removed.
fn is_gone(error: &anyhow::Error) -> bool {
    let of_system = error.downcast_ref::<io::Error>().and_then(Os::from_io_error);
    error.downcast_ref().copied().or(of_system) == Some(Os::NOENT)
}

/// What the mount answers about a file: the text of an attribute.
pub(crate) fn ask(path: &Path, name: &str) -> Result<String> {
    let mut space = [0; ANSWER_BYTES_MAX];
    let len = match lgetxattr(path, name, &mut space[..]) {
        Err(Os::NODATA | Os::OPNOTSUPP | Os::RANGE) => bail!("{}: not on a Lacuna mount", shown(path)),
        answered => answered.with_context(|| shown(path))?,
    };
    Ok(String::from_utf8_lossy(&space[..len]).into_owned())
}

/// Sets an attribute, which the mount takes as an order.
pub(crate) fn order(path: &Path, name: &str, value: &str) -> Result<()> {
    lsetxattr(path, name, value.as_bytes(), XattrFlags::empty()).with_context(|| shown(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_meanwhile_is_passed_over() {
        let top = tempfile::tempdir().expect("a directory");
        for name in ["a", "b", "c"] {
            fs::write(top.path().join(name), "x").expect("writes");
        }
        fs::create_dir(top.path().join("d")).expect("makes");
        let mut seen = 0;
        // As questions and orders do.
        let vanishes = |path: &Path, metadata: &Metadata| {
            if metadata.is_file() {
                fs::remove_file(path).expect("removes");
                lgetxattr(path, "user.x", &mut [0; 9][..]).with_context(|| shown(path))?;
            } else if path != top.path().canonicalize().expect("a path") {
                fs::remove_dir(path).expect("removes"); // before it is read
            }
            seen += 1;
            Ok(())
        };
        visit(top.path(), true, vanishes).expect("goes on");
        assert_eq!(seen, 2);
        let file = top.path().join("file");
        fs::write(&file, "x").expect("writes");
        let gone = visit(&file, true, |path, _| {
            fs::remove_file(path).expect("removes");
            fs::metadata(path).map(drop).with_context(|| shown(path))
        });
        assert!(gone.is_err(), "what was named");
    }

    #[test]
    fn a_walk_sees_files_and_directories_once_and_follows_no_links() {
        let top = tempfile::tempdir().expect("a directory");
        fs::create_dir(top.path().join("d")).expect("makes");
        fs::write(top.path().join("d/f"), "x").expect("writes");
        std::os::unix::fs::symlink("..", top.path().join("d/up")).expect("links");
        let seen = |is_deep| {
            let mut seen = Vec::new();
            visit(top.path(), is_deep, |path, _| {
                seen.push(path.file_name().expect("a name").to_string_lossy().into_owned());
                Ok(())
            })
            .expect("walks");
            seen.sort();
            seen.split_off(1)
        };
        assert_eq!(seen(true), ["d", "f"]);
        assert!(seen(false).is_empty());
        let error = ask(top.path(), "user.lacuna.room").expect_err("it is elsewhere").to_string();
        assert!(error.ends_with("not on a Lacuna mount"), "{error}");
        assert!(visit(Path::new("/there/is/none"), true, |_, _| Ok(())).is_err());
    }
}
