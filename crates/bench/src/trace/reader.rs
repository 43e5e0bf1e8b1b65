use std::{
    fs,
    io::{BufReader, ErrorKind, Read},
    path::Path,
};

use lacuna_device::{Error, Result};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{
    TraceOp, TraceSource,
    format::{ENTRY_BYTES, Flaw, TraceEntryRaw, TraceFrameRaw, TraceHeaderRaw},
};

/// Reads a trace file from front to back. It returns nothing before its checksum was verified.
///
/// It is an iterator; after an error it ends.
pub struct TraceReader {
    name: String,
    file: BufReader<fs::File>,
    source: TraceSource,
    /// Byte of the file where `frame` begins, and where the next one does.
    frame_at: u64,
    at: u64,
    frames: u64,
    entries_before: u64,
    /// Entries of the current frame, the next one last.
    frame: Vec<TraceEntryRaw>,
    ended: bool,
}

impl TraceReader {
    /// Opens the trace `path`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a file that is no trace, or one of another version; I/O errors. All name
    /// the path.
    pub fn open(path: &Path) -> Result<TraceReader> {
        let name = path.display().to_string();
        let file = fs::File::open(path).map_err(|error| Error::io(format!("{name}: open"), error))?;
        let mut reader = TraceReader {
            name,
            file: BufReader::new(file),
            source: TraceSource::Files,
            frame_at: 0,
            at: 0,
            frames: 0,
            entries_before: 0,
            frame: Vec::new(),
            ended: false,
        };
        let mut bytes = [0; size_of::<TraceHeaderRaw>()];
        let read = reader.fill(&mut bytes)?;
        let header = TraceHeaderRaw::read_from_bytes(&bytes).expect("sizes are equal");
        // A short file is most likely a foreign one, so the header is checked first.
        reader.source = header.verify().map_err(|flaw| reader.corrupt(flaw))?;
        if read < bytes.len() {
            return Err(reader.corrupt("truncated within the header".into()));
        }
        Ok(reader)
    }

    /// The traced storage.
    pub fn source(&self) -> TraceSource {
        self.source
    }

    fn corrupt(&self, reason: Flaw) -> Error {
        Error::Corrupt { what: self.name.clone(), at: self.frame_at, reason }
    }

    /// Reads until `bytes` is full or the file ends.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read(&mut bytes[done..]) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(format!("{}: read", self.name), error)),
            }
        }
        self.at += done as u64;
        Ok(done)
    }

    fn fill_all(&mut self, bytes: &mut [u8]) -> Result<()> {
        match self.fill(bytes)? {
            read if read == bytes.len() => Ok(()),
            _ => Err(self.corrupt("truncated: the end of the trace is missing".into())),
        }
    }

    /// Reads the next frame; false at the end of the trace.
    fn next_frame(&mut self) -> Result<bool> {
        self.frame_at = self.at;
        let mut header = TraceFrameRaw::new_zeroed();
        self.fill_all(header.as_mut_bytes())?;
        let entries = header.entries().map_err(|flaw| self.corrupt(flaw))?;
        let mut frame = vec![TraceEntryRaw::new_zeroed(); entries];
        debug_assert_eq!(frame.as_bytes().len(), entries * ENTRY_BYTES);
        self.fill_all(frame.as_mut_bytes())?;
        let verified = header.verify(self.frames, self.entries_before, &frame);
        verified.map_err(|flaw| self.corrupt(flaw))?;
        if entries == 0 && self.fill(&mut [0])? > 0 {
            return Err(self.corrupt("foreign bytes behind the end of the trace".into()));
        }
        self.frames += 1;
        self.entries_before += entries as u64;
        frame.reverse();
        self.frame = frame;
        Ok(entries > 0)
    }

    fn next_op(&mut self) -> Result<Option<TraceOp>> {
        if self.frame.is_empty() && !self.next_frame()? {
            return Ok(None);
        }
        let entry = self.frame.pop().expect("frames before the end have entries");
        entry.verify().map(Some).map_err(|flaw| self.corrupt(flaw))
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceOp>;

    fn next(&mut self) -> Option<Result<TraceOp>> {
        if self.ended {
            return None;
        }
        let next = self.next_op().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
