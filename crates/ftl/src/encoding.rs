//! Encoded chunks: what is stored of a chunk that is compressed.
//!
//! Callers encode their data before they hand it over ([`Encoded`]), so no lock ever waits for a codec, and a batch that
//! must be tried again is not encoded again. Everything between them and the device handles payload, whatever it is;
//! only reads decode.
//!
//! | at | bytes | of the payload of an encoded chunk |
//! |---|---|---|
//! | 0 | 2 | length of the stream |
//! | 2 | that many | the stream, of the algorithm that entry and map name; it is the data of all sectors of the chunk |
//! | | | zeros up to [`GRAIN`], and up to a grain for each sector |
//!
//! Invariants:
//! 1. The payload takes at least a sector less than the data would without its trailing zeros. So it has fewer sectors
//!    than its chunk, and encryption finds a tweak for each of them that is the chunk's own.
//! 2. It has a grain for each sector at least, so fragments are no more than grains, however the chunk is cut.
//! 3. No bytes make a decoder panic, or give more than the sectors that entry and map name.

use std::{borrow::Cow, cell::RefCell, ops::Range};

use lacuna_codec::{Algorithm, Codec, Transform, Transforms};

use crate::{
    Lba, SECTOR,
    addr::{CHUNK_BYTES, CHUNK_SECTORS, GRAIN},
};

/// Algorithms in which chunks may be stored; their numbers are those in entries and map.
pub(crate) const ENCODINGS: [Algorithm; 2] = [Algorithm::Lz4, Algorithm::Zstd];
/// Bytes before the stream.
const HEAD_BYTES: usize = 2;

thread_local! {
    static TRANSFORMS: RefCell<Transforms> = RefCell::default();
}

/// Runs `call` with the transform of `algorithm`, if that is built in.
fn with_transform<T>(
    algorithm: Algorithm,
    call: impl FnOnce(&mut (dyn Transform + 'static)) -> Option<T>,
) -> Option<T> {
    TRANSFORMS.with_borrow_mut(|transforms| transforms.of(algorithm).and_then(call))
}

/// Least payload of an encoded chunk of `sectors` sectors (invariant 2).
pub(crate) fn encoded_bytes_min(sectors: usize) -> usize {
    sectors * GRAIN
}

/// Length of `chunk` without its trailing zeros, in whole grains.
pub(crate) fn stored_bytes(chunk: &[u8]) -> usize {
    let grains = chunk.chunks_exact(GRAIN);
    let zero_tail = grains.rev().take_while(|grain| **grain == [0; GRAIN]).count();
    chunk.len() - zero_tail * GRAIN
}

/// The parts of `data`, written at `lba`, that lie in one chunk of the space each.
pub fn chunks(mut lba: Lba, mut data: &[u8]) -> impl Iterator<Item = (Lba, &[u8])> {
    std::iter::from_fn(move || {
        let left = (CHUNK_SECTORS - lba.0 % CHUNK_SECTORS) as usize * SECTOR;
        let (chunk, rest) = data.split_at(left.min(data.len()));
        let found = (lba, chunk);
        (lba, data) = (Lba(lba.0.wrapping_add((chunk.len() / SECTOR) as u64)), rest);
        (!chunk.is_empty()).then_some(found)
    })
}

/// The payload of an encoded chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncodedChunk<'a> {
    pub(crate) encoding: Algorithm,
    /// Sectors that it decodes to: those before the zeros at the end of what was to be encoded.
    pub(crate) sectors: u64,
    pub(crate) payload: &'a [u8],
}

/// Decides which chunks are worth an attempt to encode them, as the data goes by.
pub trait Choice {
    /// Whether to try the next chunk, of so many bytes.
    fn tries(&mut self, bytes: usize) -> bool;

    /// The chunk that was just tried is stored encoded, or is not because that would save no sector.
    fn tried(&mut self, bytes: usize, is_shorter: bool);
}

/// Tries every chunk.
struct EachChunk;

impl Choice for EachChunk {
    fn tries(&mut self, _: usize) -> bool {
        true
    }

    fn tried(&mut self, _: usize, _: bool) {}
}

/// Data to be written, encoded where that saves a sector: [`crate::Op::Encoded`].
#[derive(Clone)]
pub struct Encoded<'a> {
    lba: Lba,
    data: Cow<'a, [u8]>,
    memory: Vec<u8>,
    /// Of each chunk of `data`, where it lies in `memory`; nothing of one that is stored plain.
    payloads: Vec<Option<Range<usize>>>,
    encoding: Algorithm,
}

impl<'a> Encoded<'a> {
    /// Encodes `data`, a whole number of sectors to be written at `lba`. What does not shrink by a sector is stored
    /// plain, and so is all of it if the codec's algorithm is not built in, or is neither `lz4` nor `zstd`.
    pub fn new(lba: Lba, data: impl Into<Cow<'a, [u8]>>, codec: Codec) -> Encoded<'a> {
        Encoded::choosing(lba, data, codec, &mut EachChunk)
    }

    /// As [`Encoded::new`], and what `choice` does not try is stored plain too. It is not asked about chunks that cannot
    /// become a sector shorter.
    pub fn choosing(
        lba: Lba,
        data: impl Into<Cow<'a, [u8]>>,
        codec: Codec,
        choice: &mut impl Choice,
    ) -> Encoded<'a> {
        let data = data.into();
        let (mut memory, mut payloads) = (Vec::new(), Vec::new());
        if ENCODINGS.contains(&codec.algorithm) && data.len().is_multiple_of(SECTOR) {
            let encoded = |(_, chunk): (Lba, &[u8])| {
                let limit = payload_bytes_max(chunk).filter(|_| choice.tries(chunk.len()))?;
                let payload = encode(chunk, limit, codec, &mut memory);
                choice.tried(chunk.len(), payload.is_some());
                payload
            };
            payloads = chunks(lba, &data).map(encoded).collect();
        }
        Encoded { lba, data, memory, payloads, encoding: codec.algorithm }
    }

    /// First sector of the data.
    pub fn lba(&self) -> Lba {
        self.lba
    }

    /// The data.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Whether nothing of it became shorter.
    pub fn is_plain(&self) -> bool {
        self.payloads.iter().all(Option::is_none)
    }

    /// Bytes of the chunks that became shorter, without the zeros at their ends, and what these are stored in.
    pub fn shortened(&self) -> (u64, u64) {
        let bytes = |(_, _, encoded): (Lba, &[u8], Option<EncodedChunk<'_>>)| {
            encoded.map(|encoded| (encoded.sectors * SECTOR as u64, encoded.payload.len() as u64))
        };
        let sum = |(from, to), (of_chunk, payload)| (from + of_chunk, to + payload);
        self.chunks().filter_map(bytes).fold((0, 0), sum)
    }

    /// Bytes that it takes once it is written.
    pub fn stored_bytes(&self) -> u64 {
        let bytes = |(_, chunk, encoded): (Lba, &[u8], Option<EncodedChunk<'_>>)| {
            encoded.map_or_else(|| stored_bytes(chunk), |encoded| encoded.payload.len()) as u64
        };
        self.chunks().map(bytes).sum()
    }

    /// The chunks, each with its payload if it is stored encoded.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (Lba, &[u8], Option<EncodedChunk<'_>>)> {
        let payloads = self.payloads.iter().cloned().chain(std::iter::repeat(None));
        chunks(self.lba, &self.data).zip(payloads).map(|((lba, chunk), payload)| {
            let encoded = payload.map(|payload| EncodedChunk {
                encoding: self.encoding,
                sectors: stored_bytes(chunk).div_ceil(SECTOR) as u64,
                payload: &self.memory[payload],
            });
            (lba, chunk, encoded)
        })
    }
}

/// The longest payload of `chunk` that saves a sector, if there is any.
fn payload_bytes_max(chunk: &[u8]) -> Option<usize> {
    let stored = stored_bytes(chunk);
    let min = encoded_bytes_min(stored.div_ceil(SECTOR));
    stored.checked_sub(SECTOR).filter(|limit| *limit >= min.max(HEAD_BYTES + 1))
}

/// Appends the payload of `chunk`, of at most `limit` bytes, to `memory`, and returns where it lies there; nothing if it
/// does not fit.
fn encode(chunk: &[u8], limit: usize, codec: Codec, memory: &mut Vec<u8>) -> Option<Range<usize>> {
    let sectors = stored_bytes(chunk).div_ceil(SECTOR);
    let min = encoded_bytes_min(sectors);
    let start = memory.len();
    memory.resize(start + limit, 0);
    let (head, out) = memory[start..].split_at_mut(HEAD_BYTES);
    let body = &chunk[..sectors * SECTOR];
    let stream = with_transform(codec.algorithm, |transform| transform.compress(body, codec.level, out));
    let Some(stream) = stream else {
        memory.truncate(start);
        return None;
    };
    head.copy_from_slice(&(stream as u16).to_le_bytes());
    out[stream..].fill(0);
    let end = start + (HEAD_BYTES + stream).next_multiple_of(GRAIN).max(min);
    memory.truncate(end);
    Some(start..end)
}

impl std::fmt::Debug for Encoded<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (from, to) = (self.data.len(), self.memory.len());
        write!(f, "Encoded({} bytes at {}, {} chunks in {to} bytes)", from, self.lba.0, self.payloads.len())
    }
}

/// Why a payload does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecodable {
    /// It was not made by an encoder.
    Flaw(&'static str),
    /// This program lacks the algorithm.
    NotBuiltIn(Algorithm),
}

/// Decodes `payload` to exactly `out`.
pub(crate) fn decode(encoding: Algorithm, payload: &[u8], out: &mut [u8]) -> Result<(), Undecodable> {
    use Undecodable::{Flaw, NotBuiltIn};
    assert!(out.len() <= CHUNK_BYTES, "a chunk of {} bytes", out.len());
    let (head, rest) = payload.split_first_chunk::<HEAD_BYTES>().ok_or(Flaw("encoded chunk is too short"))?;
    let bytes = usize::from(u16::from_le_bytes(*head));
    let (stream, zeros) =
        rest.split_at_checked(bytes).ok_or(Flaw("encoded chunk is shorter than it says"))?;
    if zeros.iter().any(|byte| *byte != 0) {
        return Err(Flaw("encoded chunk with bytes behind its stream"));
    }
    if !encoding.is_built_in() {
        return Err(NotBuiltIn(encoding));
    }
    match with_transform(encoding, |transform| transform.decompress(stream, out)) {
        Some(bytes) if bytes == out.len() => Ok(()),
        Some(_) => Err(Flaw("encoded chunk decodes to another length")),
        None => Err(Flaw("encoded chunk does not decode")),
    }
}

#[cfg(all(test, feature = "lz4", feature = "zstd"))]
mod tests {
    use lacuna_sim::{SeededRng, for_each_seed};

    use super::*;

    /// Data that shrinks more or less, with zeros at its end now and then.
    fn data(rng: &mut SeededRng, sectors: usize) -> Vec<u8> {
        let mut data = vec![0; sectors * SECTOR];
        let zeros_max = if rng.chance(50) { 1 } else { data.len() as u64 };
        let len = data.len() - rng.below(zeros_max) as usize;
        let words = 1 + rng.below(200);
        for part in data[..len].chunks_mut(8) {
            let word = rng.below(words).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
        if rng.chance(20) {
            rng.fill(&mut data[..len]);
        }
        data
    }

    #[test]
    fn what_is_encoded_decodes_and_saves_a_sector() {
        let mut encoded_chunks = 0;
        for_each_seed(300, |seed| {
            let mut rng = SeededRng::new(seed);
            let sectors = 1 + rng.below(80) as usize;
            let (lba, data) = (Lba(rng.below(100)), data(&mut rng, sectors));
            let codec = Codec::fast(ENCODINGS[rng.below(2) as usize]);
            let encoded = Encoded::new(lba, &data[..], codec);
            let mut at = lba;
            for (start, chunk, encoded) in encoded.chunks() {
                assert_eq!(start, at);
                at.0 += (chunk.len() / SECTOR) as u64;
                let Some(EncodedChunk { encoding, sectors, payload }) = encoded else { continue };
                encoded_chunks += 1;
                assert_eq!(encoding, codec.algorithm);
                assert!(payload.len() + SECTOR <= stored_bytes(chunk));
                assert!(
                    payload.len().is_multiple_of(GRAIN)
                        && payload.len() >= encoded_bytes_min(sectors as usize)
                );
                let mut back = vec![0xee; sectors as usize * SECTOR];
                decode(encoding, payload, &mut back).unwrap();
                let (front, tail) = chunk.split_at(back.len());
                assert!(front == back && tail.iter().all(|byte| *byte == 0));
            }
            assert_eq!(at.0, lba.0 + sectors as u64);
        });
        assert!(encoded_chunks > 200, "{encoded_chunks}");
    }

    #[test]
    fn other_algorithms_and_what_does_not_shrink_are_plain() {
        let mut noise = vec![0; CHUNK_BYTES];
        SeededRng::new(1).fill(&mut noise);
        for (data, algorithm) in [
            (&noise[..], Algorithm::Lz4),
            (&noise, Algorithm::Zstd),
            (&[1; CHUNK_BYTES], Algorithm::None),
            (&[1; CHUNK_BYTES], Algorithm::Zlib),
            (&[1; SECTOR], Algorithm::Lz4),
            (&[0; CHUNK_BYTES], Algorithm::Lz4),
        ] {
            let encoded = Encoded::new(Lba(0), data, Codec::fast(algorithm));
            assert!(encoded.is_plain(), "{encoded:?}");
            assert_eq!(encoded.chunks().filter(|(.., encoded)| encoded.is_none()).count(), 1);
        }
    }

    /// Tries every other chunk.
    #[derive(Default)]
    struct EveryOther {
        asked: usize,
        shorter: usize,
    }

    impl Choice for EveryOther {
        fn tries(&mut self, bytes: usize) -> bool {
            assert_eq!(bytes, CHUNK_BYTES);
            self.asked += 1;
            self.asked % 2 == 1
        }

        fn tried(&mut self, _: usize, is_shorter: bool) {
            self.shorter += usize::from(is_shorter);
        }
    }

    #[test]
    fn what_is_not_chosen_is_plain() {
        let mut choice = EveryOther::default();
        let mut data = vec![1; 6 * CHUNK_BYTES];
        data[4 * CHUNK_BYTES..5 * CHUNK_BYTES].fill(0); // nobody is asked about it
        let encoded = Encoded::choosing(Lba(0), &data[..], Codec::fast(Algorithm::Lz4), &mut choice);
        let is_encoded: Vec<_> = encoded.chunks().map(|(.., encoded)| encoded.is_some()).collect();
        assert_eq!(is_encoded, [true, false, true, false, false, true]);
        assert_eq!((choice.asked, choice.shorter), (5, 3));
        let (from, to) = encoded.shortened();
        assert!(from == 3 * CHUNK_BYTES as u64 && to == 3 * 512, "{from} {to}");
        assert_eq!(encoded.stored_bytes(), to + 2 * CHUNK_BYTES as u64, "nothing for the zeros");
    }

    #[test]
    fn what_no_encoder_made_is_refused() {
        let data: Vec<u8> = (0..CHUNK_BYTES).map(|at| (at / 64) as u8).collect();
        for algorithm in ENCODINGS {
            let encoded = Encoded::new(Lba(0), &data[..], Codec::fast(algorithm));
            let (.., chunk) = encoded.chunks().next().unwrap();
            let payload = chunk.unwrap().payload;
            let decodes = |payload: &[u8], sectors: usize| {
                decode(algorithm, payload, &mut vec![0; sectors * SECTOR]).is_ok()
            };
            assert!(decodes(payload, 32) && !decodes(payload, 31) && !decodes(payload, 1));
            let stream_end = 2 + usize::from(u16::from_le_bytes([payload[0], payload[1]]));
            for len in 0..stream_end {
                assert!(!decodes(&payload[..len], 32), "{len} bytes");
            }
            let stray = [payload, &[1]].concat();
            assert!(!decodes(&stray, 32));
            for bit in 0..payload.len() * 8 {
                let mut flipped = payload.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                decodes(&flipped, 32);
            }
            let mut long = payload.to_vec();
            long[..2].fill(0xff);
            assert!(!decodes(&long, 32));
        }
        assert!(!ENCODINGS.contains(&Algorithm::Zlib));
        let zeros = decode(Algorithm::Lz4, &[0; 16], &mut [0; SECTOR]);
        assert!(matches!(zeros, Err(Undecodable::Flaw(_))), "{zeros:?}");
    }
}
