//! A benchmark in the style of TPC-C: a wholesale company that takes, pays, delivers and looks up orders.
//! Its rows, transactions and mix follow TPC-C's conditions and tpcc-mysql; its results are not TPC-C
//! results, for TPC-C wants think times, terminals and an audit.
//!
//! A run loads warehouses, warms up, and lets requesters deal the five transactions from shuffled decks of
//! 23, without waiting between them; then it verifies TPC-C's consistency conditions ([`verify`]).
//!
//! - New-orders per minute count the committed ones. One in a hundred rolls back, as TPC-C has it, and is
//!   reported beside them.
//! - Every transaction chooses its warehouse at random, as in tpcc-mysql: requesters are no terminals.
//! - Two indexes are tables of their own, kept in the same transactions: customers by last name, and orders
//!   by customer, newest first.
//! - The load keeps all conditions in every one of its transactions, so they hold after a crash at any time.

mod acks;
mod database;
mod db;
mod load;
mod mix;
mod report;
mod requester;
mod schema;
mod sql;
#[cfg(test)]
mod tests;
mod text;
mod transactions;
mod verify;

use std::sync::atomic::AtomicU64;

use anyhow::Result;

use crate::{Plan, loading, requesters};

pub use acks::AckLog;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use acks::fuzz as fuzz_acks;
pub use database::{Database, EngineTxn};
pub use db::{Db, Txn, Visit};
pub use report::{RunReport, comparison};
pub use schema::Table;
pub use sql::{SqlDb, SqlTxn};
pub use verify::{Verified, verify, verify_acks};

/// Districts of a warehouse.
const DISTRICTS: u32 = 10;

/// How much there is of everything, beside the districts, of which a warehouse has 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Warehouses; the company grows by them.
    pub warehouses: u32,
    /// Items, each in stock in every warehouse. TPC-C has 100,000.
    pub items: u32,
    /// Customers of a district, each with one order at first. TPC-C has 3,000.
    pub customers: u32,
}

impl Scale {
    /// TPC-C's items and customers.
    pub const ITEMS: u32 = 100_000;
    /// See [`Scale::ITEMS`].
    pub const CUSTOMERS: u32 = 3_000;

    /// The first order that is not delivered at first: 2,101 of 3,000.
    fn first_new_order(self) -> u32 {
        self.customers * 7 / 10 + 1
    }
}

/// Settings of a run that are the same for every kind of table.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How much is loaded.
    pub scale: Scale,
    /// Threads, times and seed.
    pub plan: Plan,
}

/// Runs load, warm-up and request phase on `database`, whose tables exist and are empty, and verifies it.
/// `tables` and `algorithm` name the kind of tables in the report.
///
/// # Errors
/// When the database or the acknowledgement log fails. A condition that does not hold is not an error here:
/// see [`crate::Figures::violation`].
pub fn run<D: Db>(
    database: &D,
    config: &Config,
    tables: &str,
    algorithm: &str,
    acks: Option<&AckLog>,
) -> Result<RunReport> {
    let (rows, loading) = loading::during(database, || load::load(database, config, acks))?;

    let next_history = AtomicU64::new(load::histories(config.scale));
    let requested = requesters::run(database, config.plan, mix::Operation::COUNT, |number| {
        requester::Terminal::new(number, database, config, acks, &next_history)
    })?;
    let violation = verify(database).err();
    Ok(RunReport::new(tables, algorithm, loading, rows, &requested, violation))
}
