//! Mounts in the process of a test.

use std::{path::Path, sync::Arc, thread};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_fuse::{
    FuserTransport, MountOptions, PageCache, Service, ServiceOptions, Session, Transport, UringTransport,
};
use lacuna_nvmfs::{CheckDepth, FormatOptions, Nvmfs, Options};
use rustix::process::geteuid;
use tempfile::TempDir;

/// An empty store, and a mount of it that is not served yet.
pub(crate) struct Mounted {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) fs: Arc<Nvmfs>,
    pub(crate) service: Arc<Service>,
    pub(crate) dir: TempDir,
    pub(crate) session: Box<dyn Session>,
}

impl Mounted {
    /// `None`, and prints so, where nothing can be mounted over `transport`.
    pub(crate) fn over(transport: &dyn Transport) -> Option<Mounted> {
        Mounted::of(formatted(), transport)
    }

    /// The same for an existing store.
    pub(crate) fn of(device: Arc<dyn BlockDevice>, transport: &dyn Transport) -> Option<Mounted> {
        Mounted::serving(device, transport, ServiceOptions::default())
    }

    /// The same with another page cache.
    pub(crate) fn caching(
        device: Arc<dyn BlockDevice>,
        transport: &dyn Transport,
        cache: PageCache,
    ) -> Option<Mounted> {
        Mounted::serving(device, transport, ServiceOptions { cache, ..ServiceOptions::default() })
    }

    /// The same served in another way.
    pub(crate) fn serving(
        device: Arc<dyn BlockDevice>,
        transport: &dyn Transport,
        options: ServiceOptions,
    ) -> Option<Mounted> {
        let fs = Arc::new(Nvmfs::open(Arc::clone(&device), Options::default()).expect("opens"));
        let service = Arc::new(Service::new(Arc::clone(&fs), options));
        let dir = tempfile::tempdir().expect("temporary directory");
        // Other users get access where that needs no permission.
        let allow_other = geteuid().is_root();
        let options = MountOptions { threads: 4, allow_other, ..MountOptions::default() };
        match transport.mount(Arc::clone(&service), dir.path(), &options) {
            Ok(session) => Some(Mounted { device, fs, service, dir, session }),
            Err(error) => {
                eprintln!("SKIPPED: nothing can be mounted over {}: {error}", transport.name());
                None
            }
        }
    }
}

pub(crate) fn formatted() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(128 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    device
}

/// All transports, or the one that the environment variable LACUNA_TRANSPORT names.
pub(crate) fn transports() -> Vec<&'static dyn Transport> {
    let wanted = std::env::var("LACUNA_TRANSPORT").ok();
    let mut all: Vec<&dyn Transport> = vec![&FuserTransport, &UringTransport];
    all.retain(|transport| wanted.as_ref().is_none_or(|wanted| wanted == transport.name()));
    assert!(!all.is_empty(), "LACUNA_TRANSPORT={} names none", wanted.unwrap_or_default());
    all
}

/// Runs `test` on mounts of an empty store, over every available transport; prints so where there is none.
pub(crate) fn mounted(test: impl Fn(&Path, &Service)) {
    for transport in transports() {
        mounted_of(formatted(), transport, &test);
    }
}

/// Runs `test` on a mount of that store, and checks the store.
pub(crate) fn mounted_of(
    device: Arc<dyn BlockDevice>,
    transport: &dyn Transport,
    test: &impl Fn(&Path, &Service),
) {
    let Some(mounted) = Mounted::of(device, transport) else { return };
    let fs = Arc::clone(&mounted.fs);
    serve(mounted, test);
    let report = fs.check(CheckDepth::Payload).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
    fs.close().expect("closes");
}

/// Runs `test` on a mount, and unmounts.
pub(crate) fn serve(mounted: Mounted, test: &impl Fn(&Path, &Service)) {
    let Mounted { service, dir, mut session, .. } = mounted;
    let mut unmount = session.unmounter();
    let serving = thread::spawn(move || session.serve());
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(dir.path(), &service)));
    unmount().expect("unmounts");
    serving.join().expect("serves").expect("ends well");
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}
