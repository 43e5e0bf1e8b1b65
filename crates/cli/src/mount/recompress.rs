//! Compresses harder what nobody has written for long (`lacuna mount --recompress`), in the background.
//!
//! Each walk takes up what was written before the walk before it, and after the one before that. So each chunk is looked
//! at once after it was written, at least an interval later, and all of the store once after each mount.

use std::{
    ops::{ControlFlow, Range},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use lacuna_nvmfs::{Compression, Nvmfs, Seq};

/// A piece is followed by a pause of so many times the time that it took: others get the processors, and the device.
const PAUSE: u32 = 3;

/// A thread that walks now and then, until this is dropped.
pub(super) struct Recompressor {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Recompressor {
    pub(super) fn start(
        fs: Arc<Nvmfs>,
        compression: Compression,
        interval: Duration,
    ) -> std::io::Result<Recompressor> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new().name("recompressor".into()).spawn(move || {
            let mut walks = Walks::new(fs.ftl().last_seq());
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                let (births, now) = (walks.births(), fs.ftl().last_seq());
                match fs.compress_cold(compression, &births, paced(&stopped)) {
                    Ok(true) => walks.done(now),
                    Ok(false) => return,
                    // A full store, or a failed one, about which others complain. The next walk begins anew.
                    Err(error) => log::warn!("not all old data is compressed harder: {error}"),
                }
            }
        })?;
        Ok(Recompressor { stop: Some(stop), thread: Some(thread) })
    }
}

/// Waits after each piece, unless the thread is to end.
fn paced(stopped: &Receiver<()>) -> impl FnMut(u64) -> ControlFlow<()> + '_ {
    let mut began = Instant::now();
    move |_| {
        let pause = began.elapsed() * PAUSE;
        let waited = stopped.recv_timeout(pause);
        began = Instant::now();
        match waited {
            Err(RecvTimeoutError::Timeout) => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
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

impl Drop for Recompressor {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (stop, stopped) = channel();
        let mut go_on = paced(&stopped);
        assert!(go_on(5).is_continue());
        drop(stop);
        assert!(go_on(5).is_break());
    }
}
