//! A database whose traffic is read off the block device below it.

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use anyhow::Result;
use lacuna_bench::{
    DeviceTraffic, Footprint, Measured, device_traffic,
    linkbench::{Db, DbResult},
};

/// The database, and the counters of its device at every reading of its footprint. The device counts the same for every
/// engine: data, logs, and what a file system adds.
pub(crate) struct OnDevice<D> {
    pub(crate) db: D,
    device: Option<PathBuf>,
    seen: Mutex<Vec<DeviceTraffic>>,
}

impl<D> OnDevice<D> {
    /// Without a device the database's own count stays.
    pub(crate) fn new(db: D, device: Option<PathBuf>) -> OnDevice<D> {
        OnDevice { db, device, seen: Mutex::default() }
    }

    /// The device's traffic between the first and the last reading: the measured phase and settling.
    pub(crate) fn traffic(&self) -> Option<DeviceTraffic> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Some(seen.last()?.since(*seen.first()?))
    }
}

impl<D: Db> Db for OnDevice<D> {
    type Txn<'db>
        = D::Txn<'db>
    where
        D: 'db;

    fn begin(&self) -> DbResult<D::Txn<'_>> {
        self.db.begin()
    }
}

impl<D: Db> Measured for OnDevice<D> {
    fn settle(&self) -> Result<()> {
        self.db.settle()
    }

    fn footprint(&self) -> Result<Footprint> {
        let footprint = self.db.footprint()?;
        let Some(device) = &self.device else { return Ok(footprint) };
        let traffic = device_traffic(device)?;
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(traffic);
        Ok(Footprint { device_written_bytes: traffic.written_bytes, ..footprint })
    }
}
