//! A store as this crate left it before entries were packed (feature bit 1): batches, relocations and summaries
//! of the older kind, retained summaries among them, behind a checkpoint and not closed.
//!
//! `images/unpacked` is the device after [`history`], written by that older code, without runs of zeros: at each place
//! where there is something else, how many zeros are left out and how many bytes follow (u32 each), then these.

mod harness;

use std::sync::Arc;

use harness::{Change, Model, assert_sound, ops};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{FormatOptions, Ftl, Lba, Op, Options, Stream, Work};

const BYTES: u64 = 4 << 20;
const PAGE: u64 = 32;
const HOT: u64 = 6;
const COLD: u64 = 60;
const SECTORS: u64 = (HOT + COLD) * PAGE;
const FEATURES_AT: u64 = 16;

/// `sectors` that are stored whole and are next to nothing in the image.
fn data(sectors: u64, value: u64) -> Vec<u8> {
    let mut data = vec![0; sectors as usize * 512];
    *data.last_mut().unwrap() = value as u8 | 1;
    data
}

/// What was written: cold pages, some in parts and with holes; a checkpoint; hot ones, flushed one by one.
fn history(ftl: &Ftl) -> Model {
    let mut model = Model::new(SECTORS);
    let mut write = |changes: &[Change], stream| {
        ftl.write_batch(&ops(changes), stream).unwrap();
        model.apply(changes);
    };
    for page in 0..COLD {
        write(&[Change::Write((HOT + page) * PAGE, data(PAGE, page))], Stream::Data);
    }
    for page in (0..COLD).step_by(3) {
        let lba = (HOT + page) * PAGE;
        write(&[Change::Trim(lba + 20, 3), Change::Write(lba + 8, data(5, page + 7))], Stream::Log);
    }
    ftl.checkpoint().unwrap();
    for number in 0..150 {
        write(&[Change::Write(number % HOT * PAGE, data(PAGE, number))], Stream::Data);
        ftl.flush().unwrap();
        if number % 20 == 0 {
            let lba = (HOT + number % COLD) * PAGE;
            let parts = (0..4).map(|part| Change::Write(lba + part * 64, data(64, number)));
            write(&parts.collect::<Vec<_>>(), Stream::Data);
            ftl.step(Work::Gc).unwrap();
        }
    }
    ftl.flush().unwrap();
    model
}

fn options(read_only: bool) -> Options {
    Options { read_only, background: false, ..Options::default() }
}

fn older_store() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
    let (mut rest, mut at) = (&include_bytes!("images/unpacked")[..], 0);
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        at += number(0);
        let len = number(4);
        let mut blocks = lacuna_device::AlignedBuf::zeroed((at % 512 + len).next_multiple_of(512));
        let start = (at / 512 * 512) as u64;
        device.read_at(start, &mut blocks).unwrap();
        blocks[at % 512..][..len].copy_from_slice(&rest[8..8 + len]);
        device.write_at(start, &blocks).unwrap();
        (rest, at) = (&rest[8 + len..], at + len);
    }
    device
}

/// What [`history`] leaves behind by the code of today.
fn model() -> Model {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
    let format = FormatOptions { segment_bytes: Some(64 << 10), force: true, uuid: Some([7; 16]) };
    Ftl::format(device.clone(), &format).unwrap();
    history(&Ftl::open(device, options(false)).unwrap())
}

fn features(device: &dyn BlockDevice) -> u8 {
    let mut block = lacuna_device::AlignedBuf::zeroed(512);
    device.read_at(0, &mut block).unwrap();
    block[FEATURES_AT as usize]
}

fn count(device: &dyn BlockDevice, magic: &[u8; 4]) -> usize {
    let mut image = lacuna_device::AlignedBuf::zeroed(BYTES as usize);
    device.read_at(0, &mut image).unwrap();
    image.chunks_exact(16).filter(|grain| grain.starts_with(magic)).count()
}

#[test]
fn an_older_store_is_read_and_changed() {
    let (device, mut model) = (older_store(), model());
    assert!(count(&*device, b"LFOT") > 20 && count(&*device, b"LFOP") == 0);
    let ftl = Ftl::open(device.clone(), options(true)).unwrap();
    assert!(ftl.stats().replayed_batches > 100, "{:?}", ftl.stats());
    model.assert_same(&ftl);
    assert_sound(&ftl);
    drop(ftl);
    assert_eq!(features(&*device), 1, "who only reads changes nothing");

    let ftl = Ftl::open(device.clone(), options(false)).unwrap();
    assert_eq!(features(&*device), 3, "before anything is packed");
    model.assert_same(&ftl);
    // Old records are collected by their summaries, beside new ones.
    let mut number = 0;
    while count(&*device, b"LFOP") < 8 || number < 100 {
        let change = Change::Write(number % HOT * PAGE, data(PAGE, number + 99));
        ftl.write_batch(&[change.op()], Stream::Data).unwrap();
        model.apply(&[change]);
        number += 1;
        if number % 10 == 0 {
            ftl.step(Work::Gc).unwrap();
            assert_sound(&ftl);
        }
    }
    ftl.flush().unwrap();
    model.assert_same(&ftl);
    drop(ftl);
    let ftl = Ftl::open(device, options(false)).unwrap();
    model.assert_same(&ftl);
    assert_sound(&ftl);
    ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: SECTORS }], Stream::Data).unwrap();
}
