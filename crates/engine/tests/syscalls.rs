//! What commits ask the kernel for: with the log in mapped memory neither a write nor a sync. Each 128 KiB of log whoever
//! writes asks the file system what is free; and where threads of the store hold a lock, or memory is new, that is a call.
//!
//! The test starts itself again under strace; the process that is watched says where its commits begin and end.

use std::{env, fs, io::Write, path::Path, process::Command, sync::Arc};

use lacuna_device::{DirOptions, DirVfs, Vfs, create_log_device, log_device::MappedMemory};
use lacuna_engine::{Algorithm, LogDeviceVfs, Store, StoreOptions, Table, TableOptions};
use lacuna_sim::SeededRng;

const NAME: &str = "a_commit_to_mapped_memory_is_no_system_call";
/// Names the directory of the process that is watched.
const AT: &str = "LACUNA_COMMITS_AT";
/// Names its log device; without one the log is a file.
const LOG: &str = "LACUNA_COMMITS_LOG";
const COMMITS: u64 = 1000;

fn commit(store: &Store, table: &Table, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut txn = store.begin();
        let key = SeededRng::new(number).next_u64().to_be_bytes();
        txn.put(table, &key, &[7; 100]).expect("put");
        txn.commit().expect("commit");
    }
}

/// Commits of one client, in the process that is watched.
fn work(directory: &Path) {
    let mut vfs: Arc<dyn Vfs> = DirVfs::open(directory, DirOptions::default()).expect("open");
    if let Some(log) = env::var_os(LOG) {
        let device = MappedMemory::open(Path::new(&log), false).expect("open").expect("it is memory");
        vfs = LogDeviceVfs::format(vfs, Arc::new(device), false).expect("format");
    }
    let store = Store::open(vfs, StoreOptions::default()).expect("open");
    let table = store.create_table("t", TableOptions::compressed(Algorithm::Lz4)).expect("create");
    commit(&store, &table, 0..COMMITS); // buffers grow, and files get their length
    let mut said = std::io::stderr();
    said.write_all(b"begins\n").expect("write");
    commit(&store, &table, COMMITS..2 * COMMITS);
    said.write_all(b"returned\n").expect("write");
    store.close().expect("close");
}

/// The system calls of the thread that commits, between its first and last commit. None where nothing can be watched.
fn calls_of_commits(log: Option<&Path>) -> Option<Vec<String>> {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, trace) = (directory.path().join("store"), directory.path().join("trace"));
    fs::create_dir(&store).expect("a directory");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", "signal=none", "-o"]).arg(&trace).arg(env::current_exe().expect("this program"));
    let name = format!("{}::{NAME}", module_path!().split_once("::").expect("a module").1);
    strace.args(["--exact", &name, "--nocapture", "--test-threads=1"]).env(AT, &store);
    strace.envs(log.map(|log| (LOG, log)));
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
    let trace = fs::read_to_string(trace).expect("the trace");
    // Each line begins with the thread; a call that another thread interrupts is two lines.
    let begins = trace.lines().find(|line| line.contains("\"begins\\n\"")).expect("the first marker");
    let thread = begins.split_whitespace().next().expect("a thread");
    let of_thread = trace.lines().filter(|line| line.split_whitespace().next() == Some(thread));
    let calls = of_thread.filter(|line| !line.contains("resumed>"));
    let calls = calls.skip_while(|line| *line != begins).skip(1);
    Some(calls.take_while(|line| !line.contains("\"returned\\n\"")).map(str::to_owned).collect())
}

#[test]
fn a_commit_to_mapped_memory_is_no_system_call() {
    if let Ok(directory) = env::var(AT) {
        return work(Path::new(&directory));
    }
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let log = memory.path().join("log");
    drop(create_log_device(&log, 16 << 20).expect("create"));
    let Some(mapped) = calls_of_commits(Some(&log)) else { return };
    let count_of = |names: &[&str]| {
        let is_of = |call: &&String| names.iter().any(|name| call.contains(&format!(" {name}(")));
        mapped.iter().filter(is_of).count() as u64
    };
    let (asked, memory) =
        (count_of(&["fstatfs"]), count_of(&["brk", "mmap", "munmap", "mprotect", "madvise"]));
    let locks = count_of(&["futex", "sched_yield"]);
    assert_eq!(mapped.len() as u64, asked + memory + locks, "{mapped:#?}");
    assert!(asked.max(memory).max(locks) <= COMMITS / 20, "{mapped:#?}");
    // They would be seen: with the log in a file each commit syncs.
    let Some(synced) = calls_of_commits(None) else { return };
    let syncs = synced.iter().filter(|call| call.contains("fdatasync(")).count() as u64;
    assert!(syncs >= COMMITS, "{syncs} syncs");
}
