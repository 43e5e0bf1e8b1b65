//! Keys of encrypted stores: where the command line says they come from, and opening stores with them.
//!
//! A key is never an argument, where `ps` and the shell's history would show it. It is the content of a file, the
//! output of a command, what a descriptor yields, or a passphrase that is asked for at the terminal. One line end at its
//! end does not belong to it, so the same key may come by each of these ways.
//!
//! The tables in a store have keys of their own, whether or not the store is encrypted: these come by options of their own.

mod tables;
mod terminal;

pub(crate) use tables::{key_of_tables, new_tables_key, open_tables};

use std::{
    fmt::Display,
    fs::File,
    io::{self, Read, Write},
    os::{fd::RawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lacuna_device::{BlockDevice, RawDevice, RawOptions};
use lacuna_ftl::{Error as FtlError, Ftl, KEY_BYTES_MAX, Key, KeyOptions, KeySource, NewKey, Secret};
use lacuna_nvmfs::{Error, Nvmfs, OpenedVfs, Options, VfsOptions};

use crate::{complain, log_device};

/// Where the key of an encrypted store comes from; else it is asked for at the terminal
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct KeyArguments {
    /// The key of an encrypted store is the content of this file
    #[arg(long, global = true, value_name = "FILE", help_heading = "Keys")]
    key_file: Option<PathBuf>,
    /// It is what this command, run by sh, writes to its standard output
    #[arg(long, global = true, value_name = "COMMAND", help_heading = "Keys")]
    key_command: Option<String>,
    /// It is what can be read from this descriptor
    #[arg(long, global = true, value_name = "NUMBER", help_heading = "Keys")]
    key_fd: Option<RawFd>,
    /// The key of encrypted tables is the content of this file
    #[arg(long, global = true, value_name = "FILE", help_heading = "Keys")]
    tables_key_file: Option<PathBuf>,
    /// It is what this command, run by sh, writes to its standard output
    #[arg(long, global = true, value_name = "COMMAND", help_heading = "Keys")]
    tables_key_command: Option<String>,
    /// It is what can be read from this descriptor
    #[arg(long, global = true, value_name = "NUMBER", help_heading = "Keys")]
    tables_key_fd: Option<RawFd>,
}

/// Where a new key comes from; else it is asked for at the terminal
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NewKeyArguments {
    /// The new key is the content of this file
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
    /// It is what this command, run by sh, writes to its standard output
    #[arg(long, value_name = "COMMAND")]
    new_key_command: Option<String>,
    /// It is what can be read from this descriptor
    #[arg(long, value_name = "NUMBER")]
    new_key_fd: Option<RawFd>,
    /// What to call it: at most 40 bytes, which anybody who sees the store can read
    #[arg(long, default_value = "")]
    label: String,
}

/// Where the keys of the two stores of a copy come from, if not from the same place
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CopyKeyArguments {
    /// The key of the store that is copied from is the content of this file; that of the other one comes as usual
    #[arg(long, value_name = "FILE", help_heading = "Keys")]
    from_key_file: Option<PathBuf>,
    /// It is what this command, run by sh, writes to its standard output
    #[arg(long, value_name = "COMMAND", help_heading = "Keys")]
    from_key_command: Option<String>,
    /// It is what can be read from this descriptor
    #[arg(long, value_name = "NUMBER", help_heading = "Keys")]
    from_key_fd: Option<RawFd>,
    /// The key of the store that is copied to is the content of this file
    #[arg(long, value_name = "FILE", help_heading = "Keys")]
    to_key_file: Option<PathBuf>,
    /// It is what this command, run by sh, writes to its standard output
    #[arg(long, value_name = "COMMAND", help_heading = "Keys")]
    to_key_command: Option<String>,
    /// It is what can be read from this descriptor
    #[arg(long, value_name = "NUMBER", help_heading = "Keys")]
    to_key_fd: Option<RawFd>,
}

impl CopyKeyArguments {
    /// The key of the store that is copied from, if it is named.
    pub(crate) fn from(&self) -> Result<Option<Secret>> {
        let found = read_one(
            "--from-key",
            self.from_key_file.as_deref(),
            self.from_key_command.as_deref(),
            self.from_key_fd,
        )?;
        Ok(found.map(|(secret, _)| secret))
    }

    /// The key of the store that is copied to, if it is named.
    pub(crate) fn to(&self) -> Result<Option<Secret>> {
        let found = read_one(
            "--to-key",
            self.to_key_file.as_deref(),
            self.to_key_command.as_deref(),
            self.to_key_fd,
        )?;
        Ok(found.map(|(secret, _)| secret))
    }
}

/// The key that the command line names.
static GIVEN: Mutex<Option<(Secret, KeySource)>> = Mutex::new(None);

fn given() -> Option<(Secret, KeySource)> {
    GIVEN.lock().expect("nobody panics with it").clone()
}

/// Reads the key that the command line names, if it names one.
pub(crate) fn install(arguments: &KeyArguments) -> Result<()> {
    let KeyArguments { key_file, key_command, key_fd, .. } = arguments;
    tables::install(arguments)?;
    let found = read_one("--key", key_file.as_deref(), key_command.as_deref(), *key_fd)?;
    *GIVEN.lock().expect("nobody panics with it") = found;
    Ok(())
}

/// The keys are needed no longer.
pub(crate) fn forget() {
    GIVEN.lock().expect("nobody panics with it").take();
    tables::forget();
}

fn read_one(
    option: &str,
    file: Option<&Path>,
    command: Option<&str>,
    descriptor: Option<RawFd>,
) -> Result<Option<(Secret, KeySource)>> {
    match (file, command, descriptor) {
        (None, None, None) => Ok(None),
        (Some(path), None, None) => {
            let place = path.display();
            let file = File::open(path).with_context(|| place.to_string())?;
            if file.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o077 != 0) {
                complain(&format!("{place}: others may read or change this key (chmod 600)"));
            }
            Ok(Some((read(file, &place)?, KeySource::File)))
        }
        (None, Some(command), None) => Ok(Some((output_of(option, command)?, KeySource::Command))),
        (None, None, Some(number)) => {
            let place = format!("{option}-fd {number}");
            // A descriptor that its caller gave us; it is copied, and stays open.
            let path = format!("/proc/self/fd/{number}");
            let file = File::open(path).with_context(|| place.clone())?;
            Ok(Some((read(file, &place)?, KeySource::Passphrase)))
        }
        _ => bail!("only one of {option}-file, {option}-command and {option}-fd can be given"),
    }
}

fn read(source: impl Read, place: &dyn Display) -> Result<Secret> {
    // Memory that does not grow leaves no copies behind.
    let mut bytes = Vec::with_capacity(KEY_BYTES_MAX + 2);
    source.take(KEY_BYTES_MAX as u64 + 2).read_to_end(&mut bytes).with_context(|| place.to_string())?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Secret::new(bytes).with_context(|| place.to_string())
}

fn output_of(option: &str, command: &str) -> Result<Secret> {
    let place = format!("{option}-command");
    let place = place.as_str();
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| place.to_owned())?;
    let secret = read(child.stdout.take().expect("piped"), &place);
    let status = child.wait().with_context(|| place.to_owned())?;
    if !status.success() {
        bail!("{place}: {status}");
    }
    secret
}

/// The key of `store`: the one that the command line names, or one that is asked for.
pub(crate) fn secret_of(store: &Path) -> Result<Secret> {
    match given() {
        Some((secret, _)) => Ok(secret),
        None => terminal::ask(&format!("Key of {}", store.display()), "--key"),
    }
}

/// The key of the tables in `store`, in the same way.
pub(crate) fn secret_of_tables(store: &Path) -> Result<Secret> {
    tables::secret(store)
}

/// The key with which `store` is to be made.
pub(crate) fn new_store_key(store: &Path, label: &str) -> Result<NewKey> {
    let (secret, source) = match given() {
        Some(given) => given,
        None => (ask_for_new(store, "--key")?, KeySource::Passphrase),
    };
    Ok(new_key(secret, source, label))
}

/// Whether the command line names a key.
pub(crate) fn is_given() -> bool {
    given().is_some()
}

fn new_key(secret: Secret, source: KeySource, label: &str) -> NewKey {
    let slot = KeyOptions { source, label: label.to_owned(), ..KeyOptions::default() };
    NewKey { secret, slot }
}

fn ask_for_new(store: &Path, option: &str) -> Result<Secret> {
    terminal::ask_twice(&format!("New key of {}", store.display()), option)
}

impl NewKeyArguments {
    /// The new key for `store`.
    pub(crate) fn key(&self, store: &Path) -> Result<NewKey> {
        let NewKeyArguments { new_key_file, new_key_command, new_key_fd, label } = self;
        let found = read_one("--new-key", new_key_file.as_deref(), new_key_command.as_deref(), *new_key_fd)?;
        let (secret, source) = match found {
            Some(found) => found,
            None => (ask_for_new(store, "--new-key")?, KeySource::Passphrase),
        };
        Ok(new_key(secret, source, label))
    }
}

/// Asks for the key of `store` if that is encrypted and no key is given, for a process without a terminal.
pub(crate) fn ask_ahead(store: &Path) -> Result<()> {
    let raw = RawOptions { read_only: true, ..RawOptions::default() };
    let is_encrypted = || {
        let device = RawDevice::open(store, raw).ok()?;
        Ftl::keys(&device).ok()
    };
    if given().is_none() && is_encrypted().is_some() && terminal::is_there() {
        let secret = secret_of(store)?;
        *GIVEN.lock().expect("nobody panics with it") = Some((secret, KeySource::Passphrase));
    }
    Ok(())
}

/// What another process of this program gets on a descriptor, so that it has the same key.
pub(crate) fn pass_on(to: &mut impl Write) -> io::Result<()> {
    match given() {
        Some((secret, _)) => {
            to.write_all(secret.expose())?;
            to.write_all(b"\n")
        }
        None => Ok(()),
    }
}

fn with_key(mut options: Options, key: Key) -> Options {
    options.ftl.key = key;
    options
}

fn key() -> Key {
    given().map_or(Key::None, |(secret, _)| Key::Secret(secret))
}

/// Opens with the key that is given; if the store turns out to be encrypted and there is none, with one that is asked
/// for.
fn opened<T>(store: &Path, open: impl Fn(Key) -> Result<T, Error>) -> Result<T, Error> {
    match open(key()) {
        Err(Error::Ftl(FtlError::Encrypted { .. })) if terminal::is_there() => match secret_of(store) {
            Ok(secret) => open(Key::Secret(secret)),
            Err(_) => open(Key::None),
        },
        result => result,
    }
}

/// As [`lacuna_nvmfs::open_vfs`], with the store's key.
pub(crate) fn open_vfs(path: &Path, options: &VfsOptions) -> Result<OpenedVfs, Error> {
    // A directory has no key.
    if path.is_dir() {
        return lacuna_nvmfs::open_vfs(path, options);
    }
    opened(path, |key| {
        let options = VfsOptions { options: with_key(options.options.clone(), key), ..options.clone() };
        lacuna_nvmfs::open_vfs(path, &options)
    })
}

/// The same with a key of its own.
pub(crate) fn open_vfs_with(path: &Path, options: &VfsOptions, secret: Secret) -> Result<OpenedVfs, Error> {
    let keyed = with_key(options.options.clone(), Key::Secret(secret));
    lacuna_nvmfs::open_vfs(path, &VfsOptions { options: keyed, ..options.clone() })
}

/// As [`lacuna_nvmfs::salvage_store`], with the store's key.
pub(crate) fn salvage_store(path: &Path, options: &Options) -> Result<(Arc<Nvmfs>, Vec<String>), Error> {
    opened(path, |key| lacuna_nvmfs::salvage_store(path, with_key(options.clone(), key)))
}

/// As [`Nvmfs::open`], with the store's key.
pub(crate) fn open_on(path: &Path, device: &Arc<dyn BlockDevice>, options: &Options) -> Result<Nvmfs, Error> {
    opened(path, |key| Nvmfs::open(Arc::clone(device), with_key(options.clone(), key)))
}

/// The ftl of `store`, without a key and for reading only: for what needs none.
pub(crate) fn open_without(store: &Path) -> Result<Ftl> {
    let raw = RawOptions { read_only: true, ..RawOptions::default() };
    let device = RawDevice::open(store, raw).map_err(Error::from)?;
    let log_device = log_device::chosen().opened(true)?;
    let given = lacuna_ftl::Options { key: Key::Locked, log_device, ..lacuna_ftl::Options::default() };
    let options = lacuna_ftl::Options { read_only: true, ..given };
    Ok(Ftl::open(Arc::new(device), options)?)
}

/// What to do about an encrypted store whose key was not given.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    let is_missing = error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(Error::Ftl(FtlError::Encrypted { .. })))
            || matches!(cause.downcast_ref(), Some(FtlError::Encrypted { .. }))
    });
    if tables::is_missing(error) {
        return Some(" (--tables-key-file, --tables-key-command, --tables-key-fd, or a terminal)".to_owned());
    }
    is_missing.then(|| " (--key-file, --key-command, --key-fd, or a terminal)".to_owned())
}
