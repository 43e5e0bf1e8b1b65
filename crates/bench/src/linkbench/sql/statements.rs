//! The statements, as text.

use super::super::db::Table;
use crate::sql::{Column, Definition, Dialect, Prepared, Type, places};

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
    fn sql(self, dialect: &dyn Dialect) -> String {
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
            Shape::ListLinks => format!(
                "SELECT id2, time, version, data FROM linktable{} \
                 WHERE id1 = ? AND link_type = ? AND visibility = ? AND time <= ? \
                 ORDER BY time DESC LIMIT ? OFFSET ?",
                dialect.force_index("id1_type")
            ),
            Shape::AllNodes => "SELECT id, type, version, time, data FROM nodetable ORDER BY id".to_owned(),
            Shape::AllLinks => format!(
                "SELECT link_type, id1, id2, visibility, time, version, data \
                 FROM linktable{} ORDER BY link_type, id1, id2",
                dialect.force_index("PRIMARY")
            ),
            Shape::AllIndexEntries => format!(
                "SELECT link_type, id1, id2, visibility, time, version, data \
                 FROM linktable{} ORDER BY id1, link_type, visibility, time, id2",
                dialect.force_index("id1_type")
            ),
            Shape::AllCounts => {
                "SELECT id, link_type, count, time, version FROM counttable ORDER BY id, link_type".to_owned()
            }
            Shape::InsertNodes(rows) => format!("{NODES}{}", places(5, rows)),
            Shape::InsertLinks(rows) => format!("{LINKS}{}", places(7, rows)),
            Shape::InsertCounts(rows) => format!("{COUNTS}{}", places(5, rows)),
            Shape::RaiseCounts(rows) => format!(
                "{COUNTS}{} {} count = counttable.count + {}, time = {}, version = counttable.version + 1",
                places(5, rows),
                dialect.on_duplicate("id, link_type"),
                dialect.inserted("count"),
                dialect.inserted("time"),
            ),
        }
    }
}

/// The tables of LinkBench's schema (its README), without partitions.
pub(super) fn tables() -> [Definition; 3] {
    let column = Column::new;
    let link = vec![
        column("id1", Type::Big),
        column("id2", Type::Big),
        column("link_type", Type::Big),
        column("visibility", Type::Tiny),
        column("data", Type::Bytes),
        column("time", Type::Big),
        column("version", Type::Int),
    ];
    let count = vec![
        column("id", Type::Big),
        column("link_type", Type::Big),
        column("count", Type::Int),
        column("time", Type::Big),
        column("version", Type::Big),
    ];
    let node = vec![
        column("id", Type::Serial),
        column("type", Type::Int),
        column("version", Type::Big),
        column("time", Type::Int),
        column("data", Type::LongBytes),
    ];
    [
        Definition {
            name: "linktable",
            columns: link,
            key: vec!["link_type", "id1", "id2"],
            index: Some(("id1_type", "id1, link_type, visibility, time, id2, version, data")),
        },
        Definition { name: "counttable", columns: count, key: vec!["id", "link_type"], index: None },
        Definition { name: "nodetable", columns: node, key: vec!["id"], index: None },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::Brand;

    #[test]
    fn groups_have_a_place_for_every_value() {
        for (shape, columns) in
            [(Shape::InsertNodes(32), 5), (Shape::InsertLinks(32), 7), (Shape::RaiseCounts(32), 5)]
        {
            let sql = shape.sql(Brand::Mysql.dialect());
            assert_eq!(sql.matches('?').count(), 32 * columns, "{shape:?}");
        }
    }
}
