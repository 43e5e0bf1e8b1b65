//! The mount in this process: from before `main` to its end.

use std::{
    env,
    ffi::{OsStr, OsString, c_int},
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::{ffi::OsStrExt, fs::MetadataExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    ptr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::SeqCst},
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use lacuna_cli::Hosting;
use lacuna_fuse::{PageCache, Service};
use lacuna_nvmfs::posix::Caller;

use crate::descriptors;

/// As in `lacuna run`.
const VARIABLE: &str = "LACUNA_RUN";
/// How long `_exit` waits for the end of the mount: it may be called by the handler of a signal that interrupted us.
const PATIENCE_MS: c_int = 30_000;
/// How long a program waits for the end of the mount that another one has left.
const EXEC_PATIENCE: Duration = Duration::from_secs(10);

/// Whether this process serves a mount now (invariant 2). Without it every call goes through the kernel.
static IS_SERVING: AtomicBool = AtomicBool::new(false);
/// The process that mounted.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// The mount's `st_dev`.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static HOST: OnceLock<Host> = OnceLock::new();

struct Host {
    service: Mutex<Weak<Service>>,
    /// What `exec` passes on.
    inherited: [RawFd; 2],
    key: Option<RawFd>,
    /// A byte in it says that the program is to end; an end of file comes back when the store is closed.
    end: UnixStream,
}

/// Whether this process serves a mount: one look, for calls that come often.
pub(crate) fn is_serving() -> bool {
    IS_SERVING.load(SeqCst)
}

/// The same, and it is not a child that shares its memory.
pub(crate) fn is_host() -> bool {
    is_serving() && has_mounted()
}

/// Whether this process has mounted; by now somebody may have unmounted.
fn has_mounted() -> bool {
    // SAFETY: it has no conditions.
    PROCESS.load(SeqCst) == unsafe { libc::getpid() }
}

fn service() -> Option<Arc<Service>> {
    HOST.get()?.service.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
}

/// The number of the inode behind a descriptor, if it is a regular file on the mount.
fn number(descriptor: c_int) -> Option<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: it writes to memory that is large enough, all of it if it succeeds.
    let stat = unsafe {
        if libc::fstat(descriptor, stat.as_mut_ptr()) != 0 {
            return None;
        }
        stat.assume_init()
    };
    let is_ours = stat.st_dev == DEVICE.load(SeqCst) && stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    is_ours.then_some(stat.st_ino)
}

/// The program has opened something with these flags.
pub(crate) fn opened(descriptor: c_int, flags: c_int) {
    let is_append = flags & (libc::O_APPEND | libc::O_PATH) != 0;
    if is_append || !is_host() {
        return;
    }
    let Some(service) = service() else { return };
    let is_direct = flags & libc::O_DIRECT != 0 || service.options().cache == PageCache::Off;
    let Some(number) = is_direct.then(|| number(descriptor)).flatten() else { return };
    // SAFETY: these have no conditions.
    let caller = unsafe { Caller { uid: libc::geteuid(), gid: libc::getegid(), umask: 0 } };
    if let Some(claim) = service.claim(number, flags, caller) {
        descriptors::add(descriptor, claim);
    }
}

/// The program is going to map what this descriptor stands for.
pub(crate) fn mapped(descriptor: c_int) {
    if let Some(service) = service()
        && let Some(number) = number(descriptor)
    {
        service.map(number);
    }
}

/// Makes everything durable that was written.
fn sync() {
    if let Some(service) = service() {
        let _ = service.fs().posix().sync();
    }
}

/// Calls one of the functions `exec`, which returns only if it fails. What comes after it mounts again.
pub(crate) fn execute(call: impl FnOnce() -> c_int) -> c_int {
    let Some(host) = HOST.get().filter(|_| has_mounted()) else { return call() };
    sync();
    let set = |flags: c_int| {
        for descriptor in host.inherited.into_iter().chain(host.key) {
            // SAFETY: it changes no memory.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, flags) };
        }
    };
    set(0);
    let failed = call();
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    set(libc::FD_CLOEXEC);
    // SAFETY: the place is this thread's.
    unsafe { *libc::__errno_location() = errno };
    failed
}

/// Closes the store. No thread-local memory of Rust's is used, which is gone when the C library calls this.
fn end(patience_ms: c_int) {
    let Some(host) = HOST.get().filter(|_| is_host()) else { return };
    let descriptor = host.end.as_raw_fd();
    let mut ended = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let mut byte = 0_u8;
    // SAFETY: all of them get memory that is large enough, and descriptors that are open until the end.
    unsafe {
        libc::send(descriptor, ptr::from_ref(&1_u8).cast(), 1, libc::MSG_NOSIGNAL);
        while libc::poll(&raw mut ended, 1, patience_ms) < 0 {}
        if ended.revents != 0 {
            libc::read(descriptor, ptr::from_mut(&mut byte).cast(), 1);
        }
    }
}

extern "C" fn at_exit() {
    end(-1);
}

/// Before `_exit`.
pub(crate) fn end_soon() {
    end(PATIENCE_MS);
}

extern "C" fn in_child() {
    // A child of the child has other files by these numbers.
    if !IS_SERVING.swap(false, SeqCst) {
        return;
    }
    // The mount must not live on in a child.
    for descriptor in descriptors::own() {
        // SAFETY: nothing in this process uses it: its threads are the parent's.
        unsafe { libc::syscall(libc::SYS_close, descriptor) };
    }
}

/// What the mount's side of this process does.
struct Keeper {
    ready: Mutex<Option<Sender<Result<(), String>>>>,
    /// The guard's end of the pipe.
    guard: File,
    /// The thread whose end tells the guard that the process was killed.
    lifeline: i32,
    end: UnixStream,
    store: PathBuf,
    dir: PathBuf,
    is_ending: AtomicBool,
    is_gone: AtomicBool,
}

impl Keeper {
    /// Whether it is there to hear it.
    fn tell_guard(&self, message: &str) -> bool {
        (&self.guard).write_all(message.as_bytes()).is_ok()
    }
}

impl Hosting for Keeper {
    fn mounted(&self, service: &Arc<Service>, device: &str) {
        self.tell_guard(&format!("mounted {} {device}\n", self.lifeline));
        if let Some((major, minor)) = device.split_once(':') {
            DEVICE.store(libc::makedev(major.parse().unwrap_or(0), minor.parse().unwrap_or(0)), SeqCst);
        }
        if let Some(host) = HOST.get() {
            *host.service.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(service);
        }
        IS_SERVING.store(true, SeqCst);
        if let Some(ready) = self.ready.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = ready.send(Ok(()));
        }
    }

    fn until_end(&self) {
        // An error ends the wait as well.
        let _ = (&self.end).read(&mut [0]);
        self.is_ending.store(true, SeqCst);
    }

    fn unmount(&self) {
        if self.is_gone.load(SeqCst) {
            return;
        }
        // What was changed in mapped memory is in the kernel alone.
        let is_it = |file: &File| file.metadata().is_ok_and(|found| found.dev() == DEVICE.load(SeqCst));
        if let Some(dir) = File::open(&self.dir).ok().filter(is_it) {
            // SAFETY: the descriptor is open.
            unsafe { libc::syncfs(dir.as_raw_fd()) };
        }
        if !self.tell_guard("unmount\n") {
            lacuna_cli::force_unmount(&self.store, DEVICE.load(SeqCst));
        }
    }

    fn unmounted(&self) -> bool {
        self.is_gone.store(true, SeqCst);
        self.tell_guard("unmounted\n");
        IS_SERVING.store(false, SeqCst);
        descriptors::clear();
        self.is_ending.load(SeqCst)
    }
}

/// The descriptors of this process.
fn open_descriptors() -> Vec<RawFd> {
    let listed = fs::read_dir("/proc/self/fd").into_iter().flatten();
    let names = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut open: Vec<RawFd> = names.collect();
    // That of the listing is closed by now.
    // SAFETY: it changes no memory.
    open.retain(|descriptor| unsafe { libc::fcntl(*descriptor, libc::F_GETFD) } != -1);
    open
}

// SAFETY: this section holds pointers to functions, which the dynamic linker calls one by one, after those of the C
// library, on which this library depends.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Mounts if `lacuna run` started this process; if that fails there is no program to run.
extern "C" fn start() {
    let Some(numbers) = env::var_os(VARIABLE) else { return };
    let numbers: Vec<u64> =
        numbers.to_string_lossy().split(' ').filter_map(|number| number.parse().ok()).collect();
    // SAFETY: it has no conditions.
    let own = unsafe { libc::getpid() };
    let [words, guard, process, started] = numbers[..] else { return };
    // A later process may have the number.
    if i32::try_from(process) == Ok(own)
        && lacuna_cli::start_of(own) == Some(started)
        && let Err(error) = mount(words as RawFd, guard as RawFd, own)
    {
        eprintln!("lacuna: {error}");
        // SAFETY: it does not return.
        unsafe { libc::_exit(1) };
    }
}

fn mount(words: RawFd, guard: RawFd, own: i32) -> Result<(), String> {
    // By its name in /proc it is read from the start each time.
    let text = fs::read(format!("/proc/self/fd/{words}"));
    let text = text.map_err(|error| format!("{VARIABLE}: what `lacuna run` passes on is gone: {error}"))?;
    let mut parts = text.split(|byte| *byte == 0).map(OsStr::from_bytes);
    let version = parts.next().unwrap_or_default();
    if version != env!("CARGO_PKG_VERSION") {
        return Err(format!(
            "this library is {}, `lacuna run` is {}",
            env!("CARGO_PKG_VERSION"),
            version.display()
        ));
    }
    // Behind the last NUL there is nothing.
    let mut words_of_mount: Vec<OsString> = parts.map(OsStr::to_owned).collect();
    words_of_mount.pop();
    let [.., store, dir] = &words_of_mount[..] else { return Err(format!("{VARIABLE}: no words")) };
    let (store, dir) = (PathBuf::from(store), PathBuf::from(dir));
    let key = words_of_mount.iter().find_map(|word| word.to_str()?.strip_prefix("--key-fd=")?.parse().ok());
    let mut of_program = open_descriptors();
    of_program.retain(|descriptor| ![words, guard].contains(descriptor) && key != Some(*descriptor));
    let (to_end, end) = UnixStream::pair().map_err(|error| error.to_string())?;
    let host = Host { service: Mutex::default(), inherited: [words, guard], key, end: to_end };
    let _ = HOST.set(host);
    PROCESS.store(own, SeqCst);
    for descriptor in [words, guard].into_iter().chain(key) {
        // SAFETY: it changes no memory.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    let guard = File::options().write(true).open(format!("/proc/self/fd/{guard}"));
    let guard = guard.map_err(|error| format!("{VARIABLE}: the guard is gone: {error}"))?;
    clear_what_exec_left(&guard, &store, &dir)?;
    let _masked = Masked::new();
    let (ready, is_ready) = channel();
    let lifeline = lifeline().map_err(|error| error.to_string())?;
    let keeper = Keeper {
        ready: Mutex::new(Some(ready.clone())),
        guard,
        lifeline,
        end,
        store: store.clone(),
        dir: dir.clone(),
        is_ending: AtomicBool::new(false),
        is_gone: AtomicBool::new(false),
    };
    let keep = move || {
        let keeper = Arc::new(keeper);
        let hosting: Arc<dyn Hosting> = keeper.clone();
        let outcome = lacuna_cli::host(&words_of_mount, &hosting);
        match keeper.ready.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(ready) => _ = ready.send(outcome),
            None if outcome.is_err() => eprintln!("lacuna: {}", outcome.unwrap_err()),
            None => {}
        }
        // `exit` may go on.
        let _ = keeper.end.shutdown(std::net::Shutdown::Both);
    };
    thread::Builder::new().name("lacuna".into()).spawn(keep).map_err(|error| error.to_string())?;
    is_ready.recv().unwrap_or_else(|_| Err("the mount's thread ended".into()))?;
    // Once it answers, the threads that serve it have descriptors of their own.
    let _ = fs::metadata(dir.join("."));
    let is_new = |descriptor: &RawFd| !of_program.contains(descriptor);
    open_descriptors().into_iter().filter(is_new).for_each(descriptors::protect);
    // SAFETY: both take functions that live as long as the process.
    unsafe {
        libc::atexit(at_exit);
        libc::pthread_atfork(None, None, Some(in_child));
    }
    Ok(())
}

/// Waits until the guard has unmounted what this process had mounted before it executed another program.
fn clear_what_exec_left(mut guard: &File, store: &Path, dir: &Path) -> Result<(), String> {
    let is_mounted = || lacuna_cli::is_mounted(store, dir);
    if is_mounted() {
        guard.write_all(b"unmount\n").map_err(|error| format!("the guard is gone: {error}"))?;
        let deadline = Instant::now() + EXEC_PATIENCE;
        while is_mounted() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// A thread that only is there, and never waits for the mount. Returns its number.
fn lifeline() -> std::io::Result<i32> {
    let (sender, number) = channel();
    thread::Builder::new().name("lacuna-lifeline".into()).spawn(move || {
        // SAFETY: it has no conditions.
        let _ = sender.send(unsafe { libc::gettid() });
        loop {
            thread::park();
        }
    })?;
    number.recv().map_err(std::io::Error::other)
}

/// While it lives, this thread and those that it starts get no signals (invariant 5).
struct Masked(libc::sigset_t);

impl Masked {
    fn new() -> Masked {
        let mut all = std::mem::MaybeUninit::uninit();
        let mut before = std::mem::MaybeUninit::uninit();
        // SAFETY: both are written before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Masked(before.assume_init())
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: it was written by the call that set the other mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}
