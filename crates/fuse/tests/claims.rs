//! Files that are read and written past the kernel, without a mount.

use std::{
    sync::{Arc, mpsc::channel},
    thread,
    time::Duration,
};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_fuse::{Claim, Opening, Service, ServiceOptions};
use lacuna_nvmfs::{
    FormatOptions, Nvmfs, Options,
    posix::{Caller, FileKind},
};
use rustix::fs::OFlags;

use crate::parallel::Gated;

const ROOT: u64 = 1;
const PAGE: usize = 16384;

fn formatted() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    device
}

/// A service, and a file of four pages.
fn service(device: Arc<dyn BlockDevice>, claims: bool) -> (Arc<Service>, u64) {
    let fs = Nvmfs::open(device, Options::default()).expect("opens");
    let service = Service::new(Arc::new(fs), ServiceOptions { claims, ..ServiceOptions::default() });
    let made = service.create(ROOT, b"f", FileKind::File.mode_bits() | 0o644, Caller::default());
    let number = Service::number(made.expect("creates").ino);
    service.fallocate(number, 0, 4 * PAGE as u64, 0, Caller::default()).expect("grows");
    (Arc::new(service), number)
}

/// Flags as of `open`.
fn flags(flags: OFlags) -> i32 {
    flags.bits() as i32
}

fn direct() -> i32 {
    flags(OFlags::RDWR | OFlags::DIRECT)
}

/// Opens as the kernel would, with these flags.
fn open(service: &Service, number: u64, with: i32) -> Opening {
    service.open(number).expect("opens");
    service.opening(number, with)
}

fn close(service: &Service, number: u64, opening: Opening, with: i32) {
    service.close(number, opening.handle(with)).expect("closes");
}

fn claim(service: &Arc<Service>, number: u64, with: i32) -> Option<Claim> {
    service.claim(number, with, Caller::default())
}

/// Whether the claim is good: what it writes it reads.
fn is_good(claim: &Claim, byte: u8) -> bool {
    let Some(written) = claim.write(0, &[byte; PAGE]) else {
        assert!(claim.read(0, &mut [0; PAGE]).is_none() && claim.fsync(true).is_none());
        return false;
    };
    let mut read = [0; PAGE];
    assert_eq!((written, claim.read(0, &mut read)), (Ok(PAGE), Some(Ok(PAGE))));
    assert!(read == [byte; PAGE] && claim.fsync(true) == Some(Ok(())));
    true
}

#[test]
fn a_claim_is_good_while_all_who_have_the_file_open_have_one() {
    let (service, number) = service(formatted(), true);
    assert!(claim(&service, number, direct()).is_none(), "it is not open");
    let first = open(&service, number, direct());
    let of_first = claim(&service, number, direct()).expect("it is open");
    assert!(claim(&service, number, direct()).is_none(), "it is open once");
    assert!(is_good(&of_first, 1));

    // Somebody else's opening is direct as well, whatever was asked for, and may be mapped.
    let second = open(&service, number, flags(OFlags::RDONLY));
    assert!(second == Opening::Direct && !is_good(&of_first, 2));
    let of_second = claim(&service, number, flags(OFlags::RDONLY)).expect("it is open");
    assert!(is_good(&of_first, 3));
    assert!(of_second.write(0, &[4; PAGE]).is_none(), "it is open for reading");
    drop(of_second);
    assert!(!is_good(&of_first, 5));
    close(&service, number, second, flags(OFlags::RDONLY));
    assert!(is_good(&of_first, 6));

    // What is mapped may stay so until it is closed.
    service.map(number);
    assert!(!is_good(&of_first, 7));
    drop(of_first);
    close(&service, number, first, direct());
    let first = open(&service, number, direct());
    let of_first = claim(&service, number, direct()).expect("it is open");
    assert!(is_good(&of_first, 8));
    drop(of_first);
    close(&service, number, first, direct());

    // A claim that outlives its opening claims no other, also where something is remembered of the file.
    service
        .ioctl(number, Opening::Direct.handle(direct()), 0x4004_9502, &[], Caller::default())
        .expect("answers");
    let first = open(&service, number, direct());
    let late = claim(&service, number, direct()).expect("it is open");
    close(&service, number, first, direct());
    assert!(!is_good(&late, 9));
    let second = open(&service, number, direct());
    let of_second = claim(&service, number, direct()).expect("it is open");
    assert!(!is_good(&late, 9) && is_good(&of_second, 9));
    drop(late);
    assert!(is_good(&of_second, 10));
    drop(of_second);
    close(&service, number, second, direct());

    // Nor is there one beside the page cache.
    let cached = open(&service, number, flags(OFlags::RDWR));
    assert!(cached == Opening::Cached && claim(&service, number, flags(OFlags::RDWR)).is_none());
    let first = open(&service, number, direct());
    let of_first = claim(&service, number, direct()).expect("it is open");
    assert!(!is_good(&of_first, 11));
    close(&service, number, cached, flags(OFlags::RDWR));
    assert!(is_good(&of_first, 12));
    drop(of_first);
    close(&service, number, first, direct());
}

#[test]
fn nothing_is_claimed_where_the_kernel_keeps_attributes() {
    let (service, number) = service(formatted(), false);
    open(&service, number, direct());
    assert!(claim(&service, number, direct()).is_none());
}

#[test]
fn the_kernel_alone_makes_a_file_longer() {
    let (service, number) = service(formatted(), true);
    open(&service, number, direct());
    let claim = claim(&service, number, direct()).expect("it is open");
    let end = 4 * PAGE as u64;
    for (offset, is_within) in [
        (0, true),
        (end - PAGE as u64, true),
        (end - PAGE as u64 + 1, false),
        (end, false),
        (u64::MAX - 5, false),
    ] {
        assert_eq!(claim.write(offset, &[1; PAGE]).is_some(), is_within, "{offset}");
    }
    assert_eq!(service.getattr(number).map(|attr| attr.size), Ok(end));
    let mut past = [0; PAGE];
    assert_eq!(claim.read(end - 1, &mut past), Some(Ok(1)), "reads end where the file does");
}

#[test]
fn who_opens_a_file_waits_for_what_is_under_way() {
    let device = Gated::formatted();
    let (service, number) = service(device.clone(), true);
    let synced = direct() | libc::O_DSYNC;
    open(&service, number, synced);
    let claim = claim(&service, number, synced).expect("it is open");
    let shut = device.shut();
    thread::scope(|scope| {
        let writer = scope.spawn(|| claim.write(0, &[1; PAGE]));
        // Written, and about to wait for the device: the write has the file's gate.
        let written = || service.counters().snapshot().writes > 0;
        while !written() {
            thread::yield_now();
        }
        let (sender, opened) = channel();
        scope.spawn({
            let service = &service;
            move || {
                let opening = open(service, number, flags(OFlags::RDONLY));
                sender.send(opening).expect("somebody waits");
            }
        });
        assert!(opened.recv_timeout(Duration::from_millis(200)).is_err(), "it did not wait");
        drop(shut);
        assert_eq!(writer.join().expect("no panic"), Some(Ok(PAGE)));
        assert_eq!(opened.recv(), Ok(Opening::Direct));
    });
    assert!(claim.write(0, &[2; PAGE]).is_none());
}
