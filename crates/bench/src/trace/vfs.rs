//! Tracing the files of a VFS.
//!
//! Owns a table of the files by name: each gets a number, and with it a part of the trace's addresses,
//! that it keeps when it is renamed and that no other file ever gets. The table also knows which bytes
//! of each file may have been written, so that removing it discards these and no more.

use std::{collections::HashMap, sync::Arc};

use lacuna_device::{BatchOp, Error, File, FileId, FileProps, Result, StreamHint, Vfs, VfsStats};
use parking_lot::Mutex;

use super::{FILE_SPAN_BYTES, TraceOp, TraceWriter};

/// A [`Vfs`] that passes everything on to another one and records what changes its files.
pub struct TraceVfs {
    inner: Arc<dyn Vfs>,
    trace: Arc<TraceWriter>,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    by_name: HashMap<String, Arc<Traced>>,
    by_id: HashMap<FileId, Arc<Traced>>,
    next_number: u64,
}

/// A file of the trace, whatever its name and however often it is open.
struct Traced {
    number: u64,
    /// No byte from here on is known to have been written.
    end: Mutex<u64>,
}

impl Traced {
    fn write(&self, trace: &TraceWriter, offset: u64, len: u64) {
        let mut end = self.end.lock();
        *end = (*end).max(offset + len);
        trace.record(TraceOp::Write { offset: self.number * FILE_SPAN_BYTES + offset, len });
    }

    fn discard(&self, trace: &TraceWriter, offset: u64, len: u64) {
        let end = *self.end.lock();
        let len = len.min(end.saturating_sub(offset));
        if len > 0 {
            trace.record(TraceOp::Discard { offset: self.number * FILE_SPAN_BYTES + offset, len });
        }
    }
}

fn check_span(name: &str, offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_SPAN_BYTES => Ok(()),
        _ => Err(Error::Unsupported { what: name.into(), operation: "trace of a file beyond 32 TiB" }),
    }
}

impl TraceVfs {
    /// Records into `trace` all changes to the files of `inner` from now on.
    pub fn new(inner: Arc<dyn Vfs>, trace: Arc<TraceWriter>) -> TraceVfs {
        TraceVfs { inner, trace, files: Mutex::default() }
    }

    fn traced(&self, name: &str, file: Arc<dyn File>) -> Result<Arc<dyn File>> {
        let len = file.len()?;
        check_span(name, 0, len)?;
        let mut files = self.files.lock();
        let number = files.next_number;
        let traced = Arc::clone(
            files.by_name.entry(name.into()).or_insert_with(|| Arc::new(Traced { number, end: 0.into() })),
        );
        files.next_number += u64::from(traced.number == number);
        let mut end = traced.end.lock();
        *end = (*end).max(len);
        drop(end);
        files.by_id.insert(file.id(), Arc::clone(&traced));
        let (name, trace) = (name.to_owned(), Arc::clone(&self.trace));
        Ok(Arc::new(TraceFile { name, inner: file, traced, trace }))
    }

    /// The file that had `name`, if it was ever open, is no more.
    fn forget(&self, files: &mut Files, name: &str) {
        if let Some(gone) = files.by_name.remove(name) {
            gone.discard(&self.trace, 0, FILE_SPAN_BYTES);
        }
    }
}

impl Vfs for TraceVfs {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn identity(&self) -> (usize, u64) {
        self.inner.identity()
    }

    fn props(&self) -> FileProps {
        self.inner.props()
    }

    fn open(&self, name: &str, hint: StreamHint) -> Result<Arc<dyn File>> {
        self.traced(name, self.inner.open(name, hint)?)
    }

    fn create(&self, name: &str, hint: StreamHint) -> Result<Arc<dyn File>> {
        self.traced(name, self.inner.create(name, hint)?)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.inner.remove(name)?;
        self.forget(&mut self.files.lock(), name);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.inner.rename(from, to)?;
        if from != to {
            let mut files = self.files.lock();
            self.forget(&mut files, to);
            if let Some(file) = files.by_name.remove(from) {
                files.by_name.insert(to.to_owned(), file);
            }
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        self.inner.list()
    }

    fn write_batch(&self, ops: &[BatchOp<'_>]) -> Result<()> {
        for op in ops {
            let (offset, len) = op.range();
            check_span(self.name(), offset, len)?;
        }
        self.inner.write_batch(ops)?;
        let files = self.files.lock();
        for op in ops {
            let (offset, len) = op.range();
            let file = files.by_id.get(&op.file()).expect("a batch names open files");
            match op {
                BatchOp::Write { .. } => file.write(&self.trace, offset, len),
                BatchOp::Punch { .. } => file.discard(&self.trace, offset, len),
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()?;
        self.trace.record(TraceOp::Sync);
        Ok(())
    }

    fn stats(&self) -> Result<VfsStats> {
        self.inner.stats()
    }

    fn log_bytes_max(&self) -> Option<u64> {
        self.inner.log_bytes_max()
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        self.inner.free_bytes()
    }
}

/// An open file of a [`TraceVfs`].
struct TraceFile {
    name: String,
    inner: Arc<dyn File>,
    traced: Arc<Traced>,
    trace: Arc<TraceWriter>,
}

impl File for TraceFile {
    fn id(&self) -> FileId {
        self.inner.id()
    }

    fn props(&self) -> FileProps {
        self.inner.props()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        check_span(&self.name, 0, len)?;
        self.inner.set_len(len)?;
        self.traced.discard(&self.trace, len, FILE_SPAN_BYTES);
        let mut end = self.traced.end.lock();
        *end = (*end).min(len);
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_span(&self.name, offset, data.len() as u64)?;
        self.inner.write_at(offset, data)?;
        self.traced.write(&self.trace, offset, data.len() as u64);
        Ok(())
    }

    fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_span(&self.name, offset, data.len() as u64)?;
        self.inner.write_atomic(offset, data)?;
        self.traced.write(&self.trace, offset, data.len() as u64);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.punch(offset, len)?;
        self.traced.discard(&self.trace, offset, len);
        Ok(())
    }

    fn allocated(&self, offset: u64, len: u64) -> Result<u64> {
        self.inner.allocated(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()?;
        self.trace.record(TraceOp::Sync);
        Ok(())
    }
}
