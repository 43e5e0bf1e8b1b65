//! What the kernel is asked for: strace watches a process that works on a store file, a block device or a directory.
//! Before a call that promises durability returns, the right descriptor was synced, after the change.
//!
//! Each test starts itself again under strace; the process that is watched says where each call begins and returns.
//! Requests on an io_uring are invisible to strace, but syncs never go that way.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
};

use lacuna_device::{
    AlignedBuf, BatchOp, BlockDevice, BlockIo, DirOptions, DirVfs, RawDevice, RawOptions, StreamHint, Vfs,
};

const SIZE: u64 = 1 << 20;
const CALLS: &str = "write,pwrite64,pwritev,pwritev2,io_uring_enter,ftruncate,fallocate,openat,linkat,renameat,\
                     renameat2,unlinkat,fdatasync,fsync";

/// One system call, and the lines of the trace in which it began and returned.
#[derive(Debug)]
struct Call {
    name: String,
    /// Arguments and outcome; a descriptor is followed by its path.
    text: String,
    began: usize,
    returned: usize,
}

impl Call {
    fn is(&self, name: &str, path: &Path) -> bool {
        self.name == name
            && self.text.starts_with(|first: char| first.is_ascii_digit())
            && self.path() == Some(path)
    }

    /// That of the first descriptor.
    fn path(&self) -> Option<&Path> {
        let (_, rest) = self.text.split_once('<')?;
        rest.split_once('>').map(|(found, _)| Path::new(found))
    }
}

/// All calls of a trace in the order in which they began. What strace splits because of another thread is put together.
fn parse(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for (number, line) in trace.lines().enumerate() {
        let (process, rest) = line.trim_start().split_once(' ').expect("a process");
        let rest = rest.trim_start();
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let begun = |call: &&mut Call| call.returned == usize::MAX && call.text.ends_with(process);
            let call = calls.iter_mut().rev().find(begun).expect("it has begun");
            let outcome = resumed.split_once("resumed>").expect("an outcome").1;
            call.text.truncate(call.text.len() - process.len());
            (call.text, call.returned) = (format!("{}{outcome}", call.text), number);
        } else if let Some((name, text)) = rest.split_once('(') {
            let (text, returned) = match text.split_once("<unfinished ...>") {
                Some((text, _)) => (format!("{text}{process}"), usize::MAX),
                None => (text.to_owned(), number),
            };
            calls.push(Call { name: name.to_owned(), text, began: number, returned });
        }
    }
    calls
}

/// What happened during one step of the process that was watched.
struct Step {
    calls: Vec<Call>,
}

impl Step {
    /// Demands a change by the call `change` whose text contains `what`, and then a good `sync` of `path`.
    fn assert_synced(&self, change: &str, what: &str, sync: &str, path: &Path) {
        let last = self.calls.iter().rfind(|call| call.name == change && call.text.contains(what));
        let changed = last.unwrap_or_else(|| panic!("no {change} of {what}: {:#?}", self.calls)).returned;
        let mut syncs = self.calls.iter().filter(|call| call.is(sync, path));
        assert!(
            syncs.any(|call| call.began > changed && call.text.ends_with("= 0")),
            "no {sync} of {} after {change} of {what}: {:#?}",
            path.display(),
            self.calls
        );
    }
}

/// The process that strace watches.
struct Watched;

impl Watched {
    fn say(&self, text: &str) {
        std::io::stderr().write_all(text.as_bytes()).unwrap(); // one system call
    }

    fn step<T>(&self, name: &str, run: impl FnOnce() -> T) -> T {
        self.say(&format!("begins: {name}\n"));
        let result = run();
        self.say(&format!("returned: {name}\n"));
        result
    }
}

/// The names and calls of all steps of `work` at `path`, in a process of its own that runs the test `name`. None in
/// that process itself, and where nothing can be watched.
fn watch(name: &str, path: &Path, work: fn(&Watched, &Path)) -> Option<Steps> {
    const AT: &str = "LACUNA_WATCHED_AT";
    if let Ok(path) = env::var(AT) {
        work(&Watched, Path::new(&path));
        return None;
    }
    let traces = tempfile::tempdir().unwrap();
    let trace = traces.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-s", "128", "-e", "signal=none", "-e", &format!("trace={CALLS}"), "-o"]);
    let module = module_path!().split_once("::").map(|(_, module)| format!("{module}::"));
    let name = format!("{}{name}", module.unwrap_or_default());
    strace.arg(&trace).arg(env::current_exe().unwrap());
    strace.args(["--exact", &name, "--nocapture", "--test-threads=1"]).env(AT, path);
    let Ok(watched) = strace.output() else {
        eprintln!("SKIPPED: no strace on this machine");
        return None;
    };
    let said = String::from_utf8_lossy(&watched.stderr);
    if said.contains("PTRACE_") {
        eprintln!("SKIPPED: strace may not watch a process here: {said}");
        return None;
    }
    assert!(watched.status.success(), "{said}");
    Some(Steps { calls: parse(&fs::read_to_string(trace).unwrap()) })
}

struct Steps {
    calls: Vec<Call>,
}

impl Steps {
    fn has(&self, name: &str) -> bool {
        self.calls.iter().any(|call| call.name == "write" && call.text.contains(&format!("begins: {name}")))
    }

    /// Takes out the calls of the step `name`: those that began in it and had returned when it did.
    fn take(&mut self, name: &str) -> Step {
        let place = |text: &str| {
            let said = self.calls.iter().find(|call| call.name == "write" && call.text.contains(text));
            said.unwrap_or_else(|| panic!("{text} is not in the trace")).began
        };
        let step = place(&format!("\"begins: {name}\\n\""))..place(&format!("\"returned: {name}\\n\""));
        let is_in = |call: &mut Call| step.contains(&call.began) && step.contains(&call.returned);
        Step { calls: self.calls.extract_if(.., is_in).collect() }
    }
}

fn filled() -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(8192);
    buf.fill(7);
    buf
}

/// Writes in each way that a device has, and a sync after each.
fn write_and_sync(watched: &Watched, device: &RawDevice, engine: &str) {
    watched.step(&format!("{engine}, one write"), || {
        device.write_at(0, &filled()).unwrap();
        device.sync().unwrap();
    });
    watched.step(&format!("{engine}, writes in flight"), || {
        let (sender, ended) = mpsc::channel();
        for number in 0..4 {
            let sender = sender.clone();
            let done = Box::new(move |outcome, _| sender.send(outcome).unwrap());
            device.submit_write(number * 8192, filled().into(), done);
        }
        drop(sender);
        ended.iter().for_each(|outcome: lacuna_device::Result<()>| outcome.unwrap());
        device.sync().unwrap();
    });
}

const ENGINES: [(&str, BlockIo, &str); 2] =
    [("threads", BlockIo::Threads, "pwrite64"), ("uring", BlockIo::Uring, "io_uring_enter")];

fn write_with_each_engine(watched: &Watched, path: &Path) {
    for (name, io, _) in ENGINES {
        match RawDevice::open(path, RawOptions { io, ..RawOptions::default() }) {
            Ok(device) => write_and_sync(watched, &device, name),
            Err(error) => {
                assert_eq!(io, BlockIo::Uring, "{error}");
                watched.step("no io_uring", || ());
            }
        }
    }
}

fn assert_writes_are_synced(steps: &mut Steps, path: &Path) {
    let shown = path.display().to_string();
    for (name, _, change) in ENGINES {
        if name == "uring" && steps.has("no io_uring") {
            eprintln!("SKIPPED in part: no io_uring here");
            continue;
        }
        steps.take(&format!("{name}, one write")).assert_synced("pwrite64", &shown, "fdatasync", path);
        let in_flight = steps.take(&format!("{name}, writes in flight"));
        let what = if change == "pwrite64" { &shown } else { "io_uring" };
        in_flight.assert_synced(change, what, "fdatasync", path);
    }
}

#[test]
fn a_store_file_is_synced_before_it_is_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let steps = watch("a_store_file_is_synced_before_it_is_said_to_be", &path, |watched, path| {
        let mut device =
            watched.step("create", || RawDevice::create(path, SIZE, RawOptions::default())).unwrap();
        watched.step("grow", || device.grow(2 * SIZE)).unwrap();
        watched.step("recreate", || device.recreate(SIZE)).unwrap();
        drop(device);
        write_with_each_engine(watched, path);
    });
    let Some(mut steps) = steps else { return };
    let shown = path.display().to_string();
    // It has no name yet when its length is synced.
    let create = steps.take("create");
    let nameless = create.calls.iter().find(|call| call.name == "ftruncate").and_then(Call::path).unwrap();
    create.assert_synced("ftruncate", &nameless.display().to_string(), "fsync", nameless);
    create.assert_synced("linkat", &shown, "fsync", directory.path());
    for name in ["grow", "recreate"] {
        steps.take(name).assert_synced("ftruncate", &shown, "fsync", &path);
    }
    assert_writes_are_synced(&mut steps, &path);
}

/// A loop device that goes with this value.
struct Loop(PathBuf);

impl Loop {
    fn new(file: &Path) -> Option<Loop> {
        fs::File::create(file).unwrap().set_len(SIZE).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(output.stdout).unwrap();
        // Whatever its last user made of it: the kernel keeps that.
        let _ = Command::new("blockdev").args(["--setrw", name.trim()]).status();
        output.status.success().then(|| Loop(PathBuf::from(name.trim())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_is_synced_before_it_is_said_to_be() {
    const NAME: &str = "a_block_device_is_synced_before_it_is_said_to_be";
    if watch_only(NAME, write_with_each_engine) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(device) = Loop::new(&directory.path().join("disk")) else {
        return eprintln!("SKIPPED: no loop devices here");
    };
    let Some(mut steps) = watch(NAME, &device.0, write_with_each_engine) else { return };
    assert_writes_are_synced(&mut steps, &device.0);
}

/// Whether this is the process that is watched, which has now done its work.
fn watch_only(name: &str, work: fn(&Watched, &Path)) -> bool {
    env::var_os("LACUNA_WATCHED_AT").is_some() && watch(name, Path::new(""), work).is_none()
}

fn change_a_directory(watched: &Watched, path: &Path) {
    let vfs = watched.step("open", || DirVfs::open(path, DirOptions::default())).unwrap();
    let file = watched.step("create", || vfs.create("a", StreamHint::Data)).unwrap();
    watched.step("write", || {
        file.write_at(0, &filled()).unwrap();
        file.sync().unwrap();
    });
    watched.step("set length", || {
        file.set_len(4 * SIZE).unwrap();
        file.sync().unwrap();
    });
    watched.step("batch", || {
        let data = filled();
        let ops = [BatchOp::Write { file: file.id(), offset: SIZE, data: &data }];
        vfs.write_batch(&ops).unwrap();
        vfs.sync().unwrap();
    });
    watched.step("closed before the sync", || {
        file.write_at(0, &filled()).unwrap();
        drop(file);
        vfs.create("other", StreamHint::Log).unwrap();
        vfs.sync().unwrap();
    });
    watched.step("rename", || vfs.rename("a", "b")).unwrap();
    watched.step("remove", || vfs.remove("b")).unwrap();
}

#[test]
fn files_and_names_of_a_directory_are_synced_before_they_are_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let name = "files_and_names_of_a_directory_are_synced_before_they_are_said_to_be";
    let Some(mut steps) = watch(name, directory.path(), change_a_directory) else { return };
    let file = directory.path().join("a");
    let shown = file.display().to_string();
    for (step, change, what) in [
        ("open", "openat", "lacuna-lock"),
        ("create", "openat", "\"a\""),
        ("rename", "renameat", "\"b\""),
        ("remove", "unlinkat", "\"b\""),
    ] {
        steps.take(step).assert_synced(change, what, "fsync", directory.path());
    }
    for (step, change) in [
        ("write", "pwrite64"),
        ("set length", "ftruncate"),
        ("batch", "pwrite64"),
        ("closed before the sync", "pwrite64"),
    ] {
        steps.take(step).assert_synced(change, &shown, "fdatasync", &file);
    }
}

/// An XFS on a loop device, mounted until this value goes.
struct Xfs(PathBuf);

impl Xfs {
    /// None where it cannot be made: without root, loop devices or mkfs.xfs.
    fn new(directory: &Path) -> Option<Xfs> {
        let (image, mount) = (directory.join("image"), directory.join("mount"));
        fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        fs::create_dir(&mount).unwrap();
        let did = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let is_made = did(Command::new("mkfs.xfs").args(["-q", "-b", "size=4096"]).arg(&image))
            && did(Command::new("mount").args(["-o", "loop"]).args([&image, &mount]));
        is_made.then_some(Xfs(mount))
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn write_atomically(watched: &Watched, path: &Path) {
    let vfs = DirVfs::open(path, DirOptions::default()).unwrap();
    let file = vfs.create("a", StreamHint::Data).unwrap();
    let mut data = AlignedBuf::zeroed(24 << 10);
    data.fill(7);
    file.set_len(1 << 20).unwrap();
    for (offset, from) in [(16 << 10, 0), (64 << 10, 512), (0, 1)] {
        watched.step(&format!("write at {offset}"), || {
            file.write_atomic(offset, &data[from..from + (16 << 10)]).unwrap();
        });
    }
    watched.step("refused", || {
        for (offset, len) in [(0, 512), (0, 12 << 10), (4 << 10, 16 << 10)] {
            let refused = file.write_atomic(offset, &data[..len]);
            assert!(matches!(refused, Err(lacuna_device::Error::Unsupported { .. })), "{refused:?}");
        }
    });
    file.sync().unwrap();
    let mut found = vec![0; 16 << 10];
    file.read_at(16 << 10, &mut found).unwrap();
    assert!(found == data[..16 << 10], "it was written");
    // XFS writes such a copy elsewhere, and must not take 128 KiB for it.
    let allocated = file.allocated(0, 1 << 20).unwrap();
    assert!(allocated <= 64 << 10, "three writes of 16 KiB take {allocated} bytes");
}

/// Memory of any alignment goes out as one request, too.
#[test]
fn an_atomic_write_is_one_request_that_asks_for_it() {
    const NAME: &str = "an_atomic_write_is_one_request_that_asks_for_it";
    if watch_only(NAME, write_atomically) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(xfs) = Xfs::new(directory.path()) else {
        return eprintln!("SKIPPED: no XFS can be made and mounted here");
    };
    let vfs = DirVfs::open(&xfs.0, DirOptions::default()).unwrap();
    if vfs.props().atomic_writes.is_none() {
        return eprintln!("SKIPPED: this kernel's XFS offers no atomic writes: Linux 6.16 is needed");
    }
    drop(vfs);
    let Some(mut steps) = watch(NAME, &xfs.0, write_atomically) else { return };
    for offset in [16 << 10, 64 << 10, 0] {
        let step = steps.take(&format!("write at {offset}"));
        let writes: Vec<_> = step.calls.iter().filter(|call| call.text.contains("/mount/a")).collect();
        let [write] = writes[..] else { panic!("one request: {writes:#?}") };
        let asks = write.text.contains("RWF_ATOMIC") || write.text.contains("0x40 /* RWF_");
        assert!(write.name == "pwritev2" && asks && write.text.ends_with("= 16384"), "{write:?}");
    }
    let refused = steps.take("refused").calls;
    assert!(refused.iter().all(|call| !call.text.contains("/mount/a")), "{refused:#?}");
}

#[test]
fn atomic_writes_of_two_threads_take_no_more_space() {
    let directory = tempfile::tempdir().unwrap();
    let Some(xfs) = Xfs::new(directory.path()) else {
        return eprintln!("SKIPPED: no XFS can be made and mounted here");
    };
    let vfs = DirVfs::open(&xfs.0, DirOptions::default()).unwrap();
    if vfs.props().atomic_writes.is_none() {
        return eprintln!("SKIPPED: this kernel's XFS offers no atomic writes: Linux 6.16 is needed");
    }
    const PAGES: u64 = 512;
    let file = vfs.create("a", StreamHint::Data).unwrap();
    file.set_len(PAGES * 16384).unwrap();
    std::thread::scope(|scope| {
        for first in 0..2 {
            let (file, data) = (&file, AlignedBuf::zeroed(4096));
            scope.spawn(move || {
                for page in (first..PAGES).step_by(2) {
                    file.write_atomic(page * 16384, &data).unwrap();
                }
            });
        }
    });
    file.sync().unwrap();
    let allocated = file.allocated(0, PAGES * 16384).unwrap();
    assert!(allocated <= PAGES * 4096 * 11 / 10, "{PAGES} writes of 4 KiB take {allocated} bytes");
}
