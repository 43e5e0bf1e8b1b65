//! Compresses harder what nobody has written for long (`lacuna mount --recompress`), in the background.
//!
//! Each walk takes up what was written before the walk before it, and after the one before that. So each chunk is looked
//! at once after it was written, at least an interval later, and all of the store once after each mount.

use std::{
    io,
    ops::{ControlFlow, Range},
    sync::Arc,
    time::{Duration, Instant},
};

use lacuna_fuse::Service;
use lacuna_nvmfs::{ColdPiece, Compression, Seq};

use super::worker::{Pauses, Worker};

/// A piece is followed by a pause of so many times the time that it took: others get the processors, and the device.
const PAUSE: u32 = 3;

/// Walks now and then, until the thread is dropped.
pub(super) fn start(
    service: Arc<Service>,
    compression: Compression,
    interval: Duration,
) -> io::Result<Worker> {
    Worker::start("recompressor", move |pauses| {
        let fs = service.fs();
        let mut walks = Walks::new(fs.ftl().last_seq());
        while pauses.wait(interval) {
            let (births, now) = (walks.births(), fs.ftl().last_seq());
            let mut paced = paced(pauses);
            let walked = fs.compress_cold(compression, &births, |ColdPiece { smaller, .. }| {
                if let Some(ino) = smaller {
                    service.space_changed(ino);
                }
                paced()
            });
            match walked {
                Ok(true) => walks.done(now),
                Ok(false) => return,
                // A full store, or a failed one, about which others complain. The next walk begins anew.
                Err(error) => log::warn!("not all old data is compressed harder: {error}"),
            }
        }
    })
}

/// Waits after each piece, unless the thread is to end.
fn paced(pauses: &Pauses) -> impl FnMut() -> ControlFlow<()> + '_ {
    let mut began = Instant::now();
    move || {
        let goes_on = pauses.wait(began.elapsed() * PAUSE);
        began = Instant::now();
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Which batches wrote what the next walk takes up.
struct Walks {
    /// Earlier walks have taken up what was written before this batch.
    from: Seq,
    /// The last batch when the last walk began.
    last: Seq,
}

impl Walks {
    fn new(last: Seq) -> Walks {
        Walks { from: Seq(0), last }
    }

    fn births(&self) -> Range<Seq> {
        self.from..Seq(self.last.0 + 1)
    }

    /// The walk, when `now` was the last batch, is through.
    fn done(&mut self, now: Seq) {
        *self = Walks { from: self.births().end, last: now };
    }
}

#[cfg(test)]
mod tests {
    use super::{super::worker::pauses, *};

    #[test]
    fn walks_take_up_each_batch_once_and_not_at_once() {
        let mut walks = Walks::new(Seq(7));
        let mut taken = Vec::new();
        for now in [20, 20, 31] {
            taken.push((walks.births().start.0, walks.births().end.0));
            walks.done(Seq(now));
        }
        assert_eq!(taken, [(0, 8), (8, 21), (21, 21)]);
        assert_eq!(walks.births(), Seq(21)..Seq(32));
    }

    #[test]
    fn a_pause_ends_when_the_thread_is_to_end() {
        let (stop, pauses) = pauses();
        let mut go_on = paced(&pauses);
        assert!(go_on().is_continue());
        drop(stop);
        assert!(go_on().is_break());
    }
}
