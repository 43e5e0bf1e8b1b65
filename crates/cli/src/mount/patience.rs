//! How long the end of a mount waits for space of the file system that the store lies in.
//!
//! Closing a store writes what was not synced yet. While the mount is used it is right that such writes wait. After an
//! unmount, or when the system goes down, the process is expected to end. So from then on waiting has a bound, after
//! which the store is closed as by a power cut. Nothing is lost that a sync has returned for. The logs of the system
//! and of the kernel say what is, and `lacuna umount` fails with it.

use std::{
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use lacuna_nvmfs::Nvmfs;

use super::{Arguments, journal};
use crate::ended::Ended;

/// The patience of one mount. It holds the store only weakly: a closed one needs none.
#[derive(Clone)]
pub(super) struct Patience {
    fs: Weak<Nvmfs>,
    store: String,
    seconds: u32,
    ended: Arc<Ended>,
}

impl Patience {
    pub(super) fn new(fs: &Arc<Nvmfs>, arguments: &Arguments, ended: &Arc<Ended>) -> Patience {
        let store = arguments.store.display().to_string();
        let (fs, ended) = (Arc::downgrade(fs), Arc::clone(ended));
        Patience { fs, store, seconds: arguments.close_timeout, ended }
    }

    /// The mount is to end: from now on its patience runs out.
    pub(super) fn runs_out(&self) {
        let patience = self.clone();
        // Without a thread there is no bound, and nothing else is wrong.
        let started = thread::Builder::new().name("patience".into()).spawn(move || {
            thread::sleep(Duration::from_secs(patience.seconds.into()));
            patience.end();
        });
        if let Err(error) = started {
            log::warn!("{}: waits for space without a bound: {error}", self.store);
        }
    }

    fn end(&self) {
        let Some(fs) = self.fs.upgrade() else { return };
        if fs.ftl().waits_for_space() {
            let Patience { store, seconds, .. } = self;
            let lost = fs.ftl().stats().unflushed_batches;
            let loss = format!(
                "{store}: still no space in the file system that it lies in, {seconds} s after the mount was to end: \
                 closed as by a power cut. {lost} changes since the last sync are lost; what was synced is safe"
            );
            log::error!("{loss}");
            journal::tell_kernel(&loss);
            self.ended.note_loss(loss);
        }
        fs.ftl().stop_waiting_for_space();
    }
}
