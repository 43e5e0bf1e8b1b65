//! Hidden names outside of what is not in its place yet, which do not outlive a copy, nor a signal that ends it.

use std::{
    mem,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, Once},
};

use rustix::fs::{AtFlags, unlinkat};

use super::contents::temporary_name;
use crate::signals::before_the_end;

/// All that there are.
static NAMES: Mutex<Vec<Arc<Name>>> = Mutex::new(Vec::new());

fn names() -> MutexGuard<'static, Vec<Arc<Name>>> {
    NAMES.lock().expect("nobody panics and goes on")
}

struct Name {
    directory: OwnedFd,
    name: Vec<u8>,
}

impl Name {
    /// It may have become another one, or was never used.
    fn remove(&self) {
        let _ = unlinkat(&self.directory, &self.name[..], AtFlags::empty());
    }
}

/// A hidden name in a directory. What has it when this is dropped, or a signal ends the process, is removed.
pub(super) struct Temporary(Arc<Name>);

impl Temporary {
    pub(super) fn new(directory: &OwnedFd) -> std::io::Result<Temporary> {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| before_the_end(remove_all));
        let name = Arc::new(Name { directory: directory.try_clone()?, name: temporary_name() });
        names().push(Arc::clone(&name));
        Ok(Temporary(name))
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.0.name
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.0.remove();
        names().retain(|name| !Arc::ptr_eq(name, &self.0));
    }
}

/// Removes them all, and lets none be added.
fn remove_all() {
    let names = names();
    names.iter().for_each(|name| name.remove());
    mem::forget(names);
}
