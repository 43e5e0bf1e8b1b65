//! A store for tests of this crate's units.

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice};

use crate::{FormatOptions, Options, media::superblock, recovery::salvage::Losses, store::Store};

/// An empty store on a device in memory, behind a checkpoint.
pub(crate) fn store(capacity_bytes: u64, segment_bytes: Option<u32>) -> Store {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(capacity_bytes));
    let options = FormatOptions { segment_bytes, ..FormatOptions::default() };
    superblock::format(&*device, &options).unwrap();
    let store = Store::open(device, Options::default(), &Losses::REFUSED).unwrap();
    store.checkpoint().unwrap();
    store
}
