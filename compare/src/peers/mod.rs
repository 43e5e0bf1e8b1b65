//! The peers.

mod fjall;
mod lmdb;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod sqlite;

#[cfg(feature = "rocksdb")]
pub(crate) use rocksdb::RocksDb;
pub(crate) use {self::redb::Redb, fjall::Fjall, lmdb::Lmdb, sqlite::Sqlite};
