//! Ways to carry requests of the kernel to a [`Service`].

pub mod fuser;

use std::{io, path::Path, sync::Arc};

use crate::Service;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What the table of mounts names as the source.
    pub source: String,
    /// Refuse every change.
    pub read_only: bool,
    /// Let other users in.
    pub allow_other: bool,
    /// Allow device nodes.
    pub dev: bool,
    /// Honour set-user-id bits.
    pub suid: bool,
    /// Allow programs to be run.
    pub exec: bool,
    /// Threads that serve requests; at least 1.
    pub threads: usize,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: "lacuna".into(),
            read_only: false,
            allow_other: false,
            dev: false,
            suid: false,
            exec: true,
            threads: 16,
        }
    }
}

/// A way to talk to the kernel.
pub trait Transport {
    /// Mounts `service` on `dir`. On return the mount stands; requests wait for [`Session::serve`].
    fn mount(
        &self,
        service: Arc<Service>,
        dir: &Path,
        options: &MountOptions,
    ) -> io::Result<Box<dyn Session>>;
}

/// A mount that stands.
pub trait Session: Send {
    /// What unmounts it from another thread.
    fn unmounter(&mut self) -> Unmounter;

    /// Serves requests until the file system is unmounted and the last one is answered.
    fn serve(self: Box<Self>) -> io::Result<()>;
}

/// Unmounts; an error when the file system is in use.
pub type Unmounter = Box<dyn FnMut() -> io::Result<()> + Send>;
