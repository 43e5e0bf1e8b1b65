//! Format version 1, as it was when this image was made: batches, relocations, summaries and retained ones, behind a
//! checkpoint and not closed. Every later version must read it.
//!
//! `images/version-1`, and `images/version-1-copies` of a store with copies of its superblock, are the device after
//! [`history`], without runs of zeros: for each run of other bytes, how many
//! zeros are left out before it and how many bytes follow (u32 each), then those bytes. A later version gets an image
//! of its own, by `cargo test -p lacuna-ftl --test golden -- --ignored`; this one stays.

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

/// `sectors` that are stored whole but take almost nothing in the image.
fn data(sectors: u64, value: u64) -> Vec<u8> {
    let mut data = vec![0; sectors as usize * 512];
    *data.last_mut().unwrap() = value as u8 | 1;
    data
}

/// Writes cold pages, some in parts and with holes; a checkpoint; hot pages, flushed one by one.
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

const IMAGES: [&[u8]; 2] = [include_bytes!("images/version-1"), include_bytes!("images/version-1-copies")];

fn golden_store(packed: &[u8]) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
    let (mut rest, mut at) = (packed, 0);
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

/// The store that [`history`] leaves behind with the current code.
fn store_of_today() -> (Arc<dyn BlockDevice>, Model) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
    let format = FormatOptions {
        segment_bytes: Some(64 << 10),
        force: true,
        uuid: Some([7; 16]),
        ..FormatOptions::default()
    };
    Ftl::format(device.clone(), &format).unwrap();
    let model = history(&Ftl::open(device.clone(), options(false)).unwrap());
    (device, model)
}

fn image(device: &dyn BlockDevice) -> lacuna_device::AlignedBuf {
    let mut image = lacuna_device::AlignedBuf::zeroed(BYTES as usize);
    device.read_at(0, &mut image).unwrap();
    image
}

/// How many of the 16-byte grains of the device begin with `start`.
fn count(device: &dyn BlockDevice, start: &[u8]) -> usize {
    image(device).chunks_exact(16).filter(|grain| grain.starts_with(start)).count()
}

fn retained_summaries(device: &dyn BlockDevice) -> usize {
    image(device).chunks_exact(16).filter(|grain| grain.starts_with(b"LREC") && grain[8] == 7).count()
}

#[test]
#[ignore = "writes an image of the format of today"]
fn make_an_image() {
    let (device, _) = store_of_today();
    let image = image(&*device);
    let (mut packed, mut end) = (Vec::new(), 0);
    while let Some(zeros) = image[end..].iter().position(|byte| *byte != 0) {
        let start = end + zeros;
        // Few zeros are cheaper than another run.
        let len =
            image[start..].windows(16).position(|bytes| bytes == [0; 16]).unwrap_or(image.len() - start);
        packed.extend_from_slice(&(zeros as u32).to_le_bytes());
        packed.extend_from_slice(&(len as u32).to_le_bytes());
        packed.extend_from_slice(&image[start..start + len]);
        end = start + len;
    }
    std::fs::write("tests/images/version-new", packed).unwrap();
}

#[test]
fn stores_of_version_1_are_read_and_changed() {
    IMAGES.iter().for_each(|packed| read_and_change(packed));
}

fn read_and_change(packed: &[u8]) {
    let (device, (_, mut model)) = (golden_store(packed), store_of_today());
    assert!(count(&*device, b"LFOP") > 20 && retained_summaries(&*device) > 0);
    let before = image(&*device);
    let ftl = Ftl::open(device.clone(), options(true)).unwrap();
    assert!(ftl.stats().replayed_batches > 100, "{:?}", ftl.stats());
    model.assert_same(&ftl);
    assert_sound(&ftl);
    drop(ftl);
    assert!(image(&*device)[..] == before[..], "who only reads changes nothing");

    let ftl = Ftl::open(device.clone(), options(false)).unwrap();
    model.assert_same(&ftl);
    // Old records are collected by their summaries, beside new ones.
    for number in 0..200 {
        let change = Change::Write(number % HOT * PAGE, data(PAGE, number + 99));
        ftl.write_batch(&[change.op()], Stream::Data).unwrap();
        model.apply(&[change]);
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
