//! Encrypted stores: no plaintext reaches the device, everything but reading and writing works without the key, and
//! keys change atomically, in all places. The crash matrix (`crash`) runs on encrypted stores half of the time.

use std::{ops::ControlFlow, sync::Arc};

use crate::harness::{Change, Model, SEGMENT_BYTES, assert_sound, changes, ops};
use lacuna_device::{AlignedBuf, BlockDevice, DeviceStats, Geometry, LogDevice, MappedMemory, MemDevice};
use lacuna_ftl::{
    Error, FormatOptions, Ftl, Key, KeyChange, KeyCost, KeyError, KeyOptions, Lba, NewKey, Op, Options,
    Secret, Stream, Work,
};
use lacuna_sim::{SeededRng, SimDevice, for_each_seed};
use parking_lot::Mutex;

const BYTES: u64 = 4 << 20;
const SECTORS: u64 = 3000;
/// Does not occur by chance, and stands in each 16 bytes of what it marks.
const MARK: &[u8; 16] = b"Lacuna's secret.";

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

fn cheap() -> KeyOptions {
    KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() }
}

/// A new store on a device of its own, which the secret `one` opens.
fn store(seed: u64) -> (Arc<SimDevice>, Arc<dyn BlockDevice>) {
    let sim = SimDevice::with_block_bytes(BYTES, [512, 4096][seed as usize % 2], seed);
    let device: Arc<dyn BlockDevice> = sim.clone();
    format(&device, Some("one"), None);
    (sim, device)
}

fn format(device: &Arc<dyn BlockDevice>, key: Option<&str>, capacity_bytes: Option<u64>) {
    let key = key.map(|text| NewKey { secret: secret(text), slot: cheap() });
    let segment_bytes = Some(SEGMENT_BYTES);
    let options =
        FormatOptions { segment_bytes, force: true, key, capacity_bytes, ..FormatOptions::default() };
    Ftl::format(device.clone(), &options).unwrap();
}

fn try_open(device: &Arc<dyn BlockDevice>, key: Key) -> Result<Ftl, Error> {
    Ftl::open(device.clone(), Options { key, ..Options::default() })
}

fn open(device: &Arc<dyn BlockDevice>, text: &str) -> Ftl {
    try_open(device, Key::Secret(secret(text))).unwrap()
}

fn opens(device: &Arc<dyn BlockDevice>, text: &str) -> bool {
    match try_open(device, Key::Secret(secret(text))) {
        Ok(_) => true,
        Err(Error::Key { reason: KeyError::WrongKey { .. }, .. }) => false,
        Err(error) => panic!("{text}: {error}"),
    }
}

fn image(device: &Arc<dyn BlockDevice>) -> AlignedBuf {
    let mut image = AlignedBuf::zeroed(device.geometry().capacity_bytes as usize);
    device.read_at(0, &mut image).unwrap();
    image
}

/// Where `bytes` lie on the device.
fn found(device: &Arc<dyn BlockDevice>, bytes: &[u8]) -> Vec<usize> {
    let image = image(device);
    let starts = image.iter().enumerate().filter(|(_, byte)| **byte == bytes[0]);
    starts.map(|(at, _)| at).filter(|at| image[*at..].starts_with(bytes)).collect()
}

fn key_blocks(device: &Arc<dyn BlockDevice>) -> Vec<usize> {
    found(device, b"LACUNAKY")
}

fn fill(device: &Arc<dyn BlockDevice>, at: u64, len: u64, byte: u8) {
    let mut bytes = AlignedBuf::zeroed(len as usize);
    bytes.fill(byte);
    device.write_at(at, &bytes).unwrap();
    device.sync().unwrap();
}

/// Batches of which every write consists of the mark, but for zeros at its end.
fn marked(rng: &mut SeededRng) -> Vec<Change> {
    let mut changes = changes(rng, SECTORS);
    for change in &mut changes {
        if let Change::Write(_, data) = change {
            let end = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            data[..end].iter_mut().zip(MARK.iter().cycle()).for_each(|(byte, mark)| *byte = *mark);
        }
    }
    changes
}

/// Works on a store until its log has wrapped, with collection, checkpoints, power cuts and reopens.
fn work(sim: &SimDevice, device: &Arc<dyn BlockDevice>, key: &Key, rng: &mut SeededRng) -> Model {
    let mut model = Model::new(SECTORS);
    for round in 0..6 {
        let ftl = try_open(device, key.clone()).unwrap();
        model.assert_same(&ftl);
        for _ in 0..150 {
            let batch = marked(rng);
            let stream = if rng.chance(30) { Stream::Log } else { Stream::Data };
            match ftl.write_batch(&ops(&batch), stream) {
                Ok(_) => model.apply(&batch),
                Err(Error::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            if rng.chance(20) {
                ftl.step(Work::Gc).unwrap();
            }
        }
        ftl.flush().unwrap();
        model.assert_same(&ftl);
        assert!(round == 0 || ftl.stats().gc_bytes > 0);
        if round % 2 == 0 {
            ftl.close().unwrap();
        } else {
            drop(ftl);
            sim.set_cut_after(0);
            sim.power_cycle();
        }
    }
    model
}

#[test]
fn nothing_of_a_marked_workload_lies_on_the_device() {
    for_each_seed(6, |seed| {
        let (sim, device) = store(seed);
        work(&sim, &device, &Key::Secret(secret("one")), &mut SeededRng::new(seed));
        let places = found(&device, &MARK[..8]);
        assert!(places.is_empty(), "plaintext at byte {} and {} other places", places[0], places.len() - 1);
        // Nor does the search miss what is there.
        format(&device, None, None);
        work(&sim, &device, &Key::None, &mut SeededRng::new(seed));
        assert!(found(&device, &MARK[..8]).len() > 1000);
    });
}

/// Every read there is, of fragments, parts of sectors and holes, in place and piece by piece.
#[test]
fn all_ways_of_reading_decrypt() {
    let (sim, device) = store(2);
    let model = work(&sim, &device, &Key::Secret(secret("one")), &mut SeededRng::new(2));
    let ftl = open(&device, "one");
    let all = Lba(0)..Lba(SECTORS);
    let same = |lba: Lba, data: &[u8]| assert!(data == model.sector(lba.0), "sector {}", lba.0);
    let sectors = ftl.mapped_sectors(all.clone(), 1 << 20).unwrap();
    assert!(sectors.len() > 1000);
    ftl.read_sectors(&sectors).unwrap().iter().for_each(|(lba, data)| same(*lba, data));
    let mut visited = Vec::new();
    ftl.visit_sectors(&sectors, |lba, data| {
        same(lba, data.unwrap());
        visited.push(lba);
    })
    .unwrap();
    visited.sort_unstable();
    assert_eq!(visited, sectors);
    let ranges = |at: Lba| (at < all.end).then_some(at..all.end);
    let mut swept = Vec::new();
    ftl.sweep_sectors(ranges, 64, |lba, data| {
        same(lba, data.unwrap());
        swept.push(lba);
    })
    .unwrap();
    swept.sort_unstable();
    swept.dedup();
    assert_eq!(swept, sectors);
    for remains in [
        ftl.read_mapped(all.clone(), usize::MAX).unwrap(),
        ftl.read_past_damage(all.clone(), usize::MAX).unwrap().mapped,
    ] {
        for (start, data) in remains.runs {
            (start.0..).zip(data.chunks(512)).for_each(|(lba, data)| same(Lba(lba), data));
        }
    }
    // Large aligned writes are read in place.
    let mut page = AlignedBuf::zeroed(128 << 10);
    page.iter_mut().zip(MARK.iter().cycle()).for_each(|(byte, mark)| *byte = *mark);
    ftl.write_batch(&[Op::Write { lba: Lba(1 << 20), data: &page }], Stream::Data).unwrap();
    ftl.flush().unwrap();
    let mut back = AlignedBuf::zeroed(page.len());
    ftl.read(Lba(1 << 20), &mut back).unwrap();
    assert!(back[..] == page[..]);
}

#[test]
fn without_the_key_a_store_is_collected_trimmed_checked_and_scrubbed() {
    let (sim, device) = store(4);
    let mut model = work(&sim, &device, &Key::Secret(secret("one")), &mut SeededRng::new(4));
    let ftl = try_open(&device, Key::Locked).unwrap();
    let is_locked = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Locked { .. })));
    is_locked(ftl.read(Lba(0), &mut [0; 512]));
    is_locked(ftl.read_sectors(&[Lba(0)]).map(drop));
    is_locked(ftl.read_mapped(Lba(0)..Lba(9), 1).map(drop));
    is_locked(ftl.visit_sectors(&[Lba(0)], |_, _| {}));
    is_locked(ftl.write_batch(&[Op::Write { lba: Lba(0), data: &[1; 512] }], Stream::Data).map(drop));
    let trim = Change::Trim(40, 200);
    ftl.write_batch(&[trim.op()], Stream::Data).unwrap();
    model.apply(&[trim]);
    for _ in 0..200 {
        ftl.step(Work::Gc).unwrap();
    }
    assert!(ftl.stats().gc_bytes > 100_000);
    assert_sound(&ftl);
    let scrub = ftl.scrub(|_| ControlFlow::Continue(())).unwrap();
    assert!(scrub.is_complete && scrub.damage.is_empty() && scrub.verified_bytes > 100_000);
    ftl.close().unwrap();
    let ftl = open(&device, "one");
    model.assert_same(&ftl);
    assert_sound(&ftl);
}

#[test]
fn what_keeps_a_store_closed_is_said_in_one_line() {
    let said = |device: &Arc<dyn BlockDevice>, key| {
        let message = try_open(device, key).map(drop).unwrap_err().to_string();
        let salvaged = Ftl::salvage(device.clone(), Options::default());
        assert!(salvaged.is_err() || !message.contains("encrypted: a key"), "salvage needs a key too");
        message.strip_prefix(device.name()).expect("it begins with the device").to_owned()
    };
    let (_, device) = store(6);
    assert_eq!(said(&device, Key::None), ": the store is encrypted: a key is needed");
    assert_eq!(said(&device, Key::Secret(secret("two"))), ": wrong key: it opens none of 1 key slots");
    for at in key_blocks(&device) {
        fill(&device, at as u64 + 512, 512, 7);
    }
    let damaged = said(&device, Key::Secret(secret("one")));
    assert!(
        damaged.starts_with(
            ", key block at byte 16384: corrupt: none of its copies can be read, and without it no data can"
        ) && damaged.contains("checksum does not match")
            && !damaged.contains('\n'),
        "{damaged}"
    );
    assert!(try_open(&device, Key::Locked).is_ok());
    format(&device, None, None);
    assert_eq!(key_blocks(&device), [0; 0], "format leaves no key block");
    let plain = said(&device, Key::Secret(secret("one")));
    assert_eq!(plain, ": a key was given, but the store is not encrypted");
    assert!(matches!(Ftl::keys(&*device), Err(Error::NotEncrypted { .. })));
}

/// Each copy alone is enough, wherever a wipe begins; opening restores the others.
#[test]
fn a_key_block_survives_a_wipe_of_either_end() {
    let (sim, device) = store(8);
    let model = work(&sim, &device, &Key::Secret(secret("one")), &mut SeededRng::new(8));
    let places = key_blocks(&device);
    assert_eq!(places, [16 << 10, 48 << 10, (2 << 20) + (16 << 10), BYTES as usize - (48 << 10)]);
    for kept in &places {
        for at in places.iter().filter(|at| *at != kept) {
            fill(&device, *at as u64, 4096, 0);
        }
        model.assert_same(&open(&device, "one"));
        assert_eq!(key_blocks(&device), places);
    }
    fill(&device, 0, 64 << 10, 0);
    model.assert_same(&open(&device, "one"));
    assert_eq!(key_blocks(&device), places);
    // Where the slots are wiped and key blocks are left, nothing else has taken their place.
    fill(&device, 0, 4096, 0);
    fill(&device, 32 << 10, 4096, 0);
    let ftl = open(&device, "one");
    model.assert_same(&ftl);
    let scrub = ftl.scrub(|_| ControlFlow::Continue(())).unwrap();
    assert!(scrub.damage.is_empty());
    fill(&device, places[2] as u64, 4096, 9);
    let scrub = ftl.scrub(|_| ControlFlow::Continue(())).unwrap();
    assert_eq!(scrub.damage.len(), 1, "{:?}", scrub.damage);
}

#[test]
fn a_key_of_another_store_opens_nothing() {
    let (_, device) = store(10);
    let (_, other) = store(12);
    let theirs = image(&other);
    for at in key_blocks(&device) {
        let mut block = AlignedBuf::zeroed(4096);
        block.copy_from_slice(&theirs[at..at + 4096]);
        device.write_at(at as u64, &block).unwrap();
    }
    let error = try_open(&device, Key::Secret(secret("one"))).map(drop).unwrap_err().to_string();
    assert!(error.contains("of another store"), "{error}");
}

/// A change of the keys, cut in each of its operations in turn.
#[test]
fn any_cut_in_a_change_of_keys_leaves_the_old_or_the_new_ones() {
    for_each_seed(60, |seed| {
        let (sim, device) = store(seed);
        let model = {
            let (ftl, mut model) = (open(&device, "one"), Model::new(SECTORS));
            let batch = marked(&mut SeededRng::new(seed));
            ftl.write_batch(&ops(&batch), Stream::Data).unwrap();
            model.apply(&batch);
            ftl.close().unwrap();
            model
        };
        let (new, options) = (secret("new"), cheap());
        let add = KeyChange::Add { new: &new, options: &options };
        if seed % 3 == 1 {
            Ftl::change_keys(&*device, &secret("one"), &add).unwrap();
        }
        let (change, before, after) = match seed % 3 {
            0 => (add, [true, false], [true, true]),
            1 => (KeyChange::Remove { slot: 1 }, [true, true], [true, false]),
            _ => (KeyChange::Rotate { new: &new, options: &options }, [true, false], [false, true]),
        };
        let opened = |device: &Arc<dyn BlockDevice>| ["one", "new"].map(|text| opens(device, text));
        for cut in 1.. {
            let fork = sim.fork(seed * 100 + cut);
            let device: Arc<dyn BlockDevice> = fork.clone();
            fork.set_cut_after(cut);
            let changed = Ftl::change_keys(&*device, &secret("one"), &change);
            fork.set_cut_after(0);
            fork.power_cycle();
            // Another cut, in the opening that completes the change.
            fork.set_cut_after(1 + cut % 5);
            let _ = try_open(&device, Key::Locked);
            fork.set_cut_after(0);
            fork.power_cycle();
            let now = opened(&device);
            assert!(now == after || (now == before && changed.is_err()), "{now:?}, cut {cut}");
            let ftl = open(&device, if now[0] { "one" } else { "new" });
            model.assert_same(&ftl);
            let scrub = ftl.scrub(|_| ControlFlow::Continue(())).unwrap();
            assert!(scrub.damage.is_empty(), "{:?}", scrub.damage);
            drop(ftl);
            // Whichever copy is left, it leads to the same keys.
            let places = key_blocks(&device);
            assert_eq!(places.len(), 4);
            for at in places.iter().filter(|at| **at != places[cut as usize % 4]) {
                fill(&device, *at as u64, 4096, 0);
            }
            assert_eq!(opened(&device), now);
            if changed.is_ok() {
                break;
            }
        }
    });
}

/// A device at its worst: of every write that was not synced, a power cut leaves the first sector.
struct Tearing {
    cached: MemDevice,
    durable: MemDevice,
    pending: Mutex<Vec<(u64, AlignedBuf)>>,
    /// Writes and syncs until the power fails.
    left: Mutex<u64>,
}

impl Tearing {
    fn of(image: &AlignedBuf, left: u64) -> Tearing {
        let [cached, durable] = [0; 2].map(|_| MemDevice::new(image.len() as u64));
        cached.write_at(0, image).unwrap();
        durable.write_at(0, image).unwrap();
        Tearing { cached, durable, pending: Mutex::default(), left: Mutex::new(left) }
    }

    fn changes(&self) -> lacuna_device::Result<()> {
        let mut left = self.left.lock();
        *left = left.checked_sub(1).ok_or(lacuna_device::Error::PowerCut)?;
        Ok(())
    }

    /// What is there after the power cut.
    fn cut(self) -> MemDevice {
        for (at, data) in self.pending.into_inner() {
            self.durable.write_at(at, &data[..512]).unwrap();
        }
        self.durable
    }
}

impl BlockDevice for Tearing {
    fn geometry(&self) -> Geometry {
        self.cached.geometry()
    }

    fn name(&self) -> &str {
        "tearing device"
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> lacuna_device::Result<()> {
        self.cached.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> lacuna_device::Result<()> {
        self.changes()?;
        self.cached.write_at(offset, data)?;
        let mut kept = AlignedBuf::zeroed(data.len());
        kept.copy_from_slice(data);
        self.pending.lock().push((offset, kept));
        Ok(())
    }

    fn sync(&self) -> lacuna_device::Result<()> {
        self.changes()?;
        self.pending.lock().drain(..).try_for_each(|(at, data)| self.durable.write_at(at, &data))
    }

    fn discard(&self, _: u64, _: u64) -> lacuna_device::Result<()> {
        Ok(())
    }

    fn stats(&self) -> DeviceStats {
        self.cached.stats()
    }
}

/// A change of slot 2 changes two sectors, of which the first one holds the checksum.
#[test]
fn some_copy_of_the_keys_is_whole_at_any_time() {
    let (_, device) = store(16);
    let (new, options) = (secret("new"), cheap());
    let other = KeyChange::Add { new: &secret("other"), options: &options };
    assert_eq!(Ftl::change_keys(&*device, &secret("one"), &other).unwrap(), 1);
    let before = image(&device);
    for cut in 0.. {
        let tearing = Tearing::of(&before, cut);
        let add = KeyChange::Add { new: &new, options: &options };
        let changed = Ftl::change_keys(&tearing, &secret("one"), &add);
        let left = tearing.cut();
        let keys = Ftl::keys(&left).unwrap_or_else(|error| panic!("cut {cut}: {error}")).len();
        assert!(keys == 3 || (keys == 2 && changed.is_err()), "cut {cut}");
        let left: Arc<dyn BlockDevice> = Arc::new(left);
        assert!(opens(&left, "one") && opens(&left, "new") == (keys == 3), "cut {cut}");
        if changed.is_ok() {
            assert!(cut > 5);
            break;
        }
    }
}

#[test]
fn keys_move_with_the_end_of_a_store_that_grows() {
    const SMALL: u64 = 2 << 20;
    for cut in 1.. {
        let sim = SimDevice::new(BYTES, cut);
        let device: Arc<dyn BlockDevice> = sim.clone();
        format(&device, Some("one"), Some(SMALL));
        let ftl = open(&device, "one");
        ftl.write_batch(&[Op::Write { lba: Lba(5), data: &[3; 512] }], Stream::Data).unwrap();
        ftl.flush().unwrap();
        sim.set_cut_after(cut);
        let grown = ftl.grow(Some(BYTES));
        drop(ftl);
        sim.set_cut_after(0);
        sim.power_cycle();
        let ftl = open(&device, "one");
        let end = ftl.stats().capacity_bytes as usize - (48 << 10);
        let places = key_blocks(&device);
        assert_eq!((places.len(), places.last()), (4, Some(&end)), "cut {cut}: {places:?}");
        let mut sector = [0; 512];
        ftl.read(Lba(5), &mut sector).unwrap();
        assert_eq!(sector, [3; 512]);
        if grown.is_ok() {
            assert_eq!(end, BYTES as usize - (48 << 10));
            break;
        }
    }
}

/// Keys and data do not depend on each other: not one byte of the log changes with the keys.
#[test]
fn rotation_leaves_the_data_as_it_is() {
    let (sim, device) = store(14);
    work(&sim, &device, &Key::Secret(secret("one")), &mut SeededRng::new(14));
    let before = image(&device);
    let (new, options) = (secret("new"), cheap());
    let rotate = KeyChange::Rotate { new: &new, options: &options };
    Ftl::change_keys(&*device, &secret("one"), &rotate).unwrap();
    let (after, blocks) = (image(&device), key_blocks(&device));
    let differ = before.chunks(512).zip(after.chunks(512)).enumerate().filter(|(_, (old, new))| old != new);
    for (sector, _) in differ {
        assert!(blocks.iter().any(|at| (*at..at + 4096).contains(&(sector * 512))), "sector {sector}");
    }
    assert!(!opens(&device, "one") && opens(&device, "new"));
}

/// What was there was wiped first.
#[test]
fn a_key_that_is_refused_leaves_what_was_on_the_device() {
    let (_, device) = store(0);
    let log_device: Arc<dyn LogDevice> = Arc::new(MappedMemory::anonymous(256 << 10).unwrap());
    log_device.persist(128 << 10, &[9; 64]).unwrap();
    let before = image(&device);
    let slot = KeyOptions { label: "x".repeat(1000), ..cheap() };
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        force: true,
        key: Some(NewKey { secret: secret("two"), slot }),
        log_device: Some(log_device.clone()),
        ..FormatOptions::default()
    };
    let refused = Ftl::format(device.clone(), &options);
    assert!(matches!(refused, Err(Error::Key { reason: KeyError::Label, .. })), "{refused:?}");
    assert!(image(&device)[..] == before[..] && opens(&device, "one"));
    let mut start = [1; 4096];
    log_device.read_at(0, &mut start).unwrap();
    assert_eq!(start, [0; 4096]);
}
