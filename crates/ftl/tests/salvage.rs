//! Several kinds of damage at a time, to stores of all kinds: what salvage reads is compared with all states that the
//! store was in.
//!
//! `LACUNA_CASES=n cargo test -p lacuna-ftl --test ftl salvage:: -- --nocapture` runs n cases.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    sync::Arc,
};

use crate::harness::{Change, Model, SEGMENT_BYTES, changes, encode, ops};
use lacuna_device::{BlockDevice, LogDevice};
use lacuna_ftl::{
    CheckDepth, Error, FormatOptions, Ftl, Key, KeyCost, KeyOptions, Lba, LogDeviceUse, Lost, NewKey, Op,
    Options, Remains, SECTOR, Secret, Stream, Work,
};
use lacuna_sim::{SeededRng, SimDevice, SimMemory, for_each_seed, unreadable};

const CASES: u64 = 12;
const DAMAGES: u64 = 15;
const BYTES: u64 = 5 << 20;
const SMALL: u64 = 4 << 20;
const SECTORS: u64 = 1600;
const BLOCK: u64 = 4096;

/// A sector's content, as a number: 0 for zeros.
type Content = u64;

fn content(sector: &[u8]) -> Content {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    if sector.iter().all(|byte| *byte == 0) { 0 } else { sector.iter().fold(0xcbf2_9ce4_8422_2325, hash) | 1 }
}

/// All that each sector ever held.
struct Past {
    model: Model,
    batches: Vec<Vec<Change>>,
    /// Of each sector, its contents and the batches that brought them, in order.
    versions: Vec<Vec<(usize, Content)>>,
    /// What batches left there that a power cut voided.
    void: Vec<HashSet<Content>>,
    /// Numbers of batches at the last flushes.
    flushes: Vec<usize>,
}

impl Past {
    fn new() -> Past {
        Past {
            model: Model::new(SECTORS),
            batches: Vec::new(),
            versions: vec![vec![(0, 0)]; SECTORS as usize],
            void: vec![HashSet::new(); SECTORS as usize],
            flushes: vec![0],
        }
    }

    fn accepted(&mut self, batch: Vec<Change>) {
        self.model.apply(&batch);
        self.batches.push(batch);
        let number = self.batches.len();
        for change in self.batches.last().unwrap() {
            let (start, sectors) = match change.op() {
                Op::Write { lba, data } => (lba.0, (data.len() / SECTOR) as u64),
                Op::Encoded(encoded) => (encoded.lba().0, (encoded.data().len() / SECTOR) as u64),
                Op::Trim { lba, sectors } => (lba.0, sectors),
            };
            for lba in start..start + sectors {
                let now = content(self.model.sector(lba));
                let versions = &mut self.versions[lba as usize];
                versions.retain(|(batch, _)| *batch < number);
                versions.push((number, now));
            }
        }
    }

    fn flushed(&mut self) {
        self.flushes.push(self.batches.len());
    }

    /// The store was opened and has `batches` batches left.
    fn cut(&mut self, batches: usize) {
        assert!(batches >= *self.flushes.last().unwrap(), "flushed batches are lost");
        self.batches.truncate(batches);
        for (versions, void) in self.versions.iter_mut().zip(&mut self.void) {
            void.extend(versions.iter().filter(|(batch, _)| *batch > batches).map(|(_, content)| *content));
            versions.retain(|(batch, _)| *batch <= batches);
        }
        self.model = Model::new(SECTORS);
        self.batches.iter().for_each(|batch| self.model.apply(batch));
        self.flushed();
    }

    fn at(&self, lba: usize, batches: usize) -> Content {
        let versions = &self.versions[lba];
        versions[versions.partition_point(|(batch, _)| *batch <= batches) - 1].1
    }

    /// The last number of batches whose result is most like `found`.
    fn nearest(&self, found: &[Option<Content>]) -> usize {
        let mut fits = vec![0_i64; self.batches.len() + 2];
        for (versions, found) in self.versions.iter().zip(found) {
            let ends = versions.iter().skip(1).map(|(batch, _)| *batch).chain([self.batches.len() + 1]);
            for ((from, content), end) in versions.iter().zip(ends) {
                if found.is_none_or(|found| found == *content) {
                    fits[*from] += 1;
                    fits[end] -= 1;
                }
            }
        }
        let mut sum = 0;
        let fits = fits.iter().map(|step| {
            sum += step;
            sum
        });
        fits.take(self.batches.len() + 1).enumerate().max_by_key(|(batch, fits)| (*fits, *batch)).unwrap().0
    }

    fn was_ever(&self, lba: usize, content: Content) -> bool {
        self.versions[lba].iter().any(|(_, was)| *was == content) || self.void[lba].contains(&content)
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Wrong {
    missing: u64,
    back: u64,
    stale: u64,
}

#[derive(Debug, Default)]
struct Tally {
    salvages: u64,
    hopeless: u64,
    sound: u64,
    /// Neither sound nor with a checkpoint that was put together.
    prefixes: u64,
    /// By what was said of the checkpoint that was put together: how often, how often a prefix, sectors.
    rebuilt: BTreeMap<&'static str, (u64, u64, Wrong)>,
    unreadable: u64,
    /// Read without a loss, and not opened for writing.
    read_only: u64,
    /// Sound, although more is lost than the last flush.
    short: u64,
}

struct Store {
    device: Arc<SimDevice>,
    log: Option<Arc<SimMemory>>,
    key: Key,
    map_memory: Option<u64>,
}

impl Store {
    fn options(&self, log: Option<&Arc<SimMemory>>) -> Options {
        let log_device = log.map_or(LogDeviceUse::None, |log| LogDeviceUse::Device(log.clone()));
        Options { map_memory: self.map_memory, log_device, key: self.key.clone(), ..Options::default() }
    }

    fn open(&self) -> Ftl {
        Ftl::open(self.device.clone(), self.options(self.log.as_ref())).unwrap()
    }
}

fn formatted(seed: u64) -> Store {
    let device = SimDevice::with_block_bytes(BYTES, [512, 4096][seed as usize % 2], seed);
    let log = seed.is_multiple_of(3).then(|| SimMemory::beside(&device, 1 << 20, seed));
    let secret = || Secret::new("one").unwrap();
    let slot = KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() };
    let is_encrypted = seed % 4 == 1;
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        capacity_bytes: Some(SMALL),
        uuid: Some([seed as u8 | 1; 16]),
        key: is_encrypted.then(|| NewKey { secret: secret(), slot }),
        log_device: log.clone().map(|log| log as Arc<dyn LogDevice>),
        ..FormatOptions::default()
    };
    Ftl::format(device.clone(), &options).unwrap();
    let key = if is_encrypted { Key::Secret(secret()) } else { Key::default() };
    let map_memory = [None, Some(16 << 10)][seed as usize / 2 % 2];
    Store { device, log, key, map_memory }
}

/// Works until the power is cut, if it is.
fn work(ftl: &Ftl, past: &mut Past, rng: &mut SeededRng, steps: u64) -> Result<(), Error> {
    for _ in 0..steps {
        match rng.below(100) {
            0..6 => {
                ftl.flush()?;
                past.flushed();
            }
            6..12 => drop(ftl.step(Work::Gc)?),
            12..16 => drop(ftl.step(Work::Due)?),
            16..18 => {
                ftl.checkpoint()?;
                past.flushed();
            }
            18..20 if ftl.stats().capacity_bytes < BYTES => drop(ftl.grow(Some(BYTES))?),
            20..22 => {
                // All of some leaves of the map.
                let lba = rng.below(SECTORS / 2);
                let batch = vec![Change::Trim(lba, 200 + rng.below(SECTORS / 2 - 200))];
                past.accepted(batch);
                ftl.write_batch(&ops(past.batches.last().unwrap()), Stream::Data)?;
            }
            kind => {
                let mut batch = changes(rng, SECTORS);
                if kind < 60 {
                    // Many extents.
                    let mut write = |_| {
                        let mut data = vec![0; SECTOR];
                        rng.fill(&mut data);
                        Change::Write(rng.below(SECTORS), data)
                    };
                    batch = (0..20).map(&mut write).collect();
                } else if kind < 70 {
                    batch = encode(batch);
                }
                past.accepted(batch);
                let stream = if rng.chance(80) { Stream::Data } else { Stream::Log };
                ftl.write_batch(&ops(past.batches.last().unwrap()), stream)?;
            }
        }
    }
    Ok(())
}

/// A store after a life of some openings, and what was in it.
fn store(seed: u64) -> (Store, Past) {
    let mut rng = SeededRng::new(seed);
    let (mut store, mut past) = (formatted(seed), Past::new());
    let rounds = 1 + rng.below(3);
    for round in 0..=rounds {
        let ftl = store.open();
        if round > 0 {
            past.cut(ftl.last_seq().0 as usize);
        }
        let steps = 50 + rng.below(400);
        work(&ftl, &mut past, &mut rng, steps).unwrap();
        match rng.below(4) {
            0 => {
                ftl.close().unwrap();
                past.flushed();
            }
            1 => {
                ftl.flush().unwrap();
                past.flushed();
            }
            2 => {
                store.device.set_cut_after(rng.below(12));
                let _ = ftl.checkpoint();
            }
            _ => {
                store.device.set_cut_after(rng.below(60));
                let _ = work(&ftl, &mut past, &mut rng, 100);
            }
        }
        drop(ftl);
        store.device.power_cycle();
        store.log.iter().for_each(|log| log.power_cycle());
        if round + 1 == rounds && rng.chance(30) && store.log.take().is_some() {
            let options = Options { log_device: LogDeviceUse::Without, ..store.options(None) };
            let ftl = Ftl::open(store.device.clone(), options).unwrap();
            past.flushes.clear();
            past.flushes.push(0);
            past.cut(ftl.last_seq().0 as usize);
            drop(ftl);
            store.device.power_cycle();
        }
    }
    (store, past)
}

/// The blocks of each kind of record, and others.
fn targets(device: &SimDevice) -> BTreeMap<&'static str, Vec<Range<u64>>> {
    let mut image = vec![0; BYTES as usize];
    device.read_at(0, &mut image).unwrap();
    let mut records = Vec::new();
    let mut found = BTreeMap::<&'static str, Vec<Range<u64>>>::new();
    for at in (0..image.len()).step_by(512) {
        let head = &image[at..(at + 64).min(image.len())];
        let number = |at: usize| u64::from(u32::from_le_bytes(head[at..at + 4].try_into().unwrap()));
        let (kind, bytes) = match &head[..4] {
            b"LSEG" => ("segment header", 64),
            b"LREC" => (
                ["batch", "relocation", "leaves", "root", "index", "counters", "retained"]
                    [usize::from(head[8]) - 1],
                64 + number(56),
            ),
            _ if at.is_multiple_of(SEGMENT_BYTES as usize) => ("segment", SEGMENT_BYTES.into()),
            _ => continue,
        };
        let range = at as u64..(at as u64 + bytes).min(BYTES);
        let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        records.push(((u64_at(24), u64_at(16), at), kind, range));
        if kind == "segment header" {
            let start = at as u64;
            found.entry("segment").or_default().push(start..(start + u64::from(SEGMENT_BYTES)).min(BYTES));
            let end = start + u64::from(SEGMENT_BYTES);
            found.entry("summary").or_default().push(end - 64..end);
        }
    }
    records.sort_unstable_by_key(|(written, ..)| *written);
    for (_, kind, range) in records {
        found.entry(kind).or_default().push(range);
    }
    found.insert("superblock", vec![0..256, 32 << 10..(32 << 10) + 256]);
    found.insert("anything", (0..BYTES / BLOCK).map(|block| block * BLOCK..block * BLOCK + 1).collect());
    found
}

fn read(ftl: &Ftl) -> Vec<Option<Content>> {
    let mut found = vec![Some(0); SECTORS as usize];
    let mut at = Lba(0);
    while at.0 < SECTORS {
        let Remains { mapped, lost } = ftl.read_past_damage(at..Lba(SECTORS), 256 << 10).unwrap();
        for (start, data) in mapped.runs {
            let sectors = data.chunks(SECTOR).map(|sector| Some(content(sector)));
            sectors.zip(start.0 as usize..).for_each(|(content, lba)| found[lba] = content);
        }
        for Lost { range, .. } in lost {
            found[range.start.0 as usize..(range.end.0.min(SECTORS)) as usize].fill(None);
        }
        at = mapped.end;
    }
    found
}

fn judge(
    store: &Store,
    past: &Past,
    what: &str,
    fork: Arc<SimDevice>,
    lost: Vec<Range<u64>>,
    tally: &mut Tally,
) {
    let log = store.log.as_ref().map(|log| log.fork_beside(&fork, 1));
    let device = unreadable(fork, lost);
    tally.salvages += 1;
    let (ftl, damage) = match Ftl::salvage(device.clone(), store.options(log.as_ref())) {
        Ok(salvaged) => salvaged,
        Err(_) => {
            tally.hopeless += 1;
            return;
        }
    };
    let found = read(&ftl);
    for (lba, found) in found.iter().enumerate() {
        assert!(
            found.is_none_or(|found| past.was_ever(lba, found)),
            "{what}: sector {lba} was never so: {damage:?}"
        );
    }
    tally.unreadable += found.iter().filter(|found| found.is_none()).count() as u64;
    let nearest = past.nearest(&found);
    let mut wrong = Wrong::default();
    for (lba, found) in found.iter().enumerate() {
        let (Some(found), right) = (*found, past.at(lba, nearest)) else { continue };
        match (found, right) {
            _ if found == right => {}
            (0, _) => wrong.missing += 1,
            (_, 0) => wrong.back += 1,
            _ => wrong.stale += 1,
        }
    }
    let is_prefix = wrong == Wrong::default();
    drop(ftl);
    let opened = Ftl::open(device, store.options(log.as_ref()));
    // What is only read needs less: of the places of the superblock one, and no room for what the log device has.
    assert!(opened.is_err() || damage.is_empty(), "{what}: it opens: {damage:?}");
    tally.read_only += u64::from(opened.is_err() && damage.is_empty());
    if damage.is_empty() {
        let promised = past.flushes.iter().rev().find(|flush| **flush < *past.flushes.last().unwrap());
        let promised = promised.copied().unwrap_or(0);
        assert!(is_prefix, "{what}: {wrong:?} near {nearest}, without a word");
        // More may be lost than the last flush, where damage takes the marks of later ones too.
        tally.short += u64::from(nearest < promised);
        tally.sound += 1;
        opened.iter().for_each(|ftl| drop(ftl.check(CheckDepth::Payload)));
        return;
    }
    let Some(line) = damage.iter().find(|line| line.contains("put together")) else {
        assert!(is_prefix, "{what}: {wrong:?} near {nearest} of {}: {damage:#?}", past.batches.len());
        tally.prefixes += 1;
        return;
    };
    let said = [
        "nothing of it is missing",
        "seems to be missing",
        "not the same ones",
        "are missing",
        "may be back",
        "is not known",
    ];
    let said = said.into_iter().find(|said| line.contains(said)).unwrap();
    let may_be_wrong = !said.starts_with("nothing of it is");
    assert!(is_prefix || may_be_wrong, "{what}: {wrong:?} near {nearest}: {damage:#?}");
    let may_be_stale = line.contains("some may be from before");
    assert!(wrong.stale == 0 || may_be_stale, "{what}: {wrong:?} near {nearest}: {damage:#?}");
    let (times, prefixes, sum) = tally.rebuilt.entry(said).or_default();
    *times += 1;
    *prefixes += u64::from(is_prefix);
    sum.missing += wrong.missing;
    sum.back += wrong.back;
    sum.stale += wrong.stale;
}

fn case(seed: u64, tally: &mut Tally) {
    let (store, mut past) = store(seed);
    {
        let fork = store.device.fork(seed);
        let log = store.log.as_ref().map(|log| log.fork_beside(&fork, 1));
        let ftl = Ftl::open(fork, store.options(log.as_ref())).unwrap();
        // What the cut voided may be read again without the records that say so.
        let flushes = past.flushes.clone();
        past.cut(ftl.last_seq().0 as usize);
        past.flushes = flushes;
        assert_eq!(past.nearest(&read(&ftl)), past.batches.len());
    }
    let targets = targets(&store.device);
    let kinds: Vec<&str> = targets.keys().copied().collect();
    let mut rng = SeededRng::new(seed);
    for _ in 0..DAMAGES {
        let fork = store.device.fork(rng.next_u64());
        let (mut lost, mut what) = (Vec::new(), format!("seed {seed}"));
        for _ in 0..1 + rng.below(4) {
            // Checkpoints most of the time.
            let kind = match rng.chance(60) {
                true => ["root", "index", "counters", "leaves"][rng.below(4) as usize],
                false => kinds[rng.below(kinds.len() as u64) as usize],
            };
            let Some(places) = targets.get(kind) else { continue };
            let is_map = ["root", "index", "counters", "leaves"].contains(&kind);
            let many = if is_map && rng.chance(30) { places.len() as u64 } else { 1 + rng.below(3) };
            let is_flipped = rng.chance(30);
            for _ in 0..many {
                // The newest ones most of the time.
                let among = if rng.chance(60) { places.len().min(4) } else { places.len() };
                let place = places[places.len() - 1 - rng.below(among as u64) as usize].clone();
                match is_flipped {
                    true => {
                        fork.flip_bit(place.start + rng.below(place.end - place.start), rng.below(8) as u8)
                    }
                    false => lost.push(place.start / BLOCK * BLOCK..place.end.next_multiple_of(BLOCK)),
                }
            }
            what = format!("{what}, {many} {kind} {}", if is_flipped { "flipped" } else { "unreadable" });
        }
        judge(&store, &past, &what, fork, lost, tally);
    }
}

#[test]
fn what_is_salvaged_of_much_damage_was_there_and_is_told_of() {
    let (mut tally, mut cases) = (Tally::default(), 0);
    for_each_seed(CASES, |seed| {
        case(seed, &mut tally);
        cases += 1;
    });
    eprintln!("{cases} cases: {tally:#?}");
}

/// "Nothing of it is missing" was said of as many extents as there had been, some of which were older ones: where older
/// leaves stood in, and where all that was left was the index of an earlier checkpoint.
#[test]
fn as_many_extents_as_there_were_may_be_others() {
    [556, 1674].into_iter().for_each(|seed| case(seed, &mut Tally::default()));
}
