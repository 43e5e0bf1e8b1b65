//! Reports that a store has stopped, and ends the process if that is wished; and that it waits for space of its host.
//! Gives memory back that inodes took.
//!
//! After a failed write or sync what is on the device is unknown, so the store takes no more changes until it is opened
//! anew. Programs that use the mount see EIO; this is for the one who runs the machine.

use std::{io, path::Path, sync::Arc, time::Duration};

use lacuna_nvmfs::Nvmfs;

use super::{Arguments, detach, heap::Heap, worker::Worker};

/// How often to look.
const INTERVAL: Duration = Duration::from_millis(500);

const HOST_IS_FULL: &str = "the file system that it lies in is full. Syncs wait, changes that need space fail with \
                            ENOSPC; free some space there, and all goes on";

/// Looks now and then, until the thread is dropped.
pub(super) fn start(fs: Arc<Nvmfs>, arguments: &Arguments) -> io::Result<Worker> {
    let (store, dir) = (arguments.store.display().to_string(), arguments.dir.clone());
    let exits = arguments.exit_on_failure;
    Worker::start("watch", move |pauses| {
        let (mut waited, mut heap) = (false, Heap::default());
        while pauses.wait(INTERVAL) {
            heap.look(fs.inodes_in_memory());
            let waits = fs.ftl().waits_for_space();
            if waits != std::mem::replace(&mut waited, waits) {
                log::warn!("{store}: {}", if waits { HOST_IS_FULL } else { "has space again, goes on" });
            }
            if let Some(reason) = fs.ftl().failure() {
                log::error!("{}", advice(&store, &dir, &reason));
                if exits {
                    exit(&store, &dir);
                }
                return;
            }
        }
    })
}

/// What happened, and the way back.
fn advice(store: &str, dir: &Path, reason: &str) -> String {
    let dir = dir.display();
    format!(
        "{store}: stopped after a failure: {reason}. Reads go on, changes fail with EIO; everything that was synced is \
         safe. Once the device is well again: lacuna umount {dir} && lacuna mount {store} {dir}"
    )
}

/// Ends the process as a failed one. There is nothing to close: the store takes no writes.
fn exit(store: &str, dir: &Path) -> ! {
    detach(dir, Path::new(store));
    std::process::exit(1);
}
