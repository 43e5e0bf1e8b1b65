//! The tables in a server that speaks SQL, behind the trait of the benchmark.
//!
//! Columns have TPC-C's names ([`columns`]). The two indexes are secondary keys there, which the server keeps in step,
//! so writes to them through the trait are nothing here, and reads of them force the index.
//!
//! layers: columns < statements < txn

mod columns;
mod statements;
mod txn;

use anyhow::Result;

use super::{db::Db, schema::Table};
use crate::{
    Footprint, Measured,
    linkbench::DbResult,
    sql::{Address, Brand, Format, Login, OnServer, Server, Written},
};

use statements::Shape;
pub use txn::SqlTxn;

/// The tables on a server.
const TABLES: [Table; 9] = [
    Table::Warehouse,
    Table::District,
    Table::Customer,
    Table::History,
    Table::NewOrder,
    Table::Order,
    Table::OrderLine,
    Table::Item,
    Table::Stock,
];

/// A server with the tables of the benchmark in one of its databases.
#[derive(Debug)]
pub struct SqlDb(Server<Shape>);

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
        let tables = TABLES.map(columns::definition);
        Server::create(brand, address, login, &tables, format, written).map(SqlDb)
    }

    /// Finds the tables in `login.database`.
    ///
    /// # Errors
    /// When the server cannot be reached, and when a table is missing.
    pub fn open(brand: Brand, address: &Address, login: &Login, written: Written) -> Result<SqlDb> {
        Server::open(brand, address, login, &TABLES.map(Table::name), written).map(SqlDb)
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
