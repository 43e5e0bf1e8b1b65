//! Files that are open: whether the kernel keeps their pages, and which answered the DirectFS ioctl.
//!
//! An opening is *cached* (the kernel reads through its page cache) or *direct* (each read and write is a request). A
//! direct write does not change what the kernel has in its page cache, and a page that it is reading at that moment may
//! arrive there with the old content after the write. So:
//!
//! **Invariants.**
//! 1. A file that has a direct opening gets no cached one: reads of others do not take its parallel writes away, and
//!    there is no page that could be old. A direct opening has the kernel drop all pages of the file.
//! 2. A file has openings of both kinds only if the cached ones came first. Then each direct write is followed by an
//!    order to drop the pages that it wrote ([`OpenFiles::is_cached`]).
//! 3. Such a file keeps pages of which nobody knows how old they are, once the last cached opening is gone. So each
//!    cached opening from then on has the kernel drop them first, until one that did so has ended and with it all
//!    others: only then is it known that the kernel has dropped them.
//! 4. A number is among those that were asked about only while the file for which the ioctl was answered has it: a new
//!    file with a reused number starts outside. A removed file is left out when it is closed or forgotten by the
//!    kernel, whichever comes last.
//! 5. The gate of a file is open only while each of its openings is direct and claimed, and none was mapped. Each change
//!    is followed by a look, which shuts the gate once nobody is in it, or opens it; only then does the caller go on.
//!
//! **Locks.** One for all, held for a look-up or a change. Each gate is a lock as well, which is taken before that.
//!
//! **Crash.** Nothing here is persistent: the kernel's openings and pages end with the mount.

use std::{collections::HashMap, sync::Arc};

use lacuna_nvmfs::Ino;
use parking_lot::RwLock;
use rustix::fs::OFlags;

use crate::mutant::{Rule, is_broken};

/// What the bits of a handle mean. It carries no more: a file's number says the rest.
const DIRECT_HANDLE: u64 = 1;
const WRITABLE_HANDLE: u64 = 2;

/// How a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Each read and write is a request.
    Direct,
    /// The kernel caches the file, and keeps the pages that it has.
    Cached,
    /// As [`Opening::Cached`], but the kernel drops the pages that it has.
    CachedAnew,
}

impl Opening {
    /// What the kernel brings back with each request through this opening, which was made with these flags.
    pub fn handle(self, open_flags: i32) -> u64 {
        let access = OFlags::from_bits_retain(open_flags as u32) & OFlags::ACCMODE;
        let direct = if self == Opening::Direct { DIRECT_HANDLE } else { 0 };
        let writable = if access == OFlags::RDONLY { 0 } else { WRITABLE_HANDLE };
        direct | writable
    }

    /// Whether `handle` is that of a direct opening.
    pub fn is_direct(handle: u64) -> bool {
        handle & DIRECT_HANDLE != 0
    }

    /// Whether `handle` is that of a file that is open for writing.
    pub fn is_writable(handle: u64) -> bool {
        handle & WRITABLE_HANDLE != 0
    }
}

/// Whether a file may be read and written past the kernel (invariant 5); held while that is done.
pub(crate) type Gate = RwLock<bool>;

/// See the module.
#[derive(Default)]
pub(crate) struct OpenFiles(RwLock<HashMap<Ino, File>>);

#[derive(Default)]
struct File {
    cached: u32,
    direct: u32,
    /// Openings for writing, of either kind.
    writable: u32,
    /// The ioctl was answered.
    is_asked_about: bool,
    /// The kernel may have pages that are older than the file (invariant 3).
    may_be_stale: bool,
    /// An opening since then had the kernel drop them.
    was_dropped: bool,
    /// Openings that are claimed.
    claimed: u32,
    /// One of the openings was mapped into memory, as far as known.
    is_mapped: bool,
    /// There once it was claimed.
    gate: Option<Arc<Gate>>,
}

impl File {
    /// By invariant 5.
    fn is_claimed_alone(&self) -> bool {
        let is_sole = self.cached == 0 && self.direct == self.claimed;
        (is_sole || is_broken(Rule::ClaimsAreSole))
            && (!self.is_mapped || is_broken(Rule::MappedIsNotClaimed))
            && self.claimed > 0
    }
}

impl OpenFiles {
    /// Notes an opening, which is direct if it `must_be` or the file is open that way. `anew` asks the kernel to drop
    /// the pages that it has.
    pub(crate) fn open(&self, ino: Ino, must_be_direct: bool, anew: bool, is_writable: bool) -> Opening {
        let mut files = self.0.write();
        let file = files.entry(ino).or_default();
        file.writable += u32::from(is_writable);
        if must_be_direct || (file.direct > 0 && !is_broken(Rule::DirectStaysDirect)) {
            file.direct += 1;
            if file.cached > 0 {
                (file.may_be_stale, file.was_dropped) = (true, false);
            }
            let gate = file.gate.clone();
            drop(files);
            self.look(ino, gate);
            return Opening::Direct;
        }
        file.cached += 1;
        file.was_dropped |= file.may_be_stale;
        let drops = anew || (file.may_be_stale && !is_broken(Rule::OldPagesDropped));
        if drops { Opening::CachedAnew } else { Opening::Cached }
    }

    /// Ends the opening with that handle.
    pub(crate) fn close(&self, ino: Ino, handle: u64) {
        let mut files = self.0.write();
        let Some(file) = files.get_mut(&ino) else { return };
        let count = if Opening::is_direct(handle) { &mut file.direct } else { &mut file.cached };
        *count = count.saturating_sub(1);
        file.writable = file.writable.saturating_sub(u32::from(Opening::is_writable(handle)));
        let gate = file.gate.clone();
        if file.cached + file.direct == 0 {
            file.may_be_stale &= !file.was_dropped;
            (file.claimed, file.is_mapped, file.gate) = (0, false, None);
            if !file.may_be_stale && !file.is_asked_about {
                files.remove(&ino);
            }
        }
        drop(files);
        self.look(ino, gate);
    }

    /// Claims one of the direct openings of a file, if there is one that is not claimed, until [`OpenFiles::disclaim`].
    pub(crate) fn claim(&self, ino: Ino) -> Option<Arc<Gate>> {
        let mut files = self.0.write();
        let file = files.get_mut(&ino).filter(|file| file.claimed < file.direct)?;
        file.claimed += 1;
        let gate = Arc::clone(file.gate.get_or_insert_default());
        drop(files);
        self.look(ino, Some(Arc::clone(&gate)));
        Some(gate)
    }

    pub(crate) fn disclaim(&self, ino: Ino, gate: &Arc<Gate>) {
        if let Some(file) = self.0.write().get_mut(&ino)
            && file.gate.as_ref().is_some_and(|of_file| Arc::ptr_eq(of_file, gate))
        {
            file.claimed -= 1;
        }
        self.look(ino, Some(Arc::clone(gate)));
    }

    /// One of the openings of a file is going to be mapped into memory. It stays open as long as it is.
    pub(crate) fn map(&self, ino: Ino) {
        let mut files = self.0.write();
        let Some(file) = files.get_mut(&ino) else { return };
        file.is_mapped = true;
        let gate = file.gate.clone();
        drop(files);
        self.look(ino, gate);
    }

    /// Opens or shuts a gate, by invariant 5.
    fn look(&self, ino: Ino, gate: Option<Arc<Gate>>) {
        let Some(gate) = gate else { return };
        if is_broken(Rule::ClaimsAreAwaited) && gate.try_write().is_none() {
            return;
        }
        let mut is_open = gate.write();
        let files = self.0.read();
        let file =
            files.get(&ino).filter(|file| file.gate.as_ref().is_some_and(|own| Arc::ptr_eq(own, &gate)));
        *is_open = file.is_some_and(File::is_claimed_alone);
    }

    /// Whether the kernel may have pages of the file, other than mapped ones, that a direct write does not change.
    pub(crate) fn is_cached(&self, ino: Ino) -> bool {
        self.0.read().get(&ino).is_some_and(|file| file.cached > 0)
    }

    /// Whether others than the opening with that handle may have mapped the file and changed it there: then the kernel
    /// may have pages of which we know nothing yet. A mapping keeps its opening.
    pub(crate) fn may_be_mapped(&self, ino: Ino, handle: u64) -> bool {
        let own = u32::from(Opening::is_writable(handle));
        self.0.read().get(&ino).is_some_and(|file| file.writable > own) && !is_broken(Rule::MappedIsNoHole)
    }

    /// The ioctl was answered for this file. True the first time.
    pub(crate) fn ask(&self, ino: Ino) -> bool {
        let mut files = self.0.write();
        !std::mem::replace(&mut files.entry(ino).or_default().is_asked_about, true)
    }

    /// Whether the ioctl was answered for this file, and the kernel has no pages of it as in [`OpenFiles::is_cached`].
    pub(crate) fn takes_trims(&self, ino: Ino) -> bool {
        self.0.read().get(&ino).is_some_and(|file| file.is_asked_about && file.cached == 0)
    }

    /// Whether the ioctl was answered for this file.
    #[cfg(test)]
    pub(crate) fn is_asked_about(&self, ino: Ino) -> bool {
        self.0.read().get(&ino).is_some_and(|file| file.is_asked_about)
    }

    /// The number belongs to another file now, or to none.
    pub(crate) fn remove(&self, ino: Ino) {
        if self.knows(ino) {
            self.0.write().remove(&ino);
        }
    }

    /// Whether there is anything to remove.
    pub(crate) fn knows(&self, ino: Ino) -> bool {
        self.0.read().contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::{Opening::*, *};

    fn ino() -> Ino {
        Ino::new(20).expect("a number")
    }

    #[test]
    fn handles_tell_how_a_file_was_opened() {
        let cases = [
            (Cached, OFlags::RDONLY, 0),
            (Direct, OFlags::RDONLY | OFlags::DIRECT, 1),
            (CachedAnew, OFlags::WRONLY | OFlags::APPEND, 2),
            (Direct, OFlags::RDWR | OFlags::DSYNC, 3),
        ];
        for (opening, flags, expected) in cases {
            let handle = opening.handle(flags.bits() as i32);
            assert_eq!(handle, expected);
            assert_eq!(Opening::is_direct(handle), opening == Direct);
            assert_eq!(Opening::is_writable(handle), expected >= 2);
        }
    }

    #[test]
    fn what_is_open_directly_is_cached_for_nobody() {
        let files = OpenFiles::default();
        assert_eq!(files.open(ino(), false, false, false), Cached);
        files.close(ino(), 0);
        assert_eq!(files.open(ino(), true, false, false), Direct);
        assert_eq!(files.open(ino(), false, false, false), Direct);
        assert!(!files.is_cached(ino()));
        files.close(ino(), DIRECT_HANDLE);
        assert_eq!(files.open(ino(), false, true, false), Direct);
        files.close(ino(), DIRECT_HANDLE);
        files.close(ino(), DIRECT_HANDLE);
        assert!(!files.knows(ino()), "nothing is remembered of what is closed");
        // Nobody wrote behind the kernel's back: its pages were dropped by the direct opening, and none came after.
        assert_eq!(files.open(ino(), false, false, false), Cached);
        assert_eq!(files.open(ino(), false, true, false), CachedAnew);
    }

    #[test]
    fn pages_from_beside_direct_writes_are_dropped_until_it_is_certain() {
        let files = OpenFiles::default();
        assert_eq!(files.open(ino(), false, false, false), Cached);
        assert_eq!(files.open(ino(), true, false, false), Direct);
        assert!(files.is_cached(ino()), "each direct write must be followed by an order to drop");
        files.close(ino(), 0);
        assert!(!files.is_cached(ino()));
        files.close(ino(), DIRECT_HANDLE);
        // The second may read before the kernel has dropped the pages for the first.
        for _ in 0..2 {
            assert_eq!(files.open(ino(), false, false, false), CachedAnew);
        }
        files.close(ino(), 0);
        assert_eq!(files.open(ino(), false, false, false), CachedAnew);
        files.close(ino(), 0);
        files.close(ino(), 0);
        assert_eq!(files.open(ino(), false, false, false), Cached);
        // Mixed again after that: what was dropped before counts for nothing.
        assert_eq!(files.open(ino(), true, false, false), Direct);
        files.close(ino(), DIRECT_HANDLE);
        files.close(ino(), 0);
        assert_eq!(files.open(ino(), false, false, false), CachedAnew);
    }

    #[test]
    fn a_new_file_with_the_number_starts_afresh() {
        let files = OpenFiles::default();
        assert!(files.ask(ino()) && !files.ask(ino()) && files.is_asked_about(ino()));
        files.open(ino(), false, false, false);
        files.close(ino(), 0);
        assert!(files.is_asked_about(ino()), "a program that opens a file again need not ask again");
        files.remove(ino());
        assert!(!files.knows(ino()) && !files.is_asked_about(ino()));
    }
}
