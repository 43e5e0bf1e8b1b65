//! Holds docs/FORMAT.md against the code.

use crate::{
    alloc, flush, keys, log_device,
    page::{node, overflow, undo},
    wal::{self, control},
};

#[test]
fn format_md_is_true() {
    let document = include_str!("../../../docs/FORMAT.md");
    let section = document.split("\n## ").find(|s| s.starts_with("engine\n")).expect("an engine section");
    let documented: Vec<(&str, usize, usize, &str)> = section
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let structure = cells.next()?;
            Some((structure, cells.next()?.parse().ok()?, cells.next()?.parse().ok()?, cells.next()?))
        })
        .collect();
    let layouts = [
        control::LAYOUT,
        wal::format::LAYOUT,
        alloc::LAYOUT,
        node::LAYOUT,
        node::PACKED_LAYOUT,
        undo::LAYOUT,
        overflow::LAYOUT,
        flush::DOUBLEWRITE_LAYOUT,
        log_device::LAYOUT,
        keys::LAYOUT,
    ];
    for row in layouts.concat() {
        assert!(documented.contains(&row), "FORMAT.md does not say {row:?}");
    }
    // Bytes that are encoded by hand are held by the round trips of their modules.
    let by_hand = ["undo record", "catalog row"];
    for row in documented.iter().filter(|row| !by_hand.contains(&row.0)) {
        assert!(layouts.concat().contains(row), "FORMAT.md says {row:?}, the code does not");
    }
}
