//! Storage whose writes are recorded.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Result, bail};
use lacuna_bench::trace::{TraceDevice, TraceSource, TraceVfs, TraceWriter};
use lacuna_device::{BlockDevice, RawDevice, RawOptions, Vfs};
use lacuna_nvmfs::{LogDevicePath, OpenedVfs, VfsOptions, format_path};

use crate::keys::{open_on, open_vfs};

/// Open storage, and the trace of its writes, if one is made.
pub(crate) struct TracedVfs {
    opened: OpenedVfs,
    vfs: Arc<dyn Vfs>,
    trace: Option<Arc<TraceWriter>>,
}

impl TracedVfs {
    /// Like [`open_vfs`], and records into the new file `trace`. The writes that make a store are not recorded.
    pub(crate) fn open(path: &Path, options: &VfsOptions, trace: Option<&Path>) -> Result<TracedVfs> {
        let Some(trace) = trace else {
            let opened = open_vfs(path, options)?;
            return Ok(TracedVfs { vfs: opened.vfs(), opened, trace: None });
        };
        if options.log_device != LogDevicePath::None {
            bail!("{}: writes to a log device cannot be recorded (--trace)", path.display());
        }
        if fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
            let opened = open_vfs(path, options)?;
            let trace = TraceWriter::create(trace, TraceSource::Files)?;
            let vfs = Arc::new(TraceVfs::new(opened.vfs(), Arc::clone(&trace)));
            return Ok(TracedVfs { opened, vfs, trace: Some(trace) });
        }
        let missing = matches!(fs::metadata(path), Err(error) if error.kind() == ErrorKind::NotFound);
        if let (true, Some(size)) = (missing, options.create_size) {
            format_path(path, Some(size), &options.format)?;
        }
        let raw = RawOptions { read_only: options.read_only, ..RawOptions::default() };
        let device: Arc<dyn BlockDevice> = Arc::new(RawDevice::open(path, raw)?);
        let trace = TraceWriter::create(trace, TraceDevice::source(&*device))?;
        let device: Arc<dyn BlockDevice> = Arc::new(TraceDevice::new(device, Arc::clone(&trace)));
        let opened = OpenedVfs::Store(Arc::new(open_on(path, &device, &options.options)?));
        Ok(TracedVfs { vfs: opened.vfs(), opened, trace: Some(trace) })
    }

    pub(crate) fn vfs(&self) -> Arc<dyn Vfs> {
        Arc::clone(&self.vfs)
    }

    /// Closes the storage, of which no handle may be left, and ends the trace.
    pub(crate) fn close(self) -> Result<()> {
        self.opened.close()?;
        let TracedVfs { opened, vfs, trace } = self;
        drop((opened, vfs));
        if let Some(trace) = trace {
            trace.finish()?;
        }
        Ok(())
    }
}

/// Refuses a trace that could not be made in the end: its file exists, or its directory does not.
pub(crate) fn must_be_new(trace: &Path) -> Result<()> {
    if fs::symlink_metadata(trace).is_ok() {
        bail!("{}: exists already", trace.display());
    }
    match trace.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) if !parent.is_dir() => bail!("{}: no such directory", parent.display()),
        _ => Ok(()),
    }
}

/// `trace` followed by `suffix`.
pub(crate) fn with_suffix(trace: &Path, suffix: &str) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}
