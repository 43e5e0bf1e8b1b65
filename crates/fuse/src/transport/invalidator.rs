//! Orders to the kernel to drop what it has cached of a file: pages after direct writes (invariant 2 of
//! `open_files.rs`), attributes after a change that the kernel did not ask for.
//!
//! The kernel carries an order out only when no page in the range is being read, and the inode is not on its way out of
//! its cache. Both may need a request that waits for a thread of this mount: a thread that answers requests must never
//! wait for an order. So a thread of its own gives the orders, one after the other. It ends when the [`Invalidator`] is
//! dropped.

use std::{
    io,
    ops::Range,
    sync::mpsc::{Sender, channel},
    thread,
};

/// What the kernel drops of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cached {
    Attributes,
    /// Attributes too.
    Pages(Range<u64>),
}

impl Cached {
    /// Offset and length, as the kernel takes them.
    pub(super) fn offset_and_len(&self) -> (i64, i64) {
        match self {
            Cached::Attributes => (-1, 0),
            Cached::Pages(bytes) => (bytes.start as i64, (bytes.end - bytes.start) as i64),
        }
    }
}

/// See the module.
pub(super) struct Invalidator(Sender<Order>);

struct Order {
    /// FUSE's number of the inode.
    number: u64,
    what: Cached,
    then: Box<dyn FnOnce() + Send>,
}

impl Invalidator {
    /// Gives orders by `notify`.
    pub(super) fn start(
        notify: impl Fn(u64, Cached) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Invalidator> {
        let (sender, orders) = channel::<Order>();
        thread::Builder::new().name("fuse-invalidate".into()).spawn(move || {
            for Order { number, what, then } in orders {
                match notify(number, what) {
                    // The kernel has forgotten the inode and its pages, or the mount has ended.
                    Err(error) if is_gone(&error) => {}
                    Err(error) => log::error!("inode {number} stays in the kernel's cache: {error}"),
                    Ok(()) => {}
                }
                then();
            }
        })?;
        Ok(Invalidator(sender))
    }

    /// Has the kernel drop it, and calls `then` when it is gone.
    pub(super) fn order(&self, number: u64, what: Cached, then: impl FnOnce() + Send + 'static) {
        let order = Order { number, what, then: Box::new(then) };
        self.0.send(order).expect("the thread lives as long as this");
    }
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [rustix::io::Errno::NOENT, rustix::io::Errno::NODEV, rustix::io::Errno::NOTCONN];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn what_waits_for_an_order_goes_on_after_it_even_if_it_fails() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let invalidator = Invalidator::start(move |number, what| {
            noted.lock().expect("no panic").push((number, what));
            Err(rustix::io::Errno::NOENT.into())
        })
        .expect("starts");
        let (sender, done) = channel();
        for number in 1..4 {
            let (sender, seen) = (sender.clone(), Arc::clone(&seen));
            invalidator.order(number, Cached::Pages(number..2 * number), move || {
                sender.send(seen.lock().expect("no panic").last().cloned()).expect("somebody waits");
            });
            assert_eq!(done.recv(), Ok(Some((number, Cached::Pages(number..2 * number)))));
        }
    }
}
