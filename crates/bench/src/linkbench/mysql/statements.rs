//! The statements, as text.

use super::super::db::Table;
use crate::mysql::{Prepared, places};

/// Links per round trip of a list: one more than a request takes, so that one trip is enough.
pub(super) const LIST_ROWS: u64 = super::super::RANGE_LIMIT as u64 + 1;

/// A prepared statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    GetNode,
    LockNode,
    UpdateNode,
    DeleteNode,
    GetLink,
    LockLink,
    UpdateLink,
    DeleteLink,
    GetCount,
    LockCount,
    UpdateCount,
    DeleteCount,
    LowerCount,
    ListLinks,
    AllNodes,
    AllLinks,
    AllIndexEntries,
    AllCounts,
    InsertNodes(usize),
    InsertLinks(usize),
    InsertCounts(usize),
    RaiseCounts(usize),
}

impl Shape {
    pub(super) fn get(table: Table, lock: bool) -> Option<Shape> {
        Some(match (table, lock) {
            (Table::Node, false) => Shape::GetNode,
            (Table::Node, true) => Shape::LockNode,
            (Table::Link, false) => Shape::GetLink,
            (Table::Link, true) => Shape::LockLink,
            (Table::Count, false) => Shape::GetCount,
            (Table::Count, true) => Shape::LockCount,
            (Table::LinkByTime, _) => return None,
        })
    }
}

impl Prepared for Shape {
    fn sql(self) -> String {
        const NODE: &str = "SELECT type, version, time, data FROM nodetable WHERE id = ?";
        const LINK: &str = "SELECT visibility, time, version, data FROM linktable \
            WHERE link_type = ? AND id1 = ? AND id2 = ?";
        const COUNT: &str = "SELECT count, time, version FROM counttable WHERE id = ? AND link_type = ?";
        const NODES: &str = "INSERT INTO nodetable (id, type, version, time, data) VALUES ";
        const LINKS: &str =
            "INSERT INTO linktable (link_type, id1, id2, visibility, time, version, data) VALUES ";
        const COUNTS: &str = "INSERT INTO counttable (id, link_type, count, time, version) VALUES ";
        match self {
            Shape::GetNode => NODE.to_owned(),
            Shape::LockNode => format!("{NODE} FOR UPDATE"),
            Shape::UpdateNode => {
                "UPDATE nodetable SET type = ?, version = ?, time = ?, data = ? WHERE id = ?".to_owned()
            }
            Shape::DeleteNode => "DELETE FROM nodetable WHERE id = ?".to_owned(),
            Shape::GetLink => LINK.to_owned(),
            Shape::LockLink => format!("{LINK} FOR UPDATE"),
            Shape::UpdateLink => "UPDATE linktable SET visibility = ?, time = ?, version = ?, data = ? \
                WHERE link_type = ? AND id1 = ? AND id2 = ?"
                .to_owned(),
            Shape::DeleteLink => {
                "DELETE FROM linktable WHERE link_type = ? AND id1 = ? AND id2 = ?".to_owned()
            }
            Shape::GetCount => COUNT.to_owned(),
            Shape::LockCount => format!("{COUNT} FOR UPDATE"),
            Shape::UpdateCount => {
                "UPDATE counttable SET count = ?, time = ?, version = ? WHERE id = ? AND link_type = ?"
                    .to_owned()
            }
            Shape::DeleteCount => "DELETE FROM counttable WHERE id = ? AND link_type = ?".to_owned(),
            Shape::LowerCount => "UPDATE counttable SET count = count - ?, time = ?, version = version + 1 \
                WHERE id = ? AND link_type = ?"
                .to_owned(),
            Shape::ListLinks => "SELECT id2, time, version, data FROM linktable FORCE INDEX (id1_type) \
                WHERE id1 = ? AND link_type = ? AND visibility = ? AND time <= ? \
                ORDER BY time DESC LIMIT ?, ?"
                .to_owned(),
            Shape::AllNodes => "SELECT id, type, version, time, data FROM nodetable ORDER BY id".to_owned(),
            Shape::AllLinks => "SELECT link_type, id1, id2, visibility, time, version, data \
                FROM linktable FORCE INDEX (PRIMARY) ORDER BY link_type, id1, id2"
                .to_owned(),
            Shape::AllIndexEntries => "SELECT link_type, id1, id2, visibility, time, version, data \
                FROM linktable FORCE INDEX (id1_type) ORDER BY id1, link_type, visibility, time, id2"
                .to_owned(),
            Shape::AllCounts => {
                "SELECT id, link_type, count, time, version FROM counttable ORDER BY id, link_type".to_owned()
            }
            Shape::InsertNodes(rows) => format!("{NODES}{}", places(5, rows)),
            Shape::InsertLinks(rows) => format!("{LINKS}{}", places(7, rows)),
            Shape::InsertCounts(rows) => format!("{COUNTS}{}", places(5, rows)),
            Shape::RaiseCounts(rows) => format!(
                "{COUNTS}{} ON DUPLICATE KEY UPDATE count = count + VALUES(count), time = VALUES(time), \
                 version = version + 1",
                places(5, rows)
            ),
        }
    }
}

/// Columns and keys of a table in LinkBench's schema (its README), without partitions.
pub(super) fn columns(table: &str) -> &'static str {
    match table {
        "linktable" => {
            "id1 bigint unsigned NOT NULL DEFAULT 0, id2 bigint unsigned NOT NULL DEFAULT 0, \
             link_type bigint unsigned NOT NULL DEFAULT 0, visibility tinyint NOT NULL DEFAULT 0, \
             data varchar(255) NOT NULL DEFAULT '', time bigint unsigned NOT NULL DEFAULT 0, \
             version int unsigned NOT NULL DEFAULT 0, PRIMARY KEY (link_type, id1, id2), \
             KEY id1_type (id1, link_type, visibility, time, id2, version, data)"
        }
        "counttable" => {
            "id bigint unsigned NOT NULL DEFAULT 0, link_type bigint unsigned NOT NULL DEFAULT 0, \
             count int unsigned NOT NULL DEFAULT 0, time bigint unsigned NOT NULL DEFAULT 0, \
             version bigint unsigned NOT NULL DEFAULT 0, PRIMARY KEY (id, link_type)"
        }
        _ => {
            "id bigint unsigned NOT NULL AUTO_INCREMENT, type int unsigned NOT NULL, \
             version bigint unsigned NOT NULL, time int unsigned NOT NULL, data mediumtext NOT NULL, \
             PRIMARY KEY (id)"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_a_place_for_every_value() {
        for (shape, columns) in
            [(Shape::InsertNodes(32), 5), (Shape::InsertLinks(32), 7), (Shape::RaiseCounts(32), 5)]
        {
            assert_eq!(shape.sql().matches('?').count(), 32 * columns, "{shape:?}");
        }
    }
}
