//! For fuzz/: bytes as they are, and with valid checksums. Promises nothing.

use lacuna_page::{HEADER_BYTES, TRAILER_BYTES};

use crate::{
    catalog::Row,
    flush, keys, log_device,
    page::{
        node::{self, LeafCell, Node},
        ops::{OpReader, PageKind, PageOp},
        undo::UndoRecord,
    },
    types::{Lsn, TxnId, UndoPtr},
    wal::{
        control,
        format::{GroupBuilder, Salt, open_group},
        page_writes::PageWrites,
    },
};

/// A group of the log, and its operations on a leaf of two records.
pub fn log(bytes: &[u8]) {
    let _ = open_group(bytes, Lsn(0), Salt(1));
    let mut group = GroupBuilder::new(Lsn(0), Vec::new());
    group.push(bytes);
    let (_, sealed) = group.seal(1, Salt(1));
    let (_, mut records) = open_group(&sealed, Lsn(0), Salt(1)).expect("what was sealed is sound");
    let record = records.next().expect("one record");
    assert_eq!(record.ops, bytes);
    let _ = PageWrites::default().take_in(&record);
    let mut node = vec![0; 4096];
    PageOp::Init { level: 0 }.apply(&mut node).expect("a page takes it");
    for (slot, key) in [b"a", b"b"].into_iter().enumerate() {
        let mut cell = Vec::new();
        let record = LeafCell { flags: 0, txn: TxnId(1), undo: UndoPtr::NONE, key, value: &[7; 40] };
        record.encode(&mut cell);
        PageOp::Insert { slot: slot as u16, cell: &cell }.apply(&mut node).expect("a page takes it");
    }
    let mut undo = vec![0; 4096];
    PageOp::Blank { kind: PageKind::Undo }.apply(&mut undo).expect("a page takes it");
    for (_, op) in OpReader::new(record.ops).map_while(Result::ok) {
        for page in [&mut node, &mut undo] {
            // Cells and flags are what writers made: the group's checksum vouches for them.
            if !matches!(op, PageOp::Insert { .. } | PageOp::Replace { .. } | PageOp::Stamp { .. }) {
                let _ = op.apply(page);
            }
            let is_leaf = crate::page::ops::kind(page) == Some(PageKind::Node) && Node::new(page).is_leaf();
            assert!(!is_leaf || node::validate(page).is_ok());
        }
    }
}

/// A page as a node and as undo records.
pub fn page(bytes: &[u8]) {
    let mut page = vec![0; 4096];
    let len = bytes.len().min(page.len() - TRAILER_BYTES);
    page[..len].copy_from_slice(&bytes[..len]);
    let _ = crate::page::ops::validate(&page);
    for at in 0..64 {
        let _ = UndoRecord::parse(&page, at * 64);
    }
    if node::validate(&page).is_err() {
        return;
    }
    let node = Node::new(&page);
    for slot in 0..node.count() {
        let key = node.key(slot);
        assert_eq!(node.search(key), Ok(slot));
        match node.is_leaf() {
            true => drop(node.leaf_cell(slot)),
            false => drop(node.child(slot)),
        }
    }
    let used = node.used();
    let mut copy = vec![0xee; page.len()];
    node::copy_tidied(&page, &mut copy);
    assert_eq!(node::validate(&copy), Ok(()));
    assert_eq!(Node::new(&copy).used(), used);
    let mut packed = vec![0; page.len()];
    if let Some(packed) = node::pack(&page, &mut packed) {
        let _ = node::breaks_repeats(&page, packed); // reads within the page
        let mut back = vec![0x55; page.len()];
        assert_eq!(node::unpack(packed, &mut back), Ok(()));
        let end = page.len() - TRAILER_BYTES;
        assert!(back[HEADER_BYTES..end] == copy[HEADER_BYTES..end], "packed, it is another leaf");
    }
}

/// A packed leaf. The page that it unpacks to has sound cells, though perhaps not in order.
pub fn packed(bytes: &[u8]) {
    let mut page = vec![0x55; 4096];
    if node::unpack(bytes, &mut page).is_err() {
        return;
    }
    match node::validate(&page) {
        Ok(()) => {
            let mut again = vec![0; page.len()];
            let again = node::pack(&page, &mut again).expect("a leaf with cells");
            let mut back = vec![0xaa; page.len()];
            assert_eq!(node::unpack(again, &mut back), Ok(()));
            let end = page.len() - TRAILER_BYTES;
            assert!(back[HEADER_BYTES..end] == page[HEADER_BYTES..end], "packed again, it is another leaf");
        }
        Err(reason) => {
            let left_to_check = ["keys out of order", "record with unknown flags or a bad reference"];
            assert!(left_to_check.contains(&reason), "{reason}");
        }
    }
}

/// The engine's log device: its header, what pairs it with a store, and the ring of files.
pub fn log_device(bytes: &[u8]) {
    log_device::fuzz(bytes);
}

/// An entry of the key files.
pub fn keys(bytes: &[u8]) {
    keys::fuzz(bytes);
}

/// A slot of the control file, the header of a doublewrite region, a row of the catalog.
pub fn records(bytes: &[u8]) {
    control::fuzz(bytes);
    flush::fuzz_doublewrite(bytes);
    if let Ok(row) = Row::decode("fuzz", bytes) {
        assert_eq!(row.encode()[..], bytes[..]);
    }
}
