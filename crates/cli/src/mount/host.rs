//! A mount that another program serves: that uses its files, and has this crate loaded.

use std::sync::Arc;

use lacuna_fuse::Service;

use super::{Arguments, Cache, Carrier};

/// The program that serves a mount.
pub trait Hosting: Send + Sync {
    /// The mount is there, and answers as soon as this returns. `device` is the file system's number, `MAJOR:MINOR`.
    fn mounted(&self, service: &Arc<Service>, device: &str);

    /// Waits until the program is to end.
    fn until_end(&self);

    /// Unmounts, whether or not the file system is in use: the program is to end.
    fn unmount(&self);

    /// It is unmounted. What still has the service gives it up, so that the store can be closed. Returns whether the
    /// program is to end.
    fn unmounted(&self) -> bool;
}

impl Arguments {
    /// Whether the kernel is to write back.
    pub(crate) fn is_written_back(&self) -> bool {
        self.cache == Cache::Writeback
    }

    /// The same, where another program serves. Over io_uring only if that is asked for: a kernel may wait for ever for a
    /// process that is killed while it serves a mount that way, and that would be the program.
    pub(crate) fn hosted(mut self) -> Arguments {
        if self.transport == Carrier::Auto {
            self.transport = Carrier::Fuser;
        }
        self
    }
}
