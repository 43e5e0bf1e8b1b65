use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
};

use lacuna_device::{Error, Result, SECTOR};

use super::TraceOp;

const EVENT: &str = " block_rq_complete: ";

/// Reads what a block device was asked to write, discard and flush from the kernel's own record: the text that
/// `trace_pipe` gives of the event `block_rq_complete`, of that one device. So any file system's writes reach the
/// [flash model](crate::flash), those of its journal and metadata included.
///
/// It is an iterator over the requests that changed something, in the order of their completion; reads are left out. A
/// request to write zeroes without data counts as a discard. A request that failed, and events that the kernel had to
/// drop, are errors: a model of a part of the writes would be wrong without saying so. After an error it ends.
pub struct BlockEvents {
    name: String,
    lines: BufReader<fs::File>,
    line: Vec<u8>,
    /// Byte where `line` begins, and where the next one does.
    line_at: u64,
    at: u64,
    ended: bool,
}

impl BlockEvents {
    /// Opens the record `path`.
    ///
    /// # Errors
    /// I/O errors, which name the path.
    pub fn open(path: &Path) -> Result<BlockEvents> {
        let name = path.display().to_string();
        let file = fs::File::open(path).map_err(|error| Error::io(format!("{name}: open"), error))?;
        Ok(BlockEvents {
            name,
            lines: BufReader::new(file),
            line: Vec::new(),
            line_at: 0,
            at: 0,
            ended: false,
        })
    }

    fn next_op(&mut self) -> Result<Option<TraceOp>> {
        loop {
            self.line.clear();
            let read = self.lines.read_until(b'\n', &mut self.line);
            let read = read.map_err(|error| Error::io(format!("{}: read", self.name), error))?;
            if read == 0 {
                return Ok(None);
            }
            self.line_at = self.at;
            self.at += read as u64;
            // Names of processes may be any bytes.
            let parsed = parse(&String::from_utf8_lossy(&self.line)).map_err(|reason| Error::Corrupt {
                what: self.name.clone(),
                at: self.line_at,
                reason: reason.into(),
            })?;
            if parsed.is_some() {
                return Ok(parsed);
            }
        }
    }
}

impl Iterator for BlockEvents {
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

/// The operation of a line such as `loop0-1 [001] ..s.. 982.3: block_rq_complete: 7,1 WSM () 526 + 2 be,0,4 [0]`, whose
/// numbers are the first sector, how many, and an error. None for what changes nothing: reads, and writes of no sectors,
/// which end the flush in front of a write.
fn parse(line: &str) -> std::result::Result<Option<TraceOp>, &'static str> {
    if line.starts_with('#') || line.trim().is_empty() {
        return Ok(None);
    }
    let Some((_, event)) = line.split_once(EVENT) else {
        return Err(match line.contains("LOST") {
            true => "the kernel dropped events: record with a larger buffer",
            false => "not an event block_rq_complete",
        });
    };
    let event = event.strip_suffix('\n').ok_or("the last line is cut off")?;
    let (request, range) = event.split_once(" () ").ok_or("no request of a file system or a program")?;
    let (_, flags) = request.split_once(' ').ok_or("no kind of request")?;
    let (range, error) = range.rsplit_once(" [").ok_or("no result")?;
    if error != "0]" {
        return Err("a request failed");
    }
    // The letter F in front of another one is a flush before a write, which the kernel sends as a request of its own.
    let kind = match flags.strip_prefix('F') {
        Some(rest) if rest.starts_with('F') || rest.is_empty() => return Ok(Some(TraceOp::Sync)),
        Some(rest) => rest,
        None => flags,
    };
    if kind.starts_with('R') {
        return Ok(None);
    }
    let mut words = range.split(' ');
    let (sector, plus, sectors) = (words.next(), words.next(), words.next());
    let offset = sector.and_then(|word| word.parse::<u64>().ok()?.checked_mul(SECTOR as u64));
    let len = sectors.and_then(|word| Some(u64::from(word.parse::<u32>().ok()?) * SECTOR as u64));
    let (Some(offset), Some("+"), Some(len)) = (offset, plus, len) else {
        return Err("no range of sectors");
    };
    if offset.checked_add(len).is_none() {
        return Err("no range of sectors");
    }
    match kind.as_bytes().first() {
        _ if len == 0 => Ok(None),
        Some(b'W') => Ok(Some(TraceOp::Write { offset, len })),
        Some(b'D' | b'N') => Ok(Some(TraceOp::Discard { offset, len })),
        _ => Err("an unknown kind of request"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(request: &str) -> String {
        format!("     ksoftirqd/1-22      [001] ..s..   982.366529: block_rq_complete: 7,1 {request}\n")
    }

    #[test]
    fn requests_that_change_something_are_operations() {
        let (offset, len) = (526 * 512, 1024);
        for (request, expected) in [
            ("WSM () 526 + 2 be,0,4 [0]", Some(TraceOp::Write { offset, len })),
            ("W () 526 + 2 none,0,0 [0]", Some(TraceOp::Write { offset, len })),
            ("WFS () 526 + 2 none,0,0 [0]", Some(TraceOp::Write { offset, len })),
            ("FWS () 526 + 2 none,0,0 [0]", Some(TraceOp::Write { offset, len })),
            ("DS () 526 + 2 be,0,4 [0]", Some(TraceOp::Discard { offset, len })),
            ("NS () 526 + 2 be,0,4 [0]", Some(TraceOp::Discard { offset, len })),
            ("FF () 18446744073709551615 + 0 none,0,0 [0]", Some(TraceOp::Sync)),
            ("WS () 526 + 0 be,0,4 [0]", None),
            ("RA () 526 + 2 be,0,4 [0]", None),
        ] {
            assert_eq!(parse(&event(request)), Ok(expected), "{request}");
        }
        for comment in ["\n", "# tracer: nop\n"] {
            assert_eq!(parse(comment), Ok(None));
        }
    }

    /// What is missing or unknown is never passed over.
    #[test]
    fn what_is_no_whole_record_is_refused() {
        for (line, reason) in [
            ("CPU:1 [LOST 4096 EVENTS]\n".into(), "dropped events"),
            (event("W () 526 + 2 be,0,4 [-5]"), "failed"),
            (event("W () 526 + 2 be,0,4 [0]").trim_end().to_owned(), "cut off"),
            (event("W () 18446744073709551615 + 2 be,0,4 [0]"), "range"),
            (event("W () 36028797018963967 + 2 be,0,4 [0]"), "range"),
            (event("W () 0 + 4294967296 be,0,4 [0]"), "range"),
            (event("W () 526 2 be,0,4 [0]"), "range"),
            (event("Z () 526 + 2 be,0,4 [0]"), "unknown kind"),
            (event("() 526 + 2 be,0,4 [0]"), "kind"),
            (event("WS (1f) 526 + 2 be,0,4 [0]"), "no request"),
            ("kworker-1 [000] 1.0: block_rq_issue: 7,1 W 4096 () 0 + 8 be,0,4 [x]\n".into(), "not an event"),
        ] {
            let refused = parse(&line).expect_err(&line);
            assert!(refused.contains(reason), "{line}: {refused}");
        }
    }

    /// Whatever is left of a line, and whatever stands in it, it is read or refused.
    #[test]
    fn nonsense_is_no_panic() {
        let whole = event("FWS () 526 + 2 be,0,4 [0]");
        for at in 0..whole.len() {
            let _ = parse(&whole[at..]);
            let _ = parse(&whole[..at]);
            for byte in " F+[]0\u{fffd}".chars() {
                let _ = parse(&format!("{}{byte}{}", &whole[..at], &whole[at + 1..]));
            }
        }
    }

    #[test]
    fn the_place_of_a_flaw_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        let first = event("W () 0 + 8 be,0,4 [0]");
        fs::write(&path, format!("{first}nonsense\n{first}")).unwrap();
        let mut events = BlockEvents::open(&path).unwrap();
        assert_eq!(events.next().unwrap().unwrap(), TraceOp::Write { offset: 0, len: 4096 });
        let at = first.len() as u64;
        assert!(matches!(events.next(), Some(Err(Error::Corrupt { at: found, .. })) if found == at));
        assert!(events.next().is_none());
    }
}
