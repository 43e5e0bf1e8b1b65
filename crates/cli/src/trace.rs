//! Places whose writes are recorded.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Result, bail};
use lacuna_bench::trace::{TraceDevice, TracePlace, TraceSource, TraceWriter};
use lacuna_device::{BlockDevice, Place, RawDevice, RawOptions};
use lacuna_nvmfs::{Nvmfs, OpenedPlace, PlaceOptions, format_path, open_place};

/// An open place, and the trace of what is written to it, if one is made.
pub(crate) struct TracedPlace {
    opened: OpenedPlace,
    place: Arc<dyn Place>,
    trace: Option<Arc<TraceWriter>>,
}

impl TracedPlace {
    /// Like [`open_place`], and records into the new file `trace`. What is written to make a store is not
    /// recorded.
    pub(crate) fn open(path: &Path, options: &PlaceOptions, trace: Option<&Path>) -> Result<TracedPlace> {
        let Some(trace) = trace else {
            let opened = open_place(path, options)?;
            return Ok(TracedPlace { place: opened.place(), opened, trace: None });
        };
        if fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
            let opened = open_place(path, options)?;
            let trace = TraceWriter::create(trace, TraceSource::Files)?;
            let place = Arc::new(TracePlace::new(opened.place(), Arc::clone(&trace)));
            return Ok(TracedPlace { opened, place, trace: Some(trace) });
        }
        let missing = matches!(fs::metadata(path), Err(error) if error.kind() == ErrorKind::NotFound);
        if let (true, Some(size)) = (missing, options.create_size) {
            format_path(path, Some(size), &options.format)?;
        }
        let raw = RawOptions { read_only: options.read_only, ..RawOptions::default() };
        let device: Arc<dyn BlockDevice> = Arc::new(RawDevice::open(path, raw)?);
        let trace = TraceWriter::create(trace, TraceDevice::source(&*device))?;
        let device = Arc::new(TraceDevice::new(device, Arc::clone(&trace)));
        let opened = OpenedPlace::Store(Arc::new(Nvmfs::open(device, options.options.clone())?));
        Ok(TracedPlace { place: opened.place(), opened, trace: Some(trace) })
    }

    pub(crate) fn place(&self) -> Arc<dyn Place> {
        Arc::clone(&self.place)
    }

    /// Closes the place, of which no handle may be left, and ends the trace.
    pub(crate) fn close(self) -> Result<()> {
        self.opened.close()?;
        let TracedPlace { opened, place, trace } = self;
        drop((opened, place));
        if let Some(trace) = trace {
            trace.finish()?;
        }
        Ok(())
    }
}

/// Refuses a trace that could not be made in the end.
pub(crate) fn must_be_new(trace: &Path) -> Result<()> {
    if fs::symlink_metadata(trace).is_ok() {
        bail!("{}: exists already", trace.display());
    }
    match trace.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) if !parent.is_dir() => bail!("{}: no such directory", parent.display()),
        _ => Ok(()),
    }
}

/// `trace` with `suffix` behind it.
pub(crate) fn with_suffix(trace: &Path, suffix: &str) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}
