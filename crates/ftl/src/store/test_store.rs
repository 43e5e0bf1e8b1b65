//! A store for unit tests, and the parts of it that they inspect.

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice};

use crate::{
    FormatOptions, Ftl, Options,
    checkpoint::Checkpointer,
    gc::Collector,
    log::Journal,
    maintenance::Maintenance,
    map::SharedMap,
    media::{Volume, creation},
    paging::Base,
    read::Reader,
    recovery::Losses,
    store::parts::Store,
    verify::Verifier,
    write::Writer,
};

/// An empty store on a device in memory, behind a checkpoint.
pub(crate) fn store(capacity_bytes: u64, segment_bytes: Option<u32>) -> Parts {
    open(&formatted(capacity_bytes, segment_bytes))
}

/// The same, for whose maintenance there would be a thread.
pub(crate) fn threaded(capacity_bytes: u64) -> Parts {
    open_with(&formatted(capacity_bytes, None), &Options { background: true, ..Options::default() })
}

fn formatted(capacity_bytes: u64, segment_bytes: Option<u32>) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(capacity_bytes));
    let options = FormatOptions { segment_bytes, ..FormatOptions::default() };
    creation::format(&*device, &options).unwrap();
    device
}

/// The store on `device`, behind a checkpoint.
pub(crate) fn open(device: &Arc<dyn BlockDevice>) -> Parts {
    open_with(device, &Options::default())
}

fn open_with(device: &Arc<dyn BlockDevice>, options: &Options) -> Parts {
    let store = Store::open(device.clone(), options, &Losses::REFUSED).unwrap();
    store.checkpointer.checkpoint().unwrap();
    let Store { base: Base { volume, map, journal, .. }, reader, checkpointer, collector, .. } = store;
    let Store { maintenance, writer, verifier, .. } = store;
    Parts { volume, map, journal, reader, checkpointer, collector, maintenance, writer, verifier }
}

/// See [`Store`].
pub(crate) struct Parts {
    pub(crate) volume: Arc<Volume>,
    pub(crate) map: Arc<SharedMap>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) checkpointer: Arc<Checkpointer>,
    pub(crate) collector: Arc<Collector>,
    pub(crate) maintenance: Arc<Maintenance>,
    pub(crate) writer: Writer,
    pub(crate) verifier: Verifier,
}

/// The log of an open store.
pub(crate) fn journal(ftl: &Ftl) -> &Journal {
    &ftl.store.base.journal
}
