//! The load phase (TPC-C, 4.3.3), by many threads.
//!
//! First all warehouses and districts, without money and orders, in one transaction. Then jobs that depend
//! on nothing but the seed, so plain and compressed tables get the very same rows whichever thread takes
//! which job: items, stock, and for each district its customers and then its orders. Every transaction keeps
//! the consistency conditions: the one that adds customers adds their first payments to the sums of district
//! and warehouse, the one that adds orders moves the district's next number. So a load that is cut short
//! leaves a consistent database.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    thread,
};

use anyhow::Result;

use super::{
    Config, DISTRICTS, Scale,
    acks::{Ack, AckLog},
    db::{Db, Txn},
    mix::shuffle,
    schema::{
        AddressText, CustomerRow, DISTRICT_INFO, DistrictRow, HistoryRow, ItemRow, OrderLineRow, OrderRow,
        Row, StockRow, Table, WarehouseRow, history_key, key, name_key, order_of_customer_key,
    },
    text::{self, LAST_NAMES, NonUniform, a_string, last_name, n_string, uniform},
    transactions::Client,
};
use crate::{linkbench::DbResult, progress::Progress, random::Random};

/// Items or stock of one transaction.
const BATCH_ITEMS: u32 = 1000;
/// Customers of one transaction, with three rows each.
const BATCH_CUSTOMERS: u32 = 300;
/// Orders of one transaction, with about 14 rows each.
const BATCH_ORDERS: u32 = 100;
/// First payment of every customer, in cents.
const FIRST_PAYMENT: i64 = 1000;
/// Customers in a hundred with bad credit.
const BAD_CREDIT: u32 = 10;

#[derive(Clone, Copy, Debug)]
enum Job {
    Items { first: u32, end: u32 },
    Stock { warehouse: u32, first: u32, end: u32 },
    District { warehouse: u32, district: u32 },
}

/// Payments in the history after the load, numbered from 0.
pub(crate) fn histories(scale: Scale) -> u64 {
    u64::from(scale.warehouses) * u64::from(DISTRICTS) * u64::from(scale.customers)
}

fn jobs(scale: Scale) -> Vec<Job> {
    let batches = || {
        (1..=scale.items)
            .step_by(BATCH_ITEMS as usize)
            .map(move |first| (first, scale.items.min(first + BATCH_ITEMS - 1) + 1))
    };
    let mut jobs: Vec<Job> = batches().map(|(first, end)| Job::Items { first, end }).collect();
    for warehouse in 1..=scale.warehouses {
        jobs.extend((1..=DISTRICTS).map(|district| Job::District { warehouse, district }));
        jobs.extend(batches().map(|(first, end)| Job::Stock { warehouse, first, end }));
    }
    jobs
}

/// Loads everything; returns how many rows, indexes included.
pub(crate) fn load<D: Db>(database: &D, config: &Config, acks: Option<&AckLog>) -> Result<u64> {
    let jobs = jobs(config.scale);
    let (taken, rows) = (AtomicUsize::new(0), AtomicU64::new(0));
    rows.fetch_add(load_warehouses(database, config)?, Relaxed);
    let work = || {
        let mut loader = Loader { client: Client::new(database, None), config, rows: &rows };
        while let Some(&job) = jobs.get(taken.fetch_add(1, Relaxed)) {
            let result = loader.run(job);
            if result.is_err() {
                // No thread starts another job.
                taken.store(jobs.len(), Relaxed);
                return result;
            }
        }
        Ok(())
    };
    let progress = Progress::new("load", config.plan.quiet, || {
        format!(
            "{} of {} parts, {} rows",
            taken.load(Relaxed).min(jobs.len()),
            jobs.len(),
            rows.load(Relaxed)
        )
    });
    progress.during(|| {
        thread::scope(|scope| {
            let loaders: Vec<_> = (0..config.plan.loaders).map(|_| scope.spawn(work)).collect();
            loaders.into_iter().try_for_each(|loader| loader.join().expect("a loader panicked"))
        })
    })?;
    if let Some(log) = acks {
        log.append(&[Ack::Loaded(config.scale)])?;
    }
    Ok(rows.into_inner())
}

fn load_warehouses<D: Db>(database: &D, config: &Config) -> Result<u64> {
    Client::new(database, None).commit(|txn, _| {
        let random = &mut Random::new(config.plan.seed, 0);
        let mut rows = 0;
        for warehouse in 1..=config.scale.warehouses {
            let (address, name) = (AddressText::new(random), a_string(random, 6, 10));
            let tax = uniform(random, 0, 2000);
            let row = WarehouseRow { ytd: 0, tax, name: &name, address: address.address() };
            txn.insert(Table::Warehouse, &key(&[warehouse]), &row.value())?;
            for district in 1..=DISTRICTS {
                let (address, name) = (AddressText::new(random), a_string(random, 6, 10));
                let tax = uniform(random, 0, 2000);
                let row = DistrictRow { ytd: 0, next_order: 1, tax, name: &name, address: address.address() };
                txn.insert(Table::District, &key(&[warehouse, district]), &row.value())?;
            }
            rows += 1 + u64::from(DISTRICTS);
        }
        Ok(rows)
    })
}

struct Loader<'a, D> {
    client: Client<'a, D>,
    config: &'a Config,
    rows: &'a AtomicU64,
}

impl<'a, D: Db> Loader<'a, D> {
    fn run(&mut self, job: Job) -> Result<()> {
        match job {
            Job::Items { first, end } => self.batch(purpose(1, 0, 0, first), |txn, random, _| {
                (first..end).try_for_each(|item| insert_item(txn, random, item))?;
                Ok(u64::from(end - first))
            }),
            Job::Stock { warehouse, first, end } => {
                self.batch(purpose(2, warehouse, 0, first), |txn, random, _| {
                    (first..end).try_for_each(|item| insert_stock(txn, random, warehouse, item))?;
                    Ok(u64::from(end - first))
                })
            }
            Job::District { warehouse, district } => {
                self.customers(warehouse, district)?;
                self.orders(warehouse, district)
            }
        }
    }

    /// One transaction on random numbers that are the same when it is run again; `work` returns how many rows it added.
    fn batch(
        &mut self,
        purpose: u64,
        mut work: impl FnMut(&mut D::Txn<'a>, &mut Random, &Config) -> DbResult<u64>,
    ) -> Result<()> {
        let config = self.config;
        let rows =
            self.client.commit(|txn, _| work(txn, &mut Random::new(config.plan.seed, purpose), config))?;
        self.rows.fetch_add(rows, Relaxed);
        Ok(())
    }

    fn customers(&mut self, warehouse: u32, district: u32) -> Result<()> {
        let customers = self.config.scale.customers;
        for first in (1..=customers).step_by(BATCH_CUSTOMERS as usize) {
            let end = customers.min(first + BATCH_CUSTOMERS - 1) + 1;
            self.batch(purpose(3, warehouse, district, first), |txn, random, config| {
                for customer in first..end {
                    insert_customer(txn, random, config, [warehouse, district, customer])?;
                }
                let paid = i64::from(end - first) * FIRST_PAYMENT;
                let district_key = key(&[warehouse, district]);
                let value = txn.get_for_update(Table::District, &district_key)?;
                let row = DistrictRow::of_value(&value)?;
                txn.put(Table::District, &district_key, &DistrictRow { ytd: row.ytd + paid, ..row }.value())?;
                // Last, because loaders of one warehouse wait for each other here.
                let value = txn.get_for_update(Table::Warehouse, &key(&[warehouse]))?;
                let row = WarehouseRow::of_value(&value)?;
                let row = WarehouseRow { ytd: row.ytd + paid, ..row };
                txn.put(Table::Warehouse, &key(&[warehouse]), &row.value())?;
                Ok(3 * u64::from(end - first))
            })?;
        }
        Ok(())
    }

    fn orders(&mut self, warehouse: u32, district: u32) -> Result<()> {
        let scale = self.config.scale;
        let mut customers: Vec<u32> = (1..=scale.customers).collect();
        shuffle(&mut customers, &mut Random::new(self.config.plan.seed, purpose(4, warehouse, district, 0)));
        for first in (1..=scale.customers).step_by(BATCH_ORDERS as usize) {
            let end = scale.customers.min(first + BATCH_ORDERS - 1) + 1;
            self.batch(purpose(5, warehouse, district, first), |txn, random, config| {
                let mut rows = 0;
                for order in first..end {
                    let customer = customers[order as usize - 1];
                    rows += insert_order(txn, random, config, [warehouse, district, order], customer)?;
                }
                let district_key = key(&[warehouse, district]);
                let value = txn.get_for_update(Table::District, &district_key)?;
                let row = DistrictRow { next_order: end, ..DistrictRow::of_value(&value)? };
                txn.put(Table::District, &district_key, &row.value())?;
                Ok(rows)
            })?;
        }
        Ok(())
    }
}

/// Number of a stream of random numbers for the batch that begins with `first`.
fn purpose(kind: u64, warehouse: u32, district: u32, first: u32) -> u64 {
    (kind << 60) | (u64::from(warehouse) << 32) | (u64::from(district) << 28) | u64::from(first)
}

fn insert_item(txn: &mut impl Txn, random: &mut Random, item: u32) -> DbResult<()> {
    let row = ItemRow {
        image: uniform(random, 1, 10_000),
        price: uniform(random, 100, 10_000).into(),
        name: &a_string(random, 14, 24),
        data: &text::data(random),
    };
    txn.insert(Table::Item, &key(&[item]), &row.value())
}

fn insert_stock(txn: &mut impl Txn, random: &mut Random, warehouse: u32, item: u32) -> DbResult<()> {
    let infos = DISTRICTS * DISTRICT_INFO;
    let row = StockRow {
        quantity: uniform(random, 10, 100) as i32,
        ytd: 0,
        orders: 0,
        remote_orders: 0,
        district_infos: &a_string(random, infos, infos),
        data: &text::data(random),
    };
    txn.insert(Table::Stock, &key(&[warehouse, item]), &row.value())
}

/// A customer with entry in the index and first payment.
fn insert_customer(txn: &mut impl Txn, random: &mut Random, config: &Config, id: [u32; 3]) -> DbResult<()> {
    let [warehouse, district, customer] = id;
    let name = match customer {
        first if first <= LAST_NAMES => first - 1,
        _ => NonUniform::new(config.plan.seed).last_name_load(random),
    };
    let (first, last, address) = (a_string(random, 8, 16), last_name(name), AddressText::new(random));
    let row = CustomerRow {
        balance: -FIRST_PAYMENT,
        ytd_payment: FIRST_PAYMENT,
        payments: 1,
        deliveries: 0,
        credit_limit: 5_000_000,
        discount: uniform(random, 0, 5000),
        since: config.plan.epoch_ms,
        credit: if uniform(random, 1, 100) <= BAD_CREDIT { b"BC" } else { b"GC" },
        first: &first,
        middle: b"OE",
        last: &last,
        address: address.address(),
        phone: &n_string(random, 16),
        data: &a_string(random, 300, 500),
    };
    txn.insert(Table::Customer, &key(&id), &row.value())?;
    txn.insert(Table::CustomerByName, &name_key(id, &last, &first), &[])?;
    let history = HistoryRow {
        customer_warehouse: warehouse,
        customer_district: district,
        customer,
        date: config.plan.epoch_ms,
        amount: FIRST_PAYMENT,
        data: &a_string(random, 12, 24),
    };
    let before = u64::from((warehouse - 1) * DISTRICTS + district - 1) * u64::from(config.scale.customers);
    let number = before + u64::from(customer - 1);
    txn.insert(Table::History, &history_key(warehouse, district, number), &history.value())
}

/// An order with its lines, and its entries in new-order, unless it is delivered, and in the index; returns how many
/// rows that is.
fn insert_order(
    txn: &mut impl Txn,
    random: &mut Random,
    config: &Config,
    id: [u32; 3],
    customer: u32,
) -> DbResult<u64> {
    let [warehouse, district, order] = id;
    let is_delivered = order < config.scale.first_new_order();
    let lines = uniform(random, 5, 15) as u8;
    let carrier = if is_delivered { uniform(random, 1, 10) as u8 } else { 0 };
    let row = OrderRow { customer, entry: config.plan.epoch_ms, carrier, lines, all_local: 1 };
    txn.insert(Table::Order, &key(&id), &row.value())?;
    txn.insert(Table::OrderByCustomer, &order_of_customer_key(warehouse, district, customer, order), &[])?;
    for number in 1..=lines {
        let row = OrderLineRow {
            item: uniform(random, 1, config.scale.items),
            supply_warehouse: warehouse,
            delivery: if is_delivered { config.plan.epoch_ms } else { 0 },
            quantity: 5,
            amount: if is_delivered { 0 } else { uniform(random, 1, 999_999).into() },
            district_info: &a_string(random, DISTRICT_INFO, DISTRICT_INFO),
        };
        txn.insert(Table::OrderLine, &key(&[warehouse, district, order, number.into()]), &row.value())?;
    }
    if is_delivered {
        return Ok(2 + u64::from(lines));
    }
    txn.insert(Table::NewOrder, &key(&id), &[])?;
    Ok(3 + u64::from(lines))
}
