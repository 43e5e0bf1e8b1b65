//! A device whose host runs out of space: what grows is refused, the rest waits, nothing is stopped, and once the host
//! has space everything goes on.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use lacuna_device::{BlockDevice, Error as DeviceError, Patient};
use lacuna_ftl::{CheckDepth, Error, FormatOptions, Ftl, Lba, Op, Options, Stream};
use lacuna_sim::FullHost;

const BLOCK: usize = 16384;

fn write(ftl: &Ftl, at: u64, byte: u8) -> lacuna_ftl::Result<()> {
    let lba = Lba(at * (BLOCK / 512) as u64);
    ftl.write_batch(&[Op::Write { lba, data: &[byte; BLOCK] }], Stream::Data).map(drop)
}

fn trim(ftl: &Ftl, at: u64) -> lacuna_ftl::Result<()> {
    let sectors = (BLOCK / 512) as u64;
    ftl.write_batch(&[Op::Trim { lba: Lba(at * sectors), sectors }], Stream::Data).map(drop)
}

fn holds(ftl: &Ftl, at: u64, byte: u8) {
    let mut back = [0; BLOCK];
    ftl.read(Lba(at * (BLOCK / 512) as u64), &mut back).expect("reads go on");
    assert!(back.iter().all(|found| *found == byte), "block {at}");
}

/// A store that has space, with eight blocks of ones that were flushed.
fn store() -> (Arc<FullHost>, Arc<dyn BlockDevice>, Ftl) {
    let host = FullHost::new(64 << 20);
    let patient = Patient::new(Arc::clone(&host) as _).expect("a thread");
    patient.has_opened();
    let device: Arc<dyn BlockDevice> = Arc::new(patient);
    Ftl::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let ftl =
        Ftl::open(Arc::clone(&device), Options { background: true, ..Options::default() }).expect("opens");
    for at in 0..8 {
        write(&ftl, at, 1).expect("writes");
    }
    ftl.flush().expect("flushes");
    (host, device, ftl)
}

/// Closing ends where nobody waits any longer for a host that stays full, and loses nothing that was flushed.
#[test]
fn a_store_closes_although_its_host_stays_full() {
    let (host, _, ftl) = store();
    assert_eq!(ftl.stats().unflushed_batches, 0);
    host.set_full(true);
    write(&ftl, 8, 2).expect("accepted");
    write(&ftl, 1, 3).expect("accepted");
    thread::scope(|scope| {
        let closed = scope.spawn(|| ftl.close());
        while !ftl.waits_for_space() {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ftl.stats().unflushed_batches, 2);
        ftl.stop_waiting_for_space();
        let closed = closed.join().expect("no panic");
        assert!(matches!(closed, Err(Error::Device(DeviceError::Full { .. }))), "{closed:?}");
    });
    assert!(ftl.failure().is_some(), "it is stopped");
    drop(ftl);
    host.set_full(false);
    let ftl = Ftl::open(host, Options::default()).expect("opens");
    for at in [0, 2, 7] {
        holds(&ftl, at, 1);
    }
    assert!(ftl.check(CheckDepth::Payload).expect("checks").is_clean());
}

/// Else its superblock would name an end that it does not have, and nothing could be written any more.
#[test]
fn a_store_that_cannot_grow_for_want_of_space_is_as_it_was() {
    const BYTES: u64 = 64 << 20;
    for waits in [false, true] {
        let (host, device, ftl) = store();
        ftl.close().expect("closes");
        drop(ftl);
        let device: Arc<dyn BlockDevice> = if waits { device } else { host.clone() };
        let ftl = Ftl::open(Arc::clone(&device), Options::default()).expect("opens");
        host.set_full_from(BYTES);
        for _ in 0..2 {
            let refused = ftl.grow(Some(2 * BYTES));
            assert!(matches!(refused, Err(Error::Device(DeviceError::Full { .. }))), "{refused:?}");
        }
        assert_eq!((ftl.failure(), ftl.stats().capacity_bytes), (None, BYTES));
        write(&ftl, 8, 2).expect("goes on");
        ftl.close().expect("closes");
        drop(ftl);
        let ftl = Ftl::open(Arc::clone(&device), Options::default()).expect("opens");
        for (at, byte) in [(7, 1), (8, 2)] {
            holds(&ftl, at, byte);
        }
        assert!(ftl.check(CheckDepth::Payload).expect("checks").is_clean());
        host.set_full(false);
        assert_eq!(ftl.grow(None).expect("has space"), 2 * BYTES, "the file is that long already");
        assert!(ftl.check(CheckDepth::Payload).expect("checks").is_clean());
    }
}

#[test]
fn a_host_without_space_stops_nothing() {
    let (host, device, ftl) = store();

    host.set_full(true);
    let (sender, flushed) = mpsc::channel();
    thread::scope(|scope| {
        // Accepted before anybody knows; its flush is what meets the full host.
        write(&ftl, 8, 2).expect("accepted");
        scope.spawn(|| sender.send(ftl.flush()).expect("is waited for"));
        while !ftl.waits_for_space() {
            thread::sleep(Duration::from_millis(1));
        }
        let refused = write(&ftl, 9, 3);
        assert!(matches!(refused, Err(Error::Device(DeviceError::Full { .. }))), "{refused:?}");
        trim(&ftl, 0).expect("what frees space is accepted");
        write(&ftl, 1, 4).expect("what needs no more space than before is accepted");
        for (at, byte) in [(0, 0), (1, 4), (2, 1), (8, 2), (9, 0)] {
            holds(&ftl, at, byte);
        }
        assert_eq!(ftl.failure(), None);
        assert!(flushed.try_recv().is_err(), "nothing is promised that may be lost");

        host.set_full(false);
        flushed.recv().expect("ends").expect("flushes");
    });
    while ftl.waits_for_space() {
        thread::sleep(Duration::from_millis(1));
    }
    write(&ftl, 9, 3).expect("goes on");
    ftl.close().expect("closes");
    drop(ftl);
    let ftl = Ftl::open(device, Options::default()).expect("opens");
    for (at, byte) in [(0, 0), (1, 4), (2, 1), (8, 2), (9, 3)] {
        holds(&ftl, at, byte);
    }
    assert!(ftl.check(CheckDepth::Payload).expect("checks").is_clean());
}
