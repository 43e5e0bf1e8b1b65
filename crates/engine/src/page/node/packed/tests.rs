use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{super::*, *};

/// A leaf of such records, put in by hashes of their keys: cells do not lie as slots do.
fn leaf(page_bytes: usize, records: &BTreeMap<Vec<u8>, (u8, u64, Vec<u8>)>) -> Vec<u8> {
    let mut page = vec![0; page_bytes];
    NodeMut::init(&mut page, 0);
    lacuna_page::write_meta(&mut page, &lacuna_page::Meta { kind: 2, table: 16, page_no: 3, lsn: 7 });
    let mut shuffled: Vec<_> = records.iter().collect();
    shuffled.sort_by_key(|(key, _)| lacuna_crc::crc32c(key));
    for (i, (key, (flags, txn, value))) in shuffled.into_iter().enumerate() {
        let mut cell = Vec::new();
        let (txn, undo) = (TxnId(*txn), UndoPtr(txn << 20));
        LeafCell { flags: *flags, txn, undo, key, value }.encode(&mut cell);
        let mut node = NodeMut::new(&mut page);
        let Err(slot) = node.view().search(key) else { panic!("twice") };
        if node.insert(slot, &cell) && i % 7 == 3 {
            assert!(node.remove(slot), "leaves garbage");
        }
    }
    page
}

/// Invariant 1.
fn assert_comes_back(page: &[u8]) {
    assert_eq!(validate(page), Ok(()));
    let mut tidied = vec![0xee; page.len()];
    copy_tidied(page, &mut tidied);
    let mut packed = vec![0xdd; page.len()];
    let Some(packed) = pack(page, &mut packed) else {
        assert_eq!(Node::new(page).count(), 0);
        return;
    };
    assert!(packed.len() <= HEADER + Node::new(page).used(), "grew");
    let _ = breaks_repeats(page, packed); // whatever the page, it reads within it
    let mut back = vec![0x55; page.len()];
    assert_eq!(unpack(packed, &mut back), Ok(()));
    assert_eq!(unpack(&packed[..packed.len() - 1], &mut vec![0; page.len()]).map_err(drop), Err(()));
    let (body, end) = (BASE.., page.len() - TRAILER_BYTES);
    assert!(back[body.start..end] == tidied[body.start..end], "comes back otherwise");
}

/// Keys of one length or of several, that differ everywhere or in their ends; values likewise.
fn records() -> impl Strategy<Value = BTreeMap<Vec<u8>, (u8, u64, Vec<u8>)>> {
    let key = prop_oneof![
        3 => (0u16..1000).prop_map(|id| [&[7; 6][..], &id.to_be_bytes(), &[0, 1]].concat()),
        1 => prop::collection::vec(any::<u8>(), 0..90),
    ];
    let value = prop_oneof![
        3 => (any::<[u8; 3]>(), 0usize..3).prop_map(|(id, len)| [&id[..], &[0; 20], &[9; 2][..len]].concat()),
        1 => prop::collection::vec(any::<u8>(), 0..120),
        1 => Just(Vec::new()),
    ];
    let txn = prop_oneof![3 => Just(0), 1 => any::<u32>().prop_map(u64::from)];
    // Only pages that are read are checked for sound references.
    let record = (0u8..2, txn, value);
    prop_oneof![
        prop::collection::btree_map(key, record.clone(), 0..200),
        prop::collection::btree_map(any::<[u8; 8]>().prop_map(Vec::from), record, 0..200),
    ]
}

proptest! {
    #[test]
    fn leaves_come_back(records in records(), page_log2 in 12usize..17) {
        assert_comes_back(&leaf(1 << page_log2, &records));
    }

    /// Invariant 2.
    #[test]
    fn any_bytes_are_refused_or_cells(mut bytes in prop::collection::vec(any::<u8>(), 0..600), count in 0u8..9,
        head in 15u8..70, varying in any::<[u8; 3]>()) {
        if bytes.len() >= HEADER + LEAF_CELL_HEADER {
            bytes[..HEADER].fill(0);
            (bytes[PACKED_COUNT], bytes[PACKED_HEAD]) = (count, head);
            bytes[PACKED_COLUMNS..PACKED_COLUMNS + 3].copy_from_slice(&varying);
            let short = [bytes[HEADER + 1] % 16, 0, bytes[HEADER + 3] % 64, 0];
            bytes[HEADER + 1..HEADER + 5].copy_from_slice(&short);
        }
        assert_cells(&bytes);
    }

    #[test]
    fn changed_bytes_are_refused_or_cells(records in records(), at in any::<prop::sample::Index>(),
        byte in any::<u8>()) {
        let mut packed = vec![0; 4096];
        let page = leaf(4096, &records);
        if let Some(packed) = pack(&page, &mut packed) {
            let mut packed = packed.to_vec();
            let at = at.index(packed.len());
            packed[at] = byte;
            assert_cells(&packed);
        }
    }
}

/// Every page that unpacks has sound cells, if not in order.
fn assert_cells(packed: &[u8]) {
    let mut page = vec![0x55; 4096];
    if unpack(packed, &mut page).is_ok() {
        let left_to_check = [
            "keys out of order",
            "record with unknown flags or a bad reference",
            "key longer than a page takes",
            "value longer than a leaf takes",
        ];
        assert!(validate(&page).map_or_else(|reason| left_to_check.contains(&reason), |()| true));
    }
}

fn two_records() -> BTreeMap<Vec<u8>, (u8, u64, Vec<u8>)> {
    let value = |byte| (0, 0, vec![byte, 5, 5, 8, byte]);
    BTreeMap::from([(b"key1".to_vec(), value(1)), (b"key3".to_vec(), value(4))])
}

/// The bytes of a release: every later one must read them.
#[test]
fn a_packed_leaf_looks_like_this() {
    let page = leaf(4096, &two_records());
    let mut packed = vec![0; 4096];
    let packed = pack(&page, &mut packed).expect("a leaf");
    let mut want = Vec::new();
    want.extend([2, 0]); // cells
    want.extend(&page[LAST_INSERT..LAST_INSERT + 2]);
    want.extend(&page[INSERT_RUN..INSERT_RUN + 2]);
    want.extend([27, 0]); // header, key, and the value but for its last byte
    want.extend((1u64 << 22 | 1 << 23).to_le_bytes());
    want.extend([0, 4, 0, 5, 0]);
    want.extend([0; 14]);
    want.extend(b"key1\x01\x05\x05\x08");
    want.extend([2, 3]); // from 1 to 3, from 1 to 4
    want.extend([1, 4]);
    assert_eq!(packed, want);
    assert_comes_back(&page);
}

#[test]
fn what_no_packer_made_is_refused() {
    let page = leaf(4096, &two_records());
    let mut packed = vec![0; 4096];
    let packed = pack(&page, &mut packed).expect("a leaf").to_vec();
    let cut = "packed leaf cut short";
    let lengths = HEADER + CELL_KEY_BYTES;
    for (at, bytes, want) in [
        (PACKED_COUNT, &[0, 0][..], "packed leaf with a bad count"),
        (PACKED_COUNT, &[0xff, 0xff], "packed leaf with a bad count"),
        (PACKED_COUNT, &[3], cut),
        (PACKED_COUNT, &[1], "packed leaf with bytes behind its last cell"),
        (PACKED_HEAD, &[LEAF_CELL_HEADER as u8 - 1], "packed leaf with bad heads"),
        (PACKED_HEAD, &[LEAF_CELL_HEADER as u8 - 1, 0, 0, 0, 0, 0], "packed leaf with bad heads"),
        (PACKED_HEAD, &[65], "packed leaf with bad heads"),
        (PACKED_HEAD, &[26], cut),
        (PACKED_HEAD, &[64], cut),
        (PACKED_COLUMNS + 3, &[8], "packed leaf with bad heads"),
        (PACKED_COLUMNS, &[1], cut),
        (lengths, &[5], cut),
        (lengths + 2, &[0], "cell shorter than its head"),
        (lengths, &[0xff, 0xff], "more cells than a page holds"),
        (lengths, &[0x7d, 0x0f], "more cells than a page holds"), // by a byte
        (lengths, &[0x7c, 0x0f], cut),
    ] {
        let mut packed = packed.clone();
        packed[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(unpack(&packed, &mut vec![0; 4096]), Err(want), "{bytes:?} at {at}");
    }
    assert_eq!(unpack(&packed[..15], &mut vec![0; 4096]), Err("packed leaf without a header"));
    assert_eq!(
        unpack(&[&packed[..], &[0]].concat(), &mut vec![0; 4096]).map_err(|reason| &reason[..16]),
        Err("packed leaf with")
    );
}

#[test]
fn what_is_no_leaf_with_cells_is_not_packed() {
    let mut out = vec![0; 4096];
    let mut page = vec![0; 4096];
    NodeMut::init(&mut page, 0);
    assert_eq!(pack(&page, &mut out), None, "no cells");
    let mut cell = Vec::new();
    encode_inner(b"", PageNo(9), &mut cell);
    assert!(NodeMut::init(&mut page, 1).insert(0, &cell));
    assert_eq!(pack(&page, &mut out), None, "an inner node");
    let mut page = leaf(4096, &two_records());
    page[CELLS - 1] = 1;
    assert_eq!(pack(&page, &mut out), None, "what is reserved would not come back");
}
