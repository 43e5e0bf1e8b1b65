//! Stores whose numbers somebody forged behind valid checksums: refused with a line, or used without harm.

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_ftl::{CheckDepth, Error, FormatOptions, Ftl, Lba, Op, Options, Result, Stream, Work};
use lacuna_sim::forge::{ForgedStore, Structure, watch};

const CAPACITY_BYTES: u64 = 4 << 20;
const SEGMENT_BYTES: u32 = 64 << 10;
const RECORD_BYTES: usize = 64;
/// Kinds of records.
const BATCH: u8 = 1;
const ROOT: u8 = 4;
const INDEX: u8 = 5;
const SEGMENTS: u8 = 6;

fn device(capacity_bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new(capacity_bytes))
}

/// A store with data in several segments: closed, or cut off with a log to be replayed.
fn store(is_closed: bool) -> ForgedStore {
    let device = device(CAPACITY_BYTES);
    let format =
        FormatOptions { segment_bytes: Some(SEGMENT_BYTES), uuid: Some([1; 16]), ..FormatOptions::default() };
    Ftl::format(device.clone(), &format).expect("format");
    let ftl = Ftl::open(device.clone(), Options::default()).expect("open");
    for page in 0..20_u64 {
        let data = vec![page as u8 + 1; 16 << 10];
        ftl.write_batch(&[Op::Write { lba: Lba(page * 64), data: &data }], Stream::Data).expect("write");
    }
    ftl.flush().expect("flush");
    if is_closed {
        ftl.close().expect("close");
    }
    drop(ftl);
    ForgedStore::of(&*device)
}

fn sealed(mut store: ForgedStore) -> Arc<dyn BlockDevice> {
    store.seal();
    let device = device(CAPACITY_BYTES);
    store.write_to(&*device);
    device
}

fn open(device: &Arc<dyn BlockDevice>) -> Result<Ftl> {
    Ftl::open(device.clone(), Options::default())
}

fn use_store(ftl: &Ftl) -> Result<()> {
    for page in 0..20 {
        ftl.write_batch(&[Op::Write { lba: Lba(page * 64 + 16), data: &[7; 8192] }], Stream::Data)?;
    }
    ftl.write_batch(&[Op::Trim { lba: Lba(0), sectors: 1 << 40 }], Stream::Data)?;
    ftl.flush()?;
    ftl.step(Work::Gc)?;
    ftl.close()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The counters of two segments trade places, so that their sum is right.
#[test]
fn counters_that_are_not_the_extents_stop_the_store() {
    let mut store = store(true);
    let newest = store.structures().iter().rev().find(|(kind, _)| *kind == Structure::Record(SEGMENTS));
    let range = newest.expect("a closed store has counters").1.clone();
    for (_, range) in
        store.structures().to_vec().into_iter().filter(|(kind, _)| *kind == Structure::Record(SEGMENTS))
    {
        let rows = range.start + RECORD_BYTES..range.end;
        let counted: Vec<usize> =
            rows.step_by(16).filter(|at| u64_at(store.bytes_mut(), *at) > 0).take(2).collect();
        let [a, b] = counted[..] else { continue };
        let bytes = store.bytes_mut();
        let moved = u64_at(bytes, a) - 16;
        let sum = u64_at(bytes, b) + moved;
        bytes[a..a + 8].copy_from_slice(&16_u64.to_le_bytes());
        bytes[b..b + 8].copy_from_slice(&sum.to_le_bytes());
    }
    assert!(!range.is_empty());
    let device = sealed(store);
    if let Ok(ftl) = open(&device) {
        assert!(!ftl.check(CheckDepth::Structure).is_ok_and(|report| report.findings.is_empty()));
        let error = use_store(&ftl).expect_err("what is in a segment is unknown");
        assert!(error.to_string().contains("segment"), "{error}");
    }
}

/// Segments count extents that are in no leaf. Making space collected the same one again and again.
#[test]
fn a_segment_that_counts_what_is_nowhere_is_not_collected_without_end() {
    let mut store = store(true);
    for (_, range) in
        store.structures().to_vec().into_iter().filter(|(kind, _)| *kind == Structure::Record(SEGMENTS))
    {
        let bytes = store.bytes_mut();
        let rows: Vec<usize> = (range.start + RECORD_BYTES..range.end).step_by(16).collect();
        let live: Vec<usize> = rows.into_iter().filter(|at| u64_at(bytes, *at) > 0).collect();
        let [a, .., b] = live[..] else { continue };
        // One extent less in one, one more in the other, and 16 bytes.
        for (field, less) in [(0, 16), (8, 1)] {
            let counted = [u64_at(bytes, a + field) - less, u64_at(bytes, b + field) + less];
            bytes[a + field..][..8].copy_from_slice(&counted[0].to_le_bytes());
            bytes[b + field..][..8].copy_from_slice(&counted[1].to_le_bytes());
        }
    }
    let ftl = open(&sealed(store)).expect("sums that fit");
    // Of the last segment nothing is left but what was counted too much; of the first nothing is touched.
    ftl.write_batch(&[Op::Trim { lba: Lba(8 * 64), sectors: 1 << 40 }], Stream::Data).unwrap();
    let _watchdog = watch("collecting what is nowhere".into());
    while ftl.step(Work::Gc).unwrap() {}
    let findings = ftl.check(CheckDepth::Structure).unwrap().findings;
    let says = |what: &str| findings.iter().any(|finding| finding.message.contains(what));
    assert!(says("nowhere in the map") && !says("cannot be read"), "{findings:?}");
}

/// Behind the last record of a segment, heads of records of its own life, each of which says that it reaches to the
/// segment's end. Verifying them one by one took 200 seconds, and four times as long in a segment twice as long.
#[test]
fn heads_that_somebody_made_are_passed_over_once() {
    const SEGMENT_BYTES: u32 = 16 << 20;
    const CAPACITY_BYTES: u64 = 448 << 20;
    for has_headers in [true, false] {
        let device = device(CAPACITY_BYTES);
        let format = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
        Ftl::format(device.clone(), &format).expect("format");
        let ftl = open(&device).expect("open");
        ftl.write_batch(&[Op::Write { lba: Lba(0), data: &[7; 8192] }], Stream::Data).expect("write");
        ftl.flush().expect("flush");
        drop(ftl);
        for segment in 1..CAPACITY_BYTES / u64::from(SEGMENT_BYTES) {
            let (start, mut bytes) = (segment * u64::from(SEGMENT_BYTES), vec![0; SEGMENT_BYTES as usize]);
            device.read_at(start, &mut bytes).expect("read");
            // Data: docs/FORMAT.md.
            if !bytes.starts_with(b"LSEG") || bytes[10] != 1 {
                continue;
            }
            let life: Vec<u8> = bytes[12..32].to_vec();
            for at in (64 << 10..bytes.len() - RECORD_BYTES).step_by(RECORD_BYTES) {
                let body = (bytes.len() - at - RECORD_BYTES) as u32;
                let head = &mut bytes[at..at + RECORD_BYTES];
                head[..4].copy_from_slice(b"LREC");
                head[8..10].copy_from_slice(&[BATCH, 2]);
                head[12..32].copy_from_slice(&life);
                head[52..56].copy_from_slice(&(at as u32).to_le_bytes());
                head[56..60].copy_from_slice(&body.to_le_bytes());
                head[60..].copy_from_slice(&(body + RECORD_BYTES as u32).to_le_bytes());
            }
            if !has_headers {
                bytes[0] = 0;
            }
            device.write_at(start, &bytes).expect("write");
        }
        let _watchdog = watch(format!("opening among forged heads, has_headers {has_headers}"));
        let opened = open(&device);
        // Without a header it may be a power cut before the only flush.
        assert!(opened.is_ok() || !has_headers);
        drop(opened);
        Ftl::salvage(device, Options::default()).expect("what is left");
    }
}

/// A number of eight bytes that is counted up: what it is, and where it lies in which structures.
type Counter = (&'static str, &'static [(Structure, usize)]);

const COUNTERS: [Counter; 7] = [
    ("sequence", &[(Structure::Superblock, 56)]),
    (
        "epoch",
        &[
            (Structure::Superblock, 64),
            (Structure::Segment, 24),
            (Structure::Record(BATCH), 24),
            (Structure::Record(3), 24),
            (Structure::Record(ROOT), 24),
            (Structure::Record(INDEX), 24),
            (Structure::Record(SEGMENTS), 24),
            (Structure::Summary, 24),
        ],
    ),
    ("flushed batch", &[(Structure::Superblock, 72)]),
    ("batch of the checkpoint", &[(Structure::Record(ROOT), RECORD_BYTES)]),
    ("relocation of the checkpoint", &[(Structure::Record(ROOT), RECORD_BYTES + 8)]),
    ("generation", &[(Structure::Record(ROOT), RECORD_BYTES + 16)]),
    ("batch of a record", &[(Structure::Record(BATCH), 32)]),
];

/// What `check` calls sound is so after some writes, too; and what is near its end is refused in one line.
#[test]
fn counters_near_their_end_are_refused() {
    for (name, places) in COUNTERS {
        for value in
            [u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 30, 1 << 63, (1 << 63) - 2, (1 << 62) + 1]
        {
            for is_closed in [true, false] {
                let mut store = store(is_closed);
                for (kind, at) in places {
                    store.put_u64(*kind, *at, value);
                }
                let device = sealed(store);
                let Ok(ftl) = open(&device) else { continue };
                if !ftl.check(CheckDepth::Payload).is_ok_and(|report| report.findings.is_empty()) {
                    continue;
                }
                let case = format!("{name} {value:#x}, closed: {is_closed}");
                use_store(&ftl).unwrap_or_else(|error| panic!("{case}: {error}"));
                drop(ftl);
                let ftl = open(&device).unwrap_or_else(|error| panic!("{case}: {error}"));
                let report = ftl.check(CheckDepth::Payload).unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!(report.findings, [], "{case}");
            }
        }
    }
}

/// A store of 64 KiB that claims the rest.
#[test]
fn a_claimed_size_is_not_allocated() {
    for (claimed_bytes, segment_bytes) in
        [(4_u64 << 40, SEGMENT_BYTES), (1 << 46, 1 << 20), (1 << 59, 1 << 28)]
    {
        let small = device(CAPACITY_BYTES);
        let format = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
        Ftl::format(small.clone(), &format).expect("format");
        let mut store = ForgedStore::of(&*small);
        for slot in [0, 32 << 10] {
            store.bytes_mut()[slot + 40..slot + 48].copy_from_slice(&claimed_bytes.to_le_bytes());
            store.bytes_mut()[slot + 48..slot + 52].copy_from_slice(&segment_bytes.to_le_bytes());
        }
        store.seal();
        let claimed = Arc::new(MemDevice::new(claimed_bytes));
        store.write_to(&*claimed);
        for read_only in [true, false] {
            let error = Ftl::open(claimed.clone(), Options { read_only, ..Options::default() });
            let error = error.expect_err("more segments than a store may have");
            assert!(matches!(error, Error::Geometry { .. }), "{error}");
            assert!(error.to_string().contains("segments"), "{error}");
        }
        assert!(claimed.stats().reads < 100, "{} reads", claimed.stats().reads);
    }
}
