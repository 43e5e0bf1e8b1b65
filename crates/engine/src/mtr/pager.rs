//! The pages of all tables, and the log.

use std::sync::Arc;

use crate::{
    poison::Poison,
    pool::{Pool, ReadGuard, WriteGuard},
    space::Space,
    types::{PageNo, Result},
    wal::Log,
};

/// Pool and log together. Pages are read through it, and changed by mini-transactions ([`super::Mtr`]), which keep the
/// order between the two that recovery relies on. Trees, chains, undo logs and allocation are all reached through it.
pub(crate) struct Pager {
    pool: Arc<Pool>,
    log: Log,
    poison: Arc<Poison>,
}

impl Pager {
    pub(crate) fn new(pool: Arc<Pool>, log: Log, poison: Arc<Poison>) -> Pager {
        Pager { pool, log, poison }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn poison(&self) -> &Poison {
        &self.poison
    }

    /// See [`Pool::read`].
    pub(crate) fn read(&self, space: &Space, page: PageNo) -> Result<ReadGuard> {
        self.pool.read(space, page)
    }

    /// See [`Pool::read_if_written`].
    pub(crate) fn read_if_written(&self, space: &Space, page: PageNo) -> Result<Option<ReadGuard>> {
        self.pool.read_if_written(space, page)
    }

    /// See [`Pool::write`].
    pub(crate) fn write(&self, space: &Space, page: PageNo) -> Result<WriteGuard> {
        self.pool.write(space, page)
    }

    /// See [`Pool::write_soon`].
    pub(crate) fn write_soon(&self, space: &Space, page: PageNo) -> Result<Option<WriteGuard>> {
        self.pool.write_soon(space, page)
    }

    /// See [`Pool::create_soon`].
    pub(crate) fn create_soon(&self, space: &Space, page: PageNo) -> Option<WriteGuard> {
        self.pool.create_soon(space, page)
    }

    /// See [`Pool::write_in_memory`].
    pub(crate) fn write_in_memory(&self, space: &Space, page: PageNo) -> Option<WriteGuard> {
        self.pool.write_in_memory(space, page)
    }

    /// See [`Pool::create`].
    pub(crate) fn create(&self, space: &Space, page: PageNo) -> WriteGuard {
        self.pool.create(space, page)
    }
}
