//! Orders to the kernel to drop pages of its cache after direct writes (invariant 2 of `open_files.rs`).
//!
//! The kernel carries an order out only when no page in the range is being read. Such a read is a request that waits
//! for a thread of this mount: a thread that answers requests must never wait for an order. So a thread of its own
//! gives the orders, one after the other. It ends when the [`Invalidator`] is dropped.

use std::{
    io,
    ops::Range,
    sync::mpsc::{Sender, channel},
    thread,
};

/// See the module.
pub(super) struct Invalidator(Sender<Order>);

struct Order {
    /// FUSE's number of the inode.
    number: u64,
    bytes: Range<u64>,
    then: Box<dyn FnOnce() + Send>,
}

impl Invalidator {
    /// Gives orders by `notify`.
    pub(super) fn start(
        notify: impl Fn(u64, Range<u64>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Invalidator> {
        let (sender, orders) = channel::<Order>();
        thread::Builder::new().name("fuse-invalidate".into()).spawn(move || {
            for Order { number, bytes, then } in orders {
                match notify(number, bytes) {
                    // The kernel has forgotten the inode and its pages, or the mount has ended.
                    Err(error) if is_gone(&error) => {}
                    Err(error) => log::error!("pages of inode {number} stay in the kernel's cache: {error}"),
                    Ok(()) => {}
                }
                then();
            }
        })?;
        Ok(Invalidator(sender))
    }

    /// Has the kernel drop the pages of `bytes`, and calls `then` when they are gone.
    pub(super) fn order(&self, number: u64, bytes: Range<u64>, then: impl FnOnce() + Send + 'static) {
        let order = Order { number, bytes, then: Box::new(then) };
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
        let invalidator = Invalidator::start(move |number, bytes| {
            noted.lock().expect("no panic").push((number, bytes));
            Err(rustix::io::Errno::NOENT.into())
        })
        .expect("starts");
        let (sender, done) = channel();
        for number in 1..4 {
            let (sender, seen) = (sender.clone(), Arc::clone(&seen));
            invalidator.order(number, number..2 * number, move || {
                sender.send(seen.lock().expect("no panic").last().cloned()).expect("somebody waits");
            });
            assert_eq!(done.recv(), Ok(Some((number, number..2 * number))));
        }
    }
}
