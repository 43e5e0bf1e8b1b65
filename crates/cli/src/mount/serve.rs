//! The process that serves a mount: from the open store to its clean close.

use std::{
    fs,
    io::{self, Seek, SeekFrom, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    panic,
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use lacuna_device as device;
use lacuna_fuse::{
    FuserTransport, MountOptions, PageCache, Service, ServiceOptions, Session, Transport, Unmounter,
    UringTransport,
};
use lacuna_nvmfs::{Error, Nvmfs, OpenedVfs, VfsOptions, posix::AccessTimes};
use rustix::{
    fs::{Mode, OFlags},
    process::{Resource, Rlimit, geteuid, getrlimit, setrlimit},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{
    Arguments, Atime, Cache, Carrier, daemon, detach, flusher, host::Hosting, inherited, is_dead, journal,
    map_memory, name_of, patience::Patience, recompress, remounts::Remounts, reserve, threads, utab, watch,
};
use crate::{
    control,
    ended::Ended,
    keys::{self, open_vfs},
    live, log_device,
    look::is_host_full,
    mounts,
};

/// MariaDB looks for this before it asks files whether they write atomically. Any node will do.
const FCTA: &str = "/dev/fcta";
/// How often `lacuna mount` looks whether that store is closed.
const CLOSE_POLL: Duration = Duration::from_millis(20);
/// How long `lacuna mount` waits for a store that was unmounted just now.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Mounts, serves until the file system is unmounted or a signal ends it, and closes the store.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let outcome = serve(arguments, None);
    if let Err(error) = &outcome
        && journal::is_detached()
    {
        // The caller that would print this error is gone.
        log::error!("{error:#}");
    }
    outcome
}

/// What [`run`] does; hosted by another program, whose signals and directory are its own, until that is to end.
pub(super) fn serve(arguments: &Arguments, host: Option<&Arc<dyn Hosting>>) -> Result<()> {
    // After a broken invariant in one thread the others must not go on writing. Acknowledged writes are safe.
    panic::set_hook(Box::new(|info| {
        log::error!("stopped: {info}");
        std::process::abort();
    }));
    if arguments.background_process {
        inherited::close_all()?;
        rustix::process::setsid().context("leaving the session")?;
        std::env::set_current_dir("/")?;
    }
    if arguments.cache == Cache::Writeback {
        // The kernel may wait for pages to be written back when it needs memory, and must not do so for memory that
        // this process needs to write them. For all threads, which start later. Not all may ask for it.
        if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
            let level = if geteuid().is_root() { log::Level::Warn } else { log::Level::Info };
            log::log!(
                level,
                "cache=writeback without PR_SET_IO_FLUSHER (CAP_SYS_RESOURCE): {error}; it may stall when memory is short"
            );
        }
    }
    // From here on a signal waits until the mount is ready, so that it cannot leave half of one behind.
    let signals = host.is_none().then(|| Signals::new([SIGTERM, SIGINT, SIGHUP])).transpose()?;
    let name = arguments.store.display().to_string();
    let map_memory = match arguments.map_memory {
        Some(size) => size.0,
        None => map_memory::default_for(size_bytes(&arguments.store)?),
    };
    let fs = open(arguments, map_memory)?;
    let service = Arc::new(Service::new(Arc::clone(&fs), service_options(arguments, host.is_some())));
    let ended = Arc::new(Ended::default());
    // Threads that may outlive the mount must not keep the store locked: it is taken from them at the end.
    let of_threads = Arc::new(Mutex::new(None));
    let (dir, store) = (arguments.dir.clone(), arguments.store.clone());
    let remounts = Arc::new(Remounts { store: store.clone(), dir: dir.clone(), fs: Arc::clone(&of_threads) });
    let seen_by = Arc::clone(&remounts);
    let facts = live::Facts {
        store: name.clone(),
        file: rustix::fs::open(&store, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?.into(),
        read_only: arguments.read_only,
        cache: name_of(arguments.cache),
        sync: arguments.sync,
        map_memory,
        ended: Arc::clone(&ended),
        look_at_mount: Box::new(move || _ = seen_by.look()),
    };
    let answerer = live::answerer(facts, &service);
    let mut listener = match control::Listener::start(&arguments.store, answerer) {
        // A machine whose /run is full or broken, or has a stopped process, needs its data all the same.
        Err(error) if is_no_place(&error) => Err(error),
        started => Ok(started.context("the control socket")?),
    };
    if arguments.fcta {
        make_fcta()?;
    }
    must_have_descriptors(arguments)?;
    let mut session = mount(&service, arguments).with_context(|| arguments.dir.display().to_string())?;
    let mut unmounter = session.unmounter();
    let flusher = (!arguments.read_only).then(|| flusher::start(Arc::clone(&fs))).transpose()?;
    let interval = Duration::from_secs(arguments.recompress_after.into());
    let recompress = arguments.recompress.filter(|_| !arguments.read_only);
    let recompressor =
        recompress.map(|how| recompress::start(Arc::clone(&service), how, interval)).transpose()?;
    let watch = watch::start(Arc::clone(&fs), arguments)?;
    *of_threads.lock().expect("nobody panics and goes on") = Some(Arc::clone(&fs));
    if !arguments.read_only
        && let Err(error) = remounts.watch()
    {
        log::warn!("{name}: remounts by the kernel alone are not noticed: {error}");
    }
    let served_by = Arc::clone(&of_threads);
    let patience = Patience::new(&fs, arguments, &ended);
    let on_end = patience.clone();
    let of_host = host.cloned();
    thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(host) = of_host {
            host.until_end();
            patience.runs_out();
            host.unmount();
        }
        if let Some(mut signals) = signals {
            for _ in signals.forever() {
                patience.runs_out();
                stop(&dir, &store, &mut unmounter, &served_by);
            }
        }
    })?;
    utab::note(&arguments.store, &arguments.dir);
    // Before anybody hears of the mount.
    let named = match (&mut listener, mounts::mounted_on(&arguments.dir)) {
        (Ok(listener), Ok(Some(mount))) => listener.also_for(&mount),
        _ => Ok(()), // it was moved or unmounted
    };
    match (host, mounts::mounted_on(&arguments.dir)?) {
        (Some(host), Some(mount)) => host.mounted(&service, &mount.device),
        (Some(_), None) => bail!("{}: unmounted at once", arguments.dir.display()),
        (None, _) => announce(arguments)?,
    }
    if let Err(error) = &listener {
        log::warn!("{name}: no control socket, so info, check and metrics cannot ask this mount: {error}");
    }
    if let Err(error) = named {
        log::warn!("{name}: info, check and metrics can ask this mount by its store only: {error}");
    }
    log::info!("{name}: mounted on {}", arguments.dir.display());
    let served = session.serve();
    on_end.runs_out();
    let served = match host {
        // It ended the connection itself.
        Some(host) if host.unmounted() => Ok(()),
        _ => served,
    };
    drop((recompressor, flusher, watch, of_threads.lock().expect("nobody panics and goes on").take()));
    if served.is_err() {
        detach_dead(&arguments.dir, &arguments.store);
    }
    if mounts::mounted_on(&arguments.dir).is_ok_and(|mount| mount.is_none()) {
        utab::forget(&arguments.dir);
    }
    // From here on questions are answered with `CLOSING`. Closing the store comes first: an error of the transport must
    // not keep it open.
    drop(service);
    let closed = fs.close().with_context(|| name.clone());
    // The store's lock is released with its last user; a process that waits for the socket to vanish may then open it.
    drop(fs);
    ended.tell(closed.as_ref().map(drop).map_err(|error| format!("{error:#}")));
    drop(listener);
    closed?;
    served.with_context(|| format!("{}: not served any more", arguments.dir.display()))?;
    log::info!("{name}: unmounted and closed");
    Ok(())
}

/// Takes as many open files as are allowed. A mount that finds too few once it serves would be gone again at once.
fn must_have_descriptors(arguments: &Arguments) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let threads = threads::in_all(arguments.threads.unwrap_or(1)).max(arguments.threads.unwrap_or(1));
    let needed = 64 + 2 * u64::from(threads);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    match if raised.is_ok() { limit.maximum } else { limit.current } {
        Some(most) if most < needed => {
            bail!(
                "{}: a mount needs {needed} open files, {most} are allowed (ulimit -n)",
                arguments.dir.display()
            )
        }
        _ => Ok(()),
    }
}

/// Whether there is no place for a file where it should be made, or another process keeps it.
fn is_no_place(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, QuotaExceeded, ReadOnlyFilesystem, StorageFull, TimedOut};
    matches!(error.kind(), NotFound | QuotaExceeded | ReadOnlyFilesystem | StorageFull | TimedOut)
}

/// Detaches a mount without a serving process from its directory. Files that are open in it stay unusable.
fn detach_dead(dir: &Path, store: &Path) {
    let is_ours = || matches!(mounts::mounted_on(dir), Ok(Some(mount)) if mount.store == store);
    if is_dead(dir)
        && is_ours()
        && let Err(error) = super::unmount_dir(dir, true)
    {
        log::warn!("{}: dead, and cannot be detached: {error:#}", dir.display());
    }
}

/// The size of a store file or a block device.
fn size_bytes(store: &Path) -> Result<u64> {
    let size = fs::File::open(store).and_then(|mut file| file.seek(SeekFrom::End(0)));
    size.with_context(|| store.display().to_string())
}

fn open(arguments: &Arguments, map_memory: u64) -> Result<Arc<Nvmfs>> {
    let mut options =
        VfsOptions { read_only: arguments.read_only, wait_for_space: true, ..log_device::vfs_options() };
    options.options.ftl.footprint = arguments.footprint;
    options.options.ftl.map_memory = Some(map_memory);
    options.options.ftl.chunk_cache = arguments.chunk_cache.map_or(0, |size| size.0);
    options.options.root_reserve = match arguments.root_reserve {
        Some(reserve) => reserve.0,
        None => reserve::default_for(arguments.allow_other),
    };
    options.options.compression = arguments.compress;
    options.options.nodiratime = arguments.nodiratime;
    options.options.access_times = match arguments.atime {
        Atime::Relatime => AccessTimes::Relative,
        Atime::Noatime => AccessTimes::Never,
        Atime::Strictatime => AccessTimes::Always,
    };
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    let mut was_closing = false;
    loop {
        match open_vfs(&arguments.store, &options) {
            Ok(OpenedVfs::Store(fs)) => {
                keys::forget();
                return Ok(fs);
            }
            Ok(_) => bail!("{}: a directory; only a store can be mounted", arguments.store.display()),
            Err(Error::Device(device::Error::Busy { .. }))
                if Instant::now() < deadline && (is_closing(&arguments.store)? || was_closing) =>
            {
                was_closing = !was_closing;
                thread::sleep(CLOSE_POLL);
            }
            Err(error) if is_host_full(&error) => bail!("{error}; {HOST_IS_FULL}"),
            Err(error) => return Err(error.into()),
        }
    }
}

const HOST_IS_FULL: &str = "the file system that the store lies in is full: free some space there, or mount it \
                            --read-only";

/// Whether `store` was mounted and its owner is about to close it: umount(8) does not wait for that.
fn is_closing(store: &Path) -> Result<bool> {
    Ok(control::has_owner(store) && control::mount_of(store)?.is_none())
}

fn service_options(arguments: &Arguments, claims: bool) -> ServiceOptions {
    ServiceOptions {
        block_bytes: arguments.blksize,
        cache: match arguments.cache {
            Cache::Auto => PageCache::WriteThrough,
            Cache::Writeback => PageCache::WriteBack,
            Cache::None => PageCache::Off,
        },
        infer_trim: !arguments.no_infer_trim,
        sync: arguments.sync,
        claims,
    }
}

fn mount_options(arguments: &Arguments, threads: u16) -> MountOptions {
    MountOptions {
        source: arguments.store.display().to_string(),
        read_only: arguments.read_only,
        allow_other: arguments.allow_other,
        dev: arguments.dev,
        suid: arguments.suid,
        exec: !arguments.noexec,
        threads: threads.into(),
    }
}

fn mount(service: &Arc<Service>, arguments: &Arguments) -> io::Result<Box<dyn Session>> {
    let over = |transport: &dyn Transport, threads| {
        transport.mount(Arc::clone(service), &arguments.dir, &mount_options(arguments, threads))
    };
    let of_processor = arguments.threads.unwrap_or_else(|| threads::default_for(&arguments.store));
    let in_all = arguments.threads.unwrap_or_else(|| threads::in_all(of_processor));
    let (fuser, uring) = (|| over(&FuserTransport, in_all), || over(&UringTransport, of_processor));
    match arguments.transport {
        Carrier::Fuser => fuser(),
        Carrier::Uring => uring(),
        Carrier::Auto if !UringTransport::is_on() => fuser(),
        // Not root, or rings are forbidden here. Any other error fuser meets as well, but for an unmount: that holds.
        Carrier::Auto => uring().or_else(|error| match error.kind() {
            io::ErrorKind::NotConnected => Err(error),
            _ => fuser().inspect(|_| {
                log::info!("{}: {error}; over /dev/fuse instead of io_uring", arguments.dir.display());
            }),
        }),
    }
}

/// Unmounts on a signal. A file system in use is detached and served until its last file is closed; acknowledged writes
/// are made durable at once, in case the next signal kills.
fn stop(dir: &Path, store: &Path, unmounter: &mut Unmounter, fs: &Mutex<Option<Arc<Nvmfs>>>) {
    if let Err(error) = unmounter() {
        log::warn!("{}: {error}; detached, serving until its last file is closed", dir.display());
    }
    // For all but root the transport detaches at once, if it can, and does not report the outcome.
    detach(dir, store);
    let fs = fs.lock().expect("nobody panics and goes on");
    if let Some(fs) = &*fs
        && let Err(error) = fs.posix().sync()
    {
        log::error!("{}: {error}", dir.display());
    }
}

/// Reports to the starting process that the mount is ready.
fn announce(arguments: &Arguments) -> Result<()> {
    if arguments.background_process {
        std::io::stdout().write_all(daemon::READY.as_bytes())?;
        std::io::stdout().flush()?;
        journal::detach();
        let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
    }
    notify_systemd("READY=1");
    Ok(())
}

/// Reports our state to systemd (`Type=notify`), if it asks for it.
fn notify_systemd(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&socket),
    };
    let told = address.and_then(|address| {
        let datagram = UnixDatagram::unbound()?;
        datagram.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = told {
        log::warn!("systemd could not be told: {error}");
    }
}

fn make_fcta() -> Result<()> {
    if Path::new(FCTA).exists() {
        return Ok(());
    }
    std::os::unix::fs::symlink("null", FCTA).context(FCTA)
}
