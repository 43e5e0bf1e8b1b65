//! TPC-C's consistency conditions, and the acknowledgement log, against the store.
//!
//! The conditions are 3.3.2.1 to 3.3.2.10 and 3.3.2.12; 3.3.2.11 holds for a database that was only loaded. In short:
//!
//! 1. a warehouse's payments to date are the sum of its districts'
//! 2. the next order of a district follows the last one, and the last one to be delivered if there is any
//! 3. the orders of a district that are to be delivered have no gap
//! 4. a district has as many order lines as its orders say
//! 5. an order has no carrier if and only if it is to be delivered
//! 6. every order has as many lines as it says
//! 7. a line has no delivery time if and only if its order has no carrier
//! 8. a warehouse's payments to date are those of its history
//! 9. so are a district's
//! 10. a customer's balance is what was delivered less what was paid
//! 12. a customer's balance and payments to date are together what was delivered
//!
//! Beyond TPC-C: both indexes have exactly one entry for each customer and order. One district at a time is
//! held in memory, and the payments of each customer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{
    Scale,
    acks::{self, Ack},
    db::{Db, Txn},
    schema::{
        CustomerRow, DistrictRow, HistoryRow, OrderLineRow, OrderRow, Row, Table, WarehouseRow, columns,
        history_key, key, name_key, order_of_customer_key,
    },
};
use crate::linkbench::DbError;

/// The counts of a consistent database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Warehouses.
    pub warehouses: u64,
    /// Orders, delivered or not.
    pub orders: u64,
    /// Payments.
    pub payments: u64,
    /// Verified acknowledgements, if any were asked for.
    pub acks: u64,
}

/// Checks the conditions and the indexes.
///
/// # Errors
/// When the store cannot be read, and for the first violation, which names the condition and the row.
pub fn verify(database: &impl Db) -> Result<Verified> {
    let mut txn = database.begin().map_err(plain)?;
    let paid = Paid::read(&mut txn)?;
    let mut verified = Verified { payments: paid.payments, ..Verified::default() };
    let mut warehouses = Vec::new();
    for_all(&mut txn, Table::Warehouse, &[], |key, value| {
        let [warehouse] = columns(key)?;
        warehouses.push((warehouse, WarehouseRow::of_value(value)?.ytd));
        Ok(())
    })?;
    for (warehouse, ytd) in warehouses {
        verified.orders += check_warehouse(&mut txn, &paid, warehouse, ytd)?;
        verified.warehouses += 1;
    }
    Ok(verified)
}

/// Checks all that [`verify`] does, and that everything in the log at `log` is there.
///
/// # Errors
/// Those of [`verify`], and when the log cannot be read.
pub fn verify_acks(database: &impl Db, log: &Path) -> Result<Verified> {
    let acks = acks::read(log)?;
    let verified = verify(database)?;
    let mut txn = database.begin().map_err(plain)?;
    for ack in &acks {
        check_ack(&mut txn, ack).with_context(|| format!("acknowledged {ack:?}"))?;
    }
    Ok(Verified { acks: acks.len() as u64, ..verified })
}

fn plain(error: DbError) -> anyhow::Error {
    match error {
        DbError::Retry(reason) => anyhow!("a read lost: {reason}"),
        DbError::Fatal(error) => error,
    }
}

/// Calls `each` with all records whose keys begin with these columns.
fn for_all(
    txn: &mut impl Txn,
    table: Table,
    start: &[u32],
    mut each: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    txn.scan(table, &key(start), &mut each).map_err(plain)
}

/// Sums of the history.
#[derive(Default)]
struct Paid {
    payments: u64,
    /// By warehouse and district that took the payments.
    districts: HashMap<[u32; 2], i64>,
    /// By warehouse, district and id of the customer.
    customers: HashMap<[u32; 3], i64>,
}

impl Paid {
    fn read(txn: &mut impl Txn) -> Result<Paid> {
        let mut paid = Paid::default();
        for_all(txn, Table::History, &[], |key, value| {
            let [warehouse, district, _, _] = columns(key)?;
            let row = HistoryRow::of_value(value)?;
            let customer = [row.customer_warehouse, row.customer_district, row.customer];
            paid.payments += 1;
            *paid.districts.entry([warehouse, district]).or_default() += row.amount;
            *paid.customers.entry(customer).or_default() += row.amount;
            Ok(())
        })?;
        Ok(paid)
    }
}

/// Checks a warehouse and its districts; the number of its orders.
fn check_warehouse(txn: &mut impl Txn, paid: &Paid, warehouse: u32, ytd: i64) -> Result<u64> {
    let mut districts = Vec::new();
    for_all(txn, Table::District, &[warehouse], |key, value| {
        let [_, district] = columns(key)?;
        let row = DistrictRow::of_value(value)?;
        districts.push((district, row.ytd, row.next_order));
        Ok(())
    })?;
    let of_districts: i64 = districts.iter().map(|(_, ytd, _)| ytd).sum();
    ensure!(
        ytd == of_districts,
        "condition 3.3.2.1, warehouse {warehouse}: W_YTD is {ytd}, the sum of D_YTD {of_districts}"
    );
    let in_history = paid.districts.iter().filter(|([of, _], _)| *of == warehouse);
    let in_history: i64 = in_history.map(|(_, sum)| sum).sum();
    ensure!(
        ytd == in_history,
        "condition 3.3.2.8, warehouse {warehouse}: W_YTD is {ytd}, the sum of H_AMOUNT {in_history}"
    );
    let mut orders = 0;
    for (district, ytd, next_order) in districts {
        let state = District::read(txn, paid, [warehouse, district], ytd, next_order)?;
        for (condition, check) in CONDITIONS {
            check(&state)
                .with_context(|| format!("{condition}, warehouse {warehouse}, district {district}"))?;
        }
        orders += state.orders.len() as u64;
    }
    Ok(orders)
}

/// Lines of an order.
#[derive(Clone, Copy, Default)]
struct Lines {
    count: usize,
    /// Those with a delivery time.
    delivered: usize,
    /// Sum of the amounts of these.
    delivered_amount: i64,
}

/// The amounts in a customer's row, in cents.
#[derive(Clone, Copy)]
struct Account {
    balance: i64,
    ytd_payment: i64,
    /// Sum of the customer's history.
    paid: i64,
}

/// All values that the conditions compare in a district.
struct District {
    ytd: i64,
    next_order: u32,
    /// Sum of the district's history.
    paid: i64,
    orders: BTreeMap<u32, OrderRow>,
    new_orders: BTreeSet<u32>,
    lines: BTreeMap<u32, Lines>,
    customers: BTreeMap<u32, Account>,
    /// Keys that the index by name should have, and those it has.
    names: [BTreeSet<Vec<u8>>; 2],
    /// The same of the index of orders by customer.
    order_index: [BTreeSet<Vec<u8>>; 2],
}

type Condition = (&'static str, fn(&District) -> Result<()>);

const CONDITIONS: [Condition; 11] = [
    ("condition 3.3.2.2", District::condition_2),
    ("condition 3.3.2.3", District::condition_3),
    ("condition 3.3.2.4", District::condition_4),
    ("condition 3.3.2.5", District::condition_5),
    ("condition 3.3.2.6", District::condition_6),
    ("condition 3.3.2.7", District::condition_7),
    ("condition 3.3.2.9", District::condition_9),
    ("condition 3.3.2.10", District::condition_10),
    ("condition 3.3.2.12", District::condition_12),
    ("index of customers by name", |district| same(&district.names)),
    ("index of orders by customer", |district| same(&district.order_index)),
];

impl District {
    fn read(txn: &mut impl Txn, paid: &Paid, id: [u32; 2], ytd: i64, next_order: u32) -> Result<District> {
        let mut district = District {
            ytd,
            next_order,
            paid: paid.districts.get(&id).copied().unwrap_or(0),
            orders: BTreeMap::new(),
            new_orders: BTreeSet::new(),
            lines: BTreeMap::new(),
            customers: BTreeMap::new(),
            names: Default::default(),
            order_index: Default::default(),
        };
        district.read_orders(txn, id)?;
        let District { customers, names: [due, found], .. } = &mut district;
        for_all(txn, Table::Customer, &id, |key, value| {
            let (id, row): ([u32; 3], _) = (columns(key)?, CustomerRow::of_value(value)?);
            let paid = paid.customers.get(&id).copied().unwrap_or(0);
            customers.insert(id[2], Account { balance: row.balance, ytd_payment: row.ytd_payment, paid });
            due.insert(name_key(id, row.last, row.first));
            Ok(())
        })?;
        for_all(txn, Table::CustomerByName, &id, |key, _| {
            found.insert(key.to_vec());
            Ok(())
        })?;
        Ok(district)
    }

    fn read_orders(&mut self, txn: &mut impl Txn, id: [u32; 2]) -> Result<()> {
        let [due, found] = &mut self.order_index;
        for_all(txn, Table::Order, &id, |key, value| {
            let ([warehouse, district, order], row) = (columns(key)?, OrderRow::of_value(value)?);
            due.insert(order_of_customer_key(warehouse, district, row.customer, order));
            self.orders.insert(order, row);
            Ok(())
        })?;
        for_all(txn, Table::OrderByCustomer, &id, |key, _| {
            found.insert(key.to_vec());
            Ok(())
        })?;
        for_all(txn, Table::NewOrder, &id, |key, _| {
            let [_, _, order] = columns(key)?;
            self.new_orders.insert(order);
            Ok(())
        })?;
        for_all(txn, Table::OrderLine, &id, |key, value| {
            let ([_, _, order, _], row) = (columns(key)?, OrderLineRow::of_value(value)?);
            let lines = self.lines.entry(order).or_default();
            lines.count += 1;
            if row.delivery != 0 {
                lines.delivered += 1;
                lines.delivered_amount += row.amount;
            }
            Ok(())
        })
    }

    fn condition_2(&self) -> Result<()> {
        let next = self.next_order;
        let last = self.orders.last_key_value().map_or(0, |(&order, _)| order);
        ensure!(last + 1 == next, "D_NEXT_O_ID is {next}, the last order {last}");
        if let Some(last) = self.new_orders.last() {
            ensure!(last + 1 == next, "D_NEXT_O_ID is {next}, the last entry in new-order {last}");
        }
        Ok(())
    }

    fn condition_3(&self) -> Result<()> {
        let (Some(first), Some(last)) = (self.new_orders.first(), self.new_orders.last()) else {
            return Ok(());
        };
        let rows = self.new_orders.len();
        ensure!((last - first) as usize + 1 == rows, "new-order has {rows} rows from {first} to {last}");
        Ok(())
    }

    fn condition_4(&self) -> Result<()> {
        let due: usize = self.orders.values().map(|order| usize::from(order.lines)).sum();
        let found: usize = self.lines.values().map(|lines| lines.count).sum();
        ensure!(due == found, "the sum of O_OL_CNT is {due}, there are {found} order lines");
        Ok(())
    }

    fn condition_5(&self) -> Result<()> {
        for (order, row) in &self.orders {
            let is_new = self.new_orders.contains(order);
            let carrier = row.carrier;
            ensure!((carrier == 0) == is_new, "order {order} has carrier {carrier}, in new-order: {is_new}");
        }
        match self.new_orders.iter().find(|order| !self.orders.contains_key(order)) {
            Some(order) => bail!("order {order} is in new-order only"),
            None => Ok(()),
        }
    }

    fn condition_6(&self) -> Result<()> {
        for (order, row) in &self.orders {
            let (due, found) = (row.lines, self.lines_of(*order).count);
            ensure!(usize::from(due) == found, "order {order} has {found} lines, its O_OL_CNT is {due}");
        }
        match self.lines.keys().find(|order| !self.orders.contains_key(order)) {
            Some(order) => bail!("order {order} has lines only"),
            None => Ok(()),
        }
    }

    fn condition_7(&self) -> Result<()> {
        for (order, row) in &self.orders {
            let Lines { count, delivered, .. } = self.lines_of(*order);
            let due = if row.carrier == 0 { 0 } else { count };
            ensure!(
                delivered == due,
                "{delivered} of {count} lines of order {order} are delivered, its carrier is {}",
                row.carrier
            );
        }
        Ok(())
    }

    fn condition_9(&self) -> Result<()> {
        let (ytd, paid) = (self.ytd, self.paid);
        ensure!(ytd == paid, "D_YTD is {ytd}, the sum of H_AMOUNT {paid}");
        Ok(())
    }

    fn condition_10(&self) -> Result<()> {
        let delivered = self.delivered_by_customer();
        for (customer, &Account { balance, paid, .. }) in &self.customers {
            let delivered = delivered.get(customer).copied().unwrap_or(0);
            ensure!(
                balance == delivered - paid,
                "C_BALANCE of customer {customer} is {balance}, delivered {delivered}, paid {paid}"
            );
        }
        match delivered.iter().find(|(customer, _)| !self.customers.contains_key(customer)) {
            Some((customer, _)) => bail!("customer {customer} has orders only"),
            None => Ok(()),
        }
    }

    fn condition_12(&self) -> Result<()> {
        let delivered = self.delivered_by_customer();
        for (customer, &Account { balance, ytd_payment, .. }) in &self.customers {
            let delivered = delivered.get(customer).copied().unwrap_or(0);
            ensure!(
                balance + ytd_payment == delivered,
                "customer {customer}: C_BALANCE {balance} and C_YTD_PAYMENT {ytd_payment}, delivered {delivered}"
            );
        }
        Ok(())
    }

    fn lines_of(&self, order: u32) -> Lines {
        self.lines.get(&order).copied().unwrap_or_default()
    }

    /// Amounts of the delivered lines of every customer with orders.
    fn delivered_by_customer(&self) -> HashMap<u32, i64> {
        let mut delivered = HashMap::new();
        for (order, row) in &self.orders {
            *delivered.entry(row.customer).or_default() += self.lines_of(*order).delivered_amount;
        }
        delivered
    }
}

fn same([due, found]: &[BTreeSet<Vec<u8>>; 2]) -> Result<()> {
    if let Some(missing) = due.difference(found).next() {
        bail!("lacks {missing:02x?}");
    }
    match found.difference(due).next() {
        Some(extra) => bail!("has {extra:02x?} without a row"),
        None => Ok(()),
    }
}

fn check_ack(txn: &mut impl Txn, ack: &Ack) -> Result<()> {
    let mut get = |table: Table, key: &[u8]| txn.get(table, key).map_err(plain);
    match *ack {
        Ack::Loaded(scale) => check_loaded(txn, scale),
        Ack::Order { warehouse, district, order, customer, lines } => {
            let value = get(Table::Order, &key(&[warehouse, district, order]))?;
            let row = OrderRow::of_value(&value)?;
            ensure!((row.customer, row.lines) == (customer, lines), "it is {row:?}");
            Ok(())
        }
        Ack::Payment { warehouse, district, number, amount } => {
            let value = get(Table::History, &history_key(warehouse, district, number))?;
            let found = HistoryRow::of_value(&value)?.amount;
            ensure!(found == amount, "its amount is {found}");
            Ok(())
        }
        Ack::Delivery { warehouse, district, order, carrier } => {
            let value = get(Table::Order, &key(&[warehouse, district, order]))?;
            let found = OrderRow::of_value(&value)?.carrier;
            ensure!(found == carrier, "its carrier is {found}");
            Ok(())
        }
    }
}

/// Checks that rows whose number never changes are complete, and that orders and payments are no fewer than loaded.
fn check_loaded(txn: &mut impl Txn, scale: Scale) -> Result<()> {
    let (warehouses, items) = (u64::from(scale.warehouses), u64::from(scale.items));
    let districts = warehouses * u64::from(super::DISTRICTS);
    let customers = districts * u64::from(scale.customers);
    let due = [
        (Table::Warehouse, warehouses..=warehouses),
        (Table::District, districts..=districts),
        (Table::Item, items..=items),
        (Table::Stock, warehouses * items..=warehouses * items),
        (Table::Customer, customers..=customers),
        (Table::History, customers..=u64::MAX),
        (Table::Order, customers..=u64::MAX),
    ];
    for (table, due) in due {
        let mut rows = 0;
        for_all(txn, table, &[], |_, _| {
            rows += 1;
            Ok(())
        })?;
        ensure!(due.contains(&rows), "{} has {rows} rows, not {due:?}", table.name());
    }
    Ok(())
}
