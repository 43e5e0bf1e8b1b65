//! Global settings of a server that a benchmark changes while it runs.
//!
//! 1. A change is told on standard error, with what was there before, and noted before it is made.
//! 2. What is noted goes back when its [`Changed`] ends, or when [`give_back_settings`] is called because a signal ends
//!    the process. The list is locked from the note until the change is made, and while settings go back.
//!
//! After SIGKILL, and where the server cannot be reached in the end, a change stays; 1 says how to undo it.

use std::{
    io::{self, Write},
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result, bail};

use super::{
    address::{Address, Login},
    client::{self, Client},
};

/// How a kind of server is reached.
pub(crate) type Connect = fn(&Address, &Login) -> client::Result<Box<dyn Client>>;

/// A setting and its value.
type Setting = (&'static str, String);

/// What has to go back.
struct Noted {
    number: u64,
    connect: Connect,
    address: Address,
    login: Login,
    /// What was there, in the order in which it was changed.
    before: Vec<Setting>,
}

struct List {
    noted: Vec<Noted>,
    next: u64,
}

static LIST: Mutex<List> = Mutex::new(List { noted: Vec::new(), next: 0 });

fn list() -> MutexGuard<'static, List> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changed settings of a server, which go back when this is dropped.
#[derive(Debug)]
pub(crate) struct Changed(Option<u64>);

impl Changed {
    /// Changes those of the settings that have other values, in this order; they go back in the turned order. `during`
    /// says for how long.
    ///
    /// # Errors
    /// When the server refuses one; the others go back.
    pub(crate) fn make(
        client: &mut dyn Client,
        connect: Connect,
        (address, login): (&Address, &Login),
        settings: &[(&'static str, &str)],
        during: &str,
    ) -> Result<Changed> {
        // All before any: some change others.
        let mut changes = Vec::new();
        for &(name, value) in settings {
            let before = client.query(&format!("SELECT @@GLOBAL.{name}"))?;
            let before = before.into_iter().flatten().flatten().next();
            let before = before.with_context(|| format!("the server has no setting {name}"))?;
            if before != value {
                changes.push((name, value, before));
            }
        }
        if changes.is_empty() {
            return Ok(Changed(None));
        }
        let told: Vec<String> = changes
            .iter()
            .map(|(name, value, before)| format!("{name} = {value} (it is {before})"))
            .collect();
        tell(&format!("{address}: {during} {}", told.join(", ")));
        let mut list = list();
        let number = list.next;
        list.next += 1;
        let (address, login) = (address.clone(), login.clone());
        list.noted.push(Noted { number, connect, address, login, before: Vec::new() });
        let changed = Changed(Some(number));
        let made = changes.into_iter().try_for_each(|(name, value, before)| {
            let noted = list.noted.last_mut().expect("it was added above");
            noted.before.push((name, before));
            client.execute(&set(name, value)).with_context(|| format!("{name} = {value}"))
        });
        drop(list);
        made.map(|()| changed)
    }

    /// Gives the settings back.
    ///
    /// # Errors
    /// Names what stays changed, and why.
    pub(crate) fn give_back(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), give_back)
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(give_back) {
            tell(&format!("{error:#}"));
        }
    }
}

fn give_back(number: u64) -> Result<()> {
    let mut list = list();
    match list.noted.iter().position(|noted| noted.number == number) {
        Some(at) => list.noted.remove(at).give_back(),
        None => Ok(()),
    }
}

/// Gives back all that is changed now, and lets nothing be changed any more: the process is about to end.
pub fn give_back_settings() {
    let mut list = list();
    for noted in mem::take(&mut list.noted).iter().rev() {
        if let Err(error) = noted.give_back() {
            tell(&format!("{error:#}"));
        }
    }
    mem::forget(list);
}

impl Noted {
    fn give_back(&self) -> Result<()> {
        let Noted { connect, address, login, before, .. } = self;
        let server = Login { database: None, ..login.clone() };
        let mut left: Vec<String> = before.iter().rev().map(|(name, value)| set(name, value)).collect();
        let result = connect(address, &server).and_then(|mut client| {
            while let Some(statement) = left.first() {
                client.execute(statement)?;
                left.remove(0);
            }
            Ok(())
        });
        match result {
            Ok(()) => Ok(()),
            Err(error) => bail!("{address}: settings stay changed ({error}); {} undoes it", left.join("; ")),
        }
    }
}

fn set(name: &str, value: &str) -> String {
    let quote = if value.parse::<f64>().is_ok() { "" } else { "'" };
    format!("SET GLOBAL {name} = {quote}{value}{quote}")
}

fn tell(line: &str) {
    // Whoever reads it may have gone.
    let _ = writeln!(io::stderr(), "{line}");
}
