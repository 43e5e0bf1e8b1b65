//! Rows as keys and values. Keys are their columns as big-endian words, so they compare bytewise as the
//! columns do; values are all other columns one after the other: numbers little-endian, texts after their length in two
//! bytes. Money is in cents, taxes and discounts are in ten-thousandths, times are milliseconds since 1970; 0 stands
//! for a carrier or time that is null.

use anyhow::{Result, anyhow, ensure};

use super::text::a_string;
use crate::random::Random;

/// The tables; the last two are indexes and have empty values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// By (warehouse).
    Warehouse,
    /// By (warehouse, district).
    District,
    /// By (warehouse, district, customer).
    Customer,
    /// By (warehouse, district) that took the payment, and a number.
    History,
    /// Orders that are to be delivered, by (warehouse, district, order); empty values.
    NewOrder,
    /// By (warehouse, district, order).
    Order,
    /// By (warehouse, district, order, number).
    OrderLine,
    /// By (item).
    Item,
    /// By (warehouse, item).
    Stock,
    /// By (warehouse, district, last name, first name, customer).
    CustomerByName,
    /// By (warehouse, district, customer, newest order first).
    OrderByCustomer,
}

impl Table {
    /// Every table.
    pub const ALL: [Table; 11] = [
        Table::Warehouse,
        Table::District,
        Table::Customer,
        Table::History,
        Table::NewOrder,
        Table::Order,
        Table::OrderLine,
        Table::Item,
        Table::Stock,
        Table::CustomerByName,
        Table::OrderByCustomer,
    ];

    /// Its name in a store.
    pub fn name(self) -> &'static str {
        match self {
            Table::Warehouse => "warehouse",
            Table::District => "district",
            Table::Customer => "customer",
            Table::History => "history",
            Table::NewOrder => "new_order",
            Table::Order => "orders",
            Table::OrderLine => "order_line",
            Table::Item => "item",
            Table::Stock => "stock",
            Table::CustomerByName => "customer_by_name",
            Table::OrderByCustomer => "order_by_customer",
        }
    }
}

/// A key, or the common start of keys, of these columns.
pub(crate) fn key(columns: &[u32]) -> Vec<u8> {
    columns.iter().flat_map(|column| column.to_be_bytes()).collect()
}

/// The columns of a key that has exactly so many.
pub(crate) fn columns<const N: usize>(key: &[u8]) -> Result<[u32; N]> {
    ensure!(key.len() == 4 * N, "a key of {} bytes where {} are due", key.len(), 4 * N);
    Ok(std::array::from_fn(|i| u32::from_be_bytes(key[4 * i..][..4].try_into().expect("four bytes"))))
}

/// The first key after every key that begins with `start`, which is not all ones.
pub(crate) fn end_of(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    let last = end.iter().rposition(|&byte| byte != 0xFF).expect("a key below the last");
    end.truncate(last + 1);
    end[last] += 1;
    end
}

/// Key of a payment; the number is unique in the database.
pub(crate) fn history_key(warehouse: u32, district: u32, number: u64) -> Vec<u8> {
    key(&[warehouse, district, (number >> 32) as u32, number as u32])
}

/// Most values are shorter.
const VALUE_BYTES: usize = 512;

/// Names are padded with zeros to this in keys, which no name contains.
const NAME: usize = 16;

/// The common start of the index keys of all customers of a last name.
pub(crate) fn last_name_key(warehouse: u32, district: u32, last: &[u8]) -> Vec<u8> {
    let mut start = key(&[warehouse, district]);
    start.extend_from_slice(last);
    start.resize(8 + NAME, 0);
    start
}

/// Key of a customer in the index by name.
pub(crate) fn name_key([warehouse, district, customer]: [u32; 3], last: &[u8], first: &[u8]) -> Vec<u8> {
    let mut name = last_name_key(warehouse, district, last);
    name.extend_from_slice(first);
    name.resize(8 + 2 * NAME, 0);
    name.extend_from_slice(&customer.to_be_bytes());
    name
}

/// The last column of a key.
pub(crate) fn last_column(key: &[u8]) -> Result<u32> {
    Ok(u32::from_be_bytes(*key.last_chunk().ok_or_else(|| anyhow!("a key of {} bytes", key.len()))?))
}

/// Key of an order in the index by customer.
pub(crate) fn order_of_customer_key(warehouse: u32, district: u32, customer: u32, order: u32) -> Vec<u8> {
    key(&[warehouse, district, customer, !order])
}

/// A column in a value.
trait Column<'a>: Sized {
    fn write(&self, out: &mut Vec<u8>);
    fn read(rest: &mut &'a [u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Column<'_> for $number {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(rest: &mut &[u8]) -> Option<Self> {
                let (bytes, behind) = rest.split_first_chunk()?;
                *rest = behind;
                Some(Self::from_le_bytes(*bytes))
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, i32, i64);

impl<'a> Column<'a> for &'a [u8] {
    fn write(&self, out: &mut Vec<u8>) {
        u16::try_from(self.len()).expect("texts are short").write(out);
        out.extend_from_slice(self);
    }

    fn read(rest: &mut &'a [u8]) -> Option<Self> {
        let length = u16::read(rest)?;
        let (text, behind) = rest.split_at_checked(length.into())?;
        *rest = behind;
        Some(text)
    }
}

/// A row but for its key.
pub(crate) trait Row<'a>: Sized {
    /// Its value.
    fn value(&self) -> Vec<u8>;

    /// The row of a value.
    fn of_value(value: &'a [u8]) -> Result<Self>;
}

/// A row with its columns in the order of its value; it can be a column itself.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident<$($borrows:lifetime)?> of $a:lifetime
        { $($(#[$column_doc:meta])* $column:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name<$($borrows)?> {
            $($(#[$column_doc])* pub $column: $type,)*
        }

        impl<$a> Column<$a> for $name<$($borrows)?> {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$column.write(out);)*
            }

            fn read(rest: &mut &$a [u8]) -> Option<Self> {
                Some($name { $($column: Column::read(rest)?,)* })
            }
        }

        impl<$a> Row<$a> for $name<$($borrows)?> {
            fn value(&self) -> Vec<u8> {
                let mut value = Vec::with_capacity(VALUE_BYTES);
                self.write(&mut value);
                value
            }

            fn of_value(mut value: &$a [u8]) -> Result<Self> {
                let bytes = value.len();
                let row = Self::read(&mut value).filter(|_| value.is_empty());
                row.ok_or_else(|| anyhow!("a {} cannot have {bytes} bytes", stringify!($name)))
            }
        }
    };
}

row! {
    /// A postal address.
    Address<'a> of 'a {
        street_1: &'a [u8],
        street_2: &'a [u8],
        city: &'a [u8],
        state: &'a [u8],
        zip: &'a [u8],
    }
}

row! {
    WarehouseRow<'a> of 'a {
        ytd: i64,
        tax: u32,
        name: &'a [u8],
        address: Address<'a>,
    }
}

row! {
    DistrictRow<'a> of 'a {
        ytd: i64,
        next_order: u32,
        tax: u32,
        name: &'a [u8],
        address: Address<'a>,
    }
}

row! {
    CustomerRow<'a> of 'a {
        balance: i64,
        ytd_payment: i64,
        payments: u32,
        deliveries: u32,
        credit_limit: i64,
        discount: u32,
        since: u64,
        /// GC, or BC for bad credit.
        credit: &'a [u8],
        first: &'a [u8],
        middle: &'a [u8],
        last: &'a [u8],
        address: Address<'a>,
        phone: &'a [u8],
        data: &'a [u8],
    }
}

row! {
    HistoryRow<'a> of 'a {
        customer_warehouse: u32,
        customer_district: u32,
        customer: u32,
        date: u64,
        amount: i64,
        data: &'a [u8],
    }
}

row! {
    OrderRow<> of 'a {
        customer: u32,
        entry: u64,
        /// 1 to 10, or 0.
        carrier: u8,
        lines: u8,
        all_local: u8,
    }
}

row! {
    OrderLineRow<'a> of 'a {
        item: u32,
        supply_warehouse: u32,
        /// When it was delivered, or 0.
        delivery: u64,
        quantity: u8,
        amount: i64,
        district_info: &'a [u8],
    }
}

row! {
    ItemRow<'a> of 'a {
        image: u32,
        price: i64,
        name: &'a [u8],
        data: &'a [u8],
    }
}

row! {
    StockRow<'a> of 'a {
        quantity: i32,
        ytd: u64,
        orders: u32,
        remote_orders: u32,
        /// 24 characters for each district.
        district_infos: &'a [u8],
        data: &'a [u8],
    }
}

/// Characters of a district's info.
pub(crate) const DISTRICT_INFO: u32 = 24;

impl<'a> StockRow<'a> {
    /// The info that an order line of that district carries.
    pub(crate) fn district_info(&self, district: u32) -> Result<&'a [u8]> {
        let infos = self.district_infos.chunks(DISTRICT_INFO as usize).nth(district as usize - 1);
        infos.ok_or_else(|| anyhow!("stock without the info of district {district}"))
    }
}

/// The texts of a random [`Address`].
pub(crate) struct AddressText([Vec<u8>; 5]);

impl AddressText {
    pub(crate) fn new(random: &mut Random) -> AddressText {
        AddressText([
            a_string(random, 10, 20),
            a_string(random, 10, 20),
            a_string(random, 10, 20),
            a_string(random, 2, 2),
            super::text::zip(random),
        ])
    }

    pub(crate) fn address(&self) -> Address<'_> {
        let [street_1, street_2, city, state, zip] = &self.0;
        Address { street_1, street_2, city, state, zip }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_cut_ones_do_not() {
        let mut random = Random::new(1, 1);
        let text = AddressText::new(&mut random);
        let district = DistrictRow { ytd: -5, next_order: 9, tax: 7, name: b"n", address: text.address() };
        let value = district.value();
        assert_eq!(DistrictRow::of_value(&value).unwrap(), district);
        for cut in 0..value.len() {
            assert!(DistrictRow::of_value(&value[..cut]).is_err(), "{cut}");
        }
        assert!(DistrictRow::of_value(&[&value[..], &[0]].concat()).is_err());
        let order = OrderRow { customer: 1, entry: 2, carrier: 3, lines: 4, all_local: 1 };
        assert_eq!(OrderRow::of_value(&order.value()).unwrap(), order);
    }

    #[test]
    fn keys_sort_as_their_columns() {
        assert!(key(&[1, 255]) < key(&[1, 256]) && key(&[1, u32::MAX]) < key(&[2]));
        assert_eq!(columns::<2>(&key(&[7, 1 << 30])).unwrap(), [7, 1 << 30]);
        assert!(columns::<2>(&key(&[7])).is_err());
        assert!(order_of_customer_key(1, 2, 3, 5) < order_of_customer_key(1, 2, 3, 4));
        let of = |last: &[u8], first: &[u8], customer| name_key([1, 2, customer], last, first);
        assert!(of(b"BAR", b"Z", 9) < of(b"BARBAR", b"A", 1));
        assert!(of(b"BAR", b"A", 2) < of(b"BAR", b"A", 3));
        assert!(of(b"BAR", b"A", 3).starts_with(&last_name_key(1, 2, b"BAR")));
        assert!(!of(b"BARBAR", b"A", 3).starts_with(&last_name_key(1, 2, b"BAR")));
        assert_eq!(end_of(&[1, 0xFF, 0xFF]), [2]);
        assert_eq!(end_of(&key(&[3, 4])), key(&[3, 5]));
        assert_eq!(last_column(&of(b"BAR", b"A", 3)).unwrap(), 3);
    }

    #[test]
    fn stock_has_an_info_for_each_district() {
        let infos: Vec<u8> = (0..240).collect();
        let stock =
            StockRow { quantity: 1, ytd: 0, orders: 0, remote_orders: 0, district_infos: &infos, data: b"" };
        assert_eq!(stock.district_info(10).unwrap(), &infos[216..]);
        assert!(stock.district_info(11).is_err());
    }
}
