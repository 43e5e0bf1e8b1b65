//! Blocks of row-compressed tables whose fields are changed, most under a valid checksum. Offsets are FORMAT.md's.

use lacuna_page::{
    Algorithm, BlockCodec, Codec, Error, Meta, Result, adopt_block, append_to_block, block_capacity,
    block_kind, export_block, open_block, reset_block, seal_block, write_meta,
};

const META: Meta = Meta { kind: 2, table: 16, page_no: 9, lsn: 77 };
const BLOCK: usize = 4096;
const PAGE: usize = 16 << 10;
const LZ4: Codec = Codec { algorithm: Algorithm::Lz4, level: 0 };

fn set_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Opens a block whose fields `change` changed, as one of a page of `page_bytes`.
fn forged(page_bytes: usize, change: impl FnOnce(&mut [u8])) -> Result<Meta> {
    let mut block = vec![0xEE; BLOCK];
    assert!(BlockCodec::new().compress(&mut block, META.kind, (&[7; 3000], b"tail"), LZ4, 100));
    assert!(append_to_block(&mut block, b"logged"));
    seal_block(&mut block, &META, PAGE);
    change(&mut block);
    set_u32(&mut block, 48, 0);
    let checksum = lacuna_crc::crc32c(&block);
    set_u32(&mut block, 48, checksum);
    open_block(&mut block, (META.table, META.page_no), page_bytes)
}

#[test]
fn forged_fields_of_blocks_are_errors() {
    assert_eq!(forged(PAGE, |_| ()), Ok(META));
    assert_eq!(forged(PAGE, |block| block[0] ^= 1), Err(Error::NotAPage));
    assert_eq!(forged(PAGE, |block| block[4] = 2), Err(Error::Version(2)));
    assert_eq!(forged(PAGE / 2, |_| ()), Err(Error::Length), "another page size");
    assert_eq!(forged(12 << 10, |block| set_u32(block, 12, 12 << 10)), Err(Error::Length), "no page size");
    let used = |bytes: u32| {
        forged(PAGE, |block| {
            set_u32(block, 40, bytes - 6);
            set_u32(block, 44, 6);
        })
    };
    let capacity = block_capacity(BLOCK) as u32;
    assert_eq!(used(capacity), Ok(META));
    assert_eq!(used(capacity + 1), Err(Error::Length));
    let body = |bytes: u32| forged(PAGE, |block| set_u32(block, 32, bytes - 4));
    let body_bytes = (PAGE - 64 - 8) as u32;
    assert_eq!(body(body_bytes), Ok(META));
    assert_eq!(body(body_bytes + 1), Err(Error::Length));
    for stray in [7, 52, 63, BLOCK - 8, BLOCK - 1] {
        assert_eq!(forged(PAGE, |block| block[stray] ^= 1), Err(Error::Stray), "byte {stray}");
    }
    assert_eq!(
        forged(PAGE, |block| set_u32(block, 8, 17)),
        Err(Error::Misplaced { table: 17, page_no: META.page_no })
    );
}

/// A block as a write-ahead log carries it.
fn export(flags: u8, [head, tail, stored, log]: [u32; 4], rest: usize) -> Vec<u8> {
    let mut bytes = vec![META.kind, flags];
    bytes.extend([head, tail, stored, log].into_iter().flat_map(u32::to_le_bytes));
    bytes.resize(bytes.len() + rest, 5);
    bytes
}

#[test]
fn exports_are_adopted_where_they_fit_and_agree() {
    let mut block = vec![0xEE; BLOCK];
    let capacity = block_capacity(BLOCK);
    let adopted = |block: &mut Vec<u8>, stored: usize, log: usize, rest: usize| {
        adopt_block(block, &export(0, [0, 0, stored as u32, log as u32], rest))
    };
    assert_eq!(adopted(&mut block, capacity - 6, 6, capacity), Ok(()));
    assert_eq!(block_kind(&block), META.kind);
    assert_eq!(export_block(&block), export(0, [0, 0, capacity as u32 - 6, 6], capacity));
    assert_eq!(adopted(&mut block, capacity - 5, 6, capacity + 1), Err(Error::Length));
    assert_eq!(adopted(&mut block, 100, 6, 105), Err(Error::Length));
    assert_eq!(adopted(&mut block, 100, 6, 107), Err(Error::Length));
    assert_eq!(adopt_block(&mut block, &[0; 17]), Err(Error::Length));
}

#[test]
fn images_have_the_bytes_that_they_claim() {
    const STORED: u8 = 1;
    let (mut codec, mut block, mut page) = (BlockCodec::new(), vec![0; 8 << 10], vec![0x77; 4096]);
    let mut restored = |flags, head: u32, tail: u32, stored: u32| {
        adopt_block(&mut block, &export(flags, [head, tail, stored, 0], stored as usize))
            .expect("lengths agree");
        codec.restore(&block, &META, &mut page)
    };
    assert_eq!(restored(STORED, 4000, 24, 4024), Ok(()));
    assert_eq!(restored(STORED, 4001, 24, 4025), Err(Error::Length), "longer than a page's body");
    assert_eq!(restored(STORED, 10, 3, 12), Err(Error::Length));
    assert_eq!(restored(0, 1, 0, 0), Err(Error::Length), "nothing, and it is no body");
    // As it is after a reset.
    let mut empty = vec![0; 4096];
    write_meta(&mut empty, &META);
    reset_block(&mut block);
    assert_eq!(codec.restore(&block, &META, &mut page), Ok(()));
    assert!(page == empty);
}
