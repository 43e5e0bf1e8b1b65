//! For fuzz/: bytes as they are, and with a valid checksum. Promises nothing.

use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Algorithm, Codec, Decoder, Encoder,
    format::{HEADER_BYTES, Header, is_page_bytes},
    image_bytes,
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
