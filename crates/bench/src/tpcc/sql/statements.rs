//! The statements, as text.

use super::super::schema::Table;
use super::columns::{Layout, layout};
use crate::sql::{Dialect, Prepared, places};

/// A prepared statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// A row by its key.
    Get(Table),
    /// The same, locked.
    Lock(Table),
    /// Sets the columns whose bits are set.
    Update(Table, u32),
    /// Adds so many rows.
    Insert(Table, usize),
    Delete(Table),
    /// Rows or entries of an index that agree in so many first columns, in order.
    Scan(Table, usize),
    /// The first of them.
    First(Table, usize),
    /// Rows whose last column of so many lies in a range.
    Between(Table, usize),
    /// Sum of the amounts of an order's lines.
    LinesAmount,
    /// Dates the lines of an order.
    DeliverLines,
}

/// The table on the server, and the columns that an index has and is sorted by.
fn names(table: Table) -> (&'static str, &'static str, Vec<&'static str>) {
    match table {
        Table::CustomerByName => {
            ("customer", "by_name", vec!["c_w_id", "c_d_id", "c_last", "c_first", "c_id"])
        }
        Table::OrderByCustomer => ("orders", "by_customer", vec!["o_w_id", "o_d_id", "o_c_id", "o_id"]),
        _ => (table.name(), "PRIMARY", layout(table).key.iter().map(|(name, _)| *name).collect()),
    }
}

fn equal(columns: &[&str]) -> String {
    columns.iter().map(|name| format!("{name} = ?")).collect::<Vec<_>>().join(" AND ")
}

/// A query for rows that agree in so many first columns.
fn scan(table: Table, equal_columns: usize, dialect: &dyn Dialect) -> String {
    let (name, index, key) = names(table);
    let mut columns = key.clone();
    let mut order = key.clone();
    match table {
        // The newest first.
        Table::OrderByCustomer => order[3] = "o_id DESC",
        Table::CustomerByName => {}
        _ => columns.extend(layout(table).columns.iter().map(|column| column.name)),
    }
    let condition = match equal_columns {
        0 => String::new(),
        _ => format!("WHERE {} ", equal(&key[..equal_columns])),
    };
    // Not by columns that are all equal, which would be sorted.
    let order = order[equal_columns.min(order.len() - 1)..].join(", ");
    let forced = dialect.force_index(index);
    format!("SELECT {} FROM {name}{forced} {condition}ORDER BY {order}", columns.join(", "))
}

impl Prepared for Shape {
    fn sql(self, dialect: &dyn Dialect) -> String {
        let row = |table: Table| {
            let Layout { key, columns, .. } = layout(table);
            let key: Vec<&str> = key.iter().map(|(name, _)| *name).collect();
            let columns: Vec<&str> = columns.iter().map(|column| column.name).collect();
            (table.name(), equal(&key), columns)
        };
        match self {
            Shape::Get(table) => {
                let (name, condition, columns) = row(table);
                let columns = if columns.is_empty() { "1".to_owned() } else { columns.join(", ") };
                format!("SELECT {columns} FROM {name} WHERE {condition}")
            }
            Shape::Lock(table) => format!("{} FOR UPDATE", Shape::Get(table).sql(dialect)),
            Shape::Update(table, bits) => {
                let (name, condition, columns) = row(table);
                let set = columns.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
                let set: Vec<String> = set.map(|(_, column)| format!("{column} = ?")).collect();
                format!("UPDATE {name} SET {} WHERE {condition}", set.join(", "))
            }
            Shape::Insert(table, rows) => {
                let Layout { key, columns, .. } = layout(table);
                let mut names: Vec<&str> = key.iter().map(|(name, _)| *name).collect();
                names.extend(columns.iter().map(|column| column.name));
                let places = places(names.len(), rows);
                format!("INSERT INTO {} ({}) VALUES {places}", table.name(), names.join(", "))
            }
            Shape::Delete(table) => {
                let (name, condition, _) = row(table);
                format!("DELETE FROM {name} WHERE {condition}")
            }
            Shape::Scan(table, columns) => scan(table, columns, dialect),
            Shape::First(table, columns) => format!("{} LIMIT 1", scan(table, columns, dialect)),
            Shape::Between(table, columns) => {
                let (_, _, key) = names(table);
                let last = key[columns - 1];
                let all = scan(table, columns, dialect);
                all.replace(&format!("{last} = ?"), &format!("{last} >= ? AND {last} < ?"))
                    .replace("ORDER BY ", &format!("ORDER BY {last}, "))
            }
            Shape::LinesAmount => format!(
                "SELECT CAST(SUM(ol_amount) AS {}) FROM order_line \
                 WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?",
                dialect.big_number()
            ),
            Shape::DeliverLines => "UPDATE order_line SET ol_delivery_d = ? \
                WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?"
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::Brand;

    #[test]
    fn statements_say_what_they_should() {
        let cases = [
            (
                Shape::Get(Table::NewOrder),
                "SELECT 1 FROM new_order WHERE no_w_id = ? AND no_d_id = ? AND no_o_id = ?",
            ),
            (
                Shape::Lock(Table::Item),
                "SELECT i_im_id, i_price, i_name, i_data FROM item WHERE i_id = ? FOR UPDATE",
            ),
            (
                Shape::Update(Table::Warehouse, 0b101),
                "UPDATE warehouse SET w_ytd = ?, w_name = ? WHERE w_id = ?",
            ),
            (
                Shape::Insert(Table::NewOrder, 2),
                "INSERT INTO new_order (no_w_id, no_d_id, no_o_id) VALUES (?, ?, ?), (?, ?, ?)",
            ),
            (
                Shape::First(Table::OrderByCustomer, 3),
                "SELECT o_w_id, o_d_id, o_c_id, o_id FROM orders FORCE INDEX (by_customer) \
                 WHERE o_w_id = ? AND o_d_id = ? AND o_c_id = ? ORDER BY o_id DESC LIMIT 1",
            ),
            (
                Shape::Scan(Table::NewOrder, 0),
                "SELECT no_w_id, no_d_id, no_o_id FROM new_order FORCE INDEX (PRIMARY) \
                 ORDER BY no_w_id, no_d_id, no_o_id",
            ),
            (
                Shape::Between(Table::NewOrder, 3),
                "SELECT no_w_id, no_d_id, no_o_id FROM new_order FORCE INDEX (PRIMARY) \
                 WHERE no_w_id = ? AND no_d_id = ? AND no_o_id >= ? AND no_o_id < ? ORDER BY no_o_id, no_o_id",
            ),
        ];
        for (shape, text) in cases {
            assert_eq!(shape.sql(Brand::Mysql.dialect()), text);
        }
    }
}
