//! The columns of the tables on a server, and rows from and to the keys and values of the benchmark.
//!
//! Values are in the order and width that `schema` writes them in; a test holds the one against the other. Money stays
//! in cents and times in milliseconds, as whole numbers.

use anyhow::{Context, Result, anyhow, ensure};

use super::super::schema::{Table, name_key, order_of_customer_key};
use crate::sql::{self, BAD_ROW, Definition, Type, Value};
use Width::{I32, I64, Text, U8, U32, U64};

/// How a column is in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    U8,
    U32,
    U64,
    I32,
    I64,
    Text,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub name: &'static str,
    width: Width,
    of: Type,
    /// Zero is NULL on the server.
    is_nullable: bool,
}

const fn column(name: &'static str, width: Width, of: Type) -> Column {
    Column { name, width, of, is_nullable: false }
}

/// The columns of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Those of its primary key, and their types. A bigint is two words of the benchmark's key.
    pub key: &'static [(&'static str, Type)],
    /// All others.
    pub columns: &'static [Column],
    /// A secondary key, if there is one.
    index: Option<(&'static str, &'static str)>,
}

const BIG: Type = Type::Big;
const INT: Type = Type::Int;
const TINY: Type = Type::Tiny;

const WAREHOUSE: &[Column] = &[
    column("w_ytd", I64, Type::SignedBig),
    column("w_tax", U32, INT),
    column("w_name", Text, Type::Text(10)),
    column("w_street_1", Text, Type::Text(20)),
    column("w_street_2", Text, Type::Text(20)),
    column("w_city", Text, Type::Text(20)),
    column("w_state", Text, Type::Char(2)),
    column("w_zip", Text, Type::Char(9)),
];

const DISTRICT: &[Column] = &[
    column("d_ytd", I64, Type::SignedBig),
    column("d_next_o_id", U32, INT),
    column("d_tax", U32, INT),
    column("d_name", Text, Type::Text(10)),
    column("d_street_1", Text, Type::Text(20)),
    column("d_street_2", Text, Type::Text(20)),
    column("d_city", Text, Type::Text(20)),
    column("d_state", Text, Type::Char(2)),
    column("d_zip", Text, Type::Char(9)),
];

const CUSTOMER: &[Column] = &[
    column("c_balance", I64, Type::SignedBig),
    column("c_ytd_payment", I64, Type::SignedBig),
    column("c_payment_cnt", U32, INT),
    column("c_delivery_cnt", U32, INT),
    column("c_credit_lim", I64, Type::SignedBig),
    column("c_discount", U32, INT),
    column("c_since", U64, BIG),
    column("c_credit", Text, Type::Char(2)),
    // Names sort by their bytes, as in the engine.
    column("c_first", Text, Type::Name(16)),
    column("c_middle", Text, Type::Char(2)),
    column("c_last", Text, Type::Name(16)),
    column("c_street_1", Text, Type::Text(20)),
    column("c_street_2", Text, Type::Text(20)),
    column("c_city", Text, Type::Text(20)),
    column("c_state", Text, Type::Char(2)),
    column("c_zip", Text, Type::Char(9)),
    column("c_phone", Text, Type::Char(16)),
    column("c_data", Text, Type::Text(500)),
];

const HISTORY: &[Column] = &[
    column("h_c_w_id", U32, INT),
    column("h_c_d_id", U32, TINY),
    column("h_c_id", U32, INT),
    column("h_date", U64, BIG),
    column("h_amount", I64, Type::SignedBig),
    column("h_data", Text, Type::Text(24)),
];

const ORDER: &[Column] = &[
    column("o_c_id", U32, INT),
    column("o_entry_d", U64, BIG),
    Column { is_nullable: true, ..column("o_carrier_id", U8, TINY) },
    column("o_ol_cnt", U8, TINY),
    column("o_all_local", U8, TINY),
];

const ORDER_LINE: &[Column] = &[
    column("ol_i_id", U32, INT),
    column("ol_supply_w_id", U32, INT),
    Column { is_nullable: true, ..column("ol_delivery_d", U64, BIG) },
    column("ol_quantity", U8, TINY),
    column("ol_amount", I64, Type::SignedBig),
    column("ol_dist_info", Text, Type::Char(24)),
];

const ITEM: &[Column] = &[
    column("i_im_id", U32, INT),
    column("i_price", I64, Type::SignedBig),
    column("i_name", Text, Type::Text(24)),
    column("i_data", Text, Type::Text(50)),
];

const STOCK: &[Column] = &[
    column("s_quantity", I32, Type::SignedInt),
    column("s_ytd", U64, BIG),
    column("s_order_cnt", U32, INT),
    column("s_remote_cnt", U32, INT),
    // Those of all districts, one behind the other.
    column("s_dists", Text, Type::Char(240)),
    column("s_data", Text, Type::Text(50)),
];

/// The layout of a table that is one on the server too.
pub(super) fn layout(table: Table) -> Layout {
    let (key, columns): (&[_], _) = match table {
        Table::Warehouse => (&[("w_id", INT)], WAREHOUSE),
        Table::District => (&[("d_w_id", INT), ("d_id", TINY)], DISTRICT),
        Table::Customer | Table::CustomerByName => {
            (&[("c_w_id", INT), ("c_d_id", TINY), ("c_id", INT)], CUSTOMER)
        }
        Table::History => (&[("h_w_id", INT), ("h_d_id", TINY), ("h_number", BIG)], HISTORY),
        Table::NewOrder => (&[("no_w_id", INT), ("no_d_id", TINY), ("no_o_id", INT)], &[]),
        Table::Order | Table::OrderByCustomer => (&[("o_w_id", INT), ("o_d_id", TINY), ("o_id", INT)], ORDER),
        Table::OrderLine => {
            (&[("ol_w_id", INT), ("ol_d_id", TINY), ("ol_o_id", INT), ("ol_number", TINY)], ORDER_LINE)
        }
        Table::Item => (&[("i_id", INT)], ITEM),
        Table::Stock => (&[("s_w_id", INT), ("s_i_id", INT)], STOCK),
    };
    let index = match table {
        Table::Customer => Some(("by_name", "c_w_id, c_d_id, c_last, c_first, c_id")),
        Table::Order => Some(("by_customer", "o_w_id, o_d_id, o_c_id, o_id")),
        _ => None,
    };
    Layout { key, columns, index }
}

/// A table, for its creation.
pub(super) fn definition(table: Table) -> Definition {
    let Layout { key, columns, index } = layout(table);
    let mut all: Vec<sql::Column> = key.iter().map(|&(name, of)| sql::Column::new(name, of)).collect();
    all.extend(columns.iter().map(|&Column { name, of, is_nullable, .. }| sql::Column {
        name,
        of,
        is_nullable,
    }));
    Definition { name: table.name(), columns: all, key: key.iter().map(|(name, _)| *name).collect(), index }
}

/// The words of a key or of its start.
fn words(key: &[u8]) -> impl Iterator<Item = u32> {
    key.chunks(4).map(|word| word.iter().fold(0, |number, &byte| number << 8 | u32::from(byte)))
}

/// Columns of a key, or of a start of whole columns, of a table on the server.
pub(super) fn key_params(table: Table, key: &[u8]) -> Vec<Value> {
    let mut words = words(key);
    let mut params = Vec::with_capacity(4);
    for (_, of) in layout(table).key {
        let Some(high) = words.next() else { break };
        params.push(Value::from(match *of {
            BIG => u64::from(high) << 32 | u64::from(words.next().unwrap_or(0)),
            _ => high.into(),
        }));
    }
    params
}

/// The key of a row whose first fields are those of its key; the rest of the fields.
pub(super) fn key_of(table: Table, fields: &[Value]) -> Result<(Vec<u8>, &[Value])> {
    let Layout { key: columns, .. } = layout(table);
    let (fields, rest) = fields.split_at_checked(columns.len()).context(BAD_ROW)?;
    let mut key = Vec::with_capacity(16);
    for ((_, of), field) in columns.iter().zip(fields) {
        let number = field.uint()?;
        match *of {
            BIG => key.extend_from_slice(&number.to_be_bytes()),
            _ => key.extend_from_slice(&u32::try_from(number).context(BAD_ROW)?.to_be_bytes()),
        }
    }
    Ok((key, rest))
}

/// The columns of a value.
pub(super) fn value_params(table: Table, value: &[u8]) -> Result<Vec<Value>> {
    let mut rest = value;
    let params = layout(table).columns.iter().map(|column| field(column, &mut rest));
    let params: Option<Vec<Value>> = params.collect();
    let params = params.filter(|_| rest.is_empty());
    params.with_context(|| format!("a row of {} cannot have {} bytes", table.name(), value.len()))
}

fn field(column: &Column, rest: &mut &[u8]) -> Option<Value> {
    fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
        let (bytes, behind) = rest.split_first_chunk()?;
        *rest = behind;
        Some(*bytes)
    }
    let value = match column.width {
        Width::U8 => u64::from(u8::from_le_bytes(take(rest)?)).into(),
        Width::U32 => u64::from(u32::from_le_bytes(take(rest)?)).into(),
        Width::U64 => u64::from_le_bytes(take(rest)?).into(),
        Width::I32 => Value::Int(i32::from_le_bytes(take(rest)?).into()),
        Width::I64 => Value::Int(i64::from_le_bytes(take(rest)?)),
        Width::Text => {
            let length = u16::from_le_bytes(take(rest)?);
            let (text, behind) = rest.split_at_checked(length.into())?;
            *rest = behind;
            Value::Bytes(text.to_vec())
        }
    };
    Some(if column.is_nullable && value == Value::Int(0) { Value::Null } else { value })
}

/// The value of these columns.
pub(super) fn value_of(table: Table, fields: &[Value]) -> Result<Vec<u8>> {
    let Layout { columns, .. } = layout(table);
    ensure!(fields.len() == columns.len(), BAD_ROW);
    let mut value = Vec::with_capacity(512);
    for (column, field) in columns.iter().zip(fields) {
        let zero = Value::Int(0);
        let field = if column.is_nullable && *field == Value::Null { &zero } else { field };
        match column.width {
            Width::U8 => value.push(field.uint()?.try_into().context(BAD_ROW)?),
            Width::U32 => value.extend(u32::try_from(field.uint()?).context(BAD_ROW)?.to_le_bytes()),
            Width::U64 => value.extend(field.uint()?.to_le_bytes()),
            Width::I32 => value.extend(i32::try_from(field.int()?).context(BAD_ROW)?.to_le_bytes()),
            Width::I64 => value.extend(field.int()?.to_le_bytes()),
            Width::Text => {
                let text = field.bytes()?;
                value.extend(u16::try_from(text.len()).context(BAD_ROW)?.to_le_bytes());
                value.extend_from_slice(text);
            }
        }
    }
    Ok(value)
}

/// Key of an entry in an index from the columns that the server keeps in it.
pub(super) fn index_key(table: Table, fields: &[Value]) -> Result<Vec<u8>> {
    let number = |field: &Value| u32::try_from(field.uint()?).context(BAD_ROW);
    match (table, fields) {
        (Table::CustomerByName, [warehouse, district, last, first, customer]) => {
            let id = [number(warehouse)?, number(district)?, number(customer)?];
            Ok(name_key(id, last.bytes()?, first.bytes()?))
        }
        (Table::OrderByCustomer, [warehouse, district, customer, order]) => Ok(order_of_customer_key(
            number(warehouse)?,
            number(district)?,
            number(customer)?,
            number(order)?,
        )),
        _ => Err(anyhow!(BAD_ROW)),
    }
}

/// Columns of the start of an entry in an index.
pub(super) fn index_params(table: Table, start: &[u8]) -> Vec<Value> {
    let is_name = table == Table::CustomerByName;
    let (numbers, last) = if is_name { start.split_at(start.len().min(8)) } else { (start, &[][..]) };
    let mut params: Vec<Value> = words(numbers).map(|word| u64::from(word).into()).collect();
    if !last.is_empty() {
        let name = last.split(|&byte| byte == 0).next().unwrap_or_default();
        params.push(Value::Bytes(name.to_vec()));
    }
    params
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::schema::{
            AddressText, CustomerRow, DistrictRow, HistoryRow, ItemRow, OrderLineRow, OrderRow, Row,
            StockRow, WarehouseRow, history_key, key, last_name_key,
        },
        *,
    };
    use crate::random::Random;

    /// A row of each table with values that differ from column to column.
    fn rows() -> Vec<(Table, Vec<u8>)> {
        let text = AddressText::new(&mut Random::new(1, 1));
        let address = text.address();
        let warehouse = WarehouseRow { ytd: -1, tax: 2, name: b"w", address };
        let district = DistrictRow { ytd: 1, next_order: 2, tax: 3, name: b"d", address };
        let customer = CustomerRow {
            balance: -1,
            ytd_payment: 2,
            payments: 3,
            deliveries: 4,
            credit_limit: 5,
            discount: 6,
            since: 7,
            credit: b"GC",
            first: b"first",
            middle: b"OE",
            last: b"last",
            address,
            phone: b"phone",
            data: b"data",
        };
        let history = HistoryRow {
            customer_warehouse: 1,
            customer_district: 2,
            customer: 3,
            date: 4,
            amount: 5,
            data: b"data",
        };
        let order = OrderRow { customer: 1, entry: 2, carrier: 0, lines: 4, all_local: 1 };
        let line = OrderLineRow {
            item: 1,
            supply_warehouse: 2,
            delivery: 3,
            quantity: 4,
            amount: -5,
            district_info: b"info",
        };
        let item = ItemRow { image: 1, price: 2, name: b"item", data: b"data" };
        let stock = StockRow {
            quantity: -1,
            ytd: 2,
            orders: 3,
            remote_orders: 4,
            district_infos: b"infos",
            data: b"data",
        };
        vec![
            (Table::Warehouse, warehouse.value()),
            (Table::District, district.value()),
            (Table::Customer, customer.value()),
            (Table::History, history.value()),
            (Table::NewOrder, Vec::new()),
            (Table::Order, order.value()),
            (Table::OrderLine, line.value()),
            (Table::Item, item.value()),
            (Table::Stock, stock.value()),
        ]
    }

    #[test]
    fn rows_of_the_schema_are_columns_and_come_back() {
        for (table, value) in rows() {
            let params = value_params(table, &value).unwrap();
            assert_eq!(value_of(table, &params).unwrap(), value, "{table:?}");
            let long = [&value[..], &[0]].concat();
            assert!(
                value_params(table, &long).is_err()
                    && value_of(table, &params[..0]).is_err() | params.is_empty()
            );
        }
        let column = |table, name: &str| {
            let rows = rows();
            let (_, value) = rows.iter().find(|(of, _)| *of == table).unwrap();
            let at = layout(table).columns.iter().position(|column| column.name == name).unwrap();
            value_params(table, value).unwrap()[at].clone()
        };
        assert_eq!(column(Table::Warehouse, "w_ytd"), Value::Int(-1));
        assert_eq!(column(Table::District, "d_next_o_id"), Value::Int(2));
        assert_eq!(column(Table::Customer, "c_last"), Value::Bytes(b"last".to_vec()));
        assert_eq!(column(Table::Order, "o_carrier_id"), Value::Null);
        assert_eq!(column(Table::OrderLine, "ol_delivery_d"), Value::Int(3));
        assert_eq!(column(Table::Stock, "s_quantity"), Value::Int(-1));
    }

    #[test]
    fn keys_come_back() {
        let number = (7 << 32) + 9;
        let keys = [
            (Table::Warehouse, key(&[1])),
            (Table::History, history_key(1, 2, number)),
            (Table::OrderLine, key(&[1, 2, 3, 4])),
        ];
        for (table, key) in keys {
            assert_eq!(key_of(table, &key_params(table, &key)).unwrap().0, key);
        }
        assert_eq!(key_params(Table::History, &history_key(1, 2, number))[2], Value::from(number));
        assert_eq!(key_params(Table::Order, &key(&[5, 6])), [Value::Int(5), Value::Int(6)]);
    }

    #[test]
    fn entries_of_indexes_have_the_keys_of_the_schema() {
        let text = |text: &[u8]| Value::Bytes(text.to_vec());
        let number = |number: u64| Value::from(number);
        let fields = [number(1), number(2), text(b"BAR"), text(b"x"), number(3)];
        assert_eq!(index_key(Table::CustomerByName, &fields).unwrap(), name_key([1, 2, 3], b"BAR", b"x"));
        let fields = [1, 2, 3, 4].map(number);
        assert_eq!(index_key(Table::OrderByCustomer, &fields).unwrap(), order_of_customer_key(1, 2, 3, 4));
        assert!(index_key(Table::Order, &fields).is_err());
        let start = last_name_key(1, 2, b"BAR");
        assert_eq!(index_params(Table::CustomerByName, &start), [number(1), number(2), text(b"BAR")]);
        assert_eq!(index_params(Table::CustomerByName, &key(&[1, 2])), [number(1), number(2)]);
        assert_eq!(index_params(Table::OrderByCustomer, &key(&[1, 2, 3])).len(), 3);
    }
}
