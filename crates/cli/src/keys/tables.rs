//! The key of encrypted tables.

use std::{path::Path, sync::Mutex};

use anyhow::Result;
use lacuna_engine::{EngineKey, Error, KeyOptions, KeySource, Secret, Store, StoreOptions};

use super::{KeyArguments, read_one, terminal};

/// How the options that name it begin.
const OPTION: &str = "--tables-key";

/// The key that the command line names.
static GIVEN: Mutex<Option<(Secret, KeySource)>> = Mutex::new(None);

fn given() -> Option<(Secret, KeySource)> {
    GIVEN.lock().expect("nobody panics with it").clone()
}

pub(super) fn install(arguments: &KeyArguments) -> Result<()> {
    let KeyArguments { tables_key_file, tables_key_command, tables_key_fd, .. } = arguments;
    let (file, command) = (tables_key_file.as_deref(), tables_key_command.as_deref());
    *GIVEN.lock().expect("nobody panics with it") = read_one(OPTION, file, command, *tables_key_fd)?;
    Ok(())
}

pub(super) fn forget() {
    GIVEN.lock().expect("nobody panics with it").take();
}

fn engine_key((secret, source): (Secret, KeySource)) -> EngineKey {
    EngineKey { secret, slot: KeyOptions { source, ..KeyOptions::default() } }
}

/// The key with which tables are opened, if the command line names one.
pub(crate) fn key_of_tables() -> Option<EngineKey> {
    given().map(engine_key)
}

/// The key that the tables of `store` are to get.
pub(crate) fn new_tables_key(store: &Path, label: &str) -> Result<EngineKey> {
    let ask = || terminal::ask_twice(&format!("New key of the tables in {}", store.display()), OPTION);
    let found = match given() {
        Some(given) => given,
        None => (ask()?, KeySource::Passphrase),
    };
    let mut key = engine_key(found);
    label.clone_into(&mut key.slot.label);
    Ok(key)
}

/// The key of the tables of `store`: the one that the command line names, or one that is asked for.
pub(super) fn secret(store: &Path) -> Result<Secret> {
    match given() {
        Some((secret, _)) => Ok(secret),
        None => terminal::ask(&format!("Key of the tables in {}", store.display()), OPTION),
    }
}

/// Opens the tables of `store` with the key that is given; if they turn out to have keys and none is given, with one
/// that is asked for.
pub(crate) fn open_tables(
    store: &Path,
    options: &StoreOptions,
    open: impl Fn(StoreOptions) -> Result<Store, Error>,
) -> Result<Store, Error> {
    match open(StoreOptions { key: key_of_tables(), ..options.clone() }) {
        Err(Error::NoKey { what }) if terminal::is_there() => match secret(store) {
            Ok(secret) => {
                let key = Some(engine_key((secret, KeySource::Passphrase)));
                open(StoreOptions { key, ..options.clone() })
            }
            Err(_) => Err(Error::NoKey { what }),
        },
        opened => opened,
    }
}

/// Whether a key of tables was needed.
pub(super) fn is_missing(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(Error::NoKey { .. })))
}
