//! What the program says, on standard output and standard error.

use std::io::{ErrorKind, Write};

use anyhow::Result;

use crate::printable;

/// Prints one line to standard error, whatever `what` holds.
pub(crate) fn complain(what: &str) {
    let line = what.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(std::io::stderr(), "lacuna: {}", printable::one_line(&line));
}

/// Prints to standard output, for a terminal. A reader that went away is not an error.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(printable::lines(text).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
