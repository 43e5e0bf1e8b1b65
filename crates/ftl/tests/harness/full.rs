//! Stores that are as full as they may be, and the work that may happen between two openings.

use std::{fmt, sync::Arc, thread};

use lacuna_device::BlockDevice;
use lacuna_ftl::{Error, FormatOptions, Ftl, Lba, Op, Options, Result, SECTOR, Stats, Stream, Work};
use lacuna_sim::{SeededRng, SimDevice};

use super::assert_sound;

/// Sectors from the start of a page to that of the next one.
const PAGE_SECTORS: u64 = 32;
/// The fewest segments that opening leaves to collection: `GC_SEGMENTS_MIN`, and `GC_SEGMENTS` of src/log/reserve.rs,
/// which [`Stats::reserved_segments`] counts.
const COLLECTION_MIN: u64 = 1;
const COLLECTION: u64 = 2;
/// Slightly more than a trim counts in the size of a batch.
const TRIM_BYTES: u64 = 210;

/// The shape of a store to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) segment_bytes: u32,
    pub(crate) segments: u64,
    pub(crate) block_bytes: u32,
    pub(crate) page_bytes: usize,
    /// Percent of the pages that would fit.
    pub(crate) live_percent: u64,
    pub(crate) background: bool,
    pub(crate) map_memory: Option<u64>,
}

impl Shape {
    /// The smallest store of 64 KiB segments that can be formatted, plus `more` segments.
    pub(crate) fn tiny(more: u64, page_bytes: usize) -> Shape {
        let shape = Shape {
            segment_bytes: 64 << 10,
            segments: 0,
            block_bytes: SECTOR as u32,
            page_bytes,
            live_percent: 100,
            background: false,
            map_memory: None,
        };
        let can_be = |segments: &u64| Shape { segments: *segments, ..shape }.make(1).is_ok();
        let segments = (8..).find(can_be).expect("some size is large enough");
        Shape { segments: segments + more, ..shape }
    }

    /// Any shape that can be formatted.
    pub(crate) fn random(rng: &mut SeededRng) -> Shape {
        loop {
            let segment_bytes = 64 << 10 << [0, 0, 0, 1, 2, 4][rng.below(6) as usize];
            let most = (12 << 20) / u64::from(segment_bytes);
            let shape = Shape {
                segment_bytes,
                segments: 16 + rng.below(most),
                block_bytes: [512, 512, 4096, 16 << 10][rng.below(4) as usize],
                page_bytes: [512, 1536, 2048, 4096, 5120, 16 << 10][rng.below(6) as usize],
                live_percent: [100, 100, 97, 85, 60][rng.below(5) as usize],
                background: rng.chance(25),
                map_memory: [None, None, Some(0), Some(6 << 10)][rng.below(4) as usize],
            };
            if shape.make(1).is_ok() {
                return shape;
            }
        }
    }

    fn make(&self, seed: u64) -> Result<Arc<SimDevice>> {
        let bytes = self.segments * u64::from(self.segment_bytes);
        let sim = SimDevice::with_block_bytes(bytes, self.block_bytes, seed);
        let options = FormatOptions { segment_bytes: Some(self.segment_bytes), ..FormatOptions::default() };
        Ftl::format(sim.clone(), &options).map(|()| sim)
    }
}

/// Work on an open store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    /// Overwrites this many pages with data of the same size, in batches of one.
    Overwrite(u64),
    /// The same in the log stream.
    Log(u64),
    /// In batches of several.
    Together(u64),
    /// Makes this many pages whole again, if there is space.
    Refill(u64),
    /// Trims this many sectors, each of which may cut an extent.
    Cut(u64),
    /// The same in one batch, or in the largest batch that is accepted.
    CutTogether(u64),
    /// Overwrites this many single sectors, if there is space.
    Patch(u64),
    /// Trims this many pages.
    Trim(u64),
    Flush,
    /// Collects this many pieces.
    Collect(u64),
    Due(u64),
    Checkpoint,
}

/// How the use of a store ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Close,
    /// The process ends.
    Kill,
    /// The power is cut in the n-th operation of the device after opening, or at the end of the deeds.
    Cut(u64),
    /// The same, from the beginning of the last deed on.
    CutLast(u64),
    /// The same within the close.
    CutClose(u64),
    /// Within opening.
    CutOpen(u64),
}

/// From one image of a store to another.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) deeds: Vec<Deed>,
    pub(crate) end: End,
}

impl Use {
    pub(crate) fn random(rng: &mut SeededRng) -> Use {
        let deeds = (0..rng.below(4)).map(|_| {
            let most = [4, 40, 200][rng.below(3) as usize];
            let many = 1 + rng.below(most);
            match rng.below(16) {
                0..3 => Deed::Overwrite(many),
                3 => Deed::Log(many),
                4 => Deed::Together(many),
                5 => Deed::Refill(many),
                6..8 => Deed::Cut(many),
                8 => Deed::CutTogether(many * many),
                9 => Deed::Patch(many),
                10 => Deed::Trim(1 + many / 20),
                11 => Deed::Flush,
                12..14 => Deed::Collect(1 + rng.below(6)),
                14 => Deed::Due(1 + rng.below(6)),
                _ => Deed::Checkpoint,
            }
        });
        let deeds = deeds.collect();
        let latest = [4, 16, 120][rng.below(3) as usize];
        let soon = 1 + rng.below(latest);
        let end = match rng.below(10) {
            0 => End::Close,
            1..4 => End::Kill,
            4..6 => End::Cut(soon),
            7..9 => End::CutLast(1 + soon / 4),
            6 => End::CutClose(soon),
            _ => End::CutOpen(soon),
        };
        Use { deeds, end }
    }
}

/// The image of a full store, and the history that produced it.
#[derive(Clone)]
pub(crate) struct Full {
    pub(crate) shape: Shape,
    device: Arc<SimDevice>,
    pages: u64,
    history: Vec<(Use, u64)>,
}

impl Full {
    /// A new store, filled.
    pub(crate) fn new(shape: Shape, seed: u64) -> Full {
        let device = shape.make(seed).expect("it can be formatted");
        let mut full = Full { shape, device, pages: u64::MAX, history: Vec::new() };
        let ftl = full.open().expect("a new store");
        let rng = &mut SeededRng::new(seed);
        let is_refused = |page: &u64| is_full(&full.write(&ftl, rng, *page, shape.page_bytes, Stream::Data));
        let fit = (0..).find(is_refused).expect("some time it is full");
        full.pages = (fit * shape.live_percent / 100).max(1);
        let sectors = (fit - full.pages) * PAGE_SECTORS;
        let trim = Op::Trim { lba: Lba(full.pages * PAGE_SECTORS), sectors };
        ftl.write_batch(&[trim], Stream::Data).expect("a trim");
        full.end(ftl, End::Close);
        full
    }

    /// The same with a map of the largest permitted weight: every page is cut into pieces.
    pub(crate) fn cut_up(shape: Shape, seed: u64) -> Full {
        let full = Full::new(shape, seed);
        let sectors = (shape.page_bytes / SECTOR) as u64;
        let cuts = full.pages * sectors / 2;
        full.after(&Use { deeds: vec![Deed::Cut(cuts), Deed::Patch(cuts)], end: End::Close }, seed)
    }

    pub(crate) fn open(&self) -> Result<Ftl> {
        let Shape { background, map_memory, .. } = self.shape;
        let options = Options { background, map_memory, ..Options::default() };
        Ftl::open(self.device.clone() as Arc<dyn BlockDevice>, options)
    }

    /// How many times the device's capacity was written to it.
    pub(crate) fn times_written(&self) -> u64 {
        self.device.stats().written_bytes / self.device.geometry().capacity_bytes
    }

    fn fork(&self, seed: u64) -> Full {
        Full { device: self.device.fork(seed), ..self.clone() }
    }

    /// The store after `one_use`. The same seed leads to the same image, unless a background thread runs.
    pub(crate) fn after(&self, one_use: &Use, seed: u64) -> Full {
        let mut next = self.fork(seed);
        next.history.push((one_use.clone(), seed));
        next.go_on(one_use, seed);
        next
    }

    /// The same, without a copy, and without recording it in the history.
    pub(crate) fn go_on(&self, one_use: &Use, seed: u64) {
        let _told = ReportedOnPanic(self, Some((one_use, seed)));
        if let End::CutOpen(ops) = one_use.end {
            self.device.set_cut_after(ops);
        }
        let ftl = match self.open() {
            Ok(ftl) => ftl,
            Err(error) => {
                assert!(self.device.is_off(), "opening: {error}");
                return self.device.power_cycle();
            }
        };
        if let End::CutOpen(_) = one_use.end {
            self.device.kill();
        }
        if let End::Cut(ops) = one_use.end {
            self.device.set_cut_after(ops);
        }
        let rng = &mut SeededRng::new(seed);
        for (deed, left) in one_use.deeds.iter().zip((0..one_use.deeds.len()).rev()) {
            if let (End::CutLast(ops), 0) = (one_use.end, left) {
                self.device.set_cut_after(ops);
            }
            if let Err(error) = self.carry_out(&ftl, rng, *deed) {
                assert!(self.device.is_off(), "{deed:?}: {error}; {:#?}", ftl.stats());
                break;
            }
        }
        self.end(ftl, one_use.end);
    }

    fn end(&self, ftl: Ftl, end: End) {
        if let End::CutClose(ops) = end {
            self.device.set_cut_after(ops);
        }
        let closed = match end {
            End::Close | End::CutClose(_) => ftl.close(),
            _ => Ok(()),
        };
        drop(ftl);
        match end {
            End::Close => closed.expect("it closes"),
            End::Kill => self.device.kill(),
            _ => self.device.power_cycle(),
        }
    }

    fn carry_out(&self, ftl: &Ftl, rng: &mut SeededRng, deed: Deed) -> Result<()> {
        let page_sectors = (self.shape.page_bytes / SECTOR) as u64;
        match deed {
            Deed::Overwrite(many) => (0..many).try_for_each(|_| self.overwrite(ftl, rng, Stream::Data, 1)),
            Deed::Log(many) => (0..many).try_for_each(|_| self.overwrite(ftl, rng, Stream::Log, 1)),
            Deed::Together(many) => {
                let most = (ftl.batch_bytes_max() / 2 / self.shape.page_bytes as u64).clamp(1, 16);
                (0..many.div_ceil(most)).try_for_each(|_| self.overwrite(ftl, rng, Stream::Data, most))
            }
            Deed::Refill(many) => (0..many).try_for_each(|_| {
                let page = rng.below(self.pages);
                unless_full(self.write(ftl, rng, page, self.shape.page_bytes, Stream::Data))
            }),
            Deed::Cut(many) => (0..many).try_for_each(|_| {
                let lba = Lba(rng.below(self.pages) * PAGE_SECTORS + rng.below(page_sectors));
                ftl.write_batch(&[Op::Trim { lba, sectors: 1 }], Stream::Data).map(drop)
            }),
            Deed::CutTogether(many) => {
                let most = ftl.batch_bytes_max() / TRIM_BYTES - 1;
                let cuts = (0..many.min(most)).map(|_| {
                    let lba = Lba(rng.below(self.pages) * PAGE_SECTORS + rng.below(page_sectors));
                    Op::Trim { lba, sectors: 1 }
                });
                ftl.write_batch(&cuts.collect::<Vec<_>>(), Stream::Data).map(drop)
            }
            Deed::Patch(many) => (0..many).try_for_each(|_| {
                let lba = Lba(rng.below(self.pages) * PAGE_SECTORS + rng.below(page_sectors));
                let data = bytes(rng, SECTOR);
                unless_full(ftl.write_batch(&[Op::Write { lba, data: &data }], Stream::Data).map(drop))
            }),
            Deed::Trim(many) => (0..many).try_for_each(|_| {
                let lba = Lba(rng.below(self.pages) * PAGE_SECTORS);
                ftl.write_batch(&[Op::Trim { lba, sectors: PAGE_SECTORS }], Stream::Data).map(drop)
            }),
            Deed::Flush => ftl.flush(),
            Deed::Collect(many) => steps(ftl, Work::Gc, many),
            Deed::Due(many) => steps(ftl, Work::Due, many),
            Deed::Checkpoint => ftl.checkpoint(),
        }
    }

    fn write(&self, ftl: &Ftl, rng: &mut SeededRng, page: u64, len: usize, stream: Stream) -> Result<()> {
        let data = bytes(rng, len);
        ftl.write_batch(&[Op::Write { lba: Lba(page * PAGE_SECTORS), data: &data }], stream).map(drop)
    }

    /// Overwrites some pages in one batch by as much as they hold.
    fn overwrite(&self, ftl: &Ftl, rng: &mut SeededRng, stream: Stream, pages: u64) -> Result<()> {
        let mut whole = Vec::new();
        for _ in 0..pages {
            let lba = Lba(rng.below(self.pages) * PAGE_SECTORS);
            if whole.iter().any(|(other, _)| *other == lba) {
                continue;
            }
            let live = ftl.allocated(lba..Lba(lba.0 + PAGE_SECTORS))? as usize;
            whole.push((lba, bytes(rng, live / SECTOR * SECTOR)));
        }
        let ops = whole.iter().flat_map(|(lba, data)| {
            [Op::Trim { lba: *lba, sectors: PAGE_SECTORS }, Op::Write { lba: *lba, data }]
        });
        ftl.write_batch(&ops.collect::<Vec<_>>(), stream).map(drop)
    }

    /// Asserts, on a copy, that the store is not stuck: it opens, collection can begin, and trims and overwrites of the
    /// same size are accepted.
    pub(crate) fn assert_goes_on(&self, seed: u64) -> Stats {
        let _told = ReportedOnPanic(self, None);
        let copy = self.fork(seed);
        let ftl = copy.open().unwrap_or_else(|error| panic!("opening: {error}"));
        let stats = ftl.stats();
        assert!(
            stats.free_segments + COLLECTION >= stats.reserved_segments + COLLECTION_MIN,
            "invariant 4 of the reserve: {stats:#?}"
        );
        let rng = &mut SeededRng::new(seed);
        let deeds = [
            Deed::Collect(1),
            Deed::Overwrite(2),
            Deed::Cut(4),
            Deed::CutTogether(u64::MAX),
            Deed::Overwrite(2 + (64 << 10) / copy.shape.page_bytes as u64),
            Deed::Log(1),
            Deed::Trim(1),
        ];
        for deed in deeds {
            let done = copy.carry_out(&ftl, rng, deed);
            done.unwrap_or_else(|error| {
                panic!("{deed:?}: {error}; at first {stats:#?}, now {:#?}", ftl.stats())
            });
        }
        assert_sound(&ftl);
        stats
    }
}

fn bytes(rng: &mut SeededRng, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    rng.fill(&mut data);
    data.iter_mut().for_each(|byte| *byte |= 1);
    data
}

fn steps(ftl: &Ftl, work: Work, many: u64) -> Result<()> {
    (0..many).try_for_each(|_| ftl.step(work).map(drop))
}

fn is_full<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Full { .. }))
}

/// Operations that add live data may be refused.
fn unless_full(result: Result<()>) -> Result<()> {
    if is_full(&result) { Ok(()) } else { result }
}

impl fmt::Debug for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}, {} pages", self.shape, self.pages)?;
        self.history.iter().try_for_each(|(one_use, seed)| writeln!(f, "  {one_use:?}, seed {seed}"))
    }
}

/// On a panic, prints the history of the store and the use in which the failure occurred.
struct ReportedOnPanic<'a>(&'a Full, Option<(&'a Use, u64)>);

impl Drop for ReportedOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{:?}in {:?}", self.0, self.1);
        }
    }
}
