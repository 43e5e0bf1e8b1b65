mod turns;

use std::thread;

use lacuna_device::{MemVfs, StreamHint, Vfs};
use lacuna_sim::{SimVfs, for_each_seed};

use super::*;
use crate::pool::DirtyList;

const SALT: Salt = Salt(0x5a17);

/// A log whose files are so short that it goes through many of them.
fn log() -> (Arc<LogFiles>, Log) {
    let files = Arc::new(LogFiles::open(MemVfs::new(), 8192, SALT).expect("open"));
    let empty = (VecDeque::new(), Lsn(0));
    let log =
        Log::start(files.clone(), Lsn(0), empty, 1, 1 << 20, Arc::new(Poison::default())).expect("start");
    (files, log)
}

fn read_all(files: Arc<LogFiles>, from: Lsn) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut reader = LogReader::new(files, from);
    while let Some(group) = reader.next_group().expect("read") {
        found.extend(group.records().map(|r| r.ops.to_vec()));
    }
    found
}

#[test]
fn what_was_flushed_is_read_back_in_order() {
    let (file, log) = log();
    let log = Arc::new(log);
    let threads: Vec<_> = (0..4u8)
        .map(|t| {
            let log = log.clone();
            thread::spawn(move || {
                for i in 0..200u32 {
                    let lsn = log.append(&[&[t][..], &i.to_le_bytes()].concat(), |_, _| {}).expect("append");
                    log.reach(lsn, Until::Flushed).expect("flush");
                }
            })
        })
        .collect();
    for t in threads {
        t.join().expect("thread");
    }
    let found = read_all(file, Lsn(0));
    assert_eq!(found.len(), 800);
    for t in 0..4u8 {
        let of_thread: Vec<_> = found.iter().filter(|r| r[0] == t).map(|r| r[1]).collect();
        assert_eq!(of_thread, (0..200u8).collect::<Vec<_>>());
    }
}

/// Where a file's length is the space that it takes, it is no longer than the log needs.
#[test]
fn a_short_log_file_grows_with_its_log() {
    for (segment_bytes, most) in [(SHORT_SEGMENT_BYTES, 1 << 20), (SEGMENT_BYTES, 64 << 20)] {
        let vfs = MemVfs::new();
        let files = LogFiles::open(vfs.clone(), segment_bytes, SALT).expect("open");
        files.write(Lsn(0), &[1; 4096]).expect("write");
        let len = vfs.open("wal.000000", StreamHint::Log).expect("made").len().expect("len");
        assert_eq!(len, most);
    }
}

/// Threads wait for different leaders: each must be woken.
#[test]
fn a_failed_sync_wakes_all_who_wait() {
    for_each_seed(20, |seed| {
        let vfs = SimVfs::new(seed);
        let files = Arc::new(LogFiles::open(vfs.clone(), 8192, SALT).expect("open"));
        let empty = (VecDeque::new(), Lsn(0));
        let log = Log::start(files, Lsn(0), empty, 1, 1 << 20, Arc::new(Poison::default())).expect("start");
        let begun = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    loop {
                        let flushed =
                            log.append(&[7; 100], |_, _| {}).and_then(|lsn| log.reach(lsn, Until::Flushed));
                        begun.fetch_add(1, Ordering::Relaxed);
                        if flushed.is_err() {
                            return;
                        }
                    }
                });
            }
            while begun.load(Ordering::Relaxed) < 200 {
                thread::yield_now();
            }
            vfs.fail_sync();
        });
    });
}

#[test]
fn truncation_keeps_what_comes_after() {
    let (files, log) = log();
    let dirty = DirtyList::default();
    let mut records = Vec::new();
    for i in 0..60u8 {
        // Some groups reach over a file's end.
        records.push(vec![i; 700 * (i as usize % 5)]);
        let lsn = log.append(&records[i as usize], |_, _| {}).expect("append");
        log.reach(lsn, Until::Flushed).expect("flush");
        if i % 7 == 0 {
            let start = log.start_needed(|| dirty.oldest());
            log.truncate(start).expect("truncate");
            records.iter_mut().for_each(Vec::clear);
            assert!(files.len() <= 1, "whole files behind the checkpoint are removed");
        }
    }
    let checkpoint = log.state.lock().checkpoint;
    assert_eq!(read_all(files, checkpoint), records[57..]);
}

/// Invariant 3. Wiping leaves none, so no crash shows it.
#[test]
fn a_group_of_an_earlier_opening_is_never_the_next() {
    let files = Arc::new(LogFiles::open(MemVfs::new(), 8192, SALT).expect("open"));
    let write = |at, epoch| {
        let mut group = GroupBuilder::new(at, Vec::new());
        group.push(&[7; 600]);
        let (start, bytes) = group.seal(epoch, SALT);
        files.write(start, &bytes).expect("write");
        Lsn(start.0 + bytes.len() as u64)
    };
    let second = write(Lsn(0), 2);
    for (epoch, is_next) in [(1, false), (2, true), (3, true)] {
        let end = write(second, epoch);
        let mut reader = LogReader::new(files.clone(), Lsn(0));
        assert!(reader.next_group().expect("read").is_some());
        assert_eq!(reader.next_group().expect("read").is_some(), is_next, "epoch {epoch} behind 2");
        assert_eq!(reader.position(), if is_next { end } else { second });
        assert_eq!(reader.group_behind_end().expect("read"), None, "epoch {epoch} is no damage");
    }
}

/// Invariant 5.
#[test]
fn a_value_with_a_group_in_it_is_none() {
    // That of another store, or one that was guessed.
    const KNOWN: Salt = Salt(1);
    let forged_at = Lsn(SECTOR as u64);
    let mut forged = GroupBuilder::new(forged_at, Vec::new());
    forged.push(b"forged");
    let (_, forged) = forged.seal(1, KNOWN);
    let mut value = vec![7; SECTOR - format::HEADER_BYTES - format::RECORD_PREFIX];
    value.extend_from_slice(&forged);
    for (salt, found) in [(SALT, None), (KNOWN, Some(forged_at))] {
        let files = Arc::new(LogFiles::open(MemVfs::new(), 8192, salt).expect("open"));
        let mut group = GroupBuilder::new(Lsn(0), Vec::new());
        group.push(&value);
        let (start, mut bytes) = group.seal(1, salt);
        bytes[..SECTOR].fill(0);
        files.write(start, &bytes).expect("write");
        let mut reader = LogReader::new(files, Lsn(0));
        assert!(reader.next_group().expect("read").is_none());
        assert_eq!(reader.group_behind_end().expect("read"), found, "{salt:?}");
    }
}

/// A file that is one hole behind the beginning of a group, which claims as much of it as a number can hold.
#[test]
fn a_forged_length_takes_no_memory() {
    let vfs = MemVfs::new();
    let mut group = GroupBuilder::new(Lsn(0), Vec::new());
    group.push(b"forged");
    let (_, bytes) = group.seal(1, SALT);
    for claimed in [u32::MAX, 1 << 30, format::GROUP_BYTES_MAX as u32 + 1] {
        let mut forged = AlignedBuf::zeroed(SECTOR);
        forged[..bytes.len()].copy_from_slice(&bytes);
        forged[12..16].copy_from_slice(&claimed.to_le_bytes());
        let files = LogFiles::open(vfs.clone(), SEGMENT_BYTES, SALT).expect("open");
        files.write(Lsn(0), &forged).expect("write");
        vfs.open("wal.000000", StreamHint::Log).expect("open").set_len(1 << 33).expect("set_len");
        let files = Arc::new(LogFiles::open(vfs.clone(), SEGMENT_BYTES, SALT).expect("open"));
        let mut reader = LogReader::new(files, Lsn(0));
        assert!(reader.next_group().expect("read").is_none());
        assert_eq!(reader.group_behind_end().expect("read"), None, "it is torn");
        assert!(reader.memory_bytes() <= 1 << 20, "{} bytes for a claim of {claimed}", reader.memory_bytes());
    }
}

#[test]
fn remains_behind_the_end_are_wiped() {
    let (files, log) = log();
    for i in 0..40u8 {
        let lsn = log.append(&[i; 600], |_, _| {}).expect("append");
        log.reach(lsn, Until::Flushed).expect("flush");
    }
    let mut reader = LogReader::new(files.clone(), Lsn(0));
    for _ in 0..10 {
        reader.next_group().expect("read").expect("whole");
    }
    files.wipe_behind(reader.position()).expect("wipe");
    assert_eq!(read_all(files.clone(), Lsn(0)).len(), 10);
    assert_eq!(files.len(), 2, "later files are removed");
}
