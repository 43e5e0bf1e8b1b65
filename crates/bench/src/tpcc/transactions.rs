//! The five transactions (TPC-C, 2.4 to 2.8).
//!
//! They are correct at read committed and at snapshot isolation: a transaction first reads under a lock every row that
//! it changes. Locks are taken in this order, so that waits of the mix never form a cycle:
//!
//! 1. entries of new-order, by district, each followed by its order and customer (delivery)
//! 2. customer (payment)
//! 3. district (payment, new-order)
//! 4. warehouse (payment); stock by item and warehouse (new-order)
//!
//! A new-order holds its district to the end, so the orders of a district commit in the order of their
//! numbers.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};

use super::{
    DISTRICTS,
    acks::{Ack, AckLog},
    db::{Db, Txn},
    schema::{
        CustomerRow, DistrictRow, HistoryRow, ItemRow, OrderLineRow, OrderRow, Row, StockRow, Table,
        WarehouseRow, columns, history_key, key, last_column, last_name_key, order_of_customer_key,
    },
};
use crate::linkbench::{DbError, DbResult};

/// A transaction that loses this often in a row is abandoned: something is wrong with the engine.
const RETRIES_MAX: u32 = 10_000;
/// Most characters of a customer's data.
const CUSTOMER_DATA_MAX: usize = 500;
/// Orders that a stock-level looks back on.
const STOCK_LEVEL_ORDERS: u32 = 20;

/// A line of an order to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub item: u32,
    pub supply_warehouse: u32,
    pub quantity: u8,
}

/// The input of a new-order.
#[derive(Clone, Debug)]
pub(crate) struct NewOrder {
    pub warehouse: u32,
    pub district: u32,
    pub customer: u32,
    /// By item and warehouse, which is the order of their locks.
    pub lines: Vec<Line>,
    pub now: u64,
}

/// How a customer is found.
#[derive(Clone, Debug)]
pub(crate) enum Who {
    Id(u32),
    LastName(Vec<u8>),
}

/// A customer of a district.
#[derive(Clone, Debug)]
pub(crate) struct Customer {
    pub warehouse: u32,
    pub district: u32,
    pub who: Who,
}

/// The input of a payment.
#[derive(Clone, Debug)]
pub(crate) struct Payment {
    pub warehouse: u32,
    pub district: u32,
    pub customer: Customer,
    pub amount: i64,
    /// Number in the history.
    pub number: u64,
    pub now: u64,
}

enum End<T> {
    Commit(T),
    RollBack(T),
}

/// One client of the database.
pub(crate) struct Client<'a, D> {
    database: &'a D,
    acks: Option<&'a AckLog>,
    retries: u64,
}

impl<'a, D: Db> Client<'a, D> {
    pub(crate) fn new(database: &'a D, acks: Option<&'a AckLog>) -> Client<'a, D> {
        Client { database, acks, retries: 0 }
    }

    /// Transactions that lost and were run again, so far.
    pub(crate) fn retries(&self) -> u64 {
        self.retries
    }

    /// Runs `work` as a transaction until it does not lose, then acknowledges it.
    fn transact<T>(
        &mut self,
        mut work: impl FnMut(&mut D::Txn<'a>, &mut Vec<Ack>) -> DbResult<End<T>>,
    ) -> Result<T> {
        let mut acks = Vec::new();
        for _ in 0..RETRIES_MAX {
            acks.clear();
            let database = self.database;
            let attempt = database.begin().and_then(|mut txn| match work(&mut txn, &mut acks)? {
                End::Commit(result) => txn.commit().map(|()| result),
                End::RollBack(result) => {
                    acks.clear();
                    txn.rollback().map(|()| result)
                }
            });
            match attempt {
                Ok(result) => {
                    if let (Some(log), false) = (self.acks, acks.is_empty()) {
                        log.append(&acks)?;
                    }
                    return Ok(result);
                }
                Err(DbError::Retry(_)) => self.retries += 1,
                Err(DbError::Fatal(error)) => return Err(error),
            }
        }
        Err(anyhow!("a transaction lost {RETRIES_MAX} times in a row"))
    }

    /// Runs a transaction that always commits, as the load does.
    pub(crate) fn commit<T>(
        &mut self,
        mut work: impl FnMut(&mut D::Txn<'a>, &mut Vec<Ack>) -> DbResult<T>,
    ) -> Result<T> {
        self.transact(|txn, acks| work(txn, acks).map(End::Commit))
    }

    /// Takes an order; what it costs in cents, or `None` when it was rolled back because it has an item
    /// that does not exist.
    pub(crate) fn new_order(&mut self, order: &NewOrder) -> Result<Option<i64>> {
        self.transact(|txn, acks| {
            let (number, taxes) = take_number(txn, order)?;
            let customer_key = key(&[order.warehouse, order.district, order.customer]);
            let customer = txn.get(Table::Customer, &customer_key)?;
            let discount = i64::from(CustomerRow::of_value(&customer)?.discount);
            insert_order(txn, order, number)?;
            let mut total = 0;
            for (line, position) in order.lines.iter().zip(1..) {
                match order_line(txn, order, line, &[order.warehouse, order.district, number, position])? {
                    Some(amount) => total += amount,
                    None => return Ok(End::RollBack(None)),
                }
            }
            acks.push(Ack::Order {
                warehouse: order.warehouse,
                district: order.district,
                order: number,
                customer: order.customer,
                lines: order.lines.len() as u8,
            });
            let total = total * (10_000 - discount) / 10_000 * (10_000 + taxes) / 10_000;
            Ok(End::Commit(Some(total)))
        })
    }

    /// Takes a customer's payment.
    pub(crate) fn payment(&mut self, payment: &Payment) -> Result<()> {
        let Payment { warehouse, district, amount, number, .. } = *payment;
        self.commit(|txn, acks| {
            let customer = pay(txn, payment)?;
            let district_key = key(&[warehouse, district]);
            let district_value = txn.get_for_update(Table::District, &district_key)?;
            let district_row = DistrictRow::of_value(&district_value)?;
            let paid = DistrictRow { ytd: district_row.ytd + amount, ..district_row };
            txn.put(Table::District, &district_key, &paid.value())?;
            let warehouse_value = txn.get_for_update(Table::Warehouse, &key(&[warehouse]))?;
            let warehouse_row = WarehouseRow::of_value(&warehouse_value)?;
            let paid = WarehouseRow { ytd: warehouse_row.ytd + amount, ..warehouse_row };
            txn.put(Table::Warehouse, &key(&[warehouse]), &paid.value())?;
            let history = HistoryRow {
                customer_warehouse: payment.customer.warehouse,
                customer_district: payment.customer.district,
                customer,
                date: payment.now,
                amount,
                data: &[warehouse_row.name, b"    ", district_row.name].concat(),
            };
            txn.insert(Table::History, &history_key(warehouse, district, number), &history.value())?;
            acks.push(Ack::Payment { warehouse, district, number, amount });
            Ok(())
        })
    }

    /// Looks at a customer's last order and its lines.
    pub(crate) fn order_status(&mut self, customer: &Customer) -> Result<()> {
        let Customer { warehouse, district, .. } = *customer;
        self.commit(|txn, _| {
            let id = find_customer(txn, customer)?;
            let value = txn.get(Table::Customer, &key(&[warehouse, district, id]))?;
            CustomerRow::of_value(&value)?;
            let newest = txn.first(Table::OrderByCustomer, &key(&[warehouse, district, id]))?;
            let newest =
                newest.ok_or_else(|| anyhow!("customer {id} of {warehouse}/{district} has no order"))?;
            let order_key = key(&[warehouse, district, !last_column(&newest)?]);
            let order = txn.get(Table::Order, &order_key)?;
            let order = OrderRow::of_value(&order)?;
            let mut lines = 0;
            txn.scan(Table::OrderLine, &order_key, &mut |_, value| {
                OrderLineRow::of_value(value)?;
                lines += 1;
                Ok(())
            })?;
            if lines != order.lines {
                let what = anyhow!("an order of {} lines shows {lines}: {order_key:02x?}", order.lines);
                return Err(what.into());
            }
            Ok(())
        })
    }

    /// Delivers the oldest order of each district of a warehouse that has one; returns how many it delivered.
    pub(crate) fn delivery(&mut self, warehouse: u32, carrier: u8, now: u64) -> Result<usize> {
        self.commit(|txn, acks| {
            for district in 1..=DISTRICTS {
                if let Some(order) = take_oldest(txn, warehouse, district)? {
                    deliver(txn, [warehouse, district, order], carrier, now)?;
                    acks.push(Ack::Delivery { warehouse, district, order, carrier });
                }
            }
            Ok(acks.len())
        })
    }

    /// How many items of a district's last orders are short of `threshold` in stock.
    pub(crate) fn stock_level(&mut self, warehouse: u32, district: u32, threshold: i32) -> Result<usize> {
        self.commit(|txn, _| {
            let value = txn.get(Table::District, &key(&[warehouse, district]))?;
            let next = DistrictRow::of_value(&value)?.next_order;
            let from = key(&[warehouse, district, next.saturating_sub(STOCK_LEVEL_ORDERS)]);
            let to = key(&[warehouse, district, next]);
            let mut items = BTreeSet::new();
            txn.scan_between(Table::OrderLine, &from, &to, &mut |_, value| {
                items.insert(OrderLineRow::of_value(value)?.item);
                Ok(())
            })?;
            let mut low = 0;
            for item in items {
                let stock = txn.get(Table::Stock, &key(&[warehouse, item]))?;
                low += usize::from(StockRow::of_value(&stock)?.quantity < threshold);
            }
            Ok(low)
        })
    }
}

/// The number of a new order, and the taxes on it.
fn take_number(txn: &mut impl Txn, order: &NewOrder) -> DbResult<(u32, i64)> {
    let district_key = key(&[order.warehouse, order.district]);
    let value = txn.get_for_update(Table::District, &district_key)?;
    let district = DistrictRow::of_value(&value)?;
    let number = district.next_order;
    txn.put(Table::District, &district_key, &DistrictRow { next_order: number + 1, ..district }.value())?;
    let value = txn.get(Table::Warehouse, &key(&[order.warehouse]))?;
    Ok((number, i64::from(WarehouseRow::of_value(&value)?.tax + district.tax)))
}

fn insert_order(txn: &mut impl Txn, order: &NewOrder, number: u32) -> DbResult<()> {
    let &NewOrder { warehouse, district, customer, .. } = order;
    let all_local = order.lines.iter().all(|line| line.supply_warehouse == warehouse);
    let row = OrderRow {
        customer,
        entry: order.now,
        carrier: 0,
        lines: order.lines.len() as u8,
        all_local: all_local.into(),
    };
    let order_key = key(&[warehouse, district, number]);
    txn.insert(Table::Order, &order_key, &row.value())?;
    txn.insert(Table::NewOrder, &order_key, &[])?;
    txn.insert(Table::OrderByCustomer, &order_of_customer_key(warehouse, district, customer, number), &[])
}

/// Takes a line's items out of the stock and adds the line; its amount, or `None` when there is no such item.
fn order_line(txn: &mut impl Txn, order: &NewOrder, line: &Line, line_key: &[u32]) -> DbResult<Option<i64>> {
    let Some(item) = txn.find(Table::Item, &key(&[line.item]))? else { return Ok(None) };
    let stock_key = key(&[line.supply_warehouse, line.item]);
    let stock_value = txn.get_for_update(Table::Stock, &stock_key)?;
    let stock = StockRow::of_value(&stock_value)?;
    let left = stock.quantity - i32::from(line.quantity);
    let is_remote = line.supply_warehouse != order.warehouse;
    let taken = StockRow {
        quantity: if left >= 10 { left } else { left + 91 },
        ytd: stock.ytd + u64::from(line.quantity),
        orders: stock.orders + 1,
        remote_orders: stock.remote_orders + u32::from(is_remote),
        ..stock
    };
    txn.put(Table::Stock, &stock_key, &taken.value())?;
    let amount = i64::from(line.quantity) * ItemRow::of_value(&item)?.price;
    let row = OrderLineRow {
        item: line.item,
        supply_warehouse: line.supply_warehouse,
        delivery: 0,
        quantity: line.quantity,
        amount,
        district_info: stock.district_info(order.district)?,
    };
    txn.insert(Table::OrderLine, &key(line_key), &row.value())?;
    Ok(Some(amount))
}

/// The id of a customer; of those with one last name the middle one by first name.
fn find_customer(txn: &mut impl Txn, customer: &Customer) -> DbResult<u32> {
    let last = match &customer.who {
        Who::Id(id) => return Ok(*id),
        Who::LastName(last) => last,
    };
    let mut ids = Vec::new();
    txn.scan(
        Table::CustomerByName,
        &last_name_key(customer.warehouse, customer.district, last),
        &mut |key, _| {
            ids.push(last_column(key)?);
            Ok(())
        },
    )?;
    let middle = ids.get(ids.len().div_ceil(2).saturating_sub(1));
    Ok(*middle.ok_or_else(|| anyhow!("no customer is called {}", String::from_utf8_lossy(last)))?)
}

/// The customer's side of a payment; the customer's id.
fn pay(txn: &mut impl Txn, payment: &Payment) -> DbResult<u32> {
    let Payment { warehouse, district, amount, .. } = *payment;
    let customer = &payment.customer;
    let id = find_customer(txn, customer)?;
    let customer_key = key(&[customer.warehouse, customer.district, id]);
    let value = txn.get_for_update(Table::Customer, &customer_key)?;
    let row = CustomerRow::of_value(&value)?;
    let mut data = row.data.to_vec();
    if row.credit == b"BC" {
        let [at_warehouse, at_district] = [customer.warehouse, customer.district];
        let note = format!("{id} {at_district} {at_warehouse} {district} {warehouse} {amount}|");
        data.splice(0..0, note.bytes());
        data.truncate(CUSTOMER_DATA_MAX);
    }
    let paid = CustomerRow {
        balance: row.balance - amount,
        ytd_payment: row.ytd_payment + amount,
        payments: row.payments + 1,
        data: &data,
        ..row
    };
    txn.put(Table::Customer, &customer_key, &paid.value())?;
    Ok(id)
}

/// Removes the oldest entry of a district from new-order; its order.
///
/// Another delivery may have it already: then it is gone once its lock is granted, and the next one is the
/// oldest. And a scan at read committed may have passed the position of an entry before that was committed, and met a
/// later one that was committed after: so the locked one must also be the oldest in a second scan, which sees all
/// earlier commits.
fn take_oldest(txn: &mut impl Txn, warehouse: u32, district: u32) -> DbResult<Option<u32>> {
    let entries = key(&[warehouse, district]);
    while let Some(oldest) = txn.first(Table::NewOrder, &entries)? {
        let is_there = txn.find_for_update(Table::NewOrder, &oldest)?.is_some();
        if is_there && txn.first(Table::NewOrder, &entries)?.as_ref() == Some(&oldest) {
            txn.delete(Table::NewOrder, &oldest)?;
            let [_, _, order] = columns(&oldest)?;
            return Ok(Some(order));
        }
    }
    Ok(None)
}

/// Delivers an order whose entry in new-order the transaction removed.
fn deliver(txn: &mut impl Txn, order: [u32; 3], carrier: u8, now: u64) -> DbResult<()> {
    let order_key = key(&order);
    let value = txn.get_for_update(Table::Order, &order_key)?;
    let row = OrderRow::of_value(&value)?;
    txn.put(Table::Order, &order_key, &OrderRow { carrier, ..row }.value())?;
    let total = txn.deliver_lines(&order_key, now)?;
    let customer_key = key(&[order[0], order[1], row.customer]);
    let value = txn.get_for_update(Table::Customer, &customer_key)?;
    let customer = CustomerRow::of_value(&value)?;
    let delivered =
        CustomerRow { balance: customer.balance + total, deliveries: customer.deliveries + 1, ..customer };
    txn.put(Table::Customer, &customer_key, &delivered.value())
}
