//! The transport of the crate `fuser`: threads that read requests from clones of `/dev/fuse`.
//!
//! A thread that panics ends the mount: fuser would go on with those that are left, until the next one does. A thread that
//! cannot read a request, as without memory, ends alone: the kernel has answered that request, with an error, and the others
//! serve on, so that what else programs have written and not synced gets to the store. The last one ends the mount; where
//! fuser unmounts, first the kernel's connection, as an unmount may wait for answers that nobody would give.
//!
//! layers: convert, end < adapter

mod adapter;
mod convert;
mod end;

use std::{
    io,
    os::fd::AsFd,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use fuser::{INodeNo, MountOption, SessionACL};
use parking_lot::Mutex;
use rustix::{io::Errno as Os, process::geteuid};

use self::{adapter::Adapter, end::End};
use super::{
    MountOptions, Session, Transport, Unmounter,
    invalidator::{Cached, Invalidator},
    kernel_mount::{AbortOnDrop, KernelMount, aborts, ending, mounted_on, open_device, shaking_hands},
};
use crate::Service;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct FuserTransport;

impl Transport for FuserTransport {
    fn name(&self) -> &'static str {
        "fuser"
    }

    fn mount(
        &self,
        service: Arc<Service>,
        dir: &Path,
        options: &MountOptions,
    ) -> io::Result<Box<dyn Session>> {
        let mut config = fuser::Config::default();
        config.mount_options = mount_options(options);
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(options.threads);
        config.clone_fd = true;
        let invalidator = Arc::new(OnceLock::new());
        let end = Arc::new(OnceLock::new());
        let adapter = Adapter {
            service: Arc::clone(&service),
            end: Arc::clone(&end),
            invalidator: Arc::clone(&invalidator),
            masks: false,
        };
        let (mut session, mount) = match geteuid().is_root() {
            true => {
                let (device, mount) = KernelMount::new(dir, options)?;
                let mount = AbortOnDrop(mount);
                // The kernel lets in whom the mount's options let in. fuser would look at the user id for access to
                // files, which NFS and threads of the kernel set to another one.
                let acl = SessionACL::All;
                let session = fuser::Session::from_fd(adapter, device.into(), acl, config);
                (session.map_err(shaking_hands)?, Some(mount))
            }
            false => {
                open_device()?; // fuser's error would not name it
                (fuser::Session::new(adapter, dir, &config)?, None)
            }
        };
        let of_mount = End {
            device: session.as_fd().try_clone_to_owned()?,
            threads: AtomicUsize::new(options.threads),
            aborts: mount.is_none().then(|| aborts(mounted_on(dir).ok()?.1)).flatten(),
            unmount: Mutex::new(end_of(&mut session, mount.as_ref())),
            has_come: AtomicBool::new(false),
        };
        assert!(end.set(of_mount).is_ok(), "a session is made once");
        let notifier = session.notifier();
        let started = Invalidator::start(move |number, what| {
            let (offset, len) = what.offset_and_len();
            notifier.inval_inode(INodeNo(number), offset, len)
        })?;
        assert!(invalidator.set(started).is_ok(), "a session is made once");
        let invalidator = Arc::downgrade(&invalidator);
        service.carried_by(self.name(), move |number| {
            let mounted = invalidator.upgrade();
            if let Some(invalidator) = mounted.as_ref().and_then(|mounted| mounted.get()) {
                invalidator.order(number, Cached::Attributes, || ());
            }
        });
        Ok(Box::new(FuserSession { session, mount, service, end }))
    }
}

fn mount_options(options: &MountOptions) -> Vec<MountOption> {
    let either = |condition, yes, no| if condition { yes } else { no };
    vec![
        MountOption::FSName(options.source.clone()),
        // fuser keeps its own option of that name from the kernel.
        MountOption::CUSTOM("subtype=lacuna".into()),
        MountOption::DefaultPermissions,
        either(options.read_only, MountOption::RO, MountOption::RW),
        either(options.dev, MountOption::Dev, MountOption::NoDev),
        either(options.suid, MountOption::Suid, MountOption::NoSuid),
        either(options.exec, MountOption::Exec, MountOption::NoExec),
    ]
}

struct FuserSession {
    session: fuser::Session<Adapter>,
    /// `None` where fuser mounts, by fusermount. It takes whatever it finds on the directory in the end for its own.
    mount: Option<AbortOnDrop>,
    service: Arc<Service>,
    end: Arc<OnceLock<End>>,
}

impl Session for FuserSession {
    fn unmounter(&mut self) -> Unmounter {
        let mut unmounter = self.session.unmount_callable();
        match self.mount.as_ref().map(|mount| mount.0.clone()) {
            Some(mount) => Box::new(move || mount.unmount()),
            None => Box::new(move || unmounter.unmount()),
        }
    }

    fn serve(self: Box<Self>) -> io::Result<()> {
        let device = self.session.as_fd().try_clone_to_owned()?;
        // Each thread returns what its last read of the device has.
        let served = self.session.run().or_else(|error| match Os::from_io_error(&error) {
            Some(read) => Ok(ending(device.as_fd(), read)?),
            None => Err(error),
        });
        drop(self.mount);
        self.service.unmounted();
        match self.end.get() {
            Some(end) if end.has_come.load(SeqCst) => {
                served.and(Err(io::Error::other("a thread that served it has ended")))
            }
            _ => served,
        }
    }
}

/// Ends a mount at once where root made it; else takes it off its directory, and what is open is served by the rest.
fn end_of(session: &mut fuser::Session<Adapter>, mount: Option<&AbortOnDrop>) -> Box<dyn FnMut() + Send> {
    let mut unmounter = session.unmount_callable();
    match mount.map(|mount| mount.0.clone()) {
        Some(mount) => Box::new(move || mount.abort()),
        None => Box::new(move || drop(unmounter.unmount())),
    }
}
