//! Damaged, foreign and strange stores: an error or the right data; never a panic, never wrong data.

mod history;

use std::{fs, sync::Arc};

use history::{Model, apply, random_change};
use lacuna_device::{
    BlockDevice, Error as DeviceError, MemDevice, Place, SimDevice, StreamHint,
    sim::{SeededRng, for_each_seed},
};
use lacuna_ftl::{self as ftl, Lba, Op, Stream};
use lacuna_nvmfs::{
    CheckDepth, Error, FormatOptions, Nvmfs, OpenedPlace, Options, PlaceOptions, format_path, open_place,
};

fn inode_lba(ino: u64) -> Lba {
    Lba((1 << 36) + ino)
}

fn small_format() -> FormatOptions {
    let mut options = FormatOptions { uuid: Some([3; 16]), ..FormatOptions::default() };
    options.ftl.segment_bytes = Some(64 << 10);
    options
}

fn sim(seed: u64) -> (Arc<SimDevice>, Arc<dyn BlockDevice>) {
    let device = SimDevice::new(4 << 20, seed);
    let raw: Arc<dyn BlockDevice> = device.clone();
    Nvmfs::format(Arc::clone(&raw), &small_format()).unwrap();
    (device, raw)
}

/// Compares all that can be read with the model. True if there was no error.
fn reads_right_or_fails(place: &Nvmfs, model: &Model) -> bool {
    let mut is_whole = true;
    for (name, content) in &model.0 {
        let file = match place.open(name, StreamHint::Data) {
            Ok(file) => file,
            Err(error) => {
                assert!(!matches!(error, DeviceError::NotFound { .. }), "{name} vanished");
                is_whole = false;
                continue;
            }
        };
        assert_eq!(file.len().unwrap(), content.len() as u64, "{name}");
        for (index, sector) in content.chunks(512).enumerate() {
            let mut back = [0; 512];
            match file.read_at(index as u64 * 512, &mut back) {
                Ok(()) => assert_eq!(back, sector, "{name}, sector {index}: wrong data"),
                Err(_) => is_whole = false,
            }
        }
    }
    match place.list() {
        Ok(names) => assert!(!is_whole || names.len() == model.0.len()),
        Err(_) => is_whole = false,
    }
    is_whole
}

#[test]
fn flipped_bits_are_errors_or_harmless() {
    for_each_seed(150, |seed| {
        let mut rng = SeededRng::new(seed);
        let (device, raw) = sim(seed);
        let place = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
        let mut model = Model::default();
        for _ in 0..40 {
            let change = random_change(&mut rng, &model);
            if let (Ok(()), Ok(after)) = (apply(&place, &change), model.after(&change)) {
                model = after;
            }
        }
        let written = place.ftl().stats().store_bytes.min(4 << 20);
        place.close().unwrap();
        drop(place);
        for _ in 0..=rng.below(4) {
            let within = if rng.chance(70) { written } else { 4 << 20 };
            device.flip_bit(rng.below(within), rng.below(8) as u8);
        }
        let Ok(place) = Nvmfs::open(raw, Options::default()) else { return };
        let is_clean = place.check(CheckDepth::Payload).is_ok_and(|report| report.is_clean());
        let is_whole = reads_right_or_fails(&place, &model);
        assert!(is_whole || !is_clean, "the check saw nothing, a read did");
    });
}

#[test]
fn a_damaged_inode_is_an_error_and_a_finding() {
    let (_, raw) = sim(1);
    let place = Nvmfs::open(raw, Options::default()).unwrap();
    place.create("a", StreamHint::Data).unwrap();
    place.create("b", StreamHint::Data).unwrap();
    let garbage = Op::Write { lba: inode_lba(16), data: &[0xa5; 512] };
    place.ftl().write_batch(&[garbage], Stream::Data).unwrap();
    let error = place.open("a", StreamHint::Data).err().unwrap();
    assert!(matches!(error, DeviceError::Corrupt { .. }), "{error}");
    place.open("b", StreamHint::Data).unwrap();
    let report = place.check(CheckDepth::Structure).unwrap();
    assert!(report.findings[0].message.contains("inode table at sector 16"), "{:?}", report.findings);
}

/// Each way to break an invariant is found by the check.
#[test]
fn broken_invariants_are_found() {
    type Break<'a> = (&'a str, &'a dyn Fn(&Nvmfs));
    let breaks: [Break<'_>; 5] = [
        ("has 0 names", &|place| {
            let names = place.ftl().mapped(Lba(2 << 36)..Lba(3 << 36)).unwrap().unwrap();
            trim(place, names.start, 1);
        }),
        ("has no inode", &|place| trim(place, inode_lba(16), 1)),
        ("past its end", &|place| write(place, Lba((16 << 36) + 100))),
        ("and no inode", &|place| write(place, Lba(99 << 36))),
        ("behind all files", &|place| write(place, Lba(u64::MAX - 10))),
    ];
    for (expected, break_it) in breaks {
        let (_, raw) = sim(1);
        let place = Nvmfs::open(raw, Options::default()).unwrap();
        place.create("a", StreamHint::Data).unwrap().write_at(0, &[1; 4096]).unwrap();
        assert!(place.check(CheckDepth::Payload).unwrap().is_clean());
        break_it(&place);
        let report = place.check(CheckDepth::Payload).unwrap();
        let is_found = report.findings.iter().any(|finding| finding.message.contains(expected));
        assert!(is_found, "{expected:?} is not among {:?}", report.findings);
    }
}

fn trim(place: &Nvmfs, lba: Lba, sectors: u64) {
    place.ftl().write_batch(&[Op::Trim { lba, sectors }], Stream::Data).unwrap();
}

fn write(place: &Nvmfs, lba: Lba) {
    place.ftl().write_batch(&[Op::Write { lba, data: &[1; 512] }], Stream::Data).unwrap();
}

#[test]
fn a_store_without_file_system_is_refused() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(32 << 20));
    assert!(matches!(Nvmfs::open(Arc::clone(&device), Options::default()), Err(Error::Ftl(_))));
    ftl::Ftl::format(Arc::clone(&device), &ftl::FormatOptions::default()).unwrap();
    let error = Nvmfs::open(Arc::clone(&device), Options::default()).err().unwrap();
    assert!(matches!(error, Error::NotAFileSystem { .. }), "{error}");
    let error = Nvmfs::format(device, &FormatOptions::default()).err().unwrap();
    assert!(matches!(error, Error::Ftl(ftl::Error::NotEmpty { .. })), "{error}");
}

fn opened_error(path: &std::path::Path, options: &PlaceOptions) -> String {
    open_place(path, options).err().expect("it opened").to_string()
}

#[test]
fn paths_become_places_or_one_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let named = |error: String, cause: &str| {
        assert!(error.contains(path.to_str().unwrap()) && error.contains(cause), "{error}");
        assert!(!error.contains('\n'), "{error}");
    };
    named(opened_error(&path, &PlaceOptions::default()), "No such file");

    let options = PlaceOptions { create_size: Some(32 << 20), ..PlaceOptions::default() };
    let opened = open_place(&path, &options).unwrap();
    let place = opened.place();
    place.create("a", StreamHint::Data).unwrap().write_at(0, &[8; 4096]).unwrap();
    named(opened_error(&path, &options), "in use by another process");
    opened.close().unwrap();
    drop((opened, place));

    // An existing store is opened, whatever size was asked for; and never formatted by accident.
    let opened = open_place(&path, &options).unwrap();
    assert!(matches!(opened, OpenedPlace::Store(_)));
    assert_eq!(opened.place().list().unwrap(), ["a"]);
    drop(opened);
    named(
        format_path(&path, Some(64 << 20), &FormatOptions::default()).err().unwrap().to_string(),
        "not empty",
    );
    named(format_path(&path, None, &FormatOptions::default()).err().unwrap().to_string(), "not empty");
    let mut force = FormatOptions::default();
    force.ftl.force = true;
    format_path(&path, Some(64 << 20), &force).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 << 20);
    assert!(open_place(&path, &options).unwrap().place().list().unwrap().is_empty());

    for foreign in [&b""[..], b"#!/bin/sh\necho precious\n", &[0x42; 1 << 20]] {
        fs::write(&path, foreign).unwrap();
        named(opened_error(&path, &options), "");
        assert!(format_path(&path, None, &FormatOptions::default()).is_err());
        if !foreign.is_empty() {
            let error = format_path(&path, Some(32 << 20), &FormatOptions::default()).err().unwrap();
            named(error.to_string(), "not empty");
        }
        assert_eq!(fs::read(&path).unwrap(), foreign, "a foreign file was touched");
    }
    fs::write(&path, b"").unwrap();
    format_path(&path, Some(32 << 20), &FormatOptions::default()).unwrap();

    // A truncated store.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    named(opened_error(&path, &options), "");

    let opened = open_place(directory.path(), &options).unwrap();
    assert!(matches!(opened, OpenedPlace::Directory(_)));
}

#[test]
fn a_store_opened_read_only_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let read_only = PlaceOptions { read_only: true, ..PlaceOptions::default() };
    for is_closed in [true, false] {
        let _ = fs::remove_file(&path);
        let options = PlaceOptions { create_size: Some(32 << 20), ..PlaceOptions::default() };
        let opened = open_place(&path, &options).unwrap();
        let file = opened.place().create("a", StreamHint::Data).unwrap();
        file.write_at(0, &[8; 4096]).unwrap();
        file.sync().unwrap();
        if is_closed {
            opened.close().unwrap();
        }
        drop((file, opened));

        let bytes = fs::read(&path).unwrap();
        let opened = open_place(&path, &read_only).unwrap();
        let place = opened.place();
        let file = place.open("a", StreamHint::Data).unwrap();
        let mut back = [0; 4096];
        file.read_at(0, &mut back).unwrap();
        assert_eq!(back, [8; 4096]);
        for result in [
            file.write_at(0, &[9; 512]),
            file.set_len(0),
            place.create("b", StreamHint::Data).map(drop),
            place.remove("a"),
            place.rename("a", "b"),
        ] {
            assert!(matches!(result, Err(DeviceError::Unsupported { .. })), "{result:?}");
        }
        let OpenedPlace::Store(store) = &opened else { panic!("not a store") };
        assert!(store.check(CheckDepth::Payload).unwrap().is_clean());
        opened.close().unwrap();
        drop((file, place, opened));
        assert!(fs::read(&path).unwrap() == bytes, "closed before: {is_closed}");
    }
    let missing = directory.path().join("missing");
    assert!(open_place(&missing, &PlaceOptions { create_size: Some(32 << 20), ..read_only }).is_err());
    assert!(!missing.exists());
}

#[test]
fn a_failed_creation_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    for size in [0, 4097, 8192] {
        let options = PlaceOptions { create_size: Some(size), ..PlaceOptions::default() };
        assert!(open_place(&path, &options).is_err());
        assert!(!path.exists(), "{size}");
        assert!(format_path(&path, Some(size), &FormatOptions::default()).is_err());
        assert!(!path.exists(), "{size}");
    }
}

#[test]
fn a_failed_device_stops_writes_and_loses_nothing_synced() {
    let (device, raw) = sim(1);
    let place = Nvmfs::open(Arc::clone(&raw), Options::default()).unwrap();
    let file = place.create("a", StreamHint::Data).unwrap();
    file.write_at(0, &[1; 4096]).unwrap();
    place.sync().unwrap();
    file.write_at(0, &[2; 4096]).unwrap();
    device.fail_sync();
    assert!(place.sync().is_err());
    device.heal();
    let error = place.sync().err().unwrap();
    assert!(matches!(error, DeviceError::Poisoned { .. }), "{error}");
    assert!(file.write_at(0, &[3; 4096]).is_err());
    drop((file, place));
    device.power_cycle();
    let place = Nvmfs::open(raw, Options::default()).unwrap();
    let mut back = [0; 4096];
    place.open("a", StreamHint::Data).unwrap().read_at(0, &mut back).unwrap();
    assert!(back == [1; 4096] || back == [2; 4096]);
}
