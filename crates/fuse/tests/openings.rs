//! What the kernel may cache of a file, and what a synchronous write leaves behind, without a mount.

use std::{cell::Cell, sync::Arc};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_fuse::{Errno, Opening, PageCache, Service, ServiceOptions, WriteRequest};
use lacuna_nvmfs::{
    FormatOptions, Nvmfs, Options, Timestamp,
    posix::{AccessTimes, Caller, FileKind},
};

const ROOT: u64 = 1;

thread_local! {
    static SECONDS: Cell<i64> = const { Cell::new(1000) };
}

/// A clock that stands still until it is set.
fn clock() -> Timestamp {
    Timestamp { seconds: SECONDS.get(), nanoseconds: 5 }
}

fn formatted() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions { clock, ..FormatOptions::default() })
        .expect("formats");
    device
}

fn service_of(device: &Arc<dyn BlockDevice>, access_times: AccessTimes) -> Service {
    caching(device, access_times, PageCache::WriteThrough)
}

fn caching(device: &Arc<dyn BlockDevice>, access_times: AccessTimes, cache: PageCache) -> Service {
    let options = Options { clock, access_times, ..Options::default() };
    let fs = Nvmfs::open(Arc::clone(device), options).expect("opens");
    Service::new(Arc::new(fs), ServiceOptions { cache, ..ServiceOptions::default() })
}

/// A new file that is open; its number.
fn create(service: &Service, name: &str) -> u64 {
    let mode = FileKind::File.mode_bits() | 0o644;
    Service::number(service.create(ROOT, name.as_bytes(), mode, Caller::default()).expect("creates").ino)
}

fn open(service: &Service, file: u64, flags: i32) -> Opening {
    service.open(file).expect("opens");
    service.opening(file, flags)
}

fn close(service: &Service, file: u64, opening: Opening) {
    service.close(file, opening.handle(libc::O_RDWR)).expect("closes");
}

/// A write through such an opening.
fn write_to(opening: Opening, data: &[u8], flags: i32) -> WriteRequest<'_> {
    WriteRequest {
        offset: 4096,
        data,
        open_flags: flags,
        kill_privileges: None,
        is_direct: opening == Opening::Direct,
        from_cache: false,
        caller: Caller::default(),
    }
}

#[test]
fn what_is_open_directly_is_cached_for_nobody() {
    let service = service_of(&formatted(), AccessTimes::Never);
    let file = create(&service, "database");
    assert_eq!(open(&service, file, libc::O_RDWR | libc::O_DIRECT), Opening::Direct);
    // A backup.
    assert_eq!(open(&service, file, libc::O_RDONLY), Opening::Direct);
    let request = write_to(Opening::Direct, &[1; 512], libc::O_DIRECT);
    assert_eq!(service.made_stale(file, &request), None, "there are no pages");
}

#[test]
fn pages_beside_direct_writes_are_dropped_then_and_at_the_next_opening() {
    let service = service_of(&formatted(), AccessTimes::Never);
    let file = create(&service, "database");
    let cached = open(&service, file, libc::O_RDONLY);
    assert_eq!(cached, Opening::Cached);
    let direct = open(&service, file, libc::O_RDWR | libc::O_DIRECT);
    assert_eq!(direct, Opening::Direct);
    let request = write_to(direct, &[1; 512], libc::O_DIRECT);
    assert_eq!(service.made_stale(file, &request), Some(4096..4608));
    let from_cache = WriteRequest { from_cache: true, ..request };
    assert_eq!(service.made_stale(file, &from_cache), None, "it is in the pages");
    close(&service, file, cached);
    assert_eq!(service.made_stale(file, &request), None, "nobody reads pages");
    close(&service, file, direct);
    assert_eq!(open(&service, file, libc::O_RDWR), Opening::CachedAnew);
}

#[test]
fn a_read_that_moves_the_time_of_access_is_not_left_to_the_cache() {
    let service = service_of(&formatted(), AccessTimes::Relative);
    let file = create(&service, "file");
    let written = service.opening(file, libc::O_RDWR);
    assert_eq!(written, Opening::Cached);
    service.write(file, write_to(written, &[1; 512], 0)).expect("writes");
    SECONDS.set(SECONDS.get() + 1);
    let reader = open(&service, file, libc::O_RDONLY);
    assert_eq!(reader, Opening::CachedAnew, "it was not read since it was written");
    service.read(file, 0, &mut [0; 512]).expect("reads");
    assert_eq!(service.getattr(file).map(|attr| attr.accessed), Ok(clock()));
    close(&service, file, reader);
    assert_eq!(open(&service, file, libc::O_RDONLY), Opening::Cached);
    SECONDS.set(SECONDS.get() + 25 * 3600);
    assert_eq!(open(&service, file, libc::O_RDONLY), Opening::CachedAnew, "a day later");

    let strict = service_of(&formatted(), AccessTimes::Always);
    let file = create(&strict, "file");
    assert_eq!(open(&strict, file, libc::O_RDONLY), Opening::Direct);
    // Nor is a listing.
    assert_eq!(strict.open_directory(1), Ok(()));
    strict.release(1).expect("closes");
    let relative = service_of(&formatted(), AccessTimes::Relative);
    assert_eq!(relative.open_directory(1), Err(Errno(libc::ENOSYS)));
}

#[test]
fn a_synchronous_write_stores_its_times() {
    let device = formatted();
    for (name, flags, expected) in [("data", libc::O_DSYNC, 1000), ("all", libc::O_SYNC, 2000)] {
        let service = service_of(&device, AccessTimes::Relative);
        SECONDS.set(1000);
        let file = create(&service, name);
        let opening = service.opening(file, libc::O_RDWR | flags);
        service.write(file, write_to(opening, &[1; 512], 0)).expect("writes");
        service.fsync(file, false).expect("syncs");
        // Of the same bytes, so the inode has no reason of its own to be written.
        SECONDS.set(2000);
        service.write(file, write_to(opening, &[2; 512], flags)).expect("writes");
        assert_eq!(service.getattr(file).map(|attr| attr.modified.seconds), Ok(2000));
        drop(service); // with what it has in memory
        let service = service_of(&device, AccessTimes::Relative);
        let found = service.lookup(ROOT, name.as_bytes()).expect("is there");
        assert_eq!(found.attr.modified.seconds, expected, "{flags:o}");
    }
}

/// A page that was mapped and one that was written come back alike; only the kernel knows when they were changed.
#[test]
fn what_is_written_back_keeps_its_times() {
    for (cache, moves) in [(PageCache::WriteThrough, true), (PageCache::WriteBack, false)] {
        let service = caching(&formatted(), AccessTimes::Never, cache);
        SECONDS.set(1000);
        let file = create(&service, "file");
        let opening = service.opening(file, libc::O_RDWR);
        assert_eq!(opening, Opening::Cached);
        SECONDS.set(2000);
        let page = WriteRequest { from_cache: true, ..write_to(opening, &[1; 512], 0) };
        service.write(file, page).expect("writes");
        let attr = service.getattr(file).expect("is there");
        let expected = if moves { 2000 } else { 1000 };
        assert_eq!((attr.size, attr.modified.seconds, attr.changed.seconds), (4608, expected, expected));
        // What the kernel does not cache, it leaves to us.
        service.write(file, write_to(Opening::Direct, &[1; 512], libc::O_DIRECT)).expect("writes");
        assert_eq!(service.getattr(file).map(|attr| attr.modified.seconds), Ok(2000));
    }
}

#[test]
fn what_may_be_in_the_kernel_alone_is_called_no_hole() {
    for (cache, expected) in [
        (PageCache::Off, Ok(4096)),
        (PageCache::WriteThrough, Ok(4096)),
        (PageCache::WriteBack, Err(Errno(libc::ENOSYS))),
    ] {
        let service = caching(&formatted(), AccessTimes::Never, cache);
        let file = create(&service, "file");
        let opening = service.opening(file, libc::O_RDWR);
        service.write(file, write_to(opening, &[1; 512], 0)).expect("writes");
        let handle = opening.handle(libc::O_RDWR);
        assert_eq!(service.seek(file, handle, 0, libc::SEEK_DATA), expected, "{cache:?}");
        if cache == PageCache::WriteBack {
            continue;
        }
        // Others may have mapped it, as long as they have it open for writing.
        let reader = service.opening(file, libc::O_RDONLY).handle(libc::O_RDONLY);
        let writer = service.opening(file, libc::O_RDWR).handle(libc::O_RDWR);
        for seeker in [reader, handle] {
            assert_eq!(service.seek(file, seeker, 100, libc::SEEK_DATA), Ok(100));
            assert_eq!(service.seek(file, seeker, 100, libc::SEEK_HOLE), Ok(4608));
            assert_eq!(service.seek(file, seeker, 4608, libc::SEEK_DATA), Err(Errno(libc::ENXIO)));
        }
        service.open(file).expect("opens");
        for handle in [writer, handle] {
            assert_eq!(service.seek(file, reader, 100, libc::SEEK_DATA), Ok(100));
            service.close(file, handle).expect("closes");
        }
        assert_eq!(service.seek(file, reader, 100, libc::SEEK_DATA), Ok(4096));
    }
}

/// The kernel, where it writes back, moves no times for direct writes.
#[test]
fn with_strict_times_of_access_nothing_is_written_back() {
    let service = caching(&formatted(), AccessTimes::Always, PageCache::WriteBack);
    assert_eq!(service.options().cache, PageCache::Off);
    let file = create(&service, "file");
    assert_eq!(open(&service, file, libc::O_RDWR), Opening::Direct);
    let relative = caching(&formatted(), AccessTimes::Relative, PageCache::WriteBack);
    assert_eq!(relative.options().cache, PageCache::WriteBack);
}

#[test]
fn writes_are_called_atomic_only_where_they_are_requests() {
    const ATOMIC_WRITE_SET: u32 = 0x4004_9502;
    for cache in [PageCache::Off, PageCache::WriteThrough, PageCache::WriteBack] {
        let service = caching(&formatted(), AccessTimes::Never, cache);
        let file = create(&service, "tablespace");
        for (flags, may_tear) in [(0, cache == PageCache::WriteBack), (libc::O_DIRECT, false)] {
            let flags = libc::O_RDWR | flags;
            let opening = open(&service, file, flags);
            let asked = service.ioctl(
                file,
                opening.handle(flags),
                ATOMIC_WRITE_SET,
                &[1, 0, 0, 0],
                Caller::default(),
            );
            let expected = if may_tear { Err(Errno(libc::ENOTTY)) } else { Ok(Vec::new()) };
            assert_eq!(asked, expected, "{cache:?} {flags:o}");
            close(&service, file, opening);
        }
    }
}
