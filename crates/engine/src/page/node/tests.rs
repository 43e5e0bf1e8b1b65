use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn heads_that_differ_have_the_order_of_their_keys(
        left in prop::collection::vec(0..3u8, 0..12),
        right in prop::collection::vec(0..3u8, 0..12),
    ) {
        prop_assert_eq!(head(&left).cmp(&head(&right)).then_with(|| left.cmp(&right)), left.cmp(&right));
    }
}

fn leaf_cell(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    LeafCell { flags: 0, txn: TxnId(7), undo: UndoPtr(9), key, value }.encode(&mut out);
    out
}

#[test]
fn separators_are_short_and_between() {
    for (left, right, want) in [
        (&b"abc"[..], &b"abd"[..], &b"abd"[..]),
        (b"abc", b"b", b"b"),
        (b"abc", b"abcd", b"abcd"),
        (b"", b"zzz", b"z"),
    ] {
        let got = separator(left, right);
        assert_eq!(got, want);
        assert!(left < got && got <= right);
    }
}

#[test]
fn stamp_changes_only_the_header() {
    let mut page = vec![0; 4096];
    let mut node = NodeMut::init(&mut page, 0);
    assert!(node.insert(0, &leaf_cell(b"k", b"v")));
    assert!(node.stamp(0, DELETED, TxnId(TxnId::MAX), UndoPtr(u64::MAX)));
    let cell = node.view().leaf_cell(0);
    assert_eq!((cell.key, cell.value), (&b"k"[..], &b"v"[..]));
    assert_eq!((cell.txn.0, cell.undo.0, cell.is_deleted()), (TxnId::MAX, u64::MAX, true));
}

#[test]
fn an_edit_changes_bytes_of_a_short_value() {
    let mut page = vec![0; 4096];
    let mut node = NodeMut::init(&mut page, 0);
    assert!(node.insert(0, &leaf_cell(b"k", b"value")) && node.insert(1, &leaf_cell(b"l", b"other")));
    assert!(node.edit(0, TxnId(8), UndoPtr(3), &[1, 2, b'4', b'5']));
    let cell = node.view().leaf_cell(0);
    assert_eq!((cell.value, cell.txn, cell.undo), (&b"v45ue"[..], TxnId(8), UndoPtr(3)));
    assert!(!node.edit(0, TxnId(9), UndoPtr(3), &[4, 2, b'4', b'5']), "beyond the value");
    assert!(!node.edit(2, TxnId(9), UndoPtr(3), &[]), "no such record");
    assert!(node.stamp(1, OVERFLOW, TxnId(7), UndoPtr(9)));
    assert!(!node.edit(1, TxnId(9), UndoPtr(3), &[]), "a reference");
    assert_eq!(node.view().leaf_cell(1).value, b"other");
}

#[test]
fn writers_are_forgotten_where_nobody_looks_for_them() {
    let mut page = vec![0; 4096];
    let mut node = NodeMut::init(&mut page, 0);
    let mut reference = [0; 16];
    (reference[0], reference[8]) = (2, 1);
    for (slot, (txn, flags)) in [(7, 0), (8, 0), (7, DELETED), (7, OVERFLOW)].into_iter().enumerate() {
        let mut cell = Vec::new();
        let (txn, undo, key) = (TxnId(txn), UndoPtr(9), &[slot as u8][..]);
        LeafCell { flags, txn, undo, key, value: &reference }.encode(&mut cell);
        assert!(node.insert(slot, &cell));
    }
    forget_writers(&mut page, TxnId(8));
    assert_eq!(validate(&page), Ok(()));
    let cells = (0..4).map(|slot| Node::new(&page).leaf_cell(slot));
    let named: Vec<_> = cells.map(|cell| (cell.txn.0, cell.undo.0)).collect();
    assert_eq!(named, [(0, 0), (8, 9), (7, 9), (7, 9)]);
    NodeMut::init(&mut page, 1);
    forget_writers(&mut page, TxnId(8));
}

/// A leaf with the cells `a` and `b`, or an inner node with the least key and `b`, and bytes put into it.
fn verdict(level: u16, at: usize, bytes: &[u8]) -> Result<(), &'static str> {
    let mut page = vec![0; 4096];
    let mut node = NodeMut::init(&mut page, level);
    for (slot, key) in [if level == 0 { &b"a"[..] } else { b"" }, b"b"].into_iter().enumerate() {
        let mut cell = leaf_cell(key, b"v");
        if level > 0 {
            cell.clear();
            encode_inner(key, PageNo(9), &mut cell);
        }
        assert!(node.insert(slot, &cell));
    }
    page[at..at + bytes.len()].copy_from_slice(bytes);
    validate(&page)
}

#[test]
fn each_broken_invariant_is_refused() {
    const FIRST_SLOT: usize = 4096 - TRAILER_BYTES - SLOT;
    const SECOND: usize = CELLS + LEAF_CELL_HEADER + 2;
    const SECOND_INNER: usize = CELLS + INNER_CELL_HEADER;
    assert_eq!([verdict(0, 0, &[]), verdict(1, 0, &[])], [Ok(()); 2]);
    let out_of_range = "cell out of range";
    for (level, at, bytes, want) in [
        (0, COUNT, &[0xff, 0xff][..], "more slots than a page holds"),
        (0, HEAP_END, &[CELLS as u8 - 1], "end of cells out of range"),
        (0, HEAP_END, &[0xf8, 0x0f], "end of cells out of range"),
        (0, HEAP_END, &[SECOND as u8], out_of_range),
        (0, FIRST_SLOT, &[CELLS as u8 - 1], out_of_range),
        (1, FIRST_SLOT, &[CELLS as u8 - 1], out_of_range),
        (0, FIRST_SLOT, &[0xff, 0xff], out_of_range),
        (0, SECOND + CELL_KEY_BYTES, &[3], out_of_range),
        (0, SECOND + CELL_VALUE_BYTES, &[2], out_of_range),
        (1, SECOND_INNER, &[2], out_of_range),
        (0, SECOND, &[4], "record with unknown flags or a bad reference"),
        (0, SECOND, &[OVERFLOW], "record with unknown flags or a bad reference"),
        (0, SECOND + LEAF_CELL_HEADER, b"a", "keys out of order"),
        (0, SECOND + LEAF_CELL_HEADER, b"A", "keys out of order"),
        (0, GARBAGE, &[1], "cells do not add up"),
        (0, FIRST_SLOT - SLOT, &[CELLS as u8], "keys out of order"),
        (1, FIRST_SLOT, &[SECOND_INNER as u8], "keys out of order"),
        (1, COUNT, &[0], "cells do not add up"),
    ] {
        assert_eq!(verdict(level, at, bytes), Err(want), "level {level}, {bytes:?} at {at}");
    }
    let mut page = vec![0; 4096];
    NodeMut::init(&mut page, 1);
    assert_eq!(validate(&page), Err("inner node without a first child"));
    // What a split could not divide.
    for (key, value, want) in [
        (512, 1024, Ok(())),
        (513, 1, Err("key longer than a page takes")),
        (1, 1025, Err("value longer than a leaf takes")),
    ] {
        let mut page = vec![0; 4096];
        assert!(NodeMut::init(&mut page, 0).insert(0, &leaf_cell(&vec![1; key], &vec![2; value])));
        assert_eq!(validate(&page), want);
    }
    let (mut page, mut cell) = (vec![0; 4096], Vec::new());
    let mut node = NodeMut::init(&mut page, 1);
    for (slot, key) in [(0, 0), (1, 513)] {
        cell.clear();
        encode_inner(&vec![1; key], PageNo(9), &mut cell);
        assert!(node.insert(slot, &cell));
    }
    assert_eq!(validate(&page), Err("key longer than a page takes"));
}

#[test]
fn ascending_inserts_are_seen_as_a_run() {
    let mut page = vec![0; 4096];
    let mut node = NodeMut::init(&mut page, 0);
    for i in 0..10u8 {
        assert!(node.insert(i as usize, &leaf_cell(&[i], b"")));
    }
    assert_eq!(node.view().insert_run(), (9, 10));
    assert!(node.insert(0, &leaf_cell(b"", b"")));
    assert_eq!(node.view().insert_run().0, 0);
}

proptest! {
    #[test]
    fn behaves_like_a_sorted_map(
        ops in prop::collection::vec((0u8..4, 0u8..40, 0usize..200), 1..400)
    ) {
        let mut page = vec![0; 4096];
        NodeMut::init(&mut page, 0);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (op, key, len) in ops {
            let key = vec![key; 1 + key as usize % 7];
            let value = vec![op; len];
            let mut node = NodeMut::new(&mut page);
            let found = node.view().search(&key);
            match (op, found) {
                (0, Ok(slot)) => {
                    assert!(node.remove(slot));
                    model.remove(&key);
                }
                (1, Ok(slot)) => {
                    node.truncate(slot);
                    model.split_off(&key);
                }
                (_, Ok(slot)) => {
                    let before = node.view().free() + node.view().cell(slot).len();
                    let cell = leaf_cell(&key, &value);
                    let fits = cell.len() <= before;
                    assert_eq!(node.replace(slot, &cell), fits);
                    if fits { model.insert(key, value); }
                }
                (_, Err(slot)) => {
                    let cell = leaf_cell(&key, &value);
                    let fits = cell.len() + SLOT <= node.view().free();
                    assert_eq!(node.insert(slot, &cell), fits);
                    if fits { model.insert(key, value); }
                }
            }
            prop_assert_eq!(validate(&page), Ok(()));
            let node = Node::new(&page);
            let got: Vec<_> = (0..node.count())
                .map(|s| { let c = node.leaf_cell(s); (c.key.to_vec(), c.value.to_vec()) })
                .collect();
            let want: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            prop_assert_eq!(got, want);
        }
        let used = Node::new(&page).used();
        let mut copy = vec![0xee; page.len()];
        copy_tidied(&page, &mut copy);
        NodeMut::new(&mut page).compact();
        prop_assert!(copy == page, "copied otherwise");
        prop_assert_eq!(validate(&page), Ok(()));
        prop_assert_eq!(Node::new(&page).used(), used);
    }

    #[test]
    fn any_bytes_are_refused_or_readable(bytes in prop::collection::vec(any::<u8>(), 4096)) {
        if validate(&bytes).is_ok() {
            let node = Node::new(&bytes);
            for slot in 0..node.count() { let _ = node.key(slot); }
        }
    }
}
