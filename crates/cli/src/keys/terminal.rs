//! Passphrases that are typed: without an echo, at the terminal of the process, whatever its input and output are.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read, Write},
};

use anyhow::{Context, Result, bail};
use lacuna_ftl::Secret;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

const TERMINAL: &str = "/dev/tty";

fn open() -> Option<File> {
    OpenOptions::new().read(true).write(true).open(TERMINAL).ok()
}

/// Whether this process has a terminal.
pub(super) fn is_there() -> bool {
    open().is_some()
}

/// A terminal that shows nothing of what is typed, until it is dropped.
struct Hushed {
    terminal: File,
    before: Termios,
}

impl Hushed {
    fn new(terminal: File) -> Result<Hushed> {
        let before = tcgetattr(&terminal).context(TERMINAL)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        quiet.local_modes.insert(LocalModes::ECHONL | LocalModes::ICANON);
        tcsetattr(&terminal, OptionalActions::Flush, &quiet).context(TERMINAL)?;
        Ok(Hushed { terminal, before })
    }
}

impl Drop for Hushed {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// Asks for a passphrase, which `option` and what follows it there would give otherwise.
pub(super) fn ask(what: &str, option: &str) -> Result<Secret> {
    let Some(terminal) = open() else {
        bail!("{what}: there is no terminal to ask for it ({option}-file, {option}-command, {option}-fd)")
    };
    let hushed = Hushed::new(terminal)?;
    write!(&hushed.terminal, "{what}: ").context(TERMINAL)?;
    let mut line = Vec::with_capacity(lacuna_ftl::KEY_BYTES_MAX + 2);
    // By bytes: a buffer would keep what was typed, and a longer vector would leave a copy behind.
    let mut byte = [0];
    while line.len() <= lacuna_ftl::KEY_BYTES_MAX {
        match (&hushed.terminal).read(&mut byte) {
            Ok(1) if byte != *b"\n" => line.push(byte[0]),
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context(TERMINAL),
        }
    }
    Secret::new(line).with_context(|| what.to_owned())
}

/// Asks for a new passphrase, twice.
pub(super) fn ask_twice(what: &str, option: &str) -> Result<Secret> {
    let first = ask(what, option)?;
    match ask("The same again", option)?.expose() == first.expose() {
        true => Ok(first),
        false => bail!("{what}: that was not the same"),
    }
}
