//! Stores in memory for the model tests.

use std::sync::Arc;

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_nvmfs::{CheckDepth, FormatOptions, Nvmfs, posix::Caller};

pub(crate) fn formatted(capacity_bytes: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(capacity_bytes));
    let options =
        FormatOptions { uuid: Some([7; 16]), owner: Some(Caller::default()), ..FormatOptions::default() };
    Nvmfs::format(Arc::clone(&device), &options).unwrap();
    device
}

pub(crate) fn assert_clean(vfs: &Nvmfs) {
    let report = vfs.check(CheckDepth::Payload).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}
