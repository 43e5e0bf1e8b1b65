//! A store with a log device: what goes there, and which log device belongs to which state of which store.

use std::{
    sync::{Arc, OnceLock, Weak},
    thread,
};

use crate::harness::{self, SEGMENT_BYTES, assert_sound};
use lacuna_device::{BlockDevice, BlockLog, DeviceStats, Geometry, LogDevice, MappedMemory, MemDevice};
use lacuna_ftl::{CheckDepth, Error, FormatOptions, Ftl, Lba, LogDeviceUse, Op, Options, Stream};
use lacuna_sim::{SimDevice, SimMemory, unreadable};

const DEVICE_BYTES: u64 = 4 << 20;
const LOG_BYTES: u64 = 256 << 10;
const PAGE: usize = 4096;
const PAGE_SECTORS: u64 = 8;

struct Stored {
    device: Arc<dyn BlockDevice>,
    log: Arc<dyn LogDevice>,
}

fn memory() -> Arc<dyn LogDevice> {
    Arc::new(MappedMemory::anonymous(LOG_BYTES as usize).unwrap())
}

fn formatted() -> Stored {
    let stored = Stored { device: Arc::new(MemDevice::new(DEVICE_BYTES)), log: memory() };
    let log_device = Some(stored.log.clone());
    let options =
        FormatOptions { segment_bytes: Some(SEGMENT_BYTES), log_device, ..FormatOptions::default() };
    Ftl::format(stored.device.clone(), &options).unwrap();
    stored
}

impl Stored {
    fn open_with(&self, log_device: LogDeviceUse, read_only: bool) -> Result<Ftl, Error> {
        let options = Options { log_device, read_only, ..Options::default() };
        Ftl::open(self.device.clone(), options)
    }

    fn open(&self) -> Ftl {
        self.open_with(LogDeviceUse::Device(self.log.clone()), false).unwrap()
    }

    fn refusal(&self, log_device: LogDeviceUse) -> String {
        self.open_with(log_device, true).expect_err("refused").to_string()
    }

    fn image(&self) -> Vec<u8> {
        let mut bytes = vec![0; DEVICE_BYTES as usize];
        self.device.read_at(0, &mut bytes).unwrap();
        bytes
    }
}

fn page(number: u64) -> [u8; PAGE] {
    [number as u8 | 1; PAGE]
}

fn write(ftl: &Ftl, number: u64) {
    let lba = Lba(number * PAGE_SECTORS);
    ftl.write_batch(&[Op::Write { lba, data: &page(number) }], Stream::Data).unwrap();
}

/// How many of the pages from 0 on are there, up to `pages`; none behind the first that is missing.
fn pages(ftl: &Ftl, pages: u64) -> u64 {
    let is_there = |number: &u64| {
        let mut back = [0; PAGE];
        ftl.read(Lba(number * PAGE_SECTORS), &mut back).unwrap();
        assert!(back == page(*number) || back == [0; PAGE]);
        back != [0; PAGE]
    };
    let there = (0..pages).take_while(is_there).count() as u64;
    assert!(!(there..pages).any(|number| is_there(&number)));
    there
}

#[test]
fn flushes_of_small_batches_do_not_touch_the_flash() {
    let stored = formatted();
    let ftl = stored.open();
    let before = stored.device.stats();
    for number in 0..20 {
        write(&ftl, number);
        ftl.flush().unwrap();
        ftl.flush().unwrap();
    }
    assert_eq!(stored.device.stats().syncs, before.syncs);
    let stats = ftl.stats();
    assert_eq!((stats.log_device_flushes, stats.unflushed_batches), (20, 0));
    assert!(stats.log_device_used_bytes > 20 * PAGE as u64 && stats.log_device_is_volatile);
    assert!(stats.log_device_written_bytes < 21 * (PAGE as u64 + 128), "{}", stats.log_device_written_bytes);
    assert_sound(&ftl);
    drop(ftl);
    let ftl = stored.open();
    assert_eq!(pages(&ftl, 30), 20);
    assert_eq!(ftl.stats().log_device_used_bytes, 0, "all is settled by opening");
    assert_sound(&ftl);
}

/// A store that is only read shows what the log device holds, and neither is changed.
#[test]
fn who_only_reads_sees_what_is_only_logged() {
    let stored = formatted();
    let ftl = stored.open();
    (0..9).for_each(|number| write(&ftl, number));
    ftl.flush().unwrap();
    drop(ftl);
    let before = stored.image();
    let ftl = stored.open_with(LogDeviceUse::Device(stored.log.clone()), true).unwrap();
    assert_eq!(pages(&ftl, 20), 9);
    assert_sound(&ftl);
    drop(ftl);
    assert!(stored.image() == before);
    let without = stored.open_with(LogDeviceUse::Without, true).unwrap();
    assert!(pages(&without, 20) < 9, "nothing was settled yet");
    drop(without);
    assert_eq!(pages(&stored.open(), 20), 9);
}

#[test]
fn a_flush_of_more_than_is_worth_logging_goes_to_the_flash() {
    let stored = formatted();
    let ftl = stored.open();
    let before = stored.device.stats().syncs;
    for number in 0..40 {
        write(&ftl, number);
    }
    ftl.flush().unwrap();
    assert!(stored.device.stats().syncs > before);
    assert_eq!(ftl.stats().log_device_flushes, 0);
    drop(ftl);
    let ftl = stored.open_with(LogDeviceUse::Without, false).unwrap();
    assert_eq!(pages(&ftl, 60), 40, "all of it was settled");
    drop(ftl);

    // And the next small one to the log device again.
    let stored = formatted();
    let ftl = stored.open();
    (0..40).for_each(|number| write(&ftl, number));
    ftl.flush().unwrap();
    write(&ftl, 40);
    ftl.flush().unwrap();
    assert_eq!(ftl.stats().log_device_flushes, 1);
    drop(ftl);
    assert_eq!(pages(&stored.open(), 60), 41);
}

#[test]
fn a_full_ring_is_settled_and_used_again() {
    let stored = formatted();
    let ftl = stored.open();
    for number in 0..250 {
        write(&ftl, number);
        ftl.flush().unwrap();
    }
    let stats = ftl.stats();
    assert!(stats.flushes > 2 && stats.log_device_flushes > 230, "{stats:?}");
    drop(ftl);
    assert_eq!(pages(&stored.open(), 300), 250);
}

#[test]
fn each_log_device_belongs_to_one_state_of_one_store() {
    let (stored, other) = (formatted(), formatted());
    let none = stored.refusal(LogDeviceUse::None);
    assert!(none.contains("--without-log-device"), "{none}");
    let tiny: Arc<dyn LogDevice> = Arc::new(MappedMemory::anonymous(4 << 10).unwrap());
    for (log, reason) in [
        (other.log.clone(), "holds the log of another store"),
        (memory(), "holds no log of a Lacuna store"),
        (tiny, "holds no log of a Lacuna store"),
    ] {
        let refused = stored.refusal(LogDeviceUse::Device(log));
        assert!(refused.contains(reason), "{refused}");
    }
    let plain: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(DEVICE_BYTES));
    harness::format(&plain);
    let plain = Stored { device: plain, log: memory() };
    assert!(plain.refusal(LogDeviceUse::Device(memory())).contains("the store has none"));

    // A log device that holds something is not taken.
    let options =
        FormatOptions { log_device: Some(stored.log.clone()), force: false, ..FormatOptions::default() };
    let refused = Ftl::format(Arc::new(MemDevice::new(32 << 20)), &options);
    assert!(matches!(refused, Err(Error::NotEmpty { .. })), "{refused:?}");
    let small: Arc<dyn LogDevice> = Arc::new(MappedMemory::anonymous(64 << 10).unwrap());
    let options = FormatOptions { log_device: Some(small), ..FormatOptions::default() };
    let refused = Ftl::format(Arc::new(MemDevice::new(32 << 20)), &options).unwrap_err().to_string();
    assert!(refused.contains("too few"), "{refused}");

    // A store that lost it goes on; the old one does not come back.
    drop(stored.open_with(LogDeviceUse::Without, false).unwrap());
    let refused = stored.refusal(LogDeviceUse::Device(stored.log.clone()));
    assert!(refused.contains("the store has none"), "{refused}");
    drop(stored.open_with(LogDeviceUse::New(memory()), false).unwrap());
    let refused = stored.refusal(LogDeviceUse::Device(stored.log.clone()));
    assert!(refused.contains("earlier state"), "{refused}");
}

/// The log device is put back to what it was before the last opening, and the flash is not. What was flushed since was
/// missing without a word.
#[test]
fn an_older_copy_of_the_log_device_is_noticed() {
    let stored = formatted();
    let copy = |log: &dyn LogDevice| {
        let mut bytes = vec![0; LOG_BYTES as usize];
        log.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let mut copies = vec![copy(&*stored.log)];
    for number in 0..3 {
        let ftl = stored.open();
        write(&ftl, number);
        ftl.flush().unwrap();
        drop(ftl);
        copies.push(copy(&*stored.log));
    }
    let last = copies.pop().unwrap();
    for bytes in copies {
        stored.log.persist(0, &bytes).unwrap();
        let refused = stored.refusal(LogDeviceUse::Device(stored.log.clone()));
        assert!(refused.contains("an older copy"), "{refused}");
    }
    stored.log.persist(0, &last).unwrap();
    assert_eq!(pages(&stored.open(), 10), 3);
}

/// It was prepared first, and then refused as one that holds something.
#[test]
fn a_new_log_device_may_be_tried_again() {
    let stored = formatted();
    let ftl = stored.open();
    write(&ftl, 0);
    ftl.flush().unwrap();
    drop(ftl);
    // What is flushed may be in the old one alone: nothing takes its place unasked.
    let refused = stored.open_with(LogDeviceUse::New(memory()), false).expect_err("refused").to_string();
    assert!(refused.contains("may hold what is not in the store yet"), "{refused}");
    drop(stored.open());
    drop(stored.open_with(LogDeviceUse::Without, false).unwrap());
    let before = stored.image();
    // The store is damaged where nobody but an opening looks: its checkpoint.
    for at in (SEGMENT_BYTES as usize..before.len()).step_by(4096) {
        stored.device.write_at(at as u64, &[0xaa; 4096]).unwrap();
    }
    let new = memory();
    stored.open_with(LogDeviceUse::New(new.clone()), false).expect_err("damaged");
    stored.device.write_at(0, &before).unwrap();
    drop(stored.open_with(LogDeviceUse::New(new.clone()), false).expect("the second try"));
    drop(stored.open_with(LogDeviceUse::Device(new.clone()), true).unwrap());
    // Now it is the store's, and is not made anew.
    stored.open_with(LogDeviceUse::New(new), false).expect_err("refused");
}

/// The flash is put back to what it was, and the log device is not.
#[test]
fn an_older_copy_of_the_flash_is_noticed() {
    let stored = formatted();
    let ftl = stored.open();
    let before = stored.image();
    (0..40).for_each(|number| write(&ftl, number));
    ftl.flush().unwrap(); // to the flash
    write(&ftl, 40);
    ftl.flush().unwrap();
    drop(ftl);
    let after = stored.image();
    for (bytes, opens) in [(&before, false), (&after, true)] {
        stored.device.write_at(0, bytes).unwrap();
        let found = stored.open_with(LogDeviceUse::Device(stored.log.clone()), true);
        assert_eq!(found.is_ok(), opens);
        assert!(opens || matches!(found, Err(Error::Corrupt { .. })), "{found:?}");
    }
    drop(stored.open());
    stored.device.write_at(0, &after).unwrap();
    let refused = stored.refusal(LogDeviceUse::Device(stored.log.clone()));
    assert!(refused.contains("later state"), "{refused}");
}

/// The same where the log device holds nothing that the flash lacks: it still says what was flushed.
#[test]
fn an_older_copy_of_the_flash_is_noticed_by_the_mark() {
    let stored = formatted();
    let ftl = stored.open();
    let before = stored.image();
    write(&ftl, 0);
    ftl.flush().unwrap();
    (1..40).for_each(|number| write(&ftl, number));
    ftl.flush().unwrap(); // to the flash, so that the mark moves
    drop(ftl);
    stored.device.write_at(0, &before).unwrap();
    let found = stored.open_with(LogDeviceUse::Device(stored.log.clone()), true);
    assert!(matches!(found, Err(Error::Corrupt { .. })), "{found:?}");
}

/// Any bit of the ring may be damaged: nothing that was flushed before the last flush is missing without an error.
#[test]
fn damage_of_the_log_device_is_no_torn_end() {
    let sim = SimDevice::new(DEVICE_BYTES, 1);
    let memory = SimMemory::beside(&sim, LOG_BYTES, 1);
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        log_device: Some(memory.clone()),
        ..FormatOptions::default()
    };
    Ftl::format(sim.clone(), &options).unwrap();
    let open = |sim: &Arc<SimDevice>, memory: &Arc<SimMemory>| {
        let log_device = LogDeviceUse::Device(memory.clone());
        Ftl::open(sim.clone(), Options { log_device, ..Options::default() })
    };
    let ftl = open(&sim, &memory).unwrap();
    for number in 0..10 {
        write(&ftl, number);
        ftl.flush().unwrap();
    }
    drop(ftl);
    let (mut refused, mut whole) = (0, 0);
    let ring = (64 << 10)..(64 << 10) + 10 * 4352;
    for at in ring.step_by(97).chain(0..128).chain(32 << 10..(32 << 10) + 128) {
        let device = sim.fork(at);
        let log = memory.fork_beside(&device, at);
        log.flip_bit(at, at as u8);
        match open(&device, &log) {
            Ok(ftl) => {
                assert!(pages(&ftl, 20) >= 9, "byte {at}");
                whole += 1;
            }
            Err(Error::Corrupt { .. }) => refused += 1,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(refused > 300 && whole > 30, "{refused} {whole}");
}

/// One bad sector refused the store, wherever it was, and kept it from being salvaged.
#[test]
fn a_sector_of_the_log_device_that_cannot_be_read_costs_what_is_in_it() {
    let medium: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(LOG_BYTES));
    let stored = Stored {
        device: Arc::new(MemDevice::new(DEVICE_BYTES)),
        log: Arc::new(BlockLog::new(medium.clone())),
    };
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        log_device: Some(stored.log.clone()),
        ..FormatOptions::default()
    };
    Ftl::format(stored.device.clone(), &options).unwrap();
    let ftl = stored.open();
    for number in 0..10 {
        write(&ftl, number);
        ftl.flush().unwrap();
    }
    let used = ftl.stats().log_device_used_bytes;
    drop(ftl);
    let ring = (64 << 10)..(64 << 10) + used;
    let (mut whole, mut salvaged) = (0, 0);
    for at in (0..LOG_BYTES).step_by(512) {
        let lost = std::iter::once(at..at + 512).collect();
        let bad = unreadable(medium.clone(), lost);
        let log_device = LogDeviceUse::Device(Arc::new(BlockLog::new(bad)));
        let options = Options { log_device, read_only: true, ..Options::default() };
        match Ftl::open(stored.device.clone(), options.clone()) {
            Ok(ftl) => {
                assert!(!ring.contains(&at), "byte {at}");
                assert_eq!(pages(&ftl, 20), 10, "byte {at}");
                whole += 1;
            }
            Err(_) => {
                assert!((ring.start..=ring.end).contains(&at), "byte {at}");
                let (ftl, damage) = Ftl::salvage(stored.device.clone(), options).unwrap();
                assert!(!damage.is_empty());
                let lost_before = 10 * (at - ring.start) / used;
                assert!(pages(&ftl, 20) >= lost_before.saturating_sub(1), "byte {at}");
                salvaged += 1;
            }
        }
    }
    assert!(whole > 300 && salvaged > 80, "{whole} {salvaged}");
}

/// A block of the flash that cannot be read was needed even where the log device held all of it.
#[test]
fn what_the_log_device_holds_is_not_read_from_the_flash() {
    let sim = SimDevice::new(DEVICE_BYTES, 1);
    let memory = SimMemory::beside(&sim, LOG_BYTES, 1);
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        log_device: Some(memory.clone()),
        ..FormatOptions::default()
    };
    Ftl::format(sim.clone(), &options).unwrap();
    let stored = Stored { device: sim.clone(), log: memory.clone() };
    let ftl = stored.open();
    (0..9).for_each(|number| write(&ftl, number));
    ftl.flush().unwrap();
    drop(ftl);
    // Where an opening brings it.
    let settled = sim.fork(1);
    let memory = memory.fork_beside(&settled, 1);
    let settled = Stored { device: settled, log: memory };
    drop(settled.open());
    let image = settled.image();
    let at = image.chunks(512).position(|sector| sector == &page(3)[..512]).expect("it is there") as u64;
    let block = at * 512 / 4096 * 4096;
    let lost = std::iter::once(block..block + 4096).collect();
    let bad = Stored { device: unreadable(stored.device.clone(), lost), log: stored.log };
    let ftl = bad.open_with(LogDeviceUse::Device(bad.log.clone()), true).unwrap();
    assert_eq!(pages(&ftl, 20), 9);
}

/// Salvage was refused as opening is.
#[test]
fn a_frame_that_does_not_fit_its_segment_costs_what_is_in_it() {
    let stored = formatted();
    let ftl = stored.open();
    (0..5).for_each(|number| write(&ftl, number));
    ftl.checkpoint().unwrap();
    (5..8).for_each(|number| write(&ftl, number));
    ftl.flush().unwrap();
    drop(ftl);
    // The header of the segment that holds them.
    let at =
        stored.image().chunks(512).position(|sector| sector == &page(3)[..512]).expect("it is there") as u64;
    let header = at * 512 / u64::from(SEGMENT_BYTES) * u64::from(SEGMENT_BYTES);
    stored.device.write_at(header, &[0xaa; 512]).unwrap();
    let log_device = || LogDeviceUse::Device(stored.log.clone());
    let refused = stored.refusal(log_device());
    assert!(refused.contains("not of the life"), "{refused}");
    let options = Options { log_device: log_device(), ..Options::default() };
    let (ftl, damage) = Ftl::salvage(stored.device.clone(), options).unwrap();
    assert!(damage.iter().any(|line| line.contains("not of the life")), "{damage:?}");
    assert_eq!(pages(&ftl, 20), 5);
}

#[test]
fn a_check_finds_what_the_log_device_has_lost() {
    let sim = SimDevice::new(DEVICE_BYTES, 1);
    let memory = SimMemory::beside(&sim, LOG_BYTES, 1);
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        log_device: Some(memory.clone()),
        ..FormatOptions::default()
    };
    Ftl::format(sim.clone(), &options).unwrap();
    let log_device = LogDeviceUse::Device(memory.clone());
    let ftl = Ftl::open(sim, Options { log_device, ..Options::default() }).unwrap();
    for number in 0..3 {
        write(&ftl, number);
        ftl.flush().unwrap();
    }
    assert_sound(&ftl);
    for (at, what) in [((64 << 10) + 100, "frame 0"), (100, "header"), ((32 << 10) + 100, "header")] {
        memory.flip_bit(at, 0);
        let findings = ftl.check(CheckDepth::Structure).unwrap().findings;
        let is_found = findings.iter().any(|finding| finding.message.contains(what));
        // Of the two headers only the newer one counts.
        assert!(is_found || what == "header", "{findings:?}");
        memory.flip_bit(at, 0);
        assert_sound(&ftl);
    }
}

/// A log device that fails stops the store; what it took before is there when the store is opened anew.
#[test]
fn a_log_device_that_fails_stops_the_store() {
    let sim = SimDevice::new(DEVICE_BYTES, 1);
    let memory = SimMemory::beside(&sim, LOG_BYTES, 1);
    let stored = Stored { device: sim, log: memory.clone() };
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        log_device: Some(stored.log.clone()),
        ..FormatOptions::default()
    };
    Ftl::format(stored.device.clone(), &options).unwrap();
    for fails_at_fence in [true, false] {
        let ftl = stored.open();
        let before = pages(&ftl, 100);
        (before..before + 3).for_each(|number| write(&ftl, number));
        ftl.flush().unwrap();
        match fails_at_fence {
            true => memory.fail_sync(),
            false => memory.fail_writes_after(1),
        }
        write(&ftl, before + 3);
        assert!(matches!(ftl.flush(), Err(Error::Device(_))));
        assert!(matches!(ftl.flush(), Err(Error::Poisoned { .. })));
        memory.heal();
        drop(ftl);
        let ftl = stored.open();
        assert!((before + 3..=before + 4).contains(&pages(&ftl, 100)));
        assert_sound(&ftl);
    }
}

/// Each of whose syncs waits for a flush of another thread, once there is a store that it can flush.
struct FlushesBesideSyncs {
    medium: MemDevice,
    store: OnceLock<Weak<Ftl>>,
}

impl BlockDevice for FlushesBesideSyncs {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn name(&self) -> &str {
        self.medium.name()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> lacuna_device::Result<()> {
        self.medium.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> lacuna_device::Result<()> {
        self.medium.write_at(offset, data)
    }

    fn sync(&self) -> lacuna_device::Result<()> {
        if let Some(ftl) = self.store.get().and_then(Weak::upgrade) {
            thread::spawn(move || ftl.flush().unwrap()).join().unwrap();
        }
        self.medium.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> lacuna_device::Result<()> {
        self.medium.discard(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.medium.stats()
    }
}

/// A flush into the log device, beside one that settles, may take bytes of a segment that is dead. The segment was used
/// again while they lay behind the mark, and then the store could not be opened.
#[test]
fn a_dead_segment_that_is_logged_beside_a_flush_that_settles_is_not_used_again() {
    let device =
        Arc::new(FlushesBesideSyncs { medium: MemDevice::new(DEVICE_BYTES), store: OnceLock::new() });
    let log: Arc<dyn LogDevice> = Arc::new(MappedMemory::anonymous(4 << 20).unwrap());
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        log_device: Some(log.clone()),
        ..FormatOptions::default()
    };
    Ftl::format(device.clone(), &options).unwrap();
    let stored = Stored { device: device.clone(), log };
    let ftl = Arc::new(stored.open());
    // Two segments and a part of a third one; nothing is live in the first two.
    (0..40).for_each(|_| write(&ftl, 0));
    device.store.set(Arc::downgrade(&ftl)).unwrap();
    ftl.checkpoint().unwrap();
    assert!(ftl.stats().log_device_flushes > 0);
    (0..100).for_each(|_| write(&ftl, 0));
    drop(ftl);
    assert_eq!(pages(&stored.open(), 10), 1);

    // And the segments come back in the end.
    let ftl = stored.open();
    for _ in 0..20 {
        (0..100).for_each(|_| write(&ftl, 0));
        ftl.flush().unwrap();
    }
    assert_sound(&ftl);
}
