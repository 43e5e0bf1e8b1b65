//! For fuzz/: bytes as they are, and with a valid checksum. Promises nothing.

use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Algorithm, BLOCK_ALGORITHMS, BlockCodec, Codec, Decoder, Encoder, Meta, TRAILER_BYTES, adopt_block,
    append_to_block,
    block::forge_block,
    block_log, block_log_space, export_block,
    format::{HEADER_BYTES, Header, is_page_bytes},
    image_bytes, open_block, seal_block,
};

/// A page image.
pub fn image(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    decode(&bytes);
    let Ok((mut header, body)) = Header::read_from_prefix(&bytes) else { return };
    let Some(stored) = body.get(..header.stored_bytes.get() as usize) else { return };
    header.checksum = header.checksum_with(stored).into();
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    decode(&bytes);
}

fn decode(bytes: &[u8]) {
    let claimed = image_bytes(bytes).is_ok();
    let Ok((header, _)) = Header::read_from_prefix(bytes) else { return };
    let page_bytes = header.page_bytes.get() as usize;
    if !is_page_bytes(page_bytes) {
        return;
    }
    let mut page = vec![0; page_bytes];
    let found = Decoder::new().decode(bytes, (header.table.get(), header.page_no.get()), &mut page);
    assert!(found.is_err() || claimed, "decoded and of no length");
}

/// A page through every codec and back; the first byte chooses.
pub fn round_trip(bytes: &[u8]) {
    let Some((&choice, content)) = bytes.split_first() else { return };
    let mut page = vec![0; 4096 << (choice % 5)];
    let meta = crate::Meta { kind: choice, table: 7, page_no: 9, lsn: 11 };
    let body_bytes = page.len() - HEADER_BYTES - crate::TRAILER_BYTES;
    let len = content.len().min(body_bytes);
    page[HEADER_BYTES..HEADER_BYTES + len].copy_from_slice(&content[..len]);
    crate::write_meta(&mut page, &meta);
    let algorithm = Algorithm::ALL[usize::from(choice / 5) % Algorithm::ALL.len()];
    let mut image = vec![0; page.len()];
    let encoded = Encoder::new().encode(&page, Codec::fast(algorithm), 512, &mut image);
    let mut back = vec![0xee; page.len()];
    let found = Decoder::new().decode(&image[..encoded.image_bytes], (7, 9), &mut back);
    assert_eq!(found, Ok(meta));
    assert!(back == page, "{algorithm}: the page changed");
}

const BLOCK_BYTES: usize = 4096;
const BLOCK_PAGE_BYTES: usize = 16 << 10;
const BLOCK_META: Meta = Meta { kind: 2, table: 7, page_no: 9, lsn: 11 };

/// A block of a row-compressed table. The first byte chooses the algorithm and the level of what is compressed; the rest
/// is a block, then an image of that algorithm with lengths before it, then a page's content.
pub fn block(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let algorithm = BLOCK_ALGORITHMS[usize::from(choice) % 2];
    let settings = Codec { algorithm, level: i32::from(choice / 2 % 10) };
    let mut codec = BlockCodec::new();
    let mut block = vec![0; BLOCK_BYTES];
    let len = bytes.len().min(BLOCK_BYTES);
    block[..len].copy_from_slice(&bytes[..len]);
    open_and_restore(&mut codec, &mut block.clone());
    forge_block(&mut block, &BLOCK_META, BLOCK_PAGE_BYTES);
    open_and_restore(&mut codec, &mut block);
    image_in_block(&mut codec, algorithm, bytes);
    through_block(&mut codec, settings, bytes);
}

/// What is sound is the same block after a write-ahead log has carried it.
fn open_and_restore(codec: &mut BlockCodec, block: &mut [u8]) {
    let (table, page_no) = (BLOCK_META.table, BLOCK_META.page_no);
    let Ok(meta) = open_block(block, (table, page_no), BLOCK_PAGE_BYTES) else { return };
    assert!(block_log(block).len() + block_log_space(block) <= block.len());
    let mut copy = vec![0xee; block.len()];
    adopt_block(&mut copy, &export_block(block)).expect("lengths agree");
    seal_block(&mut copy, &meta, BLOCK_PAGE_BYTES);
    assert_eq!(open_block(&mut copy, (table, page_no), BLOCK_PAGE_BYTES), Ok(meta));
    let (mut page, mut again) = (vec![0x77; BLOCK_PAGE_BYTES], vec![0x55; BLOCK_PAGE_BYTES]);
    let restored = codec.restore(block, &meta, &mut page);
    assert_eq!(codec.restore(&copy, &meta, &mut again), restored);
    assert!(restored.is_err() || page == again, "restored, it is another page");
}

/// Any image under sound lengths.
fn image_in_block(codec: &mut BlockCodec, algorithm: Algorithm, bytes: &[u8]) {
    let Some((lengths, image)) = bytes.split_first_chunk::<4>() else { return };
    let image = &image[..image.len().min(crate::block_capacity(BLOCK_BYTES))];
    let flags = if algorithm == Algorithm::Lz4 { 2 } else { 0 };
    let mut export =
        vec![BLOCK_META.kind, flags, lengths[0], lengths[1] % 64, 0, 0, lengths[2], lengths[3] % 64, 0, 0];
    export.extend((image.len() as u32).to_le_bytes());
    export.extend([0; 4]);
    export.extend(image);
    let mut block = vec![0; BLOCK_BYTES];
    adopt_block(&mut block, &export).expect("lengths agree");
    seal_block(&mut block, &BLOCK_META, BLOCK_PAGE_BYTES);
    open_and_restore(codec, &mut block);
}

/// Content through a codec and back, behind which a log is kept.
fn through_block(codec: &mut BlockCodec, settings: Codec, bytes: &[u8]) {
    let content = &bytes[..bytes.len().min(BLOCK_PAGE_BYTES - HEADER_BYTES - TRAILER_BYTES)];
    let (head, tail) = content.split_at(content.len() / 3);
    let mut block = vec![0xee; BLOCK_BYTES];
    if !codec.compress(&mut block, BLOCK_META.kind, (head, tail), settings, 10) {
        return;
    }
    assert!(append_to_block(&mut block, b"ten bytes!"));
    seal_block(&mut block, &BLOCK_META, BLOCK_PAGE_BYTES);
    assert_eq!(open_block(&mut block, (7, 9), BLOCK_PAGE_BYTES), Ok(BLOCK_META));
    assert_eq!(block_log(&block), b"ten bytes!");
    let mut page = vec![0x77; BLOCK_PAGE_BYTES];
    assert_eq!(codec.restore(&block, &BLOCK_META, &mut page), Ok(()));
    let body = &page[HEADER_BYTES..BLOCK_PAGE_BYTES - TRAILER_BYTES];
    let (start, rest) = body.split_at(head.len());
    let (gap, end) = rest.split_at(rest.len() - tail.len());
    assert!(
        start == head && end == tail && gap.iter().all(|byte| *byte == 0),
        "{settings:?}: the page changed"
    );
}
