//! A file of acknowledgements, outside the store: a first line that names the benchmark, then one line for each fact
//! that must hold in the store after any crash.
//!
//! After a commit returned, and before its requester goes on, one `write` appends what that commit
//! changed, so the lines survive a `kill -9` of the process at any moment.

use std::{
    fmt::{self, Write as _},
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    marker::PhantomData,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, bail, ensure};

/// A change by a commit of a benchmark; each displays as a line, without its end.
pub trait Acknowledgement: fmt::Display {
    /// Names the benchmark and the version of the file.
    const FIRST_LINE: &'static str;
}

/// Writes acknowledgements.
#[derive(Debug)]
pub struct AckFile<A> {
    path: PathBuf,
    file: File,
    of: PhantomData<fn(A)>,
}

impl<A: Acknowledgement> AckFile<A> {
    /// Starts the log anew.
    ///
    /// # Errors
    /// When the file cannot be written, or exists and is not such a log.
    pub fn create(path: &Path) -> Result<AckFile<A>> {
        let first_line = A::FIRST_LINE;
        let named = || path.display().to_string();
        if path.exists() {
            let mut start = Vec::new();
            let file = File::open(path).with_context(named)?;
            file.take(first_line.len() as u64).read_to_end(&mut start).with_context(named)?;
            ensure!(
                start.is_empty() || start == first_line.as_bytes(),
                "{}: exists and is not an acknowledgement log",
                path.display()
            );
        }
        let mut made = File::options();
        made.write(true).create(true).truncate(true).mode(0o600).open(path).with_context(named)?;
        let mut file = File::options().append(true).open(path).with_context(named)?;
        writeln!(file, "{first_line}").with_context(named)?;
        Ok(AckFile { path: path.to_owned(), file, of: PhantomData })
    }

    /// Appends what one commit changed in one write.
    pub(crate) fn append(&self, acks: &[A]) -> Result<()> {
        let mut lines = String::new();
        for ack in acks {
            writeln!(lines, "{ack}").expect("a string takes everything");
        }
        (&self.file).write_all(lines.as_bytes()).with_context(|| self.path.display().to_string())
    }
}

/// Passes every line after the first to `add`, which returns whether it is an acknowledgement. A crash may leave an
/// unfinished last line, which is skipped.
pub(crate) fn read<A: Acknowledgement>(path: &Path, mut add: impl FnMut(&str) -> bool) -> Result<()> {
    let named = || path.display().to_string();
    let mut file = BufReader::new(File::open(path).with_context(named)?);
    let mut line = String::new();
    for number in 1u64.. {
        line.clear();
        file.read_line(&mut line).with_context(named)?;
        let Some(text) = line.strip_suffix('\n') else { break };
        if number == 1 {
            ensure!(text == A::FIRST_LINE, "{}: not an acknowledgement log", path.display());
        } else if !add(text) {
            bail!("{}: line {number} is not an acknowledgement: {text:?}", path.display());
        }
    }
    Ok(())
}

/// `text` as exactly so many numbers with single blanks between them.
pub(crate) fn fields<const N: usize>(text: &str) -> Option<[u64; N]> {
    let mut words = text.split(' ').map(u64::from_str);
    let mut fields = [0; N];
    for field in &mut fields {
        *field = words.next()?.ok()?;
    }
    words.next().is_none().then_some(fields)
}
