//! Images against the frames they were made of, and against every kind of damage.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};

use lacuna_page::{
    Algorithm, Codec, Decoder, Encoded, Encoder, Error, HEADER_BYTES, Meta, PageCipher, TRAILER_BYTES,
    add_checksum, image_bytes, image_form, is_encrypted, read_meta, write_meta,
};

const SECTOR: usize = 512;

/// SplitMix64: random enough for these tests.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Runs `case` with LACUNA_CASES seeds from LACUNA_SEED on; names the seed of one that fails.
fn for_each_seed(cases: u64, case: impl Fn(&mut Random)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with LACUNA_SEED={} LACUNA_CASES=1", self.0);
            }
        }
    }
    let variable = |name| std::env::var(name).ok().map(|v| v.parse::<u64>().expect(name));
    let first = variable("LACUNA_SEED").unwrap_or(1);
    for seed in first..first + variable("LACUNA_CASES").unwrap_or(cases) {
        let named = Named(seed);
        case(&mut Random(seed));
        drop(named);
    }
}

/// A page with runs, repeats and noise in random proportion, partly empty.
fn random_page(random: &mut Random) -> (Vec<u8>, Meta) {
    let mut page = vec![0; 4096 << random.below(5)];
    let filled = HEADER_BYTES + random.below(page.len() - HEADER_BYTES);
    let noise_percent = random.below(101);
    let mut at = HEADER_BYTES;
    while at < filled {
        let len = (1 + random.below(300)).min(filled - at);
        if random.below(100) < noise_percent {
            page[at..at + len].fill_with(|| random.next() as u8);
        } else if at > HEADER_BYTES && random.below(2) == 0 {
            let from = HEADER_BYTES + random.below(at - HEADER_BYTES);
            let len = len.min(at - from);
            page.copy_within(from..from + len, at);
        } else {
            page[at..at + len].fill(random.next() as u8);
        }
        at += len;
    }
    let meta = Meta {
        kind: random.next() as u8,
        table: random.next() as u32,
        page_no: random.next(),
        lsn: random.next(),
    };
    write_meta(&mut page, &meta);
    (page, meta)
}

fn random_codec(random: &mut Random) -> Codec {
    let algorithm = Algorithm::ALL[random.below(Algorithm::ALL.len())];
    Codec { algorithm, level: random.below(8) as i32 - 3 }
}

fn image_of(page: &[u8], codec: Codec) -> (Vec<u8>, Encoded) {
    let mut image = vec![0xEE; page.len()];
    let encoded = Encoder::new().encode(page, codec, SECTOR, &mut image);
    (image, encoded)
}

fn address(meta: &Meta) -> (u32, u64) {
    (meta.table, meta.page_no)
}

/// Invariant 2, and 4 for the plain ones.
#[test]
fn every_page_comes_back() {
    for_each_seed(300, |random| {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        for _ in 0..4 {
            let (page, meta) = random_page(random);
            let codec = random_codec(random);
            let mut image = vec![0xEE; page.len()];
            let encoded = encoder.encode(&page, codec, SECTOR, &mut image);
            let stored = encoded.image_bytes.next_multiple_of(SECTOR);
            assert!(image[encoded.image_bytes..stored].iter().all(|&b| b == 0), "padding is zero");
            assert_eq!(image_bytes(&image[..HEADER_BYTES]), Ok(encoded.image_bytes));
            assert_eq!(image_form(&image[..HEADER_BYTES]), Ok((encoded.algorithm, encoded.image_bytes)));
            if encoded.algorithm == Algorithm::None {
                assert_eq!(encoded.image_bytes, page.len());
                assert_ne!(image[page.len() - 1], 0, "invariant 4");
            } else {
                assert_eq!(encoded.algorithm, codec.algorithm);
                assert!(stored < page.len(), "saves a sector");
            }
            let mut back = vec![0x55; page.len()];
            assert_eq!(decoder.decode(&image[..stored], address(&meta), &mut back), Ok(meta));
            assert!(back == page, "the page changed");
            assert_eq!(read_meta(&back), meta);
        }
    });
}

#[test]
fn a_page_that_does_not_shrink_by_a_sector_is_plain() {
    let mut random = Random(7);
    let mut page = vec![0; 4096];
    // Noise but for a few hundred bytes of zeros: compressible, by less than a sector.
    page[HEADER_BYTES..3700].fill_with(|| random.next() as u8);
    write_meta(&mut page, &Meta { kind: 1, table: 1, page_no: 1, lsn: 1 });
    for algorithm in Algorithm::ALL {
        let (image, encoded) = image_of(&page, Codec::fast(algorithm));
        assert_eq!(encoded, Encoded { image_bytes: 4096, algorithm: Algorithm::None });
        assert_eq!(image[HEADER_BYTES..], page[HEADER_BYTES..]);
        assert_eq!(image[..36], page[..36], "a page in memory is its plain image without a checksum");
    }
}

/// Invariant 3: any flipped bit of an image is detected.
#[test]
fn flipped_bits_are_noticed() {
    for_each_seed(40, |random| {
        let (page, meta) = random_page(random);
        let (image, encoded) = image_of(&page, random_codec(random));
        let mut decoder = Decoder::new();
        let mut back = vec![0; page.len()];
        let in_header = 0..HEADER_BYTES * 8;
        let sampled: Vec<usize> = (0..200).map(|_| random.below(encoded.image_bytes * 8)).collect();
        for bit in in_header.chain(sampled) {
            let mut damaged = image.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decoder.decode(&damaged, address(&meta), &mut back).is_err(), "bit {bit}");
        }
    });
}

#[test]
fn torn_and_truncated_images_are_noticed() {
    for_each_seed(100, |random| {
        let (old, meta) = random_page(random);
        let mut new = old.clone();
        let at = HEADER_BYTES + random.below(new.len() - HEADER_BYTES - TRAILER_BYTES - 8);
        let change = random.next() | 1;
        new[at..at + 8].iter_mut().zip(change.to_le_bytes()).for_each(|(b, c)| *b ^= c);
        write_meta(&mut new, &Meta { lsn: meta.lsn.wrapping_add(1), ..meta });
        let codec = random_codec(random);
        let ((mut old_image, _), (new_image, encoded)) = (image_of(&old, codec), image_of(&new, codec));
        let sectors = encoded.image_bytes.div_ceil(SECTOR);
        let mut back = vec![0; new.len()];
        let mut decoder = Decoder::new();
        let cut = random.below(encoded.image_bytes);
        assert!(decoder.decode(&new_image[..cut], address(&meta), &mut back).is_err(), "cut at {cut}");
        // A prefix of the sectors is new, the rest old: either exactly one of both pages, or an error.
        let torn = random.below(sectors) * SECTOR;
        old_image[..torn].copy_from_slice(&new_image[..torn]);
        if decoder.decode(&old_image, address(&meta), &mut back).is_ok() {
            assert!(back == old || back == new, "torn at {torn}");
        }
    });
}

/// A body that is packed here is cut where its zeros at the end begin.
fn unpack(packed: &[u8], page: &mut [u8]) -> Result<(), &'static str> {
    let end = HEADER_BYTES + packed.len();
    if end > page.len() - TRAILER_BYTES || packed.last() == Some(&0) {
        return Err("zeros at the end");
    }
    page[HEADER_BYTES..end].copy_from_slice(packed);
    page[end..].fill(0);
    Ok(())
}

/// Invariants 2, 3 and 5 for bodies that their owner packs.
#[test]
fn packed_bodies_come_back_to_their_owner_alone() {
    for_each_seed(100, |random| {
        let (page, meta) = random_page(random);
        let body = &page[HEADER_BYTES..page.len() - TRAILER_BYTES];
        let packed = &body[..body.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)];
        let codec = random_codec(random);
        let mut image = vec![0xEE; page.len()];
        let Some(encoded) = Encoder::new().encode_packed(&page, packed, codec, SECTOR, &mut image) else {
            let (_, encoded) = image_of(&page, codec);
            assert!(encoded.image_bytes + 2 * SECTOR > page.len(), "there was space for it");
            return;
        };
        let stored = encoded.image_bytes.next_multiple_of(SECTOR);
        assert!(stored < page.len() && encoded.algorithm == codec.algorithm);
        assert!(image[encoded.image_bytes..stored].iter().all(|byte| *byte == 0), "padding is zero");
        assert_eq!(image_bytes(&image), Ok(encoded.image_bytes));
        let image = &image[..stored];
        let mut back = vec![0x55; page.len()];
        let mut owner = Decoder::unpacking(unpack);
        assert_eq!(owner.decode(image, address(&meta), &mut back), Ok(meta));
        assert!(back == page, "the page changed");
        assert_eq!(Decoder::new().decode(image, address(&meta), &mut back), Err(Error::Flags(1)));

        let reseal = |image: &mut [u8]| {
            image[36..40].fill(0);
            let checksum = lacuna_crc::crc32c(&image[..encoded.image_bytes]);
            image[36..40].copy_from_slice(&checksum.to_le_bytes());
        };
        let mut forged = image.to_vec();
        forged[7] = 0;
        assert!(matches!(owner.decode(&forged, address(&meta), &mut back), Err(Error::Checksum { .. })));
        reseal(&mut forged);
        // It is a body only if nothing was cut off it.
        if packed.len() < body.len() {
            let found = owner.decode(&forged, address(&meta), &mut back);
            assert_eq!(found, Err(Error::Undecodable(codec.algorithm)));
        }
        forged[7] = 1;
        forged[6] = u8::from(Algorithm::None);
        reseal(&mut forged);
        assert_eq!(owner.decode(&forged, address(&meta), &mut back), Err(Error::Flags(1)));
        forged[7] = 9;
        reseal(&mut forged);
        assert_eq!(owner.decode(&forged, address(&meta), &mut back), Err(Error::Flags(9)));
    });
}

/// Nor does a flipped bit make an image of the one kind pass for one of the other.
#[test]
fn without_checksums_the_header_is_checked_all_the_same() {
    let (meta, mut page) = (Meta { kind: 1, table: 7, page_no: 9, lsn: 11 }, vec![0; 4096]);
    page[64..4088].fill(5);
    lacuna_page::write_meta(&mut page, &meta);
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let mut back = vec![0; 4096];
    for codec in [Codec::PLAIN, Codec { algorithm: Algorithm::Lz4, level: 0 }] {
        for is_checked in [true, false] {
            encoder.set_checksums(is_checked);
            let mut image = vec![0; 4096];
            let encoded = encoder.encode(&page, codec, 512, &mut image);
            assert_eq!(decoder.decode(&image, (7, 9), &mut back), Ok(meta));
            assert_eq!(lacuna_page::is_unchecked(&image), !is_checked);
            for bit in 0..HEADER_BYTES * 8 {
                image[bit / 8] ^= 1 << (bit % 8);
                assert!(decoder.decode(&image, (7, 9), &mut back).is_err(), "bit {bit} of the header");
                image[bit / 8] ^= 1 << (bit % 8);
            }
            image[encoded.image_bytes / 2 + 32] ^= 1;
            let found = decoder.decode(&image, (7, 9), &mut back);
            assert_eq!(matches!(found, Err(Error::Checksum { .. })), is_checked, "{found:?}");
        }
    }
}

/// For a write that may be torn after all. What has a checksum stays as it is.
#[test]
fn a_checksum_can_be_added() {
    let (meta, mut page) = (Meta { kind: 1, table: 7, page_no: 9, lsn: 11 }, vec![0; 4096]);
    page[64..4088].fill(5);
    write_meta(&mut page, &meta);
    let (checked, encoded) = image_of(&page, Codec::fast(Algorithm::Lz4));
    let mut encoder = Encoder::new();
    encoder.set_checksums(false);
    let mut image = vec![0xEE; page.len()];
    assert_eq!(encoder.encode(&page, Codec::fast(Algorithm::Lz4), SECTOR, &mut image), encoded);
    let stored = encoded.image_bytes.next_multiple_of(SECTOR);
    assert!(image[..stored] != checked[..stored]);
    for _ in 0..2 {
        add_checksum(&mut image);
        assert!(image[..stored] == checked[..stored]);
    }
    // What its checksum says is wrong is no better for it.
    image[encoded.image_bytes - 1] ^= 1;
    add_checksum(&mut image);
    let found = Decoder::new().decode(&image, address(&meta), &mut vec![0; 4096]);
    assert!(matches!(found, Err(Error::Checksum { .. })), "{found:?}");
}

#[test]
fn what_is_no_page_is_not_encoded() {
    let refuses = |call: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(call)).is_err();
    let meta = Meta { kind: 1, table: 7, page_no: 9, lsn: 11 };
    for bytes in [0, 2048, 12 << 10, 128 << 10] {
        assert!(refuses(&mut || write_meta(&mut vec![0; bytes], &meta)), "{bytes}");
    }
    let mut page = vec![0; 4096];
    assert!(refuses(&mut || drop(image_of(&page, Codec::PLAIN))), "no header");
    write_meta(&mut page, &meta);
    let mut out = vec![0; 4096];
    let encode = |page: &[u8], sector, out: &mut [u8]| {
        refuses(&mut || {
            Encoder::new().encode(page, Codec::PLAIN, sector, out);
        })
    };
    for (sector, is_refused) in [(0, true), (512, false), (1000, true), (4096, false), (8192, true)] {
        assert_eq!(encode(&page, sector, &mut out), is_refused, "sectors of {sector} bytes");
    }
    assert!(encode(&page, SECTOR, &mut out[..4095]), "no space for an image");
    page[0] ^= 1;
    assert!(encode(&page, SECTOR, &mut out), "another magic");
    let mut longer = vec![0; 8192];
    page[0] ^= 1;
    longer[..4096].copy_from_slice(&page);
    assert!(encode(&longer, SECTOR, &mut vec![0; 8192]), "the header of a shorter page");
    assert!(refuses(&mut || add_checksum(&mut [0; 4096])));
}

/// No cipher to trust: each byte depends on its place, the tweak and the key.
struct Stream(u8);

impl PageCipher for Stream {
    fn encrypt(&self, tweak: u128, data: &mut [u8]) {
        assert!(data.len().is_multiple_of(16), "whole blocks");
        for (unit, data) in data.chunks_mut(512).enumerate() {
            let mut random = Random((tweak + unit as u128) as u64 ^ (tweak >> 64) as u64 ^ u64::from(self.0));
            data.iter_mut().for_each(|byte| *byte ^= random.next() as u8);
        }
    }

    fn decrypt(&self, tweak: u128, data: &mut [u8]) {
        self.encrypt(tweak, data);
    }
}

/// Invariants 2, 3 and 6.
#[test]
fn encrypted_images_come_back_with_their_key_alone_and_are_verified_without() {
    for_each_seed(200, |random| {
        let (page, meta) = random_page(random);
        let codec = random_codec(random);
        let (plain_image, plain) = image_of(&page, codec);
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        encoder.set_checksums(random.below(4) > 0);
        encoder.set_cipher(Some(Arc::new(Stream(7))));
        let mut image = vec![0xEE; page.len()];
        let encoded = encoder.encode(&page, codec, SECTOR, &mut image);
        assert_eq!(encoded.algorithm, plain.algorithm, "encryption takes no sector");
        let (stored, plain_stored) = (encoded.image_bytes, plain.image_bytes);
        assert_eq!(stored, HEADER_BYTES + (plain_stored - HEADER_BYTES).next_multiple_of(16));
        assert_eq!(image_form(&image[..HEADER_BYTES]), Ok((encoded.algorithm, stored)));
        assert!(is_encrypted(&image) && !is_encrypted(&plain_image));
        assert!(image[HEADER_BYTES..][..16] != plain_image[HEADER_BYTES..][..16]);
        let image = &mut image[..stored.next_multiple_of(SECTOR)];
        assert!(image[stored..].iter().all(|byte| *byte == 0), "padding is zero");
        let mut back = vec![0x55; page.len()];
        assert_eq!(decoder.decode_with(Some(&Stream(7)), image, address(&meta), &mut back), Ok(meta));
        assert!(back == page, "the page changed");
        assert_eq!(decoder.decode(image, address(&meta), &mut back), Err(Error::Encrypted));
        let elsewhere = decoder.decode(image, (meta.table, meta.page_no ^ 1), &mut back);
        assert!(matches!(elsewhere, Err(Error::Misplaced { .. })), "verified without the key");
        // A wrong key never panics.
        let _ = decoder.decode_with(Some(&Stream(8)), image, address(&meta), &mut back);
        // A plain image is read although there is a key: tables mix them.
        let decoded = decoder.decode_with(Some(&Stream(7)), &plain_image, address(&meta), &mut back);
        assert_eq!(decoded, Ok(meta));
        let is_checked = !lacuna_page::is_unchecked(image);
        for _ in 0..20 {
            let bit = random.below(if is_checked { stored } else { HEADER_BYTES } * 8);
            image[bit / 8] ^= 1 << (bit % 8);
            let found = decoder.decode(image, address(&meta), &mut back);
            assert!(found.is_err() && found != Err(Error::Encrypted), "bit {bit}");
            image[bit / 8] ^= 1 << (bit % 8);
        }
    });
}

/// Invariant 6: no two states of a page, nor two pages, nor two sectors of one, are encrypted alike.
#[test]
fn the_tweak_is_the_lsn_and_the_page_and_the_sector() {
    #[derive(Default)]
    struct Recorder(Mutex<Vec<u128>>);
    impl PageCipher for Recorder {
        fn encrypt(&self, tweak: u128, _: &mut [u8]) {
            self.0.lock().unwrap().push(tweak);
        }

        fn decrypt(&self, tweak: u128, data: &mut [u8]) {
            self.encrypt(tweak, data);
        }
    }
    let recorder = Arc::new(Recorder::default());
    let mut encoder = Encoder::new();
    encoder.set_cipher(Some(recorder.clone()));
    let mut page = vec![5; 4096];
    let meta = Meta { kind: 1, table: 7, page_no: 0x1234, lsn: 0xABCD };
    write_meta(&mut page, &meta);
    let (mut image, mut back) = (vec![0; 4096], vec![0; 4096]);
    encoder.encode(&page, Codec::PLAIN, SECTOR, &mut image);
    assert_eq!(Decoder::new().decode_with(Some(&*recorder), &image, address(&meta), &mut back), Ok(meta));
    assert_eq!(*recorder.0.lock().unwrap(), [(0xABCD << 64) + (0x1234 << 7); 2]);
}

/// Lengths and flags that contradict each other, under a valid checksum.
#[test]
fn forged_headers_of_encrypted_images_are_errors() {
    let (meta, mut page) = (Meta { kind: 1, table: 7, page_no: 9, lsn: 11 }, vec![0; 4096]);
    page[64..1000].fill(5);
    write_meta(&mut page, &meta);
    let mut encoder = Encoder::new();
    encoder.set_cipher(Some(Arc::new(Stream(7))));
    let mut image = vec![0; 4096];
    let encoded = encoder.encode(&page, Codec::fast(Algorithm::Lz4), SECTOR, &mut image);
    let mut decoder = Decoder::new();
    let mut decode = |change: &dyn Fn(&mut [u8])| {
        let mut forged = image.clone();
        change(&mut forged);
        let stored = u32::from_le_bytes(forged[32..36].try_into().expect("four bytes")) as usize;
        forged[36..40].fill(0);
        let checksum = lacuna_crc::crc32c(&forged[..HEADER_BYTES + stored]);
        forged[36..40].copy_from_slice(&checksum.to_le_bytes());
        decoder.decode_with(Some(&Stream(7)), &forged, (7, 9), &mut vec![0; 4096])
    };
    assert_eq!(decode(&|_| ()), Ok(meta));
    assert_eq!(decode(&|image| image[7] = 0), Err(Error::Stray), "padding of a plain image");
    assert_eq!(decode(&|image| image[40] = 16), Err(Error::Stray), "too much padding");
    assert_eq!(decode(&|image| image[41] = 1), Err(Error::Stray));
    let shorter = (encoded.image_bytes - HEADER_BYTES - 1) as u32;
    assert_eq!(
        decode(&|image| image[32..36].copy_from_slice(&shorter.to_le_bytes())),
        Err(Error::Stray),
        "no whole blocks"
    );
    assert_eq!(decode(&|image| image[32..36].fill(0)), Err(Error::Stray), "padding of nothing");
    let nothing = decode(&|image| {
        image[32..36].fill(0);
        image[40] = 0;
    });
    assert_eq!(nothing, Err(Error::Undecodable(Algorithm::Lz4)));
    let padding_less = image[40].wrapping_sub(1);
    assert!(decode(&|image| image[40] = padding_less).is_err(), "another length of the compressed bytes");
}

#[test]
fn blank_foreign_and_misplaced_are_told_apart() {
    let mut decoder = Decoder::new();
    let mut back = vec![0; 4096];
    assert_eq!(decoder.decode(&[0; 4096], (1, 1), &mut back), Err(Error::Blank));
    let mut dirty = [0; 4096];
    dirty[4095] = 1;
    assert_eq!(decoder.decode(&dirty, (1, 1), &mut back), Err(Error::NotAPage));
    assert_eq!(decoder.decode(&[], (1, 1), &mut back), Err(Error::Length));

    let meta = Meta { kind: 9, table: 2, page_no: 3, lsn: 4 };
    let mut page = vec![0; 4096];
    write_meta(&mut page, &meta);
    let (image, _) = image_of(&page, Codec::fast(Algorithm::Lz4));
    let misplaced = Err(Error::Misplaced { table: 2, page_no: 3 });
    assert_eq!(decoder.decode(&image, (2, 4), &mut back), misplaced);
    assert_eq!(decoder.decode(&image, (1, 3), &mut back), misplaced);
    assert_eq!(decoder.decode(&image, (2, 3), &mut vec![0; 8192]), Err(Error::Length));
    assert_eq!(decoder.decode(&image, (2, 3), &mut back), Ok(meta));
    // No header makes its reader ask for more bytes than a page has.
    let mut header = image[..HEADER_BYTES].to_vec();
    for (stored, expected) in [(4032, Ok(4096)), (4033, Err(Error::Length))] {
        header[32..36].copy_from_slice(&u32::to_le_bytes(stored));
        assert_eq!(image_bytes(&header), expected);
    }
}

/// Bytes that no encoder made, the second time under a header with a valid checksum.
#[test]
fn noise_never_panics() {
    for_each_seed(300, |random| {
        let (page, meta) = random_page(random);
        let mut decoder = Decoder::new();
        let mut back = vec![0; page.len()];
        let noise: Vec<u8> = (0..random.below(2 * page.len())).map(|_| random.next() as u8).collect();
        assert!(decoder.decode(&noise, address(&meta), &mut back).is_err());

        let mut forged = vec![0; page.len()];
        write_meta(&mut forged, &meta);
        forged[6] = random.below(Algorithm::ALL.len() + 1) as u8;
        let stored = random.below(page.len() - HEADER_BYTES + 1);
        forged[32..36].copy_from_slice(&(stored as u32).to_le_bytes());
        forged[HEADER_BYTES..HEADER_BYTES + stored].fill_with(|| random.next() as u8);
        let checksum = lacuna_crc::crc32c(&forged[..HEADER_BYTES + stored]);
        forged[36..40].copy_from_slice(&checksum.to_le_bytes());
        match decoder.decode(&forged, address(&meta), &mut back) {
            Ok(found) => assert_eq!(found, meta),
            Err(Error::Undecodable(_) | Error::UnknownAlgorithm(8) | Error::Length | Error::Stray) => {}
            Err(other) => panic!("{other}"),
        }
    });
}

/// Images of the first release that had the algorithm: every later one must read them.
#[test]
fn golden_images_still_decode() {
    let mut page = vec![0; 4096];
    for (i, byte) in page[HEADER_BYTES..HEADER_BYTES + 1000].iter_mut().enumerate() {
        *byte = (i % 10) as u8;
    }
    let meta = Meta { kind: 2, table: 0x01020304, page_no: 0x05060708090A0B0C, lsn: 0x1112131415161718 };
    write_meta(&mut page, &meta);
    for (name, golden) in [
        ("lz4", include_str!("lz4.hex")),
        ("zstd", include_str!("zstd.hex")),
        ("zlib", include_str!("zlib.hex")),
        ("lzo", include_str!("lzo.hex")),
        ("snappy", include_str!("snappy.hex")),
        ("bzip2", include_str!("bzip2.hex")),
        ("lzma", include_str!("lzma.hex")),
    ] {
        let digits: Vec<u8> = golden.bytes().filter(u8::is_ascii_hexdigit).collect();
        let image: Vec<u8> = digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        let mut back = vec![0; 4096];
        assert_eq!(Decoder::new().decode(&image, address(&meta), &mut back), Ok(meta), "{name}");
        assert!(back == page, "{name}");
        assert_eq!(image[6], u8::from(name.parse::<Algorithm>().unwrap()));
    }
}
