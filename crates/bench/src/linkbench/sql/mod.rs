//! LinkBench's tables in a server that speaks SQL, behind the trait of the benchmark.
//!
//! The schema is that of LinkBench's README, without its 16 partitions: `linktable` with its secondary
//! key, which stands for two tables of the trait, [`Table::Link`] and [`Table::LinkByTime`]; the server
//! keeps the second in step, so that writes to it through the trait are nothing here and reads of it
//! force the index. Ids of nodes are chosen by the benchmark, not by the server's counter.
//!
//! Rows that are inserted, and counts that grow, are kept back and go to the server in groups, at the latest with the
//! commit ([`txn`]).

mod statements;
mod txn;

use anyhow::Result;

use super::db::{Db, DbError, DbResult};
use crate::{
    Footprint, Measured,
    sql::{Address, Brand, Error, Format, Login, OnServer, Server, Written},
};

use statements::Shape;
pub use txn::SqlTxn;

/// A server with the tables of LinkBench in one of its databases.
#[derive(Debug)]
pub struct SqlDb(Server<Shape>);

fn classify(error: Error) -> DbError {
    match error {
        // Rows that were kept back find their duplicate when they are sent: a race that was lost.
        Error::LostRace(reason) | Error::Duplicate(reason) => DbError::Retry(reason),
        error => DbError::Fatal(error.into()),
    }
}

impl SqlDb {
    /// Makes the tables in `login.database`, which is made when it is missing.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses, when the tables are there already, and when it does not know the
    /// compression.
    pub fn create(
        brand: Brand,
        address: &Address,
        login: &Login,
        format: &Format,
        written: Written,
    ) -> Result<SqlDb> {
        Server::create(brand, address, login, &statements::tables(), format, written).map(SqlDb)
    }

    /// Finds the tables in `login.database`.
    ///
    /// # Errors
    /// When the server cannot be reached, and when a table is missing.
    pub fn open(brand: Brand, address: &Address, login: &Login, written: Written) -> Result<SqlDb> {
        Server::open(brand, address, login, &statements::tables().map(|table| table.name), written).map(SqlDb)
    }
}

impl OnServer for SqlDb {
    fn drop_tables(&self) -> Result<()> {
        self.0.drop_tables()
    }

    fn written_from(&self) -> String {
        self.0.written_from()
    }

    fn server_facts(&self) -> Result<Vec<(String, String)>> {
        self.0.facts()
    }
}

impl Db for SqlDb {
    type Txn<'db> = SqlTxn<'db>;

    fn begin(&self) -> DbResult<SqlTxn<'_>> {
        Ok(SqlTxn::new(&self.0, self.0.session()?))
    }
}

impl Measured for SqlDb {
    fn settle(&self) -> Result<()> {
        self.0.settle()
    }

    fn footprint(&self) -> Result<Footprint> {
        self.0.footprint()
    }

    fn server_cpu_seconds(&self) -> f64 {
        self.0.server_cpu_seconds()
    }
}
