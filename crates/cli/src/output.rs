//! What the program says, on standard output and standard error, and the reports that it writes.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    os::unix::fs::MetadataExt,
    path::Path,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{printable, stdout};

/// Prints one line to standard error, whatever `what` holds.
pub(crate) fn complain(what: &str) {
    let line = what.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(std::io::stderr(), "lacuna: {}", printable::one_line(&line));
}

/// Prints a line about how work goes to standard error. Whoever read it may have gone: the work goes on.
pub(crate) fn note(what: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable::one_line(what));
}

/// Prints to standard output, for a terminal. A reader that went away is not an error.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let said = stdout::must_be_open()
        .and_then(|()| out.write_all(printable::lines(text).as_bytes()))
        .and_then(|()| out.flush());
    match said {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// Says what was done. That it cannot be said is an error, which does not look as if nothing was done.
pub(crate) fn say_done(text: &str) -> Result<()> {
    say(text).with_context(|| format!("{}; this is done, and cannot be said", text.trim_end()))
}

/// Makes the file `path` for a report if there is none, so that hours of benchmark do not end in a report that cannot be
/// written. What is there is replaced only if it is text, as reports are: a store is not.
pub(crate) fn reserve_report(path: &Path) -> Result<()> {
    let named = || path.display().to_string();
    let mut start = Vec::new();
    let file = File::options().create(true).append(true).read(true).open(path).with_context(named)?;
    // Standard output and the like hold nothing.
    if file.metadata().with_context(named)?.is_file() {
        file.take(TEXT_BYTES).read_to_end(&mut start).with_context(named)?;
    }
    if start.contains(&0) {
        bail!("{}: exists already, and is no report", path.display());
    }
    Ok(())
}

/// How much of a file to look at for a byte that no text has.
const TEXT_BYTES: u64 = 64 << 10;

/// Whether both paths lead to one file.
pub(crate) fn is_same_file(a: &Path, b: &Path) -> bool {
    let identity = |path| fs::metadata(path).ok().map(|found: fs::Metadata| (found.dev(), found.ino()));
    identity(a).is_some_and(|found| identity(b) == Some(found))
}

/// Writes a report, over an earlier one if there is one.
pub(crate) fn write_report(path: &Path, text: &str) -> Result<()> {
    reserve_report(path)?; // a store may have been made there meanwhile
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// As [`write_report`], as JSON.
pub(crate) fn write_json(path: &Path, report: &Value) -> Result<()> {
    write_report(path, &format!("{}\n", serde_json::to_string_pretty(report)?))
}
