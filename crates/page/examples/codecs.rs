//! The compressed size of real tables' pages by each codec, and its cost.
//!
//!     lacuna tpcc --store DIR --tables plain --warehouses 1 --seconds 5   # DIR: an empty directory
//!     cargo run --release -p lacuna-page --example codecs -- DIR/t*
//!
//! Plain tables in a directory are files of pages as they are. Of each file up to 2,000 pages are taken; each codec
//! has five turns with all of them, and the best turn counts. Times are processor time of this thread per page.

use std::{env, fs, hint::black_box};

use lacuna_page::{Algorithm, Codec, Decoder, Encoder, HEADER_BYTES, read_meta};

const PAGE: usize = 16 << 10;
const SECTOR: usize = 512;
const PAGES_MAX: usize = 2000;
const TURNS: usize = 5;

fn main() -> std::io::Result<()> {
    let codecs = [
        Codec::fast(Algorithm::None),
        Codec::fast(Algorithm::Lz4),
        Codec { algorithm: Algorithm::Lz4, level: 4 },
        Codec { algorithm: Algorithm::Lz4, level: 12 },
        Codec { algorithm: Algorithm::Lz4, level: -2 },
        Codec { algorithm: Algorithm::Lz4, level: -3 },
        Codec { algorithm: Algorithm::Lz4, level: -8 },
        Codec { algorithm: Algorithm::Zstd, level: -3 },
        Codec::fast(Algorithm::Zstd),
        Codec { algorithm: Algorithm::Zstd, level: 6 },
        Codec { algorithm: Algorithm::Zlib, level: 1 },
        Codec::fast(Algorithm::Zlib),
        Codec::fast(Algorithm::Lzo),
        Codec::fast(Algorithm::Snappy),
        Codec::fast(Algorithm::Bzip2),
        Codec::fast(Algorithm::Lzma),
        Codec { algorithm: Algorithm::Lzma, level: 6 },
    ];
    println!(
        "{:24} {:>6} {:10} {:>9} {:>9} {:>7}",
        "file", "pages", "codec", "encode us", "decode us", "bytes"
    );
    for path in env::args().skip(1) {
        let pages = pages(&fs::read(&path)?);
        let name = path.rsplit('/').next().unwrap_or(&path);
        for codec in codecs.iter().filter(|_| !pages.is_empty()) {
            let (encode, decode, bytes) = measure(&pages, *codec);
            let label = format!("{} {}", codec.algorithm, codec.level);
            println!("{name:24} {:6} {label:10} {encode:9.2} {decode:9.2} {bytes:7.0}", pages.len());
        }
    }
    Ok(())
}

/// Pages spread evenly over the file; holes, freed pages, and bytes that are no page of 16 KiB, are left out.
fn pages(file: &[u8]) -> Vec<Vec<u8>> {
    let mut decoder = Decoder::new();
    let decode = |image: &[u8]| {
        let (meta, mut page) = (read_meta(image), vec![0; PAGE]);
        decoder.decode(image, (meta.table, meta.page_no), &mut page).ok()?;
        Some(page)
    };
    let all: Vec<Vec<u8>> = file.chunks_exact(PAGE).filter_map(decode).collect();
    let step = all.len().div_ceil(PAGES_MAX).max(1);
    all.into_iter().step_by(step).collect()
}

/// Microseconds to encode and to decode, and bytes in whole sectors, per page.
fn measure(pages: &[Vec<u8>], codec: Codec) -> (f64, f64, f64) {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let mut images = vec![vec![0; PAGE]; pages.len()];
    let mut lengths = vec![0; pages.len()];
    let (mut encode, mut decode) = (f64::MAX, f64::MAX);
    for _ in 0..TURNS {
        let start = thread_us();
        for ((page, image), length) in pages.iter().zip(&mut images).zip(&mut lengths) {
            *length = encoder.encode(page, codec, SECTOR, image).image_bytes;
        }
        encode = encode.min(thread_us() - start);
        let mut back = vec![0; PAGE];
        let start = thread_us();
        for (page, image) in pages.iter().zip(&images) {
            let meta = read_meta(page);
            decoder.decode(image, (meta.table, meta.page_no), &mut back).expect("just encoded");
            black_box(&back);
        }
        decode = decode.min(thread_us() - start);
        let last = pages.last().expect("not empty");
        assert!(back[HEADER_BYTES..] == last[HEADER_BYTES..], "the page came back another one");
    }
    let count = pages.len() as f64;
    let bytes: usize = lengths.iter().map(|bytes| bytes.next_multiple_of(SECTOR)).sum();
    (encode / count, decode / count, bytes as f64 / count)
}

/// Processor time of this thread in microseconds: other work on the machine does not count.
fn thread_us() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}
