//! The integration tests of this crate, in one program: a line below for each file, which runs only if it is declared.

mod bad_input;
mod copy;
mod dataset;
mod hostile_copies;
mod iobench;
mod keys;
mod library;
mod linkbench;
mod linkbench_sql;
mod log_device;
mod mariadb_demo;
mod modes;
mod operands;
mod operation;
mod postgres_demo;
mod postgres_sql;
mod replace;
mod report;
mod rescue;
mod support;
mod table;
mod tpcc;
mod tpcc_sql;
mod trimbench;
mod verdict;
