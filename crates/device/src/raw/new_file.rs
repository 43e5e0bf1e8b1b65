//! Store files that get their name last, with their content.
//!
//! 1. *A file has its name only when whoever made it has synced what it is to hold*: a crash while it is made leaves
//!    nothing behind, and nobody opens half a store.
//! 2. *The name was free.* What has it meanwhile stays, whoever made it.
//!
//! On file systems that know no files without a name it has another one meanwhile, which a crash leaves behind.

use std::{
    fs, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use rustix::{
    fs::{AtFlags, CWD, OFlags, RenameFlags, linkat, renameat_with},
    io::Errno,
};

use super::{RawDevice, RawOptions, check_size, sync_length};
use crate::{
    Error, Result,
    mutant::{Rule, is_broken},
    positional::PositionalFile,
};

/// A store file of zeros that is being made, for its owner alone.
pub struct NewFile {
    device: Arc<RawDevice>,
    path: PathBuf,
    /// The name that it has meanwhile, if it needs one.
    other_name: Option<PathBuf>,
}

impl NewFile {
    /// Makes a file of `size_bytes` zeros that take no space yet, to be called `path`.
    ///
    /// # Errors
    /// [`Error::Exists`] when there is anything of that name, [`Error::Unsupported`] for a size that is
    /// zero or not a multiple of 4096.
    pub fn make(path: &Path, size_bytes: u64, options: RawOptions) -> Result<NewFile> {
        let name = path.display().to_string();
        check_size(&name, size_bytes)?;
        let error = |error: io::Error| Error::io(format!("{name}: create"), error);
        let Some(last) = path.file_name() else {
            return Err(error(io::Error::new(io::ErrorKind::InvalidInput, "not a name of a file")));
        };
        if fs::symlink_metadata(path).is_ok() {
            return Err(Error::Exists { name });
        }
        let parent = parent_of(path);
        let flags = OFlags::RDWR | OFlags::TMPFILE;
        let mut other_name = None;
        let file = PositionalFile::open_in(CWD, parent, name.clone(), flags).or_else(|refused| {
            // Linux before 3.11 takes the flag for one that opens directories.
            if !matches!(Errno::from_io_error(&refused), Some(Errno::NOTSUP | Errno::ISDIR | Errno::NOSYS)) {
                return Err(refused);
            }
            static NUMBER: AtomicU64 = AtomicU64::new(0);
            let number = NUMBER.fetch_add(1, Relaxed);
            let other = format!(".{}.{}-{number}.new", last.to_string_lossy(), std::process::id());
            let other = other_name.insert(parent.join(other));
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            PositionalFile::open_in(CWD, other, name.clone(), flags)
        });
        let device = file.map_err(error).and_then(|file| {
            file.file
                .set_len(size_bytes)
                .and_then(|()| sync_length(&file.file))
                .map_err(|error| Error::io(format!("{name}: create with {size_bytes} bytes"), error))?;
            RawDevice::of_file(file, None, options, false)
        });
        match device {
            Ok(device) => Ok(NewFile { device: Arc::new(device), path: path.to_owned(), other_name }),
            Err(error) => {
                other_name.map(fs::remove_file); // the error says more than a failure to tidy up
                Err(error)
            }
        }
    }

    /// The file, to be filled and synced.
    pub fn device(&self) -> &Arc<RawDevice> {
        &self.device
    }

    /// Gives it its name, durably.
    ///
    /// # Errors
    /// [`Error::Exists`] when something has the name by now. On any error nothing is left behind.
    pub fn publish(mut self) -> Result<()> {
        let name = self.path.display().to_string();
        let named = match &self.other_name {
            Some(other) => renameat_with(CWD, other, CWD, &self.path, RenameFlags::NOREPLACE),
            None => {
                let file = format!("/proc/self/fd/{}", self.device.file.file.as_raw_fd());
                linkat(CWD, file, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)
            }
        };
        match named {
            Ok(()) => self.other_name = None,
            Err(Errno::EXIST) => return Err(Error::Exists { name }),
            Err(errno) => return Err(Error::io(format!("{name}: create"), errno.into())),
        }
        sync_names(&self.path).map_err(|error| {
            let _ = fs::remove_file(&self.path);
            Error::io(format!("{name}: create"), error)
        })
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(other) = &self.other_name {
            let _ = fs::remove_file(other);
        }
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the name of a new file durable.
fn sync_names(path: &Path) -> io::Result<()> {
    if is_broken(Rule::NamesSynced) {
        return Ok(());
    }
    fs::File::open(parent_of(path))?.sync_all()
}
