//! The kernel's FUSE protocol without a library, over io_uring where the kernel has that enabled.
//!
//! Through `/dev/fuse` a request costs two system calls, one that reads it and one that writes the answer,
//! and any thread may be woken for it. Over io_uring (Linux 6.14) it costs one, which takes the answer and
//! returns with the next request, and requests stay with the processor that they come from: the kernel has a
//! queue for each. Root turns it on: [`UringTransport::SWITCH`].
//!
//! - `wire`: the structures; `request`, `reply`: from and to bytes; all pure.
//! - `answer`: from the bytes of a request to the bytes of its answer, through the service.
//! - `device`: mount, handshake, and the requests that still come through `/dev/fuse`: forgets and interrupts.
//! - `ring`: one entry of a queue. The only part with unsafe code.
//!
//! A mount has one thread for `/dev/fuse`, and several for each queue, each with an entry of its own. A thread that
//! answers a request blocks as long as the store does; the queue's other threads take the requests that arrive
//! meanwhile. They stay on the queue's processor, unless the queue has more to do than the others (`queues`).
//!
//! **Invariants.**
//! 1. After the handshake the kernel holds every request back until each of its queues has an entry; so a mount is
//!    established only once all threads have registered theirs. A thread that cannot ends the mount.
//! 2. A request is answered by the thread that got it, and by no other. A thread that ends before the mount does,
//!    whatever the reason, ends the mount: no program waits for an answer that will never come.
//!
//! There are no locks.
//!
//! **Crash.** A request changes nothing here. A sent answer means only that the service has answered.

mod answer;
mod device;
mod queues;
mod reply;
mod request;
mod ring;
mod wire;

use std::{
    fs, io,
    path::Path,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use self::{
    answer::{SHORT_REPLY_BYTES_MAX, answer},
    device::{Mounted, drop_cached},
    queues::Place,
    ring::Entry,
};
use super::{
    MountOptions, Session, Transport, Unmounter,
    invalidator::{Cached, Invalidator},
};
use crate::{
    Service,
    mutant::{Rule, is_broken},
};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct UringTransport;

impl UringTransport {
    /// The file that says whether the kernel offers rings to new mounts: `Y` or `N`. It is not there before Linux 6.14,
    /// nor before the module FUSE is loaded.
    pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

    /// Whether this kernel has FUSE over io_uring, and has it enabled.
    pub fn is_on() -> bool {
        fs::read(UringTransport::SWITCH).is_ok_and(|value| value.starts_with(b"Y"))
    }
}

impl Transport for UringTransport {
    fn name(&self) -> &'static str {
        "uring"
    }

    /// # Errors
    /// Unsupported where FUSE over io_uring is off; PermissionDenied for all but root.
    fn mount(
        &self,
        service: Arc<Service>,
        dir: &Path,
        options: &MountOptions,
    ) -> io::Result<Box<dyn Session>> {
        if !UringTransport::is_on() {
            let switch = UringTransport::SWITCH;
            let reason = match Path::new(switch).exists() {
                true => format!("FUSE over io_uring is off ({switch})"),
                false => "this kernel has no FUSE over io_uring".into(),
            };
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        let mounted = Arc::new(Mounted::new(dir, options)?);
        let mut session = UringSession { mounted, service: Arc::clone(&service), threads: Vec::new() };
        let invalidator = Arc::downgrade(&session.start(&service, options.threads)?);
        service.carried_by(self.name(), move |number| {
            if let Some(invalidator) = invalidator.upgrade() {
                invalidator.order(number, Cached::Attributes, || ());
            }
        });
        Ok(Box::new(session))
    }
}

/// Entry point for fuzz/: bytes as they may be read from the device. Not a stable interface.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn parse(bytes: &[u8]) {
    if let Some((header, argument, payload)) = request::split(bytes) {
        let _ = request::Operation::parse(&header, argument, payload);
    }
}

/// A mount and the threads that serve it. Dropping it ends the mount.
struct UringSession {
    mounted: Arc<Mounted>,
    service: Arc<Service>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl UringSession {
    /// By invariant 1, returns when the mount is established; with what lives as long as threads serve it.
    fn start(&mut self, service: &Arc<Service>, threads: usize) -> io::Result<Arc<Invalidator>> {
        self.mounted.shake_hands(service.options().cache)?;
        // Statistics name the device's way of doing I/O, and so start its threads here: started on demand by one
        // of the threads below, they would stay at its processor.
        let _ = service.fs().ftl().stats();
        let device = Arc::new(self.mounted.device.try_clone()?);
        let orders_to = Arc::clone(&device);
        let invalidator = Invalidator::start(move |number, what| drop_cached(&orders_to, number, &what))?;
        let invalidator = Arc::new(invalidator);
        let (report, reports) = mpsc::channel();
        let queues = queues::plan(threads)?;
        let loads = Arc::new(queues::Loads::new()?);
        let entries = queues.len();
        for queue in queues {
            let (device, service) = (Arc::clone(&device), Arc::clone(service));
            let invalidator = Arc::clone(&invalidator);
            let (report, loads) = (report.clone(), Arc::clone(&loads));
            self.spawn(format!("fuse-{queue}"), move || {
                let place = Place::take(queue, loads);
                let registered = Entry::register(device, queue);
                let (outcome, entry) = match registered {
                    Ok(entry) => (Ok(()), entry),
                    Err(error) => (Err(error), None),
                };
                // The caller may have given up.
                let _ = report.send(outcome);
                entry.map_or(Ok(()), |entry| serve(entry, place, &service, &invalidator))
            })?;
        }
        let (mounted, service) = (Arc::clone(&self.mounted), Arc::clone(service));
        let of_device = Arc::clone(&invalidator);
        self.spawn("fuse-device".into(), move || mounted.serve(&service, &of_device))?;
        reports.iter().take(entries).collect::<io::Result<()>>()?;
        Ok(invalidator)
    }

    /// Runs `serve`, which returns without an error only at the end of the mount, or before it is established.
    /// Invariant 2 is kept by the guard.
    fn spawn(
        &mut self,
        name: String,
        serve: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let mounted = Arc::clone(&self.mounted);
        let thread = move || {
            let guard = EndsMount(&mounted);
            let ended = serve();
            if ended.is_ok() {
                // The mount has ended already; another may be in its place.
                std::mem::forget(guard);
            }
            ended
        };
        self.threads.push(thread::Builder::new().name(name).spawn(thread)?);
        Ok(())
    }
}

/// Ends the mount when dropped, if there still is one.
struct EndsMount<'a>(&'a Mounted);

impl Drop for EndsMount<'_> {
    fn drop(&mut self) {
        self.0.mount.abort();
    }
}

/// Answers requests until the mount ends.
fn serve(mut entry: Entry, mut place: Place, service: &Service, invalidator: &Invalidator) -> io::Result<()> {
    let mut short = vec![0; SHORT_REPLY_BYTES_MAX];
    while entry.wait()? {
        place.begins();
        let ring::Request { header, argument, payload, payload_bytes } = entry.request();
        let answered = if payload_bytes == 0 {
            answer((service, invalidator), &header, &argument, &[], payload)
        } else {
            let payload_in = &payload[..payload_bytes];
            let answered = answer((service, invalidator), &header, &argument, payload_in, &mut short);
            let copied = |len: &usize| payload[..*len].copy_from_slice(&short[..*len]);
            if is_broken(Rule::RingCopiesPayload) { answered } else { answered.inspect(copied) }
        };
        place.ends();
        entry.commit(answered);
    }
    Ok(())
}

impl Session for UringSession {
    fn unmounter(&mut self) -> Unmounter {
        let mounted = Arc::clone(&self.mounted);
        Box::new(move || mounted.mount.unmount())
    }

    fn serve(mut self: Box<Self>) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in std::mem::take(&mut self.threads) {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            outcome = outcome.and(ended);
        }
        self.service.unmounted();
        outcome
    }
}

impl Drop for UringSession {
    fn drop(&mut self) {
        self.mounted.mount.abort();
        for thread in self.threads.drain(..) {
            // The caller of the mount already has the reason why it ended.
            let _ = thread.join();
        }
    }
}
