//! The bytes in rows.

use crate::random::Random;

/// LinkBench's motif generator: every stretch of up to [`CHUNK`] bytes is either new random bytes
/// or a piece of a shared buffer of motifs, so that rows compress against each other rather than
/// each in itself.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    kind: Kind,
    motifs: Vec<u8>,
}

/// Longest piece that is taken from one source.
const CHUNK: usize = 128;

/// Length of the motif buffer. LinkBench's configuration says 128 for links, but its test for that
/// setting looks among the values instead of the names, so that all it has ever used is this.
const MOTIF_BYTES: usize = 512;

/// The use of a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    first_byte: u8,
    byte_values: u64,
    uniqueness: f64,
    median_bytes: f64,
    bytes_max: f64,
}

/// Payload of links: a varchar(255).
pub(crate) const LINK: Kind =
    Kind { first_byte: 32, byte_values: 69, uniqueness: 0.225, median_bytes: 8.0, bytes_max: 254.0 };

/// Longest payload of a node in bytes. LinkBench cuts lengths off below its limits of 1 MiB, and of 255 bytes for links.
pub const NODE_DATA_BYTES_MAX: u32 = (1 << 20) - 1;

/// Payload of nodes. One in 3,600 is longer than a quarter of a page of 16 KiB.
pub(crate) const NODE: Kind = Kind {
    first_byte: 50,
    byte_values: 171,
    uniqueness: 0.63,
    median_bytes: 128.0,
    bytes_max: NODE_DATA_BYTES_MAX as f64,
};

impl Payload {
    /// A generator with motifs of its own.
    pub(crate) fn new(kind: Kind, random: &mut Random) -> Payload {
        let mut motifs = Vec::with_capacity(MOTIF_BYTES);
        append_random(kind, random, MOTIF_BYTES, &mut motifs);
        Payload { kind, motifs }
    }

    /// Appends the payload of one row to `row`; its length is log-normal with sigma 1.
    pub(crate) fn append(&self, random: &mut Random, row: &mut Vec<u8>) {
        let kind = self.kind;
        let length = (random.gaussian() + kind.median_bytes.ln()).exp().round();
        let mut left = length.clamp(0.0, kind.bytes_max) as usize;
        while left > 0 {
            let piece = left.min(CHUNK);
            if random.unit() < kind.uniqueness {
                append_random(kind, random, piece, row);
            } else {
                let from = random.below((MOTIF_BYTES - piece + 1) as u64) as usize;
                row.extend_from_slice(&self.motifs[from..from + piece]);
            }
            left -= piece;
        }
    }
}

fn append_random(kind: Kind, random: &mut Random, bytes: usize, out: &mut Vec<u8>) {
    out.extend((0..bytes).map(|_| kind.first_byte + random.below(kind.byte_values) as u8));
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn raw(kind: Kind, rows: usize) -> (Vec<u8>, Vec<usize>) {
        let mut random = Random::new(1, 1);
        let payload = Payload::new(kind, &mut random);
        let mut bytes = Vec::new();
        let lengths = (0..rows).map(|_| {
            let before = bytes.len();
            payload.append(&mut random, &mut bytes);
            bytes.len() - before
        });
        let lengths = lengths.collect();
        (bytes, lengths)
    }

    fn zlib_ratio(bytes: &[u8]) -> f64 {
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        zlib.write_all(bytes).unwrap();
        zlib.finish().unwrap().len() as f64 / bytes.len() as f64
    }

    /// LinkBench states about 60% for nodes and about 30% for links, compressed over raw.
    #[test]
    fn zlib_finds_the_stated_compressibility() {
        let node = zlib_ratio(&raw(NODE, 20_000).0);
        let link = zlib_ratio(&raw(LINK, 200_000).0);
        eprintln!("zlib: nodes {node:.3}, links {link:.3}");
        assert!((0.57..0.65).contains(&node), "nodes {node}");
        assert!((0.25..0.40).contains(&link), "links {link}");
    }

    #[test]
    fn medians_and_byte_ranges_are_the_configured_ones() {
        for (kind, median, bytes) in [(LINK, 8, 32..=100u8), (NODE, 128, 50..=220u8)] {
            let (payload, mut lengths) = raw(kind, 20_001);
            lengths.sort_unstable();
            let found = lengths[10_000];
            assert!(found.abs_diff(median) <= median / 20 + 1, "median {found}");
            // LinkBench's ranges have both their ends.
            assert_eq!(payload.iter().min().zip(payload.iter().max()), Some((bytes.start(), bytes.end())));
            assert!(lengths[20_000] as f64 <= kind.bytes_max);
        }
    }
}
