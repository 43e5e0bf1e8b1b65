use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path, sync::Arc};

use lacuna_device::{Error, Result};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use super::{
    TraceOp, TraceSource,
    format::{ENTRY_BYTES, FRAME_ENTRIES_MAX, TraceEntryRaw, TraceFrameRaw, TraceHeaderRaw},
};

/// Writes a trace file. Shared by all devices and files that are traced into it.
///
/// A failure to write it does not disturb the traced run; [`TraceWriter::finish`] reports it. Without that call the
/// file has no end, and readers refuse it.
pub struct TraceWriter {
    name: String,
    state: Mutex<State>,
}

struct State {
    file: fs::File,
    pending: Vec<TraceEntryRaw>,
    frames: u64,
    /// Entries in the frames written.
    entries: u64,
    /// The first failure; nothing is written after it.
    failure: Option<Error>,
    finished: bool,
}

impl TraceWriter {
    /// Makes the file `path`.
    ///
    /// # Errors
    /// [`Error::Exists`] when there is anything of that name, and I/O errors that name the path.
    pub fn create(path: &Path, source: TraceSource) -> Result<Arc<TraceWriter>> {
        let name = path.display().to_string();
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Error::Exists { name: name.clone() },
            _ => Error::io(format!("{name}: create"), error),
        })?;
        let mut state = State {
            file,
            pending: Vec::with_capacity(FRAME_ENTRIES_MAX),
            frames: 0,
            entries: 0,
            failure: None,
            finished: false,
        };
        state.write(&name, TraceHeaderRaw::new(source).as_bytes());
        match state.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(Arc::new(TraceWriter { name, state: Mutex::new(state) })),
        }
    }

    /// Adds one operation.
    ///
    /// # Panics
    /// After [`TraceWriter::finish`].
    pub fn record(&self, op: TraceOp) {
        let mut state = self.state.lock();
        assert!(!state.finished, "{}: recorded after its end", self.name);
        for entry in TraceEntryRaw::of(op) {
            state.pending.push(entry);
            if state.pending.len() == FRAME_ENTRIES_MAX {
                state.write_frame(&self.name);
            }
        }
    }

    /// Writes the end of the trace and makes it durable; the number of its entries.
    ///
    /// # Errors
    /// The first failure to write the trace, if there was one.
    pub fn finish(&self) -> Result<u64> {
        let mut state = self.state.lock();
        assert!(!state.finished, "{}: ended twice", self.name);
        state.finished = true;
        if !state.pending.is_empty() {
            state.write_frame(&self.name);
        }
        state.write_frame(&self.name); // one without entries
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        state.file.sync_all().map_err(|error| Error::io(format!("{}: sync", self.name), error))?;
        Ok(state.entries)
    }
}

impl State {
    fn write(&mut self, name: &str, bytes: &[u8]) {
        if self.failure.is_none() {
            let written = self.file.write_all(bytes);
            self.failure = written.err().map(|error| Error::io(format!("{name}: write"), error));
        }
    }

    fn write_frame(&mut self, name: &str) {
        let entries = std::mem::take(&mut self.pending);
        let header = TraceFrameRaw::new(self.frames, self.entries, &entries);
        let mut bytes = Vec::with_capacity(header.as_bytes().len() + entries.len() * ENTRY_BYTES);
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(entries.as_bytes());
        self.write(name, &bytes);
        self.frames += 1;
        self.entries += entries.len() as u64;
        self.pending = entries;
        self.pending.clear();
    }
}
