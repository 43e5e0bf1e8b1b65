//! Format version 1, as it was when this image was made: batches, relocations, summaries and retained ones, behind a
//! checkpoint and not closed. Every later version must read it.
//!
//! `images/version-1`, and `images/version-1-copies` of a store with copies of its superblock, are the device after
//! [`history`], `images/version-1-encrypted` that of an encrypted store after [`encrypted_store_of_today`], and
//! `images/version-1-encoded` after [`encoded_store_of_today`], as [`lacuna_sim::pack_image`] writes them. A later
//! version gets an image of its own, by `cargo test -p lacuna-ftl golden:: -- --ignored`; this one stays.

use std::sync::Arc;

use crate::harness::{Change, Model, assert_sound, ops};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{
    Algorithm, Codec, Encoded, FormatOptions, Ftl, Key, KeyChange, KeyCost, KeyOptions, KeySource, Lba,
    NewKey, Op, Options, Secret, Stream, Work,
};
use lacuna_sim::{pack_image, unpack_image};

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
    unpack_image(packed, BYTES)
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

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

fn with_key(text: &str, read_only: bool) -> Options {
    Options { key: Key::Secret(secret(text)), ..options(read_only) }
}

fn key_options(label: &str) -> KeyOptions {
    let cost = KeyCost { memory_kib: 64, passes: 2 };
    KeyOptions { source: KeySource::Passphrase, label: label.into(), cost }
}

/// A page of which little is stored, because ciphertext does not become shorter.
fn short(value: u64) -> Vec<u8> {
    let mut data = vec![0; PAGE as usize * 512];
    data[..40].fill(value as u8 | 1);
    data
}

/// An encrypted store that two secrets open: pages, holes in them, a checkpoint, more pages, some collected.
fn encrypted_store_of_today() -> (Arc<dyn BlockDevice>, Model) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
    let key = NewKey { secret: secret("correct horse"), slot: key_options("first") };
    let format = FormatOptions {
        segment_bytes: Some(64 << 10),
        uuid: Some([9; 16]),
        key: Some(key),
        ..FormatOptions::default()
    };
    Ftl::format(device.clone(), &format).unwrap();
    let (ftl, mut model) =
        (Ftl::open(device.clone(), with_key("correct horse", false)).unwrap(), Model::new(SECTORS));
    let mut write = |changes: &[Change]| {
        ftl.write_batch(&ops(changes), Stream::Data).unwrap();
        model.apply(changes);
    };
    for page in 0..COLD {
        write(&[Change::Write((HOT + page) * PAGE, short(page))]);
    }
    write(&[Change::Write(0, data(2 * PAGE, 77)), Change::Trim(20, 3), Change::Write(8, data(5, 3))]);
    ftl.checkpoint().unwrap();
    for number in 0..150 {
        write(&[Change::Write((2 + number % 4) * PAGE, short(number))]);
        ftl.flush().unwrap();
        if number % 20 == 0 {
            ftl.step(Work::Gc).unwrap();
        }
    }
    ftl.flush().unwrap();
    drop(ftl);
    let (new, options) = (secret("a key file"), key_options("second"));
    let add = KeyChange::Add { new: &new, options: &options };
    Ftl::change_keys(&*device, &secret("correct horse"), &add).unwrap();
    (device, model)
}

/// A store with encoded chunks, cut and moved, behind a checkpoint and in it.
fn encoded_store_of_today() -> (Arc<dyn BlockDevice>, Model) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(BYTES));
    let format =
        FormatOptions { segment_bytes: Some(64 << 10), uuid: Some([8; 16]), ..FormatOptions::default() };
    Ftl::format(device.clone(), &format).unwrap();
    let (ftl, mut model) = (Ftl::open(device.clone(), options(false)).unwrap(), Model::new(SECTORS));
    let mut write = |changes: &[Change]| {
        ftl.write_batch(&ops(changes), Stream::Data).unwrap();
        model.apply(changes);
    };
    let encoded = |page: u64, value: u64| {
        let data = (0..PAGE as usize * 512)
            .map(|at| (at / 400 * (1 + value as usize % 200)) as u8 | 1)
            .collect::<Vec<_>>();
        let algorithm = if value.is_multiple_of(2) { Algorithm::Lz4 } else { Algorithm::Zstd };
        Change::Encoded(Encoded::new(Lba(page * PAGE), data, Codec { algorithm, level: 0 }))
    };
    for page in 0..COLD {
        write(&[encoded(HOT + page, page)]);
        if page.is_multiple_of(3) {
            let lba = (HOT + page) * PAGE;
            write(&[Change::Trim(lba + 20, 3), Change::Write(lba, data(5, page + 7))]);
        }
    }
    ftl.checkpoint().unwrap();
    for number in 0..60 {
        write(&[Change::Write(number % HOT * PAGE, data(PAGE, number))]);
        write(&[encoded(HOT + number % COLD, number)]);
        ftl.flush().unwrap();
        if number % 20 == 0 {
            write(&[Change::Trim((HOT + number % COLD) * PAGE + 7, 4)]);
            ftl.step(Work::Gc).unwrap();
        }
    }
    ftl.flush().unwrap();
    drop(ftl);
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
    pack(&*store_of_today().0, "tests/images/version-new");
    pack(&*encrypted_store_of_today().0, "tests/images/version-new-encrypted");
    pack(&*encoded_store_of_today().0, "tests/images/version-new-encoded");
}

fn pack(device: &dyn BlockDevice, file: &str) {
    std::fs::write(file, pack_image(device)).unwrap();
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

#[test]
fn encoded_chunks_of_version_1_are_read_and_changed() {
    let device = golden_store(include_bytes!("images/version-1-encoded"));
    let (_, mut model) = encoded_store_of_today();
    let before = image(&*device);
    let ftl = Ftl::open(device.clone(), options(true)).unwrap();
    assert!(ftl.stats().replayed_batches > 100, "{:?}", ftl.stats());
    model.assert_same(&ftl);
    assert_sound(&ftl);
    drop(ftl);
    assert!(image(&*device)[..] == before[..], "who only reads changes nothing");
    let ftl = Ftl::open(device.clone(), options(false)).unwrap();
    for number in 0..200 {
        let change = Change::Write((HOT + number % COLD) * PAGE + 4, data(3, number + 99));
        ftl.write_batch(&[change.op()], Stream::Data).unwrap();
        model.apply(&[change]);
        if number % 10 == 0 {
            ftl.step(Work::Gc).unwrap();
            assert_sound(&ftl);
        }
    }
    ftl.close().unwrap();
    drop(ftl);
    let ftl = Ftl::open(device, options(false)).unwrap();
    model.assert_same(&ftl);
    assert_sound(&ftl);
}

#[test]
fn encrypted_stores_of_version_1_are_read_and_changed() {
    let (_, mut model) = encrypted_store_of_today();
    let device = golden_store(include_bytes!("images/version-1-encrypted"));
    let before = image(&*device);
    let labels: Vec<_> = Ftl::keys(&*device).unwrap().into_iter().map(|key| (key.slot, key.label)).collect();
    assert_eq!(labels, [(0, "first".into()), (1, "second".into())]);
    for text in ["correct horse", "a key file"] {
        let ftl = Ftl::open(device.clone(), with_key(text, true)).unwrap();
        model.assert_same(&ftl);
        assert_sound(&ftl);
    }
    for refused in [options(true), with_key("wrong", true)] {
        assert!(Ftl::open(device.clone(), refused).is_err());
    }
    assert!(image(&*device)[..] == before[..], "who only reads changes nothing");

    let ftl = Ftl::open(device.clone(), with_key("a key file", false)).unwrap();
    for number in 0..200 {
        let change = Change::Write(number % HOT * PAGE, data(PAGE, number + 99));
        ftl.write_batch(&[change.op()], Stream::Data).unwrap();
        model.apply(&[change]);
        if number % 10 == 0 {
            ftl.step(Work::Gc).unwrap();
        }
    }
    ftl.close().unwrap();
    let ftl = Ftl::open(device, with_key("correct horse", false)).unwrap();
    model.assert_same(&ftl);
    assert_sound(&ftl);
}
