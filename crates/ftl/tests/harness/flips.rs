//! One flipped bit in each kind of structure, and its outcome.

use std::{collections::BTreeMap, sync::Arc};

use lacuna_device::BlockDevice;
use lacuna_ftl::{CheckDepth, Ftl, Options, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice};

use super::{
    SEGMENT_BYTES, changes, encode, format,
    history::{History, Salvages, assert_names_the_place, first_wrong, has_errors, read_all},
    open, ops,
};

pub(crate) const BYTES: u64 = 3 << 20;
pub(crate) const SECTORS: u64 = 800;
const FLIPS_PER_KIND: u64 = 4;

/// Outcomes of the flips in one kind of structure.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) flips: u64,
    /// Reported when the store was opened.
    pub(crate) at_open: u64,
    /// Reported by reads and by `check`.
    pub(crate) by_reads: u64,
    /// Taken for a power cut before the last flush.
    pub(crate) last_flush_lost: u64,
    pub(crate) salvages: Salvages,
}

/// Ranges of the device's bytes, by kind of structure.
type Structures = BTreeMap<&'static str, Vec<(u64, u64)>>;

/// Finds every structure to which docs/FORMAT.md gives a magic number.
fn structures(image: &[u8]) -> Structures {
    let mut found = Structures::new();
    let mut add = |kind, at: usize, len: usize| {
        found.entry(kind).or_default().push((at as u64, (at + len).min(image.len()) as u64));
    };
    let number = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes")) as usize;
    for slot in [0, 32 << 10] {
        add("superblock", slot, 256);
    }
    for at in (SEGMENT_BYTES as usize..image.len() - 64).step_by(16) {
        match &image[at..at + 4] {
            b"LSEG" => add("segment header", at, 64),
            b"LREC" => {
                let (body, total) = (number(at + 56), number(at + 60));
                let kind = match image[at + 8] {
                    1 => ["batch header", "batch entries", "payload"],
                    2 => ["relocation header", "relocation entries", "moved payload"],
                    3 => ["map header", "map leaves", "map padding"],
                    7 => ["retained summary header", "retained summary body", "retained summary padding"],
                    _ => ["checkpoint header", "checkpoint body", "checkpoint padding"],
                };
                add(kind[0], at, 64);
                add(kind[1], at + 64, body);
                add(kind[2], at + 64 + body, total.saturating_sub(64 + body));
            }
            b"LFOP" => {
                let body = number(at + 12);
                add("summary", at - body, body + 64);
            }
            _ => {}
        }
    }
    add("anything", 0, image.len());
    found.values_mut().for_each(|places| places.retain(|(start, end)| start < end));
    found.retain(|_, places| !places.is_empty());
    found
}

/// A store with some history on a device with blocks of `block_bytes`, closed or not; all of it is flushed.
pub(crate) fn store(seed: u64, block_bytes: u32) -> (Arc<SimDevice>, History) {
    let (device, ftl, mut history, mut rng) = worked(seed, block_bytes);
    match rng.chance(30) {
        true => ftl.close().expect("close"),
        false => ftl.flush().expect("flush"),
    }
    history.flushed();
    drop(ftl);
    device.power_cycle();
    (device, history)
}

/// The same, but the power is cut after some batches that were not flushed.
pub(crate) fn cut_store(seed: u64, block_bytes: u32) -> (Arc<SimDevice>, History) {
    let (device, ftl, mut history, mut rng) = worked(seed, block_bytes);
    for _ in 0..rng.below(8) {
        accept(&ftl, &mut history, &mut rng);
    }
    drop(ftl);
    device.power_cycle();
    (device, history)
}

fn worked(seed: u64, block_bytes: u32) -> (Arc<SimDevice>, Ftl, History, SeededRng) {
    let device = SimDevice::with_block_bytes(BYTES, block_bytes, seed);
    let shared: Arc<dyn BlockDevice> = device.clone();
    format(&shared);
    let ftl = open(&shared);
    let mut rng = SeededRng::new(seed);
    let mut history = History::new(SECTORS);
    for _ in 0..60 + rng.below(300) {
        match rng.below(10) {
            0 => {
                ftl.flush().expect("flush");
                history.flushed();
            }
            1 => drop(ftl.step(Work::Gc).expect("collection")),
            2 if rng.chance(10) => {
                ftl.checkpoint().expect("checkpoint");
                history.flushed();
            }
            _ => accept(&ftl, &mut history, &mut rng),
        }
    }
    (device, ftl, history, rng)
}

fn accept(ftl: &Ftl, history: &mut History, rng: &mut SeededRng) {
    let batch = changes(rng, SECTORS);
    // Every other batch; seeds stay what they were.
    let batch = if history.batches().is_multiple_of(2) { encode(batch) } else { batch };
    let stream = if rng.chance(80) { Stream::Data } else { Stream::Log };
    ftl.write_batch(&ops(&batch), stream).expect("batch");
    history.accepted(batch);
}

/// Flips a few bits of each kind of structure, one at a time.
pub(crate) fn case(seed: u64, outcomes: &mut BTreeMap<&'static str, Outcome>) {
    let (device, history) = store(seed, if seed.is_multiple_of(4) { 4096 } else { 512 });
    let mut image = vec![0; BYTES as usize];
    device.read_at(0, &mut image).expect("the whole device");
    let mut rng = SeededRng::new(seed);
    for (kind, places) in structures(&image) {
        for _ in 0..FLIPS_PER_KIND {
            let (start, end) = places[rng.below(places.len() as u64) as usize];
            let (at, bit) = (start + rng.below(end - start), rng.below(8) as u8);
            let flipped = device.fork(rng.next_u64());
            flipped.flip_bit(at, bit);
            judge(&flipped, &history, outcomes.entry(kind).or_default(), &format!("{kind}, byte {at}"));
        }
    }
}

/// The flip is harmless, or reported with its place, or undoes batches as a power cut before the last
/// flush might have.
fn judge(device: &Arc<SimDevice>, history: &History, outcome: &mut Outcome, flip: &str) {
    outcome.flips += 1;
    let device: Arc<dyn BlockDevice> = device.clone();
    let is_sound = outcome.salvages.judge(&device, history, flip);
    let opened = Ftl::open(device, Options::default());
    assert_eq!(is_sound, opened.is_ok(), "{flip}");
    let ftl = match opened {
        Ok(ftl) => ftl,
        Err(lacuna_ftl::Error::Version { .. } | lacuna_ftl::Error::Features { .. })
            if flip.contains("super") =>
        {
            outcome.at_open += 1;
            return;
        }
        Err(error) => {
            assert_names_the_place(&error, BYTES);
            outcome.at_open += 1;
            return;
        }
    };
    let found = read_all(&ftl, SECTORS, BYTES);
    assert_eq!(history.first_foreign(&found), None, "{flip}: a sector reads as it never was");
    if first_wrong(&found, &history.model).is_some() {
        assert!(history.is_late_prefix(&found), "{flip}: more is lost than the last flush");
        outcome.last_flush_lost += 1;
    }
    if has_errors(&found) {
        let is_read_later = ["payload", "map leaves", "anything"].iter().any(|kind| flip.contains(kind));
        assert!(is_read_later, "{flip}: not noticed when opened");
        let report = ftl.check(CheckDepth::Payload).expect("the device can be read");
        assert!(!report.is_clean(), "{flip}: check finds what reads find");
        outcome.by_reads += 1;
    }
}
