//! Never stuck: a store that is as full as it may be accepts trims and overwrites of the same size, and collects,
//! whatever happened to it before.

use std::{env, sync::Arc};

use crate::harness::{SEGMENT_BYTES, assert_sound, format};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{Error, Ftl, Lba, Op, Options, Spare, Stream};
use lacuna_sim::{SeededRng, for_each_seed};

const PAGE: usize = 16 << 10;
/// Reopenings of each store.
const ROUNDS: u64 = 160;

fn page(rng: &mut SeededRng, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    rng.fill(&mut data);
    data.iter_mut().for_each(|byte| *byte |= 1);
    data
}

/// Writes pages until the store is full; returns how many there are.
fn fill(ftl: &Ftl, rng: &mut SeededRng, len: usize) -> u64 {
    for number in 0.. {
        let data = page(rng, len);
        match ftl.write_batch(&[Op::Write { lba: Lba(number * 32), data: &data }], Stream::Data) {
            Ok(_) => {}
            Err(Error::Full { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

/// One batch within the first `pages` pages: alternately some that cut extents, and some that make pages whole again.
/// Only a batch that adds live data may be refused.
fn churn(ftl: &Ftl, rng: &mut SeededRng, pages: u64, len: usize, cuts: bool) {
    let lba = Lba(rng.below(pages) * 32);
    let stream = if rng.chance(30) { Stream::Log } else { Stream::Data };
    match rng.below(8) {
        0 => {
            let data = page(rng, len);
            match ftl.write_batch(&[Op::Write { lba, data: &data }], stream) {
                Ok(_) | Err(Error::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        1..6 if cuts => {
            let (lba, sectors) = (Lba(lba.0 + rng.below(len as u64 / 512)), 1);
            ftl.write_batch(&[Op::Trim { lba, sectors }], stream)
                .unwrap_or_else(|error| panic!("a trim: {error}; {:#?}", ftl.stats()));
        }
        _ => {
            let live = ftl.allocated(lba..Lba(lba.0 + 32)).unwrap() as usize;
            let data = page(rng, live / 512 * 512);
            let mut ops = vec![Op::Trim { lba, sectors: 32 }];
            if !data.is_empty() {
                ops.push(Op::Write { lba, data: &data });
            }
            ftl.write_batch(&ops, stream)
                .unwrap_or_else(|error| panic!("an overwrite of the same size: {error}; {:#?}", ftl.stats()));
        }
    }
}

/// One thread, clean closes.
#[test]
fn a_full_store_is_reopened_for_ever() {
    for_each_seed(18, |seed| {
        let mut rng = SeededRng::new(seed);
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
        format(&device);
        let len = [PAGE, 2048, 1536][seed as usize % 3];
        let mut ftl = Ftl::open(device.clone(), Options::default()).unwrap();
        let pages = fill(&ftl, &mut rng, len);
        let each = [100, 400, 1500][seed as usize / 3 % 3];
        for round in 0..ROUNDS {
            for _ in 0..rng.below(each) {
                churn(&ftl, &mut rng, pages, len, round % 8 < 4);
            }
            ftl.close().unwrap();
            drop(ftl);
            ftl = Ftl::open(device.clone(), Options::default())
                .unwrap_or_else(|error| panic!("reopening {round}: {error}"));
        }
        assert_sound(&ftl);
    });
}

/// Overwrites that cut extents raise the number of segments that a checkpoint may need, until a flush: the test itself
/// never calls one. `LACUNA_CASES=n` makes n changes to each store.
#[test]
fn a_full_store_needs_no_flush_by_its_user() {
    let rounds = env::var("LACUNA_CASES").map_or(12_000, |cases| cases.parse().expect("a number"));
    for (background, len) in [(false, PAGE), (true, 1536), (false, 1536)] {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
        format(&device);
        let mut rng = SeededRng::new(2);
        let ftl = Ftl::open(device.clone(), Options { background, ..Options::default() }).unwrap();
        let pages = fill(&ftl, &mut rng, len);
        for round in 0..rounds {
            churn(&ftl, &mut rng, pages, len, round % 2000 < 1000);
        }
        ftl.flush().unwrap();
        assert_sound(&ftl);
    }
}

/// Unflushed changes count as if they had cut extents, although they may have changed nothing. On a store without
/// garbage no collection leads to a flush: when segments are short, a flush is planned, so no caller has to ask for
/// one.
#[test]
fn whoever_misses_segments_for_what_is_unflushed_plans_a_flush() {
    // Whether that decides depends on how many segments there are.
    for (segments, background) in
        (28..48).step_by(2).flat_map(|segments| [(segments, false), (segments, true)])
    {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(segments * u64::from(SEGMENT_BYTES)));
        format(&device);
        let mut rng = SeededRng::new(3);
        let ftl = Ftl::open(device.clone(), Options { background, ..Options::default() }).unwrap();
        let pages = fill(&ftl, &mut rng, PAGE);
        let nothing: Vec<_> =
            (0..200).map(|n| Op::Trim { lba: Lba((1 << 40) + 2 * n), sectors: 1 }).collect();
        for round in 0..60 {
            let accepted = ftl.write_batch(&nothing, Stream::Data);
            accepted.unwrap_or_else(|error| {
                panic!("{segments} segments, trims {round}: {error}; {:#?}", ftl.stats())
            });
        }
        for number in 0..pages {
            let data = page(&mut rng, PAGE);
            let whole = Op::Write { lba: Lba(number * 32), data: &data };
            let accepted = ftl.write_batch(&[whole], Stream::Data);
            accepted.unwrap_or_else(|error| {
                panic!("{segments} segments, page {number}: {error}; {:#?}", ftl.stats())
            });
        }
        assert_sound(&ftl);
    }
}

/// Each trim may cut an extent in two, and checkpoints must have space for the resulting map: a full store accepts the
/// largest batch that any store of its size accepts.
#[test]
fn a_full_store_takes_the_largest_batch_of_trims() {
    for_each_seed(12, |seed| {
        let bytes = [3 << 19, 2 << 20, 4 << 20, 16 << 20][seed as usize % 4];
        let len = [PAGE, 4096, 1536][seed as usize / 4 % 3];
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(bytes));
        format(&device);
        let mut rng = SeededRng::new(seed);
        let ftl = Ftl::open(device, Options::default()).unwrap();
        let pages = fill(&ftl, &mut rng, len);
        // Every other sector of all pages, and of the unmapped space behind them, which counts as well.
        let sectors = len as u64 / 512;
        let trims: Vec<_> = (0..120_000)
            .map(|number| number * 2 + 1)
            .map(|sector| Op::Trim { lba: Lba(sector / sectors * 32 + sector % sectors), sectors: 1 })
            .collect();
        let mut most = trims.len();
        loop {
            match ftl.write_batch(&trims[..most], Stream::Data) {
                Ok(_) => break,
                Err(Error::BatchTooLarge { .. }) => most = most * 9 / 10,
                Err(error) => panic!("{most} trims: {error}; {:#?}", ftl.stats()),
            }
        }
        ftl.flush().unwrap();
        assert_sound(&ftl);
        println!("seed {seed}: {most} trims, {pages} pages");
    });
}

/// To a batch that leaves a spare to others the store is so much smaller: it is refused as on a full store, and what
/// adds nothing goes on.
#[test]
fn a_batch_leaves_others_their_spare() {
    for spare in [Spare::Percent(20), Spare::Bytes(3 << 20), Spare::Bytes(u64::MAX)] {
        let mut rng = SeededRng::new(1);
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(32 << 20));
        format(&device);
        let ftl = Ftl::open(device, Options::default()).unwrap();
        let limit = ftl.stats().live_limit_bytes;
        let spare_bytes = spare.of(limit);
        let write = |number: u64, data: &[u8], spare| {
            let ops = [Op::Write { lba: Lba(number * 32), data }];
            ftl.try_write_batch(&ops, Stream::Data, spare)
        };
        let data = page(&mut rng, PAGE);
        let (mut pages, live, refused_at) = (0, || ftl.stats().live_bytes, limit - spare_bytes);
        let full = loop {
            match write(pages, &data, spare) {
                Ok(_) => pages += 1,
                Err(error) => break error,
            }
        };
        let Error::Full { limit_bytes, .. } = full else { panic!("{full}") };
        assert!(limit_bytes == refused_at && live() <= refused_at, "{spare:?}: {} of {refused_at}", live());
        assert!(refused_at - live() < 2 * PAGE as u64, "{spare:?}: refused too early");
        if pages > 0 {
            for number in 0..pages {
                write(number, &page(&mut rng, PAGE), spare).expect("an overwrite of the same size");
            }
            let cut = page(&mut rng, 512);
            write(0, &cut, spare).expect("an overwrite that cuts an extent");
            let trim = [Op::Trim { lba: Lba(32), sectors: 32 }];
            ftl.try_write_batch(&trim, Stream::Data, spare).expect("a trim");
            write(1, &data, spare).expect("what was freed");
        }
        let before = pages;
        while write(pages, &data, Spare::Nothing).is_ok() {
            pages += 1;
        }
        let own = (pages - before) * PAGE as u64;
        assert!(
            own <= spare_bytes && spare_bytes - own < spare_bytes / 5,
            "{spare:?}: {own} of {spare_bytes}"
        );
        assert!(matches!(write(pages, &data, spare), Err(Error::Full { .. })));
        assert_sound(&ftl);
    }
}

/// What a batch is said to do to the space of its sectors is what it does, also where its parts overlap.
#[test]
fn the_effect_of_a_batch_is_known_before() {
    const SECTORS: u64 = 100;
    for_each_seed(20, |seed| {
        let mut rng = SeededRng::new(seed);
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
        format(&device);
        let ftl =
            Ftl::open(device, Options { elide_zero_tails: seed % 4 > 0, ..Options::default() }).unwrap();
        for _ in 0..200 {
            let parts: Vec<(u64, Vec<u8>, bool)> = (0..1 + rng.below(4))
                .map(|_| {
                    let (at, sectors) = (rng.below(SECTORS), 1 + rng.below(40));
                    let mut data = page(&mut rng, sectors as usize * 512);
                    let zeros_from = rng.below(data.len() as u64 * 2).min(data.len() as u64) as usize;
                    data[zeros_from..].fill(0);
                    (at, data, rng.chance(30))
                })
                .collect();
            let ops: Vec<Op<'_>> = parts
                .iter()
                .map(|(at, data, is_trim)| match is_trim {
                    true => Op::Trim { lba: Lba(*at), sectors: (data.len() / 512) as u64 },
                    false => Op::Write { lba: Lba(*at), data },
                })
                .collect();
            let all = || ftl.allocated(Lba(0)..Lba(u64::MAX)).unwrap();
            let (effect, before) = (ftl.effect_in_memory(&ops).expect("all is in memory"), all());
            ftl.write_batch(&ops, Stream::Data).unwrap();
            let expected = before - effect.before_bytes + effect.after_bytes;
            assert_eq!(all(), expected, "{ops:?}");
        }
        assert_sound(&ftl);
    });
}
