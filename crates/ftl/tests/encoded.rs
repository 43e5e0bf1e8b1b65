//! Encoded chunks: what they take, and that no path loses or changes what is in them.

use std::{ops::ControlFlow, sync::Arc};

use crate::harness::{self, Change, Model, assert_sound, format, open};
use lacuna_crc::crc32c;
use lacuna_device::{AlignedBuf, BlockDevice, MemDevice};
use lacuna_ftl::{
    Algorithm, CheckDepth, Codec, Encoded, Error, FormatOptions, Ftl, Key, KeyCost, KeyOptions, Lba, NewKey,
    Op, Options, SECTOR, Secret, Stream, Work,
};
use lacuna_sim::{
    SeededRng, SimDevice, for_each_seed,
    forge::{ForgedStore, Structure},
};

const CHUNK: u64 = 32;
const LZ4: Codec = Codec { algorithm: Algorithm::Lz4, level: 0 };
const ZSTD: Codec = Codec { algorithm: Algorithm::Zstd, level: 0 };

fn mem(bytes: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(bytes));
    format(&device);
    device
}

/// A chunk of which a quarter is noise.
fn chunk(rng: &mut SeededRng) -> Vec<u8> {
    let mut data = vec![7; CHUNK as usize * SECTOR];
    for part in data.chunks_mut(512) {
        rng.fill(&mut part[..128]);
    }
    data
}

fn write(ftl: &Ftl, lba: u64, data: &[u8], codec: Codec) {
    let encoded = Encoded::new(Lba(lba), data, codec);
    ftl.write_batch(&[Op::Encoded(&encoded)], Stream::Data).unwrap();
}

fn trim(ftl: &Ftl, lba: u64, sectors: u64) {
    ftl.write_batch(&[Op::Trim { lba: Lba(lba), sectors }], Stream::Data).unwrap();
}

fn read(ftl: &Ftl, lba: u64, sectors: u64) -> Vec<u8> {
    let mut back = vec![0xee; sectors as usize * SECTOR];
    ftl.read(Lba(lba), &mut back).unwrap();
    back
}

fn allocated(ftl: &Ftl) -> u64 {
    ftl.allocated(Lba(0)..Lba(u64::MAX)).unwrap()
}

#[test]
fn a_chunk_takes_its_payload_until_its_last_sector_goes() {
    let ftl = open(&mem(4 << 20));
    let data = chunk(&mut SeededRng::new(1));
    for codec in [LZ4, ZSTD] {
        write(&ftl, 64, &data, codec);
        let stored = allocated(&ftl);
        assert!((4096..8192).contains(&stored), "{stored}");
        assert!(read(&ftl, 64, CHUNK) == data);
        trim(&ftl, 64, 20);
        trim(&ftl, 90, 6);
        assert_eq!((allocated(&ftl), ftl.stats().extents), (stored, 1));
        assert_eq!(ftl.mapped(Lba(0)..Lba(1000)).unwrap(), Some(Lba(84)..Lba(90)));
        let rest = read(&ftl, 84, 6);
        assert!(rest == data[20 * SECTOR..26 * SECTOR]);
        assert_sound(&ftl);
        trim(&ftl, 84, 6);
        assert_eq!(allocated(&ftl), 0);
    }
}

#[test]
fn what_does_not_shrink_and_what_is_written_twice_is_plain() {
    let ftl = open(&mem(4 << 20));
    let mut rng = SeededRng::new(2);
    let mut noise = vec![0; 16384];
    rng.fill(&mut noise);
    write(&ftl, 0, &noise, LZ4);
    assert_eq!(allocated(&ftl), 16384);
    let (data, first) = (chunk(&mut rng), Encoded::new(Lba(32), chunk(&mut rng), LZ4));
    let second = Op::Write { lba: Lba(40), data: &data[..1024] };
    let ops = [Op::Encoded(&first), second];
    let effect = ftl.effect_in_memory(&ops).unwrap();
    ftl.write_batch(&ops, Stream::Data).unwrap();
    assert_eq!((effect.after_bytes, allocated(&ftl)), (16384, 2 * 16384));
    assert!(read(&ftl, 40, 2) == data[..1024] && read(&ftl, 42, 22) == first.data()[10 * SECTOR..]);
}

/// A relocation names sectors and the batch that wrote them. So a chunk of which its own batch overwrote a part must not
/// be one that is relocated whole: replay would bring the part back.
#[test]
fn what_a_batch_writes_twice_comes_back_as_it_was_written_last() {
    // The chunk lies in a segment that is collected, what overwrites it often in the next one, which is not.
    let (chunks, filler, kept) = (40, 90, 100);
    let (fillers, all_kept) = (chunks * CHUNK, chunks * (CHUNK + filler));
    let device = mem(16 << 20);
    let ftl = open(&device);
    let mut rng = SeededRng::new(7);
    let mut model = Model::new(chunks * (CHUNK + filler + kept));
    let mut noise = |sectors: u64| {
        let mut data = vec![0; sectors as usize * SECTOR];
        rng.fill(&mut data);
        data
    };
    for number in 0..chunks {
        let lba = number * CHUNK;
        let mut data = vec![7; CHUNK as usize * SECTOR];
        data[..4096].copy_from_slice(&noise(8));
        let batch = [
            Change::Encoded(Encoded::new(Lba(lba), data, LZ4)),
            Change::Write(fillers + number * filler, noise(filler)),
            Change::Write(lba + 8, noise(2)),
        ];
        for batch in [&batch[..], &[Change::Write(all_kept + number * kept, noise(kept))]] {
            ftl.write_batch(&harness::ops(batch), Stream::Data).unwrap();
            model.apply(batch);
        }
    }
    let change = Change::Trim(fillers, chunks * filler);
    ftl.write_batch(&[change.op()], Stream::Data).unwrap();
    model.apply(&[change]);
    ftl.flush().unwrap();
    while ftl.stats().gc_segments < 12 && ftl.step(Work::Gc).unwrap() {}
    model.assert_same(&ftl);
    ftl.flush().unwrap();
    drop(ftl);
    let ftl = open(&device);
    assert!(ftl.stats().replayed_batches > chunks);
    model.assert_same(&ftl);
    assert_sound(&ftl);
}

/// The effect of a batch is what it changes, to the byte, however chunks are cut.
#[test]
fn effects_are_exact() {
    for_each_seed(8, |seed| {
        let mut rng = SeededRng::new(seed);
        let ftl = open(&mem(8 << 20));
        let mut model = Model::new(40 * CHUNK);
        for _ in 0..500 {
            let mut batch = harness::changes(&mut rng, model.sectors());
            if rng.chance(80) {
                batch = harness::encode(batch);
            }
            let (ops, before) = (harness::ops(&batch), allocated(&ftl));
            let effect = ftl.effect_in_memory(&ops).unwrap();
            ftl.write_batch(&ops, Stream::Data).unwrap();
            assert_eq!(allocated(&ftl) + effect.before_bytes, before + effect.after_bytes);
            model.apply(&batch);
        }
        model.assert_same(&ftl);
        assert_sound(&ftl);
    });
}

/// Collection moves a chunk once, however it is cut, and leaves its room what it was.
/// The room of a range, by encoding, sums up to what it counts, wherever it is cut.
#[test]
fn room_is_what_is_allocated() {
    let mut seen = [false; 3];
    for_each_seed(30, |seed| {
        let mut rng = SeededRng::new(seed);
        let ftl = open(&mem(4 << 20));
        for _ in 0..120 {
            let (lba, sectors) = (rng.below(200), 1 + rng.below(48));
            let data: Vec<u8> = (0..3).flat_map(|_| chunk(&mut rng)).collect();
            let data = &data[..sectors as usize * SECTOR];
            match rng.below(5) {
                0 => trim(&ftl, lba, sectors),
                1 => drop(ftl.write_batch(&[Op::Write { lba: Lba(lba), data }], Stream::Data).unwrap()),
                2 => write(&ftl, lba, data, ZSTD),
                _ => write(&ftl, lba, data, LZ4),
            }
            let start = rng.below(250);
            let range = Lba(start)..Lba(start + rng.below(60));
            let room = ftl.room(range.clone()).unwrap();
            assert_eq!(room.total().stored_bytes, ftl.allocated(range.clone()).unwrap(), "{range:?}");
            let mapped = ftl.mapped_sectors(range, 64).unwrap().len() * SECTOR;
            assert_eq!(room.total().mapped_bytes, mapped as u64);
        }
        let room = ftl.room(Lba(0)..Lba(u64::MAX)).unwrap();
        for (seen, of) in seen.iter_mut().zip([room.plain, room.lz4, room.zstd]) {
            *seen |= of.mapped_bytes > 0;
        }
        assert!(room.lz4.stored_bytes < room.lz4.mapped_bytes, "{room:?}");
    });
    assert_eq!(seen, [true; 3]);
}

#[test]
fn collection_moves_chunks_as_they_are() {
    for codec in [LZ4, ZSTD] {
        let device = mem(8 << 20);
        let ftl = open(&device);
        let (mut rng, chunks) = (SeededRng::new(3), 400);
        let mut model = Model::new(2 * chunks * CHUNK);
        for number in 0..chunks {
            let data = chunk(&mut rng);
            let change = Change::Encoded(Encoded::new(Lba(number * CHUNK), data, codec));
            ftl.write_batch(&[change.op()], Stream::Data).unwrap();
            model.apply(&[change]);
        }
        for number in 0..chunks {
            let (lba, sectors) = match number % 4 {
                0 => (number * CHUNK + 1 + number % 7, 5),
                1 => (number * CHUNK, 12),
                _ => (number * CHUNK, CHUNK),
            };
            let change = Change::Trim(lba, sectors);
            ftl.write_batch(&[change.op()], Stream::Data).unwrap();
            model.apply(&[change]);
        }
        ftl.flush().unwrap();
        let (before, moved) = (allocated(&ftl), ftl.stats().gc_bytes);
        while ftl.stats().gc_segments < 25 && ftl.step(Work::Gc).unwrap() {}
        assert_eq!(allocated(&ftl), before);
        assert!(ftl.stats().gc_segments > 15, "{}", ftl.stats().gc_segments);
        let written = ftl.stats().gc_bytes - moved;
        assert!(written < before + before / 4, "{written} bytes for {before}");
        model.assert_same(&ftl);
        assert_sound(&ftl);
        ftl.flush().unwrap();
        drop(ftl);
        let ftl = open(&device);
        assert_eq!(allocated(&ftl), before);
        model.assert_same(&ftl);
        assert_sound(&ftl);
    }
}

fn features(device: &dyn BlockDevice, at: u64) -> u8 {
    let mut block = AlignedBuf::zeroed(4096);
    device.read_at(at, &mut block).unwrap();
    block[16]
}

/// Programs that do not know encoded chunks refuse the store by name from the first one on, and not before.
#[test]
fn the_superblock_names_encodings_before_there_is_one() {
    let data = chunk(&mut SeededRng::new(4));
    for cut in 0.. {
        let device = SimDevice::new(4 << 20, cut);
        let shared: Arc<dyn BlockDevice> = device.clone();
        format(&shared);
        let ftl = open(&shared);
        ftl.write_batch(&[Op::Write { lba: Lba(0), data: &data }], Stream::Data).unwrap();
        ftl.checkpoint().unwrap();
        assert_eq!(features(&*shared, 0) & 32, 0);
        device.set_cut_after(cut);
        let encoded = Encoded::new(Lba(32), &data[..], LZ4);
        let written = ftl.write_batch(&[Op::Encoded(&encoded)], Stream::Data).and_then(|_| ftl.flush());
        drop(ftl);
        device.power_cycle();
        let is_named = [0, 32 << 10].map(|at| features(&*shared, at) & 32 != 0);
        let ftl = open(&shared);
        let is_there = read(&ftl, 32, CHUNK) == data;
        assert!(!is_there || is_named == [true; 2], "cut after {cut}: {is_named:?}");
        assert_sound(&ftl);
        ftl.checkpoint().unwrap();
        if written.is_ok() {
            assert!(is_there && features(&*shared, 0) & 32 != 0 && cut > 3);
            break;
        }
    }
}

/// Without its key an encrypted store is collected, checked and trimmed; its chunks come back whole with the key.
#[test]
fn encrypted_chunks_are_moved_without_a_key() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(8 << 20));
    let secret = Secret::new("any").unwrap();
    let slot = KeyOptions { cost: KeyCost::MIN, ..KeyOptions::default() };
    let key = Some(NewKey { secret: secret.clone(), slot });
    let segment_bytes = Some(harness::SEGMENT_BYTES);
    Ftl::format(device.clone(), &FormatOptions { segment_bytes, key, ..FormatOptions::default() }).unwrap();
    let open = |key: Key| Ftl::open(device.clone(), Options { key, ..Options::default() }).unwrap();
    let ftl = open(Key::Secret(secret.clone()));
    let (mut rng, chunks) = (SeededRng::new(5), 300);
    let written: Vec<_> = (0..chunks).map(|_| chunk(&mut rng)).collect();
    for (number, data) in (0..).zip(&written) {
        write(&ftl, number * CHUNK, data, if number % 2 == 0 { LZ4 } else { ZSTD });
    }
    ftl.close().unwrap();
    drop(ftl);
    let ftl = open(Key::Locked);
    for number in 0..chunks {
        trim(&ftl, number * CHUNK + number % 9, 4);
        if number % 5 > 0 {
            trim(&ftl, number * CHUNK, CHUNK);
        }
    }
    ftl.flush().unwrap();
    let before = allocated(&ftl);
    while ftl.stats().gc_segments < 20 && ftl.step(Work::Gc).unwrap() {}
    assert!(ftl.stats().gc_segments > 10, "{}", ftl.stats().gc_segments);
    assert_sound(&ftl);
    assert_eq!(allocated(&ftl), before);
    let refused = Encoded::new(Lba(0), &written[0][..], LZ4);
    let refused = ftl.write_batch(&[Op::Encoded(&refused)], Stream::Data);
    assert!(matches!(refused, Err(Error::Locked { .. })));
    ftl.close().unwrap();
    drop(ftl);
    let ftl = open(Key::Secret(secret));
    for number in (0..chunks).step_by(5) {
        let mut expected = written[number as usize].clone();
        expected[(number % 9) as usize * SECTOR..][..4 * SECTOR].fill(0);
        assert!(read(&ftl, number * CHUNK, CHUNK) == expected, "chunk {number}");
    }
    assert_sound(&ftl);
}

/// Overwriting a part of an encoded chunk needs space that its rest does not give; trims and whole overwrites do not.
#[test]
fn a_full_store_is_trimmed_and_overwritten_whole() {
    let device = mem(4 << 20);
    let ftl = open(&device);
    let (mut rng, mut chunks) = (SeededRng::new(6), 0);
    let mut model = Model::new(4000 * CHUNK);
    let put = |ftl: &Ftl, model: &mut Model, number: u64, data: Vec<u8>| {
        let change = Change::Encoded(Encoded::new(Lba(number * CHUNK), data, LZ4));
        ftl.write_batch(&[change.op()], Stream::Data).map(|_| model.apply(&[change]))
    };
    let full = loop {
        match put(&ftl, &mut model, chunks, chunk(&mut rng)) {
            Ok(()) => chunks += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    let mut same = chunk(&mut rng);
    for number in 0..3 * chunks {
        // The same length encoded: noise in the same places.
        for part in same.chunks_mut(512) {
            rng.fill(&mut part[..120]);
        }
        put(&ftl, &mut model, number % chunks, same.clone())
            .unwrap_or_else(|error| panic!("{number}: {error}"));
    }
    for number in 0..chunks {
        let change = Change::Trim(number * CHUNK + 3, 9);
        ftl.write_batch(&[change.op()], Stream::Data).unwrap();
        model.apply(&[change]);
    }
    model.assert_same(&ftl);
    assert_sound(&ftl);
    ftl.flush().unwrap();
    drop(ftl);
    let ftl = open(&device);
    model.assert_same(&ftl);
    assert_sound(&ftl);
}

/// A store with one encoded chunk of 32 sectors at sector 64, in the log, whose payload `forge` has changed behind all
/// checksums.
fn forged(codec: Codec, forge: impl FnOnce(&mut [u8])) -> Arc<dyn BlockDevice> {
    let device = mem(4 << 20);
    let ftl = open(&device);
    write(&ftl, 64, &chunk(&mut SeededRng::new(8)), codec);
    let stored = allocated(&ftl) as usize;
    ftl.flush().unwrap();
    drop(ftl);
    let mut store = ForgedStore::of(&*device);
    let is_batch = |kind: &Structure| *kind == Structure::Record(1);
    let record = store.structures().iter().find(|(kind, _)| is_batch(kind)).unwrap().1.clone();
    let bytes = store.bytes_mut();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (body_end, end) =
        (record.start + 64 + number(record.start + 56), record.start + number(record.start + 60));
    forge(&mut bytes[end - stored..end]);
    let crc = crc32c(&bytes[end - stored..end]);
    // The only entry of the record ends in the payload's checksum.
    bytes[body_end - 4..body_end].copy_from_slice(&crc.to_le_bytes());
    store.seal();
    store.write_to(&*device);
    device
}

/// Changes a payload.
type Forge<'a> = &'a dyn Fn(&mut [u8]);

#[test]
fn a_forged_stream_is_an_error_with_its_place() {
    for codec in [LZ4, ZSTD] {
        let shorter = payload_of(&[3; 16 * SECTOR], codec);
        let ftl = open(&forged(codec, |_| {}));
        assert!(read(&ftl, 64, CHUNK) == chunk(&mut SeededRng::new(8)));
        let bombs: [Forge<'_>; 4] = [
            &|payload| payload[..2].fill(0xff),
            &|payload| payload[2..40].fill(0xff),
            &|payload| payload.fill(0),
            // A whole stream, but of fewer sectors.
            &|payload| {
                payload.fill(0);
                payload[..shorter.len()].copy_from_slice(&shorter);
            },
        ];
        for forge in bombs {
            let ftl = open(&forged(codec, forge));
            for (lba, sectors) in [(64, 1), (64, CHUNK), (90, 6)] {
                let failed = ftl.read(Lba(lba), &mut vec![0; sectors as usize * SECTOR]);
                let Err(Error::Corrupt { reason, .. }) = &failed else { panic!("{failed:?}") };
                assert!(reason.contains("encoded chunk"), "{reason}");
            }
            assert_eq!(ftl.check(CheckDepth::Payload).unwrap().findings.len(), 1);
            assert_eq!(ftl.scrub(|_| ControlFlow::Continue(())).unwrap().damage.len(), 1);
            // What is forged is moved and dropped like anything else.
            trim(&ftl, 70, 3);
            ftl.flush().unwrap();
            ftl.step(Work::Gc).unwrap();
            trim(&ftl, 64, CHUNK);
            assert_eq!(allocated(&ftl), 0);
            assert_sound(&ftl);
        }
    }
}

/// The payload of `data`, as it lies on a device.
fn payload_of(data: &[u8], codec: Codec) -> Vec<u8> {
    let device = mem(4 << 20);
    let ftl = open(&device);
    write(&ftl, 0, data, codec);
    let stored = allocated(&ftl) as usize;
    ftl.flush().unwrap();
    let mut store = ForgedStore::of(&*device);
    let record = store.structures().iter().find(|(kind, _)| *kind == Structure::Record(1)).unwrap().1.clone();
    let bytes = store.bytes_mut();
    let total = u32::from_le_bytes(bytes[record.start + 60..record.start + 64].try_into().unwrap()) as usize;
    bytes[record.start + total - stored..record.start + total].to_vec()
}
