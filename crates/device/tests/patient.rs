//! Writes that wait for the space of their host ([`Patient`]).

use std::{
    sync::{Arc, mpsc::channel},
    thread,
    time::Duration,
};

use lacuna_device::{AlignedBuf, BlockDevice, Error, Filled, Patient, WriteDone};
use lacuna_sim::FullHost;

fn full() -> (Arc<FullHost>, Patient) {
    let host = FullHost::new(1 << 20);
    host.set_full(true);
    let patient = Patient::new(Arc::clone(&host) as Arc<dyn BlockDevice>).unwrap();
    patient.has_opened();
    (host, patient)
}

fn filled(byte: u8) -> Filled {
    let mut buf = AlignedBuf::zeroed(4096);
    buf.fill(byte);
    Filled::from(buf)
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_write_waits_until_its_host_has_space() {
    let (host, patient) = full();
    assert!(matches!(patient.write_if_space(0, &filled(9)), Err(Error::Full { .. })));
    assert!(!patient.waits_for_space());
    thread::scope(|scope| {
        let one = scope.spawn(|| patient.write_at(0, &filled(1)));
        let many = scope.spawn(|| patient.write_many(&[(4096, filled(2)), (8192, filled(3))]));
        wait_until(|| host.writes() >= 6);
        assert!(patient.waits_for_space() && !one.is_finished() && !many.is_finished());
        host.set_full(false);
        one.join().unwrap().unwrap();
        many.join().unwrap().unwrap();
    });
    assert!(!patient.waits_for_space());
    for (offset, byte) in [(0, 1), (4096, 2), (8192, 3)] {
        let mut back = vec![0; 4096];
        patient.read_at(offset, &mut back).unwrap();
        assert!(back.iter().all(|found| *found == byte), "{byte}");
    }
}

/// Invariant 6.
#[test]
fn who_opens_a_store_is_told_and_what_waits_then_waits_on() {
    let host = FullHost::new(1 << 20);
    host.set_full(true);
    let patient = Patient::new(Arc::clone(&host) as Arc<dyn BlockDevice>).unwrap();
    assert!(matches!(patient.write_at(0, &filled(1)), Err(Error::Full { .. })));
    thread::scope(|scope| {
        let waits = scope.spawn(|| patient.write_at(0, &filled(2)));
        wait_until(|| patient.waits_for_space());
        patient.has_opened();
        let before = host.writes();
        // Longer than it waits before that.
        wait_until(|| host.writes() >= before + 40);
        assert!(!waits.is_finished());
        host.set_full(false);
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn a_write_that_nobody_waits_for_is_tried_again_elsewhere() {
    let (host, patient) = full();
    let (sender, ended) = channel();
    for byte in 0..4 {
        let sender = sender.clone();
        let done: WriteDone = Box::new(move |outcome, data| sender.send((outcome, data[0])).unwrap());
        patient.submit_write(u64::from(byte) * 4096, filled(byte), done);
    }
    wait_until(|| host.writes() >= 6);
    assert!(patient.waits_for_space());
    assert!(ended.try_recv().is_err(), "none has ended");
    host.set_full(false);
    for _ in 0..4 {
        let (outcome, byte) = ended.recv().unwrap();
        outcome.unwrap();
        let mut back = vec![0; 4096];
        patient.read_at(u64::from(byte) * 4096, &mut back).unwrap();
        assert!(back.iter().all(|found| *found == byte), "{byte}");
    }
    assert!(!patient.waits_for_space());
}

#[test]
fn the_device_ends_with_its_last_write() {
    let (host, patient) = full();
    let (sender, ended) = channel();
    patient.submit_write(0, filled(1), Box::new(move |outcome, _| sender.send(outcome).unwrap()));
    wait_until(|| patient.waits_for_space());
    let later = Arc::clone(&host);
    let space = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        later.set_full(false);
    });
    drop(patient);
    ended.try_recv().expect("it has ended").unwrap();
    space.join().unwrap();
}

#[test]
fn waiting_ends_when_it_is_stopped() {
    let (host, patient) = full();
    let (sender, ended) = channel();
    patient.submit_write(0, filled(1), Box::new(move |outcome, _| sender.send(outcome).unwrap()));
    thread::scope(|scope| {
        let one = scope.spawn(|| patient.write_at(4096, &filled(2)));
        let many = scope.spawn(|| patient.write_many(&[(8192, filled(3))]));
        wait_until(|| host.writes() >= 6);
        assert!(patient.waits_for_space());
        patient.stop_waiting();
        for outcome in [one.join().unwrap(), many.join().unwrap(), ended.recv().unwrap()] {
            assert!(matches!(outcome, Err(Error::Full { .. })), "{outcome:?}");
        }
    });
    assert!(!patient.waits_for_space());
    assert!(matches!(patient.write_at(0, &filled(1)), Err(Error::Full { .. })));
    host.set_full(false);
    patient.write_at(0, &filled(1)).unwrap();
}

#[test]
fn other_failures_are_reported_at_once() {
    let (host, patient) = full();
    host.set_full(false);
    assert!(matches!(patient.write_at(1 << 20, &filled(1)), Err(Error::BadRange { .. })));
    assert!(!patient.waits_for_space());
}
